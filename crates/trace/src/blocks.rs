//! Requests as blocks of 4 KiB.

use std::ops::Range;

use forebay_core::Op;

use super::error::unreadable;
use super::{Request, TraceResult};

/// Bytes of a block.
pub const BLOCK: u64 = 4096;

/// Larger requests are taken for mistakes.
const MOST_OF_REQUEST: u64 = 1 << 20;

/// Maximum number of blocks of a device.
const MOST_OF_DEVICE: u64 = 1 << 48;

impl Request {
    /// Returns the blocks of a request, by their numbers on the device, which are below 2^48. For a
    /// read or write, these are at most 2^20 blocks that it touches; for a discard, the blocks that
    /// it covers wholly, possibly none.
    ///
    /// # Errors
    /// No block device is so large, or no read or write.
    pub fn blocks(&self) -> TraceResult<Range<u64>> {
        let end = self.offset.saturating_add(self.len);
        if end.div_ceil(BLOCK) > MOST_OF_DEVICE {
            return Err(unreadable(format!("a request at {} is beyond all devices", self.offset)));
        }
        if self.op == Op::Discard {
            let first = self.offset.div_ceil(BLOCK);
            return Ok(first..(end / BLOCK).max(first));
        }
        let blocks = self.offset / BLOCK..end.div_ceil(BLOCK);
        if blocks.end - blocks.start > MOST_OF_REQUEST {
            return Err(unreadable(format!("a request of {} bytes is a mistake", self.len)));
        }
        Ok(blocks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocks(op: Op, offset: u64, len: u64) -> Option<Range<u64>> {
        Request { time: None, op, offset, len, device: 0 }.blocks().ok()
    }

    #[test]
    fn reads_and_writes_touch_parts_and_discards_only_whole_blocks() {
        for op in [Op::Read, Op::Write] {
            assert_eq!(blocks(op, 4095, 2), Some(0..2));
            assert_eq!(blocks(op, 4096, 4096), Some(1..2));
        }
        assert_eq!(blocks(Op::Discard, 100, 8092), Some(1..2));
        assert_eq!(blocks(Op::Discard, 100, 10), Some(1..1));
        assert_eq!(blocks(Op::Discard, 0, 1 << 40), Some(0..1 << 28));
    }

    #[test]
    fn mistakes_are_refused() {
        assert_eq!(blocks(Op::Read, 0, 1 << 32), Some(0..1 << 20));
        assert_eq!(blocks(Op::Read, 0, (1 << 32) + 1), None);
        for op in [Op::Read, Op::Write, Op::Discard] {
            assert_eq!(blocks(op, u64::MAX - 5000, 4000), None);
        }
    }
}
