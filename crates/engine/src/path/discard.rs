//! Discard and write zeroes. Older data must never come back, not even after a crash: see
//! [`pieces`].

use std::ops::Range;

use forebay_core::why::WakeReason;
use forebay_core::{IoError, OriginBlock, SECTOR_SIZE, Survives};
use forebay_device::{DeviceErrorKind, DeviceOp, IoBuf};

use crate::io::commit::Commits;
use crate::lane::LaneVolume;
use crate::path::flush::Flusher;
use crate::path::memory::WRITTEN_ZEROES;
use crate::path::write::VolumeWriter;
use crate::state::discarding::ZeroBy;

mod pieces;

/// A client's requirements for write zeroes.
#[derive(Clone, Copy)]
pub(crate) struct Zeroes {
    /// Refuse rather than write zeroes as data.
    pub(crate) fast: bool,
    /// Keep the space allocated on the origin.
    pub(crate) no_hole: bool,
}

/// Serves discards and write zeroes of a volume.
#[derive(Clone, Copy)]
pub(crate) struct Discarder<'a>(pub(crate) &'a LaneVolume);

impl<'a> Discarder<'a> {
    /// Discards the whole blocks in a checked range if the origin can turn them into zeroes
    /// cheaply. Otherwise keeps the data, as a discard may.
    pub(crate) async fn discard(
        self,
        offset: u64,
        len: u64,
        survives: Survives,
    ) -> Result<(), IoError> {
        if self.0.volume.is_ordered() {
            self.discard_in_order(offset, len).await?;
        } else if let Some((first, end)) = self.whole_blocks(offset, len)
            && self.origin_discards().await
        {
            self.zero_blocks(&mut first.clone(), end, ZeroBy::Discard).await?;
        }
        self.end(survives).await
    }

    /// Makes a checked range read as zeroes.
    pub(crate) async fn write_zeroes(
        self,
        offset: u64,
        len: u64,
        survives: Survives,
        Zeroes { fast, no_hole }: Zeroes,
    ) -> Result<(), IoError> {
        if self.0.volume.is_ordered() && fast {
            return Err(IoError::NotSupported);
        }
        if self.0.volume.is_ordered() || (!fast && len <= WRITTEN_ZEROES) {
            return self.write_zero_data(offset, len, survives).await;
        }
        let Some((first, end)) = self.whole_blocks(offset, len) else {
            if fast {
                return Err(IoError::NotSupported);
            }
            return self.write_zero_data(offset, len, survives).await;
        };
        let bytes = |blocks: Range<u64>| {
            let start = self.0.volume.block_range(OriginBlock(blocks.start)).start;
            start..self.0.volume.block_range(OriginBlock(blocks.end - 1)).end
        };
        let mut at = first;
        if !no_hole && self.origin_discards().await {
            self.zero_blocks(&mut at, end, ZeroBy::Discard).await?;
        }
        if at < end {
            if fast {
                return Err(IoError::NotSupported);
            }
            self.zero_blocks(&mut at, end, ZeroBy::WriteZeroes).await?;
        }
        if at < end {
            let left = bytes(at.0..end.0);
            self.write_zero_data(left.start, left.end - left.start, survives).await?;
        }
        let Range { start, end: behind } = bytes(first.0..end.0);
        if start > offset {
            self.write_zero_data(offset, start - offset, survives).await?;
        }
        if behind < offset + len {
            self.write_zero_data(behind, offset + len - behind, survives).await?;
        }
        self.end(survives).await
    }

    /// Ends a request whose range is zeroed: on the origin, or by records of the log.
    async fn end(self, survives: Survives) -> Result<(), IoError> {
        match VolumeWriter(self.0).promised(survives) {
            Survives::Nothing => Ok(()),
            // Barrier for invariant 31: the records are written. Without the cache device, only
            // data that is durable on the origin survives.
            Survives::Daemon if Commits(self.0).secure(survives).await.is_ok() => Ok(()),
            // Barrier for invariant 2: both the origin and the log may have some of the zeroes.
            Survives::Daemon | Survives::PowerLoss => Flusher(self.0).flush().await,
        }
    }

    /// Returns whether the origin can discard. Tried once with an empty range, before any copy is
    /// forgotten for a discard.
    async fn origin_discards(self) -> bool {
        if let Some(known) = self.0.volume.discards() {
            return known;
        }
        let asked =
            self.0.origin.run(DeviceOp::Discard { offset: 0, len: 0 }, WakeReason::Write).await;
        match asked.result {
            Ok(()) => self.0.volume.set_discards(true),
            Err(error) if error.kind == DeviceErrorKind::NotSupported => {
                self.0.volume.set_discards(false);
                return false;
            }
            // Another error: the discard itself will report it.
            Err(_) => {}
        }
        true
    }

    /// Discards a range of an ordered volume. The origin must not get zeroes before their turn, so
    /// the data is kept; only unreadable dirty blocks are overwritten with zeroes.
    async fn discard_in_order(self, offset: u64, len: u64) -> Result<(), IoError> {
        let Some((first, end)) = self.whole_blocks(offset, len) else { return Ok(()) };
        for block in self.0.volume.bad_within(first, end) {
            let range = self.0.volume.block_range(block);
            self.write_zero_data(range.start, range.end - range.start, Survives::Nothing).await?;
        }
        Ok(())
    }

    async fn write_zero_data(
        self,
        offset: u64,
        len: u64,
        survives: Survives,
    ) -> Result<(), IoError> {
        let mut at = offset;
        while at < offset + len {
            let step = WRITTEN_ZEROES.min(offset + len - at);
            VolumeWriter(self.0).write(at, IoBuf::zeroed(step as usize), survives).await.0?;
            at += step;
        }
        Ok(())
    }

    /// Returns the first block and the end of the blocks that lie wholly within a range and whose
    /// edges are aligned to the origin's logical blocks.
    pub(crate) fn whole_blocks(self, offset: u64, len: u64) -> Option<(OriginBlock, OriginBlock)> {
        let volume = &self.0.volume;
        let mut blocks = volume.blocks(offset..offset + len);
        let inside = |number: u64| {
            let range = volume.block_range(OriginBlock(number));
            offset <= range.start && range.end <= offset + len
        };
        if !blocks.is_empty() && !inside(blocks.start) {
            blocks.start += 1;
        }
        if !blocks.is_empty() && !inside(blocks.end - 1) {
            blocks.end -= 1;
        }
        // Blocks may be smaller than the origin's logical blocks, or shifted against them. The
        // pattern of boundaries repeats after at most as many blocks as a logical block has
        // sectors: if none of those is aligned, none is.
        let logical = volume.origin.logical_block();
        let starts = |number: u64| volume.block_range(OriginBlock(number)).start;
        let ends = |number: u64| volume.block_range(OriginBlock(number)).end;
        let most = logical / SECTOR_SIZE + 1;
        let first = blocks
            .clone()
            .take(most as usize)
            .find(|number| starts(*number).is_multiple_of(logical))?;
        let last = blocks
            .rev()
            .take(most as usize)
            .find(|number| ends(*number).is_multiple_of(logical))?;
        (first <= last).then_some((OriginBlock(first), OriginBlock(last + 1)))
    }
}
