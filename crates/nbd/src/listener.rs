//! Where clients connect: unix sockets and TCP ports.
//!
//! Nothing that is not ours is ever removed. A path that exists is refused, unless it is a socket
//! of this user on which nobody listens: what a daemon that crashed leaves behind.

use std::fmt::{self, Write};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use rustix::net::{Shutdown, shutdown, sockopt};

/// Bytes of either buffer of a TCP socket, as far as the system allows it.
const TCP_BUFFER: usize = 256 << 10;

/// Longest path of a unix socket, in bytes.
pub const UNIX_PATH_MAX: usize = 107;
/// The port that IANA gave to the protocol.
pub const DEFAULT_PORT: u16 = 10809;

/// Where to listen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListenAddress {
    /// A unix socket.
    Unix(PathBuf),
    /// A TCP port; port 0 lets the system choose.
    Tcp {
        /// Name or number of the interface; numbers of IPv6 without brackets.
        host: String,
        /// The port.
        port: u16,
    },
}

/// What is wrong with an address or a place to listen.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Not an address.
    #[error(
        "'{0}' is not an address to listen on; write unix:/PATH, tcp:HOST:PORT or tcp:[IPV6]:PORT"
    )]
    Address(String),
    /// The path is too long for a socket.
    #[error("the socket path {} has {} bytes; at most {UNIX_PATH_MAX} are possible", .0.display(), .0.as_os_str().len())]
    PathTooLong(PathBuf),
    /// Somebody listens there.
    #[error("{0} is in use by a live process; choose another address or stop that process")]
    InUse(ListenAddress),
    /// There is something else at that path.
    #[error("{} exists and is not a socket that an earlier run of this user left behind; remove it yourself or choose another path", .0.display())]
    Occupied(PathBuf),
    /// What the system says.
    #[error("cannot listen on {address}: {cause}")]
    System {
        /// Where.
        address: ListenAddress,
        /// Why not.
        cause: io::Error,
    },
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ListenAddress::Unix(path) => write!(f, "unix:{}", path.display()),
            ListenAddress::Tcp { host, port } if host.contains(':') => {
                write!(f, "tcp:[{host}]:{port}")
            }
            ListenAddress::Tcp { host, port } => write!(f, "tcp:{host}:{port}"),
        }
    }
}

impl FromStr for ListenAddress {
    type Err = ListenError;

    /// Reads `unix:PATH`, an absolute path, `tcp:HOST`, `tcp:HOST:PORT` or `tcp:[IPV6]:PORT`.
    fn from_str(text: &str) -> Result<Self, ListenError> {
        let bad = || ListenError::Address(text.chars().take(200).collect());
        let unix = text.strip_prefix("unix:").or_else(|| text.starts_with('/').then_some(text));
        if let Some(path) = unix {
            if path.is_empty() || path.contains('\0') {
                return Err(bad());
            }
            return Ok(ListenAddress::Unix(path.into()));
        }
        let rest = text.strip_prefix("tcp:").ok_or_else(bad)?;
        let (host, port) = match rest.strip_prefix('[') {
            Some(rest) => {
                let (host, port) = rest.split_once(']').ok_or_else(bad)?;
                (
                    host,
                    if port.is_empty() {
                        None
                    } else {
                        Some(port.strip_prefix(':').ok_or_else(bad)?)
                    },
                )
            }
            None => match rest.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (rest, None),
            },
        };
        // `parse` alone would read a sign.
        let digits = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
        let port = match port {
            Some(port) if digits(port) => port.parse().map_err(|_| bad())?,
            Some(_) => return Err(bad()),
            None => DEFAULT_PORT,
        };
        if host.is_empty() || host.contains(['[', ']']) {
            return Err(bad());
        }
        Ok(ListenAddress::Tcp { host: host.to_owned(), port })
    }
}

/// A place where clients connect, for all lanes. Closed, and a socket's path removed, when the
/// last owner drops it.
#[derive(Debug)]
pub struct Listener {
    fd: Arc<OwnedFd>,
    address: ListenAddress,
    /// Device and inode of the socket that we made.
    made: Option<(u64, u64)>,
}

impl Listener {
    /// Starts to listen.
    ///
    /// # Errors
    /// See [`ListenError`]; nothing has changed then.
    pub fn bind(address: &ListenAddress) -> Result<Arc<Self>, ListenError> {
        let listener = match address {
            ListenAddress::Unix(path) => bind_unix(path)?,
            ListenAddress::Tcp { host, port } => bind_tcp(host, *port, address)?,
        };
        Ok(Arc::new(listener))
    }

