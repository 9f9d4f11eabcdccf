//! Arithmetic for the table: an invertible mixing function, and division by a fixed number.
//!
//! Addresses come in runs and strides, but must be spread evenly over buckets. A [`Permutation`]
//! spreads them without losing information, so that the table can store only a part of each
//! address.

/// Largest supported width of an address, in bits.
pub(super) const KEY_BITS_MAX: u32 = 56;

/// Odd numbers with well-spread bits. Checkpoints are in the order of shards that follows from
/// them: with others, a start that reads a shard from an older checkpoint would miss entries.
const MULTIPLIERS: [u64; 3] = [0x9e6c_63d0_876a_68e5, 0xd1b5_4a32_d192_ed03, 0xb492_b66f_be98_f273];

/// A fixed one-to-one mapping of the numbers below 2^bits onto themselves.
#[derive(Clone, Copy, Debug)]
pub(super) struct Permutation {
    mask: u64,
    /// Shift of at least half of the width, so that `x ^ (x >> shift)` is its own inverse.
    shift: u32,
    whitening: [u64; 2],
    inverses: [u64; 3],
}

impl Permutation {
    /// Creates a mapping of numbers of `bits` bits, 1 to [`KEY_BITS_MAX`]; each `seed` yields
    /// another one.
    pub(super) fn new(bits: u32, seed: u64) -> Self {
        debug_assert!((1..=KEY_BITS_MAX).contains(&bits));
        let mask = (1 << bits) - 1;
        let first = mix(seed);
        Permutation {
            mask,
            shift: bits.div_ceil(2),
            whitening: [first & mask, mix(first) & mask],
            inverses: MULTIPLIERS.map(odd_inverse),
        }
    }

    /// Returns whether `x` is below 2^bits.
    #[cfg(test)]
    pub(super) fn contains(&self, x: u64) -> bool {
        x & !self.mask == 0
    }

    /// Returns the image of `x`.
    #[inline]
    pub(super) fn forward(&self, x: u64) -> u64 {
        let x = self.multiply(x ^ self.whitening[0], MULTIPLIERS[0]);
        let x = x ^ (x >> self.shift) ^ self.whitening[1];
        let x = self.multiply(x, MULTIPLIERS[1]);
        let x = self.multiply(x ^ (x >> self.shift), MULTIPLIERS[2]);
        x ^ (x >> self.shift)
    }

    /// Returns the number whose image is `y`.
    #[inline]
    pub(super) fn backward(&self, y: u64) -> u64 {
        let x = self.multiply(y ^ (y >> self.shift), self.inverses[2]);
        let x = self.multiply(x ^ (x >> self.shift), self.inverses[1]) ^ self.whitening[1];
        self.multiply(x ^ (x >> self.shift), self.inverses[0]) ^ self.whitening[0]
    }

    #[inline]
    fn multiply(&self, x: u64, by: u64) -> u64 {
        x.wrapping_mul(by) & self.mask
    }
}

/// Mixes all bits of `x` into the high half of the result.
#[inline]
pub(super) fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x7f4a_7c15_f39c_c060).wrapping_mul(MULTIPLIERS[1]);
    (x ^ (x >> 32)).wrapping_mul(MULTIPLIERS[2])
}

/// Returns the inverse of `odd` modulo 2^64.
fn odd_inverse(odd: u64) -> u64 {
    // An odd number is its own inverse modulo 8; each iteration doubles the number of correct bits.
    (0..5)
        .fold(odd, |inverse, _| inverse.wrapping_mul(2u64.wrapping_sub(odd.wrapping_mul(inverse))))
}

/// Divides by a fixed number without a division instruction.
#[derive(Clone, Copy, Debug)]
pub(super) struct Divisor {
    by: u64,
    reciprocal: u64,
}

impl Divisor {
    /// Creates a divisor `by`, which must not be 0.
    pub(super) fn new(by: u64) -> Self {
        debug_assert!(by != 0);
        Divisor { by, reciprocal: u64::MAX / by }
    }

    /// Returns the divisor.
    #[inline]
    pub(super) fn get(self) -> u64 {
        self.by
    }

    /// Returns quotient and remainder of `x`, exact for every `x`.
    #[inline]
    pub(super) fn divide(self, x: u64) -> (u64, u64) {
        // The reciprocal is rounded down, so the estimate is correct or one too small.
        let estimate = ((u128::from(x) * u128::from(self.reciprocal)) >> 64) as u64;
        let rest = x - estimate * self.by;
        let short = rest >= self.by;
        (estimate + u64::from(short), if short { rest - self.by } else { rest })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_permutations_hit_every_number_once() {
        for bits in 1..=14 {
            for seed in [0, 1, u64::MAX] {
                let permutation = Permutation::new(bits, seed);
                let mut seen = vec![false; 1 << bits];
                for x in 0..1u64 << bits {
                    let y = permutation.forward(x);
                    assert!(permutation.contains(y), "{bits} bits: {x} leaves the range");
                    assert!(!seen[y as usize], "{bits} bits: {y} is hit twice");
                    seen[y as usize] = true;
                    assert_eq!(permutation.backward(y), x);
                }
            }
        }
    }

    #[test]
    fn wide_permutations_can_be_undone() {
        let mut random = fastrand::Rng::with_seed(7);
        for bits in 15..=KEY_BITS_MAX {
            let permutation = Permutation::new(bits, random.u64(..));
            let last = (1u64 << bits) - 1;
            let samples = (0..2000).map(|_| random.u64(..=last)).chain([0, 1, last - 1, last]);
            for x in samples.collect::<Vec<_>>() {
                let y = permutation.forward(x);
                assert!(permutation.contains(y));
                assert_eq!(permutation.backward(y), x, "{bits} bits");
                assert_eq!(permutation.forward(permutation.backward(x)), x, "{bits} bits");
            }
        }
    }

    #[test]
    fn seeds_give_different_permutations() {
        let [a, b] = [1, 2].map(|seed| Permutation::new(32, seed));
        let same = (0..10_000).filter(|&x| a.forward(x) == b.forward(x)).count();
        assert!(same < 3, "{same} of 10000 agree");
    }

    #[test]
    fn division_is_exact() {
        let mut random = fastrand::Rng::with_seed(8);
        let powers = (0..64).flat_map(|shift| {
            let power = 1u64 << shift;
            [power.saturating_sub(1), power, power + 1]
        });
        let numbers: Vec<u64> = powers
            .chain([u64::MAX - 1, u64::MAX])
            .chain((0..300).map(|_| random.u64(..) >> random.u32(..64)))
            .collect();
        for &by in numbers.iter().filter(|&&by| by != 0) {
            let divisor = Divisor::new(by);
            for x in numbers.iter().flat_map(|&x| [x, x / by * by, (x / by * by).wrapping_sub(1)]) {
                assert_eq!(divisor.divide(x), (x / by, x % by), "{x} / {by}");
            }
        }
    }
}
