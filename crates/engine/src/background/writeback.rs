//! Writeback: dirty blocks to the origin, in the order of their addresses, neighbours merged.

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use forebay_core::why::WritebackReason;
use forebay_core::{Nanos, OriginBlock};
use forebay_device::{DeviceOp, IoBuf, IoData};
use forebay_lane::{concurrently, join_all};
use forebay_policy::{Decision, DirtyState, Pacer, SweepPlanner, Trigger, merge_runs};
use forebay_store::{Kept, Pinned, PlantedBug};

use crate::background::ordered;
use crate::cache::BackgroundEnding;
use crate::lane::LaneVolume;
use crate::plan::keeps_dirty;
use crate::stats::bump;
use crate::volume::VolumeState;

/// The most blocks that are collected and sorted together.
const WINDOW_BLOCKS: u32 = 16384;

/// Shards of the index that are looked through before others have their turn.
const SHARDS_AT_ONCE: u32 = 8;

/// Entries of the index that are passed in the time that a look-up takes.
const PASSED_PER_LOOK_UP: u64 = 8;

/// Blocks by which hints are ahead of look-ups.
const LOOKED_UP_AHEAD: u64 = 8;

/// Look-ups before other tasks have their turn.
const LOOK_UPS_AT_ONCE: usize = 1024;

/// Blocks between two syncs of the origin.
pub(crate) const BATCH_BLOCKS: usize = 4096;

/// Waits this long after a failure, doubled each time up to [`LONGEST_RETRY`].
pub(crate) const FIRST_RETRY: Duration = Duration::from_millis(100);
pub(crate) const LONGEST_RETRY: Duration = Duration::from_secs(10);

/// How long writes through the cache may wait for their origin sync. A sync empties the disk's queue,
/// so it should come rarely; until it does they are written again after a crash.
const THROUGH_SYNC: Duration = Duration::from_secs(1);

/// What a window's writes found out.
#[derive(Default)]
struct Outcome {
    written: Vec<(OriginBlock, Kept)>,
    error: Option<String>,
}

/// Runs until the cache stops.
pub(crate) async fn run(volume: Rc<LaneVolume>) {
    let _ending = BackgroundEnding(volume.cache.clone());
    let mut pacer = Pacer::new(volume.volume.settings().writeback);
    let mut planner = SweepPlanner::new();
    let mut retry = FIRST_RETRY;
    let mut sweep_started = volume.now();
    let mut sweep_failed = true;
    while !volume.cache.is_stopping() && volume.volume.state() != VolumeState::Removed {
        if volume.volume.is_ordered() {
            ordered::run(&volume).await;
            continue;
        }
        let wanted = volume.volume.writeback_wanted.listen();
        let settings = volume.volume.settings();
        pacer.set_settings(settings.writeback.clone());
        let asked = volume.volume.draining.load(Ordering::SeqCst) > 0;
        let draining = asked || !keeps_dirty(settings.mode);
        if draining && !volume.volume.through.lock().is_empty() {
            // Invariant 9: blocks written through become clean when the origin has been synced.
            let many = volume.volume.through_many.listen();
            if !asked && volume.volume.through.lock().len() < volume.most_through() {
                either(many, volume.lane().sleep(THROUGH_SYNC)).await;
            }
            // A failure empties the list: its blocks are written back like others.
            let _ = volume.sync_origin().await;
        }
        let bad = volume.volume.bad_count();
        let pending = volume.volume.through.lock().len() as u64;
        let now = volume.now();
        let state = DirtyState {
            dirty_blocks: volume.volume.dirty_blocks().saturating_sub(bad + pending),
            capacity_blocks: volume.cache.store.capacity_blocks(),
            oldest_dirty: volume.volume.oldest_dirty(),
            last_foreground: Nanos(volume.volume.last_foreground.load(Ordering::Relaxed)),
            draining,
            space_wanted: false,
        };
        match pacer.decide(now, &state) {
            Decision::Idle { look_again } => {
                let timer = volume.lane().sleep_until(look_again);
                either(wanted, timer).await;
            }
            Decision::Write { .. } => {
                let Some(window) = planner.next_window(&volume.volume.dirty, WINDOW_BLOCKS) else {
                    let timer = volume.lane().sleep(FIRST_RETRY);
                    either(wanted, timer).await;
                    continue;
                };
                if window.wrapped {
                    if !sweep_failed {
                        volume.volume.swept(sweep_started);
                    }
                    sweep_started = now;
                    sweep_failed = false;
                }
                let mut blocks = volume.dirty_in(window.blocks.start.0..window.blocks.end.0).await;
                if blocks.len() > WINDOW_BLOCKS as usize {
                    planner.resume_at(blocks[WINDOW_BLOCKS as usize]);
                    blocks.truncate(WINDOW_BLOCKS as usize);
                }
                if blocks.is_empty() {
                    // All that the map counts here is bad or already on its way.
                    volume.lane().sleep(Duration::from_millis(1)).await;
                    continue;
                }
                match volume.write_back(&blocks, reason(pacer.trigger(), asked)).await {
                    Ok(()) => {
                        retry = FIRST_RETRY;
                        volume.volume.set_writeback_error(None);
                    }
                    Err(error) => {
                        sweep_failed = true;
                        volume.volume.set_writeback_error(Some(error));
                        volume.lane().sleep(retry).await;
                        retry = (retry * 2).min(LONGEST_RETRY);
                    }
                }
            }
        }
    }
}

