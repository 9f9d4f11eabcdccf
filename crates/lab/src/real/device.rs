//! Users and content of a file or block device, to be checked before it is written to. Nothing
//! here changes anything.

use std::fs::{self, File, Metadata};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use forebay_device::signature;
use forebay_host::files::names;
use forebay_host::mounts::{Mount, mounts, swap_areas};
use forebay_host::sysfs;
use rustix::fs::{FlockOperation, Mode, OFlags, flock};

use crate::error::{LabError, LabResult, other};

/// Bytes from the start in which [`recognise`] looks.
pub(crate) const HEAD: usize = signature::HEAD_LEN;

/// Returns the known content that the first bytes of a device show.
pub(crate) fn recognise(head: &[u8]) -> Option<&'static str> {
    signature::identify(head)
}

/// A file or block device.
#[derive(Clone, Debug)]
pub(crate) struct Local {
    path: PathBuf,
    /// Number of the block device; `None` for a file.
    device: Option<u64>,
    metadata: Metadata,
    /// Bytes.
    pub(crate) size: u64,
}

/// A claim on a device: while it is held, the device cannot be mounted, and other programs that
/// ask for exclusive use are refused.
#[derive(Debug)]
pub(crate) struct Claim(#[expect(dead_code, reason = "held, not read")] OwnedFd);

impl Local {
    /// Finds a file or block device. `option` is the argument that named it.
    /// Errors: `Usage`: there is nothing, or something that cannot be a device.
    pub(crate) fn find(option: &str, path: &Path) -> LabResult<Self> {
        let usage = |what: String| LabError::Usage(format!("{option}: {}: {what}", path.display()));
        let metadata = fs::metadata(path).map_err(|error| usage(error.to_string()))?;
        let kind = metadata.file_type();
        let device = kind.is_block_device().then(|| metadata.rdev());
        if device.is_none() && !kind.is_file() {
            return Err(usage("neither a file nor a block device".to_owned()));
        }
        let size = match device {
            None => metadata.len(),
            Some(_) => {
                let file = File::open(path).map_err(|error| usage(error.to_string()))?;
                rustix::fs::seek(&file, rustix::fs::SeekFrom::End(0))
                    .map_err(|error| usage(error.to_string()))?
            }
        };
        let path = fs::canonicalize(path).map_err(|error| usage(error.to_string()))?;
        Ok(Local { path, device, metadata, size })
    }

    /// The path, links followed.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn is_block(&self) -> bool {
        self.device.is_some()
    }

    /// The kernel's directory about it, if it is a block device.
    pub(crate) fn about(&self) -> Option<PathBuf> {
        sysfs::directory(self.device?)
    }

    /// Returns the user of the device, as a sentence that says the way out.
    pub(crate) fn user(&self) -> LabResult<Option<String>> {
        let name = self.path.display();
        let mounts = mounts();
        if mounts.is_empty() {
            return Err(other("/proc/self/mountinfo cannot be read"));
        }
        for number in self.numbers() {
            if let Some(place) = mounted(&mounts, number, &device_number) {
                let place = place.display();
                return Ok(Some(format!("{name} is mounted on {place}; unmount it first")));
            }
        }
        let same = |path: &Path| {
            fs::metadata(path).is_ok_and(|found| match self.device {
                Some(_) => {
                    found.file_type().is_block_device() && self.numbers().contains(&found.rdev())
                }
                None => (found.dev(), found.ino()) == (self.metadata.dev(), self.metadata.ino()),
            })
        };
        if swap_areas().iter().any(|path| same(Path::new(path))) {
            return Ok(Some(format!("{name} is swap space in use; run 'swapoff {name}' first")));
        }
        for number in self.numbers() {
            if let Some(holder) = sysfs::holders(&sysfs::of_number(number)).first() {
                return Ok(Some(format!(
                    "{name} is part of {holder} (see 'lsblk'); take that apart first"
                )));
            }
        }
        if self.device.is_none()
            && let Some(device) = loop_device(&same)
        {
            return Ok(Some(format!(
                "{name} is attached to /dev/{device}; run 'losetup -d /dev/{device}' first"
            )));
        }
        Ok(None)
    }

    /// The block device and its partitions.
    fn numbers(&self) -> Vec<u64> {
        let Some(number) = self.device else { return Vec::new() };
        let parts = sysfs::partitions(&sysfs::of_number(number));
        std::iter::once(number)
            .chain(parts.iter().filter_map(|own| sysfs::number_of(own)))
            .collect()
    }

    /// Claims it.
    /// Errors: `InUse`, or the system says no.
    pub(crate) fn claim(&self) -> LabResult<Claim> {
        let name = self.path.display();
        // For a block device EXCL is a claim that mounting respects; for a file it means nothing.
        let exclusive = if self.device.is_some() { OFlags::EXCL } else { OFlags::empty() };
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | exclusive;
        let busy = || {
            LabError::InUse(format!(
                "{name} is in use by another program; stop that first ('fuser {name}')"
            ))
        };
        let fd = match rustix::fs::open(&self.path, flags, Mode::empty()) {
            Err(rustix::io::Errno::BUSY) => return Err(busy()),
            opened => opened.map_err(|error| other(format!("{name}: {error}")))?,
        };
        match flock(&fd, FlockOperation::NonBlockingLockExclusive) {
            Err(rustix::io::Errno::WOULDBLOCK) => Err(busy()),
            locked => locked.map(|()| Claim(fd)).map_err(|error| other(format!("{name}: {error}"))),
        }
    }

    /// Returns the content of the device, if it has any.
    pub(crate) fn content(&self) -> LabResult<Option<&'static str>> {
        let head = File::open(&self.path).and_then(signature::read_head);
        let head = head.map_err(|error| other(format!("{}: {error}", self.path.display())))?;
        let known = recognise(&head);
        if known.is_some() || self.device.is_some() {
            return Ok(known);
        }
        // A file that holds anything at all may be a user's work.
        let filled = File::open(&self.path).and_then(|file| holds_anything(&file));
        let filled = filled.map_err(|error| other(format!("{}: {error}", self.path.display())))?;
        Ok(filled.then_some("data"))
    }
}