    /// Where it listens; with the real port if port 0 was asked for.
    pub fn address(&self) -> &ListenAddress {
        &self.address
    }

    pub(crate) fn fd(&self) -> &Arc<OwnedFd> {
        &self.fd
    }

    /// Prepares an accepted socket. Gives the bytes that the kernel may keep for it.
    pub(crate) fn adopt(&self, socket: impl AsFd) -> usize {
        if let ListenAddress::Tcp { .. } = self.address {
            // Without these the connection works too, slower or longer.
            let _ = sockopt::set_tcp_nodelay(&socket, true);
            let _ = sockopt::set_socket_keepalive(&socket, true);
            // What is set does not grow: it could get to several MiB for each connection.
            let _ = sockopt::set_socket_send_buffer_size(&socket, TCP_BUFFER);
            let _ = sockopt::set_socket_recv_buffer_size(&socket, TCP_BUFFER);
            return sockopt::socket_send_buffer_size(&socket).unwrap_or(TCP_BUFFER)
                + sockopt::socket_recv_buffer_size(&socket).unwrap_or(TCP_BUFFER);
        }
        sockopt::socket_send_buffer_size(&socket).unwrap_or(TCP_BUFFER)
    }

    /// Stops accepting, on every lane.
    pub fn close(&self) {
        let _ = shutdown(&*self.fd, Shutdown::Both);
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let ListenAddress::Unix(path) = &self.address else { return };
        if identity(path).is_ok_and(|found| Some(found) == self.made) {
            let _ = std::fs::remove_file(path);
        }
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    std::fs::symlink_metadata(path).map(|found| (found.dev(), found.ino()))
}

fn bind_unix(path: &Path) -> Result<Listener, ListenError> {
    if path.as_os_str().len() > UNIX_PATH_MAX {
        return Err(ListenError::PathTooLong(path.into()));
    }
    let address = ListenAddress::Unix(path.into());
    let system = |cause| ListenError::System { address: address.clone(), cause };
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(system(error)),
        Ok(found) => {
            let ours = found.uid() == rustix::process::geteuid().as_raw();
            if !found.file_type().is_socket() || !ours {
                return Err(ListenError::Occupied(path.into()));
            }
            match UnixStream::connect(path) {
                Ok(_) => return Err(ListenError::InUse(address)),
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                    std::fs::remove_file(path).map_err(system)?;
                }
                Err(error) => return Err(system(error)),
            }
        }
    }
    let listener = UnixListener::bind(path).map_err(system)?;
    let made = identity(path).ok();
    Ok(Listener { fd: Arc::new(listener.into()), address, made })
}

fn bind_tcp(host: &str, port: u16, address: &ListenAddress) -> Result<Listener, ListenError> {
    let system = |cause: io::Error| match cause.kind() {
        io::ErrorKind::AddrInUse => ListenError::InUse(address.clone()),
        _ => ListenError::System { address: address.clone(), cause },
    };
    let listener = TcpListener::bind((host, port)).map_err(system)?;
    let port = listener.local_addr().as_ref().map(SocketAddr::port).map_err(|error| {
        ListenError::System { address: address.clone(), cause: io::Error::from(error.kind()) }
    })?;
    let address = ListenAddress::Tcp { host: host.to_owned(), port };
    Ok(Listener { fd: Arc::new(listener.into()), address, made: None })
}

/// The URI under which clients reach `export` at `address`.
pub fn uri(address: &ListenAddress, export: &str) -> String {
    let mut uri = String::new();
    match address {
        ListenAddress::Unix(path) => {
            uri.push_str("nbd+unix:///");
            percent_encode(&mut uri, export.as_bytes(), b"");
            uri.push_str("?socket=");
            percent_encode(&mut uri, path.as_os_str().as_bytes(), b"/");
        }
        ListenAddress::Tcp { host, port } => {
            // Any interface is no address to connect to.
            let host = match host.as_str() {
                "0.0.0.0" | "::" => "localhost",
                host => host,
            };
            uri.push_str("nbd://");
            if host.contains(':') {
                uri.push('[');
                percent_encode(&mut uri, host.as_bytes(), b":");
                uri.push(']');
            } else {
                percent_encode(&mut uri, host.as_bytes(), b"");
            }
            if *port != DEFAULT_PORT {
                let _ = write!(uri, ":{port}");
            }
            uri.push('/');
            percent_encode(&mut uri, export.as_bytes(), b"");
        }
    }
    uri
}

