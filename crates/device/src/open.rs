//! Opening a path as a device: type, other users, and size.

mod description;
mod image_lock;
mod links;
mod other_loops;

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use forebay_core::Sectors;
use forebay_host::mounts::{Mount, mounts};
use forebay_host::sysfs::number_text;
use rustix::fs::{
    AtFlags, FileType, FlockOperation, Mode, OFlags, SeekFrom, Stat, StatxFlags, flock,
};
use rustix::io::Errno;

use self::links::Way;
use crate::block_ioctl;
use crate::write_protection::write_protection;

/// The unit in which nearly all filesystems write files.
const FILE_BLOCK: u32 = 4096;

/// The intended use of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Access {
    /// For reading and writing, exclusively.
    #[default]
    Exclusive,
    /// For reading, with the claim of [`Access::Exclusive`], so that no other user changes the
    /// content.
    ReadOnly,
    /// For reading, shared with other readers but not with writers.
    Shared,
    /// For reading, regardless of other users; data may be torn.
    Unlocked,
}

impl Access {
    /// Returns whether the access excludes claims of other users.
    fn is_claim(self) -> bool {
        matches!(self, Access::Exclusive | Access::ReadOnly)
    }
}

/// The kind of an error, as far as it determines the caller's next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OpenErrorKind {
    /// The file or device does not exist.
    NotFound,
    /// Another process uses the device, or it is mounted.
    InUse,
    /// The path is neither a regular file nor a block device.
    WrongType,
    /// The permissions do not allow the access.
    Denied,
    /// The device can be read but not written, because it is write-protected.
    ReadOnly,
    /// The size differs from the requested one, or cannot be used.
    BadSize,
    /// Any other error of the system.
    Io,
}

/// Why a device could not be opened.
#[derive(Clone, Debug, thiserror::Error)]
#[error("cannot open {device}: {cause}")]
pub struct OpenError {
    /// The kind, to match on.
    pub kind: OpenErrorKind,
    /// The device, by the name that the operator gave it.
    pub device: String,
    /// A sentence for the operator.
    pub cause: String,
}

impl OpenError {
    /// Creates an error; `cause` is a sentence for the operator.
    pub fn new(kind: OpenErrorKind, device: impl fmt::Display, cause: impl fmt::Display) -> Self {
        OpenError { kind, device: device.to_string(), cause: cause.to_string() }
    }
}

/// The file or device to which a path leads, independent of how the path is written. Two paths with
/// the same identity lead to the same device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DeviceIdentity {
    /// A regular file.
    File {
        /// Number of the filesystem.
        filesystem: u64,
        /// Number of the file on the filesystem.
        inode: u64,
    },
    /// A block device, by its number.
    Block(u64),
}

/// An opened file or block device.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) fd: OwnedFd,
    /// Size in bytes, in whole logical blocks.
    pub(crate) size: u64,
    /// 512 or 4096.
    pub(crate) logical_block: u64,
    /// See [`crate::Device::sectors`].
    pub(crate) sectors: Sectors,
    /// Required alignment of buffers in memory, in bytes.
    pub(crate) memory_align: usize,
    /// Whether I/O bypasses the kernel's page cache.
    pub(crate) direct: bool,
}

struct PathOpener<'a> {
    path: &'a Path,
    access: Access,
}

