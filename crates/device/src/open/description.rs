//! Locks of open file descriptions, which rustix does not provide.

use std::os::fd::{AsRawFd, OwnedFd};

use rustix::io::Errno;

/// A range of bytes of a file; a length of 0 extends it to the end of the file.
#[derive(Clone, Copy)]
pub(super) struct Range {
    pub(super) start: i64,
    pub(super) len: i64,
}

/// Locks a whole file without waiting, exclusively if `exclusive`. Like an `flock` lock, it ends
/// with the last descriptor and the last operation in progress; it does not conflict with `flock`
/// locks.
///
/// # Errors
/// [`Errno::AGAIN`] or [`Errno::ACCESS`] if there is a conflicting lock; otherwise the error of the
/// system.
pub(super) fn lock(fd: &OwnedFd, exclusive: bool) -> Result<(), Errno> {
    lock_range(fd, Range { start: 0, len: 0 }, exclusive)
}

/// Like [`lock`], for a range.
///
/// # Errors
/// Like [`lock`].
pub(super) fn lock_range(fd: &OwnedFd, range: Range, exclusive: bool) -> Result<(), Errno> {
    let kind = if exclusive { libc::F_WRLCK } else { libc::F_RDLCK };
    command(fd, libc::F_OFD_SETLK, kind, range).map(drop)
}

/// Returns whether another open file description or process has a lock in a range.
///
/// # Errors
/// The system call fails.
pub(super) fn is_locked(fd: &OwnedFd, range: Range) -> Result<bool, Errno> {
    command(fd, libc::F_OFD_GETLK, libc::F_WRLCK, range)
        .map(|kind| i32::from(kind) != libc::F_UNLCK)
}

/// Executes a command about a lock; returns the kind of lock that the kernel reports.
#[allow(unsafe_code, reason = "the system call")]
fn command(
    fd: &OwnedFd,
    command: libc::c_int,
    kind: libc::c_int,
    range: Range,
) -> Result<libc::c_short, Errno> {
    let mut told = libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: range.start,
        l_len: range.len,
        l_pid: 0,
    };
    // SAFETY: the descriptor is open as long as it is borrowed, and the commands read and write one
    // structure of this type behind the pointer and keep none of it.
    let result = unsafe { libc::fcntl(fd.as_raw_fd(), command, &raw mut told) };
    if result == 0 {
        return Ok(told.l_type);
    }
    let error = std::io::Error::last_os_error();
    Err(Errno::from_io_error(&error).unwrap_or(Errno::IO))
}
