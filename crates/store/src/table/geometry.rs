//! Sizes of the tables, widths of their fields, and the mapping from addresses to shards and keys.
//!
//! The low `key_bits` bits of an address are mixed by a permutation, together with a hash of the
//! bits above them, the *fold*. Shard and quotient come from the mixed bits alone; the key is the
//! quotient plus the fold times the number of quotients. So more bits of addresses make keys, and
//! with them remainders, larger; they leave every address of fewer bits where it is. A table that
//! is in use is *widened* by giving its remainders more bits and its checks fewer.

use super::entry::{FIXED_BITS, Layout};
use super::permutation::{Divisor, KEY_BITS_MAX, Permutation, mix};
use super::{BUCKET_BYTES, Buckets, Entry, LANES};

/// Fewest bits of a check that are useful.
pub const CHECK_BITS_MIN: u32 = 16;
/// Most bits of a check.
pub const CHECK_BITS_MAX: u32 = 32;

/// Share of the words that are used when the cache is full and the shards are even.
const LOAD_USUAL: f64 = 0.953;
/// Share of the words that are used in a shard with far more entries than the mean. Two buckets of
/// eight fill up to 0.998 before insertions fail; searches get long slightly earlier.
const LOAD_CROWDED: f64 = 0.99;
/// Margin of a crowded shard above the mean, in standard deviations: one shard in 50 million.
const CROWDED_DEVIATIONS: f64 = 5.5;
/// Additional words, for tables so small that the margins above amount to a few words.
const WORDS_EXTRA: f64 = 16.0;
/// Total size up to which small tables may grow to make room for the check, in bytes.
const SMALL_BYTES: u64 = 1 << 20;
/// Keeps the index of a word within 32 bits.
const BUCKETS_MAX: u64 = 1 << 28;

/// Why a table cannot be laid out as requested.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GeometryError {
    /// There are no entries or no shards.
    #[error("an index of {entries} entries in {shards} shards is empty; both must be at least 1")]
    Empty {
        /// Requested entries.
        entries: u64,
        /// Requested shards.
        shards: u32,
    },
    /// A width is out of range.
    #[error("{field} is {bits} bits wide; {least} to {most} are supported")]
    Width {
        /// The field.
        field: &'static str,
        /// The requested width.
        bits: u32,
        /// Smallest width.
        least: u32,
        /// Largest width.
        most: u32,
    },
    /// The fields leave too few bits for a check.
    #[error(
        "addresses of {key_bits} bits and slots of {slot_bits} bits leave fewer than 16 bits for \
         the check; use larger blocks or a smaller origin"
    )]
    NoRoomForCheck {
        /// Width of an address.
        key_bits: u32,
        /// Width of a slot.
        slot_bits: u32,
    },
    /// One shard would have more words than can be indexed.
    #[error("{entries} entries are too many for {shards} shards; use more shards")]
    ShardTooLarge {
        /// Requested entries.
        entries: u64,
        /// Requested shards.
        shards: u32,
    },
}

/// A key within one shard: the quotient of an address by the number of shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LocalKey(pub(super) u64);

/// The location of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Placed {
    /// Number of the shard.
    pub shard: u32,
    /// The key within the shard.
    pub key: LocalKey,
}

/// Sizes, widths and the mapping from addresses to shards and keys; common to all shards.
#[derive(Clone, Copy, Debug)]
pub struct TableGeometry {
    /// Mixes the low bits of an address.
    permutation: Permutation,
    shards: Divisor,
    /// The number of different quotients of mixed bits by the number of shards.
    quotients: Divisor,
    buckets: Divisor,
    layout: Layout,
    key_bits: u32,
    address_bits: u32,
}

