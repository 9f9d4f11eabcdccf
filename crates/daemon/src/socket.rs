//! Exclusive unix sockets: claimed without a race, and never taken from a live process.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use forebay_admin::{ApiError, ErrorKind};
use forebay_host::unix_socket::{self, ListenError, UnixSocket};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::afterlife::outlasting;
use super::hand_over::LeftSocket;
use crate::paths::{io_error, socket_error};

/// A listening unix socket, removed on drop.
pub(crate) struct ClaimedSocket {
    socket: UnixSocket,
    /// Held as long as the socket; the holder may replace the socket of a dead owner. The lock file
    /// stays, because removing it would let two owners lock two files of one name.
    lock: Mutex<Arc<OwnedFd>>,
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
    // A process that the owner was starting when it died keeps the owner's descriptors for a
    // moment.
    let lock = || flock(&file, FlockOperation::NonBlockingLockExclusive);
    match outlasting(lock, |errno| *errno == Errno::WOULDBLOCK) {
        Ok(()) => Ok(file),
        Err(Errno::WOULDBLOCK) => Err(ApiError::new(ErrorKind::Refused, in_use)),
        Err(errno) => Err(io_error("cannot lock", path, &errno.into())),
    }
}

impl ClaimedSocket {
    /// Checks whether `path` could be claimed, without touching anything.
    ///
    /// # Errors
    /// See [`ClaimedSocket::claim`]; only errors that are known in advance.
    pub(crate) fn probe(field: &str, path: &Path) -> Result<(), ApiError> {
        unix_socket::check(path).map(drop).map_err(|error| socket_error(field, &error))
    }

    /// Listens at `path` with permissions `mode`, like `0o600`. A stale socket of the same user is
    /// replaced; nothing else is.
    ///
    /// # Errors
    /// [`ErrorKind::Refused`] if another process listens there; [`ErrorKind::Invalid`] if the path
    /// exists and is not a socket of this user, or is not valid for a socket.
    pub(crate) fn claim(field: &str, path: &Path, mode: u32) -> Result<Self, ApiError> {
        // Probe first, so that no lock file is left beside a path that is refused.
        Self::probe(field, path)?;
        let in_use = socket_error(field, &ListenError::InUse(path.to_owned()));
        let lock = lock_file(&lock_path(path), &in_use.message)?;
        let socket = UnixSocket::bind_with(path, Some(mode));
        let socket = socket.map_err(|error| socket_error(field, &error))?;
        Ok(ClaimedSocket { socket, lock: Mutex::new(Arc::new(lock.into())) })
    }

    /// Takes over the socket of the previous program of this process.
    pub(crate) fn inherit(path: &Path, left: LeftSocket) -> Self {
        let LeftSocket { listener, lock, identity } = left;
        let socket = UnixSocket::inherit(path, listener, Some(identity));
        ClaimedSocket { socket, lock: Mutex::new(lock) }
    }

    /// Stops accepting, and removes the path.
    pub(crate) fn close(&self) {
        self.socket.close();
    }

    /// Returns the socket and its lock for another program, which is about to replace this one.
    pub(crate) fn leave(&self) -> LeftSocket {
        self.socket.leave();
        LeftSocket {
            listener: self.socket.fd(),
            lock: self.lock.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            identity: self.socket.identity().unwrap_or_default(),
        }
    }

    /// Returns the listening socket, for this process.
    ///
    /// # Errors
    /// The limit of descriptors is reached.
    pub(crate) fn listener(&self) -> io::Result<UnixListener> {
        let listener = UnixListener::from(self.socket.fd().try_clone()?);
        listener.set_nonblocking(true)?;
        Ok(listener)
    }

    /// Creates the path again if another program has removed it. Returns whether it did, so that
    /// [`ClaimedSocket::listener`] has changed.
    pub(crate) fn restore(&self) -> bool {
        self.socket.restore(|| self.lock_again()).is_some()
    }

    /// Creates and locks the lock file again if that was removed as well.
    fn lock_again(&self) -> Result<(), ListenError> {
        let path = lock_path(self.socket.path());
        let mut lock = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        let own = rustix::fs::fstat(&**lock).map(|own| (own.st_dev, own.st_ino)).ok();
        let found = fs::symlink_metadata(&path).map(|found| (found.dev(), found.ino())).ok();
        if own.is_some() && own == found {
            return Ok(());
        }
        let in_use = || ListenError::InUse(self.socket.path().to_owned());
        let locked = lock_file(&path, "").map_err(|error| match error.kind {
            ErrorKind::Refused => in_use(),
            _ => ListenError::System { path: path.clone(), cause: io::Error::other(error) },
        })?;
        *lock = Arc::new(locked.into());
        Ok(())
    }
}

fn lock_path(socket: &Path) -> PathBuf {
    let mut path = socket.as_os_str().to_owned();
    path.push(".lock");
    path.into()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixStream;

    use super::*;
    use forebay_testkit::TempDir;

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
