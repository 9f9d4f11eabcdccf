//! A world under the requests of a trace: discards too, the cached blocks before a request, and
//! the content of the log.

use std::sync::atomic::Ordering;

use forebay_core::{Op, OriginBlock, SECTOR_SIZE};
use forebay_policy::whatif::Prediction;

use crate::error::LabResult;
use crate::rig::request;

use super::super::access::Access;
use super::super::clients::Server;
use super::World;

/// Unit of counting, whatever the cache's own blocks are.
pub(crate) const UNIT: u64 = 4096;

/// Blocks of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Looked {
    pub(crate) blocks: u64,
    /// Blocks that are not in the cache, or lack sectors that are to be read.
    pub(crate) missed: u64,
    /// Missed blocks that are in the cache, but with other sectors.
    pub(crate) uncovered: u64,
    /// Blocks in RAM with all requested sectors.
    pub(crate) in_ram: u64,
}

impl Looked {
    /// Adds what another request found.
    pub(crate) fn add(&mut self, other: &Looked) {
        self.blocks += other.blocks;
        self.missed += other.missed;
        self.uncovered += other.uncovered;
        self.in_ram += other.in_ram;
    }
}

/// Payload written to the log, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LogCounts {
    /// For clients' writes and for fills.
    pub(crate) appended: u64,
    /// In total: `appended`, and blocks that reclaim reinserted.
    pub(crate) payload: u64,
    /// The part of the reinserted payload that was only newer than the origin.
    pub(crate) carried_dirty: u64,
}

impl World {
    /// Starts a request of any kind. `true`: it has ended already.
    pub(crate) fn ask(&mut self, client: u32, op: Op, offset: u64, len: u64) -> LabResult<bool> {
        if matches!(op, Op::Read | Op::Write) {
            return self.start(client, &Access { offset, len, write: op == Op::Write });
        }
        self.top.submit(request(client.into(), op, offset, len, None), &self.as_sink);
        Ok(false)
    }

    /// Counts hits and misses of a read or a write that is about to begin. The blocks do not count
    /// as used.
    pub(crate) fn look(&self, op: Op, offset: u64, len: u64) -> Looked {
        let mut looked = Looked::default();
        let store = &self.engine.cache.store;
        let Some(space) = store.space_of(self.target.volume().id) else { return looked };
        let end = offset + len;
        for unit in offset / UNIT..end.div_ceil(UNIT) {
            let (start, end) = ((unit * UNIT).max(offset), ((unit + 1) * UNIT).min(end));
            looked.blocks += 1;
            if self.tier.as_ref().is_some_and(|tier| tier.has(start, end - start)) {
                looked.in_ram += 1;
                continue;
            }
            let (mut absent, mut uncovered) = (false, false);
            for block in start / self.block..end.div_ceil(self.block) {
                let first = block * self.block;
                let from = (start.max(first) - first) / SECTOR_SIZE;
                let to = (end.min(first + self.block) - first).div_ceil(SECTOR_SIZE);
                match store.peek(&space, OriginBlock(block)) {
                    None => absent = true,
                    Some(found) if op == Op::Read => {
                        let range = from as u32..to as u32;
                        uncovered |= found.mask.is_some_and(|mask| !mask.contains_range(range));
                    }
                    Some(_) => (),
                }
            }
            looked.missed += u64::from(absent || uncovered);
            looked.uncovered += u64::from(uncovered && !absent);
        }
        looked
    }

    /// Brings everything to the origin, durably, and writes what the log still has in RAM.
    pub(crate) fn bring_home(&mut self) -> LabResult<()> {
        self.plain(Op::Flush, 0, 0)?;
        self.drain()?;
        self.plain(Op::Flush, 0, 0)
    }

    /// Returns the payload written to the log, complete after a [`World::bring_home`].
    pub(crate) fn log_counts(&self) -> LogCounts {
        let totals = self.target.volume().stats.totals();
        let store = &self.engine.cache.store;
        let block = store.block_size().bytes();
        LogCounts {
            appended: totals.cache_written_bytes - totals.reinserted_blocks * block,
            carried_dirty: totals.reinserted_dirty_blocks * block,
            payload: store.counters.payload_bytes.load(Ordering::Relaxed),
        }
    }

    /// Returns predictions for other settings so far, the present ones first.
    pub(crate) fn predictions(&self) -> Vec<Prediction> {
        match &self.tier {
            Some(tier) => tier.what_if().0,
            None => self.target.volume().what_if().0,
        }
    }

    /// Blocks in the cache.
    pub(crate) fn live_blocks(&self) -> u64 {
        self.engine.cache.store.index.len()
    }
}
