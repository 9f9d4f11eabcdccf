//! Changes that the log makes to the checkpoint, by shard of the index.

use std::collections::HashMap;
use std::collections::hash_map;
use std::mem::{size_of, take};
use std::sync::Arc;

use forebay_core::{RecordNumber, SectorMask, SegmentId, Slot};
use forebay_format::{Geometry, MarkKind};
use forebay_lane::{MemoryBudget, MemoryHold, MemoryUse, OverLimit};

use crate::error::StoreError;
use crate::index::{Address, Index, NewVersion};
use crate::planted::{self, PlantedBug};
use crate::table::{Entry, TableGeometry};

mod versions;

pub(crate) use versions::LoggedVersion;
use versions::Versions;

/// The newest versions of a shard's blocks, to look blocks up.
#[derive(Default)]
pub(crate) struct NewestVersions {
    /// Sorted by address.
    pub(crate) versions: Vec<LoggedVersion>,
    /// A bit for each hash of an address.
    filter: Vec<u64>,
}

impl NewestVersions {
    pub(crate) fn new(versions: Vec<LoggedVersion>) -> Self {
        let words = (versions.len() / 4).next_power_of_two();
        let mut newest = NewestVersions { versions: Vec::new(), filter: vec![0; words] };
        for version in &versions {
            let (word, bit) = newest.place(version.address());
            newest.filter[word] |= bit;
        }
        NewestVersions { versions, ..newest }
    }

    fn place(&self, address: Address) -> (usize, u64) {
        let hash = address.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        ((hash >> 6) as usize & (self.filter.len() - 1), 1 << (hash & 63))
    }

    /// Returns whether there is a version of this block. Few blocks of a shard have one; for nearly
    /// all others the filter's bit rules it out.
    pub(crate) fn has(&self, address: Address) -> bool {
        if self.versions.is_empty() {
            return false;
        }
        let (word, bit) = self.place(address);
        self.filter[word] & bit != 0
            && self.versions.binary_search_by_key(&address, LoggedVersion::address).is_ok()
    }
}

/// The marks for the cells of one segment.
struct SegmentMarks {
    /// A bit for each granule.
    clean: Box<[u64]>,
    gone: Box<[u64]>,
}

impl SegmentMarks {
    fn none(geometry: &Geometry) -> Self {
        let words = geometry.granules_per_segment().div_ceil(64) as usize;
        let none = || vec![0; words].into_boxed_slice();
        SegmentMarks { clean: none(), gone: none() }
    }

    /// Returns the bytes of memory for the marks of a segment. A map is at least a quarter full.
    fn bytes(geometry: &Geometry) -> u64 {
        16 * geometry.granules_per_segment().div_ceil(64)
            + 5 * size_of::<(SegmentId, SegmentMarks)>() as u64
    }

    fn add(&mut self, more: &SegmentMarks) {
        for (words, more) in [(&mut self.clean, &more.clean), (&mut self.gone, &more.gone)] {
            words.iter_mut().zip(more).for_each(|(word, more)| *word |= more);
        }
    }
}

fn bit(position: u32) -> (usize, u64) {
    ((position / 64) as usize, 1 << (position % 64))
}

/// The versions in the log after a checkpoint, and the marks for versions before and after it. They
/// may be added in any order.
pub(crate) struct Changes {
    geometry: Geometry,
    table: TableGeometry,
    versions: Versions,
    /// Masks of the partial versions: their valid sectors.
    masks: HashMap<Slot, SectorMask>,
    marks: HashMap<SegmentId, SegmentMarks>,
    /// The marks by segment. Built once all are collected, because every entry of a checkpoint is
    /// looked up in it.
    by_segment: Vec<Option<SegmentMarks>>,
    marked: Vec<u64>,
    held: MemoryHold,
}

impl Changes {
    /// Bytes of memory for a version. The last chunks of lists are not full.
    pub(crate) const VERSION: usize = size_of::<LoggedVersion>() * 9 / 8;
    /// Additional bytes for the mask of a partial version, in a map that is at least a quarter
    /// full.
    pub(crate) const MASK: usize = 4 * size_of::<(Slot, SectorMask)>();
    /// Bytes for the effect of a mark in an index.
    pub(crate) const MARK: usize = 2 * size_of::<(Address, Option<Entry>)>();