/// What writes are counted as. `asked`: somebody waits for everything to be clean.
pub(crate) fn reason(trigger: Option<Trigger>, asked: bool) -> WritebackReason {
    match trigger {
        Some(Trigger::Draining) if asked => WritebackReason::Drain,
        Some(Trigger::Draining) | None => WritebackReason::Mode,
        Some(Trigger::Space) => WritebackReason::Reclaim,
        Some(Trigger::Watermark) => WritebackReason::DirtyHigh,
        Some(Trigger::Age) => WritebackReason::DirtyAge,
        Some(Trigger::Idle) => WritebackReason::Idle,
    }
}

/// Waits for whichever comes first.
pub(crate) async fn either(one: impl Future<Output = ()>, other: impl Future<Output = ()>) {
    let mut one = std::pin::pin!(one);
    let mut other = std::pin::pin!(other);
    std::future::poll_fn(|context| {
        let first = one.as_mut().poll(context);
        let second = other.as_mut().poll(context);
        if first.is_ready() { first } else { second }
    })
    .await;
}

impl LaneVolume {
    /// So many blocks that were written through are synced at once: until then they take room in the
    /// log as dirty ones do.
    pub(crate) fn most_through(&self) -> usize {
        const MOST: u64 = 16384;
        (self.cache.store.capacity_blocks() / 16).min(MOST) as usize
    }

    /// Dirty blocks in a range of block numbers, sorted; bad ones are left out.
    async fn dirty_in(&self, range: Range<u64>) -> Vec<OriginBlock> {
        let volume = &self.volume;
        let range = range.start..range.end.min(volume.space.blocks);
        let parts: Vec<Range<u64>> = volume.dirty.parts(range.clone()).collect();
        let numbers: u64 = parts.iter().map(|part| part.end.saturating_sub(part.start)).sum();
        let mut blocks =
            if numbers.saturating_mul(PASSED_PER_LOOK_UP) < self.cache.store.index.len() {
                self.dirty_by_look_up(parts).await
            } else {
                self.dirty_by_passing(range).await
            };
        blocks.sort_unstable();
        blocks.dedup();
        if volume.bad_count() > 0 {
            blocks.retain(|block| !volume.is_bad(*block));
        }
        blocks
    }

