//! The system's evidence of writes to a file or block device: see [`forebay_core::evidence`].
//!
//! Nothing here reads the content or waits for the device, but it may wait for a file server.

use std::collections::BTreeSet;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use forebay_core::Evidence;
use forebay_core::evidence::{CountedEvidence, EvidenceKind, FileEvidence, FileTime};
use forebay_host::files::text;
use forebay_host::sysfs;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, StatxFlags, StatxTimestamp};
use rustix::time::{ClockId, clock_gettime};

use crate::loop_device;

/// Types of local filesystems that set a file's times at every write, also through a mapping, and
/// that only this machine writes to: ext2 to ext4, XFS, Btrfs, F2FS, Bcachefs, ZFS. Filesystems in
/// user space and on servers have times that their owner chooses, and tmpfs does not notice all
/// writes through a mapping.
const EXACT: [u64; 6] = [0xef53, 0x5846_5342, 0x9123_683e, 0xf2f5_2010, 0xca45_1a4e, 0x2fc1_2fc1];

/// Types of other filesystems without a server: tmpfs, overlayfs, FAT, exFAT, NTFS.
const LOCAL_TOO: [u64; 5] = [0x0102_1994, 0x794c_7630, 0x4d44, 0x2011_bab0, 0x7366_746e];

/// Parts of sysfs paths that occur only for disks attached to this machine alone. Disks of a SAN,
/// or of a hypervisor, may be written to by others.
const LOCAL: [&str; 3] = ["/ata", "/usb", "/mmc_host/"];

/// Maximum depth of the devices below a device that are followed, for example from LVM over RAID to
/// a partition.
const DEPTH: usize = 8;

/// Fields of a device's `stat` file: sectors written, and sectors discarded.
const WRITTEN: usize = 6;
const DISCARDED: usize = 13;

/// Returns the system's evidence of writes to the file or block device open as `fd`.
pub(crate) fn evidence(fd: impl AsFd) -> Option<Evidence> {
    let fd = fd.as_fd();
    let stat = rustix::fs::fstat(fd).ok()?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::BlockDevice {
        return of_file(fd, false);
    }
    let own = sysfs::directory(stat.st_rdev)?;
    let disk = sysfs::disk_of(&own);
    if let Some(file) = sysfs::backing_file(disk) {
        // The device's counters restart each time it is attached; the file's times cover all
        // writes.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = rustix::fs::open(file, flags, Mode::empty()).ok()?;
        // The path may lead to another file by now.
        let found = rustix::fs::fstat(&file).ok()?;
        if loop_device::backing(fd).ok()? != (found.st_dev, found.st_ino) {
            return None;
        }
        let cut = |name| text(disk.join(name)).is_some_and(|text| text != "0");
        let part = own != disk || cut("loop/offset") || cut("loop/sizelimit");
        return of_file(file.as_fd(), part);
    }
    let boot = text("/proc/sys/kernel/random/boot_id")?;
    counted(&own, boot)
}

/// Returns whether a file is on a filesystem that is not local, so that facts about it may need an
/// answer of a server. May wait for that server.
pub(crate) fn is_on_server(fd: impl AsFd) -> bool {
    let is_file =
        |stat: rustix::fs::Stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    let kind = rustix::fs::fstatfs(&fd).map(|found| found.f_type.cast_unsigned());
    rustix::fs::fstat(&fd).map_or(true, is_file)
        && !kind.is_ok_and(|kind| EXACT.contains(&kind) || LOCAL_TOO.contains(&kind))
}

/// Returns whether a device is a loop device, whose file may be on a server.
pub(crate) fn is_loop(fd: impl AsFd) -> bool {
    let Ok(stat) = rustix::fs::fstat(&fd) else { return false };
    FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice
        && sysfs::directory(stat.st_rdev)
            .is_some_and(|own| sysfs::disk_of(&own).join("loop").exists())
}