/// Whether there is a byte in a file that is not zero. Holes are passed over.
fn holds_anything(file: &File) -> std::io::Result<bool> {
    let mut part = vec![0; 1 << 20];
    let mut at = 0;
    loop {
        match rustix::fs::seek(file, rustix::fs::SeekFrom::Data(at)) {
            Ok(data) => at = data,
            Err(rustix::io::Errno::NXIO) => return Ok(false),
            // A filesystem that does not tell: all of it may be data.
            Err(_) => {}
        }
        let count = std::os::unix::fs::FileExt::read_at(file, &mut part, at)?;
        if count == 0 {
            return Ok(false);
        }
        if part.iter().take(count).any(|byte| *byte != 0) {
            return Ok(true);
        }
        at += count as u64;
    }
}

/// The number of the block device at a path.
fn device_number(path: &Path) -> Option<u64> {
    let metadata = fs::metadata(path).ok()?;
    metadata.file_type().is_block_device().then(|| metadata.rdev())
}

/// Returns the mount point of a device, by its number or, for filesystems with numbers of their
/// own, by the name of the mounted device.
fn mounted<'a>(
    mounts: &'a [Mount],
    number: u64,
    number_of: &dyn Fn(&Path) -> Option<u64>,
) -> Option<&'a Path> {
    let found = mounts.iter().find(|Mount { device, source, .. }| {
        sysfs::parse_number(device) == Some(number)
            || (source.starts_with('/') && number_of(Path::new(source)) == Some(number))
    });
    found.map(|mount| &*mount.point)
}

/// The loop device that a file is behind.
fn loop_device(same: &dyn Fn(&Path) -> bool) -> Option<String> {
    names("/sys/block").into_iter().find(|name| {
        sysfs::backing_file(&sysfs::of_disk(Path::new(name))).is_some_and(|file| same(&file))
    })
}

#[cfg(test)]
mod tests {
    use forebay_host::mounts::parse;

    use super::*;

    const MOUNTS: &str = "\
22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard
40 27 0:35 /@ /my\\040data rw shared:1 - btrfs /dev/sdb1 rw
";

    #[test]
    fn mounted_devices_are_found_by_number_and_by_name() {
        let number = |major, minor| rustix::fs::makedev(major, minor);
        let of = |path: &Path| (path == Path::new("/dev/sdb1")).then(|| number(8, 17));
        let mounts = parse(MOUNTS);
        assert_eq!(mounted(&mounts, number(254, 0), &of), Some(Path::new("/")));
        assert_eq!(mounted(&mounts, number(8, 17), &of), Some(Path::new("/my data")));
        assert_eq!(mounted(&mounts, number(8, 18), &of), None);
    }

    #[test]
    fn files_are_claimed_once_and_their_content_is_seen() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("disk");
        fs::write(&path, vec![0; 1 << 20]).expect("written");
        let local = Local::find("--device", &path).expect("a file");
        assert_eq!((local.size, local.user().expect("asked")), (1 << 20, None));
        assert_eq!(local.content().expect("readable"), None);
        let claim = local.claim().expect("free");
        assert_eq!(local.claim().expect_err("taken").exit_code(), 3);
        drop(claim);
        local.claim().expect("free again");
        for (bytes, what) in [(b"LUKS\xba\xbe".as_slice(), "a LUKS volume"), (b"a letter", "data")]
        {
            fs::write(&path, bytes).expect("written");
            assert_eq!(
                Local::find("--device", &path).expect("a file").content().expect("readable"),
                Some(what)
            );
        }
        for bad in [folder.path(), Path::new("/dev/null"), Path::new("/nonexistent")] {
            assert_eq!(Local::find("--device", bad).expect_err("no device").exit_code(), 2);
        }
    }
}
