//! One shard: a table and what belongs to it behind a lock, and a version by which whole blocks are found without the lock.
//!
//! The version is a sequence lock: odd while the table changes, and after each change another even number. A look-up without the
//! lock reads the version, the words, and the version again, and counts only if both are the same even number. So a hit writes
//! nothing that another lane's hits read. Who finds an odd or another number takes the lock.

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
    /// In the line of the lock, and so is where the buckets are: see [`Shard::expect`].
    version: AtomicU64,
    /// Bits of check in the words; changes as they do.
    check_bits: AtomicU32,
    buckets: Buckets,
    content: Mutex<Content>,
}

/// What the lock protects.
pub(super) struct Content {
    /// Changed by [`Locked::table_mut`] only.
    table: Table,
    /// The last sequence assigned in this shard.
    pub(super) sequence: u64,
    /// Fills in flight that have not been overtaken.
    pub(super) fills: Vec<Filling>,
    pub(super) masks: Masks,
    /// Whether its entries were loaded; before, nothing may be looked up or changed in it, and the version is odd.
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

    /// Makes room in its words for larger keys: see [`Table::widen`].
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

    /// Finds the entry of a block that is valid as a whole, without the lock. `seen` is called with what may be the entry, and says
    /// whether to go on. If it ends with a sequentially consistent exchange and this returns an entry, then whoever changes the table
    /// afterwards sees the exchange behind a sequentially consistent fence. `None`: there may be an entry nevertheless.
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
        // Sequentially consistent, as is the exchange in `seen`: whoever frees a segment has a fence between the change of the table
        // and the look at what was exchanged, so one of the two sees the other (invariant 8).
        (self.version.load(Ordering::SeqCst) == before).then_some(entry)
    }

    /// A hint: the key will be looked up soon, and the shard perhaps changed.
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

    /// Returns the table for a change. Look-ups without the lock that see any of it find nothing until what is returned is dropped.
    #[inline]
    pub(super) fn table_mut(&mut self) -> Changing<'_> {
        let before = self.version.load(Ordering::Relaxed);
        self.version.store(before | 1, Ordering::Relaxed);
        // Whoever sees a word that is changed from here on sees the odd version too.
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
        // The version says so from now on.
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
        // Release: whoever sees this version sees all changes.
        self.version.store(self.after, Ordering::Release);
    }
}
