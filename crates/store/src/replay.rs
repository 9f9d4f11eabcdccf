//! Replaying the records after a checkpoint.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use forebay_core::{Generation, RecordNumber, SegmentId, Slot, VolumeId};
use forebay_format::{AcceptedLog, Body, DataEntry, Geometry, Mark, RecordHeader, Uuid, record};
use forebay_lane::MemoryBudget;

use crate::changes::Changes;
use crate::damage::Damage;
use crate::error::StoreError;
use crate::index::{Address, NewVersion};
use crate::planted::{self, PlantedBug};
use crate::spaces::address_in;
use crate::store::VolumeSpace;
use crate::table::{Check, Entry, RANK_UNKNOWN, TableGeometry};
use crate::team::{Team, WorkList};

/// Inputs of a replay, shared by all lanes that take part in it.
#[derive(Clone)]
pub(crate) struct Basis {
    pub(crate) geometry: Geometry,
    pub(crate) cache: Uuid,
    spaces: Vec<VolumeSpace>,
    /// The shape of the index.
    table: (TableGeometry, u32),
    memory: Arc<MemoryBudget>,
    base: RecordNumber,
    /// Versions up to this sequence are contained in the checkpoint, even if their records are
    /// later than the base.
    sequence: u64,
    /// The current generation of each segment in use. Segments beyond the end are not known yet.
    generations: Vec<Option<Generation>>,
    /// Openings with this generation or a higher one name free segments: see
    /// [`Replay::trust_free`]. `None` if no opening is trusted.
    free_from: Option<Generation>,
    /// The part of the log that earlier recoveries accepted.
    accepted: AcceptedLog,
    part: ShardSubset,
}

/// The shards whose blocks a replay collects: every `of`th shard.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ShardSubset {
    pub(crate) number: u32,
    pub(crate) of: u32,
}

impl ShardSubset {
    const WHOLE: ShardSubset = ShardSubset { number: 0, of: 1 };

    fn has(self, shard: u32) -> bool {
        shard % self.of == self.number
    }
}

/// The state of one replay, or of one lane's part in it.
pub(crate) struct Replay {
    pub(crate) basis: Arc<Basis>,
    walks: Vec<(SegmentId, Generation)>,
    /// The last accepted record of each segment that has any.
    ends: HashMap<SegmentId, LastRecord>,
    /// Whether an opening names the segment as free, by number.
    free: Vec<bool>,
    /// All data and marks records after the base, by number.
    found: BTreeMap<u64, RecordLocation>,
    /// The changes that these records make. They also hold the memory of `found`.
    changes: Changes,
    /// The shards and addresses of the blocks in a record, while it is added.
    blocks: Vec<Option<(u32, Address)>>,
    /// Deleted volumes that still have versions in the log.
    pub(crate) deleted: HashSet<VolumeId>,
    durable: u64,
    /// Number of possible header positions that cannot be read.
    pub(crate) unreadable: u64,
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

/// Location of a record.
#[derive(Clone, Copy)]
struct RecordLocation {
    segment: SegmentId,
    position: u32,
    payload_bytes: u32,
}

/// First numbers for a recovered cache to use. All numbers, sequences and generations that recovery
/// may not have seen are skipped.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FirstNumbers {
    /// The number of the next record.
    pub(crate) record: RecordNumber,
    /// The next sequence is higher.
    pub(crate) sequence: u64,
    /// The generation of the next segment to be opened.
    pub(crate) generation: Generation,
}

/// The last record of a walked segment.
#[derive(Clone, Copy, Default)]
pub(crate) struct LastRecord {
    /// End of the record, in granules.
    pub(crate) position: u32,
    pub(crate) number: RecordNumber,
}

impl Basis {
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
}

