//! The path of a unix socket that is to listen: checks whether it can be claimed, and removes it.

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

/// Longest path of a unix socket, in bytes.
const PATH_MAX: usize = 107;

/// Why a path cannot be listened at.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// The path is not valid for a socket.
    #[error("the path {0}; name a socket")]
    Path(&'static str),
    /// The path is too long.
    #[error("a socket path has at most {PATH_MAX} bytes, {} has {}; choose a shorter one", beginning(.0), .0.as_os_str().len())]
    PathTooLong(PathBuf),
    /// The directory of the path is missing.
    #[error("there is no directory {}; create it first", .0.display())]
    NoDirectory(PathBuf),
    /// The path is another file.
    #[error("{} exists and is not a socket of this user; choose another path, or remove it", .0.display())]
    Occupied(PathBuf),
    /// Another process listens at the path.
    #[error("another process listens at {}; stop it, or choose another path", .0.display())]
    InUse(PathBuf),
    /// The system refuses the path.
    #[error("cannot listen at {}: {cause}", path.display())]
    System {
        /// The path.
        path: PathBuf,
        /// The system's error.
        cause: io::Error,
    },
}

/// Device and inode of a socket's path. The kernel keeps the inode while the socket is open, so no
/// other file gets the same numbers.
pub type Identity = (u64, u64);

pub(super) fn identity(found: &Metadata) -> Identity {
    (found.dev(), found.ino())
}

/// Returns a path for a message, shortened if it is long.
fn beginning(path: &Path) -> String {
    let text = path.display().to_string();
    match text.char_indices().nth(2 * PATH_MAX) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}

/// Checks whether a path is valid for a socket, whatever is there.
///
/// # Errors
/// The path is empty, too long, or has a zero byte.
pub fn check_name(path: &Path) -> Result<(), ListenError> {
    let bytes = path.as_os_str().as_bytes();
    if bytes.is_empty() {
        return Err(ListenError::Path("is empty"));
    }
    if bytes.len() > PATH_MAX {
        return Err(ListenError::PathTooLong(path.into()));
    }
    if bytes.contains(&0) {
        return Err(ListenError::Path("has a zero byte"));
    }
    Ok(())
}

/// Checks whether a process of this user may listen at a path; changes nothing. Returns the
/// identity of the socket that is to be replaced, if there is one: a socket of this user at which
/// no process listens. Does not wait for a process that accepts no client.
///
/// # Errors
/// See [`ListenError`].
pub fn check(path: &Path) -> Result<Option<Identity>, ListenError> {
    check_name(path)?;
    let system = |cause| ListenError::System { path: path.into(), cause };
    let found = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty() && !dir.is_dir());
            return dir.map_or(Ok(None), |dir| Err(ListenError::NoDirectory(dir.into())));
        }
        found => found.map_err(system)?,
    };
    if !found.file_type().is_socket() {
        return Err(ListenError::Occupied(path.into()));
    }
    let is_ours = found.uid() == rustix::process::geteuid().as_raw();
    match knock(path) {
        // The queue is full, or the socket has another type: a process listens.
        Ok(()) | Err(Errno::AGAIN | Errno::PROTOTYPE) => Err(ListenError::InUse(path.into())),
        Err(Errno::NOENT) => Ok(None),
        Err(Errno::CONNREFUSED) if is_ours => Ok(Some(identity(&found))),
        Err(Errno::CONNREFUSED | Errno::ACCESS) if !is_ours => {
            Err(ListenError::Occupied(path.into()))
        }
        Err(errno) => Err(system(errno.into())),
    }
}

/// Connects without waiting: [`Errno::CONNREFUSED`] means that no process listens.
fn knock(path: &Path) -> Result<(), Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&socket, &SocketAddrUnix::new(path)?)
}

/// Removes a path if it leads to the socket with this identity.
///
/// # Errors
/// The error of the system.
pub(super) fn remove(path: &Path, made: Identity) -> io::Result<()> {
    match fs::symlink_metadata(path).is_ok_and(|found| identity(&found) == made) {
        true => fs::remove_file(path),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};

    use super::*;

    #[test]
    fn names_of_sockets_have_a_length() {
        let path = |len: usize| PathBuf::from("/".to_owned() + &"x".repeat(len - 1));
        check_name(&path(107)).expect("short enough");
        for bad in [path(108), path(5000), PathBuf::new(), PathBuf::from("a\0b")] {
            let message = check_name(&bad).expect_err("bad").to_string();
            assert!(message.len() < 400, "{message}");
        }
    }

    #[test]
    fn only_a_socket_that_nobody_listens_at_is_replaced() {
        let dir = tempfile::tempdir().expect("directory");
        let at = |name: &str| dir.path().join(name);
        drop(UnixListener::bind(at("stale")).expect("free"));
        let stale = check(&at("stale")).expect("a socket");
        assert_eq!(stale, fs::metadata(at("stale")).ok().as_ref().map(identity));
        assert_eq!(check(&at("absent")).expect("free"), None);
        let live = UnixListener::bind(at("live")).expect("free");
        let datagrams = UnixDatagram::bind(at("datagrams")).expect("free");
        for name in ["live", "datagrams"] {
            assert!(matches!(check(&at(name)), Err(ListenError::InUse(_))), "{name}");
        }
        drop((live, datagrams));
        fs::write(at("file"), "precious").expect("writable");
        symlink(at("stale"), at("link")).expect("writable");
        symlink(at("absent"), at("dangling")).expect("writable");
        for name in ["file", "link", "dangling", "."] {
            assert!(matches!(check(&at(name)), Err(ListenError::Occupied(_))), "{name}");
        }
        let error = check(&at("no/such")).expect_err("missing");
        assert!(error.to_string().contains(&*at("no").to_string_lossy()), "{error}");
        assert!(matches!(error, ListenError::NoDirectory(_)));
        assert!(matches!(check(&at("file/s")), Err(ListenError::System { .. })));
    }

    #[test]
    fn a_process_that_accepts_nobody_is_not_waited_for() {
        let dir = tempfile::tempdir().expect("directory");
        let path = dir.path().join("s");
        let address = SocketAddrUnix::new(&path).expect("short");
        let deaf = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
            .expect("descriptors");
        rustix::net::bind(&deaf, &address).expect("free");
        rustix::net::listen(&deaf, 0).expect("bound");
        let waiting = UnixStream::connect(&path).expect("there is room for one");
        assert!(matches!(check(&path), Err(ListenError::InUse(_))));
        drop(waiting);
    }

    #[test]
    fn another_file_at_the_path_is_not_removed() {
        let dir = tempfile::tempdir().expect("directory");
        let path = dir.path().join("s");
        let made = |path: &Path| identity(&fs::symlink_metadata(path).expect("there"));
        let socket = UnixListener::bind(&path).expect("free");
        let former = made(&path);
        fs::rename(&path, dir.path().join("old")).expect("writable");
        fs::write(&path, "precious").expect("writable");
        remove(&path, former).expect("nothing to do");
        assert!(path.exists());
        remove(&path, made(&path)).expect("ours");
        assert!(!path.exists());
        drop(socket);
    }
}
