//! Recovering the groups of ordered volumes from the record headers.
//!
//! Each record is a group: any prefix of the log is a state that a power cut can leave, because a
//! commit closes the open records of all lanes, so the writes that a flush covers are in records
//! below those of any later write. Records form one group if no commit had ended between them,
//! which `durable_through` shows. Until the recovered groups are on the origin, the horizon has a
//! record number in addition to the sequence.
//!
//! Lanes do not close records in the order of sequences: a later record may have an older version
//! of a block, which must be ignored once a newer one is on the origin. To know that after the next
//! crash as well, the newer version is kept until everything that was found is on the origin. The
//! version that opened a group is also kept if another of the group replaces it: from its record
//! the next recovery derives where the group ends.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::rc::Rc;

use forebay_core::{Generation, OriginBlock, RecordNumber, SectorMask, SegmentId, Slot, VolumeId};
use forebay_device::Queue as DeviceQueue;
use forebay_format::{Body, Geometry, RecordHeader, Uuid, VolumeRecord};
use forebay_lane::{Lane, concurrently, turns, yield_now};

use crate::error::StoreError;
use crate::index::Index;
use crate::ordered::Horizon;
use crate::ordered::queue::{Group, GroupQueue, OrderedVersion};
use crate::replay::walk_headers;
use crate::retry;
use crate::store::VolumeSpace;
use crate::table::{Check, Entry};

/// A version found in a record.
struct Found {
    record: RecordNumber,
    block: OriginBlock,
    version: OrderedVersion,
}

/// State of the search for one volume.
struct Search {
    space: VolumeSpace,
    horizon: Horizon,
    /// The newest versions that are dirty, from the index.
    dirty: BTreeMap<OriginBlock, (Entry, Option<SectorMask>)>,
    found: Vec<Found>,
}

/// Inputs of the search.
pub(crate) struct SearchInput<'a> {
    pub(crate) queue: &'a DeviceQueue,
    pub(crate) geometry: &'a Geometry,
    pub(crate) cache: Uuid,
    pub(crate) volumes: &'a [VolumeRecord],
    pub(crate) spaces: &'a [VolumeSpace],
    pub(crate) index: &'a Index,
    /// Segments in use, with their generations.
    pub(crate) segments: Vec<(SegmentId, Generation)>,
    /// Cells that did not reach the device completely.
    pub(crate) torn: &'a HashSet<Slot>,
    /// The highest known sequence.
    pub(crate) sequence: u64,
    /// Reads in flight at a time.
    pub(crate) reads: usize,
}

/// Returns the queues of all volumes that were in order, and how many bytes were read for them.
pub(crate) async fn recover(
    lane: &Rc<Lane>,
    source: SearchInput<'_>,
) -> Result<(HashMap<VolumeId, GroupQueue>, u64), StoreError> {
    let mut searches: BTreeMap<VolumeId, Search> = BTreeMap::new();
    for volume in source.volumes {
        let space = source.spaces.iter().find(|space| space.id == volume.id);
        if let (Some(horizon), Some(space)) = (Horizon::of(volume), space) {
            let (dirty, found) = (BTreeMap::new(), Vec::new());
            searches.insert(volume.id, Search { space: *space, horizon, dirty, found });
        }
    }
    if searches.is_empty() {
        return Ok((HashMap::new(), 0));
    }
    find_dirty(source.index, &mut searches).await;
    let mut read = 0;
    let mut proofs = BTreeMap::new();
    if searches.values().any(|search| !search.dirty.is_empty()) {
        let shared = Rc::new(RefCell::new((searches, proofs, 0, None)));
        let (queue, geometry, cache) =
            (source.queue.clone(), Rc::new(source.geometry.clone()), source.cache);
        let (torn, into) = (Rc::new(source.torn.clone()), shared.clone());
        let work = source.segments.clone().into_iter().map(move |segment| {
            let (queue, geometry) = (queue.clone(), geometry.clone());
            let (shared, torn) = (into.clone(), torn.clone());
            async move {
                let walked = walk_headers(&queue, &geometry, &cache, segment, |header| {
                    let (searches, proofs, ..) = &mut *shared.borrow_mut();
                    note(searches, proofs, &geometry, &torn, &header);
                });
                match walked.await {
                    Ok(walked) => shared.borrow_mut().2 += walked.bytes,
                    Err(error) => {
                        shared.borrow_mut().3.get_or_insert(error);
                    }
                }
            }
        });
        concurrently(lane, source.reads, work).await;
        let Ok(shared) = Rc::try_unwrap(shared) else {
            return Err(StoreError::Refused("recovery is still running".into()));
        };
        let failure: Option<StoreError>;
        (searches, proofs, read, failure) = shared.into_inner();
        if let Some(failure) = failure {
            return Err(failure);
        }
    }
    for search in searches.values_mut() {
        read += search.drop_torn(lane, &source, &proofs).await?;
    }
    let mut queues = HashMap::new();
    for (id, search) in searches {
        queues.insert(id, search.into_queue(&proofs, source.sequence).await);
    }
    Ok((queues, read))
}

