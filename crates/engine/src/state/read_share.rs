//! The share of reads among the blocks that a volume's clients use: the probability that the next
//! use of a block is a read, not an overwrite.

use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

/// Blocks read and written.
type BlockTotals = (u64, u64);

/// Read share below which a volume is almost write-only, so that misses cost clients no time.
const NEXT_TO_NONE: f64 = 1.0 / 64.0;

/// See the module.
#[derive(Default)]
pub(crate) struct ReadShare {
    windows: Mutex<Windows>,
    is_only_written: AtomicBool,
}

/// Counters at the start of the previous window, and of this one.
#[derive(Default)]
struct Windows {
    before: BlockTotals,
    this: BlockTotals,
}

impl ReadShare {
    /// Returns the share in the last one or two windows of `window` blocks, from 0 to 1; 0 without
    /// blocks. `now`: all blocks so far.
    pub(crate) fn of(&self, now: BlockTotals, window: u64) -> f64 {
        let since =
            |start: BlockTotals| (now.0.saturating_sub(start.0), now.1.saturating_sub(start.1));
        let mut windows = self.windows.lock();
        let (reads, writes) = since(windows.this);
        if reads + writes >= window {
            *windows = Windows { before: windows.this, this: now };
        }
        let (reads, writes) = since(windows.before);
        let share = reads as f64 / (reads + writes).max(1) as f64;
        self.is_only_written.store(writes > 0 && share < NEXT_TO_NONE, Ordering::Relaxed);
        share
    }

    /// Returns whether clients hardly read, according to the last call of [`ReadShare::of`].
    pub(crate) fn is_only_written(&self) -> bool {
        self.is_only_written.load(Ordering::Relaxed)
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    #[test]
    fn old_windows_are_forgotten() {
        let share = ReadShare::default();
        assert_eq!(share.of((0, 0), 100), 0.0);
        assert!(!share.is_only_written(), "nothing is known");
        assert_eq!(share.of((30, 10), 100), 0.75);
        assert_eq!(share.of((90, 10), 100), 0.9);
        assert_eq!(share.of((90, 60), 100), 0.6);
        assert!(!share.is_only_written());
        assert_eq!(share.of((90, 110), 100), 0.0);
        assert!(share.is_only_written());
        assert_eq!(share.of((95, 110), 100), 5.0 / 105.0);
        assert!(!share.is_only_written());
    }
}
