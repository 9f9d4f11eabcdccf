//! A part of a tier's blocks, under one lock: index, data, policy, and the writes in flight.

use std::io;
use std::ops::Range;

use forebay_core::SECTOR_SIZE;
use forebay_device::Area;
use forebay_device::hint::{Spot, fetch};
use forebay_policy::exact::{BlockPolicy, Key, Node, build};
use forebay_store::planted::{self, PlantedBug};

use crate::index::{Frame, Index};
use crate::options::{RamBlock, TierOptions};

/// Guards of a shard. Blocks that share one disturb each other's fills, no more.
const GUARDS: usize = 64;

/// Sectors of a block that are prefetched.
const EXPECTED_SECTORS: u32 = 8;

/// One in so many hits is told to the lower tier: enough to keep what is hot here from being evicted
/// there, at a small part of what telling all of them would cost.
const TOLD_EVERY: u64 = 16;

/// A read that was served from RAM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hit {
    /// Nobody else needs to know.
    Quiet,
    /// The lower tier is told.
    Tell,
}

/// Number of a block of the volume, in units of the tier's block size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RamBlockNumber(pub(crate) u64);

impl RamBlockNumber {
    /// Returns 64 well-mixed bits: the highest 16 choose the shard, the lowest 40 the place in its
    /// index, and some in between the guard.
    pub(crate) fn hash(self) -> u64 {
        Key(self.0).spread()
    }

    fn guard(self) -> usize {
        (self.hash() >> 32) as usize % GUARDS
    }
}

/// What a request remembers of a block from its start until the lower tier has answered.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Token {
    epoch: u32,
    /// No write to the block was in flight.
    undisturbed: bool,
}

/// Writes in flight to the blocks that share the guard.
///
/// While a write is in flight, a read of the lower tier may return old or new data, and the order in
/// which two writes take effect there is not known. A copy made then could be older than the lower
/// tier's data, so it is not kept.
#[derive(Clone, Copy, Debug, Default)]
struct Guard {
    /// Advances when a write starts and when it ends.
    epoch: u32,
    /// Writes in flight.
    writers: u32,
}

/// What is in a frame.
#[derive(Clone, Copy, Debug)]
struct Content {
    block: RamBlockNumber,
    /// One bit for each valid sector, the first one lowest.
    valid: [u64; 2],
}

impl Content {
    fn sectors(&self) -> u128 {
        u128::from(self.valid[0]) | u128::from(self.valid[1]) << 64
    }

    fn set_sectors(&mut self, sectors: u128) {
        self.valid = [sectors as u64, (sectors >> 64) as u64];
    }
}

/// Counts of one shard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) hits: u64,
    pub(crate) misses: u64,
    pub(crate) fills: u64,
    pub(crate) evictions: u64,
}

/// See the module.
pub(crate) struct Shard {
    block: RamBlock,
    index: Index,
    contents: Box<[Content]>,
    free: Vec<Frame>,
    data: Area,
    policy: Box<dyn BlockPolicy>,
    guards: [Guard; GUARDS],
    pub(crate) counts: Counts,
}

/// Returns the bits of the sectors in `range`, at most 128.
fn bits(range: &Range<u32>) -> u128 {
    let len = range.end - range.start;
    let ones = if len >= 128 { u128::MAX } else { (1 << len) - 1 };
    ones << range.start
}

impl Shard {
    /// Makes an empty shard for `frames` blocks, fewer than [`MOST_FRAMES`]; with 0 it stays empty.
    ///
    /// # Errors
    /// The system has no memory.
    pub(crate) fn new(options: &TierOptions, frames: u32, seed: u64) -> io::Result<Self> {
        // A block enters before the evicted one leaves.
        let nodes = if frames == 0 { 0 } else { frames + 1 };
        let empty = Content { block: RamBlockNumber(0), valid: [0; 2] };
        Ok(Shard {
            block: options.block,
            index: Index::new(nodes),
            contents: vec![empty; nodes as usize].into_boxed_slice(),
            free: (0..nodes).rev().map(Frame).collect(),
            data: Area::new(nodes as usize * options.block.bytes() as usize)?,
            policy: build(options.policy, frames, nodes, seed),
            guards: [Guard::default(); GUARDS],
            counts: Counts::default(),
        })
    }

    /// Becomes `other`, an empty shard, except for what requests in flight rely on and for the counts.
    /// Returns what it was: dropping that takes a while, and needs no lock.
    #[must_use]
    pub(crate) fn replace(&mut self, other: Shard) -> Shard {
        let (guards, counts) = (self.guards, self.counts);
        std::mem::replace(self, Shard { guards, counts, ..other })
    }

    /// Returns the number of cached blocks.
    pub(crate) fn len(&self) -> u64 {
        self.index.len() as u64
    }

    #[inline]
    fn find(&self, block: RamBlockNumber) -> Option<Frame> {
        self.index.find(block.hash(), |frame| self.contents[frame.number()].block == block)
    }

    /// Prefetches the part of the index where a block is looked up.
    pub(crate) fn expect_later(&self, block: RamBlockNumber) {
        fetch(self.index.spot(block.hash()), 16);
    }

    /// Prefetches the content of a block. `false`: the block is not cached.
    pub(crate) fn expect_next(&self, block: RamBlockNumber) -> bool {
        let Some(frame) = self.index.guess(block.hash()) else { return false };
        fetch(Spot::of(&self.contents[frame.number()]), 1);
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
        self.find(block).is_some_and(|frame| self.sectors(frame) & wanted == wanted)
    }

