//! The identity of a file or block device, from the kernel and the system's device manager.
//!
//! All parts are stable across restarts of the machine, unlike device numbers and names in `/dev`.
//! Unknown parts are left out.

use std::fs;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use forebay_core::{Identity, IdentityPart};
use forebay_host::files::text;
use forebay_host::sysfs;
use rustix::fs::{AtFlags, FileType, OFlags, Stat, StatxFlags};

use crate::loop_device;

/// Type of filesystems in user space, which may renumber their files at any time.
const FUSE: u64 = 0x6573_5546;

/// Directories in which the system describes devices.
struct Places<'a> {
    /// Directories of block devices, by device number.
    devices: &'a Path,
    /// Database of the device manager.
    manager: &'a Path,
}

/// Returns the identity of the file or block device open as `fd`.
pub(crate) fn identity(fd: impl AsFd) -> Option<Identity> {
    let fd = fd.as_fd();
    let stat = rustix::fs::fstat(fd).ok()?;
    if FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice {
        let number = sysfs::number_text(stat.st_rdev);
        let places =
            Places { devices: Path::new("/sys/dev/block"), manager: Path::new("/run/udev/data") };
        let is_behind =
            |file: &Stat| loop_device::backing(fd).is_ok_and(|it| it == (file.st_dev, file.st_ino));
        return Identity::new(block_parts(&places, &number, is_behind));
    }
    Identity::new(file_parts(fd))
}

fn file_parts(fd: BorrowedFd<'_>) -> Vec<(IdentityPart, String)> {
    let mut parts = Vec::new();
    if let Some(uuid) = filesystem_uuid(fd) {
        parts.push((IdentityPart::Filesystem, uuid));
    }
    let fuse = rustix::fs::fstatfs(fd).is_ok_and(|stat| stat.f_type.cast_unsigned() == FUSE);
    let wanted = StatxFlags::INO | StatxFlags::BTIME;
    if let (false, Ok(stat)) = (fuse, rustix::fs::statx(fd, c"", AtFlags::EMPTY_PATH, wanted)) {
        if stat.stx_mask & StatxFlags::INO.bits() != 0 {
            parts.push((IdentityPart::Inode, stat.stx_ino.to_string()));
        }
        if stat.stx_mask & StatxFlags::BTIME.bits() != 0 {
            let birth = stat.stx_btime;
            parts.push((IdentityPart::Birth, format!("{}.{:09}", birth.tv_sec, birth.tv_nsec)));
        }
    }
    parts
}

/// The kernel's answer to a query for the UUID of a filesystem.
#[repr(C)]
struct FilesystemUuid {
    len: u8,
    uuid: [u8; 16],
}

