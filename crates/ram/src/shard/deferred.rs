//! Deferred writes of a shard: data that only RAM has, until it is written down.
//!
//! Data is written down by region. [`Shard::take`] copies the dirty sectors of a region and marks
//! them as being written. A client may overwrite them meanwhile, which makes them dirty again. At
//! most one write-down of a region is in flight, and a sector that another request is replacing in
//! the lower tier is not written down at the same time. So data reaches the lower tier in the order
//! in which its writes were acknowledged.

use std::collections::{BTreeMap, VecDeque};
use std::ops::{Range, RangeInclusive};

use forebay_core::{Nanos, SECTOR_SIZE};
use forebay_device::IoBuf;
use forebay_policy::exact::{Key, Node};
use forebay_store::planted::{self, PlantedBug};

use super::Shard;
use super::turns::{Turn, Turns};
use crate::block::{Piece, RamBlockNumber, Region, bits, runs};
use crate::contents::Sectors;
use crate::counts::TierCounts;
use crate::index::Frame;

/// A region with pinned blocks. A block is pinned while RAM has data of it that the lower tier
/// lacks.
#[derive(Clone, Copy, Debug, Default)]
struct Pinned {
    /// Blocks with dirty or writing sectors.
    blocks: u32,
    /// Blocks with dirty sectors.
    dirty: u32,
    /// Time at which the oldest dirty data of the region was acknowledged.
    since: Nanos,
    /// Number of blocks for which requests in flight write newer data to the lower tier in place of
    /// deferred data.
    superseding: u32,
    /// Time at which the oldest data that these requests replace was acknowledged.
    superseded: Nanos,
    /// A write-down is in flight.
    busy: bool,
}

/// See the module.
#[derive(Default)]
pub(super) struct Deferred {
    /// Whether writes are deferred.
    on: bool,
    /// Largest share of the blocks that may be pinned, in percent.
    pub(super) share: u8,
    /// Maximum number of pinned blocks.
    most: u32,
    /// Pinned blocks.
    pub(super) pinned: u32,
    /// Dirty sectors.
    dirty: u64,
    /// Sectors being written.
    writing: u64,
    regions: BTreeMap<Region, Pinned>,
    /// Number of write-downs that have begun.
    begun: u64,
    /// Regions with a write-down in flight.
    busy: u32,
    /// The last write-downs that covered a whole region: the region, and the number of the
    /// write-down.
    whole: VecDeque<(Region, u64)>,
    /// Writes that wait for space.
    turns: Turns,
    /// Whether the last write-down failed for all of its blocks.
    failing: bool,
}

/// Number of write-downs of whole regions that are remembered for waiters.
const REMEMBERED: usize = 64;

/// Whether a write was deferred.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Defer {
    /// The write was deferred.
    Done {
        /// Whether to wake the write-down task: nothing else in the shard was dirty, or half of the
        /// space has just been used up.
        wakes: bool,
    },
    /// The write must go to the lower tier at once.
    Through,
    /// The write must wait until other data is written down.
    NoSpace,
}

/// A task that asks for a region's deferred data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Taker {
    /// Number of write-downs that had begun when the task first asked.
    since: u64,
    /// Whether the task has waited for another write-down of the region.
    waited: bool,
}

/// The answer to a request for a region's deferred data.
pub(crate) enum Take {
    /// There is no such data, or the data that existed when the taker first asked has been written
    /// down.
    None,
    /// Another request is writing some of the data to the lower tier: wait, and ask again.
    Busy,
    /// The caller has to write this data down.
    Taken(WriteDownBatch),
}

/// Deferred data of a region that is being written down.
pub(crate) struct WriteDownBatch {
    pub(crate) region: Region,
    blocks: Vec<(RamBlockNumber, u128)>,
    /// Data in ascending order: offset in bytes, and content.
    pub(crate) runs: Vec<(u64, IoBuf)>,
    /// The number of runs.
    pub(crate) requests: u64,
    pub(crate) bytes: u64,
    /// Time at which the oldest of this data was acknowledged.
    pub(crate) since: Nanos,
    /// Whether blocks of the region were left out because requests are writing them.
    pub(crate) partly: bool,
    /// Number of this write-down in its shard.
    number: u64,
    /// Whether it was taken for the whole region, so that it also serves other waiters.
    whole: bool,
}

/// Load of a shard or of a tier.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Load {
    /// Dirty bytes.
    pub(crate) bytes: u64,
    /// Bytes on their way to the lower tier.
    pub(crate) writing: u64,
    /// Pinned blocks.
    pub(crate) pinned: u64,
    /// Pinned blocks as a share of their maximum. For a tier, the highest share of its shards.
    pub(crate) fill: f64,
}

