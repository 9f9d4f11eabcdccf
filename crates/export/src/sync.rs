//! Makes the file systems on a device write the data that they have in memory, before the device is
//! disconnected.

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

/// Makes the file systems on a device write the data that they have in memory, within the time
/// limit.
pub fn sync(users: &Users) {
    for point in users.file_systems() {
        if let Err(error) = helper::run(&[WORD.into(), (&point).into()], PATIENCE) {
            tracing::warn!(point = %point.display(), %error, "a file system cannot write its dirty pages");
        }
    }
}

/// Returns the file system that the helper is to sync; `None`: the arguments mean something else.
pub fn parse(arguments: &[OsString]) -> Option<PathBuf> {
    match arguments {
        [word, point] if word == WORD => Some(point.into()),
        _ => None,
    }
}

/// Does it. For the helper.
///
/// # Errors
/// That of the system.
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
