//! Locks of open file descriptions, which rustix does not have.

use std::os::fd::{AsRawFd, OwnedFd};

use rustix::io::Errno;

/// Locks a whole file, for writing if `exclusive`, without waiting. The lock ends with the last descriptor and
/// the last operation in progress, as one of `flock` does, and conflicts with none of these.
///
/// # Errors
/// [`Errno::AGAIN`] or [`Errno::ACCESS`] if another lock is in the way; otherwise that of the system.
#[allow(unsafe_code, reason = "the system call")]
pub(super) fn lock(fd: &OwnedFd, exclusive: bool) -> Result<(), Errno> {
    let kind = if exclusive { libc::F_WRLCK } else { libc::F_RDLCK };
    let range = libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    };
    // SAFETY: the descriptor is open as long as it is borrowed, and the command reads one structure of this
    // type behind the pointer and keeps none of it.
    let result = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_OFD_SETLK, &raw const range) };
    if result == 0 {
        return Ok(());
    }
    let error = std::io::Error::last_os_error();
    Err(Errno::from_io_error(&error).unwrap_or(Errno::IO))
}
