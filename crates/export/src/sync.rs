//! Makes the file systems on a device write their cached data before the device is disconnected.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use forebay_host::users::Users;

use crate::helper;

/// Time limit for each file system.
const PATIENCE: Duration = Duration::from_secs(5);
/// The first argument of the helper.
const WORD: &str = "sync";

/// Makes the file systems on a device write their cached data, within the time limit.
pub fn sync(users: &Users) {
    for point in users.file_systems() {
        if let Err(error) = helper::run(&[WORD.into(), (&point).into()], PATIENCE) {
            tracing::warn!(point = %point.display(), %error, "a file system cannot write its dirty pages");
        }
    }
}

/// Returns the mount point that the helper is to sync; `None` if the arguments are those of another
/// step.
pub fn parse(arguments: &[OsString]) -> Option<PathBuf> {
    match arguments {
        [word, point] if word == WORD => Some(point.into()),
        _ => None,
    }
}

/// Executes the step. Called in the helper process.
///
/// # Errors
/// The error of the system.
pub fn execute(point: &Path) -> io::Result<u32> {
    rustix::fs::syncfs(File::open(point)?)?;
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_read_back() {
        assert_eq!(parse(&[WORD.into(), "/mnt".into()]), Some("/mnt".into()));
        assert_eq!(parse(&[WORD.into()]), None);
        assert_eq!(parse(&["attach".into(), "/mnt".into()]), None);
    }
}