impl TableGeometry {
    /// Lays out tables for at most `entries` live entries, spread over `shards` tables, with
    /// addresses below 2^`key_bits` (1 to 56) and slots below 2^`slot_bits` (1 to 32).
    ///
    /// Memory is 8.4 bytes per entry with ten thousand entries or more per shard, and more with
    /// fewer, because shards then vary more.
    ///
    /// # Errors
    /// A number is out of range, or fewer than [`CHECK_BITS_MIN`] bits remain for the check.
    pub fn new(
        entries: u64,
        shards: u32,
        key_bits: u32,
        slot_bits: u32,
    ) -> Result<Self, GeometryError> {
        if entries == 0 || shards == 0 {
            return Err(GeometryError::Empty { entries, shards });
        }
        in_range("the address", key_bits, 1, KEY_BITS_MAX)?;
        in_range("the slot", slot_bits, 1, 32)?;

        let usual = buckets_for(entries.min(1 << key_bits), shards);
        let key_last = ((1u64 << key_bits) - 1) / u64::from(shards);
        let no_room = GeometryError::NoRoomForCheck { key_bits, slot_bits };
        // Between 9 and 41.
        let remainder_bits_max = 64 - FIXED_BITS - CHECK_BITS_MIN - slot_bits;
        let least = key_last / ((1 << remainder_bits_max) - 1) + 1;
        let bytes = u128::from(least) * u128::from(shards) * u128::from(BUCKET_BYTES);
        if least > usual && bytes > u128::from(SMALL_BYTES) {
            return Err(no_room);
        }
        let buckets = usual.max(least);
        if buckets > BUCKETS_MAX {
            return Err(GeometryError::ShardTooLarge { entries, shards });
        }
        let geometry = TableGeometry {
            permutation: Permutation::new(key_bits, 0),
            shards: Divisor::new(u64::from(shards)),
            quotients: Divisor::new(key_last + 1),
            buckets: Divisor::new(buckets),
            layout: Layout::new(CHECK_BITS_MAX.min(64 - FIXED_BITS - slot_bits), slot_bits),
            key_bits,
            address_bits: key_bits,
        };
        geometry.widened(key_bits)
    }

    /// Returns the same geometry for addresses below 2^`address_bits`. Addresses keep their places;
    /// checks may have fewer bits, never more. If it already has as many address bits, it stays
    /// unchanged.
    ///
    /// # Errors
    /// `address_bits` is above 56, or fewer than [`CHECK_BITS_MIN`] bits remain for the check.
    pub fn widened(mut self, address_bits: u32) -> Result<Self, GeometryError> {
        in_range("the address", address_bits.max(1), 1, KEY_BITS_MAX)?;
        self.address_bits = self.address_bits.max(address_bits);
        // Below 2^57.
        let keys = self.quotients.get() << (self.address_bits - self.key_bits);
        // Remainders are stored plus one.
        let remainder_bits = ((keys - 1) / self.buckets.get() + 1).ilog2() + 1;
        let slot_bits = self.slot_bits();
        let left = (64 - FIXED_BITS - slot_bits).checked_sub(remainder_bits);
        let no_room = GeometryError::NoRoomForCheck { key_bits: self.address_bits, slot_bits };
        let left = left.filter(|bits| *bits >= CHECK_BITS_MIN).ok_or(no_room)?;
        self.layout = Layout::new(self.check_bits().min(left), slot_bits);
        Ok(self)
    }

    /// Returns the same geometry with at most `bits` (16 to 32) bits of check.
    ///
    /// # Errors
    /// `bits` is out of range.
    pub fn with_check_bits(mut self, bits: u32) -> Result<Self, GeometryError> {
        in_range("the check", bits, CHECK_BITS_MIN, CHECK_BITS_MAX)?;
        self.layout = Layout::new(self.check_bits().min(bits), self.slot_bits());
        Ok(self)
    }

    /// Returns the same geometry with another permutation. Only a client that knows `seed` can
    /// choose addresses that crowd into one shard.
    pub fn with_seed(mut self, seed: u64) -> Self {
        self.permutation = Permutation::new(self.key_bits, seed);
        self
    }

    /// Returns the bits of a check that are kept, 16 to 32.
    #[inline]
    pub fn check_bits(&self) -> u32 {
        self.layout.check_bits()
    }

    /// Returns the bits of a slot, 1 to 32. Larger slots must not be inserted.
    pub fn slot_bits(&self) -> u32 {
        self.layout.slot_bits()
    }

    /// Returns the number of address bits that are mixed, 1 to 56. Together with the number of
    /// shards it determines the shard of an address.
    pub fn key_bits(&self) -> u32 {
        self.key_bits
    }

    /// Returns the bits of an address, from [`TableGeometry::key_bits`] to 56.
    pub fn address_bits(&self) -> u32 {
        self.address_bits
    }

    /// Returns the number of shards.
    pub fn shards(&self) -> u32 {
        self.shards.get() as u32
    }

    /// Returns the heap bytes of all tables together, without overflow lists.
    pub fn bytes(&self) -> u64 {
        self.shards.get() * self.buckets.get() * BUCKET_BYTES
    }

    /// Returns shard and key of `address`. A key that is too large for the table's layout is
    /// refused there.
    #[inline]
    pub fn place(&self, address: u64) -> Placed {
        let fold = address >> self.key_bits;
        let mixed = self.permutation.forward((address ^ self.spread(fold)) & self.mask());
        let (quotient, shard) = self.shards.divide(mixed);
        let key = quotient.wrapping_add(fold.wrapping_mul(self.quotients.get()));
        Placed { shard: shard as u32, key: LocalKey(key) }
    }

