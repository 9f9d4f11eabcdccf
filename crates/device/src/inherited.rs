//! Descriptors that were open in this process before its program began.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};

use parking_lot::Mutex;
use rustix::io::{Errno, FdFlags, fcntl_getfd, fcntl_setfd};

/// Descriptors below this one are the standard streams.
const FIRST: RawFd = 3;

/// Descriptors that have an owner.
static OWNED: Mutex<BTreeSet<RawFd>> = Mutex::new(BTreeSet::new());

/// Takes ownership of a descriptor that the previous program of this process has left open. Each
/// can be taken once, and is closed by the next `execve`. Must be called before the process opens
/// anything else, because numbers are reused.
///
/// # Errors
/// `EBADF`: the descriptor is not open, is a standard stream, does not come from the previous
/// program, or was taken before.
pub fn inherit(number: RawFd) -> io::Result<OwnedFd> {
    let mut owned = OWNED.lock();
    if number < FIRST || owned.contains(&number) {
        return Err(Errno::BADF.into());
    }
    // SAFETY: it is only asked for its flags, and the kernel refuses a number that is not open.
    let flags = fcntl_getfd(unsafe { BorrowedFd::borrow_raw(number) })?;
    // `execve` closes everything that this program opens, so this one was opened by this program.
    if flags.contains(FdFlags::CLOEXEC) {
        return Err(Errno::BADF.into());
    }
    owned.insert(number);
    // SAFETY: it is open and was left by the previous program, and nothing else owns it: it is
    // taken once.
    let descriptor = unsafe { OwnedFd::from_raw_fd(number) };
    fcntl_setfd(&descriptor, FdFlags::CLOEXEC)?;
    Ok(descriptor)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn only_what_was_left_open_is_taken_and_once() {
        let file = File::open("/dev/null").expect("there is one");
        let number = file.as_raw_fd();
        inherit(number).expect_err("this program has opened it");
        fcntl_setfd(&file, FdFlags::empty()).expect("possible");
        std::mem::forget(file);
        let taken = inherit(number).expect("left open");
        assert!(fcntl_getfd(&taken).expect("open").contains(FdFlags::CLOEXEC));
        inherit(number).expect_err("taken");
        inherit(0).expect_err("a standard stream");
        inherit(-1).expect_err("no descriptor");
        inherit(999_999).expect_err("not open");
    }
}
