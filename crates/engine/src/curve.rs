//! What caches of other sizes would have hit of a volume's requests: the lanes' side of it.
//!
//! Each lane counts blocks and looks whether a request touches the sample; of those that do, all
//! lanes tell the volume's [`Live`]. That is one request of some dozens or thousands, so that what
//! they share is seldom locked.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_core::{Op, OriginBlock};
use forebay_policy::curve::{Access, Live, Sample};
use forebay_policy::exact::Key;
use parking_lot::Mutex;

use crate::lane::LaneVolume;
use crate::stats::bump;

/// Blocks that one lane has read and written, on a cache line of its own.
#[derive(Default)]
#[repr(align(128))]
struct Counted {
    read: AtomicU64,
    written: AtomicU64,
}

/// What a volume knows.
pub(crate) struct Watched {
    live: Mutex<Live>,
    lanes: Mutex<Vec<Arc<Counted>>>,
}

impl Watched {
    /// `seed` says which blocks are sampled.
    pub(crate) fn new(seed: u64) -> Self {
        Watched { live: Mutex::new(Live::new(seed)), lanes: Mutex::default() }
    }

    /// All of it, as a copy: a lane may wait while it is made, for some tenths of a millisecond.
    pub(crate) fn copy(&self) -> Live {
        let mut live = self.live.lock().clone();
        for lane in self.lanes.lock().iter() {
            live.count(lane.read.load(Ordering::Relaxed), lane.written.load(Ordering::Relaxed));
        }
        live
    }

    /// A lane's part.
    pub(crate) fn watch(&self) -> Watch {
        let counted = Arc::new(Counted::default());
        self.lanes.lock().push(counted.clone());
        Watch { sample: Cell::new(self.live.lock().sample()), counted }
    }
}

/// One lane's part.
pub(crate) struct Watch {
    /// The sample when this lane last looked; blocks only leave it.
    sample: Cell<Sample>,
    counted: Arc<Counted>,
}

impl LaneVolume {
    /// Looks at a read or write that has been checked.
    #[inline]
    pub(crate) fn watch(&self, access: Access, offset: u64, len: u64) {
        let watch = &self.watch;
        let blocks = self.volume.blocks(offset..offset + len);
        let counted = match access {
            Access::Read => &watch.counted.read,
            Access::Write => &watch.counted.written,
        };
        bump(counted, blocks.end - blocks.start);
        let keys = Key(blocks.start)..Key(blocks.end);
        if watch.sample.get().touches(keys.clone()) {
            self.watch_sampled(|live| live.access(self.now(), access, keys));
        }
    }

    /// Looks at a discard or a write of zeroes that has been checked.
    pub(crate) fn watch_zeroed(&self, op: Op, offset: u64, len: u64) {
        if op == Op::WriteZeroes && len <= crate::discard::WRITTEN_ZEROES {
            self.watch(Access::Write, offset, len);
        } else if let Some((OriginBlock(first), OriginBlock(end))) = self.whole_blocks(offset, len)
        {
            self.watch_sampled(|live| live.discard(Key(first)..Key(end)));
        }
    }

    #[cold]
    #[inline(never)]
    fn watch_sampled(&self, tell: impl FnOnce(&mut Live)) {
        let mut live = self.volume.watched.live.lock();
        tell(&mut live);
        self.watch.sample.set(live.sample());
    }
}
