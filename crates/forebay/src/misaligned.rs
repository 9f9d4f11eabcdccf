//! Partitions that do not begin where blocks do: on an origin, blocks of a file system there lie
//! across two blocks of the cache; on a disk with larger physical blocks, its writes become reads
//! and writes.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use forebay_admin::VolumeReport;
use forebay_core::SECTOR_SIZE;
use forebay_device::{partitions, signature};
use forebay_host::sysfs;

use crate::output::note;
use forebay_daemon::devices::path_of;

/// Says in one line for each device of a new volume that something in it, or it itself, is
/// misaligned.
pub(crate) fn warn(report: &VolumeReport) {
    let grid = Grid { block: report.block_size, alignment: report.alignment };
    let origin = path_of(&report.origin.path);
    let inside = origin.as_deref().and_then(|path| grid.first_outside(path, report.name.as_str()));
    let own = origin.as_deref().and_then(across_physical_blocks);
    let cache = path_of(&report.cache.path);
    let cache = cache.as_deref().and_then(across_physical_blocks);
    for warning in [inside, own, cache].into_iter().flatten() {
        note(&warning);
    }
}

/// The grid of a volume's blocks on its origin: multiples of `block`, less `alignment`.
struct Grid {
    block: u64,
    alignment: u64,
}

impl Grid {
    /// Returns a warning about the first partition on an origin that does not begin where a block
    /// does.
    fn first_outside(&self, origin: &Path, volume: &str) -> Option<String> {
        let head = File::open(origin).and_then(signature::read_head).ok()?;
        let found = partitions::starts(&head).into_iter();
        let (number, start, fitting) = found
            .filter_map(|(number, start)| Some((number, start, self.fitting(start)?)))
            .next()?;
        Some(format!(
            "partition {number} of {} starts at byte {start}, inside of a block of the cache, so that each of its blocks takes two; 'forebay delete {volume}', and create it again with --alignment {fitting}",
            origin.display()
        ))
    }

    /// Returns the alignment with which a block begins at this byte, if it is not the present one.
    fn fitting(&self, start: u64) -> Option<u64> {
        let block = self.block.max(SECTOR_SIZE);
        let fitting = (block - start % block) % block;
        (fitting != self.alignment % block).then_some(fitting)
    }
}

/// Returns a warning if a device is a partition that begins within a physical block of its disk.
fn across_physical_blocks(device: &Path) -> Option<String> {
    let own = sysfs::of_number(fs::metadata(device).ok()?.rdev());
    let (start, physical) = sysfs::physical_start(&own)?;
    (!start.is_multiple_of(physical)).then(|| {
        format!(
            "{} starts at byte {start} of its disk, which is not a multiple of the disk's physical blocks of {physical} bytes, so that writes are slow; use a partition that starts at a multiple",
            device.display()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_proposed_alignment_puts_a_block_at_the_start() {
        for block in [2048, 4096, 65536] {
            for start in [512, 32256, 1 << 20, 34 * 512] {
                let grid = Grid { block, alignment: 0 };
                match grid.fitting(start) {
                    None => assert_eq!(start % block, 0),
                    Some(fitting) => {
                        assert_eq!((start + fitting) % block, 0);
                        assert!(fitting < block && fitting.is_multiple_of(SECTOR_SIZE));
                        let other = Grid { block, alignment: fitting };
                        assert_eq!(other.fitting(start), None);
                    }
                }
            }
        }
    }
}
