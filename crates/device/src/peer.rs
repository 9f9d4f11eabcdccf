//! The process at the other end of a unix socket.

use std::mem::size_of;
use std::num::NonZeroU32;
use std::os::fd::{AsFd, AsRawFd};

/// Returns the process that has connected a unix socket, or that listens at it. `None` if this
/// namespace does not show the process, or the socket has none. The process may have ended since,
/// and passed the socket to another one.
pub fn peer_process(socket: impl AsFd) -> Option<NonZeroU32> {
    NonZeroU32::new(u32::try_from(credentials(socket)?.pid).ok()?)
}

/// Returns the user of that process; `None` if it is not a unix socket.
pub fn peer_user(socket: impl AsFd) -> Option<u32> {
    // The kernel's value for a socket without a peer is excluded.
    credentials(socket).map(|peer| peer.uid).filter(|user| *user != u32::MAX)
}

fn credentials(socket: impl AsFd) -> Option<libc::ucred> {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes to `peer`, which has as many, and all of whose
    // bits may have any value. rustix has this call for processes that can be seen: it takes 0 for
    // a number that cannot be 0.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &raw mut len,
        )
    };
    (result == 0).then_some(peer)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn only_a_unix_socket_has_a_process() {
        let (one, other) = UnixStream::pair().expect("sockets");
        assert_eq!(peer_process(&one), NonZeroU32::new(std::process::id()));
        assert_eq!(peer_user(&one), Some(rustix::process::getuid().as_raw()));
        drop(other);
        assert_eq!(peer_process(&one), NonZeroU32::new(std::process::id()), "of one that is gone");
        let port = TcpListener::bind("127.0.0.1:0").expect("a port");
        assert_eq!((peer_process(&port), peer_user(&port)), (None, None));
        assert_eq!(peer_process(std::fs::File::open("/dev/null").expect("there is one")), None);
    }
}
