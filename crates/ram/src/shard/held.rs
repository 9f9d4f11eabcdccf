//! Regions that may have blocks in RAM, so that a request for a long range need not look up each of
//! its blocks.

use forebay_policy::exact::Key;

use crate::block::Region;

/// Frames for each count.
const FRAMES_PER_COUNT: u32 = 32;

/// For each hash, the number of blocks in all regions with this hash.
pub(super) struct RegionCounts(Box<[u32]>);

impl RegionCounts {
    /// Counts at most `frames` blocks.
    pub(super) fn new(frames: u32) -> Self {
        let counts = (frames / FRAMES_PER_COUNT).max(1).next_power_of_two();
        RegionCounts(vec![0; counts as usize].into_boxed_slice())
    }

    fn place(&self, region: Region) -> usize {
        Key(region.0).spread() as usize & (self.0.len() - 1)
    }

    pub(super) fn add(&mut self, region: Region) {
        let place = self.place(region);
        self.0[place] += 1;
    }

    pub(super) fn remove(&mut self, region: Region) {
        let place = self.place(region);
        debug_assert!(self.0[place] > 0, "{region:?} had no block");
        self.0[place] = self.0[place].saturating_sub(1);
    }

    /// Returns whether the region may have a block.
    pub(super) fn may_have(&self, region: Region) -> bool {
        self.0[self.place(region)] > 0
    }

    /// Returns the bytes of RAM.
    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.0)
    }
}