/// Collects the dirty blocks of the volumes that were in order, one shard of the index after the
/// other.
async fn find_dirty(index: &Index, searches: &mut BTreeMap<VolumeId, Search>) {
    let (mut dirty, mut done) = (Vec::new(), 0);
    for shard in 0..index.shard_count() {
        index.visit_shard(shard, &mut |entry| entry.dirty, &mut |address, _| {
            let space = |search: &Search| search.space.block(address);
            dirty.extend(searches.iter().find_map(|(id, it)| Some((address, *id, space(it)?))));
        });
        for (address, id, block) in dirty.drain(..) {
            if let Some(found) = index.look_up(address, |_| None)
                && let Some(search) = searches.get_mut(&id)
            {
                search.dirty.insert(block, (found.entry, found.mask));
            }
            turns::rest(&mut done).await;
        }
        yield_now().await;
    }
}

/// Collects the versions of a record that an origin may not have yet.
fn note(
    searches: &mut BTreeMap<VolumeId, Search>,
    proofs: &mut BTreeMap<RecordNumber, RecordNumber>,
    geometry: &Geometry,
    torn: &HashSet<Slot>,
    header: &RecordHeader,
) {
    let Body::Data(entries) = &header.body else { return };
    for (number, entry) in entries.iter().enumerate() {
        if entry.void || !entry.dirty {
            continue;
        }
        let Some(search) = searches.get_mut(&entry.volume) else { continue };
        let slot = header.cell(geometry, number);
        let needed = entry.sequence > search.horizon.sequence;
        if needed && search.dirty.contains_key(&entry.block) && !torn.contains(&slot) {
            let version = OrderedVersion::of(slot, entry);
            search.found.push(Found { record: header.number, block: entry.block, version });
            proofs.insert(header.number, header.durable_through);
        }
    }
}

impl Search {
    /// Removes versions that were torn by a crash before the last one: the versions that they seem
    /// to replace are needed. Headers do not show tearing, so payloads are read where it matters:
    /// of versions that replace an older one in their group, or one in a later record.
    async fn drop_torn(
        &mut self,
        lane: &Rc<Lane>,
        source: &SearchInput<'_>,
        proofs: &BTreeMap<RecordNumber, RecordNumber>,
    ) -> Result<u64, StoreError> {
        let order = |found: &Found| (found.block, found.record, found.version.sequence);
        turns::sort_by_key(&mut self.found, order).await;
        let mut doubtful: Vec<(Slot, Check, OriginBlock)> = Vec::new();
        let doubt = |found: &Found| (found.version.slot, found.version.check, found.block);
        let mut done = 0;
        // The block's versions so far, except those that an older version in a later record
        // follows.
        let mut rising: Vec<&Found> = Vec::new();
        for after in &self.found {
            if rising.last().is_some_and(|before| before.block != after.block) {
                rising.clear();
            }
            let older = |before: &mut &Found| before.version.sequence > after.version.sequence;
            while let Some(before) = rising.pop_if(older) {
                doubtful.push(doubt(before));
            }
            if let Some(before) = rising.last() {
                let proof = proofs.get(&after.record).copied().unwrap_or(after.record);
                if before.record == after.record || proof < before.record {
                    doubtful.push(doubt(after));
                }
            }
            rising.push(after);
            turns::rest(&mut done).await;
        }
        let torn: Rc<RefCell<HashSet<Slot>>> = Rc::default();
        let (seed, len) = (self.space.seed, source.geometry.block.as_usize());
        let read = doubtful.len() as u64 * len as u64;
        let (queue, geometry, into) = (source.queue.clone(), source.geometry.clone(), torn.clone());
        let work = doubtful.into_iter().map(move |(slot, check, block)| {
            let (queue, torn, offset) = (queue.clone(), into.clone(), geometry.slot_offset(slot));
            async move {
                // An unreadable version was not torn by a crash; reading it later reports the
                // error.
                let Ok(payload) = retry::read(&queue, offset, len).await else { return };
                if !check.matches(seed.check(block, &payload), 32) {
                    torn.borrow_mut().insert(slot);
                }
            }
        });
        concurrently(lane, source.reads, work).await;
        let torn = torn.take();
        self.found.retain(|found| !torn.contains(&found.version.slot));
        Ok(read)
    }