/// Opens `path`. With a `size`, a missing file is created (unless `access` is read-only), and an
/// existing device must have exactly that size.
pub(crate) fn open(path: &Path, access: Access, size: Option<u64>) -> Result<Opened, OpenError> {
    let opener = PathOpener { path, access };
    if let Some(size) = size {
        opener.check_wanted(size)?;
        if access == Access::Exclusive {
            opener.create(size)?;
        }
    }
    let before = opener.stat()?;
    let block = opener.is_block(&before)?;
    if block && access.is_claim() {
        opener.check_mounts(before.st_rdev)?;
    }
    let (fd, direct) = opener.descriptor(block)?;
    // The path may lead to another file by now.
    let after = rustix::fs::fstat(&fd).map_err(|errno| opener.failed(errno))?;
    if opener.is_block(&after)? != block {
        return Err(opener.error(OpenErrorKind::Io, "it was replaced while it was opened"));
    }
    opener.check_way(path, &after)?;
    opener.lock(&fd, block)?;
    if access.is_claim()
        && let Some(other) = other_loops::claimed(&fd, &after, block, path)
    {
        let cause = format!(
            "{} has the same file and is in use; unmount or detach that first",
            other.display()
        );
        return Err(opener.error(OpenErrorKind::InUse, cause));
    }
    if access == Access::Exclusive
        && let Some(cause) = write_protection(&fd)
    {
        return Err(opener.error(OpenErrorKind::ReadOnly, cause));
    }
    let (logical_block, memory_align) = opener.alignment(&fd, block)?;
    let bytes = rustix::fs::seek(&fd, SeekFrom::End(0)).map_err(|errno| opener.failed(errno))?;
    opener.check_size(bytes, size, logical_block)?;
    let size = bytes - bytes % logical_block;
    let sectors = match block {
        true => block_ioctl::sectors(&fd, logical_block as u32),
        false => Sectors::told(Sectors::SMALL.logical, FILE_BLOCK, FILE_BLOCK, 0),
    };
    Ok(Opened { fd, size, logical_block, sectors, memory_align, direct })
}

/// Returns the identity of the file or device at `path`, following links.
///
/// # Errors
/// `NotFound`, `Denied`, `WrongType` or `Io`.
pub(crate) fn identity(path: &Path) -> Result<DeviceIdentity, OpenError> {
    let opener = PathOpener { path, access: Access::Unlocked };
    let stat = opener.stat()?;
    Ok(if opener.is_block(&stat)? {
        DeviceIdentity::Block(stat.st_rdev)
    } else {
        DeviceIdentity::File { filesystem: stat.st_dev, inode: stat.st_ino }
    })
}

