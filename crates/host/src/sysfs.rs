//! Block devices as the kernel describes them below `/sys`. The directory of a partition is inside
//! that of its disk.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use forebay_core::SECTOR_SIZE;
use rustix::fs::{major, makedev, minor};

use crate::files::{names, number, text};

/// Returns the number of a device in the kernel's notation, like `8:16`.
pub fn number_text(number: u64) -> String {
    format!("{}:{}", major(number), minor(number))
}

/// Parses a text of [`number_text`].
pub fn parse_number(text: &str) -> Option<u64> {
    let (major, minor) = text.split_once(':')?;
    Some(makedev(major.parse().ok()?, minor.parse().ok()?))
}

/// Returns a path that leads to the directory of the block device with this number.
pub fn of_number(number: u64) -> PathBuf {
    Path::new("/sys/dev/block").join(number_text(number))
}

/// Returns the directory of the block device with this number, if there is one.
pub fn directory(number: u64) -> Option<PathBuf> {
    fs::canonicalize(of_number(number)).ok()
}

/// Returns the path of the sysfs directory of a disk like `/dev/loop0`.
pub fn of_disk(device: &Path) -> PathBuf {
    Path::new("/sys/block").join(device.file_name().unwrap_or_default())
}

/// Returns the number of the device with this directory.
pub fn number_of(own: &Path) -> Option<u64> {
    parse_number(&text(own.join("dev"))?)
}

/// Returns the directory of the disk to which the device with the directory `own` belongs; `own`
/// itself if it is not a partition.
pub fn disk_of(own: &Path) -> &Path {
    own.parent().filter(|_| own.join("partition").exists()).unwrap_or(own)
}

/// Returns the directories of the partitions of a disk, in the order of their names.
pub fn partitions(disk: &Path) -> Vec<PathBuf> {
    let all = names(disk).into_iter().map(|name| disk.join(name));
    all.filter(|own| own.join("partition").exists()).collect()
}

/// Returns the names of the devices on top of the one with this directory.
pub fn holders(own: &Path) -> Vec<String> {
    names(own.join("holders"))
}

/// Returns the path of the file behind the loop device with this directory, as the kernel knows it.
pub fn backing_file(disk: &Path) -> Option<PathBuf> {
    let mut path = fs::read(disk.join("loop/backing_file")).ok()?;
    path.pop_if(|last| *last == b'\n');
    Some(OsString::from_vec(path).into())
}

/// Returns the offset of a partition on its disk in bytes; `None` if it is no partition.
pub fn start(own: &Path) -> Option<u64> {
    number(own.join("start"))?.checked_mul(SECTOR_SIZE)
}

/// Returns the offset of a partition in bytes, counted from the start of a physical block of its
/// disk, and the size of a physical block; `None` if it is no partition.
pub fn physical_start(own: &Path) -> Option<(u64, u64)> {
    let start = start(own)?;
    let disk = own.canonicalize().ok()?.parent()?.to_owned();
    let physical = number(disk.join("queue/physical_block_size"))?;
    let offset = number(disk.join("alignment_offset")).unwrap_or(0);
    (physical > 0).then_some((start.checked_sub(offset)?, physical))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_devices_read_back() {
        for text in ["8:16", "259:0", "0:43"] {
            assert_eq!(parse_number(text).map(number_text).as_deref(), Some(text));
        }
        for bad in ["", "8", "8:", "8:x", ":16"] {
            assert_eq!(parse_number(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn the_directory_of_a_partition_is_in_that_of_its_disk() {
        let dir = tempfile::tempdir().expect("folder");
        let disk = dir.path().join("sda");
        for name in ["sda1", "sda2", "queue", "holders/dm-0", "loop"] {
            fs::create_dir_all(disk.join(name)).expect("writable");
        }
        let parts = ["sda1", "sda2"].map(|name| disk.join(name));
        for own in &parts {
            fs::write(own.join("partition"), "1\n").expect("writable");
            assert_eq!(disk_of(own), disk);
        }
        fs::write(disk.join("sda1/dev"), "8:1\n").expect("writable");
        fs::write(disk.join("loop/backing_file"), b"/a \xff\n").expect("writable");
        assert_eq!((disk_of(&disk), partitions(&disk)), (&*disk, parts.to_vec()));
        assert_eq!((number_of(&disk), number_of(&parts[0])), (None, Some(makedev(8, 1))));
        assert_eq!((holders(&disk), holders(&parts[0])), (vec!["dm-0".to_owned()], Vec::new()));
        let file = OsString::from_vec(b"/a \xff".to_vec());
        assert_eq!((backing_file(&disk), backing_file(&parts[0])), (Some(file.into()), None));
    }

    #[test]
    fn a_partition_within_a_physical_block_is_found() {
        let dir = tempfile::tempdir().expect("folder");
        let disk = dir.path().join("sda");
        fs::create_dir_all(disk.join("sda1")).expect("writable");
        fs::create_dir_all(disk.join("queue")).expect("writable");
        fs::write(disk.join("queue/physical_block_size"), "4096\n").expect("writable");
        fs::write(disk.join("alignment_offset"), "0\n").expect("writable");
        fs::write(disk.join("sda1/start"), "63\n").expect("writable");
        assert_eq!(physical_start(&disk.join("sda1")), Some((32256, 4096)));
        // On this disk a physical block begins at the seventh sector, so the partition is aligned.
        fs::write(disk.join("alignment_offset"), "3584\n").expect("writable");
        assert_eq!(physical_start(&disk.join("sda1")), Some((28672, 4096)));
        assert_eq!(physical_start(&disk), None, "a whole disk");
    }
}
