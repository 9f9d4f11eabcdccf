//! The partition tables of a disk.

use crate::memory;
use forebay_device::partitions;

/// Runs one input: the head of a disk.
pub(crate) fn run(data: &[u8]) {
    memory::within(64 << 10, || {
        let found = partitions::starts(data);
        assert!(found.len() <= 256);
        assert!(found.windows(2).all(|pair| pair[0].0 < pair[1].0), "{found:?}");
    });
}
