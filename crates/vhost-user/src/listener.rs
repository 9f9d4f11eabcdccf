//! Listening unix sockets. Never removes a file of anybody else: an existing path is refused, unless it
//! is a stale socket of this user, left by a daemon that crashed.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::net::{Shutdown, shutdown};

/// Longest path of a unix socket, in bytes.
const PATH_MAX: usize = 107;

/// Why a path cannot be listened at.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ListenError {
    /// It is too long.
    #[error("{} is longer than the {PATH_MAX} bytes that a unix socket may have; choose a shorter path", .0.display())]
    PathTooLong(PathBuf),
    /// Something else is there.
    #[error("{} exists and is not a socket of this user; choose another path, or remove it", .0.display())]
    Occupied(PathBuf),
    /// Another process listens there.
    #[error("another process listens at {}; stop it, or choose another path", .0.display())]
    InUse(PathBuf),
    /// The system refuses it.
    #[error("cannot listen at {}: {cause}", path.display())]
    System {
        /// The path.
        path: PathBuf,
        /// The system's error.
        cause: io::Error,
    },
}

/// A listening socket. It is closed, and its path removed, on drop.
#[derive(Debug)]
pub(crate) struct Listener {
    fd: Arc<OwnedFd>,
    path: PathBuf,
    /// Device and inode of the socket that we made.
    made: Option<(u64, u64)>,
}

impl Listener {
    /// Starts to listen.
    ///
    /// # Errors
    /// See [`ListenError`]; nothing has changed then.
    pub(crate) fn bind(path: &Path) -> Result<Self, ListenError> {
        if path.as_os_str().len() > PATH_MAX {
            return Err(ListenError::PathTooLong(path.into()));
        }
        let system = |cause| ListenError::System { path: path.into(), cause };
        match std::fs::symlink_metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(system(error)),
            Ok(found) => {
                let ours = found.uid() == rustix::process::geteuid().as_raw();
                if !found.file_type().is_socket() || !ours {
                    return Err(ListenError::Occupied(path.into()));
                }
                match UnixStream::connect(path) {
                    Ok(_) => return Err(ListenError::InUse(path.into())),
                    Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                        std::fs::remove_file(path).map_err(system)?;
                    }
                    Err(error) => return Err(system(error)),
                }
            }
        }
        let listener = UnixListener::bind(path).map_err(system)?;
        let made = identity(path).ok();
        Ok(Listener { fd: Arc::new(listener.into()), path: path.into(), made })
    }

    pub(crate) fn fd(&self) -> &Arc<OwnedFd> {
        &self.fd
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Stops accepting, and removes the path.
    pub(crate) fn close(&self) {
        let _ = shutdown(&*self.fd, Shutdown::Both);
        if identity(&self.path).is_ok_and(|found| Some(found) == self.made) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.close();
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    std::fs::symlink_metadata(path).map(|found| (found.dev(), found.ino()))
}
