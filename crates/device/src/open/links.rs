//! Symbolic links on the path to a device. The owner of a link could lead the daemon, which runs as
//! root, to another user's file. The path is therefore followed again, one name at a time, and the
//! owner of each link is checked.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags, Stat, fstat, fstatfs, openat, readlinkat};
use rustix::io::Errno;

/// Maximum number of links on one path, as in the kernel.
const MOST: u32 = 40;

/// The type of the file system whose links lead to open files, independent of their text.
const PROC: u64 = 0x9fa0;

/// Trust in the way to a file.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// Only users with access to the file could redirect the path.
    Good,
    /// This link belongs to a user other than root, the user of this process, and the owner of the
    /// file.
    Foreign(PathBuf, u32),
    /// The path leads to another file by now.
    Elsewhere,
}

/// Checks the path that led to an opened file with these attributes.
///
/// # Errors
/// A system call fails.
pub(super) fn way(path: &Path, file: &Stat) -> Result<Way, Errno> {
    let trusted = [0, rustix::process::geteuid().as_raw(), file.st_uid];
    let (mut at, mut links) = (directory(".")?, 0);
    // The remaining names of the path; the next one is the last element.
    let mut names = Vec::new();
    let mut foreign = None;
    add(&mut names, path);
    while let Some(name) = names.pop() {
        if name == "/" {
            at = directory("/")?;
            continue;
        }
        let next =
            openat(&at, &name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
        let found = fstat(&next)?;
        if FileType::from_raw_mode(found.st_mode) != FileType::Symlink {
            at = next;
            continue;
        }
        links += 1;
        if links > MOST {
            return Err(Errno::LOOP);
        }
        if !trusted.contains(&found.st_uid) {
            foreign.get_or_insert(Way::Foreign(name.into(), found.st_uid));
        }
        if fstatfs(&next)?.f_type as u64 == PROC {
            return Ok(foreign.unwrap_or(Way::Good));
        }
        let target = readlinkat(&next, "", Vec::new())?.into_bytes();
        add(&mut names, Path::new(&OsString::from_vec(target)));
    }
    let end = fstat(&at)?;
    if (end.st_dev, end.st_ino) != (file.st_dev, file.st_ino) {
        return Ok(Way::Elsewhere);
    }
    Ok(foreign.unwrap_or(Way::Good))
}

fn directory(path: &str) -> Result<OwnedFd, Errno> {
    openat(CWD, path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

/// Adds the names of a path.
fn add(names: &mut Vec<OsString>, path: &Path) {
    let own = path.components().filter(|name| *name != Component::CurDir);
    names.extend(own.map(|name| name.as_os_str().to_owned()).rev());
}
