//! The address ranges of volumes in the index.

use forebay_core::{OriginBlock, VolumeId};
use forebay_format::CheckSeed;

use crate::index::Address;

/// One volume's address range in the index, and the seed of its checksums.
#[derive(Clone, Copy, Debug)]
pub struct VolumeSpace {
    /// The volume.
    pub id: VolumeId,
    /// Address of its block 0.
    pub base: u64,
    /// Number of its blocks.
    pub blocks: u64,
    pub(crate) seed: CheckSeed,
}

impl VolumeSpace {
    /// Returns whether the volume has this block. Block numbers read from a device must be checked
    /// with this: the address of one beyond the end belongs to another volume, or to none.
    #[inline]
    pub fn contains(&self, block: OriginBlock) -> bool {
        block.0 < self.blocks
    }

    /// Returns the address of a block of this volume.
    #[inline]
    pub fn address(&self, block: OriginBlock) -> Address {
        debug_assert!(self.contains(block), "{block:?} is beyond the end of {:?}", self.id);
        Address(self.base + block.0)
    }

    /// Returns the block at an address, if it belongs to this volume.
    pub fn block(&self, address: Address) -> Option<OriginBlock> {
        let block = address.0.checked_sub(self.base)?;
        (block < self.blocks).then_some(OriginBlock(block))
    }
}

/// The address ranges of all volumes, to find the volume of an address.
pub struct Spaces(Vec<VolumeSpace>);

impl Spaces {
    /// Makes it of ranges that are sorted by their bases.
    pub(crate) fn new(sorted: Vec<VolumeSpace>) -> Self {
        Spaces(sorted)
    }

    /// Returns the ranges, sorted by their bases.
    pub(crate) fn all(&self) -> &[VolumeSpace] {
        &self.0
    }

    /// Returns the volume of an address, and the block's number in it.
    pub fn find(&self, address: Address) -> Option<(&VolumeSpace, OriginBlock)> {
        let after = self.0.partition_point(|space| space.base <= address.0);
        let space = self.0.get(after.checked_sub(1)?)?;
        space.block(address).map(|block| (space, block))
    }
}

/// Returns the checksum of the volumes' address ranges, for [`forebay_format::Arrangement`].
pub(crate) fn checksum(spaces: &[VolumeSpace]) -> u64 {
    // FNV-1a.
    const PRIME: u64 = 0x100_0000_01b3;
    let mut sorted: Vec<_> = spaces.iter().map(|it| [it.base, it.blocks, it.id.0.into()]).collect();
    sorted.sort_unstable();
    let bytes = sorted.iter().flatten().flat_map(|number| number.to_le_bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |sum, byte| (sum ^ u64::from(byte)).wrapping_mul(PRIME))
}
