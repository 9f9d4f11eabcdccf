//! Listening sockets: unix sockets, see [`UnixSocket`], and TCP ports.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use forebay_engine::HandedOver;
use forebay_host::unix_socket::UnixSocket;
use rustix::net::{AddressFamily, Shutdown, getpeername, shutdown, sockopt};

use crate::address::{ListenAddress, ListenError};
use crate::allow::Network;
use crate::hand_over::LISTENER;
use crate::handshake::Security;
use crate::handshakes::Source;
use crate::tls::Tls;

/// Bytes of each buffer of a TCP socket, as far as the system allows.
const TCP_BUFFER: usize = 256 << 10;
/// The same until a client has chosen an export.
const HANDSHAKE_BUFFER: usize = 16 << 10;

/// Requirements for TCP clients besides a route to the port. Unix sockets have permissions instead.
#[derive(Clone, Debug, Default)]
pub struct Protection {
    /// The networks from which clients may connect; empty: all.
    pub allow: Vec<Network>,
    /// TLS, mandatory if present.
    pub tls: Option<Tls>,
}

/// Why a client is not admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NotAdmitted {
    #[error("{0} is in no network of --nbd-allow")]
    Address(IpAddr),
    #[error("its address is unknown")]
    Unknown,
}

/// A listening socket, for all lanes. It is closed, and the path of a unix socket removed, when the
/// last owner drops it.
#[derive(Debug)]
pub struct Listener {
    socket: Listening,
    address: ListenAddress,
    protection: Arc<Protection>,
}

#[derive(Debug)]
enum Listening {
    Unix(UnixSocket),
    Tcp(Arc<OwnedFd>),
}

impl Listener {
    /// Starts to listen, without [`Protection`].
    ///
    /// # Errors
    /// See [`ListenError`]; nothing has changed then.
    pub fn bind(address: &ListenAddress) -> Result<Arc<Self>, ListenError> {
        Self::bind_protected(address, &Arc::default())
    }

    /// Starts to listen. `protection` has no effect on a unix socket.
    ///
    /// # Errors
    /// See [`ListenError`]; nothing has changed then.
    pub fn bind_protected(
        address: &ListenAddress,
        protection: &Arc<Protection>,
    ) -> Result<Arc<Self>, ListenError> {
        let (socket, address) = match address {
            ListenAddress::Unix(path) => {
                (Listening::Unix(UnixSocket::bind(path)?), address.clone())
            }
            ListenAddress::Tcp { host, port } => bind_tcp(host, *port, address)?,
        };
        Ok(Arc::new(Listener { socket, address, protection: protection.clone() }))
    }

    /// Continues with a listening socket of the previous program, if one of `items` is for this
    /// address.
    pub(crate) fn inherit(
        address: &ListenAddress,
        protection: &Arc<Protection>,
        items: &mut Vec<HandedOver>,
    ) -> Option<Arc<Self>> {
        let own = address.to_string();
        let is_own = |item: &HandedOver| {
            item.labelled(LISTENER).is_some_and(|words| words.first() == Some(&own))
        };
        let item = items.swap_remove(items.iter().position(is_own)?);
        let number = |word: Option<&String>| word.and_then(|word| word.parse().ok());
        let words = item.labelled(LISTENER)?;
        let made = number(words.get(1)).zip(number(words.get(2)));
        let fd = Arc::new(item.descriptor?);
        let socket = match address {
            ListenAddress::Unix(path) => Listening::Unix(UnixSocket::inherit(path, fd, made)),
            ListenAddress::Tcp { .. } => Listening::Tcp(fd),
        };
        let (address, protection) = (address.clone(), protection.clone());
        Some(Arc::new(Listener { socket, address, protection }))
    }

    /// Returns the socket for the next program. Until that program is executed, this one still
    /// removes the path when it drops the listener.
    ///
    /// # Errors
    /// The limit of descriptors is reached.
    pub(crate) fn leave(&self, asked: &ListenAddress) -> io::Result<HandedOver> {
        let mut label = vec![LISTENER.to_owned(), asked.to_string()];
        if let Listening::Unix(socket) = &self.socket {
            socket.leave();
            if let Some((device, inode)) = socket.identity() {
                label.extend([device.to_string(), inode.to_string()]);
            }
        }
        let descriptor = Some(self.fd().as_fd().try_clone_to_owned()?);
        Ok(HandedOver { label, descriptor, ..HandedOver::default() })
    }

    /// Returns the address; with the actual port if port 0 was requested.
    pub fn address(&self) -> &ListenAddress {
        &self.address
    }

    /// Returns the socket that clients reach now.
    pub(crate) fn fd(&self) -> Arc<OwnedFd> {
        match &self.socket {
            Listening::Unix(socket) => socket.fd(),
            Listening::Tcp(fd) => fd.clone(),
        }
    }

    /// Creates the path of a unix socket again if another program has removed it.
    pub(crate) fn restore_path(&self) {
        if let Listening::Unix(socket) = &self.socket {
            socket.restore(|| Ok(()));
        }
    }

