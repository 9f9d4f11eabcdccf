//! Whether a file or block device accepts writes, as far as the kernel knows.
//!
//! Opening for writing does not show it: the kernel opens a write-protected disk for writing and
//! fails the writes, and a file that is open for writing can become immutable, or its filesystem
//! read-only.

use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::fs::{AtFlags, FileType, StatVfsMountFlags, StatxAttributes, StatxFlags};

use crate::block_ioctl::is_read_only;

/// Why nothing can be written, and the remedy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WriteProtection {
    /// The disk, or a switch or an operator, refuses writes.
    Disk,
    /// The filesystem of the file, or its mount, is read-only.
    Filesystem,
    /// The file's attribute.
    Immutable,
    /// The file's attribute.
    AppendOnly,
}

impl WriteProtection {
    /// Returns a sentence with the way out.
    fn words(self) -> &'static str {
        match self {
            WriteProtection::Disk => {
                "the disk is write-protected; 'blockdev --setrw' lifts that, unless the hardware or the driver protects it"
            }
            WriteProtection::Filesystem => {
                "its filesystem is read-only; after a check of the filesystem 'mount -o remount,rw' makes it writable"
            }
            WriteProtection::Immutable => "the file is immutable; 'chattr -i' makes it writable",
            WriteProtection::AppendOnly => "the file is append-only; 'chattr -a' makes it writable",
        }
    }
}

/// Returns why the file or block device open as `fd` cannot be written; `None` if the kernel knows
/// no reason. May wait for a file server.
pub(crate) fn write_protection(fd: impl AsFd) -> Option<Arc<str>> {
    found(fd, true).map(|protection| protection.words().into())
}

/// Checks like [`write_protection`], but waits for nothing. For a file on a server, see
/// [`crate::evidence::is_on_server`], the state of the mount is left out; if the mount is
/// read-only, writes fail.
pub(crate) fn write_protection_at_once(fd: impl AsFd, on_server: bool) -> Option<Arc<str>> {
    found(fd, !on_server).map(|protection| protection.words().into())
}

fn found(fd: impl AsFd, with_mount: bool) -> Option<WriteProtection> {
    let fd = fd.as_fd();
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let stat = rustix::fs::statx(fd, c"", flags, StatxFlags::TYPE).ok()?;
    if FileType::from_raw_mode(stat.stx_mode.into()) == FileType::BlockDevice {
        return is_read_only(fd).then_some(WriteProtection::Disk);
    }
    if stat.stx_attributes.contains(StatxAttributes::IMMUTABLE) {
        return Some(WriteProtection::Immutable);
    }
    if stat.stx_attributes.contains(StatxAttributes::APPEND) {
        return Some(WriteProtection::AppendOnly);
    }
    // The call waits for the server of a network filesystem, or for a filesystem in user space.
    let mount = with_mount.then(|| rustix::fs::fstatvfs(fd).ok()).flatten()?;
    mount.f_flag.contains(StatVfsMountFlags::RDONLY).then_some(WriteProtection::Filesystem)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_and_a_read_only_filesystem_are_told_apart() {
        let folder = tempfile::tempdir().expect("folder");
        let file = std::fs::File::create_new(folder.path().join("file")).expect("file");
        assert_eq!(found(&file, true), None);
        // Kernels mount some filesystems read-only; this is the most common one.
        if let Ok(file) = std::fs::File::open("/sys/fs/cgroup/cgroup.controllers") {
            let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
            let is_read_only =
                |line: &&str| line.split(' ').nth(5).is_some_and(|it| it.starts_with("ro"));
            let line = mounts.lines().find(|line| line.split(' ').nth(4) == Some("/sys/fs/cgroup"));
            let expected = line.filter(is_read_only).map(|_| WriteProtection::Filesystem);
            assert_eq!(found(&file, true), expected);
        }
    }

    #[test]
    fn each_reason_names_its_way_out() {
        for (protection, way_out) in [
            (WriteProtection::Disk, "blockdev --setrw"),
            (WriteProtection::Filesystem, "remount,rw"),
            (WriteProtection::Immutable, "chattr -i"),
            (WriteProtection::AppendOnly, "chattr -a"),
        ] {
            assert!(protection.words().contains(way_out));
        }
    }
}
