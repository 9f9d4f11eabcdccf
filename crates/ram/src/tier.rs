//! All blocks of a volume in RAM, shared by its lanes.

use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_core::SECTOR_SIZE;
use parking_lot::{Mutex, MutexGuard};

use crate::index::MOST_FRAMES;
use crate::options::{RamBlock, TierOptions};
use crate::shard::{Hit, RamBlockNumber, Shard, Token};

/// Counts since the tier was made, in blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TierCounts {
    /// Read from RAM.
    pub hits: u64,
    /// Read from the lower tier, in part or whole.
    pub misses: u64,
    /// Copied to RAM after they were read from the lower tier.
    pub fills: u64,
    /// Removed to make room.
    pub evictions: u64,
    /// Cached now.
    pub cached: u64,
    /// RAM used beside the data, in bytes.
    pub overhead_bytes: u64,
}

/// One shard on cache lines of its own.
#[repr(align(128))]
struct Own(Mutex<Shard>);

/// See the module.
pub struct Tier {
    options: Mutex<TierOptions>,
    block: RamBlock,
    shards: Box<[Own]>,
    /// The lower tier's losses that the content takes into account.
    losses: AtomicU64,
}

/// A part of a request that lies in one block.
#[derive(Clone, Debug)]
pub(crate) struct Piece {
    pub(crate) block: RamBlockNumber,
    /// The sectors, from the start of the block.
    pub(crate) sectors: Range<u32>,
    /// The bytes, from the start of the request.
    pub(crate) bytes: Range<usize>,
}

/// Returns the frames of each of `shards` shards.
fn frames_of(options: &TierOptions, shards: u64) -> u32 {
    let frames = options.bytes / options.block.bytes() / shards;
    frames.min(u64::from(MOST_FRAMES) - 1) as u32
}

impl Tier {
    /// Makes an empty tier. Its memory is taken from the system as blocks enter.
    ///
    /// # Errors
    /// The system has not enough memory.
    pub fn new(options: TierOptions) -> io::Result<Self> {
        let shards = options.shards();
        let frames = frames_of(&options, shards);
        let shard = |number| {
            let shard = Shard::new(&options, frames, options.seed ^ number)?;
            Ok(Own(Mutex::new(shard)))
        };
        Ok(Tier {
            options: Mutex::new(options),
            block: options.block,
            shards: (0..shards).map(shard).collect::<io::Result<_>>()?,
            losses: AtomicU64::new(0),
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

    /// Takes another size or policy and forgets all blocks. The block size stays, and so does the number
    /// of shards, which limits the size: to 64 GiB of 4 KiB blocks for each.
    ///
    /// # Errors
    /// The system has not enough memory; nothing has changed then.
    pub fn change(&self, options: TierOptions) -> io::Result<()> {
        let mut own = self.options.lock();
        let options = TierOptions { block: self.block, ..options };
        let count = self.shards.len() as u64;
        let frames = frames_of(&options, count);
        let empty = |number| Shard::new(&options, frames, options.seed ^ number);
        let empty: Vec<Shard> = (0..count).map(empty).collect::<io::Result<_>>()?;
        for (shard, empty) in self.shards.iter().zip(empty) {
            let before = shard.0.lock().replace(empty);
            drop(before);
        }
        *own = options;
        Ok(())
    }

    /// Forgets all blocks for good: from now on every request goes to the lower tier.
    pub fn close(&self) {
        let options = TierOptions { bytes: 0, ..self.options() };
        if let Err(error) = self.change(options) {
            // Without blocks it needs no memory.
            debug_assert!(false, "closing a tier: {error}");
        }
    }

    /// Returns what was counted so far.
    pub fn counts(&self) -> TierCounts {
        let mut sum = TierCounts::default();
        for shard in &self.shards {
            let shard = shard.0.lock();
            let counts = shard.counts;
            sum.hits += counts.hits;
            sum.misses += counts.misses;
            sum.fills += counts.fills;
            sum.evictions += counts.evictions;
            sum.cached += shard.len();
            sum.overhead_bytes += shard.overhead();
        }
        sum
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
    pub(crate) fn pieces(&self, offset: u64, len: u64) -> impl Iterator<Item = Piece> + use<> {
        let block = self.block;
        let mut at = offset;
        std::iter::from_fn(move || {
            let end = offset + len;
            let number = at >> block.shift();
            let start = number << block.shift();
            let until = end.min(start + block.bytes());
            let piece = (at < end).then(|| Piece {
                block: RamBlockNumber(number),
                sectors: ((at - start) / SECTOR_SIZE) as u32
                    ..((until - start) / SECTOR_SIZE) as u32,
                bytes: (at - offset) as usize..(until - offset) as usize,
            });
            at = until;
            piece
        })
    }

    pub(crate) fn shard(&self, block: RamBlockNumber) -> MutexGuard<'_, Shard> {
        // The number of shards is a power of two, and there is at least one.
        self.shards[(block.hash() >> 48) as usize & (self.shards.len() - 1)].0.lock()
    }

    /// Forgets everything if the lower tier has lost writes since the last call. Called before
    /// anything is served from RAM, and before anything is cached.
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

    /// Prefetches what the lookup of the block at `offset` needs.
    pub(crate) fn expect_later(&self, offset: u64) {
        let block = RamBlockNumber(offset >> self.block.shift());
        self.shard(block).expect_later(block);
    }

    /// Prefetches the block at `offset`. `false`: it is not cached.
    pub(crate) fn expect_next(&self, offset: u64) -> bool {
        let block = RamBlockNumber(offset >> self.block.shift());
        self.shard(block).expect_next(block)
    }

    /// Reads a range of whole sectors. `None`: not all of it is cached, and `into` may be overwritten in
    /// part.
    pub(crate) fn read(&self, offset: u64, into: &mut [u8]) -> Option<Hit> {
        let len = into.len() as u64;
        if len > self.block.bytes() {
            // A long request that misses must not pass for a use of the blocks that are cached.
            let cached = |piece: Piece| self.shard(piece.block).has(piece.block, &piece.sectors);
            if !self.pieces(offset, len).all(cached) {
                return None;
            }
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

    /// Notes that a read of the lower tier begins, for each block of its range.
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

    /// Notes that a write to the lower tier begins, for each block of its range.
    pub(crate) fn begin_write(
        &self,
        offset: u64,
        len: u64,
    ) -> impl Iterator<Item = Token> + use<'_> {
        self.pieces(offset, len)
            .map(|piece| self.shard(piece.block).begin_write(piece.block, &piece.sectors))
    }

    /// Ends a write. `written`: the data that the lower tier has now, `None`: forget the range.
    pub(crate) fn end_write(
        &self,
        offset: u64,
        len: u64,
        written: Option<&[u8]>,
        tokens: &[Token],
    ) {
        for (piece, token) in self.pieces(offset, len).zip(tokens) {
            let data = written.and_then(|data| data.get(piece.bytes.clone()));
            self.shard(piece.block).end_write(piece.block, *token, &piece.sectors, data);
        }
    }

    /// Ends a write that the lower tier did not take, and that changed nothing.
    pub(crate) fn cancel_write(&self, offset: u64, len: u64) {
        for piece in self.pieces(offset, len) {
            self.shard(piece.block).cancel_write(piece.block);
        }
    }
}
