//! Contents of the frames: the block of each, and the states of its sectors. Packed, because they
//! exist for every block: 11 bytes for blocks of 4 KiB.

use forebay_device::hint::Spot;

use crate::block::{RamBlock, RamBlockNumber};
use crate::index::Frame;

/// Bytes of a block's number.
const NUMBER: usize = 8;

/// Bit of the number's last byte that records whether the block was used; no block number needs it.
const USED: u8 = 0x80;

/// States of a block's sectors, one bit for each, lowest bit for the first sector.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sectors {
    /// Reads may be served from the frame.
    pub(crate) valid: u128,
    /// Sectors whose data only the frame has; the lower tier lacks it.
    pub(crate) dirty: u128,
    /// Sectors whose data is being written to the lower tier or replaced there.
    pub(crate) writing: u128,
}

impl Sectors {
    /// Returns whether the block must stay in its frame.
    pub(crate) fn pinned(&self) -> bool {
        self.held() != 0
    }

    /// Returns the sectors because of which the block must stay.
    pub(crate) fn held(&self) -> u128 {
        self.dirty | self.writing
    }
}

/// See the module.
pub(crate) struct FrameContents {
    bytes: Box<[u8]>,
    /// Bytes of one mask.
    mask: usize,
}

impl FrameContents {
    pub(crate) fn new(frames: u32, block: RamBlock) -> Self {
        let mask = block.sectors().div_ceil(8) as usize;
        let stride = NUMBER + 3 * mask;
        FrameContents { bytes: vec![0; frames as usize * stride].into_boxed_slice(), mask }
    }

    fn start(&self, frame: Frame) -> usize {
        frame.number() * (NUMBER + 3 * self.mask)
    }

    /// Returns the RAM used, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Returns the address of a frame's content record, for a prefetch.
    pub(crate) fn spot(&self, frame: Frame) -> Spot {
        Spot::of(&self.bytes[self.start(frame)])
    }

    /// Returns the block in a frame.
    #[inline]
    pub(crate) fn block(&self, frame: Frame) -> RamBlockNumber {
        let start = self.start(frame);
        let mut number = [0; NUMBER];
        number.copy_from_slice(&self.bytes[start..start + NUMBER]);
        number[NUMBER - 1] &= !USED;
        RamBlockNumber(u64::from_le_bytes(number))
    }

    /// Marks the block in a frame as used since it entered.
    #[inline]
    pub(crate) fn note_use(&mut self, frame: Frame) {
        let at = self.start(frame) + NUMBER - 1;
        if self.bytes[at] & USED == 0 {
            self.bytes[at] |= USED;
        }
    }

    /// Returns whether the block in a frame was used since it entered.
    pub(crate) fn was_used(&self, frame: Frame) -> bool {
        self.bytes[self.start(frame) + NUMBER - 1] & USED != 0
    }

    /// Puts a block into a frame, without valid sectors.
    pub(crate) fn enter(&mut self, frame: Frame, block: RamBlockNumber) {
        let start = self.start(frame);
        self.bytes[start..start + NUMBER].copy_from_slice(&block.0.to_le_bytes());
        self.set_sectors(frame, Sectors::default());
    }

    #[inline]
    fn mask(&self, start: usize) -> u128 {
        match self.mask {
            1 => self.bytes[start].into(),
            len => {
                let mut all = [0; 16];
                all[..len].copy_from_slice(&self.bytes[start..start + len]);
                u128::from_le_bytes(all)
            }
        }
    }

    /// Returns the states of a block's sectors.
    #[inline]
    pub(crate) fn sectors(&self, frame: Frame) -> Sectors {
        let start = self.start(frame) + NUMBER;
        Sectors {
            valid: self.mask(start),
            dirty: self.mask(start + self.mask),
            writing: self.mask(start + 2 * self.mask),
        }
    }

    /// Sets the states of a block's sectors.
    #[inline]
    pub(crate) fn set_sectors(&mut self, frame: Frame, sectors: Sectors) {
        let mut start = self.start(frame) + NUMBER;
        for mask in [sectors.valid, sectors.dirty, sectors.writing] {
            self.bytes[start..start + self.mask].copy_from_slice(&mask.to_le_bytes()[..self.mask]);
            start += self.mask;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_block_size_keeps_its_masks_apart() {
        for bytes in [512, 1024, 4096, 8192, 16 << 10, 64 << 10] {
            let block = RamBlock::new(bytes).expect("a power of two");
            let mut contents = FrameContents::new(3, block);
            let all = u128::MAX >> (128 - block.sectors());
            let sectors = Sectors { valid: all, dirty: all & 0x5555, writing: all & 1 };
            let number = RamBlockNumber((u64::MAX >> 1) - 5);
            contents.enter(Frame(1), number);
            contents.set_sectors(Frame(1), sectors);
            assert!(!contents.was_used(Frame(1)));
            contents.note_use(Frame(1));
            for frame in [Frame(0), Frame(2)] {
                assert_eq!(contents.block(frame), RamBlockNumber(0));
                assert_eq!(contents.sectors(frame), Sectors::default());
            }
            assert_eq!(contents.block(Frame(1)), number);
            assert_eq!(contents.sectors(Frame(1)), sectors, "{bytes}");
            assert!(contents.was_used(Frame(1)) && !contents.was_used(Frame(0)));
            contents.enter(Frame(1), number);
            assert!(!contents.was_used(Frame(1)));
        }
    }
}
