//! The compact exact map from block address to cache entry: one table per index shard.
//!
//! A table is an array of buckets of eight words, one CPU cache line each. A key has two buckets
//! and is in one of them, so a lookup reads one line or two. This stays possible up to 99 % load,
//! as an insertion may move other entries to their other bucket to make room.
//!
//! Addresses are not stored whole. An address is mixed by a `permutation` and divided by the
//! number of shards, then by the number of buckets. The first rest is the shard, the second the
//! key's first bucket; only the quotient, the *remainder*, is stored in the word. The second bucket
//! is a hash of the remainder minus the first bucket, modulo the number of buckets, and the same
//! formula leads from the second to the first; a bit in the word says which of the two it is in.
//! Position and word together determine the address, so there are no false matches.
//!
//! Entries that fit into neither bucket go to a short overflow list. With the sizes of a
//! [`TableGeometry`] it is nearly always empty, and it is drained as soon as there is room.

mod buckets;
mod entry;
mod geometry;
mod permutation;
mod room;
mod scan;
#[cfg(test)]
mod tests;

use std::mem::size_of;

pub use entry::{Check, Entry, RANK_MAX, RANK_UNKNOWN};
pub use geometry::{
    CHECK_BITS_MAX, CHECK_BITS_MIN, GeometryError, LocalKey, Placed, TableGeometry,
};

pub(crate) use buckets::Buckets;
use buckets::{At, BUCKET_BYTES, LANES, unused};
use entry::Layout;
use permutation::Divisor;

/// Limit of the entries in a table's overflow list; every miss searches them.
const OVERFLOW_MAX: usize = 32;

/// Returns the lowest lane in a bit set.
#[inline]
fn first_lane(lanes: u32) -> Option<usize> {
    (lanes != 0).then_some(lanes.trailing_zeros() as usize)
}

/// An entry that found no room in either of its buckets.
#[derive(Clone, Copy, Debug)]
struct Overflow {
    key: LocalKey,
    /// The word as in the first bucket.
    word: u64,
}

/// Position of an entry; valid until the table is changed by an insertion or a removal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place(
    /// Index of the word; indices after the last bucket are in the overflow list.
    u32,
);

/// There is no room for a new key. Nothing was changed; the caller may remove an entry and try
/// again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the index shard is full; blocks have to be evicted from it first")]
pub struct Full;

/// One shard of the index.
#[derive(Debug)]
pub struct Table {
    buckets: Buckets,
    /// Divides a key into remainder and first bucket.
    divisor: Divisor,
    layout: Layout,
    overflow: Vec<Overflow>,
    len: usize,
}

impl Table {
    /// Creates an empty table with one shard's part of `geometry`.
    pub fn new(geometry: &TableGeometry) -> Self {
        let divisor = geometry.buckets();
        Table {
            buckets: Buckets::unused(divisor.get() as usize),
            divisor,
            layout: geometry.layout(),
            overflow: Vec::new(),
            len: 0,
        }
    }

    /// Returns the buckets, for [`TableGeometry::find`].
    pub(crate) fn shared(&self) -> Buckets {
        self.buckets.clone()
    }

    /// Returns the number of entries.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the number of buckets, for [`Table::for_each_in`].
    pub fn buckets(&self) -> usize {
        self.buckets.len()
    }

    /// Returns the number of entries in the overflow list.
    pub fn overflowing(&self) -> usize {
        self.overflow.len()
    }

    /// Returns the bytes on the heap.
    pub fn bytes(&self) -> u64 {
        let overflow = self.overflow.capacity() * size_of::<Overflow>();
        self.buckets.len() as u64 * BUCKET_BYTES + overflow as u64
    }

    /// Widens the table for larger keys: shortens checks to `check_bits`, and gives the bits to
    /// remainders. No entry moves. `check_bits` is at least 16 and at most the table's present
    /// number.
    pub fn widen(&mut self, check_bits: u32) {
        let old = self.layout;
        if self.len > 0 {
            self.buckets.change_all(|word| old.widened(word, check_bits));
        }
        for overflow in &mut self.overflow {
            overflow.word = old.widened(overflow.word, check_bits);
        }
        self.layout = Layout::new(check_bits, old.slot_bits());
    }

    /// Finds the entry of `key`.
    #[inline]
    pub fn get(&self, key: LocalKey) -> Option<(Place, Entry)> {
        let (remainder, first) = self.divide(key);
        let place = self.find(key, remainder, first)?;
        Some((place, self.layout.entry(self.word(place)?)))
    }

    /// Stores `entry` at `key` and returns the previous entry.
    ///
    /// # Errors
    /// The key is new and there is no room.
    ///
    /// # Panics
    /// Key or slot are wider than the table permits.
    #[inline]
    pub fn insert(&mut self, key: LocalKey, entry: Entry) -> Result<Option<Entry>, Full> {
        let (remainder, first) = self.divide(key);
        if let Some(place) = self.find(key, remainder, first) {
            let old = self.word(place).map(|word| self.layout.entry(word));
            self.set(place, entry);
            return Ok(old);
        }
        let word = self.layout.with_entry(self.layout.tag(remainder), &entry);
        let second = self.other_bucket(remainder, first);
        match self.unused_in(first, second).or_else(|| self.make_room(first, second)) {
            Some(at) => self.buckets.put(at, self.at_bucket(word, at.bucket, first)),
            None if self.overflow.len() < OVERFLOW_MAX => {
                self.overflow.reserve_exact(OVERFLOW_MAX - self.overflow.len());
                self.overflow.push(Overflow { key, word });
            }
            None => return Err(Full),
        }
        self.len += 1;
        Ok(None)
    }

