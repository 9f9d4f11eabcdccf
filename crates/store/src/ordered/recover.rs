//! Finding the groups of ordered volumes again, from the record headers.
//!
//! A record is a group: any prefix of the log is what a power cut can leave, because a commit closes
//! the open records of all lanes, so what a flush covers is in records below those of whatever was
//! written after it. Records are one group together if no commit had ended in between, which
//! `durable_through` tells. As long as the groups of one run are on their way, the horizon is a record
//! beside the sequence.
//!
//! Lanes close records in another order than their versions have: of a block, a version in a later
//! record may be older. It does not count once a newer one is on the origin. To know that after the
//! next crash as well, the newer one is kept until all that was found is on the origin.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::rc::Rc;

use forebay_core::{Generation, OriginBlock, RecordNumber, SectorMask, SegmentId, Slot, VolumeId};
use forebay_device::Queue as DeviceQueue;
use forebay_format::{Body, Geometry, RecordHeader, Uuid, VolumeRecord};
use forebay_lane::{Lane, concurrently};

use super::Horizon;
use super::queue::{Group, OrderedVersion, Queue};
use crate::error::StoreError;
use crate::index::Index;
use crate::replay::walk_headers;
use crate::store::VolumeSpace;
use crate::table::Entry;

/// A version that a record has.
struct Found {
    record: RecordNumber,
    block: OriginBlock,
    version: OrderedVersion,
}

/// What is known of one volume.
struct Search {
    space: VolumeSpace,
    horizon: Horizon,
    /// The newest versions that are dirty.
    dirty: BTreeMap<OriginBlock, (Entry, Option<SectorMask>)>,
    found: Vec<Found>,
}

/// What is searched, and where.
pub(crate) struct Source<'a> {
    pub(crate) queue: &'a DeviceQueue,
    pub(crate) geometry: &'a Geometry,
    pub(crate) cache: Uuid,
    pub(crate) volumes: &'a [VolumeRecord],
    pub(crate) spaces: &'a [VolumeSpace],
    pub(crate) index: &'a Index,
    /// Segments in use with their generations.
    pub(crate) segments: Vec<(SegmentId, Generation)>,
    /// Cells that did not reach the device whole.
    pub(crate) torn: &'a HashSet<Slot>,
    /// The highest sequence that is known.
    pub(crate) sequence: u64,
    /// Reads in flight together.
    pub(crate) reads: usize,
}

/// The queues of all volumes that were in order, and how many bytes were read for them.
pub(crate) async fn recover(
    lane: &Rc<Lane>,
    source: Source<'_>,
) -> Result<(HashMap<VolumeId, Queue>, u64), StoreError> {
    let mut searches: HashMap<VolumeId, Search> = HashMap::new();
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
    let mut dirty = Vec::new();
    source.index.visit(|entry| entry.dirty, |address, _| dirty.push(address));
    let mut any = false;
    for address in dirty {
        let Some(found) = source.index.look_up(address, |_| None) else { continue };
        for search in searches.values_mut() {
            if let Some(block) = search.space.block(address) {
                search.dirty.insert(block, (found.entry, found.mask.clone()));
                any = true;
            }
        }
    }
    let mut read = 0;
    let mut proofs = BTreeMap::new();
    if any {
        let shared = Rc::new(RefCell::new((searches, proofs, 0, None)));
        let (queue, geometry, cache) =
            (source.queue.clone(), Rc::new(source.geometry.clone()), source.cache);
        let (torn, into) = (Rc::new(source.torn.clone()), shared.clone());
        let work = source.segments.into_iter().map(move |segment| {
            let (queue, geometry) = (queue.clone(), geometry.clone());
            let (shared, torn) = (into.clone(), torn.clone());
            async move {
                let walked = walk_headers(&queue, &geometry, &cache, segment, |header| {
                    let (searches, proofs, ..) = &mut *shared.borrow_mut();
                    note(searches, proofs, &geometry, &torn, &header);
                });
                match walked.await {
                    Ok(bytes) => shared.borrow_mut().2 += bytes,
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
    let queues = searches.into_iter().map(|(id, search)| {
        let queue = search.into_queue(&proofs, source.sequence);
        (id, queue)
    });
    Ok((queues.collect(), read))
}

/// Takes out of a record what an origin may not have yet.
fn note(
    searches: &mut HashMap<VolumeId, Search>,
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
    fn into_queue(self, proofs: &BTreeMap<RecordNumber, RecordNumber>, sequence: u64) -> Queue {
        let Search { horizon, mut dirty, mut found, .. } = self;
        // Only where the newest version is beyond the horizon can older ones be. What would be newer
        // still did not reach the device whole before an earlier crash, and never counted.
        let newest: HashMap<OriginBlock, (RecordNumber, u64)> = found
            .iter()
            .filter(|it| {
                dirty.get(&it.block).is_some_and(|(entry, _)| entry.slot == it.version.slot)
            })
            .map(|it| (it.block, (it.record, it.version.sequence)))
            .collect();
        found.retain(|it| {
            newest.get(&it.block).is_some_and(|(_, sequence)| it.version.sequence <= *sequence)
        });
        dirty.retain(|block, _| newest.get(block).is_none_or(|it| it.0 <= horizon.record));
        found.sort_by_key(|found| (found.record, found.version.sequence));
        let mut groups = Vec::new();
        if !dirty.is_empty() {
            // The origin has these already, or could not be given them: at any time they change nothing.
            let mut base = Group::through(horizon);
            for (block, (entry, mask)) in dirty {
                let check = entry.check;
                base.add(block, OrderedVersion { slot: entry.slot, check, mask, sequence: 0 });
            }
            groups.push(base);
        }
        let mut kept = Vec::new();
        // The highest sequence up to here of each block, and where it is.
        let mut highest: HashMap<OriginBlock, OrderedVersion> = HashMap::new();
        let mut first = None::<RecordNumber>;
        for Found { record, block, version } in found {
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
            }
            if let Some(group) = groups.last_mut() {
                group.through.record = record;
                group.add(block, version);
            }
        }
        if let Some(last) = groups.last_mut() {
            last.through.sequence = sequence.max(horizon.sequence);
        }
        kept.sort_by_key(|version| version.slot);
        kept.dedup_by_key(|version| version.slot);
        Queue::recovered(Some(horizon), groups, sequence.max(horizon.sequence), kept)
    }
}
