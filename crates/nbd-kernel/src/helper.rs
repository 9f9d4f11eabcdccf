//! The steps that may wait for the lanes. They run in a separate process; see
//! [`forebay_export::helper`].

use std::ffi::OsString;
use std::io;
use std::time::Duration;

use forebay_export::helper;
use rustix::io::Errno;

use crate::control::Control;
use crate::sysfs::{self, path};

/// Time limit of a step.
const PATIENCE: Duration = Duration::from_secs(20);
/// Age in milliseconds at which a request that was in progress when its connection ended is sent
/// again on the new connection. The udev rule has the same value.
const RETRY: u32 = 5000;

/// A step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Set when requests are sent again.
    Retry,
    /// End a device, unless it is in use.
    Stop,
    /// End a device.
    Cut,
}

impl Step {
    const ALL: [(Step, &str); 3] =
        [(Step::Retry, "nbd-retry"), (Step::Stop, "nbd-stop"), (Step::Cut, "nbd-cut")];

    fn word(self) -> &'static str {
        let found = Step::ALL.iter().find(|(step, _)| *step == self);
        found.map_or("", |(_, word)| word)
    }
}

/// A step, for the device of a mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Task {
    pub(crate) step: Step,
    /// The number of the device.
    pub(crate) number: u32,
    pub(crate) mark: u64,
}

impl Task {
    /// Returns the arguments behind the verb.
    fn arguments(&self) -> [OsString; 3] {
        [self.step.word().into(), self.number.to_string().into(), self.mark.to_string().into()]
    }

    /// Parses the arguments behind the verb.
    pub fn parse(arguments: &[OsString]) -> Option<Self> {
        let [word, number, mark] = arguments else { return None };
        let word = word.to_str()?;
        let (step, _) = Step::ALL.into_iter().find(|(_, known)| *known == word)?;
        let (number, mark) = (number.to_str()?.parse().ok()?, mark.to_str()?.parse().ok()?);
        Some(Task { step, number, mark })
    }

    /// Executes the step; returns the number of the device. Called in the helper process.
    ///
    /// # Errors
    /// The error of the system, or `Errno::NODEV` if another device has the number.
    pub fn execute(&self) -> io::Result<u32> {
        let number = self.number;
        let exclusive = (self.step == Step::Stop).then(|| helper::open_exclusively(&path(number)));
        let _exclusive = exclusive.transpose()?;
        // The kernel reuses a number once its device has ended.
        if !sysfs::has_mark(number, self.mark) {
            return Err(Errno::NODEV.into());
        }
        match self.step {
            Step::Retry => sysfs::set_timeout(number, RETRY)?,
            Step::Stop | Step::Cut => Control::open()?.disconnect(number)?,
        }
        Ok(number)
    }

    /// Runs the step in a process.
    ///
    /// # Errors
    /// Like [`Task::execute`], or `TimedOut`.
    pub(crate) fn run(step: Step, number: u32, mark: u64) -> io::Result<()> {
        helper::run(&Task { step, number, mark }.arguments(), PATIENCE).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_read_back() {
        for (step, word) in Step::ALL {
            let task = Task { step, number: 7, mark: u64::MAX };
            assert_eq!(task.arguments()[0], *word);
            assert_eq!(Task::parse(&task.arguments()), Some(task));
        }
        for bad in [["ublk-stop", "1", "2"], ["nbd-stop", "x", "2"], ["nbd-stop", "1", "-2"]] {
            assert_eq!(Task::parse(&bad.map(Into::into)), None);
        }
        assert_eq!(Task::parse(&[]), None);
    }
}
