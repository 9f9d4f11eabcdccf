//! Offers: when RAM evicts a block that was read there more than once, the lower tier gets its
//! data, so that the block need not be read from the origin again.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use forebay_device::IoBuf;
use parking_lot::Mutex;

use crate::block::RamBlockNumber;
use crate::guard::Token;

/// Maximum number of waiting offers. RAM evicts one block for each that enters, and passes offers
/// on soon after that.
const MOST_OFFERS: u64 = 16;

/// Returns the most RAM that offers take, in bytes.
pub(crate) fn memory(block: u64) -> u64 {
    MOST_OFFERS * block
}

/// A block's data, as RAM had it when the block was evicted.
pub(crate) struct Offer {
    pub(crate) block: RamBlockNumber,
    pub(crate) data: IoBuf,
    /// Shows whether a write has begun since the eviction.
    pub(crate) token: Token,
}

/// Offers of one tier that no lane has passed on yet.
#[derive(Default)]
pub(crate) struct Offers {
    welcome: AtomicBool,
    waiting: AtomicUsize,
    queue: Mutex<VecDeque<Offer>>,
    made: AtomicU64,
}

impl Offers {
    /// Notes whether the lower tier can use offers at the moment.
    pub(crate) fn set_welcome(&self, welcome: bool) {
        // The flag shares a cache line with other lanes and rarely changes, so it is written only
        // when it does.
        if self.welcome.load(Ordering::Relaxed) != welcome {
            self.welcome.store(welcome, Ordering::Relaxed);
        }
    }

    /// Returns whether an offer made now would be passed on.
    pub(crate) fn are_welcome(&self) -> bool {
        self.welcome.load(Ordering::Relaxed)
            && self.waiting.load(Ordering::Relaxed) < MOST_OFFERS as usize
    }

    /// Makes an offer.
    pub(crate) fn push(&self, offer: Offer) {
        let mut queue = self.queue.lock();
        queue.push_back(offer);
        self.waiting.store(queue.len(), Ordering::Relaxed);
        self.made.fetch_add(1, Ordering::Relaxed);
    }

    /// Takes the oldest offer.
    #[inline]
    pub(crate) fn pop(&self) -> Option<Offer> {
        if self.waiting.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let mut queue = self.queue.lock();
        let offer = queue.pop_front();
        self.waiting.store(queue.len(), Ordering::Relaxed);
        offer
    }

    /// Returns the number of offers made.
    pub(crate) fn made(&self) -> u64 {
        self.made.load(Ordering::Relaxed)
    }
}