    async fn into_queue(
        self,
        proofs: &BTreeMap<RecordNumber, RecordNumber>,
        sequence: u64,
    ) -> GroupQueue {
        let Search { horizon, dirty, found, .. } = self;
        let mut done = 0;
        // A block can have older versions beyond the horizon only if its newest one is beyond it.
        // Versions newer than that were torn in an earlier crash and never took effect.
        let mut newest: HashMap<OriginBlock, (RecordNumber, u64)> = HashMap::new();
        for it in &found {
            if dirty.get(&it.block).is_some_and(|(entry, _)| entry.slot == it.version.slot) {
                newest.insert(it.block, (it.record, it.version.sequence));
            }
            turns::rest(&mut done).await;
        }
        let mut in_effect = Vec::new();
        for it in found {
            let newest = newest.get(&it.block);
            if newest.is_some_and(|(_, sequence)| it.version.sequence <= *sequence) {
                in_effect.push(it);
            }
            turns::rest(&mut done).await;
        }
        let mut found = in_effect;
        turns::sort_by_key(&mut found, |found| (found.record, found.version.sequence)).await;
        // The origin already has these versions or could not receive them, so it does not matter
        // when they are written.
        let mut base = Group::through(horizon);
        for (block, (entry, mask)) in dirty {
            if newest.get(&block).is_none_or(|it| it.0 <= horizon.record) {
                let (check, mask) = (entry.check, mask.map(Box::new));
                base.add(block, OrderedVersion { slot: entry.slot, check, mask, sequence: 0 });
            }
            turns::rest(&mut done).await;
        }
        let mut groups = Vec::new();
        if !base.versions.is_empty() {
            groups.push(base);
        }
        let mut kept = Vec::new();
        // The version with the highest sequence so far of each block.
        let mut highest: HashMap<OriginBlock, OrderedVersion> = HashMap::new();
        // The first record of the group, and the slot of the version that opened it.
        let (mut first, mut opener) = (None::<RecordNumber>, Slot(0));
        for Found { record, block, version } in found {
            turns::rest(&mut done).await;
            if let Some(newer) = highest.get(&block)
                && newer.sequence > version.sequence
            {
                kept.push(newer.clone());
                continue;
            }
            highest.insert(block, version.clone());
            if record <= horizon.record {
                continue;
            }
            let proof = proofs.get(&record).copied().unwrap_or(record);
            let joins = first.is_some_and(|first| proof < first);
            if !joins {
                first = Some(record);
                groups.push(Group::through(horizon));
                opener = version.slot;
            }
            if let Some(group) = groups.last_mut() {
                group.through.record = record;
                let replaced = group.add(block, version);
                kept.extend(replaced.filter(|replaced| replaced.slot == opener));
            }
        }
        if let Some(last) = groups.last_mut() {
            last.through.sequence = sequence.max(horizon.sequence);
        }
        kept.sort_by_key(|version| version.slot);
        kept.dedup_by_key(|version| version.slot);
        GroupQueue::recovered(Some(horizon), groups, sequence.max(horizon.sequence), kept)
    }
}

#[cfg(test)]
mod tests {
    use forebay_format::CheckSeed;
    use forebay_testkit::LaneWorld;

    use super::*;

    /// Makes a queue from versions as (record, block, sequence), each in the slot of its sequence,
    /// and from records with their `durable_through`. The version of each block listed in `newest`
    /// is dirty.
    fn queue(
        horizon: (u64, u64),
        found: &[(u64, u64, u64)],
        newest: &[(u64, u64)],
        proofs: &[(u64, u64)],
    ) -> GroupQueue {
        let id = VolumeId(1);
        let cache = Uuid::from_u128(1);
        let space = VolumeSpace { id, base: 0, blocks: 100, seed: CheckSeed::new(&cache, id) };
        let slot = |sequence: u64| Slot(sequence as u32);
        let dirty = newest.iter().map(|(block, sequence)| {
            let (slot, check) = (slot(*sequence), Check::default());
            let entry = Entry { slot, dirty: true, partial: false, rank: 0, check };
            (OriginBlock(*block), (entry, None))
        });
        let found = found.iter().map(|(record, block, sequence)| Found {
            record: RecordNumber(*record),
            block: OriginBlock(*block),
            version: OrderedVersion {
                slot: slot(*sequence),
                check: Check::default(),
                mask: None,
                sequence: *sequence,
            },
        });
        let proofs = proofs.iter().map(|(a, b)| (RecordNumber(*a), RecordNumber(*b))).collect();
        let horizon = Horizon { sequence: horizon.0, record: RecordNumber(horizon.1) };
        let search =
            Search { space, horizon, dirty: dirty.collect(), found: found.rev().collect() };
        LaneWorld::new().block_on(async move { search.into_queue(&proofs, 99).await })
    }

