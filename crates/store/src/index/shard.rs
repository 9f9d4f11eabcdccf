//! One shard of the index: a table with its masks and fills behind a lock, and a sequence lock that
//! lets hits on whole blocks read the table without that lock.
//!
//! The version of the sequence lock is odd while the table changes, and a higher even number after
//! each change. A look-up reads the version, the table, and the version again. If both versions are
//! the same even number, the result is consistent; otherwise the reader takes the lock. So a hit
//! writes to no cache line that the hits of other lanes read.

use std::ops::{Deref, DerefMut};

use forebay_core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use forebay_core::sync::{Mutex, MutexGuard};
use forebay_device::hint::{Spot, fetch, fetch_to_write};

use super::Filling;
use super::masks::Masks;
use crate::table::{Buckets, Entry, LocalKey, Table, TableGeometry};

/// A shard on its own cache lines.
#[repr(C, align(128))]
pub(super) struct Shard {
    /// Version of the sequence lock. It shares a cache line with `buckets` and the lock, which
    /// [`Shard::expect`] prefetches.
    version: AtomicU64,
    /// Number of check bits in each word of the table; changes together with the words.
    check_bits: AtomicU32,
    buckets: Buckets,
    content: Mutex<ShardData>,
}

/// The data that the lock protects.
pub(super) struct ShardData {
    /// Changed by [`Locked::table_mut`] only.
    table: Table,
    /// The last sequence assigned in this shard.
    pub(super) sequence: u64,
    /// Fills in flight whose block has not changed since they began.
    pub(super) fills: Vec<Filling>,
    pub(super) masks: Masks,
    /// Whether the shard's entries are loaded. Until then no entry may be looked up or changed, and
    /// the version stays odd, so that readers take the lock.
    loaded: bool,
}

impl Shard {
    /// Creates an empty shard, which counts as loaded.
    pub(super) fn new(geometry: &TableGeometry, masks: Masks) -> Self {
        let table = Table::new(geometry);
        let buckets = table.shared();
        let content = ShardData { table, sequence: 0, fills: Vec::new(), masks, loaded: true };
        let check_bits = AtomicU32::new(geometry.check_bits());
        Shard { version: AtomicU64::new(0), check_bits, buckets, content: Mutex::new(content) }
    }

    /// Makes room for larger keys in the words of the table, see [`Table::widen`].
    pub(super) fn widen(&self, check_bits: u32) {
        let mut shard = self.lock();
        let mut table = shard.table_mut();
        table.widen(check_bits);
        // Relaxed: the version is odd until the table is dropped.
        self.check_bits.store(check_bits, Ordering::Relaxed);
    }

    /// Returns the bits of check in its words.
    pub(super) fn check_bits(&self) -> u32 {
        self.check_bits.load(Ordering::Relaxed)
    }

    #[inline]
    pub(super) fn lock(&self) -> Locked<'_> {
        Locked { version: &self.version, content: self.content.lock() }
    }

    /// Looks up a block without the lock; returns its entry only if the whole block is valid.
    /// `seen` gets the candidate before it is verified, and returns whether to continue.
    ///
    /// `seen` publishes a hazard with a sequentially consistent exchange. If an entry is returned,
    /// any thread that changes the table afterwards and then executes a sequentially consistent
    /// fence sees that hazard.
    #[inline]
    pub(super) fn find_unlocked(
        &self,
        geometry: &TableGeometry,
        key: LocalKey,
        seen: impl FnOnce(&Entry) -> bool,
    ) -> Unlocked {
        // Acquire: the words that are read next are at least as new as this version.
        let before = self.version.load(Ordering::Acquire);
        if before % 2 == 1 {
            return Unlocked::Undecided;
        }
        let check_bits = self.check_bits.load(Ordering::Relaxed);
        let found = match geometry.find(&self.buckets, check_bits, key) {
            None => Unlocked::Absent,
            Some(entry) if !entry.partial && seen(&entry) => Unlocked::Found(entry),
            Some(_) => return Unlocked::Undecided,
        };
        // Acquire fence: all words are read before the version is read again.
        fence(Ordering::Acquire);
        // Invariant 8: a segment is not reused while it is read. A thread that frees a segment
        // changes the table, executes a fence, and then reads the hazards. This thread publishes
        // its hazard in `seen`, and then reads the version. Sequential consistency excludes that
        // both miss the other's write: that thread sees the hazard, or this one the changed
        // version.
        let unchanged = self.version.load(Ordering::SeqCst) == before;
        if unchanged { found } else { Unlocked::Undecided }
    }

    /// Prefetches the shard and the key's bucket for a look-up, or, if `to_change`, for a change.
    #[inline]
    pub(super) fn expect(&self, geometry: &TableGeometry, key: LocalKey, to_change: bool) {
        match to_change {
            true => fetch_to_write(Spot::of(self)),
            false => fetch(Spot::of(self), 1),
        }
        fetch(self.buckets.spot().plus(geometry.bucket_offset(key)), 1);
    }
}

/// The result of a look-up without the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unlocked {
    /// The entry of a block that is valid as a whole.
    Found(Entry),
    /// The block was not cached at one moment during the look-up.
    Absent,
    /// The outcome requires a look-up with the lock: the shard is changing or not loaded, the block
    /// is partly cached, or `seen` did not continue.
    Undecided,
}

/// A shard whose lock is held.
pub(super) struct Locked<'a> {
    version: &'a AtomicU64,
    content: MutexGuard<'a, ShardData>,
}

impl Locked<'_> {
    pub(super) fn table(&self) -> &Table {
        &self.content.table
    }

    /// Returns the table for a change. Until the returned guard is dropped, look-ups without the
    /// lock find nothing.
    #[inline]
    pub(super) fn table_mut(&mut self) -> Changing<'_> {
        let before = self.version.load(Ordering::Relaxed);
        self.version.store(before | 1, Ordering::Relaxed);
        // Release fence: a reader that sees a word of this change also sees the odd version.
        fence(Ordering::Release);
        let after = if self.content.loaded { (before | 1) + 1 } else { before | 1 };
        Changing { version: self.version, after, table: &mut self.content.table }
    }

    pub(super) fn is_loaded(&self) -> bool {
        self.content.loaded
    }

    /// Sets whether the entries are loaded.
    pub(super) fn set_loaded(&mut self, loaded: bool) {
        self.content.loaded = loaded;
        // An empty change: dropping the guard makes the version even or odd, as `loaded` requires.
        drop(self.table_mut());
    }
}

impl Deref for Locked<'_> {
    type Target = ShardData;

    #[inline]
    fn deref(&self) -> &ShardData {
        &self.content
    }
}

impl DerefMut for Locked<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut ShardData {
        &mut self.content
    }
}

/// Guard of a change of the table: the version is odd until it is dropped.
pub(super) struct Changing<'a> {
    version: &'a AtomicU64,
    after: u64,
    table: &'a mut Table,
}

impl Deref for Changing<'_> {
    type Target = Table;

    #[inline]
    fn deref(&self) -> &Table {
        self.table
    }
}

impl DerefMut for Changing<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Table {
        self.table
    }
}

impl Drop for Changing<'_> {
    #[inline]
    fn drop(&mut self) {
        // Release: a reader that sees this version sees the whole change.
        self.version.store(self.after, Ordering::Release);
    }
}
