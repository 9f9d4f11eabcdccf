//! The index: origin address -> slot and state of the newest version.
//!
//! Sharded; a shard's lock is held for one look-up or one update, never across an I/O or a copy of
//! a payload, and hits do without it. All decisions about one block that must be atomic are made
//! under that lock: which version is the newest, the order of versions (the sequence), and whether
//! a fill in flight was overtaken by a write.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use forebay_core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use forebay_core::{BlockSize, SectorMask, SegmentId, Slot};
use forebay_lane::{MemoryBudget, OverLimit, yield_now};

use crate::error::StoreError;
use crate::hazard::{HazardId, HazardSlots};
use crate::planted::{self, PlantedBug};
use crate::table::{Entry, GeometryError, LocalKey, TableGeometry};
use masks::Masks;
use regions::Regions;
use shard::{Locked, Shard, ShardData};

mod masks;
pub(crate) mod regions;
mod relocate;
mod restore;
mod shard;

pub use regions::Walk;
pub(crate) use relocate::Relocated;
pub(crate) use restore::ShardContent;
pub(crate) use shard::Unlocked;

/// A block of any volume as one number: the volume's base plus the block number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address(pub u64);

/// A fill in progress. It ends when this is dropped, whether or not anything was inserted.
#[must_use = "the fill ends when this is dropped"]
pub struct FillTicket<'a> {
    index: &'a Index,
    address: Address,
    number: u64,
}

impl fmt::Debug for FillTicket<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "fill {} of {:?}", self.number, self.address)
    }
}

impl Drop for FillTicket<'_> {
    fn drop(&mut self) {
        let placed = self.index.geometry.place(self.address.0);
        let mut shard = self.index.shards[placed.shard as usize].lock();
        shard.fills.retain(|fill| fill.key != placed.key || fill.number != self.number);
    }
}

/// When a new version may replace the current one.
#[derive(Debug)]
pub enum Condition<'a> {
    /// Always: a client wrote the whole block.
    Always,
    /// Insert only if the block is still absent and has not been changed since the fill began.
    Fill(&'a FillTicket<'a>),
    /// Insert only if the newest version is still at this slot: the new one was merged from it.
    Slot(Slot),
    /// Like [`Condition::Slot`], for a copy of that version, which is inserted as clean if the
    /// version has become clean.
    Copy(Slot),
    /// Insert only if the block is absent: the new version has only some sectors valid.
    Absent,
}

/// A new version of a block.
#[derive(Debug)]
pub struct NewVersion {
    /// Slot and state of the version.
    pub entry: Entry,
    /// Valid sectors of the version; `None` for all.
    pub mask: Option<SectorMask>,
}

/// The result of [`Index::put`].
#[derive(Debug)]
pub enum Put {
    /// The new version is in the index.
    Done {
        /// Sequence of the version, which orders versions of one block.
        sequence: u64,
        /// The version that it replaced, if any.
        old: Option<Entry>,
    },
    /// The condition did not hold; nothing has changed.
    Refused,
    /// The table has no room.
    Full,
    /// There is no memory for another mask: the caller must provide the whole block.
    NoMask,
}

/// Recovered entries do not fit the index.
#[derive(Debug)]
pub enum Unfit {
    /// The table is full.
    Blocks,
    /// There is no memory for this number of masks.
    Masks(OverLimit),
}

impl Unfit {
    /// Returns the error, where `what` names the source of the blocks.
    pub(crate) fn of(self, what: &str) -> StoreError {
        match self {
            Unfit::Blocks => {
                StoreError::Refused(format!("{what} has more blocks than the index can hold"))
            }
            Unfit::Masks(over) => StoreError::Memory(over),
        }
    }
}

/// The result of a look-up.
#[derive(Debug)]
pub struct Found {
    /// Slot and state.
    pub entry: Entry,
    /// Valid sectors of the block; `None` for all.
    pub mask: Option<SectorMask>,
}

struct Filling {
    key: LocalKey,
    number: u64,
}

impl ShardData {
    fn overtake_fills(&mut self, key: LocalKey) {
        if !self.fills.is_empty() {
            self.fills.retain(|fill| fill.key != key);
        }
    }

