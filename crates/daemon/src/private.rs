//! The state directory and its files. They belong to the daemon alone, so that no other user can
//! read them, or use them to make the daemon overwrite other files.

use std::fs::{DirBuilder, File, Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use forebay_admin::{ApiError, ErrorKind};
use rustix::fs::OFlags;
use rustix::process::geteuid;

use crate::paths::io_error;

/// Bits of a mode with which group and others may write.
const WRITABLE: u32 = 0o022;
/// The sticky bit: only owners may rename and remove the entries of a directory.
const STICKY: u32 = 0o1000;

/// Creates the state directory, or one below it, if it is absent.
///
/// # Errors
/// [`ErrorKind::Refused`] if other users own it or may write to it; or it cannot be created.
pub(crate) fn make_directory(path: &Path) -> Result<(), ApiError> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(path);
    made.map_err(|error| io_error("cannot make the directory", path, &error))?;
    check_directory(path)
}

/// Checks a directory, if it exists.
///
/// # Errors
/// [`ErrorKind::Refused`] if other users own it or may write to it.
pub(crate) fn check_directory(path: &Path) -> Result<(), ApiError> {
    let found = match path.metadata() {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(io_error("cannot inspect", path, &error)),
    };
    let Some(weakness) = weakness(&found, false) else { return Ok(()) };
    let message = format!(
        "--state-dir: {} {weakness}, who could have the daemon open any file: run 'chown {}' and 'chmod 0700' on it, or choose another directory",
        path.display(),
        geteuid().as_raw(),
    );
    Err(ApiError::new(ErrorKind::Refused, message).about("--state-dir"))
}

/// Warns of directories above the state directory that another user can replace.
pub(crate) fn warn_of_parents(path: &Path) {
    let Ok(path) = path.canonicalize() else { return };
    for parent in path.ancestors().skip(1) {
        if let Some(weakness) = parent.metadata().ok().and_then(|found| weakness(&found, true)) {
            tracing::warn!(
                "--state-dir: {} {weakness}, who can exchange the state directory and so have the daemon open any file",
                parent.display()
            );
        }
    }
}

/// Returns how users other than the daemon's and root could change a directory, if they can.
/// `is_parent`: only changes of its entries matter, which the sticky bit prevents.
fn weakness(found: &Metadata, is_parent: bool) -> Option<String> {
    let (owner, mode) = (found.uid(), found.mode());
    if owner != 0 && owner != geteuid().as_raw() {
        return Some(format!("belongs to the user {owner}"));
    }
    let open = mode & WRITABLE != 0 && !(is_parent && mode & STICKY != 0);
    open.then(|| format!("has mode {:04o} and can be written to by other users", mode & 0o7777))
}

/// Opens a file for reading. A link in its place is refused.
///
/// # Errors
/// The error of the system.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    options().read(true).open(path)
}

/// Reads a file as a whole. A link in its place is refused, and a file of more than `most` bytes.
///
/// # Errors
/// The error of the system, or the file is too large.
pub(crate) fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open(path)?.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        return Err(io::Error::other("it is too large"));
    }
    Ok(bytes)
}

/// Creates a file for writing, in place of one that a crash may have left. If the path is a link,
/// the target of the link is not touched.
///
/// # Errors
/// The error of the system.
pub(crate) fn create(path: &Path) -> io::Result<File> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    options().write(true).create_new(true).open(path)
}

/// Opens a file for reading and appending, and creates it if it is absent. A link in its place is
/// refused.
///
/// # Errors
/// The error of the system.
pub(crate) fn append(path: &Path) -> io::Result<File> {
    options().read(true).append(true).create(true).open(path)
}

fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    // A pipe in the place of the file must not block the daemon.
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    options.mode(0o600).custom_flags(flags.bits().cast_signed());
    options
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;
    use forebay_testkit::TempDir;

    fn refusal(path: &Path) -> Option<ErrorKind> {
        make_directory(path).err().map(|error| error.kind)
    }

    #[test]
    fn a_directory_that_others_may_write_to_is_refused() {
        let dir = TempDir::new("private-mode");
        let path = dir.path().join("state");
        assert_eq!(refusal(&path), None);
        for (mode, refused) in [
            (0o700, false),
            (0o755, false),
            (0o770, true),
            (0o702, true),
            (0o777, true),
            (0o1777, true),
        ] {
            fs::set_permissions(&path, Permissions::from_mode(mode)).expect("ours");
            assert_eq!(refusal(&path).is_some(), refused, "{mode:o}");
            assert_eq!(check_directory(&path).is_err(), refused, "{mode:o}");
        }
    }

    #[test]
    fn a_directory_of_another_user_is_refused() {
        let dir = TempDir::new("private-owner");
        let path = dir.path().join("state");
        fs::create_dir(&path).expect("writable");
        if std::os::unix::fs::chown(&path, Some(12345), None).is_err() {
            eprintln!("not tried: only root can give directories away");
            return;
        }
        assert_eq!(refusal(&path), Some(ErrorKind::Refused));
        let message = make_directory(&path).expect_err("refused").message;
        assert!(message.contains("belongs to the user 12345"), "{message}");
    }

    #[test]
    fn a_link_is_neither_read_nor_written_through() {
        let dir = TempDir::new("private-link");
        let at = |name: &str| dir.path().join(name);
        fs::write(at("victim"), "precious").expect("writable");
        for open in [open, append] {
            symlink(at("victim"), at("link")).expect("writable");
            assert!(open(&at("link")).is_err());
            fs::remove_file(at("link")).expect("there");
        }
        symlink(at("victim"), at("link")).expect("writable");
        drop(create(&at("link")).expect("the link is replaced"));
        assert_eq!(fs::read(at("victim")).expect("readable"), b"precious");
        assert!(fs::symlink_metadata(at("link")).expect("there").is_file());
    }
}
