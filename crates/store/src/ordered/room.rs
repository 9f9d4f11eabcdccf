//! The memory for what ordered volumes hold.
//!
//! Clients decide how much that is, so they wait where there is no memory for more of it: the next groups
//! have to reach their origins first. What was acknowledged is put in order all the same.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use forebay_core::{OriginBlock, SectorMask, VolumeId};
use forebay_lane::{MemoryBudget, MemoryHold, MemoryUse, OverLimit};
use parking_lot::Mutex;

use super::queue::OrderedVersion;
use crate::store::Store;

/// Bytes that are there for it in any case.
const LEAST: u64 = 256 << 10;

/// Versions that each volume may have, whatever the others have: their origins may take nothing.
const OWN: u64 = 1024;

/// Bytes that are asked for at a time.
const STEP: u64 = 256 << 10;

/// Bytes for a version, at most: its place in its group, whose nodes are half full at least, and a copy
/// while it is written and settled.
const VERSION: usize = size_of::<(OriginBlock, OrderedVersion)>() * 9 / 2 + 32;

/// See the module.
pub(super) struct Room {
    /// Bytes of all versions that are held.
    taken: AtomicU64,
    /// Bytes that they may take.
    most: AtomicU64,
    held: Mutex<MemoryHold>,
    /// Somebody waits for room.
    full: AtomicBool,
}

/// Bytes for a version.
fn bytes_of(version: &OrderedVersion) -> u64 {
    let mask = version.mask.as_ref().map_or(0, |mask| {
        let words = mask.sectors().div_ceil(64) as usize - 1;
        2 * (size_of::<SectorMask>() + 32 + words * 8)
    });
    (VERSION + mask) as u64
}

impl Room {
    pub(super) fn new(memory: &Arc<MemoryBudget>) -> Self {
        let held = Mutex::new(MemoryHold::none(memory, MemoryUse::Background));
        let (taken, most) = (AtomicU64::new(0), AtomicU64::new(LEAST));
        Room { taken, most, held, full: AtomicBool::new(false) }
    }

    pub(super) fn add(&self, version: &OrderedVersion) {
        self.taken.fetch_add(bytes_of(version), Ordering::SeqCst);
    }

    pub(super) fn remove(&self, version: &OrderedVersion) {
        self.taken.fetch_sub(bytes_of(version), Ordering::SeqCst);
    }

    fn is_left(&self) -> bool {
        self.taken.load(Ordering::SeqCst) < self.most.load(Ordering::SeqCst)
    }

    fn ask(&self) -> bool {
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

    /// Asks for `bytes` more than there are.
    fn grow(&self, bytes: u64, what: &str) -> Result<(), OverLimit> {
        self.held.lock().grow(bytes, what)?;
        self.most.fetch_add(bytes, Ordering::SeqCst);
        Ok(())
    }

    /// Memory for what recovery has found.
    pub(super) fn restore(&self) -> Result<(), OverLimit> {
        let taken = self.taken.load(Ordering::SeqCst);
        let most = self.most.load(Ordering::SeqCst);
        self.grow(taken.saturating_sub(most), "what ordered volumes hold")
    }

    /// Gives back what is not needed. Whether somebody waits for room.
    pub(super) fn released(&self) -> bool {
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

impl Store {
    /// Whether an ordered volume may hold more. If not, wait for [`Store::space`].
    pub fn has_room_in_order(&self, id: VolumeId) -> bool {
        let room = &self.ordered.room;
        if room.is_left() || room.ask() {
            return true;
        }
        // Told first: what is released from now on is noticed.
        room.full.store(true, Ordering::SeqCst);
        room.is_left() || self.held_versions(id) < OWN
    }

    /// Whether somebody waits for ordered volumes to hold less.
    pub fn is_order_full(&self) -> bool {
        self.ordered.room.full.load(Ordering::Relaxed)
    }

    /// Makes room for so many versions at once, as a volume is put in order.
    ///
    /// # Errors
    /// There is not so much memory.
    pub fn make_room_in_order(&self, versions: u64) -> Result<(), OverLimit> {
        self.ordered.room.grow(versions * VERSION as u64, "what is dirty, in order,")
    }
}