    /// Removes the entry of `key` and returns it.
    pub fn remove(&mut self, key: LocalKey) -> Option<Entry> {
        let (remainder, first) = self.divide(key);
        self.find(key, remainder, first).and_then(|place| self.remove_at(place))
    }

    /// Removes the entry at `place` and returns it; `None` if there is none.
    pub fn remove_at(&mut self, place: Place) -> Option<Entry> {
        let word = self.word(place)?;
        match self.overflow_index(place) {
            Some(index) => {
                self.overflow.swap_remove(index);
            }
            None => {
                self.set_word(place, 0);
                self.drain_overflow();
            }
        }
        self.len -= 1;
        Some(self.layout.entry(word))
    }

    /// Changes the entry at `place` in place; no effect if there is none.
    #[inline]
    pub fn update(&mut self, place: Place, change: impl FnOnce(&mut Entry)) {
        if let Some(word) = self.word(place) {
            let mut entry = self.layout.entry(word);
            change(&mut entry);
            self.set(place, entry);
        }
    }

    /// Replaces the entry at `place` by one of the same key; no effect if there is none.
    ///
    /// # Panics
    /// The slot is wider than the geometry permits.
    #[inline]
    pub fn set(&mut self, place: Place, entry: Entry) {
        if let Some(word) = self.word(place) {
            self.set_word(place, self.layout.with_entry(word, &entry));
        }
    }

    /// Sets the rank of the entry at `place`; no effect if there is none.
    #[inline]
    pub fn set_rank(&mut self, place: Place, rank: u8) {
        if let Some(word) = self.word(place) {
            self.set_word(place, self.layout.with_rank(word, rank));
        }
    }

    /// Returns remainder and first bucket of `key`.
    #[inline]
    fn divide(&self, key: LocalKey) -> (u64, usize) {
        let (remainder, first) = self.divisor.divide(key.0);
        (remainder, first as usize)
    }

    /// Returns the second bucket of a key whose first one is `bucket`, and vice versa.
    #[inline]
    fn other_bucket(&self, remainder: u64, bucket: usize) -> usize {
        geometry::other_bucket(remainder, bucket, self.buckets.len())
    }

    #[inline]
    fn find(&self, key: LocalKey, remainder: u64, first: usize) -> Option<Place> {
        if let Some(at) = self.buckets.find(self.layout, remainder, first) {
            return Some(Place((at.bucket * LANES + at.lane) as u32));
        }
        if self.overflow.is_empty() {
            return None;
        }
        let index = self.overflow.iter().position(|overflow| overflow.key == key)?;
        Some(Place((self.buckets.len() * LANES + index) as u32))
    }

    /// Returns the index in the overflow list, if `place` is in it.
    #[inline]
    fn overflow_index(&self, place: Place) -> Option<usize> {
        (place.0 as usize).checked_sub(self.buckets.len() * LANES)
    }

    /// Returns the used word at `place`.
    #[inline]
    fn word(&self, place: Place) -> Option<u64> {
        let word = match self.overflow_index(place) {
            None => self.buckets.word(Self::at(place)),
            Some(index) => self.overflow.get(index)?.word,
        };
        (word != 0).then_some(word)
    }

    /// Changes the used word at `place`.
    #[inline]
    fn set_word(&mut self, place: Place, word: u64) {
        match self.overflow_index(place) {
            None => self.buckets.put(Self::at(place), word),
            Some(index) => self.overflow[index].word = word,
        }
    }

    /// Returns where a place in the buckets is.
    #[inline]
    fn at(place: Place) -> At {
        let index = place.0 as usize;
        At { bucket: index / LANES, lane: index % LANES }
    }

    /// Returns `word` as it is stored in `bucket`, given the first bucket of its key.
    #[inline]
    fn at_bucket(&self, word: u64, bucket: usize, first: usize) -> u64 {
        let choice = self.layout.choice_bit();
        if bucket == first { word & !choice } else { word | choice }
    }

    /// Returns an unused word, in the first bucket if possible, since most lookups then read one
    /// line.
    #[inline]
    fn unused_in(&self, first: usize, second: usize) -> Option<At> {
        let lane_in = |bucket: usize| {
            let lane = first_lane(unused(&self.buckets[bucket]))?;
            Some(At { bucket, lane })
        };
        lane_in(first).or_else(|| lane_in(second))
    }

    /// Returns the key of a used word in `bucket`.
    #[inline]
    fn key_of(&self, word: u64, bucket: usize) -> LocalKey {
        let remainder = self.layout.remainder(word);
        // Both are computed, because the choice is unpredictable.
        let other = self.other_bucket(remainder, bucket);
        let in_first = word & self.layout.choice_bit() == 0;
        let first = std::hint::select_unpredictable(in_first, bucket, other);
        LocalKey(remainder * self.divisor.get() + first as u64)
    }
}