    /// Returns the address that [`TableGeometry::place`] maps to `key` in `shard`.
    #[inline]
    pub fn address(&self, shard: u32, key: LocalKey) -> u64 {
        let (fold, quotient) = self.quotients.divide(key.0);
        let mixed = self.permutation.backward(quotient * self.shards.get() + u64::from(shard));
        ((mixed ^ self.spread(fold)) & self.mask()) | fold << self.key_bits
    }

    #[inline]
    fn mask(&self) -> u64 {
        (1 << self.key_bits) - 1
    }

    /// Returns the bits that are added to those that are mixed, so that addresses that differ only
    /// in their fold are in different shards. Nothing is added to fold 0.
    #[inline]
    fn spread(&self, fold: u64) -> u64 {
        if fold == 0 { 0 } else { mix(fold) >> 8 }
    }

    /// Returns the offset of a key's first bucket in its table, in bytes.
    #[inline]
    pub(crate) fn bucket_offset(&self, key: LocalKey) -> usize {
        let (_, first) = self.buckets.divide(key.0);
        first as usize * BUCKET_BYTES as usize
    }

    /// Finds the entry of a key in the buckets of a table of this shape with `check_bits` bits of
    /// check, without the table's overflow list. Needs no lock: if the table is changed meanwhile,
    /// the result is any entry or none.
    #[inline]
    pub(crate) fn find(&self, buckets: &Buckets, check_bits: u32, key: LocalKey) -> Option<Entry> {
        let (remainder, first) = self.buckets.divide(key.0);
        let layout = Layout::new(check_bits, self.slot_bits());
        let at = buckets.find(layout, remainder, first as usize)?;
        Some(layout.entry(buckets.word(at)))
    }

    /// Returns the divisor that splits keys into remainder and first bucket.
    pub(super) fn buckets(&self) -> Divisor {
        self.buckets
    }

    pub(super) fn layout(&self) -> Layout {
        self.layout
    }
}

/// Returns the second of `count` buckets for a key whose first one is `bucket`, and vice versa.
#[inline]
pub(super) fn other_bucket(remainder: u64, bucket: usize, count: usize) -> usize {
    // Below `count`, which is below 2^32.
    let sum = (((mix(remainder) >> 32) * count as u64) >> 32) as usize;
    if sum >= bucket { sum - bucket } else { sum + count - bucket }
}

fn in_range(field: &'static str, bits: u32, least: u32, most: u32) -> Result<(), GeometryError> {
    if (least..=most).contains(&bits) {
        return Ok(());
    }
    Err(GeometryError::Width { field, bits, least, most })
}

