//! All blocks of a volume in RAM, shared by its lanes.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_core::Clock;
use forebay_engine::StateExtent;
use forebay_lane::{MemoryBudget, Notify};
use forebay_policy::curve::LiveCurve;
use forebay_policy::whatif::{Prediction, Setup};
use parking_lot::{Mutex, MutexGuard};

use crate::block::{Piece, REGION_BYTES, RamBlock, RamBlockNumber, Region, TierChange, in_regions};
use crate::counts::TierCounts;
use crate::guard::Token;
use crate::index::MOST_FRAMES;
use crate::offer::{Offer, Offers};
use crate::options::TierOptions;
use crate::shard::{Hit, Shard};
use crate::watch::{Traffic, WatcherSums};

mod deferred;
mod room;

use deferred::Deferring;
pub(crate) use deferred::{MOST_ON_THEIR_WAY, Waiter};

/// Number of blocks and of regions that are looked up for one answer about states.
const STATES_LOOKED_UP: u64 = 1024;

/// One shard on cache lines of its own.
#[repr(align(128))]
struct Own(Mutex<Shard>, Notify);

/// See the module.
pub struct Tier {
    options: Mutex<TierOptions>,
    block: RamBlock,
    shards: Box<[Own]>,
    clock: Arc<dyn Clock>,
    /// The lower tier's number of losses that the content takes into account.
    losses: AtomicU64,
    pub(crate) deferring: Deferring,
    pub(crate) offers: Arc<Offers>,
    pub(crate) watched: Arc<WatcherSums>,
}

/// Returns the frames of each of `shards` shards.
fn frames_of(options: &TierOptions, shards: u64) -> u32 {
    let frames = options.bytes / options.block.bytes() / shards;
    frames.min(u64::from(MOST_FRAMES) - 1) as u32
}

impl Tier {
    /// Creates an empty tier that defers no writes. Its memory is taken from the system as blocks
    /// enter.
    ///
    /// # Errors
    /// The system has not enough memory.
    pub fn new(options: TierOptions, clock: Arc<dyn Clock>) -> io::Result<Self> {
        Tier::with_room(options, options.bytes, clock)
    }

    /// Makes a tier like [`Tier::new`], with as many shards as one of `room` bytes has, because it
    /// may be changed to that size later.
    ///
    /// # Errors
    /// See [`Tier::new`].
    pub fn with_room(options: TierOptions, room: u64, clock: Arc<dyn Clock>) -> io::Result<Self> {
        let shards = TierOptions { bytes: room, ..options }.shards();
        let frames = frames_of(&options, shards);
        let offers = Arc::<Offers>::default();
        let shard = |number| {
            let shard = Shard::new(&options, frames, options.seed ^ number, &clock, &offers)?;
            Ok(Own(Mutex::new(shard), Notify::default()))
        };
        Ok(Tier {
            options: Mutex::new(options),
            block: options.block,
            shards: (0..shards).map(shard).collect::<io::Result<_>>()?,
            watched: WatcherSums::new(clock.clone()),
            clock,
            losses: AtomicU64::new(0),
            deferring: Deferring::default(),
            offers,
        })
    }

    /// Returns the options.
    pub fn options(&self) -> TierOptions {
        *self.options.lock()
    }

    /// Returns the most RAM that this tier would take after a change to these options, in bytes.
    pub fn memory_after(&self, options: &TierOptions) -> u64 {
        options.memory_in(self.shards.len() as u64)
    }

    /// Changes size, policy or strategy, and forgets all blocks. The block size stays, and so does
    /// the number of shards, which limits the size: to 64 GiB of 4 KiB blocks per shard.
    ///
    /// # Errors
    /// The system has not enough memory, or the tier has deferred data or still defers writes;
    /// nothing has changed then.
    pub fn change(&self, options: TierOptions) -> io::Result<()> {
        let mut own = self.options.lock();
        if self.deferral().is_some() || self.has_deferred() {
            return Err(io::Error::other("it has deferred writes"));
        }
        self.replace(&mut own, options)
    }