    /// Looks every block of these ranges up.
    async fn dirty_by_look_up(&self, parts: Vec<Range<u64>>) -> Vec<OriginBlock> {
        let (space, store) = (&self.volume.space, &self.cache.store);
        let mut blocks = Vec::new();
        for (count, number) in parts.into_iter().flatten().enumerate() {
            store.expect(space, OriginBlock(number + LOOKED_UP_AHEAD));
            let block = OriginBlock(number);
            if store.peek(space, block).is_some_and(|found| found.entry.dirty) {
                blocks.push(block);
            }
            if count % LOOK_UPS_AT_ONCE == LOOK_UPS_AT_ONCE - 1 {
                forebay_lane::yield_now().await;
            }
        }
        blocks
    }

    /// Passes the whole index.
    async fn dirty_by_passing(&self, range: Range<u64>) -> Vec<OriginBlock> {
        let volume = &self.volume;
        let index = &self.cache.store.index;
        let mut blocks = Vec::new();
        for shard in 0..index.shard_count() {
            index.scan_shard(shard, &mut |address, entry: &forebay_store::Entry| {
                if entry.dirty
                    && let Some(block) = volume.space.block(address)
                    && range.contains(&block.0)
                {
                    blocks.push(block);
                }
            });
            if shard % SHARDS_AT_ONCE == SHARDS_AT_ONCE - 1 {
                forebay_lane::yield_now().await;
            }
        }
        blocks
    }

    /// Writes sorted blocks back, syncs the origin and marks them clean; counts them under `why`.
    /// Blocks that are not dirty are passed over.
    ///
    /// # Errors
    /// What failed first, in words; what could not be written stays dirty.
    pub(crate) async fn write_back(
        self: &Rc<Self>,
        blocks: &[OriginBlock],
        why: WritebackReason,
    ) -> Result<(), String> {
        for batch in blocks.chunks(BATCH_BLOCKS) {
            self.write_back_batch(batch, why).await?;
        }
        Ok(())
    }