    /// Returns the bytes that the first versions take.
    pub(crate) fn first_bytes(&self) -> u64 {
        self.versions.first_bytes()
    }

    /// Creates an empty set for an index of this shape, with its number of shards.
    pub(crate) fn new(
        geometry: Geometry,
        (table, shards): (TableGeometry, u32),
        memory: &Arc<MemoryBudget>,
    ) -> Self {
        Changes {
            geometry,
            table,
            versions: Versions::new(shards),
            masks: HashMap::new(),
            marks: HashMap::new(),
            by_segment: Vec::new(),
            marked: Vec::new(),
            held: MemoryHold::none(memory, MemoryUse::Background),
        }
    }

    /// Adds the changes of another set for the same index, and takes over its memory.
    pub(crate) fn absorb(&mut self, other: Self) {
        self.versions.absorb(other.versions);
        self.masks.extend(other.masks);
        for (segment, marks) in other.marks {
            match self.marks.entry(segment) {
                hash_map::Entry::Vacant(none) => _ = none.insert(marks),
                hash_map::Entry::Occupied(mut known) => known.get_mut().add(&marks),
            }
        }
        self.held.merge(other.held);
    }

    /// Holds `bytes` more for changes that will be added.
    pub(crate) fn grow(&mut self, bytes: u64) -> Result<(), OverLimit> {
        self.held.grow_for_a_while(bytes, "what recovery reads of the log")
    }

    /// Returns the shard of a block.
    pub(crate) fn shard_of(&self, address: Address) -> u32 {
        self.table.place(address.0).shard
    }

    /// A hint that a version will soon be added to this shard, whose number is returned.
    pub(crate) fn expect(&self, shard: u32) -> u32 {
        self.versions.expect(shard);
        shard
    }

    /// Adds a version, with its sequence and the number of its record, to its shard.
    pub(crate) fn add(
        &mut self,
        (shard, address): (u32, Address),
        order: (u64, RecordNumber),
        NewVersion { entry, mask }: NewVersion,
    ) {
        self.versions.push(shard, LoggedVersion::new(address, order, &entry));
        if let Some(mask) = mask {
            self.masks.insert(entry.slot, mask);
        }
    }

    /// Drops the version in a slot, which is one of this block.
    pub(crate) fn drop_version(&mut self, address: Address, slot: Slot) {
        let list = self.versions.list_of(self.table.place(address.0).shard);
        self.versions.drop_from(list, |version| version.slot() == slot);
        self.masks.remove(&slot);
    }

    /// Returns the versions in a record. Examines all.
    pub(crate) fn of_record(&self, number: RecordNumber) -> Vec<LoggedVersion> {
        let lists = (0..self.versions.count()).flat_map(|list| self.versions.of_list(list));
        lists.filter(|version| version.record() == number).copied().collect()
    }

    /// Adds a mark. A mark for a removed block prevails over one for a clean block.
    ///
    /// # Errors
    /// There is no memory for the marks of another segment.
    pub(crate) fn mark(&mut self, slot: Slot, kind: MarkKind) -> Result<(), OverLimit> {
        let (segment, position) = self.geometry.place_of(slot);
        if !self.marks.contains_key(&segment) {
            self.grow(SegmentMarks::bytes(&self.geometry))?;
        }
        let none = || SegmentMarks::none(&self.geometry);
        let marks = self.marks.entry(segment).or_insert_with(none);
        let (word, mark) = bit(position);
        match kind {
            MarkKind::Clean => marks.clean[word] |= mark,
            MarkKind::Gone => marks.gone[word] |= mark,
        }
        Ok(())
    }

    /// Takes all changes, and returns the memory that only collecting them needed.
    pub(crate) fn collected(&mut self) -> Self {
        let mut versions = take(&mut self.versions);
        versions.release_unused();
        let marks = self.marks.len() as u64 * SegmentMarks::bytes(&self.geometry);
        let bytes = (versions.bytes() + self.masks.len() * Self::MASK) as u64 + marks;
        self.held.shrink(self.held.bytes().saturating_sub(bytes));
        let count = self.geometry.segment_count as usize;
        let mut by_segment: Vec<_> = (0..count).map(|_| None).collect();
        let mut marked = vec![0; count.div_ceil(64)];
        for (segment, marks) in take(&mut self.marks) {
            by_segment[segment.0 as usize] = Some(marks);
            let (word, mark) = bit(segment.0);
            marked[word] |= mark;
        }
        Changes {
            geometry: self.geometry.clone(),
            table: self.table,
            versions,
            masks: take(&mut self.masks),
            marks: HashMap::new(),
            by_segment,
            marked,
            held: self.held.take(),
        }
    }

