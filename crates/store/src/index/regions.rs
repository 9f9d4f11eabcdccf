//! Regions of the address space that may hold cached blocks, so that requests for long ranges need
//! not look every block up.
//!
//! A region is a power of two of addresses. A region is vacant until the first insertion, and
//! becomes vacant again when a walk has found each of its blocks absent. Eviction and removal alone
//! do not make it vacant.
//!
//! An insertion tests one byte, and changes it only if the region is vacant or is being walked. It
//! does so under the lock of the block's shard, under which the walk looks the block up too: either
//! the walk finds the block, or the insertion finds the walk and spoils it.
//!
//! When the index is widened, regions of new addresses share the states of others: such a state is
//! vacant only if all of its regions are, and no walk makes it vacant again. A walk checks the
//! number of addresses after it has begun: either it learns that the index was widened, or an
//! insertion at a new address finds the walk.

use std::ops::Range;

use forebay_core::sync::atomic::{AtomicU8, Ordering};

use super::Address;
use crate::table::Geometry;

/// Set: the region may hold blocks. In a region that is being walked: a block was inserted since
/// the walk began.
const OCCUPIED: u8 = 1;
/// A walk is under way that may end with the region vacant. The region may hold blocks.
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
    /// `None`: it cannot end with the region vacant.
    state: Option<&'a AtomicU8>,
}

/// Returns the addresses of a region, as a power of two.
fn shift_of(geometry: &Geometry) -> u32 {
    let words = geometry.bytes() / 8;
    let bits = USUAL_BITS.max((words / WORDS_PER_REGION).checked_ilog2().unwrap_or(0));
    let address_bits = geometry.address_bits();
    address_bits.saturating_sub(bits).max(LEAST_SHIFT).min(address_bits)
}

/// Returns the bytes of memory that the regions of an index take.
pub(crate) fn bytes_for(geometry: &Geometry) -> u64 {
    1 << (geometry.address_bits() - shift_of(geometry))
}

impl Regions {
    /// Makes all regions vacant.
    pub(super) fn new(geometry: &Geometry) -> Self {
        let states = (0..bytes_for(geometry)).map(|_| AtomicU8::new(0)).collect();
        Regions { states, shift: shift_of(geometry) }
    }

    fn state(&self, address: u64) -> &AtomicU8 {
        // Their number is a power of two.
        &self.states[(address >> self.shift) as usize & (self.states.len() - 1)]
    }

    /// Notes that a block is inserted, or that a fill of it begins. The block's shard is locked.
    #[inline]
    pub(super) fn occupy(&self, address: Address) {
        let state = self.state(address.0);
        if state.load(Ordering::SeqCst) & OCCUPIED == 0 {
            state.fetch_or(OCCUPIED, Ordering::SeqCst);
        }
    }

    /// Returns the end of the vacant addresses of a range that begin with its first one.
    pub(super) fn vacant_to(&self, range: Range<u64>) -> u64 {
        let mut at = range.start;
        while at < range.end && self.state(at).load(Ordering::SeqCst) == 0 {
            at = (((at >> self.shift) + 1) << self.shift).min(range.end);
        }
        at
    }

    /// Begins a walk over the part of `range` in the region of its first address. Returns the end
    /// of that part. `room`: the number of addresses of the index now.
    pub(super) fn walk(&self, range: Range<u64>, room: impl FnOnce() -> u64) -> (u64, Walk<'_>) {
        let region = range.start >> self.shift;
        let (first, end) = (region << self.shift, (region + 1) << self.shift);
        let whole = range.start == first && end <= range.end;
        let state = self.state(range.start);
        // Another walk under way keeps its chance, and this one has none.
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
    /// Ends a walk that has found every block of the region absent, and has overtaken all fills of
    /// them, at some time since it began.
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
