//! A part of a tier's blocks, under one lock: index, data, policy, and the requests in flight.
//!
//! The policy knows the blocks that it may evict. A block with deferred data is **pinned**: it
//! stays in its frame until the data is written down, and the policy does not know it.

use std::io;
use std::ops::{Range, RangeInclusive};
use std::sync::Arc;

use forebay_core::{Clock, SECTOR_SIZE};
use forebay_device::hint::{Spot, fetch};
use forebay_device::{Area, IoBuf};
use forebay_policy::exact::{BlockPolicy, Key, Node, build};
use forebay_store::planted::{self, PlantedBug};

use crate::block::{Piece, RamBlock, RamBlockNumber, Region, bits, runs};
use crate::contents::{FrameContents, Sectors};
use crate::guard::{Guards, Token};
use crate::index::{Frame, Index};
use crate::offer::{Offer, Offers};
use crate::options::{Keeps, TierOptions};

mod deferred;
mod held;
mod room;
mod turns;

use deferred::Deferred;
pub(crate) use deferred::{Defer, Load, Take, Taker, WriteDownBatch};
use held::RegionCounts;
pub(crate) use turns::Turn;

/// Sectors of a block that a hint prefetches.
const EXPECTED_SECTORS: u32 = 8;

/// One hit in this many is reported to the lower tier. That is enough to keep blocks that are hot
/// here from being evicted there, at a small part of the cost of reporting all.
const TOLD_EVERY: u64 = 16;

/// A read that was served from RAM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hit {
    /// No report to the lower tier.
    Quiet,
    /// The lower tier is told.
    Tell,
}

/// Counts of one shard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ShardCounts {
    pub(crate) hits: u64,
    pub(crate) misses: u64,
    pub(crate) fills: u64,
    pub(crate) evictions: u64,
    /// Sectors taken into RAM as deferred writes.
    pub(crate) deferred: u64,
    /// Sectors overwritten before they were written down.
    pub(crate) coalesced: u64,
    /// Sectors replaced in the lower tier by a later request before they were written down.
    pub(crate) superseded: u64,
}

/// See the module.
pub(crate) struct Shard {
    block: RamBlock,
    index: Index,
    /// The blocks in `index`.
    held: RegionCounts,
    contents: FrameContents,
    free: Vec<Frame>,
    data: Area,
    policy: Box<dyn BlockPolicy>,
    /// Maximum number of blocks; there is one more frame.
    capacity: u32,
    /// Present limit of the number of blocks.
    room: u32,
    guards: Guards,
    /// The blocks of each write that is in flight to the lower tier.
    written: Vec<RangeInclusive<RamBlockNumber>>,
    offers: Arc<Offers>,
    deferred: Deferred,
    clock: Arc<dyn Clock>,
    /// Whether read data is cached, and whether written data is.
    keeps: (bool, bool),
    /// Whether no other block may enter.
    frozen: bool,
    pub(crate) counts: ShardCounts,
}

impl Shard {
    /// Creates an empty shard for `frames` blocks, fewer than [`crate::index::MOST_FRAMES`]; with 0
    /// it stays empty.
    ///
    /// # Errors
    /// The system has no memory.
    pub(crate) fn new(
        options: &TierOptions,
        frames: u32,
        seed: u64,
        clock: &Arc<dyn Clock>,
        offers: &Arc<Offers>,
    ) -> io::Result<Self> {
        // One more than there are blocks, because a block enters before the evicted one leaves.
        let nodes = if frames == 0 { 0 } else { frames + 1 };
        let mut data = Area::new(nodes as usize * options.block.bytes() as usize)?;
        if options.locked {
            data.lock()?;
        }
        Ok(Shard {
            block: options.block,
            index: Index::new(nodes),
            held: RegionCounts::new(nodes),
            contents: FrameContents::new(nodes, options.block),
            free: (0..nodes).rev().map(Frame).collect(),
            data,
            policy: build(options.policy, frames, nodes, seed),
            capacity: frames,
            room: frames,
            guards: Guards::default(),
            written: Vec::new(),
            offers: offers.clone(),
            deferred: Deferred::default(),
            clock: clock.clone(),
            keeps: (options.strategy.keeps_reads(), options.strategy.keeps_writes()),
            frozen: false,
            counts: ShardCounts::default(),
        })
    }