    /// Replaces the mask of `old` by that of the new version.
    fn set_mask(&mut self, address: Address, mask: Option<SectorMask>, old: Option<&Entry>) {
        match mask {
            Some(mask) => self.masks.insert(address.0, mask),
            None if old.is_some_and(|old| old.partial) => self.masks.remove(address.0),
            None => (),
        }
    }
}

/// The index of one cache.
pub struct Index {
    /// Mapping from addresses to shards and keys, with the widths that the index was made with.
    geometry: TableGeometry,
    /// Addresses are below 2 to the power of this.
    address_bits: AtomicU32,
    /// The fewest bits of check of any shard.
    check_bits: AtomicU32,
    shards: Box<[Shard]>,
    regions: Regions,
    fill_numbers: AtomicU64,
}

/// Shards that are made before other tasks of the lane run.
const MADE_AT_ONCE: u32 = 256;

impl Index {
    /// Creates an empty index without a limit on masks.
    pub fn new(geometry: TableGeometry, shards: u32) -> Self {
        Self::within(geometry, shards, BlockSize::DEFAULT, &Arc::default())
    }

    /// Makes an empty index. Memory for masks of blocks of this size is taken from `memory`.
    pub fn within(
        geometry: TableGeometry,
        shards: u32,
        block: BlockSize,
        memory: &Arc<MemoryBudget>,
    ) -> Self {
        let masks = || Masks::new(memory, block.sectors(), shards);
        Self::of(geometry, (0..shards).map(|_| Shard::new(&geometry, masks())).collect())
    }

    /// Makes an index like [`Index::within`]. Other tasks of the lane run meanwhile, because each
    /// shard requests memory from the system.
    pub(crate) async fn in_turns(
        geometry: TableGeometry,
        shards: u32,
        block: BlockSize,
        memory: &Arc<MemoryBudget>,
    ) -> Self {
        let mut all = Vec::with_capacity(shards as usize);
        for number in 1..=shards {
            all.push(Shard::new(&geometry, Masks::new(memory, block.sectors(), shards)));
            if number.is_multiple_of(MADE_AT_ONCE) {
                yield_now().await;
            }
        }
        Self::of(geometry, all.into())
    }

    fn of(geometry: TableGeometry, shards: Box<[Shard]>) -> Self {
        Index {
            geometry,
            address_bits: AtomicU32::new(geometry.address_bits()),
            check_bits: AtomicU32::new(geometry.check_bits()),
            shards,
            regions: Regions::new(&geometry),
            fill_numbers: AtomicU64::new(0),
        }
    }

    /// Returns the mapping from addresses to places. Its widths are those that the index was made
    /// with: see [`Index::check_bits`].
    pub(crate) fn geometry(&self) -> &TableGeometry {
        &self.geometry
    }

    /// Returns the number of addresses.
    pub fn room(&self) -> u64 {
        // Sequentially consistent with the states of regions: see [`regions`].
        1 << self.address_bits.load(Ordering::SeqCst)
    }

    /// Returns the bits of a check that every entry has, 16 to 32. Must be asked after the entry
    /// was found.
    #[inline]
    pub fn check_bits(&self) -> u32 {
        self.check_bits.load(Ordering::Relaxed)
    }

    /// Returns whether the checksum of an entry's payload can be `full`.
    #[inline]
    pub fn check_matches(&self, entry: &Entry, full: u32) -> bool {
        entry.check.matches(full, self.check_bits())
    }

    /// Begins to widen the index to addresses below 2^`address_bits`. From now on, checks are
    /// compared with the future number of bits. [`Index::widen_shard`] for every shard and then
    /// [`Index::widened`] must follow; before that, no new address may be used.
    ///
    /// # Errors
    /// Too few bits would be left for the checks; nothing has changed.
    pub(crate) fn begin_widening(&self, address_bits: u32) -> Result<TableGeometry, GeometryError> {
        let wide = self.geometry.widened(address_bits)?;
        // A reader that finds an entry with fewer bits has taken its shard's lock, or seen its
        // shard's version, after this store.
        self.check_bits.fetch_min(wide.check_bits(), Ordering::Relaxed);
        Ok(wide)
    }

