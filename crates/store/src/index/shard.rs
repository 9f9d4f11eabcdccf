//! One shard: a table and its masks and fills behind a lock, and a version by which whole blocks
//! are found without the lock.
//!
//! The version is a sequence lock: odd while the table changes, and another even number after each
//! change. A look-up without the lock reads the version, the words, and the version again; the
//! result counts only if both versions are the same even number, otherwise the reader takes the
//! lock. So a hit writes nothing that another lane's hits read.

use std::ops::{Deref, DerefMut};

use forebay_core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use forebay_core::sync::{Mutex, MutexGuard};
use forebay_device::hint::{Spot, fetch, fetch_to_write};

use super::Filling;
use super::masks::Masks;
use crate::table::{Buckets, Entry, Geometry, LocalKey, Table};

/// A shard on its own cache lines.
#[repr(C, align(128))]
pub(super) struct Shard {
    /// Sequence lock. In the cache line of the lock, as are `buckets`: see [`Shard::expect`].
    version: AtomicU64,
    /// Bits of check in the words; changes together with the words.
    check_bits: AtomicU32,
    buckets: Buckets,
    content: Mutex<Content>,
}

/// The data that the lock protects.
pub(super) struct Content {
    /// Changed by [`Locked::table_mut`] only.
    table: Table,
    /// The last sequence assigned in this shard.
    pub(super) sequence: u64,
    /// Fills in flight that have not been overtaken.
    pub(super) fills: Vec<Filling>,
    pub(super) masks: Masks,
    /// Whether the shard's entries were loaded. Until then nothing may be looked up or changed in
    /// it, and the version is odd.
    loaded: bool,
}

impl Shard {
    /// Makes an empty shard, which counts as loaded.
    pub(super) fn new(geometry: &Geometry, masks: Masks) -> Self {
        let table = Table::new(geometry);
        let buckets = table.shared();
        let content = Content { table, sequence: 0, fills: Vec::new(), masks, loaded: true };
        let check_bits = AtomicU32::new(geometry.check_bits());
        Shard { version: AtomicU64::new(0), check_bits, buckets, content: Mutex::new(content) }
    }

    /// Makes room in the shard's words for larger keys: see [`Table::widen`].
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

    /// Finds the entry of a block that is valid as a whole, without the lock. `seen` is called with
    /// a candidate for the entry, and returns whether to continue. If `seen` ends with a
    /// sequentially consistent exchange and this returns an entry, a thread that changes the table
    /// later and then executes a sequentially consistent fence sees the exchange. `None` does not
    /// prove that there is no entry.
    #[inline]
    pub(super) fn find_unlocked(
        &self,
        geometry: &Geometry,
        key: LocalKey,
        seen: impl FnOnce(&Entry) -> bool,
    ) -> Option<Entry> {
        // Acquire: the words are at least as new as the version.
        let before = self.version.load(Ordering::Acquire);
        if before % 2 == 1 {
            return None;
        }
        let check_bits = self.check_bits.load(Ordering::Relaxed);
        let entry = geometry.find(&self.buckets, check_bits, key).filter(|entry| !entry.partial)?;
        if !seen(&entry) {
            return None;
        }
        // The words were read before the version is read again.
        fence(Ordering::Acquire);
        // Sequentially consistent, as is the exchange in `seen`. A thread that frees a segment
        // changes the table, executes a fence, and then reads the exchanged value: either that
        // thread sees the exchange, or this one sees the changed version (invariant 8).
        (self.version.load(Ordering::SeqCst) == before).then_some(entry)
    }

    /// A hint that the key will be looked up soon, and that the shard may be changed.
    #[inline]
    pub(super) fn expect(&self, geometry: &Geometry, key: LocalKey, to_change: bool) {
        match to_change {
            true => fetch_to_write(Spot::of(self)),
            false => fetch(Spot::of(self), 1),
        }
        fetch(self.buckets.spot().plus(geometry.bucket_offset(key)), 1);
    }
}

/// A shard whose lock is held.
pub(super) struct Locked<'a> {
    version: &'a AtomicU64,
    content: MutexGuard<'a, Content>,
}

impl Locked<'_> {
    pub(super) fn table(&self) -> &Table {
        &self.content.table
    }

    /// Returns the table for a change. Look-ups without the lock that see any part of the change
    /// find nothing until the returned guard is dropped.
    #[inline]
    pub(super) fn table_mut(&mut self) -> Changing<'_> {
        let before = self.version.load(Ordering::Relaxed);
        self.version.store(before | 1, Ordering::Relaxed);
        // A reader that sees a word changed from here on also sees the odd version.
        fence(Ordering::Release);
        let after = if self.content.loaded { (before | 1) + 1 } else { before | 1 };
        Changing { version: self.version, after, table: &mut self.content.table }
    }

    pub(super) fn is_loaded(&self) -> bool {
        self.content.loaded
    }

    /// Declares that the entries are loaded, or that they are not.
    pub(super) fn set_loaded(&mut self, loaded: bool) {
        self.content.loaded = loaded;
        // Dropping the guard publishes the change through the version.
        drop(self.table_mut());
    }
}

impl Deref for Locked<'_> {
    type Target = Content;

    #[inline]
    fn deref(&self) -> &Content {
        &self.content
    }
}

impl DerefMut for Locked<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Content {
        &mut self.content
    }
}

/// The table of a shard while it changes.
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
        // Release: a reader that sees this version sees all changes.
        self.version.store(self.after, Ordering::Release);
    }
}