    /// Replaces this shard by `other`, which is empty. Keeps the state that requests in flight rely
    /// on, the frozen state, and the counts. Returns the previous shard, which should be dropped
    /// without the lock, because that takes a while.
    #[must_use]
    pub(crate) fn replace(&mut self, other: Shard) -> Shard {
        let (guards, frozen, counts) = (self.guards, self.frozen, self.counts);
        let written = std::mem::take(&mut self.written);
        std::mem::replace(self, Shard { guards, written, frozen, counts, ..other })
    }

    /// Freezes the shard, so that no block enters, or unfreezes it.
    pub(crate) fn freeze(&mut self, frozen: bool) {
        self.frozen = frozen;
    }

    /// Adds the numbers of the cached blocks, in no particular order.
    pub(crate) fn add_blocks(&self, blocks: &mut Vec<u64>) {
        let cached = |frame: &Frame| self.find(self.contents.block(*frame)) == Some(*frame);
        let frames = self.frames().filter(cached);
        blocks.extend(frames.map(|frame| self.contents.block(frame).0));
    }

    fn frames(&self) -> impl Iterator<Item = Frame> + use<> {
        (0..if self.capacity == 0 { 0 } else { self.capacity + 1 }).map(Frame)
    }

    /// Returns the number of blocks that can enter without an eviction.
    pub(crate) fn spare_blocks(&self) -> u64 {
        if self.frozen { 0 } else { self.room.saturating_sub(self.blocks()).into() }
    }

    /// Returns the number of cached blocks.
    pub(crate) fn len(&self) -> u64 {
        self.index.len() as u64
    }

    #[inline]
    fn find(&self, block: RamBlockNumber) -> Option<Frame> {
        self.index.find(block.hash(), |frame| self.contents.block(frame) == block)
    }

    /// Prefetches the part of the index in which a block is looked up.
    pub(crate) fn expect_later(&self, block: RamBlockNumber) {
        fetch(self.index.spot(block.hash()), 16);
    }

    /// Prefetches the content of a block. Returns `false` if the block is not cached.
    pub(crate) fn expect_next(&self, block: RamBlockNumber) -> bool {
        let Some(frame) = self.index.guess(block.hash()) else { return false };
        fetch(self.contents.spot(frame), 16);
        let bytes = self.bytes(frame, &(0..self.block.sectors().min(EXPECTED_SECTORS)));
        fetch(Spot::of(&self.data[bytes.start]), bytes.len());
        true
    }

    fn bytes(&self, frame: Frame, sectors: &Range<u32>) -> Range<usize> {
        let start = frame.number() * self.block.bytes() as usize;
        let at = |sector: u32| start + sector as usize * SECTOR_SIZE as usize;
        at(sectors.start)..at(sectors.end)
    }

    /// Returns whether sectors of a block are cached.
    pub(crate) fn has(&self, block: RamBlockNumber, sectors: &Range<u32>) -> bool {
        let wanted = bits(sectors);
        let valid = |frame| self.contents.sectors(frame).valid & wanted == wanted;
        self.find(block).is_some_and(valid)
    }

    /// Copies sectors of a block to `into`. Returns `None` if some of them are not cached.
    pub(crate) fn read(
        &mut self,
        block: RamBlockNumber,
        sectors: &Range<u32>,
        into: &mut [u8],
    ) -> Option<Hit> {
        let (wanted, frame) = (bits(sectors), self.find(block)?);
        let own = self.contents.sectors(frame);
        if own.valid & wanted != wanted {
            return None;
        }
        into.copy_from_slice(&self.data[self.bytes(frame, sectors)]);
        if !own.pinned() {
            self.policy.hit(Node(frame.0));
        }
        self.contents.note_use(frame);
        self.counts.hits += 1;
        Some(if self.counts.hits.is_multiple_of(TOLD_EVERY) { Hit::Tell } else { Hit::Quiet })
    }