    fn replace(&self, own: &mut TierOptions, options: TierOptions) -> io::Result<()> {
        let options = TierOptions { block: self.block, ..options };
        let count = self.shards.len() as u64;
        let frames = frames_of(&options, count);
        let empty =
            |number| Shard::new(&options, frames, options.seed ^ number, &self.clock, &self.offers);
        let empty: Vec<Shard> = (0..count).map(empty).collect::<io::Result<_>>()?;
        for (shard, empty) in self.shards.iter().zip(empty) {
            let before = shard.0.lock().replace(empty);
            drop(before);
        }
        *own = options;
        Ok(())
    }

    /// Forgets all blocks for good, including deferred data: from now on every request goes to the
    /// lower tier.
    pub fn close(&self) {
        // Closed first, so that a task that no longer finds the data knows that it was not written
        // down.
        self.deferring.close();
        let mut own = self.options.lock();
        let options = TierOptions { bytes: 0, ..*own };
        if let Err(error) = self.replace(&mut own, options) {
            // Without blocks it needs no memory.
            debug_assert!(false, "closing a tier: {error}");
        }
        drop(own);
        self.note_change_everywhere();
    }

    /// Freezes the tier, or unfreezes it. A frozen tier admits no blocks, and updates cached ones.
    /// Deferred writes still enter: switch deferring off for a frozen tier.
    pub fn freeze(&self, frozen: bool) {
        self.shards.iter().for_each(|shard| shard.0.lock().freeze(frozen));
    }

    /// Forgets everything but deferred data, also for reads in flight.
    pub fn forget_clean(&self) {
        self.shards.iter().for_each(|shard| shard.0.lock().forget_all());
    }

    /// Returns the numbers of the cached blocks in ascending order, in units of [`Tier::block`].
    /// Takes 8 bytes per block.
    pub fn cached_blocks(&self) -> Vec<u64> {
        let mut blocks = Vec::new();
        self.shards.iter().for_each(|shard| shard.0.lock().add_blocks(&mut blocks));
        blocks.sort_unstable();
        blocks
    }

    /// Returns whether a range of whole blocks is cached completely, and how many blocks can enter
    /// the shard of its first one without an eviction.
    pub(crate) fn room_at(&self, offset: u64, len: u64) -> (bool, u64) {
        let room = self.shard_of(Region(offset / REGION_BYTES)).spare_blocks();
        (self.has(offset, len), room)
    }

    /// Returns the present counts.
    pub fn counts(&self) -> TierCounts {
        let mut sum = TierCounts::default();
        for shard in &self.shards {
            let shard = shard.0.lock();
            shard.add_to(&mut sum);
        }
        self.deferring.add_to(&mut sum);
        sum.offers = self.offers.made();
        sum
    }

    /// Returns the present counts of clients' requests.
    pub fn traffic(&self) -> Traffic {
        self.watched.traffic()
    }

    /// Returns the miss-ratio curve of all client reads and writes, whichever tier served them, in
    /// blocks of the lower tier.
    pub fn curve(&self) -> LiveCurve {
        self.watched.curve()
    }

    /// Begins to simulate other settings of the volume; `None` ends the simulation.
    pub fn simulate(&self, setup: Option<Setup>, memory: &Arc<MemoryBudget>) {
        self.watched.simulate(setup, memory);
    }

    /// Returns the predicted results of other settings, see
    /// [`forebay_engine::VolumeCurve::what_if`].
    pub fn what_if(&self) -> (Vec<Prediction>, (u64, u64)) {
        self.watched.what_if()
    }

    /// Updates the curve and the shadow caches, so that lanes need not. `dirty`: number of dirty
    /// blocks of the volume below.
    pub fn catch_up(&self, dirty: u64) {
        self.watched.catch_up(dirty);
    }

    /// Returns the size of a block.
    pub fn block(&self) -> RamBlock {
        self.block
    }

