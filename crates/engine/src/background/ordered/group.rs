//! Writes a group to the origin of an ordered volume.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

use forebay_core::why::{WakeReason, WritebackReason};
use forebay_core::{OriginBlock, SectorMask};
use forebay_device::IoBuf;
use forebay_lane::{concurrently, join_all};
use forebay_policy::next_run;
use forebay_policy::sweep::Merge;
use forebay_store::planted::{self, PlantedBug};
use forebay_store::{OrderedVersion, Pinned};

use super::Ordered;
use crate::background::pace::{FIRST_RETRY, pause_for};
use crate::error::WritebackError;
use crate::io::copies::Copies;
use crate::io::origin::OriginIo;
use crate::io::writeback::split::parts;
use crate::state::volume::layout::bytes_of;
use crate::state::volume::{Volume, VolumeState};

/// Blocks whose writes are planned together.
const BATCH_BLOCKS: usize = 4096;

/// Number of parts into which failed runs are split.
const MOST_SPLIT: usize = 64;

/// The result of writing a group.
#[derive(Default)]
struct GroupResult {
    /// Whether anything was written.
    any: bool,
    unreadable: BTreeSet<OriginBlock>,
    /// Runs that could not be written, with the errors, until they are written again.
    failed: Vec<(VersionRun, WritebackError)>,
    /// Why some runs were not written, or the origin is not synced.
    error: Option<WritebackError>,
}

/// Versions of adjacent blocks.
type VersionRun = Vec<(OriginBlock, OrderedVersion)>;

impl Volume {
    /// Adds the valid sectors of a block to the list of origin writes, joining adjacent runs.
    pub(crate) fn gather(
        &self,
        block: OriginBlock,
        mask: Option<&SectorMask>,
        payload: &[u8],
        writes: &mut Vec<(u64, Vec<u8>)>,
    ) {
        for valid in self.valid_sectors(block, mask).runs() {
            let offset = self.origin_offset(block, valid.start);
            let bytes = &payload[bytes_of(&valid)];
            match writes.last_mut() {
                Some((start, data)) if *start + data.len() as u64 == offset => {
                    data.extend_from_slice(bytes);
                }
                _ => writes.push((offset, bytes.to_vec())),
            }
        }
    }
}

impl Ordered {
    /// Writes versions to the origin in block order, and syncs it. Returns the blocks that cannot
    /// be read.
    pub(super) async fn write_group(
        &self,
        versions: &[(OriginBlock, OrderedVersion)],
        why: WritebackReason,
    ) -> Result<BTreeSet<OriginBlock>, WritebackError> {
        let settings = self.0.volume.settings();
        let failures = self.0.volume.syncs.failures();
        let outcome = Rc::new(RefCell::new(GroupResult::default()));
        let merge = Merge::of(self.0.volume.block, settings.merge_bytes, 0);
        // Start with the blocks that were refused last time: while the origin still refuses them,
        // writing the others again is useless.
        let stuck = versions.iter().filter(|(block, _)| self.0.volume.is_refused(*block));
        let stuck: Vec<VersionRun> = stuck.map(|version| vec![version.clone()]).collect();
        if !stuck.is_empty() {
            self.write_runs(stuck, why, &outcome).await;
            if let Some(error) = outcome.borrow_mut().error.take() {
                return Err(error);
            }
        }
        for mut batch in versions.chunks(BATCH_BLOCKS) {
            let blocks: Vec<OriginBlock> = batch.iter().map(|(block, _)| *block).collect();
            let mut runs = Vec::new();
            let mut rest = &blocks[..];
            while let Some(run) = next_run(rest, merge, |_| false) {
                let (first, others) = batch.split_at(run.count);
                runs.push(first.to_vec());
                (rest, batch) = (&rest[run.count..], others);
            }
            self.write_runs(runs, why, &outcome).await;
            let stops =
                |error: &WritebackError| !matches!(error, WritebackError::OrderRefused { .. });
            if outcome.borrow().error.as_ref().is_some_and(stops) {
                break;
            }
        }
        let mut outcome = outcome.take();
        let unsynced = planted::has(PlantedBug::GroupUnsynced);
        if outcome.any && outcome.error.is_none() && !unsynced {
            // Barrier for invariants 9 and 28: the group is durable before the next one is written,
            // and before a block is marked clean.
            if let Err(error) = OriginIo(&self.0).sync_device(WakeReason::Other).await {
                outcome.error = Some(error);
            } else if self.0.volume.syncs.failures() != failures {
                // Another task's sync failed, and may have lost these writes.
                outcome.error = Some(WritebackError::SyncLost);
            }
        }
        match outcome.error {
            Some(error) => Err(error),
            None => Ok(outcome.unreadable),
        }
    }

