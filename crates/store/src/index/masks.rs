//! The masks of partial blocks, and their memory.
//!
//! Clients decide how many partial blocks there are, so the daemon's memory limits them. Memory is
//! requested before a mask is added: without it the caller keeps the block whole, or out of the
//! cache.

use std::collections::BTreeMap;
use std::sync::Arc;

use forebay_core::SectorMask;
use forebay_format::checkpoint::PartialMask;
use forebay_lane::{MemoryBudget, MemoryHold, MemoryUse, OverLimit};

/// Number of masks for which memory is requested at a time; fewer if there are more than
/// [`FEW_SHARDS`] shards, because each shard may hold that much unused.
const STEP: usize = 64;
const FEW_SHARDS: usize = 1024;

/// The masks of one shard.
pub(super) struct Masks {
    /// Masks by the address of their block.
    map: BTreeMap<u64, SectorMask>,
    /// Number of masks for which memory is held.
    room: usize,
    step: usize,
    held: MemoryHold,
    each: u64,
}

impl Masks {
    /// Returns the most bytes for a mask of `sectors` sectors: its place in the map, whose nodes
    /// are at least half full, its heap allocation, and both again while a checkpoint copies it.
    fn bytes_of_each(sectors: u32) -> u64 {
        const NODE: usize = size_of::<(u64, SectorMask)>() * 11 / 5 + 16;
        let heap = match sectors.div_ceil(64) {
            0 | 1 => 0,
            words => (words - 1) * 8 + 16,
        };
        (NODE + size_of::<PartialMask>()) as u64 + 2 * u64::from(heap)
    }

    /// Creates an empty set for one of `shards` shards; memory for masks is taken from `memory`.
    pub(super) fn new(memory: &Arc<MemoryBudget>, sectors: u32, shards: u32) -> Self {
        let (map, each) = (BTreeMap::new(), Self::bytes_of_each(sectors));
        let step = (STEP * FEW_SHARDS / FEW_SHARDS.max(shards as usize)).max(1);
        Masks { map, room: 0, step, held: MemoryHold::none(memory, MemoryUse::Index), each }
    }

    /// Returns whether there is room for one more mask. Leaves some memory for other uses.
    pub(super) fn has_room(&mut self) -> bool {
        if self.map.len() < self.room {
            return true;
        }
        let more = self.held.grow_spare(self.step as u64 * self.each);
        self.room += if more { self.step } else { 0 };
        more
    }

    /// Adds a recovered mask.
    pub(super) fn restore(&mut self, address: u64, mask: SectorMask) -> Result<(), OverLimit> {
        if self.map.len() >= self.room {
            self.held.grow(self.step as u64 * self.each, "sector masks")?;
            self.room += self.step;
        }
        self.map.insert(address, mask);
        Ok(())
    }

    pub(super) fn insert(&mut self, address: u64, mask: SectorMask) {
        self.map.insert(address, mask);
    }

    pub(super) fn get(&self, address: u64) -> Option<&SectorMask> {
        self.map.get(&address)
    }

    pub(super) fn remove(&mut self, address: u64) {
        self.map.remove(&address);
        if self.map.len() + 2 * self.step <= self.room {
            self.held.shrink(self.step as u64 * self.each);
            self.room -= self.step;
        }
    }

    /// Returns the bytes held for masks.
    pub(super) fn bytes(&self) -> u64 {
        self.held.bytes()
    }

    #[cfg(test)]
    pub(super) fn all(&self) -> &BTreeMap<u64, SectorMask> {
        &self.map
    }
}