    /// Returns the number of blocks that a range touches.
    pub(crate) fn blocks(&self, offset: u64, len: u64) -> u64 {
        let first = offset >> self.block.shift();
        let behind = offset.saturating_add(len).div_ceil(self.block.bytes());
        behind.saturating_sub(first)
    }

    /// Splits a range of whole sectors at the borders of blocks.
    pub(crate) fn pieces(
        &self,
        offset: u64,
        len: u64,
    ) -> impl Iterator<Item = Piece> + Clone + use<> {
        self.block.pieces(offset, len)
    }

    pub(crate) fn shard(&self, block: RamBlockNumber) -> MutexGuard<'_, Shard> {
        self.shard_of(self.block.region_of(block))
    }

    fn shard_of(&self, region: Region) -> MutexGuard<'_, Shard> {
        self.own(region).0.lock()
    }

    fn own(&self, region: Region) -> &Own {
        // The number of shards is a power of two and at least one.
        &self.shards[region.shard(self.shards.len())]
    }

    /// Forgets everything but deferred data if the lower tier has lost writes since the last call.
    /// Called before anything is served from RAM, and before anything is cached.
    #[inline]
    pub(crate) fn heed(&self, losses: u64) {
        if self.losses.load(Ordering::Acquire) != losses {
            self.forget_all(losses);
        }
    }

    #[cold]
    fn forget_all(&self, losses: u64) {
        let _turn = self.options.lock();
        if self.losses.load(Ordering::Relaxed) != losses {
            self.shards.iter().for_each(|shard| shard.0.lock().forget_all());
            self.losses.store(losses, Ordering::Release);
        }
    }

    /// Prefetches the memory for a lookup of the block at `offset`.
    pub(crate) fn expect_later(&self, offset: u64) {
        let block = RamBlockNumber(offset >> self.block.shift());
        self.shard(block).expect_later(block);
    }

    /// Prefetches the block at `offset`. Returns `false` if it is not cached.
    pub(crate) fn expect_next(&self, offset: u64) -> bool {
        let block = RamBlockNumber(offset >> self.block.shift());
        self.shard(block).expect_next(block)
    }

    /// Returns whether reads of a range of whole sectors would be served from RAM. Does not count
    /// as a use of its blocks.
    pub fn has(&self, offset: u64, len: u64) -> bool {
        let cached = |piece: Piece| self.shard(piece.block).has(piece.block, &piece.sectors);
        self.pieces(offset, len).all(cached)
    }

    /// Returns the states of a range in RAM, or of the beginning of a long one: a block with any
    /// data that the lower tier lacks is dirty.
    pub(crate) fn states(&self, offset: u64, len: u64) -> Vec<StateExtent> {
        let (mut states, mut looked_up) = (Vec::new(), 0);
        for (region, range) in in_regions(offset..offset + len) {
            if looked_up >= STATES_LOOKED_UP {
                break;
            }
            let (shard, len) = (self.shard_of(region), range.end - range.start);
            looked_up += 1;
            if !shard.may_have(region) {
                StateExtent { len, cached: false, dirty: false }.push(&mut states);
                continue;
            }
            for piece in self.pieces(range.start, len) {
                let dirty = shard.is_pinned(piece.block);
                let cached = dirty || shard.has(piece.block, &piece.sectors);
                StateExtent { len: piece.bytes.len() as u64, cached, dirty }.push(&mut states);
                looked_up += 1;
            }
        }
        states
    }

    /// Reads a range of whole sectors. Returns `None` if a part of it is not cached; a part of
    /// `into` may be overwritten then.
    pub(crate) fn read(&self, offset: u64, into: &mut [u8]) -> Option<Hit> {
        let len = into.len() as u64;
        // A long request that misses must not count as a use of its cached blocks.
        if len > self.block.bytes() && !self.has(offset, len) {
            return None;
        }
        let mut hit = Hit::Quiet;
        for piece in self.pieces(offset, len) {
            let into = &mut into[piece.bytes];
            if self.shard(piece.block).read(piece.block, &piece.sectors, into)? == Hit::Tell {
                hit = Hit::Tell;
            }
        }
        Some(hit)
    }

    /// Records that a read of the lower tier begins, for each block of its range.
    pub(crate) fn begin_fill(
        &self,
        offset: u64,
        len: u64,
    ) -> impl Iterator<Item = Token> + use<'_> {
        self.pieces(offset, len).map(|piece| self.shard(piece.block).begin_fill(piece.block))
    }

    /// Caches data that was read from the lower tier.
    pub(crate) fn end_fill(&self, offset: u64, data: &[u8], tokens: &[Token]) {
        for (piece, token) in self.pieces(offset, data.len() as u64).zip(tokens) {
            let bytes = &data[piece.bytes];
            self.shard(piece.block).end_fill(piece.block, *token, &piece.sectors, bytes);
        }
    }

    /// Returns whether the offered data equals that of the lower tier, and no write to it has
    /// begun. `losses`: the lower tier's present number of losses.
    pub(crate) fn is_current(&self, offer: &Offer, losses: u64) -> bool {
        self.losses.load(Ordering::Acquire) == losses
            && self.shard(offer.block).is_current(offer.block, offer.token)
    }

    /// Begins a write to the lower tier, for each block of its range. `replaces`: afterwards the
    /// lower tier certainly has newer data than was deferred. Returns `false` if the write must
    /// wait until [`Deferring::changed`], because data of this range is being written down, or is
    /// deferred and would not be replaced.
    pub(crate) fn begin_write(
        &self,
        offset: u64,
        len: u64,
        (change, replaces): (TierChange, bool),
        mut note: impl FnMut(Token),
    ) -> bool {
        let pieces = |range: &Range<u64>| self.pieces(range.start, range.end - range.start);
        // This check avoids a begin that has to be undone, which would wake all waiting requests.
        let mut regions = in_regions(offset..offset + len);
        if self.deferring.ever()
            && regions.any(|(region, range)| {
                let shard = self.shard_of(region);
                shard.may_have(region) && shard.waits(pieces(&range), replaces)
            })
        {
            return false;
        }
        for (region, range) in in_regions(offset..offset + len) {
            let mut shard = self.shard_of(region);
            let begun = match change.is_of_region(&range) {
                true => shard.begin_zeroing(region, pieces(&range), replaces),
                false => shard.begin_write(pieces(&range), replaces, &mut note),
            };
            drop(shard);
            if !begun {
                self.cancel_write(offset, range.start - offset, change);
                return false;
            }
        }
        true
    }

    /// Ends a write. `done`: whether it took effect. `written`: the data that the lower tier has
    /// now; with `None` the range is forgotten.
    pub(crate) fn end_write(
        &self,
        offset: u64,
        len: u64,
        (change, done): (TierChange, bool),
        written: Option<&[u8]>,
        tokens: &[Token],
    ) {
        let mut tokens = tokens.iter().copied();
        for (region, range) in in_regions(offset..offset + len) {
            let first = (range.start - offset) as usize;
            let data =
                |piece: &Piece| written?.get(first + piece.bytes.start..first + piece.bytes.end);
            let pieces = self.pieces(range.start, range.end - range.start);
            let mut shard = self.shard_of(region);
            let replaced = match change.is_of_region(&range) {
                true => shard.end_zeroing(region, pieces, done),
                false => shard.end_write(pieces, &mut tokens, done, data),
            };
            drop(shard);
            if replaced {
                if !done {
                    self.note_restored();
                }
                self.note_change(region);
            }
        }
    }

    /// Ends a write that the lower tier rejected without a change.
    pub(crate) fn cancel_write(&self, offset: u64, len: u64, change: TierChange) {
        for (region, range) in in_regions(offset..offset + len) {
            let pieces = self.pieces(range.start, range.end - range.start);
            let mut shard = self.shard_of(region);
            let replaced = match change.is_of_region(&range) {
                true => shard.cancel_zeroing(region, pieces),
                false => shard.cancel_write(pieces),
            };
            drop(shard);
            if replaced {
                self.note_restored();
                self.note_change(region);
            }
        }
    }
}
