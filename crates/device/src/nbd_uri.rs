//! Names of exports of NBD servers: the URIs that other NBD clients use too.
//!
//! | written | server |
//! |---|---|
//! | `nbd://HOST[:PORT]/EXPORT` | by TCP, port 10809 unless said otherwise |
//! | `nbd+unix:///EXPORT?socket=PATH` | by a unix socket |
//! | `nbds://...`, `nbds+unix://...` | likewise, with TLS |
//!
//! Parameters behind `?`, with `&` in between: `socket=PATH`; `tls-certificates=DIR` with
//! `ca-cert.pem` and, if the server requests a client certificate, `client-cert.pem` and
//! `client-key.pem`; `reconnect=SECONDS`, the time for which requests wait for a server that is
//! gone; `timeout=SECONDS`, the time limit of a request.

use std::fmt::{self, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

/// The port that servers listen on unless told otherwise.
const PORT: u16 = 10809;
/// Longest path of a unix socket, in bytes.
const SOCKET_MAX: usize = 107;
/// Longest name of an export, in bytes; the protocol allows no longer ones.
const EXPORT_MAX: usize = 4096;
/// Default and longest time limits, in seconds.
const RECONNECT: u64 = 60;
const TIMEOUT: u64 = 60;
const LONGEST: u64 = 24 * 3600;

/// Address at which a server listens.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum NbdServer {
    /// A unix socket.
    Unix(PathBuf),
    /// A TCP port.
    Tcp {
        /// Host name or address; IPv6 addresses without brackets.
        host: String,
        /// The port.
        port: u16,
    },
}

/// An export of an NBD server, see the [module](self).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NbdUri {
    /// Address of the server.
    pub server: NbdServer,
    /// The name of the export; may be empty, for the server's default.
    pub export: String,
    /// Whether the connection has TLS.
    pub tls: bool,
    /// The directory of certificates for TLS; `None` for the system's authorities.
    pub certificates: Option<PathBuf>,
    /// Time for which requests wait while there is no connection.
    pub reconnect: Duration,
    /// Time limit of a request.
    pub timeout: Duration,
}

/// Why a text is not the URI of an export.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NbdUriError {
    /// The form is wrong.
    #[error("{0}; write nbd://HOST[:PORT]/EXPORT or nbd+unix:///EXPORT?socket=PATH")]
    Form(&'static str),
    /// An unknown parameter.
    #[error(
        "'{0}' is not a parameter of an NBD server; choose socket, tls-certificates, reconnect or \
         timeout"
    )]
    Parameter(String),
    /// A time limit that is not a number in the valid range.
    #[error("'{0}' is not a time limit; write a number of seconds from 1 to {LONGEST}")]
    Seconds(String),
}

fn form(cause: &'static str) -> NbdUriError {
    NbdUriError::Form(cause)
}

impl NbdUri {
    /// Returns whether a text is meant as a URI of NBD.
    pub fn is_one(text: &str) -> bool {
        let scheme = text.split_once("://").map(|(scheme, _)| scheme);
        scheme.is_some_and(|scheme| {
            scheme == "nbd"
                || scheme == "nbds"
                || scheme.starts_with("nbd+")
                || scheme.starts_with("nbds+")
        })
    }

    /// Returns the same export with absolute paths.
    ///
    /// # Errors
    /// The process has no working directory, or the absolute path of the socket is too long.
    pub(crate) fn absolute(&self) -> std::io::Result<Self> {
        let mut uri = self.clone();
        let socket = match &mut uri.server {
            NbdServer::Unix(path) => Some(path),
            NbdServer::Tcp { .. } => None,
        };
        for path in socket.into_iter().chain(&mut uri.certificates) {
            *path = std::path::absolute(&*path)?;
        }
        match uri.server.path() {
            Some(path) if path.as_os_str().len() > SOCKET_MAX => {
                let cause = "the socket's path has more than 107 bytes from the root directory on";
                Err(std::io::Error::new(std::io::ErrorKind::InvalidInput, cause))
            }
            _ => Ok(uri),
        }
    }

    /// Returns whether both names lead to the same export, as far as names can show.
    pub fn same_export(&self, other: &Self) -> bool {
        self.server == other.server && self.export == other.export
    }

