//! Other loop devices with the same file. The kernel claims a loop device but not its file: a
//! filesystem mounted from another loop device of the file would be written in addition to the
//! opened device.

use std::fs;
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use forebay_core::SECTOR_SIZE;
use forebay_host::files::{number, text};
use forebay_host::mounts::{Mount, mounts};
use forebay_host::sysfs;
use rustix::fs::{Mode, OFlags, Stat};
use rustix::io::Errno;

/// The part of a file that a device occupies.
struct FileRange {
    file: PathBuf,
    bytes: Range<u64>,
}

/// Returns the loop device or partition that overlaps with the opened file or loop device in the
/// same file, and that is mounted, used for swap, or claimed otherwise.
pub(super) fn claimed(fd: &OwnedFd, stat: &Stat, block: bool, path: &Path) -> Option<PathBuf> {
    let (own, disk) = match block {
        false => (FileRange { file: fs::canonicalize(path).ok()?, bytes: 0..u64::MAX }, None),
        true => {
            let own = sysfs::directory(stat.st_rdev)?;
            let disk = sysfs::disk_of(&own);
            (part(disk, &own)?, Some(disk.to_owned()))
        }
    };
    let system = (!block).then(|| System::of(fd)).flatten();
    let same =
        |file: &Path| file == own.file || system.as_ref().is_some_and(|it| it.leads_to(file, stat));
    let disks = fs::read_dir("/sys/block").into_iter().flatten().flatten();
    let disks = disks.filter_map(|entry| fs::canonicalize(entry.path()).ok());
    disks.filter(|it| it.join("loop").exists() && Some(it) != disk.as_ref()).find_map(|disk| {
        let mut users = users(&disk).into_iter().filter_map(|it| Some((part(&disk, &it)?, it)));
        users.find_map(|(other, user)| {
            let overlaps = other.bytes.start < own.bytes.end && own.bytes.start < other.bytes.end;
            let device = Path::new("/dev").join(user.file_name()?);
            (overlaps && same(&other.file) && is_claimed(&device, &user)).then_some(device)
        })
    })
}

/// Returns the sysfs directories of a disk's partitions, or of the disk itself if it has none.
fn users(disk: &Path) -> Vec<PathBuf> {
    let mut all = sysfs::partitions(disk);
    if all.is_empty() {
        all.push(disk.to_owned());
    }
    all
}

/// Returns the part of its file that a loop device, or a partition of one, occupies.
fn part(disk: &Path, own: &Path) -> Option<FileRange> {
    let file = sysfs::backing_file(disk)?;
    let within = if own == disk { 0 } else { sysfs::start(own)? };
    let start = number(disk.join("loop/offset"))?.saturating_add(within);
    let end = start.saturating_add(number(own.join("size"))?.saturating_mul(SECTOR_SIZE));
    Some(FileRange { file, bytes: start..end })
}

/// Returns whether a block device is mounted or claimed otherwise.
fn is_claimed(device: &Path, own: &Path) -> bool {
    let flags = OFlags::RDONLY | OFlags::EXCL | OFlags::NONBLOCK | OFlags::CLOEXEC;
    match rustix::fs::open(device, flags, Mode::empty()) {
        Ok(_) => false,
        Err(Errno::BUSY) => true,
        // Looking is not permitted, but the mounts are known.
        Err(_) => {
            let number = text(own.join("dev")).unwrap_or_default();
            mounts().iter().any(|mount| mount.device == number)
        }
    }
}

/// The filesystem of an opened file. Only paths on it are resolved, because another filesystem may
/// not answer.
struct System {
    mounts: Vec<Mount>,
    /// Number of the mount's device in `mountinfo`, which can differ from the device number of its
    /// files.
    number: String,
}

impl System {
    fn of(fd: &OwnedFd) -> Option<Self> {
        let about = fs::read_to_string(format!("/proc/self/fdinfo/{}", fd.as_raw_fd())).ok()?;
        let id = about.lines().find_map(|line| line.strip_prefix("mnt_id:"))?.trim();
        let mounts = mounts();
        let number = mounts.iter().find(|mount| mount.id == id)?.device.clone();
        Some(System { number, mounts })
    }

    /// Returns whether a path is on this filesystem and leads to the file with these attributes.
    fn leads_to(&self, path: &Path, stat: &Stat) -> bool {
        self.has(path)
            && fs::metadata(path)
                .is_ok_and(|found| (found.dev(), found.ino()) == (stat.st_dev, stat.st_ino))
    }

    /// Whether a path without links is on this filesystem.
    fn has(&self, path: &Path) -> bool {
        let mounts = self.mounts.iter().filter(|mount| path.starts_with(&mount.point));
        let innermost = mounts.max_by_key(|mount| mount.point.as_os_str().len());
        innermost.is_some_and(|mount| mount.device == self.number)
    }
}

#[cfg(test)]
mod tests {
    use forebay_host::mounts::parse;

    use super::*;

    #[test]
    fn a_path_is_on_the_filesystem_of_its_innermost_mount() {
        let mounts = "22 1 8:1 / / rw - ext4 /dev/a rw\n23 22 0:40 / /mnt rw - fuse f rw\n\
                      24 23 8:1 /b /mnt/in\\040it rw - ext4 /dev/a rw\n25 22 0:41 / /over rw - tmpfs t rw\n\
                      26 25 8:1 /o /over rw - ext4 /dev/a rw";
        let system = System { mounts: parse(mounts), number: "8:1".to_owned() };
        for path in ["/file", "/mntfile", "/mnt/in it/file", "/over/file"] {
            assert!(system.has(Path::new(path)), "{path}");
        }
        for path in ["/mnt/file", "/mnt/in", "/mnt/in it's/file"] {
            assert!(!system.has(Path::new(path)), "{path}");
        }
    }
}