fn percent_encode(uri: &mut String, bytes: &[u8], also_plain: &[u8]) {
    for &byte in bytes {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) || also_plain.contains(&byte) {
            uri.push(char::from(byte));
        } else {
            let _ = write!(uri, "%{byte:02X}");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// A directory of one test.
    fn directory(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("forebay-nbd-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).expect("directory");
        path
    }

    #[test]
    fn addresses_are_read_strictly_and_written_back() {
        for text in ["unix:/run/a b", "tcp:localhost:10809", "tcp:[::1]:1", "tcp:0.0.0.0:0"] {
            assert_eq!(text.parse::<ListenAddress>().expect(text).to_string(), text);
        }
        assert_eq!("/x".parse::<ListenAddress>().expect("path"), ListenAddress::Unix("/x".into()));
        assert_eq!(
            "tcp:[::1]".parse::<ListenAddress>().expect("port").to_string(),
            "tcp:[::1]:10809"
        );
        for bad in [
            "",
            "unix:",
            "localhost:1",
            "tcp:",
            "tcp:a:",
            "tcp::1",
            "tcp:a:65536",
            "tcp:a:+1",
            "tcp:[::1",
            "tcp:[::1]1",
            "tcp:[[a]:1",
            "tcp:a]:1",
            "tcp:::1:5",
        ] {
            assert!(bad.parse::<ListenAddress>().is_err(), "{bad:?} was read");
        }
    }

    #[test]
    fn uris_are_encoded() {
        let unix = ListenAddress::Unix("/run/fore bay/ü.sock".into());
        assert_eq!(uri(&unix, "a/b?"), "nbd+unix:///a%2Fb%3F?socket=/run/fore%20bay/%C3%BC.sock");
        let tcp = |host: &str, port| ListenAddress::Tcp { host: host.into(), port };
        assert_eq!(uri(&tcp("host", 10809), "v"), "nbd://host/v");
        assert_eq!(uri(&tcp("::1", 7), "v"), "nbd://[::1]:7/v");
        assert_eq!(uri(&tcp("::", 7), ""), "nbd://localhost:7/");
    }

    #[test]
    fn only_a_dead_socket_is_replaced() {
        let directory = directory("bind");
        let at = |name: &str| ListenAddress::Unix(directory.join(name));

        let live = Listener::bind(&at("live")).expect("bind");
        assert!(matches!(Listener::bind(&at("live")), Err(ListenError::InUse(_))));
        drop(live);
        assert!(!directory.join("live").exists());

        drop(UnixListener::bind(directory.join("dead")).expect("bind"));
        assert!(directory.join("dead").exists());
        drop(Listener::bind(&at("dead")).expect("a stale socket is replaced"));

        std::fs::write(directory.join("file"), "precious").expect("write");
        symlink(directory.join("file"), directory.join("link")).expect("link");
        symlink(directory.join("nothing"), directory.join("dangling")).expect("link");
        std::fs::create_dir(directory.join("directory")).expect("directory");
        for name in ["file", "link", "dangling", "directory"] {
            assert!(matches!(Listener::bind(&at(name)), Err(ListenError::Occupied(_))), "{name}");
            assert!(directory.join(name).symlink_metadata().is_ok());
        }
        assert!(matches!(Listener::bind(&at("no/such")), Err(ListenError::System { .. })));
        assert!(matches!(Listener::bind(&at(&"x".repeat(108))), Err(ListenError::PathTooLong(_))));
        let _ = std::fs::remove_dir_all(&directory);
    }

    #[test]
    fn a_socket_that_took_our_place_stays() {
        let directory = directory("place");
        let path = directory.join("socket");
        let first = Listener::bind(&ListenAddress::Unix(path.clone())).expect("bind");
        std::fs::rename(&path, directory.join("moved")).expect("rename");
        std::fs::write(&path, "other").expect("write");
        drop(first);
        assert!(path.exists());
        let _ = std::fs::remove_dir_all(&directory);
    }

    #[test]
    fn a_port_in_use_is_named() {
        let any = ListenAddress::Tcp { host: "127.0.0.1".into(), port: 0 };
        let first = Listener::bind(&any).expect("bind");
        let error = Listener::bind(first.address()).expect_err("in use");
        assert!(matches!(&error, ListenError::InUse(address) if address == first.address()));
    }
}
