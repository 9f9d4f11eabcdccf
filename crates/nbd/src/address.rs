//! Listen addresses of NBD, and the URIs of exports.

use std::fmt::{self, Write};
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::str::FromStr;

use forebay_host::unix_socket;

/// An address to listen on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListenAddress {
    /// A unix socket.
    Unix(PathBuf),
    /// A TCP port; port 0 lets the system choose.
    Tcp {
        /// Host name or address of the interface; IPv6 addresses without brackets.
        host: String,
        /// The port.
        port: u16,
    },
}

/// Why an address cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Not an address.
    #[error(
        "{0}; write the path of a socket with a '/', like ./nbd.sock, or HOST:PORT, like localhost:10809 or [::1]:10809"
    )]
    Address(&'static str),
    /// A unix socket cannot listen.
    #[error(transparent)]
    Unix(#[from] unix_socket::ListenError),
    /// Another process listens at the port.
    #[error("{0} is in use by a live process; choose another address or stop that process")]
    InUse(ListenAddress),
    /// Any other error of the system.
    #[error("cannot listen on {address}: {cause}")]
    System {
        /// The address.
        address: ListenAddress,
        /// The error.
        cause: io::Error,
    },
}

impl ListenError {
    /// Returns whether another process listens at the address.
    pub fn is_in_use(&self) -> bool {
        use unix_socket::ListenError as Unix;
        matches!(self, ListenError::InUse(_) | ListenError::Unix(Unix::InUse(_)))
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ListenAddress::Unix(path) => path.display().fmt(f),
            ListenAddress::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            ListenAddress::Tcp { host, port } => write!(f, "{host}:{port}"),
        }
    }
}

impl FromStr for ListenAddress {
    type Err = ListenError;

    /// Parses a path with a `/`, which becomes absolute, or `HOST:PORT`.
    fn from_str(text: &str) -> Result<Self, ListenError> {
        if text.contains('/') {
            let path = std::path::absolute(text)
                .map_err(|_| ListenError::Address("the directory of this process is gone"))?;
            return Self::unix(path);
        }
        let (host, port) = text.rsplit_once(':').ok_or(ListenError::Address("it has no port"))?;
        // `parse` alone would accept a sign.
        let digits = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
        let port = port.parse().ok().filter(|port| digits && *port > 0);
        let port = port.ok_or(ListenError::Address("the port is not a number from 1 to 65535"))?;
        let bracketed = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let host = match bracketed {
            Some(address) => address
                .parse::<Ipv6Addr>()
                .map_err(|_| ListenError::Address("there is no IPv6 address in the brackets"))?
                .to_string(),
            None => host.to_owned(),
        };
        let name = |c: char| c.is_ascii_alphanumeric() || c == '.' || c == '-';
        if bracketed.is_none() && (host.is_empty() || !host.chars().all(name)) {
            return Err(ListenError::Address("the host is not a name or an IPv4 address"));
        }
        Ok(ListenAddress::Tcp { host, port })
    }
}

impl ListenAddress {
    /// Makes the address of a unix socket.
    ///
    /// # Errors
    /// The path cannot be that of a socket.
    pub fn unix(path: PathBuf) -> Result<Self, ListenError> {
        unix_socket::check_name(&path)?;
        Ok(ListenAddress::Unix(path))
    }

    /// Returns the URI of an export at this address, for qemu, libnbd and `nbdcopy`. With
    /// `encrypted` clients have to use TLS if they come by TCP.
    pub fn uri(&self, export: &str, encrypted: bool) -> String {
        let mut uri = String::new();
        match self {
            ListenAddress::Unix(path) => {
                uri.push_str("nbd+unix:///");
                percent_encode(&mut uri, export.as_bytes(), b"");
                uri.push_str("?socket=");
                percent_encode(&mut uri, path.as_os_str().as_bytes(), b"/");
            }
            ListenAddress::Tcp { host, port } => {
                // A client cannot connect to the wildcard address.
                let host = match host.as_str() {
                    "0.0.0.0" | "::" => "localhost",
                    host => host,
                };
                let here = ListenAddress::Tcp { host: host.to_owned(), port: *port };
                let scheme = if encrypted { "nbds" } else { "nbd" };
                let _ = write!(uri, "{scheme}://{here}/");
                percent_encode(&mut uri, export.as_bytes(), b"");
            }
        }
        uri
    }

    /// Whether only this machine can reach the address.
    pub fn is_local(&self) -> bool {
        match self {
            ListenAddress::Unix(_) => true,
            ListenAddress::Tcp { host, .. } => {
                host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
            }
        }
    }
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
    use super::*;

    #[test]
    fn addresses_are_read_strictly_and_become_uris() {
        for (text, uri) in [
            ("/run/f/nbd.sock", "nbd+unix:///vol-1?socket=/run/f/nbd.sock"),
            ("/a b&c", "nbd+unix:///vol-1?socket=/a%20b%26c"),
            ("localhost:10809", "nbd://localhost:10809/vol-1"),
            ("[::1]:1", "nbd://[::1]:1/vol-1"),
        ] {
            let address: ListenAddress = text.parse().expect(text);
            assert_eq!(address.uri("vol-1", false), uri);
            let encrypted = address.uri("vol-1", true);
            assert_eq!(encrypted, uri.replace("nbd://", "nbds://"));
            assert!(address.is_local());
            assert_eq!(address.to_string(), text);
        }
        let unix = ListenAddress::Unix("/run/fore bay/ü.sock".into());
        assert_eq!(
            unix.uri("a/b?", true),
            "nbd+unix:///a%2Fb%3F?socket=/run/fore%20bay/%C3%BC.sock"
        );
        for (text, uri) in
            [("0.0.0.0:10809", "nbd://localhost:10809/v"), ("[::]:7", "nbd://localhost:7/v")]
        {
            let everyone: ListenAddress = text.parse().expect(text);
            assert!(!everyone.is_local());
            assert_eq!(everyone.uri("v", false), uri);
        }
    }

    #[test]
    fn invalid_addresses_are_refused() {
        let long = format!("/{}", "x".repeat(107));
        for bad in [
            "", "sock", ":1", "h:", "h:0", "h:65536", "h:-1", "h:+1", "::1:80", "[::1]", "[x]:1",
            "h h:1", "/a\0b", &long,
        ] {
            assert!(bad.parse::<ListenAddress>().is_err(), "{bad:?}");
        }
    }
}