impl Shard {
    /// Starts to defer writes, with at most `share` percent of the blocks pinned; 0 ends deferring.
    pub(crate) fn set_deferring(&mut self, share: u8) {
        // All frames may be pinned; reads are then served from the lower tier and not cached. If
        // some frames were reserved for reads, a client that repeatedly overwrites a range as large
        // as the tier would have to wait in each round.
        self.deferred.share = share;
        self.deferred.most = (u64::from(self.room) * u64::from(share) / 100) as u32;
        self.deferred.on = share > 0 && self.keeps.1;
    }

    /// Returns the amount of deferred data.
    pub(crate) fn load(&self) -> Load {
        let Deferred { on, most, pinned, dirty, writing, .. } = self.deferred;
        // Once deferring is off, remaining data makes no write wait.
        let fill = if on { f64::from(pinned) / f64::from(most.max(1)) } else { 0.0 };
        let (bytes, writing) = (dirty * SECTOR_SIZE, writing * SECTOR_SIZE);
        Load { bytes, writing, pinned: pinned.into(), fill }
    }

    /// Returns the time at which the oldest dirty data was acknowledged.
    pub(crate) fn oldest(&self) -> Option<Nanos> {
        let dirty = self.deferred.regions.values().filter(|pinned| pinned.dirty > 0);
        dirty.map(|pinned| pinned.since).min()
    }

    /// Returns the first of these regions that has deferred data.
    pub(crate) fn first_region(&self, regions: RangeInclusive<Region>) -> Option<Region> {
        self.deferred.regions.range(regions).next().map(|(region, _)| *region)
    }

    /// Returns the regions with deferred data, and the time at which their oldest dirty data was
    /// acknowledged; `None` if all of it is being written down.
    pub(crate) fn regions(&self) -> impl Iterator<Item = (Region, Option<Nanos>)> {
        let since = |pinned: &Pinned| (pinned.dirty > 0).then_some(pinned.since);
        self.deferred.regions.iter().map(move |(region, pinned)| (*region, since(pinned)))
    }

    /// Returns whether RAM has data of this block that the lower tier lacks.
    pub(crate) fn is_pinned(&self, block: RamBlockNumber) -> bool {
        self.deferred.pinned > 0
            && self.find(block).is_some_and(|frame| self.contents.sectors(frame).pinned())
    }

    /// Passes on the sectors of a block that RAM has and the lower tier lacks: their numbers from
    /// the start of the range, and the bytes. Returns `false` if a request is replacing some of
    /// them in the lower tier.
    pub(crate) fn copy_deferred(
        &self,
        block: RamBlockNumber,
        sectors: &Range<u32>,
        mut pass: impl FnMut(usize, &[u8]),
    ) -> bool {
        let frame = self.find(block).filter(|_| self.deferred.pinned > 0);
        let Some(frame) = frame else { return true };
        let own = self.contents.sectors(frame);
        let held = own.held() & bits(sectors);
        if held & !own.valid != 0 {
            return false;
        }
        for run in runs(held) {
            pass((run.start - sectors.start) as usize, &self.data[self.bytes(frame, &run)]);
        }
        true
    }

    /// Adds this shard's counts.
    pub(crate) fn add_to(&self, sum: &mut TierCounts) {
        let counts = self.counts;
        sum.hits += counts.hits;
        sum.misses += counts.misses;
        sum.fills += counts.fills;
        sum.evictions += counts.evictions;
        sum.cached += self.len();
        sum.overhead_bytes += self.overhead();
        sum.deferred_bytes += self.load().bytes + self.load().writing;
        sum.deferred_written_bytes += counts.deferred * SECTOR_SIZE;
        sum.coalesced_bytes += counts.coalesced * SECTOR_SIZE;
        sum.superseded_bytes += counts.superseded * SECTOR_SIZE;
    }

    /// Returns the sectors of a frame because of which a write to the lower tier must wait: those
    /// that are being written there, and dirty ones unless the write certainly `replaces` them.
    pub(super) fn in_the_way(&self, frame: Frame, replaces: bool) -> u128 {
        let own = self.contents.sectors(frame);
        let writing = if planted::has(PlantedBug::WriteDownOvertaken) { 0 } else { own.writing };
        if replaces { writing } else { own.dirty | writing }
    }

    /// Returns whether a write to these parts of blocks in the lower tier must wait.
    pub(crate) fn waits(&self, mut pieces: impl Iterator<Item = Piece>, replaces: bool) -> bool {
        self.deferred.pinned > 0
            && pieces.any(|piece| {
                let frame = self.find(piece.block);
                frame.is_some_and(|frame| {
                    self.in_the_way(frame, replaces) & bits(&piece.sectors) != 0
                })
            })
    }