    /// Widens one shard.
    pub(crate) fn widen_shard(&self, number: u32, wide: &TableGeometry) {
        let shard = &self.shards[number as usize];
        if shard.check_bits() > wide.check_bits() {
            shard.widen(wide.check_bits());
        }
    }

    /// Ends widening: all shards have room.
    pub(crate) fn widened(&self, wide: &TableGeometry) {
        self.address_bits.fetch_max(wide.address_bits(), Ordering::SeqCst);
    }

    #[inline]
    fn locate(&self, address: Address) -> (Locked<'_>, LocalKey) {
        let placed = self.geometry.place(address.0);
        let shard = self.shards[placed.shard as usize].lock();
        // Without this, the block would count as absent, and the outdated data of the origin would
        // be served.
        let loaded = shard.is_loaded() || planted::has(PlantedBug::NotLoadedIsAbsent);
        assert!(loaded, "shard {} of the index is not loaded", placed.shard);
        (shard, placed.key)
    }

    /// Returns the number of the shard that an address belongs to.
    pub(crate) fn shard_of(&self, address: Address) -> u32 {
        self.geometry.place(address.0).shard
    }

    /// Prefetches the entry of a block that will be looked up soon and is probably cached; with
    /// `to_change`, for a change.
    #[inline]
    pub fn expect(&self, address: Address, to_change: bool) {
        let placed = self.geometry.place(address.0);
        if let Some(shard) = self.shards.get(placed.shard as usize) {
            shard.expect(&self.geometry, placed.key, to_change);
        }
    }

    /// Looks up a block that is valid as a whole, without writing anything that other lanes read.
    /// `seen` runs with a candidate for its entry, and returns whether to continue.
    #[inline]
    fn find_unlocked(&self, address: Address, seen: impl FnOnce(&Entry) -> bool) -> Unlocked {
        let placed = self.geometry.place(address.0);
        match self.shards.get(placed.shard as usize) {
            Some(shard) => shard.find_unlocked(&self.geometry, placed.key, seen),
            None => Unlocked::Undecided,
        }
    }

    /// Looks up a block for a decision that remains valid if the block changes.
    #[inline]
    pub fn peek(&self, address: Address) -> Option<Found> {
        match self.find_unlocked(address, |_| true) {
            Unlocked::Found(entry) => Some(Found { entry, mask: None }),
            Unlocked::Absent => None,
            Unlocked::Undecided => self.look_up(address, |_| None),
        }
    }

    /// Looks up a block that is valid as a whole. If it is found, its segment is published in a
    /// hazard slot, which the caller ends.
    #[inline]
    pub(crate) fn look_up_in_hazard(
        &self,
        address: Address,
        hazards: &HazardSlots,
        hazard: HazardId,
        segment_of: impl FnOnce(Slot) -> SegmentId,
    ) -> Unlocked {
        let mut begun = false;
        let found = self.find_unlocked(address, |entry| {
            begun = hazards.begin(Some(hazard), segment_of(entry.slot));
            begun
        });
        if begun && !matches!(found, Unlocked::Found(_)) {
            hazards.end(hazard);
        }
        found
    }

    /// Looks a block up. `seen` runs under the shard's lock with the entry found; it may pin the
    /// segment, and returns the entry's new rank if it is to change.
    #[inline]
    pub fn look_up(
        &self,
        address: Address,
        seen: impl FnOnce(&Entry) -> Option<u8>,
    ) -> Option<Found> {
        let (mut shard, key) = self.locate(address);
        let (place, entry) = shard.table().get(key)?;
        if let Some(rank) = seen(&entry) {
            shard.table_mut().set_rank(place, rank);
        }
        let mask = if entry.partial { shard.masks.get(address.0).cloned() } else { None };
        Some(Found { entry, mask })
    }

