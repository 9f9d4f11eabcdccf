//! A listening unix socket whose path is recreated when another program removes it, such as a job
//! that cleans up `/run` or `/tmp`.
//!
//! Never removes or replaces a file of another process: a path that exists is refused, unless it is
//! a socket of this user that refuses connections because its daemon has crashed.

use std::fs::{self, Metadata};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::fs::{Mode, OFlags, fchmod, open};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, Shutdown, SocketAddrUnix, SocketFlags, SocketType, listen, shutdown, socket_with,
};

mod path;

pub use path::{Identity, ListenError, check, check_name};
use path::{identity, remove};

/// Most clients that wait to be accepted.
const BACKLOG: i32 = 4096;

/// See the module. The path is removed on drop.
#[derive(Debug)]
pub struct UnixSocket {
    path: PathBuf,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    fd: Arc<OwnedFd>,
    /// Identity of the path; `None` if the path was lost before its identity was known.
    made: Option<Identity>,
    care: Care,
    /// The last logged failure to recreate the path.
    told: Option<String>,
    look: Look,
}

/// Treatment of the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Care {
    /// The path is recreated when it is missing, and removed at the end.
    Full,
    /// The path is removed at the end, but not recreated, because another program is about to take
    /// it over. Once that program is executed, this one ends without removing the path.
    Leaving,
    /// The socket is closed, and the path removed.
    None,
}

/// The permissions that were seen last. An operator may have changed them since the socket was
/// made.
#[derive(Clone, Copy, Debug, Default)]
struct Look {
    socket: Option<Permissions>,
    parent: Option<Permissions>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Permissions {
    mode: u32,
    owner: u32,
    group: u32,
}

impl Permissions {
    fn of(found: &Metadata) -> Self {
        Permissions { mode: found.mode() & 0o7777, owner: found.uid(), group: found.gid() }
    }

    /// Sets owner and mode of a new file. The mode is set last, so that it never applies to another
    /// owner. The path is resolved once and follows no link, because the owner of its directory may
    /// have replaced the file. `made`: the identity that the file must have.
    fn give(self, path: &Path, made: Option<Identity>) -> io::Result<()> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = open(path, flags, Mode::empty())?;
        let now = fs::metadata(itself(&file))?;
        if made.is_some_and(|made| made != (now.dev(), now.ino())) {
            return Err(io::ErrorKind::NotFound.into());
        }
        if (now.uid(), now.gid()) != (self.owner, self.group) {
            chown(itself(&file), Some(self.owner), Some(self.group))?;
        }
        fs::set_permissions(itself(&file), fs::Permissions::from_mode(self.mode))
    }
}