/// Returns the evidence from a file's times. `part`: the device is only a part of the file.
fn of_file(fd: BorrowedFd<'_>, part: bool) -> Option<Evidence> {
    let wanted = StatxFlags::INO | StatxFlags::SIZE | StatxFlags::MTIME | StatxFlags::CTIME;
    let stat = rustix::fs::statx(fd, c"", AtFlags::EMPTY_PATH, wanted).ok()?;
    if stat.stx_mask & wanted.bits() != wanted.bits() {
        return None;
    }
    // The kernel takes a file's times from this clock. A write in the same tick as the last one
    // would not change them.
    let now = clock_gettime(ClockId::RealtimeCoarse);
    let now = FileTime::from(now.tv_sec) * 1_000_000_000 + FileTime::from(now.tv_nsec);
    let (modified, changed) = (nanoseconds(stat.stx_mtime), nanoseconds(stat.stx_ctime));
    let kind = rustix::fs::fstatfs(fd).ok()?.f_type.cast_unsigned();
    Some(Evidence {
        exact: EXACT.contains(&kind) && modified.max(changed) < now,
        kind: EvidenceKind::File(FileEvidence {
            part,
            inode: stat.stx_ino,
            size: stat.stx_size,
            modified,
            changed,
        }),
    })
}

fn nanoseconds(time: StatxTimestamp) -> FileTime {
    FileTime::from(time.tv_sec) * 1_000_000_000 + FileTime::from(time.tv_nsec)
}

/// Returns the kernel's counters of the device with this directory.
fn counted(own: &Path, boot: String) -> Option<Evidence> {
    let mut disks = BTreeSet::new();
    collect(sysfs::disk_of(own), DEPTH, &mut disks)?;
    let (mut exact, mut all, mut hasher) = (true, 0_u64, DefaultHasher::new());
    for disk in &disks {
        // A number that the kernel gives to each disk and never reuses; unknown before Linux 5.15.
        let sequence = text(disk.join("diskseq"));
        exact &= sequence.is_some() && counts(disk) && is_local(disk);
        (disk, sequence).hash(&mut hasher);
        all = all.checked_add(changed_sectors(disk)?)?;
    }
    let kind = EvidenceKind::Counted(CountedEvidence {
        boot,
        disks: hasher.finish(),
        own: changed_sectors(own)?,
        all,
    });
    Some(Evidence { kind, exact })
}

/// Adds a disk and those below it. `None` if they cannot be determined.
fn collect(disk: &Path, depth: usize, disks: &mut BTreeSet<PathBuf>) -> Option<()> {
    let below = fs::read_dir(disk.join("slaves")).into_iter().flatten();
    for entry in below {
        let below = fs::canonicalize(entry.ok()?.path()).ok()?;
        collect(sysfs::disk_of(&below), depth.checked_sub(1)?, disks)?;
    }
    disks.insert(disk.to_owned());
    Some(())
}

/// Returns whether the kernel counts the I/O of a disk.
fn counts(disk: &Path) -> bool {
    text(disk.join("queue/iostats")).is_some_and(|text| text != "0")
}

/// Returns whether only this machine can write to a disk, or the disk consists of others.
fn is_local(disk: &Path) -> bool {
    let path = disk.to_string_lossy();
    let pcie = text(disk.join("device/transport")).is_some_and(|text| text == "pcie");
    let has_parts = fs::read_dir(disk.join("slaves")).is_ok_and(|mut parts| parts.next().is_some());
    pcie || has_parts || LOCAL.iter().any(|part| path.contains(part))
}

