//! Work that waits for the lanes, in a separate process.
//!
//! A process that waits for a device that it serves itself cannot be killed: its descriptors stay
//! open until the wait ends, and so nothing ends the wait. The daemon therefore runs its own
//! program, with a hidden verb, wherever the kernel may send a request to the device. If the daemon
//! is killed, its successor can end the wait.
#![expect(clippy::disallowed_methods, reason = "waits for a process, on a thread of an operation")]

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::OFlags;
use rustix::io::Errno;

/// The hidden verb.
pub const VERB: &str = "block-device";

/// Interval at which the parent checks whether the process has ended.
const STEP: Duration = Duration::from_millis(2);

/// Runs a step in a helper process; `arguments` follow the hidden verb. Returns the number that the
/// step returns.
///
/// # Errors
/// The error of the system, or `TimedOut`; in the latter case the step may still take effect.
pub fn run(arguments: &[OsString], patience: Duration) -> io::Result<u32> {
    let mut child = Command::new("/proc/self/exe")
        .arg(VERB)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let end = Instant::now() + patience;
    while child.try_wait()?.is_none() {
        if Instant::now() >= end {
            // Reaped in time, or by init.
            let _ = std::thread::Builder::new().spawn(move || child.wait());
            let cause = "the system does not answer: a device or a file system may hang";
            return Err(io::Error::new(io::ErrorKind::TimedOut, cause));
        }
        std::thread::sleep(STEP);
    }
    let mut answer = String::new();
    if let Some(mut out) = child.stdout.take() {
        out.read_to_string(&mut answer)?;
    }
    understood(&answer)
}

/// Opens a device that no other program uses. While it is open, nothing can be mounted from it.
/// This also detects a mount in another namespace, which the daemon cannot see.
///
/// # Errors
/// The error of the system.
pub fn open_exclusively(device: &Path) -> io::Result<File> {
    let flags = OFlags::EXCL.bits().cast_signed();
    OpenOptions::new().read(true).custom_flags(flags).open(device)
}

/// Returns the output of the helper.
pub fn answer(result: &io::Result<u32>) -> String {
    match result {
        Ok(number) => format!("device {number}"),
        Err(error) => format!("error {}", error.raw_os_error().unwrap_or(code_of(error.kind()))),
    }
}

/// Returns the code of an error that has no number in the system.
fn code_of(kind: io::ErrorKind) -> i32 {
    let errno = match kind {
        io::ErrorKind::TimedOut => Errno::TIMEDOUT,
        io::ErrorKind::InvalidInput => Errno::INVAL,
        _ => Errno::IO,
    };
    errno.raw_os_error()
}

/// The inverse of [`answer`].
fn understood(answer: &str) -> io::Result<u32> {
    let unclear = || io::Error::other("the helper for block devices has ended without an answer");
    let (word, number) = answer.trim().split_once(' ').ok_or_else(unclear)?;
    match word {
        "device" => number.parse().map_err(|_| unclear()),
        _ => {
            let code = number.parse().map_err(|_| unclear())?;
            Err(io::Error::from_raw_os_error(code))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_read_back() {
        assert_eq!(understood(&answer(&Ok(12))).ok(), Some(12));
        let errors = [
            (io::Error::from(Errno::BUSY), Errno::BUSY),
            (io::ErrorKind::TimedOut.into(), Errno::TIMEDOUT),
            (io::Error::other("x"), Errno::IO),
        ];
        for (error, code) in errors {
            let read = understood(&answer(&Err(error))).expect_err("it was one");
            assert_eq!(Errno::from_io_error(&read), Some(code));
        }
        for bad in ["", "device", "device x", "error x", "5"] {
            assert!(understood(bad).is_err(), "{bad:?}");
        }
    }
}
