//! Holes of files, and whether a file or block device can discard a range cheaply, so that it reads
//! as zeroes. The queries change nothing.

use std::fs;
use std::os::fd::AsFd;
use std::path::Path;

use forebay_host::files::number;
use forebay_host::sysfs;
use rustix::fs::{FallocateFlags, FileType, SeekFrom, seek};
use rustix::io::Errno;

use crate::api::DeviceExtent;

/// Distance behind the end of a file at which it is queried, in bytes.
const BEYOND: u64 = 1 << 20;

/// Returns whether `fd`, open for writing, can make holes. Returns `true` if it is unknown, because
/// the attempt will show it.
pub(crate) fn makes_holes(fd: impl AsFd) -> bool {
    let Ok(stat) = rustix::fs::fstat(&fd) else { return true };
    if FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice {
        return disk_makes_holes(&sysfs::of_number(stat.st_rdev));
    }
    // Nothing is stored behind the end, but the filesystem reports whether it could discard there.
    let end = u64::try_from(stat.st_size).unwrap_or(0).saturating_add(BEYOND);
    let place = end.next_multiple_of(BEYOND);
    let what = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let asked = rustix::fs::fallocate(fd, what, place, 4096);
    !matches!(asked, Err(Errno::OPNOTSUPP | Errno::NOSYS))
}

/// Returns the run of bytes from `offset` on that is a hole of a regular file, or is data
/// throughout; `None` if it is unknown. Moves the file's position, which nothing else uses.
pub(crate) fn extent_at(fd: impl AsFd, offset: u64, size: u64) -> Option<DeviceExtent> {
    if offset >= size {
        return None;
    }
    match seek(&fd, SeekFrom::Data(offset)) {
        Ok(data) if data > offset => Some(DeviceExtent { end: data.min(size), hole: true }),
        Ok(_) => match seek(&fd, SeekFrom::Hole(offset)) {
            Ok(hole) if hole > offset => Some(DeviceExtent { end: hole.min(size), hole: false }),
            _ => None,
        },
        // No data follows up to the end of the file.
        Err(Errno::NXIO) => Some(DeviceExtent { end: size, hole: true }),
        Err(_) => None,
    }
}

/// Returns whether the kernel can make holes in a block device, which is so only if the device
/// zeroes ranges itself.
fn disk_makes_holes(device: &Path) -> bool {
    let Ok(own) = fs::canonicalize(device) else { return true };
    // A partition has no queue of its own.
    let limit = |directory: &Path| number(directory.join("queue/write_zeroes_max_bytes"));
    limit(&own).or_else(|| limit(own.parent()?)) != Some(0)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn asking_a_file_changes_nothing() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("file");
        let content = vec![0x5a; (3 << 20) + 100];
        fs::write(&path, &content).expect("file");
        let file = fs::File::options().write(true).open(&path).expect("there");
        let answer = makes_holes(&file);
        assert!(fs::read(&path).expect("there") == content);
        // The answer is correct.
        let what = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        assert_eq!(rustix::fs::fallocate(&file, what, 0, 4096).is_ok(), answer);
        // A pipe has nothing to discard, but the query is inconclusive.
        let (_read, write) = std::io::pipe().expect("a pipe");
        assert!(makes_holes(write));
    }

    #[test]
    fn holes_are_found_and_data_is_never_taken_for_one() {
        let folder = tempfile::tempdir().expect("folder");
        let file = fs::File::create_new(folder.path().join("file")).expect("file");
        let size = 8 << 20;
        file.set_len(size).expect("sparse");
        let hole = |end| Some(DeviceExtent { end, hole: true });
        let data = |end| Some(DeviceExtent { end, hole: false });
        if extent_at(&file, 0, size) != hole(size) {
            // This filesystem does not tell.
            assert_eq!(extent_at(&file, 0, size), data(size));
            return;
        }
        file.write_all_at(&[1; 1 << 20], 2 << 20).expect("written");
        file.write_all_at(&[0; 1 << 20], 7 << 20).expect("written");
        for (offset, expected) in [
            (0, hole(2 << 20)),
            ((2 << 20) - 512, hole(2 << 20)),
            (2 << 20, data(3 << 20)),
            ((3 << 20) - 512, data(3 << 20)),
            (3 << 20, hole(7 << 20)),
            (7 << 20, data(size)),
            (size, None),
            (u64::MAX, None),
        ] {
            assert_eq!(extent_at(&file, offset, size), expected, "{offset}");
        }
        let (_read, write) = std::io::pipe().expect("a pipe");
        assert_eq!(extent_at(write, 0, size), None);
    }

    #[test]
    fn disks_and_partitions_are_asked_for_their_limit() {
        let folder = tempfile::tempdir().expect("folder");
        let (disk, links) = (folder.path().join("sda"), folder.path().join("links"));
        fs::create_dir_all(disk.join("queue")).expect("folder");
        fs::create_dir_all(disk.join("sda1")).expect("folder");
        fs::create_dir_all(&links).expect("folder");
        std::os::unix::fs::symlink(&disk, links.join("8:0")).expect("link");
        std::os::unix::fs::symlink(disk.join("sda1"), links.join("8:1")).expect("link");
        for (limit, can) in [("0\n", false), ("4294966784\n", true), ("?", true)] {
            fs::write(disk.join("queue/write_zeroes_max_bytes"), limit).expect("file");
            for number in ["8:0", "8:1"] {
                assert_eq!(disk_makes_holes(&links.join(number)), can, "{number} {limit}");
            }
            assert!(disk_makes_holes(&links.join("8:2")));
        }
    }
}
