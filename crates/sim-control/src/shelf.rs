//! All disks of a world, identified by files: an empty file represents each disk, so that names,
//! links and identities are those of a real file system.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use forebay_daemon::Opener;
use forebay_device::{Access, Device, DeviceSpec, OpenError, OpenErrorKind, RamDevice};
use forebay_threads::{Simulation, sleep};
use parking_lot::Mutex;

use crate::disk::OpenDisk;
use crate::media::{Health, Media};

/// An origin that several users can open simultaneously.
pub(crate) const REMOTE: &str = "nbd://localhost/disk";

/// Interval at which opening a hung disk checks whether it answers.
const LOOK: Duration = Duration::from_millis(20);

/// Filesystem and inode of a file.
type FileKey = (u64, u64);

/// See the module.
pub(crate) struct Shelf {
    dir: PathBuf,
    /// The disk of another machine, which any system can open.
    remote: Arc<Media>,
    media: Mutex<BTreeMap<FileKey, Arc<Media>>>,
}

impl Shelf {
    /// Creates a shelf with a remote disk of this many bytes.
    pub(crate) fn new(dir: &Path, remote: u64) -> Arc<Self> {
        let remote = Media::new(REMOTE, 0, remote);
        Arc::new(Shelf { dir: dir.to_owned(), remote, media: Mutex::default() })
    }

    /// Makes a disk.
    ///
    /// # Panics
    /// The file that represents the disk cannot be created.
    pub(crate) fn add(&self, name: &str, size: u64) -> Arc<Media> {
        let path = self.dir.join(name);
        fs::write(&path, []).expect("a writable directory");
        self.of(&path, Some(size)).expect("it was created")
    }

    /// Returns how operators call a disk.
    pub(crate) fn path(&self, name: &str) -> String {
        if name == REMOTE {
            return name.to_owned();
        }
        self.dir.join(name).display().to_string()
    }

    /// Returns the disk that was added with this name.
    pub(crate) fn named(&self, name: &str) -> Option<Arc<Media>> {
        if name == REMOTE {
            return Some(self.remote.clone());
        }
        let path = self.path(name);
        self.all().into_iter().find(|media| media.name == path)
    }

    /// Renames a disk.
    ///
    /// # Panics
    /// The file that represents the disk cannot be renamed.
    pub(crate) fn rename(&self, from: &str, to: &str) {
        fs::rename(self.dir.join(from), self.dir.join(to)).expect("a writable directory");
    }

    /// Returns the disk to which a path leads.
    pub(crate) fn at(&self, path: &str) -> Option<Arc<Media>> {
        self.of(Path::new(path), None).ok()
    }

    /// Returns all disks of this machine.
    pub(crate) fn all(&self) -> Vec<Arc<Media>> {
        self.media.lock().values().cloned().collect()
    }

    /// Returns the disk that a file represents, creating it with `size` bytes if it is not known
    /// yet.
    fn of(&self, path: &Path, size: Option<u64>) -> std::io::Result<Arc<Media>> {
        let found = fs::metadata(path)?;
        let key = (found.dev(), found.ino());
        let mut media = self.media.lock();
        let number = media.len() as u64 + 1;
        let name = path.display().to_string();
        let new = || Media::new(&name, number, size.unwrap_or(0));
        Ok(media.entry(key).or_insert_with(new).clone())
    }
}

impl Opener for Shelf {
    fn open(&self, spec: &DeviceSpec, access: Access) -> Result<Arc<dyn Device>, OpenError> {
        let error = |kind, cause: &str| OpenError::new(kind, spec, cause);
        if Simulation::current().is_some_and(|simulation| simulation.is_ending()) {
            return Err(error(OpenErrorKind::Io, "the process has been killed"));
        }
        if spec.remote().is_some() {
            while self.remote.health() == Health::Hangs {
                sleep(LOOK);
            }
            let reads = access != Access::Exclusive;
            return Ok(Arc::new(OpenDisk::new(self.remote.clone(), None, reads)));
        }
        let Some(path) = spec.path() else {
            let ram = RamDevice::new("ram", spec.size().unwrap_or(1 << 20));
            return Ok(ram.map_err(|cause| OpenError::new(OpenErrorKind::BadSize, spec, cause))?);
        };
        if let (Some(_), Access::Exclusive) = (spec.size(), access) {
            let made = OpenOptions::new().create(true).append(true).open(path);
            made.map_err(|cause| OpenError::new(OpenErrorKind::Io, spec, cause))?;
        }
        let media = self
            .of(path, spec.size())
            .map_err(|cause| OpenError::new(OpenErrorKind::NotFound, spec, cause))?;
        while media.health() == Health::Hangs {
            sleep(LOOK);
        }
        let claim = match access {
            Access::Exclusive | Access::ReadOnly => {
                let claim = media.claim();
                Some(claim.ok_or_else(|| error(OpenErrorKind::InUse, "it is in use"))?)
            }
            Access::Shared | Access::Unlocked => None,
        };
        Ok(Arc::new(OpenDisk::new(media, claim, access != Access::Exclusive)))
    }
}