    /// Writes runs, many at a time. Runs that fail are split, and written again as long as others
    /// succeed: an origin that fails one write in a hundred might never take a whole group at once.
    /// In the end only single blocks are refused, unless the origin takes nothing.
    async fn write_runs(
        &self,
        mut runs: Vec<VersionRun>,
        why: WritebackReason,
        outcome: &Rc<RefCell<GroupResult>>,
    ) {
        let volume = &self.0.volume;
        let depth = volume.settings().writeback_depth.max(1) as usize;
        loop {
            let tried = runs.len();
            let (this, all) = (self.clone(), outcome.clone());
            let work = runs.into_iter().map(move |run| {
                let (this, outcome) = (this.clone(), all.clone());
                async move {
                    if let Err(error) = this.write_held_run(&run, why, &outcome).await {
                        outcome.borrow_mut().failed.push((run, error));
                    }
                }
            });
            concurrently(self.0.lane(), depth, work).await;
            let failed = std::mem::take(&mut outcome.borrow_mut().failed);
            let some_good = failed.len() < tried;
            if some_good {
                volume.origin_takes();
            }
            let (split, again) = split(failed, |error| error.is_local() && volume.refused.failed());
            if again.is_empty() || !(split || some_good) {
                return self.note_refused(again, outcome);
            }
            if !split {
                pause_for(&self.0, FIRST_RETRY).await;
            }
            runs = again.into_iter().map(|(run, _)| run).collect();
        }
    }

    /// Records why the origin does not have these runs, and lists the blocks that it refuses alone.
    fn note_refused(
        &self,
        failed: Vec<(VersionRun, WritebackError)>,
        outcome: &RefCell<GroupResult>,
    ) {
        let volume = &self.0.volume;
        let (mut refused, mut other) = (false, None);
        for (run, error) in failed {
            match (&run[..], error) {
                ([(block, _)], WritebackError::Origin(error))
                    if error.is_local() && volume.refuses(*block, &error, self.0.now()) =>
                {
                    refused = true;
                }
                (_, error) => other = Some(error),
            }
        }
        if let Some(error) = other {
            // This error says more than one about single blocks.
            outcome.borrow_mut().error = Some(error);
        } else if refused && let Some(WritebackError::Refused { ranges, error }) = volume.refusal()
        {
            outcome.borrow_mut().error = Some(WritebackError::OrderRefused { ranges, error });
        }
    }

    /// Writes versions of adjacent blocks, with as few writes as their valid sectors allow.
    ///
    /// # Errors
    /// Some of the blocks were not written.
    async fn write_held_run(
        &self,
        run: &[(OriginBlock, OrderedVersion)],
        why: WritebackReason,
        outcome: &RefCell<GroupResult>,
    ) -> Result<(), WritebackError> {
        let volume = &self.0.volume;
        let store = self.0.store.store();
        let (Some((first, _)), Some((last, _))) = (run.first(), run.last()) else { return Ok(()) };
        let range = volume.widen(volume.block_range(*first).start..volume.block_range(*last).end);
        // No task may read a mix of older and newer data meanwhile.
        let _range = volume.ranges.exclusive(range).await;
        if volume.state() == VolumeState::Removed {
            // Another volume may own the origin from now on.
            return Err(WritebackError::Stopped);
        }
        let pinned: Vec<Pinned<'_>> =
            run.iter().map(|(block, version)| store.pin_held(*block, version)).collect();
        let reads = pinned.iter().map(|pinned| async move {
            let buf = IoBuf::for_overwrite(volume.block.as_usize());
            Copies(&self.0).read_patiently(std::slice::from_ref(pinned), buf).await
        });
        let reads = {
            let mut reads = std::pin::pin!(join_all(reads));
            // Clients, and the task that stops the volume, wait for this range.
            self.0.cache.unless_hung(&mut reads).await.ok_or(WritebackError::CacheHung)?
        };
        let mut writes: Vec<(u64, Vec<u8>)> = Vec::new();
        for (pinned, (payload, failed)) in pinned.iter().zip(reads) {
            if failed.is_empty() {
                // An earlier attempt at this run may have failed to read it.
                outcome.borrow_mut().unreadable.remove(&pinned.block);
                let mask = pinned.found.mask.as_ref();
                volume.gather(pinned.block, mask, &payload, &mut writes);
            } else {
                outcome.borrow_mut().unreadable.insert(pinned.block);
            }
        }
        drop(pinned);
        for (offset, bytes) in writes {
            outcome.borrow_mut().any = true;
            OriginIo(&self.0).write_back(offset, IoBuf::copy_from(&bytes), why).await?;
        }
        let unreadable = &outcome.borrow().unreadable;
        let taken = run.iter().filter(|(block, _)| !unreadable.contains(block));
        taken.for_each(|(block, _)| volume.remove_refused(*block));
        Ok(())
    }
}

/// Splits the runs whose error may affect only a part. Returns whether any was split, and the runs
/// to write.
fn split(
    failed: Vec<(VersionRun, WritebackError)>,
    mut is_local: impl FnMut(&forebay_device::DeviceError) -> bool,
) -> (bool, Vec<(VersionRun, WritebackError)>) {
    let (mut any, mut all) = (false, Vec::new());
    for (run, error) in failed {
        let local = matches!(&error, WritebackError::Origin(error) if is_local(error));
        if !local || run.len() == 1 || all.len() >= MOST_SPLIT {
            all.push((run, error));
            continue;
        }
        any = true;
        all.extend(parts(&run).map(|part| (part.to_vec(), error.clone())));
    }
    (any, all)
}
