//! A volume table, and the superblock means exactly this one. A reserved byte chooses the block
//! size.

use crate::{CACHE, block_size, memory, mend};
use forebay_format::VolumeTableRef;
use forebay_format::volume::{self, MAX_VOLUMES, VolumeTableError};

const RESERVED: usize = 36;

/// See [`super::Mutate`].
pub(crate) fn mutate(data: &mut [u8], size: usize, max_size: usize, seed: u32) -> usize {
    mend::mutate(data, size, max_size, seed, 1, mend::volume_table)
}

/// Runs one input.
pub(crate) fn run(data: &[u8]) {
    let block = block_size(data.get(RESERVED).copied().unwrap_or(0));
    let reference =
        VolumeTableRef { area: 0, len: mend::u32_at(data, 12), crc: mend::u32_at(data, 8) };
    memory::within((1 << 20) + 16 * data.len(), || {
        let Ok(mut volumes) = volume::decode(data, &reference, &CACHE, block) else { return };
        assert!(volumes.len() <= MAX_VOLUMES);
        // A table that is written has the successor of a withdrawn policy.
        volumes.iter_mut().for_each(|volume| volume.withdrawn_policy = None);
        match volume::encode(&volumes, &CACHE, block) {
            Ok(table) => {
                let again = volume::decode(&table.bytes, &table.reference(1), &CACHE, block);
                assert_eq!(again.as_ref(), Ok(&volumes));
            }
            Err(VolumeTableError::TooLarge(_)) => {}
            Err(error) => panic!("what was read cannot be written: {error}"),
        }
    });
}