    /// Returns an error if the client of an accepted socket connects from an address that is not
    /// allowed.
    pub(crate) fn admit(&self, socket: impl AsFd) -> Result<(), NotAdmitted> {
        let allow = &self.protection.allow;
        if allow.is_empty() || matches!(self.address, ListenAddress::Unix(_)) {
            return Ok(());
        }
        let peer = getpeername(socket).ok().flatten();
        let peer = peer.and_then(|peer| SocketAddr::try_from(peer).ok());
        let peer = peer.ok_or(NotAdmitted::Unknown)?.ip().to_canonical();
        let allowed = allow.iter().any(|network| network.contains(peer));
        if allowed { Ok(()) } else { Err(NotAdmitted::Address(peer)) }
    }

    /// Returns the security with which its clients begin.
    pub(crate) fn security(&self) -> Security {
        match self.address {
            ListenAddress::Unix(_) => Security::Local,
            ListenAddress::Tcp { .. } if self.protection.tls.is_some() => Security::Required,
            ListenAddress::Tcp { .. } => Security::Plain,
        }
    }

    /// Returns the TLS that clients have to use.
    pub(crate) fn tls(&self) -> Option<&Tls> {
        match self.address {
            ListenAddress::Unix(_) => None,
            ListenAddress::Tcp { .. } => self.protection.tls.as_ref(),
        }
    }

    /// Prepares an accepted socket for the handshake. Returns the bytes that the kernel may buffer
    /// for it.
    pub(crate) fn adopt(&self, socket: impl AsFd) -> usize {
        if let ListenAddress::Tcp { .. } = self.address {
            // Without these options the connection still works, but with higher latency, and a dead
            // peer is noticed late.
            let _ = sockopt::set_tcp_nodelay(&socket, true);
            let _ = sockopt::set_socket_keepalive(&socket, true);
            set_buffers(&socket, HANDSHAKE_BUFFER);
        }
        socket_buffers(&socket)
    }

    /// Returns where an accepted socket's client comes from.
    pub(crate) fn source(&self, socket: impl AsFd) -> Source {
        match self.address {
            ListenAddress::Unix(_) => Source::local(socket),
            ListenAddress::Tcp { .. } => Source::remote(socket),
        }
    }

    /// Stops accepting, on every lane.
    pub fn close(&self) {
        match &self.socket {
            Listening::Unix(socket) => socket.close(),
            Listening::Tcp(fd) => drop(shutdown(&**fd, Shutdown::Both)),
        }
    }
}

/// Returns whether a connected socket is a TCP socket.
pub(crate) fn is_remote(socket: impl AsFd) -> bool {
    sockopt::socket_domain(&socket) != Ok(AddressFamily::UNIX)
}

/// Prepares the socket of a client that has chosen an export. Returns the bytes that the kernel may
/// buffer for it.
pub(crate) fn widen(socket: impl AsFd) -> usize {
    if is_remote(&socket) {
        set_buffers(&socket, TCP_BUFFER);
    }
    socket_buffers(&socket)
}

/// Sets the sizes of a socket's buffers. A buffer of a fixed size does not grow; otherwise it could
/// reach several MiB per connection.
fn set_buffers(socket: impl AsFd, bytes: usize) {
    let _ = sockopt::set_socket_send_buffer_size(&socket, bytes);
    let _ = sockopt::set_socket_recv_buffer_size(&socket, bytes);
}

/// Returns the bytes that the kernel may buffer for a connected socket. A unix socket has no
/// receive buffer.
pub(crate) fn socket_buffers(socket: impl AsFd) -> usize {
    let send = sockopt::socket_send_buffer_size(&socket).unwrap_or(TCP_BUFFER);
    match sockopt::socket_domain(&socket) {
        Ok(AddressFamily::UNIX) => send,
        _ => send + sockopt::socket_recv_buffer_size(&socket).unwrap_or(TCP_BUFFER),
    }
}

fn bind_tcp(
    host: &str,
    port: u16,
    address: &ListenAddress,
) -> Result<(Listening, ListenAddress), ListenError> {
    let system = |cause: io::Error| match cause.kind() {
        io::ErrorKind::AddrInUse => ListenError::InUse(address.clone()),
        _ => ListenError::System { address: address.clone(), cause },
    };
    let listener = TcpListener::bind((host, port)).map_err(system)?;
    let port = listener.local_addr().as_ref().map(SocketAddr::port).map_err(|error| {
        ListenError::System { address: address.clone(), cause: io::Error::from(error.kind()) }
    })?;
    let address = ListenAddress::Tcp { host: host.to_owned(), port };
    Ok((Listening::Tcp(Arc::new(listener.into())), address))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_in_use_is_named() {
        let any = ListenAddress::Tcp { host: "127.0.0.1".into(), port: 0 };
        let first = Listener::bind(&any).expect("bind");
        let error = Listener::bind(first.address()).expect_err("in use");
        assert!(matches!(&error, ListenError::InUse(address) if address == first.address()));
    }
}