    /// Writes and settles all groups; returns the blocks and sequences of each.
    fn groups(queue: &GroupQueue) -> Vec<Vec<(u64, u64)>> {
        let mut groups = Vec::new();
        while let Some(front) = queue.front() {
            let versions = front.versions.iter();
            groups.push(versions.map(|(block, it)| (block.0, it.sequence)).collect());
            queue.written(front.through, &Default::default());
        }
        groups
    }

    fn held(queue: &GroupQueue) -> Vec<u32> {
        let mut held = Vec::new();
        queue.each(|version| held.push(version.slot.0));
        held.sort_unstable();
        held
    }

    #[test]
    fn records_are_groups_unless_no_commit_had_ended_in_between() {
        let found = [(5, 1, 1), (6, 2, 2), (7, 1, 3), (8, 3, 4)];
        let newest = [(1, 3), (2, 2), (3, 4)];
        let proven = queue((0, 0), &found, &newest, &[(5, 4), (6, 5), (7, 6), (8, 7)]);
        assert_eq!(groups(&proven), [vec![(1, 1)], vec![(2, 2)], vec![(1, 3)], vec![(3, 4)]]);
        let joined = queue((0, 0), &found, &newest, &[(5, 4), (6, 4), (7, 4), (8, 6)]);
        assert_eq!(held(&joined), [1, 2, 3, 4], "the first of block 1 is kept for its record");
        assert_eq!(groups(&joined), [vec![(1, 3), (2, 2)], vec![(3, 4)]]);
        let end = joined.written_through().expect("all of it");
        assert_eq!((end.sequence, end.record), (99, RecordNumber(8)));
    }

    /// Record 5 was durable when record 7 was written, and record 6 was not. Without record 5,
    /// nothing would show that record 7 belongs to a later flush.
    #[test]
    fn the_record_that_opens_a_group_is_held_for_the_next_recovery() {
        let found = [(5, 1, 1), (6, 1, 2), (7, 2, 3)];
        let newest = [(1, 2), (2, 3)];
        let proofs = [(5, 4), (6, 4), (7, 5)];
        let first = queue((0, 0), &found, &newest, &proofs);
        assert_eq!(held(&first), [1, 2, 3]);
        assert_eq!(groups(&first), [vec![(1, 2)], vec![(2, 3)]]);
        let end = first.written_through().expect("all of it");
        assert_eq!(first.settle(end).kept.len(), 1);
        let without = queue((0, 0), &found[1..], &newest, &proofs);
        assert_eq!(groups(&without), [vec![(1, 2), (2, 3)]]);
    }

    #[test]
    fn an_older_version_in_a_later_record_replaces_no_newer_one() {
        // Block 1: the version with sequence 6 is in record 3, the older one in record 7.
        let found = [(3, 1, 6), (7, 1, 5), (7, 2, 7), (9, 1, 8)];
        let newest = [(1, 8), (2, 7)];
        let proofs = [(3, 2), (7, 6), (9, 8)];
        let queue_now = queue((0, 0), &found, &newest, &proofs);
        assert_eq!(held(&queue_now), [6, 6, 7, 8], "the newer one is kept on top of its turn");
        let front = queue_now.front().expect("record 3").through;
        queue_now.written(front, &Default::default());
        let horizon = queue_now.written_through().expect("record 3");
        queue_now.settle(horizon);
        assert_eq!(horizon.record, RecordNumber(3));
        assert_eq!(held(&queue_now), [6, 7, 8], "its segment is not opened again");
        assert_eq!(groups(&queue_now), [vec![(2, 7)], vec![(1, 8)]]);
        let end = queue_now.written_through().expect("all of it");
        assert_eq!(queue_now.settle(end).kept.len(), 1);
        // After a crash in between, the version is found again, and the older one is ignored again.
        let again = queue((0, 3), &found, &newest, &proofs);
        assert_eq!(groups(&again), [vec![(2, 7)], vec![(1, 8)]]);
    }

    #[test]
    fn blocks_may_be_written_again_but_torn_ones_are_not() {
        // Block 1 is within the horizon, block 2 beyond the sequence only; block 4 was torn in an
        // earlier crash and has an older version.
        let found = [(3, 2, 6), (8, 3, 7), (8, 4, 8), (9, 4, 9)];
        let newest = [(1, 2), (2, 6), (3, 7), (4, 8)];
        let proofs = [(3, 2), (8, 7), (9, 8)];
        let queue = queue((5, 4), &found, &newest, &proofs);
        assert_eq!(groups(&queue), [vec![(1, 0), (2, 0)], vec![(3, 7), (4, 8)]]);
    }
}