/// Returns the number of buckets of one of `shards` tables over which `entries` entries are spread
/// at random.
fn buckets_for(entries: u64, shards: u32) -> u64 {
    let share = 1.0 / f64::from(shards);
    let mean = entries as f64 * share;
    let deviation = (mean * (1.0 - share)).sqrt();
    let crowded = (mean + CROWDED_DEVIATIONS * deviation) / LOAD_CROWDED;
    let words = crowded.max(mean / LOAD_USUAL) + WORDS_EXTRA;
    (words / LANES as f64).ceil() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_come_back_from_their_places() {
        let mut random = fastrand::Rng::with_seed(1);
        for key_bits in 1..=38 {
            for shards in [1, 2, 3, 64, 1000] {
                let geometry = TableGeometry::new(1 << 20, shards, key_bits, 20).expect("fits");
                let geometry = geometry.with_seed(random.u64(..));
                let last = (1u64 << key_bits) - 1;
                let some = (0..500).map(|_| random.u64(..=last)).collect::<Vec<_>>();
                for address in some.into_iter().chain([0, last]) {
                    let placed = geometry.place(address);
                    assert!(placed.shard < shards);
                    assert_eq!(geometry.address(placed.shard, placed.key), address);
                }
            }
        }
    }

    #[test]
    fn memory_is_within_the_budget() {
        for entries in [1_000_000, 1 << 20, 3_000_000, 4 << 20, 16 << 20, 64 << 20, 1 << 30] {
            for shards in [1, 16, 64] {
                let geometry = TableGeometry::new(entries, shards, 34, 24).expect("fits");
                let each = geometry.bytes() as f64 / entries as f64;
                assert!(each <= 8.45, "{entries} in {shards}: {each} bytes");
            }
        }
    }

    #[test]
    fn an_index_for_more_than_all_addresses_is_cut_to_them() {
        let geometry = TableGeometry::new(u64::MAX, 1, 10, 10).expect("fits");
        assert!(geometry.bytes() < 16 << 10);
    }

    #[test]
    fn small_tables_grow_until_the_check_fits() {
        let geometry = TableGeometry::new(1000, 4, 40, 10).expect("fits");
        assert_eq!(geometry.check_bits(), 16);
        assert!(geometry.bytes() <= SMALL_BYTES);
    }

    #[test]
    fn widths_share_a_word() {
        // 64 Mi slots of 4 KiB before 16 TiB: 7 fixed, 26 slot, 9 remainder.
        let geometry = TableGeometry::new(64 << 20, 64, 32, 26).expect("fits");
        assert_eq!(geometry.check_bits(), 22);
        let narrow = geometry.with_check_bits(18).expect("in range");
        assert_eq!(narrow.check_bits(), 18);
        assert_eq!(narrow.with_check_bits(32).expect("in range").check_bits(), 18);
        assert_eq!(TableGeometry::new(1, 1, 1, 1).expect("fits").check_bits(), 32);
    }

    #[test]
    fn impossible_geometries_are_refused() {
        assert!(matches!(TableGeometry::new(0, 1, 30, 20), Err(GeometryError::Empty { .. })));
        assert!(matches!(TableGeometry::new(1, 0, 30, 20), Err(GeometryError::Empty { .. })));
        for (key_bits, slot_bits) in [(0, 20), (57, 20), (30, 0), (30, 33), (u32::MAX, u32::MAX)] {
            let refused = TableGeometry::new(100, 1, key_bits, slot_bits);
            assert!(matches!(refused, Err(GeometryError::Width { .. })), "{refused:?}");
        }
        for (entries, shards, key_bits, slot_bits) in
            [(1 << 20, 64, 40, 20), (1 << 20, 1, 56, 32), (1, u32::MAX, 56, 32)]
        {
            let refused = TableGeometry::new(entries, shards, key_bits, slot_bits);
            assert!(matches!(refused, Err(GeometryError::NoRoomForCheck { .. })), "{refused:?}");
        }
        let refused = TableGeometry::new(u64::MAX, 1, 56, 10);
        assert!(matches!(refused, Err(GeometryError::ShardTooLarge { .. })), "{refused:?}");
        let geometry = TableGeometry::new(100, 1, 20, 20).expect("fits");
        for bits in [0, 15, 33] {
            assert!(matches!(geometry.with_check_bits(bits), Err(GeometryError::Width { .. })));
        }
    }

    #[test]
    fn places_stay_when_there_are_more_addresses() {
        let mut random = fastrand::Rng::with_seed(2);
        for (entries, shards, key_bits, slot_bits) in
            [(1 << 16, 4, 21, 16), (5000, 7, 20, 13), (1000, 1, 20, 11), (1 << 24, 1000, 29, 24)]
        {
            let narrow = TableGeometry::new(entries, shards, key_bits, slot_bits).expect("fits");
            let (mut wide, mut bits) = (narrow, key_bits);
            while let Ok(wider) = wide.widened(bits + 1) {
                (wide, bits) = (wider, bits + 1);
                let last = (1u64 << bits) - 1;
                let some = (0..300).map(|_| random.u64(..=last) >> random.u32(..bits));
                for address in some.collect::<Vec<_>>().into_iter().chain([0, last / 2, last]) {
                    let placed = wide.place(address);
                    assert!(placed.shard < shards);
                    assert_eq!(wide.address(placed.shard, placed.key), address, "{bits} bits");
                    assert_eq!(narrow.place(address), placed, "{bits} bits");
                }
                assert_eq!(wide.widened(key_bits).expect("less").check_bits(), wide.check_bits());
            }
            assert!(bits >= 34 && wide.check_bits() == CHECK_BITS_MIN, "{bits} bits");
        }
    }

    /// Filesystems store data at regular distances.
    #[test]
    fn addresses_with_different_high_bits_are_in_different_shards() {
        let geometry = TableGeometry::new(1 << 16, 16, 21, 16).and_then(|it| it.widened(34));
        let geometry = geometry.expect("fits");
        for stride in [1 << 21, 1 << 22, (1 << 21) + 1] {
            let mut shards = [0u32; 16];
            for number in 0..(1u64 << 34) / stride {
                shards[geometry.place(number * stride).shard as usize] += 1;
            }
            let (least, most) = (shards.iter().min(), shards.iter().max());
            let mean = ((1u64 << 34) / stride / 16) as u32;
            assert!(least > Some(&(mean * 3 / 4)) && most < Some(&(mean * 5 / 4)), "{shards:?}");
        }
    }
}
