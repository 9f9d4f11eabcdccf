//! Work that waits for the lanes, in a process of its own.
//!
//! A process that waits for a file that it serves itself cannot be killed: it keeps its descriptors open
//! until the wait is over, and so nothing ends the wait. So the daemon runs its own program, with a hidden
//! verb, wherever the kernel may send a request to the file. If the daemon is killed, the request fails.
#![expect(clippy::disallowed_methods, reason = "waits for a process, on a thread of an operation")]

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use forebay_core::SECTOR_SIZE;
use forebay_device::loop_device::{self, LoopNumber, LoopOptions};
use rustix::fs::OFlags;
use rustix::io::Errno;

/// The hidden verb.
pub const VERB: &str = "block-device";

/// How often the parent checks whether the process has ended.
const STEP: Duration = Duration::from_millis(2);

/// One task of the helper.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Task {
    /// Attach a loop device to a file.
    Attach {
        /// The file.
        file: PathBuf,
        /// Refuse writes.
        read_only: bool,
    },
    /// Detach a loop device.
    Detach {
        /// The device.
        number: LoopNumber,
        /// Even if it is in use; the kernel then waits for its last user.
        force: bool,
    },
    /// Have the file system at a path write what it keeps in memory.
    Sync {
        /// The path.
        point: PathBuf,
    },
}

impl Task {
    /// Returns the arguments behind the verb.
    fn arguments(&self) -> [std::ffi::OsString; 3] {
        let flag = |set: bool, word: &str| if set { word.into() } else { "".into() };
        match self {
            Task::Attach { file, read_only } => {
                ["attach".into(), file.into(), flag(*read_only, "read-only")]
            }
            Task::Detach { number, force } => {
                ["detach".into(), number.0.to_string().into(), flag(*force, "force")]
            }
            Task::Sync { point } => ["sync".into(), point.into(), "".into()],
        }
    }

    /// Parses the arguments behind the verb.
    pub fn parse(arguments: &[std::ffi::OsString]) -> Option<Self> {
        let [word, what, flag] = arguments else { return None };
        let flag = flag.to_str()?;
        match (word.to_str()?, flag) {
            ("attach", "" | "read-only") => {
                Some(Task::Attach { file: what.into(), read_only: !flag.is_empty() })
            }
            ("detach", "" | "force") => {
                let number = LoopNumber(what.to_str()?.parse().ok()?);
                Some(Task::Detach { number, force: !flag.is_empty() })
            }
            ("sync", "") => Some(Task::Sync { point: what.into() }),
            _ => None,
        }
    }

    /// Does it; returns the number of the device. For the helper.
    ///
    /// # Errors
    /// That of the system.
    pub fn execute(&self) -> io::Result<LoopNumber> {
        match self {
            Task::Attach { file, read_only } => attach(file, *read_only),
            Task::Detach { number, force } => detach(*number, *force),
            Task::Sync { point } => {
                rustix::fs::syncfs(File::open(point)?)?;
                Ok(LoopNumber(0))
            }
        }
    }

    /// Has a process do it; returns the number of the device.
    ///
    /// # Errors
    /// That of the system, or `TimedOut`; in the latter case it may still happen.
    pub(crate) fn run(&self, patience: Duration) -> io::Result<LoopNumber> {
        let mut child = Command::new("/proc/self/exe")
            .arg(VERB)
            .args(self.arguments())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let end = Instant::now() + patience;
        while child.try_wait()?.is_none() {
            if Instant::now() >= end {
                // Reaped in time, or by init.
                let _ = std::thread::Builder::new().spawn(move || child.wait());
                return Err(io::ErrorKind::TimedOut.into());
            }
            std::thread::sleep(STEP);
        }
        let mut answer = String::new();
        if let Some(mut out) = child.stdout.take() {
            out.read_to_string(&mut answer)?;
        }
        understood(&answer)
    }
}

/// Returns what the helper prints.
pub fn answer(result: &io::Result<LoopNumber>) -> String {
    match result {
        Ok(number) => format!("device {}", number.0),
        Err(error) => format!("error {}", error.raw_os_error().unwrap_or(Errno::IO.raw_os_error())),
    }
}

/// The inverse of [`answer`].
fn understood(answer: &str) -> io::Result<LoopNumber> {
    let unclear = || io::Error::other("the helper for block devices has ended without an answer");
    let (word, number) = answer.trim().split_once(' ').ok_or_else(unclear)?;
    match word {
        "device" => number.parse().map(LoopNumber).map_err(|_| unclear()),
        _ => {
            let code = number.parse().map_err(|_| unclear())?;
            Err(io::Error::from_raw_os_error(code))
        }
    }
}

fn attach(file: &Path, read_only: bool) -> io::Result<LoopNumber> {
    let opened = OpenOptions::new()
        .read(true)
        .write(!read_only)
        .custom_flags(OFlags::DIRECT.bits().cast_signed())
        .open(file)?;
    let options = LoopOptions { sector: SECTOR_SIZE as u32, read_only, name: file };
    loop_device::attach(&opened, options)
}

fn detach(number: LoopNumber, force: bool) -> io::Result<LoopNumber> {
    // While this is open, nothing can be mounted; and a mount that the daemon cannot see, because it is in
    // another namespace, is found here.
    let exclusive = OpenOptions::new()
        .read(true)
        .custom_flags(OFlags::EXCL.bits().cast_signed())
        .open(number.path());
    if !force {
        exclusive.as_ref().map_err(|error| {
            io::Error::from_raw_os_error(error.raw_os_error().unwrap_or(Errno::BUSY.raw_os_error()))
        })?;
    }
    match loop_device::detach(number) {
        // Nothing is attached any more.
        Err(error) if Errno::from_io_error(&error) == Some(Errno::NXIO) => Ok(number),
        result => result.map(|()| number),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_and_answers_read_back() {
        let number = LoopNumber(12);
        for task in [
            Task::Attach { file: "/run/x y".into(), read_only: false },
            Task::Attach { file: "/run/x".into(), read_only: true },
            Task::Detach { number, force: false },
            Task::Detach { number, force: true },
            Task::Sync { point: "/mnt".into() },
        ] {
            assert_eq!(Task::parse(&task.arguments()), Some(task));
        }
        for bad in [["attach", "/x", "force"], ["detach", "x", ""], ["sync", "/", "force"]] {
            assert_eq!(Task::parse(&bad.map(Into::into)), None);
        }
        assert_eq!(Task::parse(&[]), None);
        assert_eq!(understood(&answer(&Ok(number))).ok(), Some(number));
        let busy: io::Result<LoopNumber> = Err(Errno::BUSY.into());
        let error = understood(&answer(&busy)).expect_err("it was one");
        assert_eq!(Errno::from_io_error(&error), Some(Errno::BUSY));
        for bad in ["", "device", "device x", "error x", "5"] {
            assert!(understood(bad).is_err(), "{bad:?}");
        }
    }
}