    fn parameter(&mut self, text: &str, socket: &mut Option<PathBuf>) -> Result<(), NbdUriError> {
        let (name, value) = text.split_once('=').unwrap_or((text, ""));
        let path = || {
            let bytes = percent_decode(value).ok_or(form("a percent sign needs two hex digits"))?;
            match bytes.is_empty() || bytes.contains(&0) {
                true => Err(form("a path is empty or has a zero byte")),
                false => Ok(PathBuf::from(std::ffi::OsString::from_vec(bytes))),
            }
        };
        let seconds = || {
            let bad = || NbdUriError::Seconds(value.chars().take(40).collect());
            seconds(value).ok_or_else(bad)
        };
        match name {
            "socket" => *socket = Some(path()?),
            "tls-certificates" => self.certificates = Some(path()?),
            "reconnect" => self.reconnect = seconds()?,
            "timeout" => self.timeout = seconds()?,
            _ => return Err(NbdUriError::Parameter(name.chars().take(40).collect())),
        }
        Ok(())
    }
}

fn read_authority(text: &str) -> Result<NbdServer, NbdUriError> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, rest) = rest.split_once(']').ok_or(form("a bracket is not closed"))?;
            host.parse::<std::net::Ipv6Addr>()
                .map_err(|_| form("there is no IPv6 address in the brackets"))?;
            let port = match rest {
                "" => None,
                rest => Some(rest.strip_prefix(':').ok_or(form("something follows the bracket"))?),
            };
            (host, port)
        }
        None => match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    let name = |c: char| c.is_ascii_alphanumeric() || ".-_:".contains(c);
    if host.is_empty() || !host.chars().all(name) {
        return Err(form("the host is not a name or an address"));
    }
    let port = match port {
        None => PORT,
        Some(port) => {
            let digits = port.bytes().all(|byte| byte.is_ascii_digit());
            let port = port.parse().ok().filter(|port| digits && *port > 0);
            port.ok_or(form("the port is not a number from 1 to 65535"))?
        }
    };
    Ok(NbdServer::Tcp { host: host.to_owned(), port })
}

impl FromStr for NbdUri {
    type Err = NbdUriError;

    fn from_str(text: &str) -> Result<Self, NbdUriError> {
        let (scheme, rest) = text.split_once("://").ok_or(form("it is no URI of NBD"))?;
        let (tls, unix) = match scheme {
            "nbd" => (false, false),
            "nbds" => (true, false),
            "nbd+unix" => (false, true),
            "nbds+unix" => (true, true),
            _ => return Err(form("the scheme is not known")),
        };
        let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, export) = place.split_once('/').unwrap_or((place, ""));
        let export = percent_decode(export).ok_or(form("a percent sign needs two hex digits"))?;
        let export = String::from_utf8(export).map_err(|_| form("the export is not UTF-8"))?;
        if export.len() > EXPORT_MAX || export.contains('\0') {
            return Err(form("the name of the export is too long or has a zero byte"));
        }
        let server = match unix {
            true => NbdServer::Unix(PathBuf::new()),
            false => read_authority(authority)?,
        };
        let mut uri = NbdUri {
            server,
            export,
            tls,
            certificates: None,
            reconnect: Duration::from_secs(RECONNECT),
            timeout: Duration::from_secs(TIMEOUT),
        };
        let mut socket = None;
        for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
            uri.parameter(parameter, &mut socket)?;
        }
        match (unix, socket) {
            (true, Some(path)) if path.as_os_str().len() <= SOCKET_MAX && authority.is_empty() => {
                uri.server = NbdServer::Unix(path);
            }
            (true, Some(_)) => {
                return Err(form("there is a host, or the socket's path has more than 107 bytes"));
            }
            (true, None) => return Err(form("the socket is missing")),
            (false, Some(_)) => return Err(form("a socket belongs to nbd+unix")),
            (false, None) => {}
        }
        if uri.certificates.is_some() && !tls {
            return Err(form("certificates belong to nbds"));
        }
        Ok(uri)
    }
}

impl fmt::Display for NbdUri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls { "nbds" } else { "nbd" };
        let mut query = String::new();
        let mut add = |name: &str, value: &dyn Fn(&mut String)| {
            query.push(if query.is_empty() { '?' } else { '&' });
            query.push_str(name);
            query.push('=');
            value(&mut query);
        };
        match &self.server {
            NbdServer::Unix(path) => {
                write!(f, "{scheme}+unix:///")?;
                add("socket", &|query| percent_encode(query, path.as_os_str().as_bytes(), b"/"));
            }
            NbdServer::Tcp { host, port } => {
                let bracket = host.contains(':');
                let (open, close) = if bracket { ("[", "]") } else { ("", "") };
                write!(f, "{scheme}://{open}{host}{close}")?;
                if *port != PORT {
                    write!(f, ":{port}")?;
                }
                f.write_char('/')?;
            }
        }
        if let Some(path) = &self.certificates {
            let bytes = path.as_os_str().as_bytes();
            add("tls-certificates", &|query| percent_encode(query, bytes, b"/"));
        }
        for (name, limit, usual) in
            [("reconnect", self.reconnect, RECONNECT), ("timeout", self.timeout, TIMEOUT)]
        {
            if limit.as_secs() != usual {
                add(name, &|query| query.push_str(&limit.as_secs().to_string()));
            }
        }
        let mut export = String::new();
        percent_encode(&mut export, self.export.as_bytes(), b"");
        f.write_str(&export)?;
        f.write_str(&query)
    }
}