impl Replay {
    /// Creates a replay for an index of this shape and number of shards.
    pub(crate) fn new(
        geometry: Geometry,
        cache: Uuid,
        spaces: &[VolumeSpace],
        table: (TableGeometry, u32),
        memory: &Arc<MemoryBudget>,
    ) -> Self {
        Self::on(Arc::new(Basis {
            // Filled in turns, as the segments are chosen.
            generations: Vec::with_capacity(geometry.segment_count as usize),
            geometry,
            cache,
            spaces: spaces.to_vec(),
            table,
            memory: memory.clone(),
            base: RecordNumber(0),
            sequence: 0,
            free_from: None,
            accepted: AcceptedLog::default(),
            part: ShardSubset::WHOLE,
        }))
    }

    /// Makes a replay without findings.
    fn on(basis: Arc<Basis>) -> Self {
        let accepted = &basis.accepted;
        Replay {
            walks: Vec::new(),
            ends: HashMap::new(),
            free: vec![false; basis.geometry.segment_count as usize],
            found: BTreeMap::new(),
            changes: Changes::new(basis.geometry.clone(), basis.table, &basis.memory),
            blocks: Vec::new(),
            deleted: HashSet::new(),
            durable: basis.base.max(accepted.through).0,
            unreadable: 0,
            firsts_readable: true,
            torn_slots: accepted.torn.iter().copied().collect(),
            highest_number: basis.base.max(accepted.through),
            highest_sequence: basis.sequence.max(accepted.sequence),
            records: 0,
            torn: 0,
            bytes_read: 0,
            basis,
        }
    }

    /// Begins a new replay, after this record and sequence. Earlier decisions about records are
    /// kept.
    pub(crate) fn begin(
        &mut self,
        base: RecordNumber,
        sequence: u64,
        accepted: Option<&AcceptedLog>,
    ) {
        let basis = Arc::make_mut(&mut self.basis);
        (basis.base, basis.sequence) = (base, sequence);
        basis.accepted = accepted.cloned().unwrap_or_default();
        *self = Self::on(self.basis.clone());
    }

    /// Collects the segments that openings with this generation or a higher one name as free.
    pub(crate) fn trust_free(&mut self, from: Generation) {
        Arc::make_mut(&mut self.basis).free_from = Some(from);
    }

    /// Collects the blocks of this part of the index only.
    pub(crate) fn limit_to(&mut self, part: ShardSubset) {
        Arc::make_mut(&mut self.basis).part = part;
    }

    /// Returns a replay of the same segments without findings.
    pub(crate) fn again(&self) -> Self {
        Replay { walks: self.walks.clone(), ..Self::on(self.basis.clone()) }
    }

    pub(crate) fn walk_later(&mut self, segment: SegmentId, generation: Generation) {
        self.walks.push((segment, generation));
    }

    pub(crate) fn set_generation(&mut self, segment: SegmentId, generation: Option<Generation>) {
        let (generations, index) =
            (&mut Arc::make_mut(&mut self.basis).generations, segment.0 as usize);
        if generations.len() <= index {
            generations.resize(index + 1, None);
        }
        generations[index] = generation;
    }

    /// Returns the last record that was found in a segment.
    pub(crate) fn end_of(&self, segment: SegmentId) -> Option<LastRecord> {
        self.ends.get(&segment).copied()
    }

    /// Returns whether an opening names a segment as free, and the segment has no accepted record.
    pub(crate) fn is_free(&self, segment: SegmentId) -> bool {
        self.free[segment.0 as usize] && !self.ends.contains_key(&segment)
    }

    /// Returns whether every page that had to be read could be read.
    pub(crate) fn has_read_all(&self) -> bool {
        self.unreadable == 0 && self.firsts_readable
    }

