//! The index: origin address -> slot and state of the newest version.
//!
//! Sharded; a shard's lock is held for one look-up or one update, never across an I/O or a copy of
//! a payload. All decisions about one block that must be atomic are made under that lock: which
//! version is the newest, the order of versions (the sequence), and whether a fill in flight was
//! overtaken by a write.

use std::sync::Arc;

use forebay_core::sync::atomic::{AtomicU64, Ordering};
use forebay_core::sync::{Mutex, MutexGuard};
use forebay_core::{BlockSize, SectorMask, Slot};
use forebay_device::hint::{Spot, fetch, fetch_to_write};
use forebay_lane::{MemoryBudget, OverLimit};

use crate::error::StoreError;
use crate::planted::{self, PlantedBug};
use crate::table::{Entry, Geometry, LocalKey, Table};
use masks::Masks;

mod masks;
mod restore;

pub(crate) use restore::ShardContent;

/// A block of any volume as one number: the volume's base plus the block number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address(pub u64);

/// Identifies a fill between [`Index::begin_fill`] and its end.
#[derive(Debug)]
#[must_use = "a fill that is begun must be ended"]
pub struct FillTicket {
    address: Address,
    number: u64,
}

/// When a new version may replace the current one.
#[derive(Debug)]
pub enum Condition<'a> {
    /// Always: a client wrote the whole block.
    Always,
    /// Only if the block is still absent and has not been changed since the fill began.
    Fill(&'a FillTicket),
    /// Only if the newest version is still at this slot: the new one was merged from it.
    Slot(Slot),
    /// As [`Condition::Slot`], for a copy of that version, which is clean if that has become clean.
    Copy(Slot),
    /// Only if the block is absent: the new version has only some sectors valid.
    Absent,
}

/// A new version of a block.
#[derive(Debug)]
pub struct NewVersion {
    /// Its slot and state.
    pub entry: Entry,
    /// Its valid sectors; `None`: all of them.
    pub mask: Option<SectorMask>,
}

/// The result of [`Index::put`].
#[derive(Debug)]
pub enum Put {
    /// The new version is in the index.
    Done {
        /// Its sequence, which orders versions of one block.
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
    /// There is no memory for so many masks.
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
    /// The valid sectors; `None`: all of them.
    pub mask: Option<SectorMask>,
}

struct Filling {
    key: LocalKey,
    number: u64,
}

/// The part of the index that one lock protects.
pub struct Shard {
    table: Table,
    /// The last sequence assigned in this shard.
    sequence: u64,
    /// Fills in flight that have not been overtaken.
    fills: Vec<Filling>,
    masks: Masks,
    /// Whether its entries were loaded; before, nothing may be looked up or changed in it.
    loaded: bool,
}

impl Shard {
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

/// One shard on its own cache lines.
#[repr(C, align(128))]
struct Padded {
    /// First, so that the lock comes first: see [`Index::expect`].
    shard: Mutex<Shard>,
    /// Address of the shard's buckets, for hints that take no lock. The buckets never move.
    buckets: Spot,
}

/// The index of one cache.
pub struct Index {
    geometry: Geometry,
    shards: Box<[Padded]>,
    fill_numbers: AtomicU64,
}

impl Index {
    /// Makes an empty index without a limit on masks.
    pub fn new(geometry: Geometry, shards: u32) -> Self {
        Self::within(geometry, shards, BlockSize::DEFAULT, &Arc::default())
    }

    /// Makes an empty index. Memory for masks of blocks of this size is taken from `memory`.
    pub fn within(
        geometry: Geometry,
        shards: u32,
        block: BlockSize,
        memory: &Arc<MemoryBudget>,
    ) -> Self {
        let masks = || Masks::new(memory, block.sectors(), shards);
        let shards = (0..shards)
            .map(|_| {
                let table = Table::new(&geometry);
                let buckets = table.spot();
                let (fills, masks) = (Vec::new(), masks());
                let shard = Shard { table, sequence: 0, fills, masks, loaded: true };
                Padded { shard: Mutex::new(shard), buckets }
            })
            .collect();
        Index { geometry, shards, fill_numbers: AtomicU64::new(0) }
    }

