//! Discard and write zeroes: older data must never come back, also not after a crash.
//!
//! Clean copies are forgotten first, durably: until the origin changes it has the same data. Then
//! the origin is zeroed, durably, and only then the dirty copies go, also durably: they are the
//! newest data until the zeroes are there, and the origin has something older.

use forebay_core::{IoError, OriginBlock, Slot};
use forebay_device::{DeviceErrorKind, DeviceOp, IoBuf};

use crate::lane::LaneVolume;
use crate::stats::bump;

/// Zeroes up to this many bytes are written like data, and longer runs in pieces of it.
const WRITTEN_ZEROES: u64 = 256 << 10;

enum Zeroed {
    Done,
    NotSupported,
}

impl LaneVolume {
    /// Discards a checked range: whole blocks only, and only if the origin can make them zeroes at
    /// no great cost. Otherwise the data stays, which a discard may do.
    pub(crate) async fn discard(&self, offset: u64, len: u64, fua: bool) -> Result<(), IoError> {
        bump(&self.stats().counters.discards, 1);
        if let Some((first, end)) = self.whole_blocks(offset, len) {
            self.zero_blocks(first, end, |offset, len| DeviceOp::Discard { offset, len }).await?;
        }
        if fua { self.flush().await } else { Ok(()) }
    }

    /// Makes a checked range read as zeroes. `fast`: refuse rather than write them.
    pub(crate) async fn write_zeroes(&self, offset: u64, len: u64, fua: bool, fast: bool) -> Result<(), IoError> {
        if !fast && len <= WRITTEN_ZEROES {
            return self.write_zero_data(offset, len, fua).await;
        }
        let Some((first, end)) = self.whole_blocks(offset, len) else {
            if fast {
                return Err(IoError::NotSupported);
            }
            return self.write_zero_data(offset, len, fua).await;
        };
        let zeroed = self.zero_blocks(first, end, |offset, len| DeviceOp::Discard { offset, len }).await?;
        if let Zeroed::NotSupported = zeroed {
            if fast {
                return Err(IoError::NotSupported);
            }
            self.zero_blocks(first, end, |offset, len| DeviceOp::WriteZeroes { offset, len }).await?;
        }
        let start = self.volume.block_range(first).start;
        let behind = self.volume.block_range(OriginBlock(end.0 - 1)).end;
        if start > offset {
            self.write_zero_data(offset, start - offset, fua).await?;
        }
        if behind < offset + len {
            self.write_zero_data(behind, offset + len - behind, fua).await?;
        }
        if fua { self.flush().await } else { Ok(()) }
    }

    async fn write_zero_data(&self, offset: u64, len: u64, fua: bool) -> Result<(), IoError> {
        let mut at = offset;
        while at < offset + len {
            let step = WRITTEN_ZEROES.min(offset + len - at);
            self.write(at, IoBuf::zeroed(step as usize), fua).await.0?;
            at += step;
        }
        Ok(())
    }

    /// The blocks that lie wholly within a range: first and end.
    fn whole_blocks(&self, offset: u64, len: u64) -> Option<(OriginBlock, OriginBlock)> {
        let volume = &self.volume;
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
        (!blocks.is_empty()).then_some((OriginBlock(blocks.start), OriginBlock(blocks.end)))
    }

    async fn zero_blocks(
        &self,
        first: OriginBlock,
        end: OriginBlock,
        op: impl Fn(u64, u64) -> DeviceOp,
    ) -> Result<Zeroed, IoError> {
        let volume = &self.volume;
        let store = self.store.store();
        let range = volume.block_range(first).start..volume.block_range(OriginBlock(end.0 - 1)).end;
        // No block may turn clean while the origin is changed under it.
        let _marking = volume.marking.exclusive(0..1).await;
        let _range = volume.ranges.exclusive(range.clone()).await;
        // The copies that exist now; what is written from here on is newer.
        let copies: Vec<(OriginBlock, Slot)> = (first.0..end.0)
            .filter_map(|number| {
                let block = OriginBlock(number);
                store.peek(&volume.space, block).map(|found| (block, found.entry.slot))
            })
            .collect();
        for (block, slot) in &copies {
            store.forget(&volume.space, *block, |entry| entry.slot == *slot && !entry.dirty);
        }
        // Barrier for invariants 6 and 21: clean copies do not come back over the zeroes.
        self.store.settle_marks().await.map_err(|error| self.store_failed(&error))?;
        let done = self.origin.run(op(range.start, range.end - range.start)).await;
        volume.origin_changed(range);
        match done.result {
            Ok(()) => (),
            Err(error) if error.kind == DeviceErrorKind::NotSupported => return Ok(Zeroed::NotSupported),
            Err(error) => {
                tracing::warn!(%error, volume = volume.name, "the origin cannot be zeroed");
                return Err(IoError::Io);
            }
        }
        // Barrier for invariant 21: the zeroes before the dirty copies go.
        self.sync_origin().await?;
        for (block, slot) in copies {
            if let Some(entry) = store.forget(&volume.space, block, |entry| entry.slot == slot)
                && entry.dirty
            {
                volume.cleaned(block);
            }
        }
        // Barrier for invariant 21: the copies are gone for good before this is acknowledged.
        self.store.settle_marks().await.map_err(|error| self.store_failed(&error))?;
        Ok(Zeroed::Done)
    }
}
