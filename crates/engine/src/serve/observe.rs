//! Counts the blocks of requests and samples them, for the miss-ratio curve.

use forebay_core::{Op, OriginBlock};
use forebay_policy::curve::Access;
use forebay_policy::exact::Key;

use crate::lane::LaneVolume;
use crate::path::discard::Discarder;
use crate::state::curve::FIRST;
use crate::stats::{LaneStats, bump};

/// Tells the miss-ratio curve about requests.
#[derive(Clone, Copy)]
pub(crate) struct Observer<'a>(pub(crate) &'a LaneVolume);

impl Observer<'_> {
    /// Observes a read or write whose range has been checked.
    pub(crate) fn watch(self, access: Access, offset: u64, len: u64) {
        self.watch_on(self.0.stats(), access, offset, len);
    }

    /// Like [`Observer::watch`], for callers that already have this lane's counters.
    #[inline]
    pub(crate) fn watch_on(self, stats: &LaneStats, access: Access, offset: u64, len: u64) {
        let blocks = self.0.volume.blocks(offset..offset + len);
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
    fn watch_closely(self, access: Access, keys: std::ops::Range<Key>) {
        self.0.watch.access(&self.0.volume.watched, access, keys, || self.0.now());
    }

    /// Observes a discard or a write of zeroes whose range has been checked.
    pub(crate) fn watch_zeroed(self, op: Op, offset: u64, len: u64) {
        if op == Op::WriteZeroes && len <= crate::path::memory::WRITTEN_ZEROES {
            self.watch(Access::Write, offset, len);
        } else if let Some((OriginBlock(first), OriginBlock(end))) =
            Discarder(self.0).whole_blocks(offset, len)
        {
            let keys = Key(first)..Key(end);
            self.0.watch.discard(&self.0.volume.watched, keys, || self.0.now());
        }
    }
}
