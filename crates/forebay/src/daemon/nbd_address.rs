//! Where NBD is served, and the URI of a volume there.

use std::fmt;
use std::net::IpAddr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use forebay_admin::VolumeName;

use crate::paths::check_socket_path;

/// An address for NBD.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NbdAddress {
    /// A unix socket.
    Unix(PathBuf),
    /// A TCP port.
    Tcp {
        /// A host name or an address, without brackets.
        host: String,
        /// The port, not 0.
        port: u16,
    },
}

impl FromStr for NbdAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.contains('/') {
            let path = std::path::absolute(text).map_err(|error| error.to_string())?;
            check_socket_path("--nbd", &path).map_err(|error| error.message)?;
            return Ok(NbdAddress::Unix(path));
        }
        let way_out = "write the path of a socket with a '/', like ./nbd.sock, or HOST:PORT, like localhost:10809 or [::1]:10809";
        let (host, port) = text.rsplit_once(':').ok_or(way_out)?;
        let port = port.parse().ok().filter(|port| *port > 0);
        let port =
            port.ok_or_else(|| format!("the port is not a number from 1 to 65535; {way_out}"))?;
        let bracketed = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let host = match bracketed {
            Some(address) => {
                let v6 = address.parse::<std::net::Ipv6Addr>();
                v6.map_err(|_| format!("no IPv6 address is in the brackets; {way_out}"))?
                    .to_string()
            }
            None => host.to_owned(),
        };
        let name = |c: char| c.is_ascii_alphanumeric() || c == '.' || c == '-';
        if bracketed.is_none() && (host.is_empty() || !host.chars().all(name)) {
            return Err(format!("the host is missing or is none; {way_out}"));
        }
        Ok(NbdAddress::Tcp { host, port })
    }
}

impl fmt::Display for NbdAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NbdAddress::Unix(path) => path.display().fmt(f),
            NbdAddress::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            NbdAddress::Tcp { host, port } => write!(f, "{host}:{port}"),
        }
    }
}

impl NbdAddress {
    /// The URI of a volume that is served here, for qemu, libnbd and `nbdcopy`.
    pub(crate) fn uri(&self, name: &VolumeName) -> String {
        match self {
            NbdAddress::Unix(path) => {
                format!("nbd+unix:///{name}?socket={}", percent_encoded(path))
            }
            NbdAddress::Tcp { .. } => format!("nbd://{self}/{name}"),
        }
    }

    /// Whether only this machine can reach it.
    pub(crate) fn is_local(&self) -> bool {
        match self {
            NbdAddress::Unix(_) => true,
            NbdAddress::Tcp { host, .. } => {
                host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
            }
        }
    }
}

fn percent_encoded(path: &Path) -> String {
    let mut text = String::new();
    for byte in path.as_os_str().as_bytes() {
        if byte.is_ascii_alphanumeric() || b"/._-~".contains(byte) {
            text.push(char::from(*byte));
        } else {
            text.push_str(&format!("%{byte:02X}"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_become_uris() {
        let name: VolumeName = "vol-1".parse().expect("valid");
        for (text, uri) in [
            ("/run/f/nbd.sock", "nbd+unix:///vol-1?socket=/run/f/nbd.sock"),
            ("/a b&c", "nbd+unix:///vol-1?socket=/a%20b%26c"),
            ("localhost:10809", "nbd://localhost:10809/vol-1"),
            ("[::1]:1", "nbd://[::1]:1/vol-1"),
        ] {
            let address: NbdAddress = text.parse().expect(text);
            assert_eq!(address.uri(&name), uri);
            assert!(address.is_local());
            assert_eq!(address.to_string(), text);
        }
    }

    #[test]
    fn what_is_no_address_is_refused() {
        let long = format!("/{}", "x".repeat(107));
        for bad in [
            "", "sock", ":1", "h:", "h:0", "h:65536", "h:-1", "::1:80", "[::1]", "[x]:1", "h h:1",
            &long,
        ] {
            assert!(bad.parse::<NbdAddress>().is_err(), "{bad:?}");
        }
        let everyone: NbdAddress = "0.0.0.0:10809".parse().expect("good");
        assert!(!everyone.is_local());
    }
}
