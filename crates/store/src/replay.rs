//! Replaying the records after a checkpoint.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::rc::Rc;

use forebay_core::{Generation, RecordNumber, SegmentId, Slot, VolumeId};
use forebay_device::Queue;
use forebay_format::{
    AcceptedLog, Body, DataEntry, Geometry, Mark, PAGE, RecordHeader, Uuid, record,
};
use forebay_lane::{Lane, MemoryHold, concurrently};

use crate::changes::Changes;
use crate::damage::Damage;
use crate::error::StoreError;
use crate::index::{Address, Index, NewVersion};
use crate::planted::{self, PlantedBug};
use crate::recover::address_in;
use crate::retry;
use crate::store::VolumeSpace;
use crate::table::{Check, Entry, RANK_UNKNOWN};

/// The state of one replay.
pub(crate) struct Replay {
    pub(crate) geometry: Geometry,
    cache: Uuid,
    spaces: Vec<VolumeSpace>,
    base: RecordNumber,
    /// Versions up to this sequence are contained in the checkpoint, even if their records are
    /// later than the base.
    sequence: u64,
    walks: Vec<(SegmentId, Generation)>,
    /// The current generation of each segment in use.
    generations: Vec<Option<Generation>>,
    /// The segments with records that count.
    ends: HashMap<SegmentId, End>,
    /// Segments that were free after this generation had become the next one; see
    /// [`Replay::trust_free`].
    free_from: Option<Generation>,
    /// By segment.
    free: Vec<bool>,
    /// What earlier recoveries have accepted.
    accepted: AcceptedLog,
    /// All data and marks records after the base, by number.
    found: BTreeMap<u64, Place>,
    /// What they change. Holds the memory for both.
    changes: Changes,
    /// The shards and addresses of the blocks in a record, while it is added.
    blocks: Vec<Option<(u32, Address)>>,
    /// Whether there are marks.
    has_marks: bool,
    /// Volumes of replayed versions that do not exist any more.
    pub(crate) deleted: HashSet<VolumeId>,
    durable: u64,
    /// Number of possible header positions that cannot be read.
    unreadable: u64,
    /// Whether the first pages of all segments could be read.
    pub(crate) firsts_readable: bool,
    /// Cells whose payload did not reach the device.
    pub(crate) torn_slots: HashSet<Slot>,
    pub(crate) highest_number: RecordNumber,
    pub(crate) highest_sequence: u64,
    pub(crate) records: u64,
    pub(crate) torn: u64,
    pub(crate) bytes_read: u64,
}

/// Where a record is.
#[derive(Clone, Copy)]
struct Place {
    segment: SegmentId,
    position: u32,
    payload_bytes: u32,
}

/// What a recovered cache goes on with. All numbers, sequences and generations that recovery may not
/// have seen are skipped.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Next {
    /// The number of the next record.
    pub(crate) record: RecordNumber,
    /// The next sequence is higher.
    pub(crate) sequence: u64,
    /// The generation of the next segment to be opened.
    pub(crate) generation: Generation,
}

/// The last record of a walked segment.
#[derive(Clone, Copy, Default)]
pub(crate) struct End {
    /// Where it ends, in granules.
    pub(crate) position: u32,
    pub(crate) number: RecordNumber,
}

impl Replay {
    pub(crate) fn new(
        geometry: Geometry,
        cache: Uuid,
        spaces: &[VolumeSpace],
        index: &Index,
        held: MemoryHold,
    ) -> Self {
        let count = geometry.segment_count as usize;
        Replay {
            changes: Changes::new(geometry.clone(), index, held),
            geometry,
            cache,
            spaces: spaces.to_vec(),
            base: RecordNumber(0),
            sequence: 0,
            walks: Vec::new(),
            generations: vec![None; count],
            ends: HashMap::new(),
            free_from: None,
            free: vec![false; count],
            accepted: AcceptedLog::default(),
            found: BTreeMap::new(),
            blocks: Vec::new(),
            has_marks: false,
            deleted: HashSet::new(),
            durable: 0,
            unreadable: 0,
            firsts_readable: true,
            torn_slots: HashSet::new(),
            highest_number: RecordNumber(0),
            highest_sequence: 0,
            records: 0,
            torn: 0,
            bytes_read: 0,
        }
    }

    pub(crate) fn begin(&mut self, base: RecordNumber, sequence: u64) {
        self.base = base;
        self.durable = base.0;
        self.sequence = sequence;
        self.highest_sequence = sequence;
        self.highest_number = base;
    }

