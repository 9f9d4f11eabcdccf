//! Segment generations, stored in two halves. The first releases stored only the lower half; the
//! upper half replaces a constant that they wrote, encoded so that the constant decodes to 0.

use forebay_core::Generation;

use crate::MAX_COUNT;

/// Bits of the lower half.
pub(crate) const LOW_BITS: u32 = 31;
const LOW_MASK: u64 = (1 << LOW_BITS) - 1;

/// Returns the lower and the upper half, or `None` if the generation is not below [`MAX_COUNT`].
pub(crate) fn split(generation: Generation) -> Option<(u32, u32)> {
    (generation.0 < MAX_COUNT).then(|| (low(generation), (generation.0 >> LOW_BITS) as u32))
}

/// Joins two halves. Returns `None` if they are not a possible generation.
pub(crate) fn join(low: u32, high: u32) -> Option<Generation> {
    let generation = u64::from(high) << LOW_BITS | u64::from(low);
    (u64::from(low) <= LOW_MASK && generation < MAX_COUNT).then_some(Generation(generation))
}

/// Returns the lower half.
pub(crate) fn low(generation: Generation) -> u32 {
    (generation.0 & LOW_MASK) as u32
}