    /// Begins a fill of an absent block: from now on, every change of the block overtakes it.
    pub fn begin_fill(&self, address: Address) -> FillTicket<'_> {
        let number = self.fill_numbers.fetch_add(1, Ordering::Relaxed);
        let (mut shard, key) = self.locate(address);
        self.regions.occupy(address);
        shard.fills.push(Filling { key, number });
        FillTicket { index: self, address, number }
    }

    /// Makes `version` the newest version of the block if `condition` holds.
    #[inline]
    pub fn put(&self, address: Address, version: NewVersion, condition: Condition<'_>) -> Put {
        self.put_counted(address, version, condition, |_| ())
    }

    /// Like [`Index::put`]. `count` is called with the version that is replaced before anything can
    /// change the new one. It must be quick and must not use the index.
    #[inline]
    pub fn put_counted(
        &self,
        address: Address,
        mut version: NewVersion,
        condition: Condition<'_>,
        count: impl FnOnce(Option<&Entry>),
    ) -> Put {
        let (mut shard, key) = self.locate(address);
        match condition {
            Condition::Always => (),
            Condition::Fill(ticket) => {
                let current = shard.fills.iter().any(|fill| fill.number == ticket.number);
                if !current || shard.table().get(key).is_some() {
                    return Put::Refused;
                }
            }
            Condition::Slot(slot) => {
                if shard.table().get(key).is_none_or(|(_, entry)| entry.slot != slot) {
                    return Put::Refused;
                }
            }
            Condition::Copy(slot) => match shard.table().get(key) {
                Some((_, entry)) if entry.slot == slot => version.entry.dirty &= entry.dirty,
                _ => return Put::Refused,
            },
            Condition::Absent => {
                if shard.table().get(key).is_some() {
                    return Put::Refused;
                }
            }
        }
        let absent = matches!(condition, Condition::Fill(_) | Condition::Absent);
        if absent && version.mask.is_some() && !shard.masks.has_room() {
            return Put::NoMask;
        }
        let Ok(old) = shard.table_mut().insert(key, version.entry) else { return Put::Full };
        if old.is_none() {
            self.regions.occupy(address);
        }
        shard.overtake_fills(key);
        shard.set_mask(address, version.mask, old.as_ref());
        shard.sequence += 1;
        count(old.as_ref());
        Put::Done { sequence: shard.sequence, old }
    }

    /// Returns whether there is memory for the mask of one more block at this moment.
    pub fn has_room_for_mask(&self, address: Address) -> bool {
        self.locate(address).0.masks.has_room()
    }

    /// Changes the entry in place if `change` returns a new one; fills are not overtaken. Returns
    /// the old entry if the block is cached.
    pub fn update(
        &self,
        address: Address,
        change: impl FnOnce(&Entry) -> Option<Entry>,
    ) -> Option<Entry> {
        let (mut shard, key) = self.locate(address);
        let (place, entry) = shard.table().get(key)?;
        if let Some(new) = change(&entry) {
            shard.table_mut().set(place, new);
        }
        Some(entry)
    }

    /// Removes a block if `when` agrees. Fills of it are overtaken whether or not it was cached.
    pub fn remove(&self, address: Address, when: impl FnOnce(&Entry) -> bool) -> Option<Entry> {
        let (mut shard, key) = self.locate(address);
        shard.overtake_fills(key);
        let (_, entry) = shard.table().get(key)?;
        if !when(&entry) {
            return None;
        }
        shard.table_mut().remove(key);
        shard.set_mask(address, None, Some(&entry));
        Some(entry)
    }

    /// Overtakes the fills of all blocks of a shard that are `gone`.
    pub(crate) fn overtake_fills_in(&self, number: u32, gone: impl Fn(Address) -> bool) {
        let mut shard = self.shards[number as usize].lock();
        if !shard.fills.is_empty() {
            let address = |key| Address(self.geometry.address(number, key));
            shard.fills.retain(|fill| !gone(address(fill.key)));
        }
    }

    /// Returns how far the range, from its beginning, is vacant: no block cached, no fill in
    /// flight. Finds whole regions only; blocks behind the returned address must be looked up.
    pub(crate) fn vacant_to(&self, range: Range<u64>) -> u64 {
        self.regions.vacant_to(range)
    }

    /// Begins to look up, or remove, each block at the beginning of a range, up to the address that
    /// is returned.
    pub(crate) fn walk(&self, range: Range<u64>) -> (u64, Walk<'_>) {
        self.regions.walk(range, || self.room())
    }

    /// Makes every sequence assigned from now on higher than `sequence`.
    pub fn raise_sequence(&self, sequence: u64) {
        for shard in &self.shards {
            let mut shard = shard.lock();
            shard.sequence = shard.sequence.max(sequence);
        }
    }

    /// Returns the highest sequence assigned so far.
    pub fn highest_sequence(&self) -> u64 {
        self.shards.iter().map(|shard| shard.lock().sequence).max().unwrap_or(0)
    }

    /// Number of shards.
    pub fn shard_count(&self) -> u32 {
        self.shards.len() as u32
    }

    /// Visits every entry, each shard at one instant: see [`Index::scan_shard`].
    pub fn scan(&self, mut visit: impl FnMut(Address, &Entry)) {
        for shard in 0..self.shard_count() {
            self.scan_shard(shard, &mut visit);
        }
    }

    /// Visits every entry of a shard exactly once, as of one instant. The shard stays locked
    /// meanwhile: insertions move other entries, so a scan that released the lock could miss
    /// entries that are present all the time. `visit` must be quick and must not use the index.
    pub fn scan_shard(&self, number: u32, visit: &mut impl FnMut(Address, &Entry)) {
        let shard = self.shards[number as usize].lock();
        if !shard.is_loaded() {
            // The shard has no entries before it is loaded, and its memory is not touched.
            return;
        }
        shard.table().for_each_in(0..shard.table().buckets(), |key, entry| {
            visit(Address(self.geometry.address(number, key)), &entry);
        });
    }

    /// Like [`Index::scan`], but only for entries that are `wanted`. Testing an entry is cheaper
    /// than computing its address.
    #[inline]
    pub fn visit(
        &self,
        mut wanted: impl FnMut(&Entry) -> bool,
        mut visit: impl FnMut(Address, &Entry),
    ) {
        for number in 0..self.shard_count() {
            self.visit_shard(number, &mut wanted, &mut visit);
        }
    }

    /// Like [`Index::scan_shard`], but only for entries that are `wanted`.
    #[inline]
    pub fn visit_shard(
        &self,
        number: u32,
        wanted: &mut impl FnMut(&Entry) -> bool,
        visit: &mut impl FnMut(Address, &Entry),
    ) {
        let shard = self.shards[number as usize].lock();
        let all = if shard.is_loaded() { 0..shard.table().buckets() } else { 0..0 };
        shard.table().for_each_where(all, wanted, |key, entry| {
            visit(Address(self.geometry.address(number, key)), &entry);
        });
    }

    /// Copies one shard as of one instant: its entries, and the masks of the partial ones.
    pub fn snapshot_shard(
        &self,
        number: u32,
        entries: &mut Vec<(Address, Entry)>,
        masks: &mut Vec<(Address, SectorMask)>,
    ) {
        let shard = self.shards[number as usize].lock();
        entries.reserve(shard.table().len());
        shard.table().for_each_in(0..shard.table().buckets(), |key, entry| {
            let address = Address(self.geometry.address(number, key));
            // An entry without its mask is not marked partial in the copy either.
            let mask = if entry.partial { shard.masks.get(address.0) } else { None };
            entries.push((address, Entry { partial: mask.is_some(), ..entry }));
            masks.extend(mask.map(|mask| (address, mask.clone())));
        });
    }

    /// Returns the number of cached blocks.
    pub fn len(&self) -> u64 {
        self.shards.iter().map(|shard| shard.lock().table().len() as u64).sum()
    }

    /// Returns whether nothing is cached.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the bytes of memory of the index, including the masks of partial blocks.
    pub fn bytes(&self) -> u64 {
        let shards: u64 = self
            .shards
            .iter()
            .map(|shard| {
                let shard = shard.lock();
                shard.table().bytes() + shard.masks.bytes()
            })
            .sum();
        let regions = regions::bytes_for(&self.geometry);
        shards + (self.shards.len() * size_of::<Shard>()) as u64 + regions
    }
}

#[cfg(test)]
#[expect(
    clippy::disallowed_methods,
    reason = "scans and look-ups meet insertions of other threads"
)]
mod tests;