    /// Returns whether writes to all of these blocks would be deferred.
    pub(crate) fn may_defer(&self, blocks: impl Iterator<Item = RamBlockNumber>) -> bool {
        let mut pinned = self.deferred.pinned;
        self.deferred.on
            && blocks.into_iter().all(|block| {
                pinned += u32::from(!self.is_pinned(block));
                !self.is_written(block)
            })
            && (pinned == self.deferred.pinned
                || (pinned <= self.deferred.most && self.deferred.turns.is_next(None)))
    }

    /// Adds a write to those that wait for space.
    pub(crate) fn queue(&mut self, turn: Turn) {
        self.deferred.turns.queue(turn);
    }

    /// Removes a write from those that wait for space.
    pub(crate) fn leave_queue(&mut self, turn: Turn) {
        self.deferred.turns.leave(turn);
    }

    /// Returns a region whose write-down makes space for waiting writes: the next one from `near`
    /// on, cyclically, that is not `left_out`. Returns `None` if no write waits, or if at least as
    /// many write-downs are in flight as writes wait.
    pub(crate) fn awaited(
        &self,
        near: Region,
        left_out: impl Fn(Region) -> bool,
    ) -> Option<Region> {
        let (waiting, regions) = (self.deferred.turns.len(), &self.deferred.regions);
        if waiting == 0 || self.deferred.busy as usize >= waiting {
            return None;
        }
        let mut in_order = regions.range(near..).chain(regions.range(..near));
        let awaited = |(region, pinned): &(&Region, &Pinned)| {
            !pinned.busy && pinned.dirty > 0 && !left_out(**region)
        };
        in_order.find(awaited).map(|(region, _)| *region)
    }

    /// Returns whether the last write-down made no space, because it failed for all of its blocks.
    pub(crate) fn is_failing(&self) -> bool {
        self.deferred.failing
    }

    /// Writes sectors of a block to RAM, to be written down later. `turn` is the turn of a write
    /// that has waited for space.
    pub(crate) fn defer(
        &mut self,
        block: RamBlockNumber,
        sectors: &Range<u32>,
        data: &[u8],
        turn: Option<Turn>,
    ) -> Defer {
        // Another write of this block is in flight to the lower tier. If this one were deferred,
        // the order of the two would be undefined.
        if !self.deferred.on || self.is_written(block) {
            return Defer::Through;
        }
        let before = self.deferred.pinned;
        let is_next = self.deferred.turns.is_next(turn);
        let Some(frame) = self.pin(block, is_next) else {
            // Without pinned blocks, no write-down can make space: waiting would not end.
            return if before == 0 && is_next { Defer::Through } else { Defer::NoSpace };
        };
        let Deferred { pinned, most, .. } = self.deferred;
        let scarce = before < pinned && pinned == most / 2 + 1;
        let (mut own, written) = (self.contents.sectors(frame), bits(sectors));
        let bytes = self.bytes(frame, sectors);
        self.data[bytes].copy_from_slice(data);
        self.guards.deferred(block);
        let coalesced = u64::from((own.dirty & written).count_ones());
        self.counts.deferred += u64::from(sectors.end - sectors.start);
        self.counts.coalesced += coalesced;
        let wakes = self.deferred.dirty == 0 || scarce;
        let first = self.make_dirty(block, &mut own, written);
        if first && let Some(region) = self.deferred.regions.get_mut(&self.block.region_of(block)) {
            region.since = self.clock.now();
        }
        own.valid |= written;
        self.contents.set_sectors(frame, own);
        Defer::Done { wakes }
    }

    /// Pins a block and returns its frame. Returns `None` if there is no room, or if it is another
    /// write's turn.
    fn pin(&mut self, block: RamBlockNumber, is_next: bool) -> Option<Frame> {
        let found = self.find(block);
        if let Some(frame) = found.filter(|frame| self.contents.sectors(*frame).pinned()) {
            return Some(frame);
        }
        if !is_next || self.deferred.pinned >= self.deferred.most {
            return None;
        }
        let frame = match found {
            Some(frame) => {
                self.policy.remove(Node(frame.0));
                frame
            }
            None => {
                if self.is_full() && !self.evict() {
                    return None;
                }
                let frame = self.free.pop()?;
                self.place(block, frame);
                frame
            }
        };
        self.deferred.pinned += 1;
        self.deferred.regions.entry(self.block.region_of(block)).or_default().blocks += 1;
        Some(frame)
    }