    /// Decides about records as earlier recoveries did.
    pub(crate) fn accept(&mut self, accepted: &AcceptedLog) {
        self.durable = self.durable.max(accepted.through.0);
        self.highest_number = self.highest_number.max(accepted.through);
        self.highest_sequence = self.highest_sequence.max(accepted.sequence);
        self.torn_slots.extend(&accepted.torn);
        self.accepted = accepted.clone();
    }

    /// Collects the segments that openings with this generation or a higher one call free.
    pub(crate) fn trust_free(&mut self, from: Generation) {
        self.free_from = Some(from);
    }

    pub(crate) fn walk_later(&mut self, segment: SegmentId, generation: Generation) {
        self.walks.push((segment, generation));
    }

    pub(crate) fn set_generation(&mut self, segment: SegmentId, generation: Option<Generation>) {
        self.generations[segment.0 as usize] = generation;
    }

    /// Returns the last record that was found in a segment.
    pub(crate) fn end_of(&self, segment: SegmentId) -> Option<End> {
        self.ends.get(&segment).copied()
    }

    /// Returns whether a segment was free and has no record that counts.
    pub(crate) fn is_free(&self, segment: SegmentId) -> bool {
        self.free[segment.0 as usize] && !self.ends.contains_key(&segment)
    }

    /// Returns whether every page that had to be read could be read.
    pub(crate) fn has_read_all(&self) -> bool {
        self.unreadable == 0 && self.firsts_readable
    }

    /// Returns what this replay accepts, for one that may follow it: the records that were found, and
    /// none that may turn up later.
    pub(crate) fn accepted(&self, next: &Next) -> AcceptedLog {
        let Next { record, sequence, generation: next_generation } = *next;
        let (mut left_out, mut expected) = (Vec::new(), self.base.0 + 1);
        for number in self.found.keys().copied().chain([record.0]) {
            if number > expected {
                left_out.push(expected..=number - 1);
            }
            expected = number + 1;
        }
        let mut torn: Vec<Slot> = self.torn_slots.iter().copied().collect();
        torn.sort_unstable();
        let through = RecordNumber(record.0 - 1);
        AcceptedLog { through, sequence, next_generation, left_out, torn }
    }

    /// Returns the generation of the header in `page`, if it is valid for this place.
    pub(crate) fn generation_at(
        &self,
        page: &[u8],
        segment: SegmentId,
        position: u32,
    ) -> Option<Generation> {
        let head = record::decode_head(page, &self.geometry, &self.cache).ok()?;
        (head.segment == segment && head.position == position).then_some(head.generation)
    }