    /// Copies sectors of a block to `into`. `None`: some of them are not cached.
    pub(crate) fn read(
        &mut self,
        block: RamBlockNumber,
        sectors: &Range<u32>,
        into: &mut [u8],
    ) -> Option<Hit> {
        let wanted = bits(sectors);
        let frame = self.find(block).filter(|frame| self.sectors(*frame) & wanted == wanted)?;
        into.copy_from_slice(&self.data[self.bytes(frame, sectors)]);
        self.policy.hit(Node(frame.0));
        self.counts.hits += 1;
        Some(if self.counts.hits.is_multiple_of(TOLD_EVERY) { Hit::Tell } else { Hit::Quiet })
    }

    /// Notes that a read of the lower tier begins.
    pub(crate) fn begin_fill(&mut self, block: RamBlockNumber) -> Token {
        let Guard { epoch, writers } = self.guards[block.guard()];
        Token { epoch, undisturbed: writers == 0 }
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
        let alone = token.undisturbed && self.guards[block.guard()].epoch == token.epoch;
        if alone || planted::has(PlantedBug::FillsOvertaken) {
            self.counts.fills += 1;
            self.put(block, sectors, data);
        }
    }

    /// Notes that a write to the lower tier begins. The sectors are not served from RAM until it
    /// ends: a read that another one sent to the lower tier may already have returned the new data.
    pub(crate) fn begin_write(&mut self, block: RamBlockNumber, sectors: &Range<u32>) -> Token {
        if let Some(frame) = self.find(block)
            && !planted::has(PlantedBug::OldCopyServed)
        {
            let left = self.sectors(frame) & !bits(sectors);
            self.contents[frame.number()].set_sectors(left);
        }
        let guard = &mut self.guards[block.guard()];
        let undisturbed = guard.writers == 0;
        guard.epoch = guard.epoch.wrapping_add(1);
        guard.writers += 1;
        Token { epoch: guard.epoch, undisturbed }
    }

    /// Ends a write. `written`: what the lower tier has in these sectors now; `None`: unknown, or
    /// not worth caching. Without it, or if another write was in flight, the block is forgotten.
    pub(crate) fn end_write(
        &mut self,
        block: RamBlockNumber,
        token: Token,
        sectors: &Range<u32>,
        written: Option<&[u8]>,
    ) {
        let guard = &mut self.guards[block.guard()];
        let alone = token.undisturbed && guard.epoch == token.epoch;
        guard.epoch = guard.epoch.wrapping_add(1);
        guard.writers -= 1;
        match written {
            Some(data) if alone || planted::has(PlantedBug::RacedCopyKept) => {
                self.put(block, sectors, data);
            }
            _ => self.forget(block),
        }
    }

    /// Ends a write that the lower tier did not take, and that changed nothing.
    pub(crate) fn cancel_write(&mut self, block: RamBlockNumber) {
        self.guards[block.guard()].writers -= 1;
    }

    /// Caches sectors of a block.
    fn put(&mut self, block: RamBlockNumber, sectors: &Range<u32>, data: &[u8]) {
        let frame = match self.find(block) {
            Some(frame) => {
                self.policy.hit(Node(frame.0));
                frame
            }
            None => match self.enter(block) {
                Some(frame) => frame,
                None => return,
            },
        };
        let bytes = self.bytes(frame, sectors);
        self.data[bytes].copy_from_slice(data);
        let valid = self.sectors(frame) | bits(sectors);
        self.contents[frame.number()].set_sectors(valid);
    }

    /// Gives a block an empty frame; `None` if the policy does not admit it.
    fn enter(&mut self, block: RamBlockNumber) -> Option<Frame> {
        let key = Key(block.0);
        if !self.policy.admits(key) {
            return None;
        }
        // One frame is always free: there is one more than the policy keeps blocks.
        let frame = self.free.pop()?;
        if let Some(Node(evicted)) = self.policy.insert(Node(frame.0), key) {
            self.counts.evictions += 1;
            self.release(Frame(evicted));
        }
        self.contents[frame.number()] = Content { block, valid: [0; 2] };
        self.index.insert(block.hash(), frame);
        Some(frame)
    }

    /// Forgets all blocks, and whatever requests in flight have read or written.
    pub(crate) fn forget_all(&mut self) {
        for number in 0..self.contents.len() {
            self.forget(self.contents[number].block);
        }
        self.guards.iter_mut().for_each(|guard| guard.epoch = guard.epoch.wrapping_add(1));
    }

    fn forget(&mut self, block: RamBlockNumber) {
        if let Some(frame) = self.find(block) {
            self.policy.remove(Node(frame.0));
            self.release(frame);
        }
    }

    /// Frees a frame that the policy does not know any more.
    fn release(&mut self, frame: Frame) {
        let contents = &self.contents;
        self.index.remove(frame, |frame| contents[frame.number()].block.hash());
        self.free.push(frame);
    }

    /// Returns the valid sectors of a frame.
    fn sectors(&self, frame: Frame) -> u128 {
        self.contents[frame.number()].sectors()
    }

    /// Returns the RAM used beside the data, in bytes.
    pub(crate) fn overhead(&self) -> u64 {
        let frames = self.contents.len() * (size_of::<Content>() + size_of::<Frame>());
        let policy = self.policy.state_bytes().total();
        (self.index.bytes() + frames + policy + size_of::<Self>()) as u64
    }
}
