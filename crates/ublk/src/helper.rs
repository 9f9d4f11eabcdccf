//! The steps that wait for the lanes. They run in a separate process; see
//! [`forebay_export::helper`].

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use forebay_device::ublk::ControlCommand;
use forebay_export::helper;

use crate::control;

/// Time that the daemon waits for the process in addition to the process's own time limit for the
/// kernel.
const MORE: Duration = Duration::from_secs(2);
/// Time limit for the kernel's part of a step.
const PATIENCE: Duration = Duration::from_secs(20);

/// Returns the path of a block device.
pub(crate) fn path(number: u32) -> PathBuf {
    PathBuf::from(format!("/dev/ublkb{number}"))
}

/// A step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Make the block device. The kernel reads its partitions at once.
    Start,
    /// Remove the block device, unless it is in use.
    Stop,
    /// Remove the block device.
    Cut,
    /// Delete a device without a block device.
    Delete,
}

impl Step {
    const ALL: [(Step, &str); 4] = [
        (Step::Start, "ublk-start"),
        (Step::Stop, "ublk-stop"),
        (Step::Cut, "ublk-cut"),
        (Step::Delete, "ublk-delete"),
    ];

    fn word(self) -> &'static str {
        let found = Step::ALL.iter().find(|(step, _)| *step == self);
        found.map_or("", |(_, word)| word)
    }
}

/// A step, for a device and the daemon that serves it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Task {
    step: Step,
    /// The number of the device.
    number: u32,
    /// The mark of the device.
    mark: u64,
    /// The daemon.
    pid: u32,
}

impl Task {
    /// Returns a step for a device of this process. The mark distinguishes the device from later
    /// devices with the same number.
    pub(crate) fn new(step: Step, number: u32, mark: u64) -> Self {
        Task { step, number, mark, pid: std::process::id() }
    }

    /// Returns the arguments behind the verb.
    fn arguments(&self) -> [OsString; 4] {
        let Task { step, number, mark, pid } = self;
        let [number, pid] = [number, pid].map(u32::to_string);
        [step.word().into(), number.into(), format!("{mark:016x}").into(), pid.into()]
    }

    /// Parses the arguments behind the verb.
    pub fn parse(arguments: &[OsString]) -> Option<Self> {
        let [word, number, mark, pid] = arguments else { return None };
        let word = word.to_str()?;
        let (step, _) = Step::ALL.into_iter().find(|(_, known)| *known == word)?;
        let (number, pid) = (number.to_str()?.parse().ok()?, pid.to_str()?.parse().ok()?);
        let mark = u64::from_str_radix(mark.to_str()?, 16).ok()?;
        Some(Task { step, number, mark, pid })
    }

    /// Executes the step; returns the number of the device. Called in the helper process.
    ///
    /// # Errors
    /// The error of the system, or `TimedOut`; `NODEV` if another device has the number now.
    pub fn execute(&self) -> io::Result<u32> {
        control::owned(self.number, self.mark)?;
        let command = match self.step {
            Step::Start => ControlCommand::Start(self.pid),
            Step::Stop | Step::Cut => ControlCommand::Stop,
            Step::Delete => return control::delete(self.number).map(|()| self.number),
        };
        let device = path(self.number);
        let exclusive = (self.step == Step::Stop).then(|| helper::open_exclusively(&device));
        let _exclusive = match exclusive.transpose() {
            // The block device has been removed already.
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            exclusive => exclusive?,
        };
        control::plain(command, self.number, PATIENCE)?;
        Ok(self.number)
    }

    /// Executes the step in a helper process.
    ///
    /// # Errors
    /// See [`Task::execute`].
    pub(crate) fn run(&self) -> io::Result<()> {
        helper::run(&self.arguments(), PATIENCE + MORE).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_read_back() {
        for (step, word) in Step::ALL {
            let task = Task { step, number: 7, mark: 0xabc, pid: 1234 };
            assert_eq!(task.arguments()[0], *word);
            assert_eq!(Task::parse(&task.arguments()), Some(task));
        }
        for bad in [
            ["attach", "1", "a", "2"],
            ["ublk-stop", "x", "a", "2"],
            ["ublk-stop", "1", "x", "2"],
            ["ublk-stop", "1", "a", "-2"],
        ] {
            assert_eq!(Task::parse(&bad.map(Into::into)), None);
        }
        assert_eq!(Task::parse(&[]), None);
    }
}