/// Returns the number of sectors that were written or discarded on a device by completed requests.
fn changed_sectors(device: &Path) -> Option<u64> {
    let stat = text(device.join("stat"))?;
    let fields: Vec<u64> = stat.split_whitespace().map_while(|field| field.parse().ok()).collect();
    // Discards are counted since Linux 4.18.
    fields.get(WRITTEN)?.checked_add(*fields.get(DISCARDED)?)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{FileExt, symlink};

    use forebay_core::Since;

    use super::*;

    fn of(path: &Path) -> Evidence {
        evidence(fs::File::open(path).expect("there")).expect("known")
    }

    /// Waits until the kernel's clock has another time than the file.
    fn settled(path: &Path) -> Evidence {
        let time = |evidence: &Evidence| match &evidence.kind {
            EvidenceKind::File(file) => file.modified.max(file.changed),
            EvidenceKind::Counted(_) => 0,
        };
        loop {
            let now = clock_gettime(ClockId::RealtimeCoarse);
            let now = FileTime::from(now.tv_sec) * 1_000_000_000 + FileTime::from(now.tv_nsec);
            let found = of(path);
            if time(&found) < now {
                return found;
            }
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_file_tells_of_writes_and_of_other_changes() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("disk");
        fs::write(&path, [1; 4096]).expect("written");
        let was = settled(&path);
        assert!(!matches!(of(&path).since(&was), Since::Written(_)));
        let file = fs::File::options().write(true).open(&path).expect("there");
        file.write_all_at(&[2], 100).expect("written");
        assert_eq!(of(&path).since(&was), Since::Written("its file was modified"));
        let was = settled(&path);
        let time = file.metadata().expect("there").modified().expect("known");
        file.write_all_at(&[3], 100).expect("written");
        file.set_modified(time).expect("set back");
        assert_eq!(of(&path).since(&was), Since::Unknown("attributes of its file were changed"));
        fs::write(folder.path().join("copy"), [3; 4096]).expect("written");
        assert_eq!(
            of(&folder.path().join("copy")).since(&was),
            Since::Unknown("it is another file")
        );
    }

    /// Disk `sda` with a partition, and `dm-0` of the device mapper on that partition, with these
    /// numbers of written sectors.
    fn disks(folder: &Path, [disk, partition, mapped]: [u64; 3]) {
        let stat = |sectors: u64| format!("9 9 9 9 9 9 {sectors} 9 9 9 9 9 9 5 9 7 7\n");
        for (name, content) in [
            ("ata1/sda/stat", stat(disk)),
            ("ata1/sda/diskseq", "3\n".into()),
            ("ata1/sda/queue/iostats", "1\n".into()),
            ("ata1/sda/sda1/partition", "1\n".into()),
            ("ata1/sda/sda1/stat", stat(partition)),
            ("virtual/dm-0/stat", stat(mapped)),
            ("virtual/dm-0/diskseq", "4\n".into()),
            ("virtual/dm-0/queue/iostats", "1\n".into()),
        ] {
            let path = folder.join(name);
            fs::create_dir_all(path.parent().expect("inside")).expect("folder");
            fs::write(path, content).expect("written");
        }
        let slaves = folder.join("virtual/dm-0/slaves");
        if fs::create_dir_all(&slaves).is_ok() && !slaves.join("sda1").exists() {
            symlink(folder.join("ata1/sda/sda1"), slaves.join("sda1")).expect("linked");
        }
    }

    #[test]
    fn counters_of_a_device_and_of_all_disks_below_are_compared() {
        let folder = tempfile::tempdir().expect("folder");
        let folder = fs::canonicalize(folder.path()).expect("there");
        let look = |name: &str, sectors| {
            disks(&folder, sectors);
            counted(&folder.join(name), "boot".into()).expect("known")
        };
        for name in ["ata1/sda", "ata1/sda/sda1", "virtual/dm-0"] {
            let was = look(name, [70, 60, 50]);
            assert_eq!(look(name, [70, 60, 50]).since(&was), Since::Unwritten, "{name}");
        }
        let since = |name, sectors| look(name, sectors).since(&look(name, [70, 60, 50]));
        assert!(matches!(since("ata1/sda", [71, 60, 50]), Since::Written(_)));
        assert!(matches!(since("ata1/sda/sda1", [71, 61, 50]), Since::Written(_)));
        assert!(matches!(since("ata1/sda/sda1", [71, 60, 50]), Since::Unknown(_)));
        assert!(matches!(since("virtual/dm-0", [71, 61, 51]), Since::Written(_)));
        assert!(matches!(since("virtual/dm-0", [71, 61, 50]), Since::Unknown(_)));
        // A disk without counters proves nothing, and neither does one that others may write to.
        let was = look("ata1/sda", [70, 60, 50]);
        fs::write(folder.join("ata1/sda/queue/iostats"), "0\n").expect("written");
        let now = counted(&folder.join("ata1/sda"), "boot".into()).expect("known");
        assert!(matches!(now.since(&was), Since::Unknown(_)));
        fs::rename(folder.join("ata1"), folder.join("host1")).expect("moved");
        assert!(!counted(&folder.join("host1/sda"), "boot".into()).expect("known").exact);
        assert_eq!(counted(&folder.join("absent"), "boot".into()), None);
    }
}
