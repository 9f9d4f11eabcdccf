//! Connects to a server and completes the handshake. It may wait, so it runs in a thread that may.
#![allow(clippy::disallowed_methods, reason = "the simulator has no servers")]

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_device::{NbdServer, NbdUri};
use forebay_nbd_wire::handshake::greet;
use forebay_nbd_wire::keys::warn_of_readable_key;
use forebay_nbd_wire::{RequestHeader, command};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore};

use crate::handshake::{Agreement, ConnectError, choose, start_tls};

/// Time limit of a handshake, unless requests wait for less.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// The file in which Debian and others keep the certificates of well-known authorities.
const AUTHORITIES: &str = "/etc/ssl/certs/ca-certificates.crt";

/// A connection that has completed the handshake.
pub(crate) struct NegotiatedConnection {
    pub(crate) fd: OwnedFd,
    pub(crate) tls: Option<ClientConnection>,
    pub(crate) agreed: Agreement,
}

impl NegotiatedConnection {
    /// Tells the server that no request follows, if that is possible without waiting, and
    /// disconnects.
    pub(crate) fn leave(self) {
        if self.tls.is_none() {
            let header = RequestHeader::new(command::DISC, 0, 0, 0).to_bytes();
            // A failure means that the server has gone, and then it needs no message.
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            let _ = rustix::net::send(&self.fd, &header, flags);
        }
    }
}

/// A socket whose reads and writes end in time.
struct Timed {
    socket: Socket,
    until: Instant,
}

enum Socket {
    Unix(UnixStream),
    Tcp(TcpStream),
}

fn late() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "the server does not answer")
}

impl Timed {
    /// Returns the time left until the deadline, for the next step.
    fn left(&self) -> io::Result<Option<Duration>> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(late()) } else { Ok(Some(left)) }
    }
}

fn in_time<T>(result: io::Result<T>) -> io::Result<T> {
    result.map_err(|error| if error.kind() == io::ErrorKind::WouldBlock { late() } else { error })
}

impl Read for Timed {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let left = self.left()?;
        in_time(match &mut self.socket {
            Socket::Unix(stream) => stream.set_read_timeout(left).and_then(|()| stream.read(into)),
            Socket::Tcp(stream) => stream.set_read_timeout(left).and_then(|()| stream.read(into)),
        })
    }
}

impl Write for Timed {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let left = self.left()?;
        in_time(match &mut self.socket {
            Socket::Unix(stream) => {
                stream.set_write_timeout(left).and_then(|()| stream.write(data))
            }
            Socket::Tcp(stream) => stream.set_write_timeout(left).and_then(|()| stream.write(data)),
        })
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Connects and agrees on the export.
pub(crate) fn connect(uri: &NbdUri) -> Result<NegotiatedConnection, ConnectError> {
    let patience = HANDSHAKE.min(uri.reconnect);
    let until = Instant::now() + patience;
    let socket = match &uri.server {
        NbdServer::Unix(path) => Socket::Unix(connect_unix(path, patience)?),
        NbdServer::Tcp { host, port } => Socket::Tcp(connect_tcp(host, *port, until)?),
    };
    let mut stream = Timed { socket, until };
    greet(&mut stream)?;
    let (tls, agreed) = if uri.tls {
        start_tls(&mut stream)?;
        let mut tls = tls_client(uri)?;
        let agreed = choose(&mut rustls::Stream::new(&mut tls, &mut stream), &uri.export)?;
        (Some(tls), agreed)
    } else {
        (None, choose(&mut stream, &uri.export)?)
    };
    let fd: OwnedFd = match stream.socket {
        Socket::Unix(stream) => stream.into(),
        Socket::Tcp(stream) => stream.into(),
    };
    for which in [Timeout::Recv, Timeout::Send] {
        set_socket_timeout(&fd, which, None).map_err(io::Error::from)?;
    }
    Ok(NegotiatedConnection { fd, tls, agreed })
}

fn connect_unix(path: &Path, patience: Duration) -> io::Result<UnixStream> {
    let fd = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    // A server that accepts no connection must not block this thread for ever.
    set_socket_timeout(&fd, Timeout::Send, Some(patience))?;
    in_time(rustix::net::connect(&fd, &SocketAddrUnix::new(path)?).map_err(io::Error::from))?;
    Ok(fd.into())
}

fn connect_tcp(host: &str, port: u16, until: Instant) -> io::Result<TcpStream> {
    let mut failure = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
    for address in (host, port).to_socket_addrs()? {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(late());
        }
        match TcpStream::connect_timeout(&address, left) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                return Ok(stream);
            }
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

fn tls_error(path: &Path, cause: impl std::fmt::Display) -> ConnectError {
    ConnectError::Refused(format!("{} cannot be used for TLS: {cause}", path.display()))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, ConnectError> {
    let found =
        CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    found.map_err(|error| tls_error(path, error))
}

/// Starts a TLS session. The files are read each time, so that renewed certificates take effect.
fn tls_client(uri: &NbdUri) -> Result<ClientConnection, ConnectError> {
    let authorities = match &uri.certificates {
        Some(folder) => folder.join("ca-cert.pem"),
        None => AUTHORITIES.into(),
    };
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(certificates(&authorities)?);
    if roots.is_empty() {
        return Err(tls_error(&authorities, "it has no certificate in PEM format"));
    }
    let other =
        |error: rustls::Error| ConnectError::Refused(format!("TLS cannot be used: {error}"));
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(other)?
        .with_root_certificates(roots);
    let own = uri
        .certificates
        .as_ref()
        .map(|folder| (folder.join("client-cert.pem"), folder.join("client-key.pem")));
    let config = match own.filter(|(certificate, _)| certificate.exists()) {
        None => builder.with_no_client_auth(),
        Some((certificate, key)) => {
            let chain = certificates(&certificate)?;
            warn_of_readable_key(&key);
            let key = PrivateKeyDer::from_pem_file(&key).map_err(|error| tls_error(&key, error))?;
            builder.with_client_auth_cert(chain, key).map_err(other)?
        }
    };
    let host = match &uri.server {
        NbdServer::Tcp { host, .. } => host.as_str(),
        NbdServer::Unix(_) => "localhost",
    };
    let name = ServerName::try_from(host.to_owned())
        .map_err(|_| ConnectError::Refused(format!("'{host}' is no name for TLS")))?;
    ClientConnection::new(Arc::new(config), name).map_err(other)
}