    /// Returns a block that is no longer pinned to the replacement policy.
    fn unpin(&mut self, block: RamBlockNumber, frame: Frame) {
        self.deferred.pinned -= 1;
        let number = self.block.region_of(block);
        if let Some(region) = self.deferred.regions.get_mut(&number) {
            region.blocks -= 1;
            if region.blocks == 0 && !region.busy {
                self.deferred.regions.remove(&number);
            }
        }
        let key = Key(block.0);
        if !self.policy.admits(key) {
            self.release(frame);
        } else if let Some(Node(evicted)) = self.policy.insert(Node(frame.0), key) {
            self.evicted(Frame(evicted));
        }
    }

    /// Makes sectors of a pinned block dirty. Returns whether the region had no dirty block before.
    fn make_dirty(&mut self, block: RamBlockNumber, own: &mut Sectors, sectors: u128) -> bool {
        let mut first = false;
        if own.dirty == 0
            && let Some(region) = self.deferred.regions.get_mut(&self.block.region_of(block))
        {
            first = region.dirty == 0;
            region.dirty += 1;
        }
        self.deferred.dirty += u64::from((sectors & !own.dirty).count_ones());
        own.dirty |= sectors;
        first
    }

    /// Marks dirty sectors of a block as being written.
    fn begin_writing(&mut self, block: RamBlockNumber, own: &mut Sectors, sectors: u128) {
        if sectors == 0 {
            return;
        }
        own.writing |= sectors;
        own.dirty &= !sectors;
        self.deferred.dirty -= u64::from(sectors.count_ones());
        self.deferred.writing += u64::from(sectors.count_ones());
        if own.dirty == 0
            && let Some(region) = self.deferred.regions.get_mut(&self.block.region_of(block))
        {
            region.dirty -= 1;
        }
    }

    /// Marks dirty sectors of a block as being replaced in the lower tier.
    pub(super) fn begin_superseding(
        &mut self,
        block: RamBlockNumber,
        own: &mut Sectors,
        sectors: u128,
    ) {
        let number = self.block.region_of(block);
        if sectors != 0
            && let Some(region) = self.deferred.regions.get_mut(&number)
        {
            let others = region.superseding > 0;
            region.superseded =
                if others { region.superseded.min(region.since) } else { region.since };
            region.superseding += 1;
        }
        self.begin_writing(block, own, sectors);
    }

    /// Returns a new taker, which has asked at this moment.
    pub(crate) fn taker(&self) -> Taker {
        Taker { since: self.deferred.begun, waited: false }
    }

    /// Takes the deferred data of a region's blocks that touch `within`, to be written down.
    ///
    /// A taker that had to wait takes the whole region, which serves all other waiters as well. If
    /// each took only its own range, a waiter would have to wait for all others in turn, and for
    /// ever if new ones kept arriving.
    pub(crate) fn take(&mut self, region: Region, within: &Range<u64>, taker: &mut Taker) -> Take {
        let Some(pinned) = self.deferred.regions.get_mut(&region) else { return Take::None };
        let mut done = self.deferred.whole.iter().filter(|(number, _)| *number == region);
        if done.any(|(_, number)| *number > taker.since) {
            return Take::None;
        }
        if pinned.busy {
            taker.waited = true;
            return Take::Busy;
        }
        let (since, all) = (pinned.since, 0..u64::MAX);
        let within = if taker.waited { &all } else { within };
        let mut taken = WriteDownBatch {
            region,
            blocks: Vec::new(),
            runs: Vec::new(),
            requests: 0,
            bytes: 0,
            since,
            partly: false,
            number: self.deferred.begun + 1,
            whole: *within == all,
        };
        let mut pieces: Vec<(u64, Frame, Range<u32>)> = Vec::new();
        let size = self.block.bytes();
        let start = |block: &RamBlockNumber| block.0 * size;
        let touches =
            |it: &RamBlockNumber| start(it) < within.end && start(it) + size > within.start;
        for block in self.block.blocks_of(region).filter(touches) {
            let Some(frame) = self.find(block) else { continue };
            let mut own = self.contents.sectors(frame);
            if own.writing != 0 {
                taken.partly = true;
            } else if own.dirty != 0 {
                let start = block.0 << self.block.shift();
                let place = |run: &Range<u32>| start + u64::from(run.start) * SECTOR_SIZE;
                pieces.extend(runs(own.dirty).map(|run| (place(&run), frame, run)));
                taken.blocks.push((block, own.dirty));
                taken.bytes += u64::from(own.dirty.count_ones()) * SECTOR_SIZE;
                let dirty = own.dirty;
                self.begin_writing(block, &mut own, dirty);
                self.contents.set_sectors(frame, own);
            }
        }
        if taken.blocks.is_empty() {
            return if taken.partly { Take::Busy } else { Take::None };
        }
        let of_run = |one: &(u64, Frame, Range<u32>), next: &(u64, Frame, Range<u32>)| {
            one.0 + u64::from(one.2.end - one.2.start) * SECTOR_SIZE == next.0
        };
        taken.runs = pieces.chunk_by(of_run).map(|run| self.copy_run(run)).collect();
        taken.requests = taken.runs.len() as u64;
        if let Some(pinned) = self.deferred.regions.get_mut(&region) {
            pinned.busy = true;
        }
        self.deferred.begun = taken.number;
        self.deferred.busy += 1;
        Take::Taken(taken)
    }