    /// Walks through all registered segments, and verifies the records that are not known to have
    /// been durable.
    pub(crate) async fn run(
        lane: &Rc<Lane>,
        queue: &Queue,
        replay: &Rc<RefCell<Replay>>,
        reads: usize,
    ) -> Result<(), StoreError> {
        let walks = std::mem::take(&mut replay.borrow_mut().walks);
        let failure = Rc::new(RefCell::new(None));
        let work = {
            let (queue, replay, failure) = (queue.clone(), replay.clone(), failure.clone());
            walks.into_iter().map(move |(segment, generation)| {
                let (queue, replay, failure) = (queue.clone(), replay.clone(), failure.clone());
                async move {
                    if let Err(error) = walk(&queue, &replay, segment, generation).await {
                        failure.borrow_mut().get_or_insert(error);
                    }
                }
            })
        };
        concurrently(lane, reads, work).await;
        let unproven: Vec<(u64, Place)> = {
            let replay = replay.borrow();
            let found = replay.found.range(replay.durable + 1..);
            found.map(|(number, place)| (*number, *place)).collect()
        };
        let work = {
            let (queue, replay, failure) = (queue.clone(), replay.clone(), failure.clone());
            unproven.into_iter().map(move |(number, place)| {
                let (queue, replay, failure) = (queue.clone(), replay.clone(), failure.clone());
                async move {
                    if let Err(error) = verify::verify(&queue, &replay, number, place).await {
                        failure.borrow_mut().get_or_insert(error);
                    }
                }
            })
        };
        concurrently(lane, reads, work).await;
        match failure.take() {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    /// Adds what a header says.
    fn add(&mut self, header: &RecordHeader) -> Result<(), StoreError> {
        if header.number > self.base && self.accepted.leaves_out(header.number.0) {
            return Ok(());
        }
        if let Body::Opening(free) = &header.body
            && self.free_from.is_some_and(|from| header.generation >= from)
        {
            free.iter().for_each(|segment| self.free[segment.0 as usize] = true);
        }
        self.durable = self.durable.max(header.durable_through.0);
        self.highest_number = self.highest_number.max(header.number);
        let position = header.position + header.granules(&self.geometry);
        let end = self.ends.entry(header.segment).or_default();
        end.position = end.position.max(position);
        end.number = end.number.max(header.number);
        if header.number <= self.base || header.body.is_opening() {
            return Ok(());
        }
        if self.found.contains_key(&header.number.0) {
            return Ok(());
        }
        let mut bytes = memory_of(header);
        if self.found.is_empty() {
            bytes += self.changes.first_bytes();
        }
        if matches!(header.body, Body::Marks(_)) && !self.has_marks {
            self.has_marks = true;
            bytes += Changes::marks_bytes(&self.geometry);
        }
        self.changes.grow(bytes)?;
        let RecordHeader { segment, position, payload_bytes, .. } = *header;
        self.found.insert(header.number.0, Place { segment, position, payload_bytes });
        match &header.body {
            Body::Data(entries) => self.add_data(header, entries),
            Body::Marks(all) => self.add_marks(all),
            Body::Opening(_) => (),
        }
        Ok(())
    }

    /// Returns the durable records that are missing, and those that unreadable places may have
    /// held.
    pub(crate) fn lost(&self) -> Option<Damage> {
        if planted::has(PlantedBug::GapsNotSeen) {
            return None;
        }
        let (mut first, mut end) = (None, 0);
        let mut expected = self.base.0 + 1;
        let found = self.found.range(..=self.durable).map(|(number, _)| *number);
        for number in found.chain([self.durable + 1]) {
            expected = self.accepted.counting_from(expected);
            if number > expected {
                first = first.or(Some(expected));
                end = number;
            }
            expected = expected.max(number + 1);
        }
        if self.unreadable > 0 {
            // These may have been the last records of all, which no later record proves durable.
            first = first.or(Some(self.durable + 1));
            end = self.highest_number.0.max(self.durable) + 1 + self.unreadable;
        }
        first.map(|first| Damage { first, count: end - first })
    }

    /// Returns what the records change of the checkpoint.
    pub(crate) fn changes(&mut self) -> Changes {
        self.records = self.found.len() as u64;
        self.found.clear();
        self.changes.collected()
    }

    /// Adds the marks for the current life of their segment.
    fn add_marks(&mut self, all: &[Mark]) {
        for mark in all {
            let segment = self.geometry.place_of(mark.slot).0;
            let present = self.generations[segment.0 as usize];
            let means = |present| mark.means(present) || planted::has(PlantedBug::MarksAnyLife);
            if present.is_some_and(means) {
                self.changes.mark(mark.slot, mark.kind);
            }
        }
    }

    /// Adds the versions of one record that the checkpoint does not contain.
    fn add_data(&mut self, header: &RecordHeader, entries: &[DataEntry]) {
        let mut blocks = std::mem::take(&mut self.blocks);
        blocks.clear();
        // All of them first: adding mostly waits for memory.
        blocks.extend(entries.iter().map(|entry| self.block_of(entry)));
        let drops_torn = header.number <= self.accepted.through && !self.torn_slots.is_empty();
        for (number, (entry, block)) in entries.iter().zip(&blocks).enumerate() {
            let (Some(block), slot) = (block, header.cell(&self.geometry, number)) else {
                continue;
            };
            // A block that an earlier recovery has found torn.
            if drops_torn && self.torn_slots.contains(&slot) {
                continue;
            }
            let partial = !entry.mask.is_all();
            let (dirty, check) = (entry.dirty, Check::new(entry.check));
            let version = Entry { slot, dirty, partial, rank: RANK_UNKNOWN, check };
            let mask = partial.then(|| entry.mask.clone());
            let new = NewVersion { entry: version, mask };
            self.changes.add(*block, (entry.sequence, header.number), new);
        }
        self.blocks = blocks;
    }

    /// Returns shard and address of an entry's block, if the entry counts.
    fn block_of(&mut self, entry: &DataEntry) -> Option<(u32, Address)> {
        if entry.void {
            return None;
        }
        // Of torn blocks as well: the header stays in the log, so their sequences must not be assigned
        // again.
        self.highest_sequence = self.highest_sequence.max(entry.sequence);
        if entry.sequence <= self.sequence {
            return None;
        }
        let Some((_, address)) = address_in(&self.spaces, entry.volume, entry.block) else {
            if self.spaces.iter().all(|space| space.id != entry.volume) {
                self.deleted.insert(entry.volume);
            }
            return None;
        };
        Some((self.changes.expect(address), address))
    }
}

/// Bytes read at a time while searching for a header.
const LOOK_AHEAD: u64 = 256 << 10;

/// Returns the bytes of memory for the place of a record and for the changes in it.
fn memory_of(header: &RecordHeader) -> u64 {
    const IN_TREE: usize = 2 * size_of::<(u64, Place)>();
    let content = match &header.body {
        Body::Data(entries) => {
            let partial = entries.iter().filter(|entry| !entry.mask.is_all()).count();
            entries.len() * Changes::VERSION + partial * Changes::MASK
        }
        Body::Marks(marks) => marks.len() * Changes::MARK,
        Body::Opening(_) => 0,
    };
    (IN_TREE + content) as u64
}

/// Collects the records of one segment's life.
async fn walk(
    queue: &Queue,
    replay: &Rc<RefCell<Replay>>,
    segment: SegmentId,
    generation: Generation,
) -> Result<(), StoreError> {
    let (geometry, cache) = {
        let replay = replay.borrow();
        (replay.geometry.clone(), replay.cache)
    };
    let mut added = Ok(());
    let walked = walk_headers(queue, &geometry, &cache, (segment, generation), |header| {
        if added.is_ok() {
            added = replay.borrow_mut().add(&header);
        }
    });
    let walked = walked.await?;
    added?;
    let mut replay = replay.borrow_mut();
    replay.bytes_read += walked.bytes;
    replay.unreadable += walked.unreadable;
    Ok(())
}

/// The cost of a walk through a segment, and the places that it could not read.
pub(crate) struct Walked {
    pub(crate) bytes: u64,
    /// Number of possible header positions that cannot be read.
    pub(crate) unreadable: u64,
}

/// Visits the headers of one segment's life. After a page without one, the search continues page by
/// page: a record may be damaged or torn and the next one intact.
pub(crate) async fn walk_headers(
    queue: &Queue,
    geometry: &Geometry,
    cache: &Uuid,
    (segment, generation): (SegmentId, Generation),
    mut visit: impl FnMut(RecordHeader),
) -> Result<Walked, StoreError> {
    let (start, bytes, granule) =
        (geometry.segment_offset(segment), geometry.segment_bytes, geometry.granule());
    let page = PAGE as u64;
    let mut take = |at: u64, page: &[u8]| {
        let header = header_in(page, geometry, cache, segment, (at / granule) as u32)?;
        if header.generation != generation {
            return None;
        }
        let end = (at + PAGE as u64 + u64::from(header.payload_bytes)).next_multiple_of(page_u64());
        visit(header);
        Some(end)
    };
    let (mut at, mut walked) = (0, Walked { bytes: 0, unreadable: 0 });
    while at + page <= bytes {
        let here = retry::read_pages(queue, start + at, PAGE).await?;
        walked.bytes += page;
        if let Some(end) = take(at, &here.bytes) {
            at = end;
            continue;
        }
        // An opening adds nothing to the header behind it, so its loss does not count.
        walked.unreadable += u64::from(!here.all_readable() && at > 0);
        at += page;
        while at + page <= bytes {
            let len = LOOK_AHEAD.min(bytes - at);
            let ahead = retry::read_pages(queue, start + at, len as usize).await?;
            walked.bytes += len;
            let next = ahead
                .bytes
                .chunks_exact(PAGE)
                .enumerate()
                .find_map(|(number, buf)| take(at + number as u64 * page, buf));
            match next {
                Some(end) => {
                    at = end;
                    break;
                }
                None => at += len,
            }
        }
    }
    Ok(walked)
}

/// Decodes the header in `page`, if it is valid for this place.
fn header_in(
    page: &[u8],
    geometry: &Geometry,
    cache: &Uuid,
    segment: SegmentId,
    position: u32,
) -> Option<RecordHeader> {
    let header = record::decode(page, geometry, cache).ok()?;
    (header.segment == segment && header.position == position).then_some(header)
}

/// Returns the highest generation in any header of a segment.
pub(crate) async fn newest_generation(
    queue: &Queue,
    replay: &Rc<RefCell<Replay>>,
    segment: SegmentId,
) -> Result<Option<Generation>, StoreError> {
    let (start, bytes, granule) = {
        let replay = replay.borrow();
        let geometry = &replay.geometry;
        (geometry.segment_offset(segment), geometry.segment_bytes, geometry.granule())
    };
    let mut newest = None;
    let mut at = 0;
    while at < bytes {
        let len = LOOK_AHEAD.min(bytes - at);
        let pages = retry::read_pages(queue, start + at, len as usize).await?;
        let mut replay = replay.borrow_mut();
        replay.bytes_read += len;
        for (number, page) in pages.bytes.chunks_exact(PAGE).enumerate() {
            let position = ((at + (number * PAGE) as u64) / granule) as u32;
            newest = newest.max(replay.generation_at(page, segment, position));
        }
        at += len;
    }
    Ok(newest)
}

fn page_u64() -> u64 {
    PAGE as u64
}

mod verify;

#[cfg(all(test, not(feature = "loom")))]
mod tests;
