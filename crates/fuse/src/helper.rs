//! The steps that wait for the file, for a process of their own; see [`forebay_export::helper`].

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use forebay_device::loop_device::{self, LoopNumber, LoopOptions};
use forebay_export::helper;
use rustix::fs::OFlags;
use rustix::io::Errno;

/// Words for attaching.
const READ_WRITE: &str = "attach";
const READ_ONLY: &str = "attach-read-only";

/// One task of the helper.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Task {
    /// Attach a loop device to a file.
    Attach {
        /// The file.
        file: PathBuf,
        /// Bytes of its logical sectors.
        sector: u32,
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
}

impl Task {
    /// Returns the arguments behind the verb.
    fn arguments(&self) -> [OsString; 3] {
        let flag = |set: bool, word: &str| if set { word.into() } else { "".into() };
        match self {
            Task::Attach { file, sector, read_only } => {
                let word = if *read_only { READ_ONLY } else { READ_WRITE };
                [word.into(), file.into(), sector.to_string().into()]
            }
            Task::Detach { number, force } => {
                ["detach".into(), number.0.to_string().into(), flag(*force, "force")]
            }
        }
    }

    /// Parses the arguments behind the verb.
    pub fn parse(arguments: &[OsString]) -> Option<Self> {
        let [word, what, flag] = arguments else { return None };
        let flag = flag.to_str()?;
        let word = word.to_str()?;
        match (word, flag) {
            (READ_WRITE | READ_ONLY, sector) => {
                let (file, sector) = (what.into(), sector.parse().ok()?);
                Some(Task::Attach { file, sector, read_only: word == READ_ONLY })
            }
            ("detach", "" | "force") => {
                let number = LoopNumber(what.to_str()?.parse().ok()?);
                Some(Task::Detach { number, force: !flag.is_empty() })
            }
            _ => None,
        }
    }

    /// Does it; returns the number of the device. For the helper.
    ///
    /// # Errors
    /// That of the system.
    pub fn execute(&self) -> io::Result<u32> {
        let number = match self {
            Task::Attach { file, sector, read_only } => attach(file, *sector, *read_only),
            Task::Detach { number, force } => detach(*number, *force),
        };
        number.map(|number| number.0)
    }

    /// Has a process do it; returns the number of the device.
    ///
    /// # Errors
    /// That of the system, or `TimedOut`; in the latter case it may still happen.
    pub(crate) fn run(&self, patience: Duration) -> io::Result<LoopNumber> {
        helper::run(&self.arguments(), patience).map(LoopNumber)
    }
}

fn attach(file: &Path, sector: u32, read_only: bool) -> io::Result<LoopNumber> {
    let opened = OpenOptions::new()
        .read(true)
        .write(!read_only)
        .custom_flags(OFlags::DIRECT.bits().cast_signed())
        .open(file)?;
    let options = LoopOptions { sector, read_only, name: file };
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
    fn tasks_read_back() {
        let number = LoopNumber(12);
        for task in [
            Task::Attach { file: "/run/x y".into(), sector: 512, read_only: false },
            Task::Attach { file: "/run/x".into(), sector: 4096, read_only: true },
            Task::Detach { number, force: false },
            Task::Detach { number, force: true },
        ] {
            assert_eq!(Task::parse(&task.arguments()), Some(task));
        }
        for bad in [["attach", "/x", "force"], ["detach", "x", ""]] {
            assert_eq!(Task::parse(&bad.map(Into::into)), None);
        }
        assert_eq!(Task::parse(&[]), None);
    }
}
