//! Client requests of a volume with a RAM tier: counts of the requests by the tier that served
//! them, and the miss-ratio curve of all.
//!
//! The tier below sees only the misses of RAM, so its curve cannot tell what more RAM would serve.
//! So the tier has a curve of its own, over all client reads and writes.
//!
//! A hit in RAM must cost next to nothing. Each [`Watcher`] has counters that it alone writes, and
//! decides by itself, without memory that others write, whether a request touches the sample. Only
//! the few that do take the lock of the curve. The counters of a hit share one cache line, which is
//! prefetched: copies of data evict it from the first-level cache, and a miss costs more than the
//! rest of the bookkeeping.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_core::{Clock, SECTOR_SIZE};
use forebay_device::hint::{Spot, fetch_to_write};
use forebay_engine::{BlockService, FIRST, VolumeCurve as Seen, Watch};
use forebay_lane::MemoryBudget;
use forebay_policy::curve::{Access, LiveCurve};
use forebay_policy::exact::Key;
use forebay_policy::whatif::{Prediction, Setup};
use parking_lot::Mutex;

macro_rules! traffic {
    ($($name:ident $help:literal,)*) => {
        /// Requests of clients since the tier was made.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Traffic {
            $(#[doc = $help] pub $name: u64,)*
        }

        #[derive(Default)]
        #[repr(C)]
        struct Counters {
            $($name: AtomicU64,)*
        }

        impl Counters {
            fn add_to(&self, sum: &mut Traffic) {
                $(sum.$name += self.$name.load(Ordering::Relaxed);)*
            }
        }
    };
}

traffic! {
    ram_reads "Reads answered from RAM alone.",
    ram_read_bytes "Bytes of these.",
    read_blocks "Blocks read, in the lower tier's size; repeated accesses count each time.",
    written_blocks "Blocks written, likewise.",
    ram_writes "Writes taken into RAM, to be written down later. With FUA, at once.",
    ram_written_bytes "Bytes of these.",
    passed_writes "Writes passed on to the lower tier, in part or whole, before they were acknowledged.",
    passed_written_bytes "Bytes of these.",
}

/// Adds to a counter that only the calling lane writes.
#[inline]
fn bump(counter: &AtomicU64, by: u64) {
    // A single writer needs no locked instruction.
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(by), Ordering::Relaxed);
}

/// The part of a watcher that each request needs, on cache lines of its own.
#[repr(C, align(128))]
struct Own {
    /// The lower tier's block, as a power of two, and the bytes by which its blocks are shifted.
    block: (u32, u64),
    counters: Counters,
}

/// The sums of all watchers of a tier.
pub(crate) struct WatcherSums {
    seen: Seen,
    all: Mutex<Watchers>,
    clock: Arc<dyn Clock>,
}

#[derive(Default)]
struct Watchers {
    present: Vec<Arc<Own>>,
    /// The counts of watchers that are gone.
    past: Traffic,
}

impl WatcherSums {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Arc<Self> {
        Arc::new(WatcherSums { seen: Seen::default(), all: Mutex::default(), clock })
    }

    /// Returns the present counts.
    pub(crate) fn traffic(&self) -> Traffic {
        let all = self.all.lock();
        let mut sum = all.past;
        all.present.iter().for_each(|own| own.counters.add_to(&mut sum));
        sum
    }

    fn blocks(&self) -> (u64, u64) {
        let Traffic { read_blocks, written_blocks, .. } = self.traffic();
        (read_blocks, written_blocks)
    }

    /// Returns the miss-ratio curve.
    pub(crate) fn curve(&self) -> LiveCurve {
        self.seen.curve(self.clock.now(), self.blocks())
    }

    /// See [`Seen::simulate`].
    pub(crate) fn simulate(&self, setup: Option<Setup>, memory: &Arc<MemoryBudget>) {
        self.seen.simulate(setup, self.blocks(), memory);
    }

    /// See [`Seen::what_if`].
    pub(crate) fn what_if(&self) -> (Vec<Prediction>, (u64, u64)) {
        self.seen.what_if(self.clock.now(), self.blocks())
    }

