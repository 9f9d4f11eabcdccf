//! Checks whether the path under which a file or block device was opened still leads to it. If not,
//! I/O continues through the open descriptor, while a program that opens the path finds something
//! else, or nothing.

use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Stat, fstat, stat};
use rustix::io::Errno;

/// The difference between a path and an open device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DisplacedKind {
    /// The content is lost once the device is closed: a removed file, or a disk without a
    /// connection.
    Removed,
    /// The path leads to another file or device; the content is lost once this one is closed.
    Replaced,
    /// The content has another path, or a path that cannot be looked up now.
    Moved,
}

impl DisplacedKind {
    /// Returns the name of the kind in reports.
    pub fn name(self) -> &'static str {
        match self {
            DisplacedKind::Removed => "removed",
            DisplacedKind::Replaced => "replaced",
            DisplacedKind::Moved => "moved",
        }
    }
}

/// A device to which its path no longer leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Displaced {
    /// The difference between path and device.
    pub kind: DisplacedKind,
    /// The rest of a sentence about the path: `was removed`.
    pub what: String,
    /// A path under which the content can be read as long as the device is open.
    pub readable_at: PathBuf,
}

/// The path of an open file or block device.
pub(crate) struct OpenedPath {
    path: PathBuf,
    /// The kernel's marks of a block device, as of its opening.
    block: Option<BlockMarks>,
}

/// Distinguishes a block device from earlier devices with the same number.
#[derive(Clone, Debug, PartialEq, Eq)]
struct BlockMarks {
    /// Sequence number of the block device, which the kernel never reuses.
    sequence: Option<u64>,
    /// Whether the kernel lists the device. It does not in a container without `/sys`, or after the
    /// disk was unplugged.
    is_listed: bool,
    /// The file behind a loop device has no path any more.
    lacks_file: bool,
}

impl BlockMarks {
    fn read(fd: &OwnedFd, number: u64) -> Self {
        let own = forebay_host::sysfs::of_number(number);
        // The directory of a partition is inside that of its disk.
        let file = ["loop/backing_file", "../loop/backing_file"]
            .into_iter()
            .find_map(|name| fs::read_to_string(own.join(name)).ok());
        BlockMarks {
            sequence: disk_sequence(fd),
            is_listed: own.exists(),
            lacks_file: file.is_some_and(|file| file.trim_end().ends_with(" (deleted)")),
        }
    }
}

/// Returns the sequence number of a disk; kernels before 5.15 have none.
#[allow(unsafe_code, reason = "the system call")]
fn disk_sequence(fd: &OwnedFd) -> Option<u64> {
    const GET: rustix::ioctl::Opcode = rustix::ioctl::opcode::read::<u64>(0x12, 128);
    // SAFETY: the opcode is BLKGETDISKSEQ, which writes one `u64`.
    let getter = unsafe { rustix::ioctl::Getter::<GET, u64>::new() };
    // SAFETY: as above.
    unsafe { rustix::ioctl::ioctl(fd, getter) }.ok()
}

/// Names that filesystems in user space and on servers give to an open file that was removed.
const HIDDEN: [&str; 2] = [".nfs", ".fuse_hidden"];

impl OpenedPath {
    /// Records the path of a device that was just opened.
    pub(crate) fn new(path: &Path, fd: &OwnedFd) -> Self {
        let block = fstat(fd).ok().filter(is_block);
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        OpenedPath { path, block: block.map(|stat| BlockMarks::read(fd, stat.st_rdev)) }
    }

