//! Replaces files of the state directory.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use super::private;
use crate::faults;

/// Why a file was not replaced durably.
#[derive(Debug)]
pub(crate) enum ReplaceError {
    /// The old file is in place.
    Unchanged(io::Error),
    /// The new file is in place, but a power failure may bring the old one back.
    Doubtful(io::Error),
}

impl fmt::Display for ReplaceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (ReplaceError::Unchanged(error) | ReplaceError::Doubtful(error)) = self;
        error.fmt(f)
    }
}

impl From<ReplaceError> for io::Error {
    fn from(error: ReplaceError) -> Self {
        match error {
            ReplaceError::Unchanged(error) | ReplaceError::Doubtful(error) => error,
        }
    }
}

/// Replaces a file atomically and durably: a crash at any point leaves the complete old or the
/// complete new file.
///
/// # Errors
/// The file is not replaced, or not durably.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> Result<(), ReplaceError> {
    let mut fresh = path.as_os_str().to_owned();
    fresh.push(".new");
    let fresh = Path::new(&fresh);
    let written = write(fresh, bytes).and_then(|()| {
        // A process may be killed between any two of these steps.
        forebay_threads::step();
        fs::rename(fresh, path)
    });
    if written.is_err() {
        // On a full filesystem the file would only take space.
        let _ = fs::remove_file(fresh);
    }
    written.map_err(ReplaceError::Unchanged)?;
    forebay_threads::step();
    path.parent().map_or(Ok(()), sync).map_err(ReplaceError::Doubtful)
}

fn sync(dir: &Path) -> io::Result<()> {
    faults::check(dir, faults::ReplacementStep::Sync)?;
    File::open(dir)?.sync_all()
}

fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    path.parent().map_or(Ok(()), |dir| faults::check(dir, faults::ReplacementStep::Write))?;
    let mut file = private::create(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}