/// Returns a path that leads to an opened file, even after the file was moved.
fn itself(file: &OwnedFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

impl UnixSocket {
    /// Starts to listen.
    ///
    /// # Errors
    /// See [`ListenError`]; nothing has changed then.
    pub fn bind(path: &Path) -> Result<Self, ListenError> {
        UnixSocket::bind_with(path, None)
    }

    /// Binds like [`UnixSocket::bind`], with a mode like `0o600` that the path has from the
    /// beginning. The umask of the process applies.
    ///
    /// # Errors
    /// See [`UnixSocket::bind`].
    pub fn bind_with(path: &Path, mode: Option<u32>) -> Result<Self, ListenError> {
        let (fd, made) = bind(path, mode)?;
        Ok(UnixSocket::of(path, fd, made))
    }

    /// Takes over a socket that the previous program has made.
    pub fn inherit(path: &Path, fd: Arc<OwnedFd>, made: Option<Identity>) -> Self {
        UnixSocket::of(path, fd, made)
    }

    fn of(path: &Path, fd: Arc<OwnedFd>, made: Option<Identity>) -> Self {
        let look = Look::default();
        let state = State { fd, made, care: Care::Full, told: None, look };
        let socket = UnixSocket { path: path.to_owned(), state: Mutex::new(state) };
        socket.is_there(&mut socket.state.lock());
        socket
    }

    /// Returns the socket that listens at present.
    pub fn fd(&self) -> Arc<OwnedFd> {
        self.state.lock().fd.clone()
    }

    /// Returns the path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the identity of the path.
    pub fn identity(&self) -> Option<Identity> {
        self.state.lock().made
    }

    /// Returns whether the path leads to the socket, and records its permissions.
    fn is_there(&self, state: &mut State) -> bool {
        let found = fs::symlink_metadata(&self.path).ok();
        let Some(found) = found.filter(|found| Some(identity(found)) == state.made) else {
            return false;
        };
        let parent = self.path.parent().and_then(|dir| fs::metadata(dir).ok());
        state.look = Look {
            socket: Some(Permissions::of(&found)),
            parent: parent.as_ref().map(Permissions::of).or(state.look.parent),
        };
        true
    }

    /// Listens at the path again if the path is missing or leads to the socket of a process that is
    /// gone. Returns the new socket, which [`UnixSocket::fd`] returns from now on; accepting from
    /// the former one fails. `before` is called first, when the directory exists. A failure is
    /// logged once.
    pub fn restore(
        &self,
        before: impl FnOnce() -> Result<(), ListenError>,
    ) -> Option<Arc<OwnedFd>> {
        let mut state = self.state.lock();
        if state.care != Care::Full || self.is_there(&mut state) {
            return None;
        }
        match self.bind_again(state.look, before) {
            Ok((fd, made)) => {
                tracing::warn!(path = %self.path.display(), "the path of the socket was removed, and is made again");
                let former = std::mem::replace(&mut state.fd, fd.clone());
                (state.made, state.told) = (Some(made), None);
                self.is_there(&mut state);
                // Wakes a lane that waits on the former socket, so that it accepts from the new
                // one.
                let _ = shutdown(&*former, Shutdown::Both);
                Some(fd)
            }
            Err(error) => {
                let error = error.to_string();
                if state.told.as_ref() != Some(&error) {
                    tracing::error!(path = %self.path.display(), "no client reaches the socket: its path was removed, and {error}");
                    state.told = Some(error);
                }
                None
            }
        }
    }

    fn bind_again(
        &self,
        look: Look,
        before: impl FnOnce() -> Result<(), ListenError>,
    ) -> Result<(Arc<OwnedFd>, Identity), ListenError> {
        let system = |cause| ListenError::System { path: self.path.clone(), cause };
        if let (Some(dir), Some(permissions)) = (self.path.parent(), look.parent)
            && !dir.exists()
        {
            fs::DirBuilder::new().mode(0o700).create(dir).map_err(system)?;
            permissions.give(dir, None).map_err(system)?;
        }
        before()?;
        let (fd, made) = bind(&self.path, None)?;
        let made = made.ok_or_else(|| system(io::ErrorKind::NotFound.into()))?;
        if let Some(permissions) = look.socket
            && let Err(error) = permissions.give(&self.path, Some(made))
        {
            let _ = remove(&self.path, made);
            return Err(system(error));
        }
        Ok((fd, made))
    }

    /// Stops accepting, and removes the path.
    pub fn close(&self) {
        let mut state = self.state.lock();
        let _ = shutdown(&*state.fd, Shutdown::Both);
        self.give_up(&mut state);
    }

    /// Stops recreating the path, because another program is about to be executed that takes it
    /// over. Until that has succeeded, this process still removes the path when it ends.
    pub fn leave(&self) {
        let mut state = self.state.lock();
        if state.care == Care::Full {
            state.care = Care::Leaving;
        }
    }

    fn give_up(&self, state: &mut State) {
        if std::mem::replace(&mut state.care, Care::None) != Care::None
            && let Some(made) = state.made
        {
            let _ = remove(&self.path, made);
        }
    }
}

impl Drop for UnixSocket {
    fn drop(&mut self) {
        let mut state = self.state.lock();
        self.give_up(&mut state);
    }
}

fn bind(path: &Path, mode: Option<u32>) -> Result<(Arc<OwnedFd>, Option<Identity>), ListenError> {
    let system = |cause| ListenError::System { path: path.into(), cause };
    if let Some(stale) = check(path)? {
        tracing::info!(path = %path.display(), "replacing the socket of a daemon that is gone");
        remove(path, stale).map_err(system)?;
    }
    let fd = listen_at(path, mode).map_err(|errno| system(errno.into()))?;
    let made = fs::symlink_metadata(path).ok().as_ref().map(identity);
    Ok((Arc::new(fd), made))
}

fn listen_at(path: &Path, mode: Option<u32>) -> Result<OwnedFd, Errno> {
    let fd = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    if let Some(mode) = mode {
        // The path inherits its mode from the socket. Changing it later by path could affect
        // another file.
        fchmod(&fd, Mode::from_raw_mode(mode))?;
    }
    rustix::net::bind(&fd, &SocketAddrUnix::new(path)?)?;
    listen(&fd, BACKLOG)?;
    Ok(fd)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::{UnixListener, UnixStream};

    use super::*;

    fn restore(socket: &UnixSocket) -> bool {
        socket.restore(|| Ok(())).is_some()
    }

    #[test]
    fn a_path_that_was_removed_is_made_again_with_its_permissions() {
        let dir = tempfile::tempdir().expect("directory");
        let inner = dir.path().join("run");
        fs::create_dir(&inner).expect("writable");
        let path = inner.join("s");
        let socket = UnixSocket::bind(&path).expect("free");
        assert!(!restore(&socket), "it is there");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o660)).expect("ours");
        fs::set_permissions(&inner, fs::Permissions::from_mode(0o711)).expect("ours");
        assert!(!restore(&socket));
        let former = socket.fd();
        fs::remove_dir_all(&inner).expect("ours");
        assert!(restore(&socket) && !restore(&socket));
        assert!(!Arc::ptr_eq(&former, &socket.fd()));
        UnixStream::connect(&path).expect("it listens");
        let mode = |path: &Path| fs::metadata(path).expect("there").mode() & 0o777;
        assert_eq!((mode(&path), mode(&inner)), (0o660, 0o711));
        // No client waits at the former socket for ever.
        UnixListener::from(former.try_clone().expect("descriptors")).accept().expect_err("closed");
        drop(socket);
        assert!(!path.exists());
    }

    #[test]
    fn permissions_are_those_of_the_socket_alone() {
        let dir = tempfile::tempdir().expect("directory");
        let at = |name: &str| dir.path().join(name);
        let mode = |name: &str| fs::metadata(at(name)).expect("there").mode() & 0o777;
        let socket = UnixSocket::bind_with(&at("s"), Some(0o600)).expect("free");
        assert_eq!(mode("s"), 0o600);
        fs::write(at("secret"), "").expect("writable");
        fs::set_permissions(at("secret"), fs::Permissions::from_mode(0o400)).expect("ours");
        std::os::unix::fs::symlink(at("secret"), at("link")).expect("writable");
        let open =
            Permissions { mode: 0o666, ..Permissions::of(&fs::metadata(at("s")).expect("there")) };
        // The owner of the directory was faster.
        for name in ["link", "secret"] {
            open.give(&at(name), socket.identity()).expect_err("not the socket");
        }
        assert_eq!((mode("secret"), mode("s")), (0o400, 0o600));
        open.give(&at("s"), socket.identity()).expect("ours");
        assert_eq!(mode("s"), 0o666);
    }

    #[test]
    fn a_taken_path_is_reclaimed_only_once_it_is_free() {
        let dir = tempfile::tempdir().expect("directory");
        let path = dir.path().join("s");
        let socket = UnixSocket::bind(&path).expect("free");
        fs::remove_file(&path).expect("ours");
        let other = UnixListener::bind(&path).expect("free");
        assert!(!restore(&socket));
        UnixStream::connect(&path).expect("it listens");
        other.accept().expect("the other one");
        fs::remove_file(&path).expect("ours");
        fs::write(&path, "precious").expect("writable");
        assert!(!restore(&socket));
        assert_eq!(fs::read(&path).expect("there"), b"precious");
        fs::remove_file(&path).expect("ours");
        drop(UnixListener::bind(&path).expect("free"));
        assert!(restore(&socket), "its process is gone");
    }

    #[test]
    fn a_path_is_this_programs_until_the_next_one_is_executed() {
        let dir = tempfile::tempdir().expect("directory");
        let path = dir.path().join("s");
        let first = UnixSocket::bind(&path).expect("free");
        first.leave();
        let fd = first.fd().try_clone().expect("descriptors");
        let next = UnixSocket::inherit(&path, Arc::new(fd), first.identity());
        // As `execve` does.
        std::mem::forget(first);
        assert!(path.exists() && !restore(&next));
        next.close();
        assert!(!path.exists() && !restore(&next), "a closed one stays closed");
        next.leave();
        let stopped = UnixSocket::bind(&path).expect("free");
        stopped.leave();
        drop((stopped, next));
        assert!(!path.exists(), "no program was executed");
    }
}