    /// Compares the path with the device. May wait for a file server.
    pub(crate) fn compare(&self, fd: &OwnedFd) -> Option<Displaced> {
        let readable_at = format!("/proc/{}/fd/{}", std::process::id(), fd.as_raw_fd());
        let displaced = |kind, what: String| {
            Some(Displaced { kind, what, readable_at: readable_at.clone().into() })
        };
        let own = match fstat(fd) {
            Ok(own) => own,
            Err(Errno::STALE) => {
                return displaced(DisplacedKind::Removed, "was removed on its server".into());
            }
            Err(_) => return None,
        };
        if let Some(before) = &self.block
            && let Some((kind, what)) = changed(before, &BlockMarks::read(fd, own.st_rdev))
        {
            return displaced(kind, what.to_owned());
        }
        let found = stat(&self.path);
        if found.as_ref().is_ok_and(|found| is_same(&own, found)) {
            // A mounted file keeps its path when it is removed.
            return match !is_block(&own) && own.st_nlink == 0 {
                true => displaced(DisplacedKind::Removed, "was removed".to_owned()),
                false => None,
            };
        }
        let now = fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())).ok();
        let now = now.filter(|now| stat(now).is_ok_and(|found| is_same(&own, &found)));
        let is_hidden = now.as_ref().is_some_and(|now| {
            let name = now.file_name().unwrap_or_default().to_string_lossy();
            HIDDEN.iter().any(|prefix| name.starts_with(prefix))
        });
        let lost = !is_block(&own) && (own.st_nlink == 0 || is_hidden);
        let leads = match &found {
            Ok(_) => "leads to something else now".to_owned(),
            Err(Errno::NOENT | Errno::NOTDIR) => "leads nowhere any more".to_owned(),
            Err(errno) => format!("cannot be looked up: {}", std::io::Error::from(*errno)),
        };
        match (found, lost, now) {
            (Ok(_), true, _) => {
                displaced(DisplacedKind::Replaced, "was replaced by something else".to_owned())
            }
            (Err(_), true, _) => displaced(DisplacedKind::Removed, "was removed".to_owned()),
            (_, false, Some(now)) => {
                let what = format!("{leads}; it is {} now", now.display());
                displaced(DisplacedKind::Moved, what)
            }
            (_, false, None) => displaced(DisplacedKind::Moved, leads),
        }
    }
}

fn is_block(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice
}

/// Returns whether two paths or descriptors lead to one file or block device.
fn is_same(one: &Stat, other: &Stat) -> bool {
    match (is_block(one), is_block(other)) {
        (true, true) => one.st_rdev == other.st_rdev,
        (false, false) => (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino),
        _ => false,
    }
}

