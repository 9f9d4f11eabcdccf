//! Exclusive unix sockets: claimed without a race, never taken from a live process.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::ErrorKind as Io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use forebay_admin::{ApiError, ErrorKind};
use rustix::fs::{FlockOperation, flock};

use super::hand_over::LeftSocket;
use crate::paths::{check_socket_path, io_error};

/// A listening unix socket, removed on drop.
pub(crate) struct ClaimedSocket {
    listener: UnixListener,
    path: PathBuf,
    identity: (u64, u64),
    /// Held as long as the socket: its holder may replace a dead owner's socket. The lock file
    /// stays, because removing it would let two owners lock two files of one name.
    lock: File,
}

fn identity(metadata: &Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

/// Opens and locks a file; a dead owner holds no lock.
///
/// # Errors
/// [`ErrorKind::Refused`] with `in_use` if a live process holds the lock.
pub(crate) fn lock_file(path: &Path, in_use: &str) -> Result<File, ApiError> {
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .read(true)
        .mode(0o600)
        .custom_flags(rustix::fs::OFlags::NOFOLLOW.bits().cast_signed())
        .open(path)
        .map_err(|error| io_error("cannot open", path, &error))?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(ApiError::new(ErrorKind::Refused, in_use)),
        Err(errno) => Err(io_error("cannot lock", path, &errno.into())),
    }
}

impl ClaimedSocket {
    /// Checks whether `path` could be claimed, without touching anything.
    ///
    /// # Errors
    /// As [`ClaimedSocket::claim`], as far as that is known beforehand.
    pub(crate) fn probe(field: &str, path: &Path) -> Result<(), ApiError> {
        check_socket_path(field, path)?;
        match fs::symlink_metadata(path) {
            Ok(found) if !found.file_type().is_socket() => {
                let reason = format!(
                    "{} exists and is not a socket; choose another path, or move it away",
                    path.display()
                );
                Err(ApiError::invalid(field, reason))
            }
            Ok(_) if answers(path)? => Err(in_use(field, path)),
            Err(error) if error.kind() != Io::NotFound => {
                Err(io_error("cannot inspect", path, &error).about(field))
            }
            Ok(_) => Ok(()),
            Err(_) => match path.parent() {
                Some(dir) if !dir.as_os_str().is_empty() && !dir.is_dir() => {
                    let reason =
                        format!("there is no directory {}; create it first", dir.display());
                    Err(ApiError::invalid(field, reason))
                }
                _ => Ok(()),
            },
        }
    }

    /// Listens at `path` with permissions `mode`, like `0o600`. A stale socket of the same user is
    /// replaced; nothing else is.
    ///
    /// # Errors
    /// [`ErrorKind::Refused`] if another process listens there; [`ErrorKind::Invalid`] if the path
    /// exists and is not a socket, or cannot be one.
    pub(crate) fn claim(field: &str, path: &Path, mode: u32) -> Result<Self, ApiError> {
        Self::probe(field, path)?;
        let mut lock_path = path.as_os_str().to_owned();
        lock_path.push(".lock");
        let lock = lock_file(Path::new(&lock_path), &in_use(field, path).message)?;
        remove_stale(field, path)?;
        let listener = UnixListener::bind(path)
            .map_err(|error| io_error("cannot listen at", path, &error).about(field))?;
        let own = fs::set_permissions(path, fs::Permissions::from_mode(mode))
            .and_then(|()| fs::symlink_metadata(path))
            .map_err(|error| io_error("cannot set the permissions of", path, &error))?;
        Ok(ClaimedSocket { listener, path: path.to_owned(), identity: identity(&own), lock })
    }

    /// Goes on with the socket of the previous program of this process.
    pub(crate) fn inherit(path: &Path, left: LeftSocket) -> Self {
        let LeftSocket { listener, lock, identity: made } = left;
        if !fs::symlink_metadata(path).is_ok_and(|found| identity(&found) == made) {
            tracing::error!(path = %path.display(), "the socket has lost its path; a restart makes it anew");
        }
        let (listener, lock) = (UnixListener::from(listener), File::from(lock));
        ClaimedSocket { listener, path: path.to_owned(), identity: made, lock }
    }

    /// Returns descriptors of the socket and of its lock for another program.
    ///
    /// # Errors
    /// The limit of descriptors is reached.
    pub(crate) fn leave(&self) -> Result<LeftSocket, ApiError> {
        let duplicate = |descriptor: BorrowedFd| descriptor.try_clone_to_owned();
        let listener = duplicate(self.listener.as_fd());
        let both = listener.and_then(|listener| Ok((listener, duplicate(self.lock.as_fd())?)));
        let (listener, lock) =
            both.map_err(|error| io_error("cannot hand over", &self.path, &error))?;
        Ok(LeftSocket { listener, lock, identity: self.identity })
    }