    /// Returns the shape of the table.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    #[inline]
    fn locate(&self, address: Address) -> (MutexGuard<'_, Shard>, LocalKey) {
        let placed = self.geometry.place(address.0);
        let shard = self.shards[placed.shard as usize].shard.lock();
        // A block in it would seem to be absent, and the origin's outdated data would be served.
        let loaded = shard.loaded || planted::has(PlantedBug::NotLoadedIsAbsent);
        assert!(loaded, "shard {} of the index is not loaded", placed.shard);
        (shard, placed.key)
    }

    /// Returns the number of the shard that an address belongs to.
    pub(crate) fn shard_of(&self, address: Address) -> u32 {
        self.geometry.place(address.0).shard
    }

    /// A hint: the block will be looked up soon, and is probably cached.
    #[inline]
    pub fn expect(&self, address: Address) {
        let placed = self.geometry.place(address.0);
        let Some(shard) = self.shards.get(placed.shard as usize) else { return };
        let [first, _] = self.geometry.bucket_offsets(placed.key);
        fetch_to_write(Spot::of(shard));
        fetch(shard.buckets.plus(first), 1);
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
        let (place, entry) = shard.table.get(key)?;
        if let Some(rank) = seen(&entry) {
            shard.table.set_rank(place, rank);
        }
        let mask = if entry.partial { shard.masks.get(address.0).cloned() } else { None };
        Some(Found { entry, mask })
    }

    /// Begins a fill of an absent block: from now on, every change of the block overtakes it.
    pub fn begin_fill(&self, address: Address) -> FillTicket {
        let number = self.fill_numbers.fetch_add(1, Ordering::Relaxed);
        let (mut shard, key) = self.locate(address);
        shard.fills.push(Filling { key, number });
        FillTicket { address, number }
    }

    /// Ends a fill, inserted or not.
    pub fn end_fill(&self, ticket: FillTicket) {
        let (mut shard, key) = self.locate(ticket.address);
        shard.fills.retain(|fill| fill.key != key || fill.number != ticket.number);
    }

    /// Makes `version` the newest version of the block if `condition` holds.
    #[inline]
    pub fn put(&self, address: Address, mut version: NewVersion, condition: Condition<'_>) -> Put {
        let (mut shard, key) = self.locate(address);
        match condition {
            Condition::Always => (),
            Condition::Fill(ticket) => {
                let current = shard.fills.iter().any(|fill| fill.number == ticket.number);
                if !current || shard.table.get(key).is_some() {
                    return Put::Refused;
                }
            }
            Condition::Slot(slot) => {
                if shard.table.get(key).is_none_or(|(_, entry)| entry.slot != slot) {
                    return Put::Refused;
                }
            }
            Condition::Copy(slot) => match shard.table.get(key) {
                Some((_, entry)) if entry.slot == slot => version.entry.dirty &= entry.dirty,
                _ => return Put::Refused,
            },
            Condition::Absent => {
                if shard.table.get(key).is_some() {
                    return Put::Refused;
                }
            }
        }
        let absent = matches!(condition, Condition::Fill(_) | Condition::Absent);
        if absent && version.mask.is_some() && !shard.masks.has_room() {
            return Put::NoMask;
        }
        let Ok(old) = shard.table.insert(key, version.entry) else { return Put::Full };
        shard.overtake_fills(key);
        shard.set_mask(address, version.mask, old.as_ref());
        shard.sequence += 1;
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
        let (place, entry) = shard.table.get(key)?;
        if let Some(new) = change(&entry) {
            shard.table.set(place, new);
        }
        Some(entry)
    }

    /// Removes a block if `when` agrees. Fills of it are overtaken whether or not it was cached.
    pub fn remove(&self, address: Address, when: impl FnOnce(&Entry) -> bool) -> Option<Entry> {
        let (mut shard, key) = self.locate(address);
        shard.overtake_fills(key);
        let (_, entry) = shard.table.get(key)?;
        if !when(&entry) {
            return None;
        }
        shard.table.remove(key);
        shard.set_mask(address, None, Some(&entry));
        Some(entry)
    }

    /// Makes every sequence assigned from now on higher than `sequence`.
    pub fn raise_sequence(&self, sequence: u64) {
        for shard in &self.shards {
            let mut shard = shard.shard.lock();
            shard.sequence = shard.sequence.max(sequence);
        }
    }