/// Returns how a block device differs from the one that was opened.
fn changed(before: &BlockMarks, now: &BlockMarks) -> Option<(DisplacedKind, &'static str)> {
    if before.is_listed && !now.is_listed {
        Some((DisplacedKind::Removed, "was disconnected"))
    } else if before.sequence.is_some() && now.sequence.is_some() && before.sequence != now.sequence
    {
        Some((DisplacedKind::Replaced, "has another medium or file behind it now"))
    } else if now.lacks_file && !before.lacks_file {
        Some((DisplacedKind::Removed, "is a loop device whose file was removed or replaced"))
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Bench {
        folder: tempfile::TempDir,
        fd: OwnedFd,
        opened: OpenedPath,
    }

    impl Bench {
        /// A file `sub/a`, opened by `path`.
        fn new(path: &str) -> Self {
            let folder = tempfile::tempdir().expect("folder");
            fs::create_dir(folder.path().join("sub")).expect("folder");
            fs::write(folder.path().join("sub/a"), b"content").expect("file");
            std::os::unix::fs::symlink("sub/a", folder.path().join("link")).expect("link");
            let path = folder.path().join(path);
            let fd: OwnedFd = fs::File::open(&path).expect("there").into();
            let opened = OpenedPath::new(&path, &fd);
            Bench { folder, fd, opened }
        }

        fn at(&self, name: &str) -> PathBuf {
            self.folder.path().join(name)
        }

        fn look(&self) -> Option<DisplacedKind> {
            self.opened.compare(&self.fd).map(|found| {
                let content = fs::read(&found.readable_at).expect("it is open");
                assert_eq!(content, b"content", "{found:?}");
                found.kind
            })
        }
    }

    #[test]
    fn a_path_can_part_from_its_file_and_lead_to_it_again() {
        for path in ["sub/a", "link"] {
            let bench = Bench::new(path);
            assert_eq!(bench.look(), None);
            fs::rename(bench.at("sub/a"), bench.at("b")).expect("moved");
            assert_eq!(bench.look(), Some(DisplacedKind::Moved));
            let what = bench.opened.compare(&bench.fd).expect("moved").what;
            assert!(what.contains(&bench.at("b").display().to_string()), "{what}");
            fs::write(bench.at("sub/a"), b"another").expect("file");
            assert_eq!(bench.look(), Some(DisplacedKind::Moved), "its file is elsewhere");
            fs::rename(bench.at("b"), bench.at("sub/a")).expect("moved");
            assert_eq!(bench.look(), None, "it is back");
            fs::rename(bench.at("sub"), bench.at("parent")).expect("moved");
            assert_eq!(bench.look(), Some(DisplacedKind::Moved));
            fs::rename(bench.at("parent"), bench.at("sub")).expect("moved");
            fs::write(bench.at("b"), b"another").expect("file");
            fs::rename(bench.at("b"), bench.at("sub/a")).expect("replaced");
            assert_eq!(bench.look(), Some(DisplacedKind::Replaced));
            fs::remove_file(bench.at("sub/a")).expect("removed");
            assert_eq!(bench.look(), Some(DisplacedKind::Removed));
        }
    }

    #[test]
    fn another_link_of_a_removed_path_keeps_the_content() {
        let bench = Bench::new("sub/a");
        fs::hard_link(bench.at("sub/a"), bench.at("b")).expect("linked");
        assert_eq!(bench.look(), None);
        fs::remove_file(bench.at("sub/a")).expect("removed");
        assert_eq!(bench.look(), Some(DisplacedKind::Moved));
        fs::remove_file(bench.at("b")).expect("removed");
        assert_eq!(bench.look(), Some(DisplacedKind::Removed));
    }

    #[test]
    fn a_link_that_is_changed_leads_elsewhere() {
        let bench = Bench::new("link");
        fs::write(bench.at("b"), b"another").expect("file");
        std::os::unix::fs::symlink("b", bench.at("new")).expect("link");
        fs::rename(bench.at("new"), bench.at("link")).expect("replaced");
        assert_eq!(bench.look(), Some(DisplacedKind::Moved));
    }

    #[test]
    fn names_of_removed_files_on_servers_promise_nothing() {
        for hidden in [".nfs0000001", ".fuse_hidden0001"] {
            let bench = Bench::new("sub/a");
            fs::rename(bench.at("sub/a"), bench.at("sub").join(hidden)).expect("moved");
            assert_eq!(bench.look(), Some(DisplacedKind::Removed));
        }
    }

    #[test]
    fn a_block_device_is_told_from_one_that_has_its_number_now() {
        let before = BlockMarks { sequence: Some(7), is_listed: true, lacks_file: false };
        let kind = |now: BlockMarks| changed(&before, &now).map(|(kind, _)| kind);
        assert_eq!(kind(before.clone()), None);
        assert_eq!(kind(BlockMarks { sequence: None, ..before.clone() }), None);
        let unplugged = BlockMarks { is_listed: false, ..before.clone() };
        assert_eq!(kind(unplugged.clone()), Some(DisplacedKind::Removed));
        let other = BlockMarks { sequence: Some(8), ..before.clone() };
        assert_eq!(kind(other), Some(DisplacedKind::Replaced));
        let fileless = BlockMarks { lacks_file: true, ..before.clone() };
        assert_eq!(kind(fileless.clone()), Some(DisplacedKind::Removed));
        assert_eq!(changed(&unplugged, &unplugged), None, "a container without /sys");
        assert_eq!(changed(&fileless, &fileless), None);
    }
}