    /// Holds the memory of the changes beyond recovery. Returns `false` if there is not enough
    /// memory for that.
    pub(crate) fn keep(&mut self) -> bool {
        self.held.keep_spare()
    }

    /// Returns the number of partial versions.
    pub(crate) fn partial_count(&self) -> usize {
        self.masks.len()
    }

    /// Visits the partial versions with their masks.
    pub(crate) fn partial(&self, mut visit: impl FnMut(Address, &SectorMask)) {
        if self.masks.is_empty() {
            return;
        }
        for list in 0..self.versions.count() {
            for version in self.versions.of_list(list).filter(|version| version.is_partial()) {
                if let Some(mask) = self.masks.get(&version.slot()) {
                    visit(version.address(), mask);
                }
            }
        }
    }

    /// Returns the newest version of each block of a shard.
    pub(crate) fn newest(&self, shard: u32) -> Vec<LoggedVersion> {
        let own = |it: &&LoggedVersion| self.table.place(it.address().0).shard == shard;
        let list = self.versions.of_list(self.versions.list_of(shard));
        let mut versions: Vec<LoggedVersion> = list.filter(own).copied().collect();
        // Two versions with the same sequence are copies of each other; that of the later record is
        // used.
        versions.sort_unstable_by_key(|it| {
            let any = planted::has(PlantedBug::ReplayAnyOrder);
            (it.address(), if any { 0 } else { it.sequence() }, it.record(), it.slot())
        });
        let last_of_each = versions.chunk_by(|one, next| one.address() == next.address());
        last_of_each.filter_map(|versions| versions.last().copied()).collect()
    }

    /// Returns the entry after the marks for it, or `None` if they remove it.
    pub(crate) fn marked(&self, entry: &Entry) -> Option<Entry> {
        let (segment, position) = self.geometry.place_of(entry.slot);
        let (word, mark) = bit(segment.0);
        if self.marked.get(word).is_none_or(|marked| marked & mark == 0) {
            return Some(*entry);
        }
        let Some(Some(marks)) = self.by_segment.get(segment.0 as usize) else {
            return Some(*entry);
        };
        let (word, bit) = bit(position);
        let is_gone = marks.gone[word] & bit != 0;
        if is_gone && !planted::has(PlantedBug::GoneNotReplayed) {
            return None;
        }
        // With the planted bug, a mark for a removed block must not have the effect of a clean one.
        let clean = !is_gone && marks.clean[word] & bit != 0;
        Some(Entry { dirty: entry.dirty && !clean, ..*entry })
    }

    /// Returns the version after the marks for it, with its mask, or `None` if they remove it.
    pub(crate) fn version(&self, version: &LoggedVersion) -> Option<NewVersion> {
        let entry = self.marked(&version.entry())?;
        let mask = entry.partial.then(|| self.masks.get(&entry.slot).cloned()).flatten();
        Some(NewVersion { entry, mask })
    }

    /// Makes these changes in a shard of an index that has the entries of the checkpoint.
    ///
    /// # Errors
    /// The index has no room, or there is no memory for a mask.
    pub(crate) fn apply_to(&self, index: &Index, shard: u32) -> Result<(), StoreError> {
        for version in self.newest(shard) {
            let address = version.address();
            match self.version(&version) {
                Some(version) => {
                    index.restore_version(address, version).map_err(|unfit| unfit.of("the log"))?
                }
                None => _ = index.remove(address, |_| true),
            }
        }
        if self.marked.iter().all(|words| *words == 0) {
            return Ok(());
        }
        let mut marked = Vec::new();
        index.scan_shard(shard, &mut |address, entry| {
            let left = self.marked(entry);
            if left != Some(*entry) {
                marked.push((address, left));
            }
        });
        for (address, left) in marked {
            match left {
                Some(entry) => index.update(address, |_| Some(entry)),
                None => index.remove(address, |_| true),
            };
        }
        Ok(())
    }
}