    /// Returns the highest sequence assigned so far.
    pub fn highest_sequence(&self) -> u64 {
        self.shards.iter().map(|shard| shard.shard.lock().sequence).max().unwrap_or(0)
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
        let shard = self.shards[number as usize].shard.lock();
        if !shard.loaded {
            // Nothing is in it, and its memory is not touched before it is loaded.
            return;
        }
        shard.table.for_each_in(0..shard.table.buckets(), |key, entry| {
            visit(Address(self.geometry.address(number, key)), &entry);
        });
    }

    /// As [`Index::scan`], but only for entries that are `wanted`. Testing an entry is cheaper than
    /// computing its address.
    #[inline]
    pub fn visit(
        &self,
        mut wanted: impl FnMut(&Entry) -> bool,
        mut visit: impl FnMut(Address, &Entry),
    ) {
        for number in 0..self.shard_count() {
            let shard = self.shards[number as usize].shard.lock();
            let all = if shard.loaded { 0..shard.table.buckets() } else { 0..0 };
            shard.table.for_each_where(all, &mut wanted, |key, entry| {
                visit(Address(self.geometry.address(number, key)), &entry);
            });
        }
    }

    /// Copies one shard as of one instant: its entries, and the masks of the partial ones.
    pub fn snapshot_shard(
        &self,
        number: u32,
        entries: &mut Vec<(Address, Entry)>,
        masks: &mut Vec<(Address, SectorMask)>,
    ) {
        let shard = self.shards[number as usize].shard.lock();
        entries.reserve(shard.table.len());
        shard.table.for_each_in(0..shard.table.buckets(), |key, entry| {
            let address = Address(self.geometry.address(number, key));
            // An entry without its mask is not marked partial in the copy either.
            let mask = if entry.partial { shard.masks.get(address.0) } else { None };
            entries.push((address, Entry { partial: mask.is_some(), ..entry }));
            masks.extend(mask.map(|mask| (address, mask.clone())));
        });
    }

    /// Returns the number of cached blocks.
    pub fn len(&self) -> u64 {
        self.shards.iter().map(|shard| shard.shard.lock().table.len() as u64).sum()
    }

    /// Whether nothing is cached.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the bytes of memory that the index takes, masks of partial blocks included.
    pub fn bytes(&self) -> u64 {
        let shards: u64 = self
            .shards
            .iter()
            .map(|shard| {
                let shard = shard.shard.lock();
                shard.table.bytes() + shard.masks.bytes()
            })
            .sum();
        shards + (self.shards.len() * size_of::<Padded>()) as u64
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "scans meet insertions of other threads")]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use forebay_lane::MemoryUse;

    use super::*;
    use crate::table::Check;