    /// Returns the listening socket.
    pub(crate) fn listener(&self) -> &UnixListener {
        &self.listener
    }
}

impl Drop for ClaimedSocket {
    fn drop(&mut self) {
        let ours =
            fs::symlink_metadata(&self.path).is_ok_and(|found| identity(&found) == self.identity);
        if ours && let Err(error) = fs::remove_file(&self.path) {
            tracing::warn!(%error, path = %self.path.display(), "cannot remove the socket");
        }
    }
}

fn in_use(field: &str, path: &Path) -> ApiError {
    let message = format!(
        "{field}: another daemon listens at {}; stop it, or choose another socket",
        path.display()
    );
    ApiError::new(ErrorKind::Refused, message).about(field)
}

/// Whether a process accepts connections at `path`.
fn answers(path: &Path) -> Result<bool, ApiError> {
    match UnixStream::connect(path) {
        Ok(_) => Ok(true),
        Err(error) if matches!(error.kind(), Io::ConnectionRefused | Io::NotFound) => Ok(false),
        // A full backlog, or a socket of another type: a process is there.
        Err(error)
            if error.kind() == Io::WouldBlock
                || error.raw_os_error() == Some(rustix::io::Errno::PROTOTYPE.raw_os_error()) =>
        {
            Ok(true)
        }
        Err(error) => Err(io_error("cannot find out whether a process listens at", path, &error)),
    }
}

/// Removes a stale socket. Called with the lock held.
fn remove_stale(field: &str, path: &Path) -> Result<(), ApiError> {
    let Ok(found) = fs::symlink_metadata(path) else { return Ok(()) };
    if !found.file_type().is_socket() || answers(path)? {
        return Err(in_use(field, path));
    }
    if found.uid() != rustix::process::geteuid().as_raw() {
        let message = format!(
            "{field}: {} belongs to another user; choose another path, or have its owner remove it",
            path.display()
        );
        return Err(ApiError::new(ErrorKind::Refused, message));
    }
    tracing::info!(path = %path.display(), "replacing the socket of a daemon that is gone");
    fs::remove_file(path).map_err(|error| io_error("cannot replace", path, &error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::testing::TempDir;

    fn claim(path: &Path) -> Result<ClaimedSocket, ErrorKind> {
        ClaimedSocket::claim("--socket", path, 0o600).map_err(|error| error.kind)
    }

    #[test]
    fn a_claimed_socket_is_ours_alone_and_goes_away() {
        let dir = TempDir::new("socket");
        let path = dir.path().join("s");
        let claimed = claim(&path).expect("free");
        let mode = fs::metadata(&path).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(claim(&path).map(drop), Err(ErrorKind::Refused));
        assert!(path.exists());
        drop(claimed);
        assert!(!path.exists());
        drop(claim(&path).expect("free again"));
    }

    #[test]
    fn only_a_socket_that_nobody_listens_at_is_replaced() {
        let dir = TempDir::new("socket-stale");
        let at = |name: &str| dir.path().join(name);
        drop(UnixListener::bind(at("stale")).expect("free"));
        let ours = claim(&at("stale")).expect("stale");
        UnixStream::connect(at("stale")).expect("it listens");
        drop(ours);

        let foreign = UnixListener::bind(at("foreign")).expect("free");
        assert_eq!(claim(&at("foreign")).map(drop), Err(ErrorKind::Refused));
        drop(foreign);
        fs::write(at("file"), "data").expect("writable");
        std::os::unix::fs::symlink(at("nowhere"), at("dangling")).expect("writable");
        for other in [at("file"), at("dangling"), dir.path().to_owned(), at("no/dir")] {
            assert_eq!(claim(&other).map(drop), Err(ErrorKind::Invalid), "{}", other.display());
        }
        assert_eq!(fs::read(at("file")).expect("readable"), b"data");
        assert!(!at("file.lock").exists() && !at("foreign.lock").exists());
    }

    #[test]
    fn a_socket_that_was_replaced_under_us_is_not_removed() {
        let dir = TempDir::new("socket-moved");
        let path = dir.path().join("s");
        let claimed = claim(&path).expect("free");
        // Kept under another name, so that its inode number is not reused.
        fs::rename(&path, dir.path().join("old")).expect("writable");
        fs::write(&path, "somebody else's").expect("writable");
        drop(claimed);
        assert!(path.exists());
    }
}
