//! Syncs of an origin: which changes they make durable, and the effect of a failure.
//!
//! Syncs are made one after the other and numbered: a sync that began after a task arrived covers
//! everything that the task did before. The kernel reports a failed sync once, to the first caller,
//! and may have dropped the writes of all callers (invariant 18).

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use foldhash::fast::FixedState;
use forebay_core::OriginBlock;
use forebay_lane::Gate;
use parking_lot::Mutex;

/// A map from blocks of the origin. Every write through the cache inserts into two of these, so the
/// hash is a fast one. It is also fixed, so that the simulator can repeat its runs.
pub(crate) type BlockMap<T> = HashMap<OriginBlock, T, FixedState>;

/// Maximum number of blocks whose changes on the origin are tracked individually until the next
/// sync.
const MOST_UNSYNCED: usize = 1 << 16;

/// Number of blocks for which the table always keeps room.
const KEPT: usize = 1 << 10;

/// The syncs of one origin.
pub(crate) struct Syncs {
    /// Held by each sync.
    pub(crate) turn: Gate,
    begun: AtomicU64,
    /// The last sync that succeeded.
    ended: AtomicU64,
    /// The number of the last change by a client.
    changes: AtomicU64,
    /// The number of the last change that is durable.
    durable: AtomicU64,
    /// Blocks changed since the last sync, and the number of the last change of each.
    unsynced: Mutex<BlockMap<u64>>,
    /// Until a sync covers the change with this number, any block may have been changed. Starts at
    /// 1: the changes of an earlier run are unknown.
    all_unsynced: AtomicU64,
    failed: AtomicBool,
    failures: AtomicU64,
}

impl Default for Syncs {
    fn default() -> Self {
        Syncs {
            turn: Gate::default(),
            begun: AtomicU64::new(0),
            ended: AtomicU64::new(0),
            // Changes of an earlier run may not be durable, so the first flush syncs.
            changes: AtomicU64::new(1),
            durable: AtomicU64::new(0),
            unsynced: Mutex::default(),
            all_unsynced: AtomicU64::new(1),
            failed: AtomicBool::new(false),
            failures: AtomicU64::new(0),
        }
    }
}

impl Syncs {
    /// Records that a client's operation has changed these blocks on the origin.
    pub(crate) fn changed(&self, blocks: Range<u64>) {
        // The number is taken under the lock: a sync on another lane that covers it finds its
        // blocks.
        let mut unsynced = self.unsynced.lock();
        let number = self.changes.fetch_add(1, Ordering::SeqCst) + 1;
        let more = blocks.end.saturating_sub(blocks.start);
        if unsynced.len() as u64 + more > MOST_UNSYNCED as u64 {
            // Too many to track: until the next sync every block counts as changed.
            unsynced.clear();
            self.all_unsynced.store(number, Ordering::SeqCst);
            return;
        }
        for block in blocks {
            unsynced.insert(OriginBlock(block), number);
        }
    }

    /// Returns whether the origin may still lose its version of a block: then a copy of it must not
    /// outlive it in the cache (invariant 12).
    pub(crate) fn is_unsynced(&self, block: OriginBlock) -> bool {
        // Read under the lock, because a change may empty the table: the block is then found in one
        // of the two.
        let unsynced = self.unsynced.lock();
        let durable = self.durable.load(Ordering::SeqCst);
        self.all_unsynced.load(Ordering::SeqCst) > durable || unsynced.contains_key(&block)
    }

    /// Returns the number of the last change, which a sync starting now covers; `None` if
    /// everything is durable already.
    pub(crate) fn last_unsynced(&self) -> Option<u64> {
        let changes = self.changes.load(Ordering::SeqCst);
        (!self.is_durable(changes)).then_some(changes)
    }

    /// Returns whether the change with this number is durable.
    pub(crate) fn is_durable(&self, change: u64) -> bool {
        self.durable.load(Ordering::SeqCst) >= change
    }

    /// Records that the changes of an earlier run are durable.
    pub(crate) fn earlier_run_is_durable(&self) {
        self.covered(1);
    }

    /// Returns the number of the last sync that has begun.
    pub(crate) fn begun(&self) -> u64 {
        self.begun.load(Ordering::SeqCst)
    }

    /// Returns whether a sync has succeeded that began later than the one with this number.
    pub(crate) fn has_ended_since(&self, begun: u64) -> bool {
        self.ended.load(Ordering::SeqCst) > begun
    }

    /// Begins a sync. Returns its number, and the last change that it covers.
    pub(crate) fn begin(&self) -> (u64, u64) {
        let number = self.begun.fetch_add(1, Ordering::SeqCst) + 1;
        (number, self.changes.load(Ordering::SeqCst))
    }

    /// Makes every task that has written before, and waits for a sync, write again.
    pub(crate) fn doubt(&self) {
        self.failures.fetch_add(1, Ordering::SeqCst);
    }

    /// Records that a sync has succeeded which [`Syncs::begin`] returned.
    pub(crate) fn end(&self, (number, last): (u64, u64)) {
        self.covered(last);
        self.ended.store(number, Ordering::SeqCst);
    }

    fn covered(&self, last: u64) {
        if self.has_failed() {
            // The failed sync may have lost any of these changes.
            return;
        }
        self.durable.fetch_max(last, Ordering::SeqCst);
        let mut unsynced = self.unsynced.lock();
        unsynced.retain(|_, change| *change > last);
        // Each sync visits the whole table, even long after a burst of changes.
        unsynced.shrink_to(KEPT);
    }

    /// Records that a sync has failed. If the origin may have lost a client's change, flushes fail
    /// from now on, because no later sync proves that the change is there.
    pub(crate) fn fail(&self) {
        self.failures.fetch_add(1, Ordering::SeqCst);
        if self.last_unsynced().is_some() {
            self.failed.store(true, Ordering::SeqCst);
        }
    }

    /// Returns whether a failed sync may have lost a client's change.
    pub(crate) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::SeqCst)
    }

    /// Returns the number of failed syncs. A task that relies on a sync reads this before its first
    /// write, and must not rely on the sync if the number has changed.
    pub(crate) fn failures(&self) -> u64 {
        self.failures.load(Ordering::SeqCst)
    }
}