    #[test]
    fn a_scan_sees_what_stays_once_while_other_threads_move_it() {
        let entries = if cfg!(miri) { 200 } else { 40_000 };
        let index = Index::new(Geometry::new(entries, 1, 24, 20).expect("fits"), 1);
        let put = |address: u64| {
            let entry = Entry {
                slot: Slot(address as u32 & 0xfffff),
                dirty: false,
                partial: false,
                rank: 1,
                check: Check::new(0),
            };
            let version = NewVersion { entry, mask: None };
            matches!(index.put(Address(address), version, Condition::Always), Put::Done { .. })
        };
        // A full table moves entries at nearly every insertion.
        let mut full = 0;
        while put(full) {
            full += 1;
        }
        let stays = full / 2;
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut random = fastrand::Rng::with_seed(1);
                let mut others: Vec<u64> = (stays..full).collect();
                let mut next = full;
                while !done.load(Ordering::Relaxed) {
                    let victim = random.usize(..others.len());
                    assert!(index.remove(Address(others[victim]), |_| true).is_some());
                    while !put(next) {
                        next += 1;
                    }
                    others[victim] = next;
                    next = (next + 1) & 0xff_ffff;
                    next = next.max(full);
                }
            });
            for _ in 0..if cfg!(miri) { 2 } else { 100 } {
                let mut seen = vec![0u32; stays as usize];
                index.scan(|address, _| {
                    if let Some(count) = seen.get_mut(address.0 as usize) {
                        *count += 1;
                    }
                });
                assert!(seen.iter().all(|count| *count == 1), "an entry was missed or seen twice");
            }
            done.store(true, Ordering::Relaxed);
        });
    }

    #[test]
    fn there_are_as_many_masks_as_memory_allows_and_no_more() {
        let memory = Arc::new(MemoryBudget::new(256 << 20));
        // Of the 160 MiB that can be held, masks leave 16 for other uses.
        let hold = |bytes| memory.hold(MemoryUse::Process, bytes, "the rest").expect("it fits");
        let _rest = hold((144 << 20) - (100 << 10));
        let geometry = Geometry::new(10_000, 1, 20, 20).expect("fits");
        let index = Index::within(geometry, 1, BlockSize::DEFAULT, &memory);
        let version = |partial| {
            let (slot, check) = (Slot(5), Check::new(0));
            let entry = Entry { slot, dirty: true, partial, rank: 1, check };
            NewVersion { entry, mask: partial.then(|| SectorMask::of(8, 0..1)) }
        };
        let in_part = |address| {
            matches!(
                index.put(Address(address), version(true), Condition::Absent),
                Put::Done { .. }
            )
        };
        let masks = (0..).take_while(|address| in_part(*address)).count() as u64;
        assert!((500..700).contains(&masks), "{masks}");
        assert!(memory.used(MemoryUse::Index) <= 100 << 10);
        assert!(!index.has_room_for_mask(Address(masks)));
        let ticket = index.begin_fill(Address(masks));
        assert!(matches!(
            index.put(Address(masks), version(true), Condition::Fill(&ticket)),
            Put::NoMask
        ));
        assert!(index.look_up(Address(masks), |_| None).is_none(), "nothing has changed");
        // Whole blocks need no mask, and a block that has one may replace it.
        assert!(matches!(
            index.put(Address(masks), version(false), Condition::Fill(&ticket)),
            Put::Done { .. }
        ));
        index.end_fill(ticket);
        assert!(matches!(
            index.put(Address(0), version(true), Condition::Slot(Slot(5))),
            Put::Done { .. }
        ));
        index.put(Address(0), version(false), Condition::Always);
        assert!(in_part(masks + 1) && !in_part(masks + 2));
        // Restored masks may use the memory that is left for other uses.
        let entry = version(true).entry;
        index.restore(Address(masks + 3), entry).expect("there is room");
        let mask = || SectorMask::of(8, 0..1);
        index.restore_mask(Address(masks + 3), mask()).expect("some is left");
        let _all = hold(15 << 20);
        let refused = (masks + 4..9000).find_map(|address| {
            index.restore(Address(address), entry).expect("there is room");
            index.restore_mask(Address(address), mask()).err()
        });
        assert!(matches!(refused, Some(Unfit::Masks(_))), "{refused:?}");
        for address in 0..9000 {
            index.remove(Address(address), |_| true);
        }
        assert!(memory.used(MemoryUse::Index) < 50 << 10, "it is given back");
    }

    #[test]
    fn a_mask_goes_when_its_block_is_whole_or_gone() {
        let index = Index::new(Geometry::new(100, 1, 20, 20).expect("fits"), 1);
        let put = |address, mask: Option<SectorMask>| {
            let (slot, partial) = (Slot(5), mask.is_some());
            let entry = Entry { slot, dirty: true, partial, rank: 1, check: Check::new(0) };
            index.put(Address(address), NewVersion { entry, mask }, Condition::Always);
        };
        let masks = || {
            let shard = index.shards[0].shard.lock();
            shard.masks.all().clone()
        };
        let mask = |sectors| SectorMask::of(8, 0..sectors);
        (1..4).for_each(|sectors| put(u64::from(sectors), Some(mask(sectors))));
        assert_eq!(masks(), [1, 2, 3].map(|it| (u64::from(it), mask(it))).into());
        put(1, Some(mask(7)));
        put(2, None);
        index.remove(Address(3), |_| true).expect("it is there");
        assert_eq!(masks(), [(1, mask(7))].into());
        put(1, None);
        assert_eq!(masks(), [].into());
    }
}
