//! The memory for versions held by ordered volumes.
//!
//! Clients decide how many versions are held, so they wait when there is no memory for more:
//! earlier groups have to reach their origins first. Writes that are already acknowledged are put
//! in order in any case.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use forebay_core::{OriginBlock, SectorMask};
use forebay_lane::{MemoryBudget, MemoryHold, MemoryUse, OverLimit};
use parking_lot::Mutex;

use super::queue::OrderedVersion;

/// Bytes that are available in any case.
const LEAST: u64 = 256 << 10;

/// Versions that each volume may hold regardless of the others, whose origins may be stuck.
pub(crate) const OWN: u64 = 1024;

/// Bytes requested at a time.
const STEP: u64 = 256 << 10;

/// Maximum number of bytes for a version: its place in its group, whose nodes are at least half
/// full, and a copy while it is written and settled.
pub(crate) const VERSION: usize = size_of::<(OriginBlock, OrderedVersion)>() * 9 / 2 + 32;

/// The memory for held versions.
pub(crate) struct HeldMemory {
    /// Bytes of all held versions.
    taken: AtomicU64,
    /// Bytes that held versions may take.
    most: AtomicU64,
    held: Mutex<MemoryHold>,
    /// Whether a writer waits for room.
    pub(crate) full: AtomicBool,
}

/// Returns the bytes for a version.
fn bytes_of(version: &OrderedVersion) -> u64 {
    let mask = version.mask.as_ref().map_or(0, |mask| {
        let words = mask.sectors().div_ceil(64) as usize - 1;
        2 * (size_of::<SectorMask>() + 32 + words * 8)
    });
    (VERSION + mask) as u64
}

impl HeldMemory {
    pub(crate) fn new(memory: &Arc<MemoryBudget>) -> Self {
        let held = Mutex::new(MemoryHold::none(memory, MemoryUse::Background));
        let (taken, most) = (AtomicU64::new(0), AtomicU64::new(LEAST));
        HeldMemory { taken, most, held, full: AtomicBool::new(false) }
    }

    pub(crate) fn add(&self, version: &OrderedVersion) {
        self.taken.fetch_add(bytes_of(version), Ordering::SeqCst);
    }

    pub(crate) fn remove(&self, version: &OrderedVersion) {
        self.taken.fetch_sub(bytes_of(version), Ordering::SeqCst);
    }

    pub(crate) fn is_left(&self) -> bool {
        self.taken.load(Ordering::SeqCst) < self.most.load(Ordering::SeqCst)
    }

    pub(crate) fn ask(&self) -> bool {
        let mut held = self.held.lock();
        if self.is_left() {
            return true;
        }
        let more = held.grow_spare(STEP);
        if more {
            self.most.fetch_add(STEP, Ordering::SeqCst);
        }
        more
    }

    /// Requests `bytes` more.
    pub(crate) fn grow(&self, bytes: u64, what: &str) -> Result<(), OverLimit> {
        self.held.lock().grow(bytes, what)?;
        self.most.fetch_add(bytes, Ordering::SeqCst);
        Ok(())
    }

    /// Requests the memory for recovered versions.
    pub(crate) fn restore(&self) -> Result<(), OverLimit> {
        let taken = self.taken.load(Ordering::SeqCst);
        let most = self.most.load(Ordering::SeqCst);
        self.grow(taken.saturating_sub(most), "what ordered volumes hold")
    }

    /// Returns unneeded memory to the budget. Returns whether a writer waits for room.
    pub(crate) fn released(&self) -> bool {
        let spare = || {
            let (most, taken) =
                (self.most.load(Ordering::SeqCst), self.taken.load(Ordering::SeqCst));
            most.saturating_sub(taken + 2 * STEP)
        };
        if spare() >= 2 * STEP {
            let mut held = self.held.lock();
            let less = spare().min(held.bytes());
            held.shrink(less);
            self.most.fetch_sub(less, Ordering::SeqCst);
        }
        self.full.load(Ordering::SeqCst) && self.full.swap(false, Ordering::SeqCst)
    }
}
