//! Faults of state directories, for tests and the simulator of the control plane. Without the
//! feature `faults` there are none.

use std::io;
use std::path::Path;

#[cfg(any(test, feature = "faults"))]
pub use planted::set;

/// A fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Writes do not return until the fault is removed.
    Hangs,
    /// Nothing can be written.
    Full,
    /// A file is replaced, and the directory cannot be synced afterwards.
    NotSynced,
}

/// A step of the replacement of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReplacementStep {
    Write,
    Sync,
}

/// Runs before a step in a directory: waits or fails according to the fault of the directory.
///
/// # Errors
/// The step fails.
#[cfg_attr(not(any(test, feature = "faults")), expect(unused_variables))]
pub(crate) fn check(dir: &Path, step: ReplacementStep) -> io::Result<()> {
    #[cfg(any(test, feature = "faults"))]
    planted::check(dir, step)?;
    Ok(())
}

#[cfg(any(test, feature = "faults"))]
mod planted {
    use std::io;
    use std::path::{Path, PathBuf};
    use std::time::Duration;

    use parking_lot::Mutex;

    use super::{Fault, ReplacementStep};

    /// Interval at which a write that hangs checks whether the fault has been removed.
    const LOOK: Duration = Duration::from_millis(20);

    static PLANTED: Mutex<Vec<(PathBuf, Fault)>> = Mutex::new(Vec::new());

    /// Sets or removes the fault of a directory and those below it.
    pub fn set(dir: &Path, fault: Option<Fault>) {
        let mut planted = PLANTED.lock();
        planted.retain(|(planted, _)| planted != dir);
        planted.extend(fault.map(|fault| (dir.to_owned(), fault)));
    }

    fn of(dir: &Path) -> Option<Fault> {
        let planted = PLANTED.lock();
        planted.iter().find(|(planted, _)| dir.starts_with(planted)).map(|(_, fault)| *fault)
    }

    pub(super) fn check(dir: &Path, step: ReplacementStep) -> io::Result<()> {
        while of(dir) == Some(Fault::Hangs) {
            forebay_threads::sleep(LOOK);
        }
        match (of(dir), step) {
            (Some(Fault::Full), ReplacementStep::Write) => Err(io::ErrorKind::StorageFull.into()),
            (Some(Fault::NotSynced), ReplacementStep::Sync) => {
                Err(io::Error::other("told to fail"))
            }
            _ => Ok(()),
        }
    }
}
