//! What caches of other sizes would have hit of a volume's requests: the lanes' side of it.
//!
//! Each lane counts blocks and looks whether a request touches the sample; of those that do, all
//! lanes tell the volume's [`Live`]. That is one request of some dozens or thousands, so that what
//! they share is seldom locked.
//!
//! A request is not to be slowed down by this. So the sample that volumes begin with is a constant,
//! which most requests need no memory for to see that they do not touch it, and what is counted is
//! beside what is counted anyway.

use std::cell::Cell;

use forebay_core::{Op, OriginBlock};
use forebay_policy::curve::{Access, Live, Sample};
use forebay_policy::exact::Key;
use parking_lot::Mutex;

use crate::lane::LaneVolume;
use crate::stats::{LaneStats, bump};

/// Which blocks are sampled, of all volumes.
const SEED: u64 = 0;

/// What is sampled at first, and all that ever will be.
const FIRST: Sample = Live::first_sample(SEED);

/// What a volume knows.
pub(crate) struct Watched(Mutex<Live>);

impl Watched {
    pub(crate) fn new() -> Self {
        Watched(Mutex::new(Live::new(SEED)))
    }

    /// What the sample has shown, as a copy: a lane may wait while it is made, for some tenths of a
    /// millisecond.
    pub(crate) fn copy(&self) -> Live {
        self.0.lock().clone()
    }
}

/// One lane's part: the sample when this lane last looked. Blocks only leave it.
pub(crate) struct Watch(Cell<Sample>);

impl Watch {
    pub(crate) fn new() -> Self {
        Watch(Cell::new(FIRST))
    }
}

impl LaneVolume {
    /// Looks at a read or write that has been checked.
    pub(crate) fn watch(&self, access: Access, offset: u64, len: u64) {
        self.watch_on(self.stats(), access, offset, len);
    }

    /// As [`LaneVolume::watch`], for who has the numbers of this lane at hand.
    #[inline]
    pub(crate) fn watch_on(&self, stats: &LaneStats, access: Access, offset: u64, len: u64) {
        let blocks = self.volume.blocks(offset..offset + len);
        let counted = match access {
            Access::Read => &stats.read_blocks,
            Access::Write => &stats.written_blocks,
        };
        bump(counted, blocks.end - blocks.start);
        let keys = Key(blocks.start)..Key(blocks.end);
        if FIRST.touches(keys.clone()) {
            self.watch_closely(access, keys);
        }
    }

    #[cold]
    #[inline(never)]
    fn watch_closely(&self, access: Access, keys: std::ops::Range<Key>) {
        if self.watch.0.get().touches(keys.clone()) {
            self.tell(|live| {
                if live.access(access, keys) {
                    live.settle(self.now());
                }
            });
        }
    }

    /// Looks at a discard or a write of zeroes that has been checked.
    pub(crate) fn watch_zeroed(&self, op: Op, offset: u64, len: u64) {
        if op == Op::WriteZeroes && len <= crate::discard::WRITTEN_ZEROES {
            self.watch(Access::Write, offset, len);
        } else if let Some((OriginBlock(first), OriginBlock(end))) = self.whole_blocks(offset, len)
        {
            self.tell(|live| live.discard(Key(first)..Key(end)));
        }
    }

    fn tell(&self, what: impl FnOnce(&mut Live)) {
        let mut live = self.volume.watched.0.lock();
        what(&mut live);
        self.watch.0.set(live.sample());
    }
}