/// Returns the UUID of the filesystem that contains a file; kernels before 6.9 and some filesystems
/// do not provide it.
fn filesystem_uuid(fd: BorrowedFd<'_>) -> Option<String> {
    const GET: rustix::ioctl::Opcode = rustix::ioctl::opcode::read::<FilesystemUuid>(0x15, 0);
    // SAFETY: the opcode is FS_IOC_GETFSUUID, which writes one `struct fsuuid2`: a byte and 16
    // bytes, as `FilesystemUuid` has them.
    let getter = unsafe { rustix::ioctl::Getter::<GET, FilesystemUuid>::new() };
    // SAFETY: as above; the kernel writes no more than the opcode says.
    let told = unsafe { rustix::ioctl::ioctl(fd, getter) }.ok()?;
    let uuid = told.uuid.get(..usize::from(told.len))?;
    let known = uuid.iter().any(|byte| *byte != 0);
    known.then(|| uuid.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Returns the identity parts of the block device with this number, `MAJOR:MINOR`. `is_behind`
/// checks whether the device is a loop device on the file with these attributes.
fn block_parts(
    places: &Places<'_>,
    number: &str,
    is_behind: impl Fn(&Stat) -> bool,
) -> Vec<(IdentityPart, String)> {
    let mut parts = Vec::new();
    // A link to the device's own directory. That of a partition is inside that of its disk.
    let Ok(own) = fs::canonicalize(places.devices.join(number)) else { return parts };
    let disk = sysfs::disk_of(&own);
    let is_partition = disk != own;
    let mut add = |part, found: Option<String>| parts.extend(found.map(|text| (part, text)));
    let of_disk = |names: [&str; 2]| names.iter().find_map(|name| text(disk.join(name)));
    add(IdentityPart::Wwid, of_disk(["wwid", "device/wwid"]));
    add(IdentityPart::Serial, of_disk(["serial", "device/serial"]));
    add(IdentityPart::DmUuid, text(own.join("dm/uuid")));
    add(IdentityPart::RaidUuid, text(disk.join("md/uuid")));
    let managed = text(places.manager.join(format!("b{number}"))).unwrap_or_default();
    let uevent = text(own.join("uevent")).unwrap_or_default();
    add(IdentityPart::LongSerial, value(&managed, "E:ID_SERIAL="));
    if is_partition {
        let uuid = value(&uevent, "PARTUUID=").or_else(|| value(&managed, "E:ID_PART_ENTRY_UUID="));
        add(IdentityPart::PartitionUuid, uuid.map(|uuid| uuid.to_lowercase()));
        add(IdentityPart::Start, text(own.join("start")));
    }
    // A loop device has the identity of the file behind it. Another file may have the path by now,
    // here or in the mount namespace in which the file was attached.
    if let Some(file) = sysfs::backing_file(disk) {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        if let Ok(fd) = rustix::fs::open(file, flags, rustix::fs::Mode::empty())
            && rustix::fs::fstat(&fd).is_ok_and(|found| is_behind(&found))
        {
            parts.extend(file_parts(fd.as_fd()));
        }
        let offset = text(disk.join("loop/offset")).filter(|offset| offset != "0");
        if let (false, Some(offset)) = (is_partition, offset) {
            parts.push((IdentityPart::Start, offset));
        }
    }
    parts
}

/// Returns the value behind `key` at the start of a line.
fn value(lines: &str, key: &str) -> Option<String> {
    lines.lines().find_map(|line| line.strip_prefix(key)).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(path: &Path, content: &str) {
        fs::create_dir_all(path.parent().expect("inside")).expect("folder");
        fs::write(path, content).expect("file");
    }

    /// Returns the identity on a system whose device directories have these files; 8:1 is
    /// `sda/sda1`.
    fn parts(number: &str, files: &[(&str, &str)]) -> Option<Identity> {
        parts_over(number, files, true)
    }

    /// Returns the identity like `parts`; `is_behind`: the file at a loop device's path is the file
    /// behind it.
    fn parts_over(number: &str, files: &[(&str, &str)], is_behind: bool) -> Option<Identity> {
        let folder = tempfile::tempdir().expect("folder");
        let (devices, manager) = (folder.path().join("devices"), folder.path().join("manager"));
        let links = folder.path().join("links");
        fs::create_dir_all(&links).expect("folder");
        for (number, directory) in [("8:0", "sda"), ("8:1", "sda/sda1"), ("7:0", "loop0")] {
            fs::create_dir_all(devices.join(directory)).expect("folder");
            std::os::unix::fs::symlink(devices.join(directory), links.join(number)).expect("link");
        }
        for (name, content) in files {
            write(&folder.path().join(name), content);
        }
        let places = Places { devices: &links, manager: &manager };
        Identity::new(block_parts(&places, number, |_| is_behind))
    }

    #[test]
    fn a_disk_and_its_partition_are_told_apart() {
        let files = [
            ("devices/sda/device/wwid", "naa.5000c500a1b2c3d4\n"),
            ("devices/sda/sda1/partition", "1\n"),
            ("devices/sda/sda1/start", "2048\n"),
            ("manager/b8:0", "S:disk\nE:ID_SERIAL=WDC_1\n"),
            ("manager/b8:1", "E:ID_SERIAL=WDC_1\nE:ID_PART_ENTRY_UUID=ABCD-01\n"),
        ];
        let disk = parts("8:0", &files).expect("known").to_string();
        assert_eq!(disk, "WWID naa.5000c500a1b2c3d4, long serial number WDC_1");
        let partition = parts("8:1", &files).expect("known").to_string();
        assert_eq!(
            partition,
            "WWID naa.5000c500a1b2c3d4, long serial number WDC_1, partition UUID abcd-01, start 2048"
        );
        assert_eq!(parts("8:2", &files), None);
        assert_eq!(parts("8:0", &[]), None);
    }

    #[test]
    fn devices_of_other_kinds_say_what_they_have() {
        let mapped = parts("8:0", &[("devices/sda/dm/uuid", "LVM-abc\n")]).expect("known");
        assert_eq!(mapped.to_string(), "device mapper UUID LVM-abc");
        let virt =
            parts("8:0", &[("devices/sda/serial", "disk-1\n"), ("manager/b8:0", "\u{fffd}")]);
        assert_eq!(virt.expect("known").to_string(), "serial number disk-1");
        let raid = parts("8:0", &[("devices/sda/md/uuid", "12:34\n")]).expect("known");
        assert_eq!(raid.to_string(), "RAID UUID 12:34");
    }

    #[test]
    fn a_file_keeps_its_identity_and_shares_it_with_no_other() {
        let folder = tempfile::tempdir().expect("folder");
        let at = |name: &str| folder.path().join(name);
        let of = |name: &str| identity(fs::File::open(at(name)).expect("there"));
        write(&at("a"), "one");
        let first = of("a").expect("a file has an inode");
        fs::rename(at("a"), at("b")).expect("moved");
        fs::write(at("b"), "changed").expect("written");
        assert_eq!(of("b").expect("known"), first);
        write(&at("a"), "one");
        assert!(first.difference(&of("a").expect("known")).is_some());
        // A loop device on the file has the same identity; the file behind it is found by its path.
        let backing = at("b").display().to_string();
        let files = [("devices/loop0/loop/backing_file", backing.as_str())];
        assert_eq!(parts("7:0", &files).expect("known"), first);
        assert_eq!(parts_over("7:0", &files, false), None, "another file has the path");
        let files = [files[0], ("devices/loop0/loop/offset", "512\n")];
        let shifted = parts("7:0", &files).expect("known").to_string();
        assert_eq!(shifted.split(", ").filter(|part| *part == "start 512").count(), 1);
    }
}