    /// Returns the accepted record numbers. A later replay ignores all other records, even if they
    /// become readable.
    pub(crate) fn accepted(&self, next: &FirstNumbers) -> AcceptedLog {
        let FirstNumbers { record, sequence, generation: next_generation } = *next;
        let (mut left_out, mut expected) = (Vec::new(), self.basis.base.0 + 1);
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

    /// Walks through all registered segments, and verifies the records that are not known to have
    /// been durable.
    pub(crate) async fn run(mut self, team: &Team, reads: usize) -> Result<Self, StoreError> {
        let (basis, walks) = (self.basis.clone(), WorkList::new(std::mem::take(&mut self.walks)));
        let of_each = reads.div_ceil(team.lanes());
        let parts = team.run(move |lane, queue| {
            let (part, walks) = (Self::on(basis.clone()), walks.clone());
            async move { walk::walk_all(&lane, &queue, part, walks, of_each).await }
        });
        for part in parts.await {
            self.absorb(part?);
        }
        verify::verify_all(team, self, reads).await
    }

    /// Adds the findings of a lane in other segments.
    fn absorb(&mut self, mut part: Self) {
        // Two records have the same number only if an earlier program, which did not bound
        // generations, has written them. As in `add`, the first one is accepted.
        let twice = part.found.keys().filter(|number| self.found.contains_key(number));
        for number in twice.copied().collect::<Vec<_>>() {
            part.found.remove(&number);
            for version in part.changes.of_record(RecordNumber(number)) {
                part.changes.drop_version(version.address(), version.slot());
            }
        }
        self.ends.extend(part.ends);
        self.free.iter_mut().zip(part.free).for_each(|(free, also)| *free |= also);
        self.found.append(&mut part.found);
        self.changes.absorb(part.changes);
        self.deleted.extend(part.deleted);
        self.durable = self.durable.max(part.durable);
        self.unreadable += part.unreadable;
        self.highest_number = self.highest_number.max(part.highest_number);
        self.highest_sequence = self.highest_sequence.max(part.highest_sequence);
        self.bytes_read += part.bytes_read;
    }

    /// Adds the content of a header.
    fn add(&mut self, header: &RecordHeader) -> Result<(), StoreError> {
        if header.number > self.basis.base && self.basis.accepted.leaves_out(header.number.0) {
            return Ok(());
        }
        if let Body::Opening(free) = &header.body
            && self.basis.free_from.is_some_and(|from| header.generation >= from)
        {
            free.iter().for_each(|segment| self.free[segment.0 as usize] = true);
        }
        self.durable = self.durable.max(header.durable_through.0);
        self.highest_number = self.highest_number.max(header.number);
        let position = header.position + header.granules(&self.basis.geometry);
        let end = self.ends.entry(header.segment).or_default();
        end.position = end.position.max(position);
        end.number = end.number.max(header.number);
        if header.number <= self.basis.base || header.body.is_opening() {
            return Ok(());
        }
        if self.found.contains_key(&header.number.0) {
            return Ok(());
        }
        let blocks = match &header.body {
            Body::Data(entries) => self.find_blocks(entries),
            Body::Marks(_) | Body::Opening(_) => 0,
        };
        let mut bytes = memory_of(header, blocks);
        if self.found.is_empty() {
            bytes += self.changes.first_bytes();
        }
        self.changes.grow(bytes)?;
        let RecordHeader { segment, position, payload_bytes, .. } = *header;
        self.found.insert(header.number.0, RecordLocation { segment, position, payload_bytes });
        match &header.body {
            Body::Data(entries) => self.add_data(header, entries),
            Body::Marks(all) => return self.add_marks(all),
            Body::Opening(_) => (),
        }
        Ok(())
    }

    /// Returns the durable records that are missing, and the records that may have been in
    /// unreadable pages.
    pub(crate) fn lost(&self) -> Option<Damage> {
        if planted::has(PlantedBug::GapsNotSeen) {
            return None;
        }
        let (mut first, mut end) = (None, 0);
        let mut expected = self.basis.base.0 + 1;
        let found = self.found.range(..=self.durable).map(|(number, _)| *number);
        for number in found.chain([self.durable + 1]) {
            expected = self.basis.accepted.counting_from(expected);
            if number > expected {
                first = first.or(Some(expected));
                end = number;
            }
            expected = expected.max(number + 1);
        }
        if self.unreadable > 0 {
            // The pages may have contained the very last records, which no later record proves
            // durable.
            first = first.or(Some(self.durable + 1));
            end = self.highest_number.0.max(self.durable) + 1 + self.unreadable;
        }
        first.map(|first| Damage { first, count: end - first })
    }

    /// Returns the changes that the records make to the checkpoint.
    pub(crate) fn changes(&mut self) -> Changes {
        self.records = self.found.len() as u64;
        self.found.clear();
        self.changes.collected()
    }

    /// Adds the marks for the current life of their segment.
    fn add_marks(&mut self, all: &[Mark]) -> Result<(), StoreError> {
        for mark in all {
            let segment = self.basis.geometry.place_of(mark.slot).0;
            let present = self.basis.generations.get(segment.0 as usize).copied().flatten();
            let means = |present| mark.means(present) || planted::has(PlantedBug::MarksAnyLife);
            if present.is_some_and(means) {
                self.changes.mark(mark.slot, mark.kind)?;
            }
        }
        Ok(())
    }

    /// Finds the blocks of a record that are newer than the checkpoint and belong to a volume.
    /// Returns their number.
    fn find_blocks(&mut self, entries: &[DataEntry]) -> usize {
        let mut blocks = std::mem::take(&mut self.blocks);
        blocks.clear();
        // All look-ups are done first, so that the memory for adding is prefetched.
        blocks.extend(entries.iter().map(|entry| self.block_of(entry)));
        self.blocks = blocks;
        self.blocks.iter().flatten().count()
    }

    /// Adds the versions of one record that the checkpoint does not contain, of the blocks that
    /// were found.
    fn add_data(&mut self, header: &RecordHeader, entries: &[DataEntry]) {
        let blocks = std::mem::take(&mut self.blocks);
        let drops_torn =
            header.number <= self.basis.accepted.through && !self.torn_slots.is_empty();
        for (number, (entry, block)) in entries.iter().zip(&blocks).enumerate() {
            let (Some(block), slot) = (block, header.cell(&self.basis.geometry, number)) else {
                continue;
            };
            // An earlier recovery has found this block torn.
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

    /// Returns shard and address of an entry's block, if the entry is newer than the checkpoint and
    /// belongs to a volume and to this part of the index.
    fn block_of(&mut self, entry: &DataEntry) -> Option<(u32, Address)> {
        if entry.void {
            return None;
        }
        // Also for torn blocks: their header stays in the log, so their sequences must not be
        // assigned again.
        self.highest_sequence = self.highest_sequence.max(entry.sequence);
        if entry.sequence <= self.basis.sequence {
            return None;
        }
        let Some((_, address)) = address_in(&self.basis.spaces, entry.volume, entry.block) else {
            if self.basis.spaces.iter().all(|space| space.id != entry.volume) {
                self.deleted.insert(entry.volume);
            }
            return None;
        };
        let shard = self.changes.shard_of(address);
        self.basis.part.has(shard).then(|| (self.changes.expect(shard), address))
    }
}

/// Returns the bytes of memory for recording the position of a record and for its changes.
/// `blocks`: the result of [`Replay::find_blocks`].
fn memory_of(header: &RecordHeader, blocks: usize) -> u64 {
    const IN_TREE: usize = 2 * size_of::<(u64, RecordLocation)>();
    let content = match &header.body {
        Body::Data(entries) => {
            let partial = entries.iter().filter(|entry| !entry.mask.is_all()).count();
            blocks * Changes::VERSION + partial.min(blocks) * Changes::MASK
        }
        Body::Marks(marks) => marks.len() * Changes::MARK,
        Body::Opening(_) => 0,
    };
    (IN_TREE + content) as u64
}

mod verify;
mod walk;

pub(crate) use walk::{newest_generation, walk_headers};

#[cfg(all(test, not(feature = "loom")))]
mod tests;