    fn copy_run(&self, pieces: &[(u64, Frame, Range<u32>)]) -> (u64, IoBuf) {
        let sectors: u32 = pieces.iter().map(|(_, _, run)| run.end - run.start).sum();
        let mut data = IoBuf::for_overwrite(sectors as usize * SECTOR_SIZE as usize);
        let mut at = 0;
        for (_, frame, run) in pieces {
            let from = &self.data[self.bytes(*frame, run)];
            data[at..at + from.len()].copy_from_slice(from);
            at += from.len();
        }
        (pieces.first().map_or(0, |piece| piece.0), data)
    }

    /// Ends a write-down. The lower tier has the data of all blocks except those that touch
    /// `failed`, whose data becomes dirty again.
    pub(crate) fn settle(&mut self, taken: &WriteDownBatch, failed: &[Range<u64>]) {
        let done = failed.is_empty();
        if let Some(region) = self.deferred.regions.get_mut(&taken.region) {
            region.busy = false;
            self.deferred.busy -= 1;
            if !done {
                region.since = region.since.min(taken.since);
            } else if taken.whole && !taken.partly {
                self.deferred.whole.truncate(REMEMBERED - 1);
                self.deferred.whole.push_front((taken.region, taken.number));
            }
        }
        self.deferred.failing = true;
        for &(block, sectors) in &taken.blocks {
            let (start, size) = (block.0 << self.block.shift(), self.block.bytes());
            let fails = |range: &Range<u64>| start < range.end && range.start < start + size;
            let done = !failed.iter().any(fails) || planted::has(PlantedBug::LostWriteDown);
            self.deferred.failing &= !done;
            self.end_writing(block, sectors, done);
        }
    }

    /// Ends the writing of some sectors of a block. `done`: the lower tier has them or newer data;
    /// otherwise they become dirty again.
    fn end_writing(&mut self, block: RamBlockNumber, sectors: u128, done: bool) {
        // The tier may have been closed meanwhile.
        let Some(frame) = self.find(block) else { return };
        let mut own = self.contents.sectors(frame);
        if !own.pinned() {
            // Another request has ended the writing of these sectors and unpinned the block.
            return;
        }
        if !done {
            self.make_dirty(block, &mut own, sectors);
        } else if planted::has(PlantedBug::RewriteForgotten) {
            let rewritten = own.dirty & sectors;
            self.deferred.writing -= u64::from(rewritten.count_ones());
            self.begin_writing(block, &mut own, rewritten);
        }
        self.deferred.writing -= u64::from((own.writing & sectors).count_ones());
        own.writing &= !sectors;
        self.contents.set_sectors(frame, own);
        if !own.pinned() {
            self.unpin(block, frame);
        }
    }

    /// Ends a request that replaced deferred data of a block in the lower tier; returns whether
    /// there was such data. Unless `done`, the request failed and the data becomes dirty again.
    pub(super) fn end_superseding(
        &mut self,
        block: RamBlockNumber,
        sectors: &Range<u32>,
        done: bool,
    ) -> bool {
        if self.deferred.pinned == 0 {
            return false;
        }
        let Some(frame) = self.find(block) else { return false };
        let mut own = self.contents.sectors(frame);
        // No other request writes these sectors.
        let superseded = own.writing & bits(sectors);
        if superseded == 0 {
            return false;
        }
        if let Some(region) = self.deferred.regions.get_mut(&self.block.region_of(block)) {
            region.superseding = region.superseding.saturating_sub(1);
            if !done {
                // The age of the region again includes the data that was not replaced.
                region.since = region.since.min(region.superseded);
            }
        }
        if done {
            self.counts.superseded += u64::from(superseded.count_ones());
        } else {
            own.valid |= superseded;
            self.contents.set_sectors(frame, own);
        }
        self.end_writing(block, superseded, done);
        true
    }
}