impl PathOpener<'_> {
    fn error(&self, kind: OpenErrorKind, cause: impl fmt::Display) -> OpenError {
        OpenError::new(kind, self.path.display(), cause)
    }

    fn failed(&self, errno: Errno) -> OpenError {
        let kind = match errno {
            Errno::NOENT | Errno::NOTDIR | Errno::NXIO | Errno::NODEV | Errno::NOMEDIUM => {
                OpenErrorKind::NotFound
            }
            Errno::BUSY | Errno::TXTBSY | Errno::WOULDBLOCK => {
                return self.error(OpenErrorKind::InUse, "it is in use by another process");
            }
            Errno::ACCESS | Errno::PERM => OpenErrorKind::Denied,
            Errno::ROFS => OpenErrorKind::ReadOnly,
            Errno::ISDIR => OpenErrorKind::WrongType,
            Errno::FBIG => OpenErrorKind::BadSize,
            _ => OpenErrorKind::Io,
        };
        self.error(kind, io::Error::from(errno))
    }

    fn stat(&self) -> Result<Stat, OpenError> {
        rustix::fs::stat(self.path).map_err(|errno| self.failed(errno))
    }

    /// Returns whether the file is a block device; fails unless it is a block device or a regular
    /// file.
    fn is_block(&self, stat: &Stat) -> Result<bool, OpenError> {
        let found = match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => return Ok(false),
            FileType::BlockDevice => return Ok(true),
            FileType::Directory => "a directory",
            FileType::Fifo => "a pipe",
            FileType::Socket => "a socket",
            FileType::CharacterDevice => "a character device",
            _ => "something else",
        };
        let cause = format!("it is {found}, not a regular file or a block device");
        Err(self.error(OpenErrorKind::WrongType, cause))
    }

    /// Refuses a file or directory to which a link of another user leads.
    fn check_way(&self, path: &Path, file: &Stat) -> Result<(), OpenError> {
        let way = links::way(path, file).map_err(|errno| self.failed(errno))?;
        match way {
            Way::Good => Ok(()),
            Way::Elsewhere => {
                Err(self.error(OpenErrorKind::Io, "it was replaced while it was opened"))
            }
            Way::Foreign(link, owner) => {
                let cause = format!(
                    "the link '{}' on its path belongs to user {owner}, who could lead it to any file; name the file to which it leads",
                    link.display()
                );
                Err(self.error(OpenErrorKind::Denied, cause))
            }
        }
    }

    fn check_wanted(&self, size: u64) -> Result<(), OpenError> {
        if size == 0 || !size.is_multiple_of(4096) || i64::try_from(size).is_err() {
            let cause = format!("a size of {size} bytes is not a positive multiple of 4096");
            return Err(self.error(OpenErrorKind::BadSize, cause));
        }
        Ok(())
    }

    fn check_size(&self, found: u64, wanted: Option<u64>, block: u64) -> Result<(), OpenError> {
        let cause = match wanted {
            Some(wanted) if wanted != found => {
                format!("it has {found} bytes and not the {wanted} that were asked for")
            }
            _ if found < block => format!("its {found} bytes are not even one block"),
            _ => return Ok(()),
        };
        Err(self.error(OpenErrorKind::BadSize, cause))
    }

    /// Creates a sparse file of `size` bytes if the path does not exist.
    fn create(&self, size: u64) -> Result<(), OpenError> {
        if let Some(dir) = self.path.parent().filter(|dir| !dir.as_os_str().is_empty())
            && let Ok(found) = rustix::fs::stat(dir)
        {
            self.check_way(dir, &found)?;
        }
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let fd = match rustix::fs::open(self.path, flags, Mode::RUSR | Mode::WUSR) {
            Ok(fd) => fd,
            Err(Errno::EXIST) => return Ok(()),
            Err(errno) => return Err(self.failed(errno)),
        };
        rustix::fs::ftruncate(&fd, size).map_err(|errno| {
            // The file was created here and is empty, so it is removed.
            let _ = rustix::fs::unlink(self.path);
            self.failed(errno)
        })
    }

    /// Returns the descriptor, and whether it uses direct I/O.
    fn descriptor(&self, block: bool) -> Result<(OwnedFd, bool), OpenError> {
        let mut flags = OFlags::CLOEXEC | OFlags::NOCTTY;
        flags |= match self.access {
            // For block devices this claims the whole device, or fails if it is mounted or claimed.
            Access::Exclusive if block => OFlags::RDWR | OFlags::EXCL,
            Access::Exclusive => OFlags::RDWR,
            Access::ReadOnly if block => OFlags::RDONLY | OFlags::EXCL,
            Access::ReadOnly | Access::Shared | Access::Unlocked => OFlags::RDONLY,
        };
        match rustix::fs::open(self.path, flags | OFlags::DIRECT, Mode::empty()) {
            Ok(fd) => Ok((fd, true)),
            Err(Errno::INVAL | Errno::OPNOTSUPP) => {
                match rustix::fs::open(self.path, flags, Mode::empty()) {
                    Ok(fd) => Ok((fd, false)),
                    Err(errno) => Err(self.not_opened(errno)),
                }
            }
            Err(errno) => Err(self.not_opened(errno)),
        }
    }

    /// Returns the error for a path that cannot be opened; it says so if only writing is not
    /// possible.
    fn not_opened(&self, errno: Errno) -> OpenError {
        let writes = self.access == Access::Exclusive;
        if !writes || !matches!(errno, Errno::ROFS | Errno::PERM | Errno::ACCESS) {
            return self.failed(errno);
        }
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY;
        let Ok(fd) = rustix::fs::open(self.path, flags, Mode::empty()) else {
            return self.failed(errno);
        };
        let cause = write_protection(&fd).unwrap_or_else(|| match errno {
            Errno::ACCESS => "its permissions allow this user to read but not to write it; 'chmod' or 'chown' changes that".into(),
            errno => io::Error::from(errno).to_string().into(),
        });
        self.error(OpenErrorKind::ReadOnly, cause)
    }

    /// Locks the device. Does not use `flock` on a block device: udev takes that lock while it
    /// handles an event of the device, and handles no events while another process holds the lock.
    fn lock(&self, fd: &OwnedFd, block: bool) -> Result<(), OpenError> {
        let exclusive = match self.access {
            // `fcntl` needs a writable descriptor for an exclusive lock, and `flock` does not. A
            // block device has its claim in addition to the lock.
            Access::ReadOnly => !block,
            Access::Exclusive => true,
            Access::Shared => false,
            Access::Unlocked => return Ok(()),
        };
        let operation = match exclusive {
            true => FlockOperation::NonBlockingLockExclusive,
            false => FlockOperation::NonBlockingLockShared,
        };
        // A lock of the whole block device also conflicts with the locks of QEMU.
        let whole = || match block {
            true => description::lock(fd, exclusive),
            false => flock(fd, operation),
        };
        if !self.locked(whole)? {
            return Err(self.failed(Errno::WOULDBLOCK));
        }
        // An exclusive lock needs a writable descriptor here too; a reader's shared lock excludes
        // writers as well.
        let writer = self.access == Access::Exclusive;
        match block || self.locked(|| image_lock::lock(fd, writer))? {
            true => Ok(()),
            false => {
                let cause = "it is in use by a virtual machine, or by a tool like qemu-img or virtlockd; end that first";
                Err(self.error(OpenErrorKind::InUse, cause))
            }
        }
    }

    /// Takes a lock; returns whether no conflicting lock exists.
    fn locked(&self, take: impl Fn() -> Result<(), Errno>) -> Result<bool, OpenError> {
        loop {
            match take() {
                Err(Errno::INTR) => {}
                Err(Errno::ACCESS | Errno::WOULDBLOCK) => return Ok(false),
                // Some network filesystems do not support locks, so nothing more can be done.
                Ok(()) | Err(Errno::NOLCK | Errno::OPNOTSUPP | Errno::NOSYS) => return Ok(true),
                Err(errno) => return Err(self.failed(errno)),
            }
        }
    }

    /// Returns the logical block and the alignment of memory, in bytes.
    fn alignment(&self, fd: &OwnedFd, block: bool) -> Result<(u64, usize), OpenError> {
        // Kernels before 6.1 and some filesystems do not report this; 0 means the same.
        let told = rustix::fs::statx(fd, c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN)
            .ok()
            .filter(|stat| stat.stx_mask & StatxFlags::DIOALIGN.bits() != 0);
        let memory = told.as_ref().map_or(0, |stat| stat.stx_dio_mem_align);
        let logical = if block {
            rustix::fs::ioctl_blksszget(fd).map_err(|errno| self.failed(errno))?
        } else {
            told.as_ref().map_or(0, |stat| stat.stx_dio_offset_align)
        };
        let logical_block = match logical {
            0..=512 => 512,
            513..=4096 => 4096,
            _ => {
                let cause = format!("its blocks of {logical} bytes are larger than 4096");
                return Err(self.error(OpenErrorKind::Io, cause));
            }
        };
        let memory_align = if memory == 0 { logical_block as usize } else { memory as usize };
        Ok((logical_block, memory_align))
    }

    /// Refuses a block device with a mounted filesystem, and names the mount point.
    fn check_mounts(&self, device: u64) -> Result<(), OpenError> {
        let device = number_text(device);
        match mounts().into_iter().find(|mount| mount.device == device) {
            Some(Mount { point, .. }) => {
                let cause = format!("it is mounted at {}", point.display());
                Err(self.error(OpenErrorKind::InUse, cause))
            }
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
