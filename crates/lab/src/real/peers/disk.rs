//! One of the two devices: its identity, the checks before anything is written to it, and its
//! counters in the kernel.

use std::fs::{self, File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use forebay_device::signature;
use rustix::fs::OFlags;

use crate::error::{LabError, LabResult, other, usage};
use crate::real::device::Local;

/// The smallest device that a comparison makes sense on.
pub(crate) const SMALLEST: u64 = 64 << 20;

/// Bytes that are zeroed before and after a system had a device: more than any superblock needs.
const HEAD: u64 = 1 << 20;

/// A device that may be used, or an ordinary file in its place.
#[derive(Clone, Debug)]
pub(crate) struct Disk {
    local: Local,
    signature: Option<&'static str>,
}

impl Disk {
    /// Looks at a device without other users; writes nothing. `option` is the argument that named
    /// it.
    pub(crate) fn look(option: &str, path: &Path) -> LabResult<Self> {
        let what = |why: String| format!("{option}: {}: {why}", path.display());
        let local = Local::find(option, path)?;
        if let Some(why) = local.user()? {
            return Err(LabError::InUse(format!("{option}: {why}")));
        }
        let disk = Disk { local, signature: None };
        let file = disk.claim().map_err(|error| match error.kind() {
            ErrorKind::ResourceBusy => {
                LabError::InUse(what("it is in use by another program; stop that first".into()))
            }
            _ => usage(what(error.to_string())),
        })?;
        if disk.size() < SMALLEST {
            let why = format!("{} bytes are too few; {SMALLEST} at least", disk.size());
            return Err(usage(what(why)));
        }
        let signature = signature::identify(&signature::read_head(&file)?);
        Ok(Disk { signature, ..disk })
    }

    /// Opens it for reading and writing; a block device only if it has no other user.
    pub(crate) fn claim(&self) -> std::io::Result<File> {
        let flags = if self.is_block() { OFlags::EXCL } else { OFlags::empty() };
        OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(flags.bits().cast_signed())
            .open(self.path())
    }

    pub(crate) fn path(&self) -> &Path {
        self.local.path()
    }

    /// Its path as text.
    pub(crate) fn name(&self) -> String {
        self.path().display().to_string()
    }

    /// Bytes.
    pub(crate) fn size(&self) -> u64 {
        self.local.size
    }

    /// Sectors of 512 bytes, rounded down to whole blocks of 4 KiB.
    pub(crate) fn sectors(&self) -> u64 {
        self.size() / 4096 * 8
    }

    pub(crate) fn is_block(&self) -> bool {
        self.local.is_block()
    }

    /// Returns the known content that was found on the device.
    pub(crate) fn signature(&self) -> Option<&'static str> {
        self.signature
    }

    /// The kernel's directory about it, if it is a block device.
    pub(crate) fn about(&self) -> Option<PathBuf> {
        self.local.about()
    }

    /// Bytes that were written to it since the machine started; `None` for a file.
    pub(crate) fn bytes_written(&self) -> Option<u64> {
        let text = fs::read_to_string(self.about()?.join("stat")).ok()?;
        sectors_written(&text)?.checked_mul(512)
    }

    /// Zeroes the first bytes, where systems put their superblocks.
    pub(crate) fn wipe(&self) -> LabResult<()> {
        self.wipe_first(HEAD)
    }

    /// Zeroes `bytes` from the start.
    pub(crate) fn wipe_first(&self, bytes: u64) -> LabResult<()> {
        let zeroes = vec![0; bytes.min(self.size()) as usize];
        let wiped = self.claim().and_then(|file| {
            file.write_all_at(&zeroes, 0)?;
            file.sync_all()
        });
        wiped.map_err(|error| other(format!("{} cannot be wiped: {error}", self.name())))
    }
}

/// Refuses two names for the same bytes: the kernel allows two claims at once only for devices
/// that have nothing in common.
pub(crate) fn check_separate(ssd: &Disk, hdd: &Disk) -> LabResult<()> {
    let same = || usage(format!("{} and {} are not two devices", ssd.name(), hdd.name()));
    if ssd.path() == hdd.path() {
        return Err(same());
    }
    let (one, two) = (ssd.claim()?, hdd.claim().map_err(|_| same())?);
    let (one, two) = (one.metadata()?, two.metadata()?);
    let same_file = one.is_file() && (one.dev(), one.ino()) == (two.dev(), two.ino());
    if same_file || (ssd.is_block() && one.rdev() == two.rdev()) {
        return Err(same());
    }
    Ok(())
}

/// The seventh number of a device's `stat`.
fn sectors_written(stat: &str) -> Option<u64> {
    stat.split_whitespace().nth(6)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(folder: &Path, name: &str, size: u64) -> PathBuf {
        let path = folder.join(name);
        File::create(&path).and_then(|file| file.set_len(size)).expect("writable");
        path
    }

    #[test]
    fn a_path_that_is_no_device_is_refused_with_its_option() {
        let folder = tempfile::tempdir().expect("a directory");
        let small = file(folder.path(), "small", SMALLEST - 1);
        let cases = [Path::new("/dev/null"), Path::new("/nonexistent"), folder.path(), &small];
        for path in cases {
            let error = Disk::look("--ssd", path).expect_err("no device").to_string();
            assert!(error.contains("--ssd"), "{error}");
        }
    }

    #[test]
    fn two_names_of_one_file_are_one_device() {
        let folder = tempfile::tempdir().expect("a directory");
        let path = file(folder.path(), "one", SMALLEST);
        let (link, hard) = (folder.path().join("link"), folder.path().join("hard"));
        std::os::unix::fs::symlink(&path, &link).expect("writable");
        fs::hard_link(&path, &hard).expect("writable");
        let two = file(folder.path(), "two", SMALLEST);
        let look = |path: &Path| Disk::look("--hdd", path).expect("good");
        for other in [&path, &link, &hard] {
            assert!(check_separate(&look(&path), &look(other)).is_err(), "{}", other.display());
        }
        assert!(check_separate(&look(&path), &look(&two)).is_ok());
    }

    #[test]
    fn signatures_are_seen_and_wiped() {
        let folder = tempfile::tempdir().expect("a directory");
        let path = file(folder.path(), "one", SMALLEST);
        let marked = OpenOptions::new().write(true).open(&path).expect("writable");
        marked.write_all_at(b"XFSB", 0).expect("writable");
        let disk = Disk::look("--ssd", &path).expect("good");
        assert_eq!(disk.signature(), Some("an XFS filesystem"));
        disk.wipe().expect("writable");
        assert_eq!(Disk::look("--ssd", &path).expect("good").signature(), None);
    }

    #[test]
    fn the_kernels_numbers_are_read() {
        let stat = "  8131 4 561272 4000  1 2 4096 17 0 1 2\n";
        assert_eq!(sectors_written(stat), Some(4096));
        assert_eq!(sectors_written("1 2 3"), None);
    }
}
