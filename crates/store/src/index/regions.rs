//! A coarse map of the address space that shows where no block is cached, so that a request for a
//! long range need not look up every block.
//!
//! A region is a range of addresses whose length is a power of two. It is vacant until the first
//! insertion, and becomes vacant again when a walk over all of its blocks finds each of them
//! absent. Evictions and removals alone do not make it vacant.
//!
//! An insertion tests the region's byte, and changes it only if the region is vacant or under a
//! walk. It does this under the lock of the block's shard, and the walk looks each block up under
//! the same lock. So a block that is inserted during a walk is either found by the walk, or the
//! insertion marks the region as occupied, and the walk then cannot make it vacant.
//!
//! When the index is widened, a byte stands for several regions, old and new ones. From then on it
//! can no longer become vacant: a walk covers only one of them. A walk that begins while the index
//! is widened reads the number of addresses after it has marked the byte, so it either sees the new
//! number and gives up, or an insertion at a new address sees the mark.

use std::ops::Range;

use forebay_core::sync::atomic::{AtomicU8, Ordering};

use super::Address;
use crate::table::TableGeometry;

/// The region may hold blocks. If [`WALKED`] is set as well, a block was inserted during the walk.
const OCCUPIED: u8 = 1;
/// A walk is in progress; the region may hold blocks. If it ends without [`OCCUPIED`], the region
/// may become vacant.
const WALKED: u8 = 2;

/// Fewest addresses of a region, as a power of two.
const LEAST_SHIFT: u32 = 4;
/// Maximum number of regions, as a power of two, of an index with at most [`WORDS_PER_REGION`]
/// times as many words.
const USUAL_BITS: u32 = 20;
const WORDS_PER_REGION: u64 = 32;

/// The regions of an index.
pub(super) struct Regions {
    states: Box<[AtomicU8]>,
    shift: u32,
}

/// A walk over all blocks of a region. If it is dropped, the region counts as occupied.
pub struct Walk<'a> {
    /// `None` if the walk cannot make the region vacant.
    state: Option<&'a AtomicU8>,
}

/// Returns the addresses of a region, as a power of two.
fn shift_of(geometry: &TableGeometry) -> u32 {
    let words = geometry.bytes() / 8;
    let bits = USUAL_BITS.max((words / WORDS_PER_REGION).checked_ilog2().unwrap_or(0));
    let address_bits = geometry.address_bits();
    address_bits.saturating_sub(bits).max(LEAST_SHIFT).min(address_bits)
}

/// Returns the bytes of memory that the regions of an index take.
pub(crate) fn bytes_for(geometry: &TableGeometry) -> u64 {
    1 << (geometry.address_bits() - shift_of(geometry))
}

impl Regions {
    /// Makes all regions vacant.
    pub(super) fn new(geometry: &TableGeometry) -> Self {
        let states = (0..bytes_for(geometry)).map(|_| AtomicU8::new(0)).collect();
        Regions { states, shift: shift_of(geometry) }
    }

    fn state(&self, address: u64) -> &AtomicU8 {
        // Their number is a power of two.
        &self.states[(address >> self.shift) as usize & (self.states.len() - 1)]
    }

    /// Records that a block is inserted, or that a fill of it begins. The block's shard is locked.
    #[inline]
    pub(super) fn occupy(&self, address: Address) {
        let state = self.state(address.0);
        if state.load(Ordering::SeqCst) & OCCUPIED == 0 {
            state.fetch_or(OCCUPIED, Ordering::SeqCst);
        }
    }

    /// Returns the end of the run of vacant addresses at the beginning of a range.
    pub(super) fn vacant_to(&self, range: Range<u64>) -> u64 {
        let mut at = range.start;
        while at < range.end && self.state(at).load(Ordering::SeqCst) == 0 {
            at = (((at >> self.shift) + 1) << self.shift).min(range.end);
        }
        at
    }

    /// Begins a walk over the part of `range` in the region of its first address. Returns the end
    /// of that part. `room`: the present number of addresses of the index.
    pub(super) fn walk(&self, range: Range<u64>, room: impl FnOnce() -> u64) -> (u64, Walk<'_>) {
        let region = range.start >> self.shift;
        let (first, end) = (region << self.shift, (region + 1) << self.shift);
        let whole = range.start == first && end <= range.end;
        let state = self.state(range.start);
        // If another walk of the region is in progress, only that one can make it vacant.
        let begun = whole
            && state.compare_exchange(OCCUPIED, WALKED, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        let mut walk = Walk { state: begun.then_some(state) };
        if begun && room() > (self.states.len() as u64) << self.shift {
            drop(std::mem::replace(&mut walk, Walk { state: None }));
        }
        (end.min(range.end), walk)
    }
}

impl Walk<'_> {
    /// Ends a walk that has found every block of the region absent and has cancelled its fill, each
    /// at some time since the walk began. The region becomes vacant unless a block was inserted
    /// during the walk.
    pub fn found_nothing(mut self) {
        if let Some(state) = self.state.take()
            && state.compare_exchange(WALKED, 0, Ordering::SeqCst, Ordering::SeqCst).is_err()
        {
            state.store(OCCUPIED, Ordering::SeqCst);
        }
    }
}

impl Drop for Walk<'_> {
    fn drop(&mut self) {
        if let Some(state) = self.state {
            state.store(OCCUPIED, Ordering::SeqCst);
        }
    }
}
