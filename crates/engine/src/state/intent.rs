//! Regions in which a volume may be dirty, recorded outside of the cache device before a flush is
//! answered: `io::notes` writes the note.
//!
//! If the cache device is gone when the daemon starts, only this note shows the dirty blocks that
//! were lost with it. The origin is divided into at most 4096 regions. A region enters the note
//! with the first commit after one of its blocks becomes dirty, and leaves it some time after its
//! last dirty block. A write that makes a clean block dirty checks one bit.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use forebay_policy::sweep::DirtyMap;
use parking_lot::Mutex;

/// Number of regions in a note that must have become clean before writing a shorter one is
/// worthwhile.
pub(crate) const WORTH_SHRINKING: u64 = 16;

/// The regions of a volume that are in the note, or must be added to it.
pub(crate) struct Intent {
    /// Regions that writes need not request: they are in the note, or there is no ledger.
    pub(crate) noted: Box<[AtomicU64]>,
    /// Regions that the next note must contain.
    pub(crate) wanted: Box<[AtomicU64]>,
    /// Number of regions requested since all were in a durable note.
    requests: AtomicU64,
    /// The regions in the note, which may be more than are dirty; and whether the note is being
    /// shortened.
    pub(crate) filed: Mutex<(Vec<u64>, bool)>,
    /// Whether a note is late because the ledger does not answer; flushes do not wait for it.
    pub(crate) late: Arc<AtomicBool>,
}

fn words(regions: usize) -> Box<[AtomicU64]> {
    (0..regions.div_ceil(64)).map(|_| AtomicU64::new(0)).collect()
}

impl Intent {
    pub(crate) fn new(regions: usize) -> Self {
        let (noted, wanted) = (words(regions), words(regions));
        let filed = Mutex::new((vec![0; noted.len()], false));
        Intent { noted, wanted, requests: AtomicU64::new(0), filed, late: Arc::default() }
    }

    /// Requests a region in which a block became dirty.
    #[inline]
    pub(crate) fn dirtied(&self, region: usize) {
        let bit = 1 << (region % 64);
        if self.noted[region / 64].load(Ordering::Relaxed) & bit == 0 {
            self.wanted[region / 64].fetch_or(bit, Ordering::SeqCst);
            self.requests.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Resets the requests, unless regions were requested meanwhile: a flush after a request waits
    /// for a note, so the count must never be 0 in between.
    pub(crate) fn all_noted(&self) {
        let seen = self.requests.load(Ordering::SeqCst);
        if self.wanted.iter().all(|word| word.load(Ordering::SeqCst) == 0) {
            // A task that requested a region after its word was read has incremented the count, or
            // is about to.
            let _ = self.requests.compare_exchange(seen, 0, Ordering::SeqCst, Ordering::Relaxed);
        }
    }

    /// Disables requests, because there is no ledger.
    pub(crate) fn is_pointless(&self) {
        self.noted.iter().for_each(|word| word.store(u64::MAX, Ordering::Relaxed));
        self.requests.store(0, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn is_wanted(&self) -> bool {
        self.requests.load(Ordering::SeqCst) > 0
    }

    /// Returns whether an earlier note is late.
    pub(crate) fn is_late(&self) -> bool {
        self.late.load(Ordering::SeqCst)
    }
}

pub(crate) fn count(words: &[u64]) -> u64 {
    words.iter().map(|word| u64::from(word.count_ones())).sum()
}

/// Returns the regions that have dirty blocks.
pub(crate) fn dirty_regions(map: &DirtyMap) -> Vec<u64> {
    let mut words = vec![0u64; map.regions().div_ceil(64)];
    for region in (0..map.regions()).filter(|region| map.dirty_in(*region) > 0) {
        words[region / 64] |= 1 << (region % 64);
    }
    words
}
