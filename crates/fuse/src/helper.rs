//! The steps that wait for the file. They run in a separate process; see
//! [`forebay_export::helper`].

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use forebay_device::loop_device::{self, LoopNumber, LoopOptions};
use forebay_export::{Names, helper};
use forebay_host::sysfs;
use rustix::fs::OFlags;
use rustix::io::Errno;

/// Words for attaching.
const READ_WRITE: &str = "attach";
const READ_ONLY: &str = "attach-read-only";

/// One task of the helper.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoopTask {
    /// Attach a loop device to a file.
    Attach {
        /// The file.
        file: PathBuf,
        /// Bytes of the device's logical sectors.
        sector: u32,
        /// Refuse writes.
        read_only: bool,
        /// Directory of a link from the name of the device to that of the volume. The link is made
        /// before the file is attached.
        names: PathBuf,
    },
    /// Detach a loop device.
    Detach {
        /// The device.
        number: LoopNumber,
        /// Sequence number of the device. A device whose number differs by now is left alone.
        sequence: Option<u64>,
        /// Detaches the device even if it is in use; the kernel then waits for its last user.
        force: bool,
    },
}

impl LoopTask {
    /// Returns the arguments behind the verb.
    fn arguments(&self) -> [OsString; 4] {
        let flag = |set: bool, word: &str| if set { word.into() } else { "".into() };
        match self {
            LoopTask::Attach { file, sector, read_only, names } => {
                let word = if *read_only { READ_ONLY } else { READ_WRITE };
                [word.into(), file.into(), sector.to_string().into(), names.into()]
            }
            LoopTask::Detach { number, sequence, force } => {
                let sequence = sequence.map_or_else(String::new, |sequence| sequence.to_string());
                let number = number.0.to_string();
                ["detach".into(), number.into(), flag(*force, "force"), sequence.into()]
            }
        }
    }

    /// Parses the arguments behind the verb.
    pub fn parse(arguments: &[OsString]) -> Option<Self> {
        let [word, what, flag, last] = arguments else { return None };
        let flag = flag.to_str()?;
        let word = word.to_str()?;
        match (word, flag) {
            (READ_WRITE | READ_ONLY, sector) => {
                let (file, sector) = (what.into(), sector.parse().ok()?);
                Some(LoopTask::Attach {
                    file,
                    sector,
                    read_only: word == READ_ONLY,
                    names: last.into(),
                })
            }
            ("detach", "" | "force") => {
                let number = LoopNumber(what.to_str()?.parse().ok()?);
                let sequence = match last.to_str()? {
                    "" => None,
                    text => Some(text.parse().ok()?),
                };
                Some(LoopTask::Detach { number, sequence, force: !flag.is_empty() })
            }
            _ => None,
        }
    }

    /// Executes the step; returns the number of the device. Called in the helper process.
    ///
    /// # Errors
    /// The error of the system.
    pub fn execute(&self) -> io::Result<u32> {
        let number = match self {
            LoopTask::Attach { file, sector, read_only, names } => {
                attach(file, *sector, *read_only, names)
            }
            LoopTask::Detach { number, sequence, force } => detach(*number, *sequence, *force),
        };
        number.map(|number| number.0)
    }

    /// Executes the step in a helper process; returns the number of the device.
    ///
    /// # Errors
    /// The error of the system, or `TimedOut`; in the latter case the step may still take effect.
    pub(crate) fn run(&self, patience: Duration) -> io::Result<LoopNumber> {
        helper::run(&self.arguments(), patience).map(LoopNumber)
    }
}

fn attach(file: &Path, sector: u32, read_only: bool, names: &Path) -> io::Result<LoopNumber> {
    let opened = OpenOptions::new()
        .read(true)
        .write(!read_only)
        .custom_flags(OFlags::DIRECT.bits().cast_signed())
        .open(file)?;
    let options = LoopOptions { sector, read_only, name: file };
    let volume = file.file_name().unwrap_or_default().to_string_lossy();
    let device = rustix::fs::fstat(&opened)?.st_dev;
    let file_system = sysfs::number_text(device);
    // The link must exist before udev sees the device; otherwise udev does not name the device
    // after the volume.
    let names = Names::new(names);
    let before = |number| drop(name(&names, number, &volume, &file_system));
    loop_device::attach(&opened, options, before, |number| names.remove(&number.path()))
}

/// Makes the link that names a device for udev. It has the mark: the file system of the file, like
/// `0:43`, or the device's sequence number. No other user can write to the directory.
pub(crate) fn name(names: &Names, number: LoopNumber, volume: &str, known: &str) -> io::Result<()> {
    names.add(&number.path(), &format!("{volume} {known}"))
}

fn detach(number: LoopNumber, sequence: Option<u64>, force: bool) -> io::Result<LoopNumber> {
    let exclusive = helper::open_exclusively(&number.path());
    if !force {
        if !number.is(sequence) {
            return Ok(number);
        }
        exclusive.as_ref().map_err(|error| {
            io::Error::from_raw_os_error(error.raw_os_error().unwrap_or(Errno::BUSY.raw_os_error()))
        })?;
    }
    match loop_device::detach(number, sequence) {
        // The device is detached already, or has the file of another program.
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
            LoopTask::Attach {
                file: "/run/x y".into(),
                sector: 512,
                read_only: false,
                names: "/run/n".into(),
            },
            LoopTask::Attach {
                file: "/run/x".into(),
                sector: 4096,
                read_only: true,
                names: "/run/n m".into(),
            },
            LoopTask::Detach { number, sequence: None, force: false },
            LoopTask::Detach { number, sequence: Some(u64::MAX), force: true },
        ] {
            assert_eq!(LoopTask::parse(&task.arguments()), Some(task));
        }
        for bad in
            [["attach", "/x", "force", "/n"], ["detach", "x", "", "1"], ["detach", "1", "", "x"]]
        {
            assert_eq!(LoopTask::parse(&bad.map(Into::into)), None);
        }
        assert_eq!(LoopTask::parse(&[]), None);
    }
}
