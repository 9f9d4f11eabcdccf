//! The process at the other end of a unix socket.

use std::mem::size_of;
use std::num::NonZeroU32;
use std::os::fd::{AsFd, AsRawFd};

/// Returns the process that has connected a unix socket, or has begun to listen at it; `None`: it cannot be seen from the
/// namespace of this process, or there is none. It may have ended since, and have left the socket to another one.
pub fn peer_process(socket: impl AsFd) -> Option<NonZeroU32> {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes to `peer`, which has as many, and all of whose bits may have any
    // value. rustix has this call for processes that can be seen: it takes 0 for a number that cannot be 0.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &raw mut len,
        )
    };
    if result != 0 {
        return None;
    }
    NonZeroU32::new(u32::try_from(peer.pid).ok()?)
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
        drop(other);
        assert_eq!(peer_process(&one), NonZeroU32::new(std::process::id()), "of one that is gone");
        assert_eq!(peer_process(TcpListener::bind("127.0.0.1:0").expect("a port")), None);
        assert_eq!(peer_process(std::fs::File::open("/dev/null").expect("there is one")), None);
    }
}