    async fn write_back_batch(
        self: &Rc<Self>,
        blocks: &[OriginBlock],
        why: WritebackReason,
    ) -> Result<(), String> {
        let settings = self.volume.settings().writeback;
        let runs: Vec<Vec<OriginBlock>> =
            merge_runs(blocks, self.volume.block, settings.merge_bytes)
                .map(|run| blocks[run].to_vec())
                .collect();
        let failures = self.volume.sync_failures();
        let outcome = Rc::new(RefCell::new(Outcome::default()));
        let work = {
            let (this, outcome) = (self.clone(), outcome.clone());
            runs.into_iter().map(move |run| {
                let (this, outcome) = (this.clone(), outcome.clone());
                async move { this.write_back_run(&run, &outcome).await }
            })
        };
        concurrently(self.lane(), settings.depth.max(1) as usize, work).await;
        let outcome = outcome.take();
        let early = self.cache.store.options().has(PlantedBug::CleanBeforeOriginSync);
        if early {
            self.mark_written(&outcome.written, why);
        }
        if !outcome.written.is_empty() {
            // Barrier for invariants 8 and 9: the origin is durable before anything is called clean.
            if let Err(error) = self.origin.sync().await {
                self.volume.origin_sync_fails();
                return Err(error.to_string());
            }
            if self.volume.sync_failures() != failures {
                // Somebody else's sync failed, and may have taken these writes with it.
                return Err("a sync of the origin failed".into());
            }
        }
        if !early {
            self.mark_written(&outcome.written, why);
        }
        match outcome.error {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    fn mark_written(&self, written: &[(OriginBlock, Kept)], why: WritebackReason) {
        for (block, kept) in written {
            if self.cache.store.written_back(&self.volume.space, *block, kept.slot) {
                self.volume.cleaned(self.lane(), *block);
                bump(&self.stats().counters.written_back_blocks, 1);
                self.stats().why.written_back.count(why, 1);
            }
        }
    }

    /// Writes neighbouring blocks back, with as few writes as their valid sectors allow.
    async fn write_back_run(&self, run: &[OriginBlock], outcome: &RefCell<Outcome>) {
        let volume = &self.volume;
        let store = self.cache.store.clone();
        let (Some(first), Some(last)) = (run.first(), run.last()) else { return };
        let range = volume.widen(volume.block_range(*first).start..volume.block_range(*last).end);
        // Nobody else may write here, and nobody may read an older state meanwhile.
        let _range = volume.ranges.exclusive(range).await;
        if volume.state() == VolumeState::Removed {
            // Its origin belongs to somebody else from now on.
            outcome.borrow_mut().error.get_or_insert_with(|| "the volume is stopped".into());
            return;
        }
        if volume.is_ordered() {
            // From now on the origin gets things in order only; these will have their turn.
            return;
        }
        let pinned: Vec<Pinned<'_>> = run
            .iter()
            .filter_map(|block| store.look_up(&volume.space, *block, |_| None))
            .filter(|pinned| pinned.found.entry.dirty)
            .collect();
        // Barrier for invariant 6: the origin must not have a version that a power cut could take out
        // of the log, where an older one would come back as clean.
        let mut pinned = pinned;
        if pinned.iter().any(|pinned| !store.is_durable(pinned.found.entry.slot))
            && self.store.commit().await.is_err()
            && !self.store.distrust_clean().await
        {
            pinned.retain(|pinned| store.is_durable(pinned.found.entry.slot));
            let failed = "the cache device has failed and cannot be told so";
            outcome.borrow_mut().error.get_or_insert_with(|| failed.into());
        }
        let reads = pinned.iter().map(|pinned| async move {
            let buf = IoBuf::for_overwrite(volume.block.as_usize());
            self.store.read_run(&volume.space, std::slice::from_ref(pinned), buf).await
        });
        let reads = join_all(reads).await;
        let mut writes: Vec<(u64, Vec<u8>)> = Vec::new();
        let mut written = Vec::new();
        for (pinned, (payload, results)) in pinned.iter().zip(reads) {
            let failure = results.into_iter().find_map(Result::err);
            if let Some(failure) = failure {
                self.count_failure(&failure);
                let slot = pinned.found.entry.slot;
                let current = store.peek(&volume.space, pinned.block);
                if current.is_some_and(|found| found.entry.slot == slot) {
                    volume.add_bad(pinned.block);
                }
                continue;
            }
            volume.gather(pinned.block, pinned.found.mask.as_ref(), &payload, &mut writes);
            // Until it is marked, the slot must not come to hold a later version of the same block.
            written.extend(
                store
                    .keep(&volume.space, pinned.block, pinned.found.entry.slot)
                    .map(|kept| (pinned.block, kept)),
            );
        }
        drop(pinned);
        for (offset, bytes) in writes {
            if let Err(error) = self.write_sectors(offset, &bytes).await {
                outcome.borrow_mut().error.get_or_insert(error);
                return;
            }
        }
        outcome.borrow_mut().written.extend(written);
    }

    /// Writes whole sectors to the origin; where its logical blocks are larger, around what is
    /// there. The caller has the range for itself.
    pub(crate) async fn write_sectors(&self, offset: u64, bytes: &[u8]) -> Result<(), String> {
        let logical = self.volume.origin.logical_block();
        let end = offset + bytes.len() as u64;
        let (start, limit) = (offset / logical * logical, end.next_multiple_of(logical));
        let mut buf = IoBuf::for_overwrite((limit - start) as usize);
        if (start, limit) != (offset, end) {
            buf = self.origin.read(start, buf).await.map_err(|error| {
                bump(&self.stats().counters.origin_read_errors, 1);
                error.to_string()
            })?;
        }
        let at = (offset - start) as usize;
        buf[at..at + bytes.len()].copy_from_slice(bytes);
        let len = buf.len() as u64;
        self.before_origin_write(start..limit).await;
        let done =
            self.origin.run(DeviceOp::Write { offset: start, data: IoData::Owned(buf) }).await;
        bump(&self.stats().counters.origin_written_bytes, len);
        done.result.map_err(|error| error.to_string())
    }
}
