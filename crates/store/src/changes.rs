//! What the log changes of the checkpoint, by shard of the index.

use std::collections::HashMap;
use std::mem::size_of;

use forebay_core::{SectorMask, Slot};
use forebay_format::{Geometry, MarkKind};
use forebay_lane::MemoryHold;
use parking_lot::Mutex;

use crate::error::StoreError;
use crate::index::{Address, Index, NewVersion};
use crate::planted::{self, PlantedBug};
use crate::table::Entry;

/// A version of a block in the log.
#[derive(Clone, Copy)]
pub(crate) struct Change {
    pub(crate) address: Address,
    sequence: u64,
    entry: Entry,
}

/// The versions in the log after a checkpoint, and the marks for versions before and after it.
pub(crate) struct Changes {
    geometry: Geometry,
    /// The versions of each shard, those of one block in the order of their records.
    shards: Box<[Mutex<Vec<Change>>]>,
    /// The valid sectors of versions that have not all of them.
    masks: HashMap<Slot, SectorMask>,
    marks: HashMap<Slot, MarkKind>,
    /// Segments with marks.
    marked: Vec<bool>,
    held: MemoryHold,
}

impl Changes {
    /// Bytes of memory for a version.
    pub(crate) const VERSION: usize = size_of::<Change>();
    /// Further bytes for the mask of one. A map is at least a quarter full.
    pub(crate) const MASK: usize = 4 * size_of::<(Slot, SectorMask)>();
    /// Bytes for a mark, and for its effect in an index.
    pub(crate) const MARK: usize =
        4 * size_of::<(Slot, MarkKind)>() + size_of::<(Address, MarkKind)>();

    /// Makes an empty set for an index with so many shards; `held` is its memory.
    pub(crate) fn new(geometry: Geometry, shards: u32, held: MemoryHold) -> Self {
        let marked = vec![false; geometry.segment_count as usize];
        let shards = (0..shards).map(|_| Mutex::default()).collect();
        Changes { geometry, shards, masks: HashMap::new(), marks: HashMap::new(), marked, held }
    }

    /// Adds a version, after those in earlier records.
    pub(crate) fn add(&mut self, shard: u32, address: Address, sequence: u64, new: NewVersion) {
        let NewVersion { entry, mask } = new;
        self.masks.extend(mask.map(|mask| (entry.slot, mask)));
        self.shards[shard as usize].get_mut().push(Change { address, sequence, entry });
    }

    /// Adds a mark. Gone prevails over clean.
    pub(crate) fn mark(&mut self, slot: Slot, kind: MarkKind) {
        self.marked[self.geometry.place_of(slot).0.0 as usize] = true;
        let known = self.marks.entry(slot).or_insert(kind);
        if kind == MarkKind::Gone {
            *known = MarkKind::Gone;
        }
    }

    /// Gives back the memory that was needed only to collect the changes.
    pub(crate) fn collected(&mut self) {
        let versions: usize = self.shards.iter_mut().map(|it| it.get_mut().capacity()).sum();
        let bytes = versions * Self::VERSION
            + self.masks.len() * Self::MASK
            + self.marks.len() * Self::MARK;
        self.held.shrink(self.held.bytes().saturating_sub(bytes as u64));
    }

    /// Returns the number of versions that have not all sectors.
    pub(crate) fn partial_count(&self) -> usize {
        self.masks.len()
    }

    /// Visits the versions that have not all sectors, with their masks.
    pub(crate) fn partial(&mut self, mut visit: impl FnMut(Address, &SectorMask)) {
        for shard in &mut self.shards {
            for change in shard.get_mut().iter().filter(|change| change.entry.partial) {
                if let Some(mask) = self.masks.get(&change.entry.slot) {
                    visit(change.address, mask);
                }
            }
        }
    }

    /// Returns the newest version of each block of a shard, sorted by address.
    pub(crate) fn newest(&self, shard: u32) -> Vec<Change> {
        let mut versions = self.shards[shard as usize].lock();
        // Of two with the same sequence, one is a copy of the other: that in the later record counts.
        let order = |it: &Change| match planted::has(PlantedBug::ReplayAnyOrder) {
            true => (it.address, 0),
            false => (it.address, it.sequence),
        };
        if !versions.is_sorted_by_key(order) {
            versions.sort_by_key(order);
        }
        let last_of_each = versions.chunk_by(|one, next| one.address == next.address);
        last_of_each.filter_map(|versions| versions.last().copied()).collect()
    }

    /// Returns what the marks leave of an entry.
    pub(crate) fn marked(&self, entry: &Entry) -> Option<Entry> {
        let segment = self.geometry.place_of(entry.slot).0;
        let perhaps = self.marked.get(segment.0 as usize).is_some_and(|marked| *marked);
        match perhaps.then(|| self.marks.get(&entry.slot)).flatten() {
            Some(MarkKind::Gone) if !planted::has(PlantedBug::GoneNotReplayed) => None,
            Some(MarkKind::Clean) => Some(Entry { dirty: false, ..*entry }),
            _ => Some(*entry),
        }
    }

    /// Returns what the marks leave of a version, with its mask.
    pub(crate) fn version(&self, change: &Change) -> Option<NewVersion> {
        let entry = self.marked(&change.entry)?;
        Some(NewVersion { entry, mask: self.masks.get(&entry.slot).cloned() })
    }

    /// Makes these changes in an index that has the entries of the checkpoint.
    ///
    /// # Errors
    /// The index has no room, or there is no memory for a mask.
    pub(crate) fn apply_to(&self, index: &Index) -> Result<(), StoreError> {
        for shard in 0..index.shard_count() {
            for change in self.newest(shard) {
                match self.version(&change) {
                    Some(version) => index
                        .restore_version(change.address, version)
                        .map_err(|unfit| unfit.of("the log"))?,
                    None => _ = index.remove(change.address, |_| true),
                }
            }
        }
        if self.marks.is_empty() {
            return Ok(());
        }
        let mut marked = Vec::new();
        index.scan(|address, entry| {
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