    /// Records that a read of the lower tier begins.
    pub(crate) fn begin_fill(&mut self, block: RamBlockNumber) -> Token {
        self.guards.begin_read(block)
    }

    /// Caches sectors that were read from the lower tier, unless a write was in flight meanwhile.
    pub(crate) fn end_fill(
        &mut self,
        block: RamBlockNumber,
        token: Token,
        sectors: &Range<u32>,
        data: &[u8],
    ) {
        self.counts.misses += 1;
        let current = self.guards.end_read(block, token);
        if self.keeps.0 && (current || planted::has(PlantedBug::FillsOvertaken)) {
            self.counts.fills += 1;
            self.put(block, sectors, data);
        }
    }

    /// Begins a write to the lower tier of these parts of adjacent blocks, and passes a token for
    /// each to the caller. The sectors are not served from RAM until the write ends: a concurrent
    /// read of the lower tier may already have returned the new data. Deferred data in the sectors
    /// is not written down meanwhile, and reads of it wait.
    ///
    /// Returns `false` if the write has to wait, see [`Shard::in_the_way`]; nothing has changed
    /// then.
    pub(crate) fn begin_write(
        &mut self,
        pieces: impl Iterator<Item = Piece> + Clone,
        replaces: bool,
        mut note: impl FnMut(Token),
    ) -> bool {
        if self.waits(pieces.clone(), replaces) {
            return false;
        }
        let mut blocks: Option<RangeInclusive<RamBlockNumber>> = None;
        for Piece { block, sectors, .. } in pieces {
            self.hide(block, &sectors);
            let first = blocks.map_or(block, |blocks| *blocks.start());
            blocks = Some(first..=block);
            note(self.guards.begin_write(block));
        }
        self.written.extend(blocks);
        true
    }

    /// Hides sectors of a block from reads, because the lower tier is about to replace them.
    fn hide(&mut self, block: RamBlockNumber, sectors: &Range<u32>) {
        let Some(frame) = self.find(block) else { return };
        let (mut own, range) = (self.contents.sectors(frame), bits(sectors));
        let superseded = own.dirty & range;
        if !planted::has(PlantedBug::OldCopyServed) {
            own.valid &= !range;
        }
        self.begin_superseding(block, &mut own, superseded);
        self.contents.set_sectors(frame, own);
    }

    /// Returns whether a region, which is one of this shard, may have a block in RAM.
    pub(crate) fn may_have(&self, region: Region) -> bool {
        self.held.may_have(region)
    }

    /// Like [`Shard::begin_write`], of zeroes to a whole region.
    pub(crate) fn begin_zeroing(
        &mut self,
        region: Region,
        pieces: impl Iterator<Item = Piece> + Clone,
        replaces: bool,
    ) -> bool {
        if self.may_have(region) {
            if self.waits(pieces.clone(), replaces) {
                return false;
            }
            pieces.for_each(|piece| self.hide(piece.block, &piece.sectors));
        }
        self.written.push(self.block.span_of(region));
        self.guards.begin_write_of_many();
        true
    }

    /// Ends the write that [`Shard::begin_zeroing`] has begun; see [`Shard::end_write`].
    pub(crate) fn end_zeroing(
        &mut self,
        region: Region,
        pieces: impl Iterator<Item = Piece>,
        done: bool,
    ) -> bool {
        self.forget_blocks_written(&self.block.span_of(region));
        self.guards.end_write_of_many();
        let mut replaced = false;
        // Writes may have been deferred since.
        if self.may_have(region) {
            for piece in pieces {
                replaced |= self.end_superseding(piece.block, &piece.sectors, done);
                self.forget(piece.block);
            }
        }
        replaced
    }