    /// See [`Seen::catch_up`]. `dirty`: blocks of the volume below that are dirty.
    pub(crate) fn catch_up(&self, dirty: u64) {
        self.seen.set_dirty(dirty);
        self.seen.catch_up(self.clock.now());
    }
}

/// Watches the requests that one [`crate::RamVolume`] gets.
#[derive(Clone)]
pub(crate) struct Watcher {
    own: Arc<Own>,
    close: Rc<Close>,
}

/// The part of a watcher that only requests for sampled blocks need.
struct Close {
    watched: Arc<WatcherSums>,
    own: Arc<Own>,
    watch: Watch,
}

impl Watcher {
    /// Watches requests in blocks of `lower`.
    pub(crate) fn new(watched: &Arc<WatcherSums>, lower: &dyn BlockService) -> Self {
        let bytes = lower.preferred_block().max(SECTOR_SIZE).next_power_of_two();
        // The first block is shortened by the alignment of blocks.
        let first = lower.whole_blocks(0..SECTOR_SIZE).end;
        let block = (bytes.trailing_zeros(), bytes.saturating_sub(first));
        let own = Arc::new(Own { block, counters: Counters::default() });
        watched.all.lock().present.push(own.clone());
        let close = Close { watched: watched.clone(), own: own.clone(), watch: Watch::default() };
        Watcher { own, close: Rc::new(close) }
    }

    /// Prefetches the counters. Called before the data is copied: afterwards the prefetch would
    /// queue behind those of other requests' data.
    #[inline]
    pub(crate) fn expect(&self) {
        fetch_to_write(Spot::of(&*self.own));
    }

    /// Notes a read that RAM has answered.
    #[inline]
    pub(crate) fn ram_read(&self, offset: u64, len: u64) {
        bump(&self.own.counters.ram_reads, 1);
        bump(&self.own.counters.ram_read_bytes, len);
        self.accessed(Access::Read, offset, len);
    }

    /// Notes a write that RAM has taken.
    #[inline]
    pub(crate) fn ram_write(&self, len: u64) {
        bump(&self.own.counters.ram_writes, 1);
        bump(&self.own.counters.ram_written_bytes, len);
    }

    /// Notes a write that the lower tier gets.
    pub(crate) fn passed_write(&self, len: u64) {
        bump(&self.own.counters.passed_writes, 1);
        bump(&self.own.counters.passed_written_bytes, len);
    }

    /// Notes for the curve that a client reads or writes a range.
    #[inline]
    pub(crate) fn accessed(&self, access: Access, offset: u64, len: u64) {
        let (shift, shifted) = self.own.block;
        let start = offset + shifted;
        let blocks = start >> shift..((start + len - 1) >> shift) + 1;
        let counter = match access {
            Access::Read => &self.own.counters.read_blocks,
            Access::Write => &self.own.counters.written_blocks,
        };
        bump(counter, blocks.end - blocks.start);
        let keys = Key(blocks.start)..Key(blocks.end);
        if FIRST.touches(keys.clone()) {
            let watched = &self.close.watched;
            self.close.watch.access(&watched.seen, access, keys, || watched.clock.now());
        }
    }

    /// Notes for the curve that a client discards or zeroes a range.
    pub(crate) fn removed(&self, offset: u64, len: u64) {
        let (shift, shifted) = self.own.block;
        let start = offset + shifted;
        let whole = (start + (1 << shift) - 1) >> shift..(start + len) >> shift;
        if !whole.is_empty() {
            let keys = Key(whole.start)..Key(whole.end);
            let watched = &self.close.watched;
            self.close.watch.discard(&watched.seen, keys, || watched.clock.now());
        }
    }
}

impl Drop for Close {
    fn drop(&mut self) {
        let mut all = self.watched.all.lock();
        self.own.counters.add_to(&mut all.past);
        all.present.retain(|own| !Arc::ptr_eq(own, &self.own));
    }
}