/// Appends bytes to a URI. Bytes with a special meaning are written as `%` and two hex digits,
/// except those in `also_plain`.
pub fn percent_encode(uri: &mut String, bytes: &[u8], also_plain: &[u8]) {
    for &byte in bytes {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) || also_plain.contains(&byte) {
            uri.push(char::from(byte));
        } else {
            // Writing to a string cannot fail.
            let _ = write!(uri, "%{byte:02X}");
        }
    }
}

/// Parses a time limit: a number of seconds up to one day.
pub(crate) fn seconds(text: &str) -> Option<Duration> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    let number = text.parse().ok().filter(|number| digits && (1..=LONGEST).contains(number));
    number.map(Duration::from_secs)
}

/// Undoes [`percent_encode`]; `None` if a percent sign is not followed by two hex digits.
pub(crate) fn percent_decode(text: &str) -> Option<Vec<u8>> {
    let mut bytes = text.bytes();
    let mut decoded = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            decoded.push(byte);
            continue;
        }
        let mut digit = || char::from(bytes.next()?).to_digit(16);
        let (high, low) = (digit()?, digit()?);
        decoded.push((high * 16 + low) as u8);
    }
    Some(decoded)
}

impl NbdServer {
    /// Returns the socket's path, if the server is at a unix socket.
    pub fn path(&self) -> Option<&Path> {
        match self {
            NbdServer::Unix(path) => Some(path),
            NbdServer::Tcp { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn good_uris_are_read_and_written_back() {
        for text in [
            "nbd://host/disk",
            "nbd://host/",
            "nbd://10.0.0.1:7/a%2Fb%3F",
            "nbd://[::1]/x",
            "nbd://[::1]:7/x?reconnect=5&timeout=7",
            "nbds://host/x?tls-certificates=/etc/a%20b",
            "nbd+unix:///?socket=/run/a%26b",
            "nbd+unix:///disk?socket=/s",
            "nbds+unix:///disk?socket=/s&tls-certificates=/c&timeout=1",
        ] {
            let uri: NbdUri = text.parse().unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!(uri.to_string(), text);
            assert!(NbdUri::is_one(text));
        }
        let uri: NbdUri = "nbd://h:10809/a/b?reconnect=60".parse().expect("good");
        assert_eq!((uri.to_string().as_str(), uri.export.as_str()), ("nbd://h/a%2Fb", "a/b"));
        let other: NbdUri = "nbd://h/a%2Fb?timeout=9".parse().expect("good");
        assert!(uri.same_export(&other));
        let relative: NbdUri = "nbd+unix:///?socket=s".parse().expect("good");
        assert!(
            relative.absolute().expect("a folder").server.path().is_some_and(Path::is_absolute)
        );
    }

    #[test]
    fn bad_uris_are_refused() {
        let long = format!("nbd+unix:///?socket=/{}", "x".repeat(107));
        for text in [
            "nbd:/x",
            "nbd://",
            "nbd:///x",
            "nbd://h:0/x",
            "nbd://h:65536/",
            "nbd://h:+1/",
            "nbd://[::1/x",
            "nbd://[x]/x",
            "nbd://[::1]7/x",
            "nbd://h h/x",
            "nbd://h/%zz",
            "nbd://h/%f",
            "nbd://h/%ff",
            "nbd://h/%00",
            "nbd+unix:///x",
            "nbd+unix:///?socket=",
            "nbd+unix://h/?socket=/s",
            "nbd://h/?socket=/s",
            "nbd://h/?tls-certificates=/c",
            "nbd+ssh://h/x",
            &long,
        ] {
            assert!(matches!(text.parse::<NbdUri>(), Err(NbdUriError::Form(_))), "{text}");
        }
        for text in [
            "nbd://h/?reconnect=0",
            "nbd://h/?timeout=",
            "nbd://h/?timeout=86401",
            "nbd://h/?timeout=+1",
        ] {
            assert!(matches!(text.parse::<NbdUri>(), Err(NbdUriError::Seconds(_))), "{text}");
        }
        let unknown = "nbd://h/?tls-psk-file=/x".parse::<NbdUri>();
        assert_eq!(unknown, Err(NbdUriError::Parameter("tls-psk-file".to_owned())));
    }
}