    /// Cancels a write that [`Shard::begin_zeroing`] has begun, like [`Shard::cancel_write`].
    pub(crate) fn cancel_zeroing(
        &mut self,
        region: Region,
        pieces: impl Iterator<Item = Piece>,
    ) -> bool {
        self.forget_blocks_written(&self.block.span_of(region));
        self.guards.end_write_of_many();
        let mut replaced = false;
        for piece in pieces {
            replaced |= self.end_superseding(piece.block, &piece.sectors, false);
        }
        replaced
    }

    /// Returns whether a write to a block is in flight in the lower tier.
    fn is_written(&self, block: RamBlockNumber) -> bool {
        self.guards.is_written(block) && self.written.iter().any(|blocks| blocks.contains(&block))
    }

    fn forget_written(&mut self, mut pieces: impl Iterator<Item = Piece>) {
        let Some(first) = pieces.next() else { return };
        let last = pieces.last().unwrap_or_else(|| first.clone());
        self.forget_blocks_written(&(first.block..=last.block));
    }

    fn forget_blocks_written(&mut self, blocks: &RangeInclusive<RamBlockNumber>) {
        if let Some(at) = self.written.iter().position(|one| one == blocks) {
            self.written.swap_remove(at);
        }
    }

    /// Ends a write. `done`: whether it took effect; otherwise an unknown part of it did.
    /// `written`: the bytes of each piece that the lower tier has now, if they are known and worth
    /// caching. Without them, or if another write was in flight, the block is forgotten. Returns
    /// whether the write has replaced deferred data.
    pub(crate) fn end_write<'a>(
        &mut self,
        pieces: impl Iterator<Item = Piece> + Clone,
        mut tokens: impl Iterator<Item = Token>,
        done: bool,
        written: impl Fn(&Piece) -> Option<&'a [u8]>,
    ) -> bool {
        self.forget_written(pieces.clone());
        let mut replaced = false;
        for piece in pieces {
            let (block, token) = (piece.block, tokens.next().unwrap_or_default());
            replaced |= self.end_superseding(block, &piece.sectors, done);
            let alone = self.guards.end_write(block, token);
            match written(&piece).filter(|_| self.keeps.1) {
                Some(data) if alone || planted::has(PlantedBug::RacedCopyKept) => {
                    self.put(block, &piece.sectors, data);
                }
                _ => self.forget(block),
            }
        }
        replaced
    }

    /// Ends a write that the lower tier rejected without a change. Returns whether it would have
    /// replaced deferred data.
    pub(crate) fn cancel_write(&mut self, pieces: impl Iterator<Item = Piece> + Clone) -> bool {
        self.forget_written(pieces.clone());
        let mut replaced = false;
        for Piece { block, sectors, .. } in pieces {
            replaced |= self.end_superseding(block, &sectors, false);
            self.guards.cancel_write(block);
        }
        replaced
    }

    /// Caches sectors of a block that are the same in the lower tier.
    fn put(&mut self, block: RamBlockNumber, sectors: &Range<u32>, data: &[u8]) {
        let frame = match self.find(block) {
            Some(frame) => {
                if !self.contents.sectors(frame).pinned() {
                    self.policy.hit(Node(frame.0));
                }
                frame
            }
            None => match self.enter(block) {
                Some(frame) => frame,
                None => return,
            },
        };
        let mut own = self.contents.sectors(frame);
        // Deferred data is newer.
        for run in runs(bits(sectors) & !own.held()) {
            let first = (run.start - sectors.start) as usize * SECTOR_SIZE as usize;
            let into = self.bytes(frame, &run);
            let from = first..first + into.len();
            self.data[into].copy_from_slice(&data[from]);
        }
        own.valid |= bits(sectors) & !own.held();
        self.contents.set_sectors(frame, own);
    }

    /// Gives a block an empty frame; `None` if the policy does not admit it, or the shard is
    /// frozen.
    fn enter(&mut self, block: RamBlockNumber) -> Option<Frame> {
        let key = Key(block.0);
        if self.frozen || !self.policy.admits(key) {
            return None;
        }
        // The policy evicts a block itself when it has as many as the shard may have.
        let makes_room = self.deferred.pinned == 0 && self.room == self.capacity;
        if !makes_room && self.is_full() && !self.evict() {
            return None;
        }
        // A frame is always free: there is one more than the maximum number of blocks.
        let frame = self.free.pop()?;
        if let Some(Node(evicted)) = self.policy.insert(Node(frame.0), key) {
            self.evicted(Frame(evicted));
        }
        self.place(block, frame);
        Some(frame)
    }

    /// Puts a block into a free frame.
    fn place(&mut self, block: RamBlockNumber, frame: Frame) {
        self.contents.enter(frame, block);
        self.held.add(self.block.region_of(block));
        self.index.insert(block.hash(), frame);
    }

    /// Returns the number of blocks that the policy or deferred data keeps.
    fn blocks(&self) -> u32 {
        self.policy.resident() + self.deferred.pinned
    }

    /// Returns whether no other block has room.
    fn is_full(&self) -> bool {
        self.blocks() >= self.room
    }

    /// Makes room for a block. Returns `false` if no block may be evicted.
    fn evict(&mut self) -> bool {
        let Some(Node(evicted)) = self.policy.evict() else { return false };
        self.evicted(Frame(evicted));
        true
    }

    /// Frees the frame of a block that the policy has evicted, and offers the block.
    fn evicted(&mut self, frame: Frame) {
        self.counts.evictions += 1;
        let whole = 0..self.block.sectors();
        // If all sectors are valid, no write is in flight, and the lower tier has the same data.
        if self.offers.are_welcome()
            && self.contents.was_used(frame)
            && (self.contents.sectors(frame).valid == bits(&whole)
                || planted::has(PlantedBug::StaleOffer))
        {
            let block = self.contents.block(frame);
            let data = IoBuf::copy_from(&self.data[self.bytes(frame, &whole)]);
            let token = self.guards.begin_read(block);
            self.offers.push(Offer { block, data, token });
        }
        self.release(frame);
    }

    /// Returns whether no write to a block has begun since its token was issued.
    pub(crate) fn is_current(&mut self, block: RamBlockNumber, token: Token) -> bool {
        self.guards.end_read(block, token)
    }

    /// Forgets all blocks but deferred data, also for requests in flight.
    pub(crate) fn forget_all(&mut self) {
        for frame in self.frames() {
            self.forget(self.contents.block(frame));
        }
        self.guards.disturb_all();
    }

    /// Forgets a block, except its deferred data.
    fn forget(&mut self, block: RamBlockNumber) {
        let Some(frame) = self.find(block) else { return };
        let own = self.contents.sectors(frame);
        if own.pinned() {
            self.contents.set_sectors(frame, Sectors { valid: own.valid & own.held(), ..own });
        } else {
            self.policy.remove(Node(frame.0));
            self.release(frame);
        }
    }

    /// Frees a frame that the policy does not track any more.
    fn release(&mut self, frame: Frame) {
        let contents = &self.contents;
        self.index.remove(frame, |frame| contents.block(frame).hash());
        self.held.remove(self.block.region_of(contents.block(frame)));
        self.free.push(frame);
    }

    /// Returns the RAM used beside the data, in bytes.
    pub(crate) fn overhead(&self) -> u64 {
        let frames = self.contents.bytes() + (self.capacity as usize + 1) * size_of::<Frame>();
        let policy = self.policy.state_bytes().total();
        (self.index.bytes() + self.held.bytes() + frames + policy + size_of::<Self>()) as u64
    }
}
