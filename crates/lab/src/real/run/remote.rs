//! Size and first bytes of an NBD export, which is all that has to be known before fio has it.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use forebay_nbd::wire::handshake::{go, greet};
use forebay_nbd::wire::{command, transmission_flag};

use crate::error::{LabError, LabResult, other};
use crate::nbd::{REPLY_BYTES, REQUEST_BYTES, check_reply, header};

const PORT: u16 = 10809;
const PATIENCE: Duration = Duration::from_secs(30);

/// Address of an export.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Place {
    Unix(PathBuf),
    Tcp(String, u16),
}

/// An NBD URI, taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Export {
    place: Place,
    name: String,
}

/// Properties of an export.
#[derive(Clone, Debug)]
pub(crate) struct Looks {
    /// Bytes.
    pub(crate) size: u64,
    pub(crate) read_only: bool,
    /// Its first bytes, as many as were asked for unless it is smaller.
    pub(crate) head: Vec<u8>,
}

/// Whether this is a URI and no path.
pub(crate) fn is_uri(text: &str) -> bool {
    text.split_once("://").is_some_and(|(scheme, _)| {
        !scheme.is_empty() && scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
    })
}

/// `%2F` and the like.
fn decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
        let (high, low) = (digit(rest.next())?, digit(rest.next())?);
        bytes.push(u8::try_from(high * 16 + low).ok()?);
    }
    String::from_utf8(bytes).ok()
}

impl Export {
    /// Takes a URI apart.
    /// Errors: `Usage`.
    pub(crate) fn parse(uri: &str) -> LabResult<Self> {
        let bad = || {
            LabError::Usage(format!(
                "--device: '{uri}' is no NBD URI; write nbd://HOST[:PORT]/NAME or \
                 nbd+unix:///NAME?socket=PATH"
            ))
        };
        let (scheme, rest) = uri.split_once("://").ok_or_else(bad)?;
        let (address, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (host, name) = address.split_once('/').unwrap_or((address, ""));
        let name = decode(name).ok_or_else(bad)?;
        let place = match scheme {
            "nbd+unix" if host.is_empty() => {
                let socket = query.split('&').find_map(|part| part.strip_prefix("socket="));
                let socket = socket.and_then(decode).filter(|socket| !socket.is_empty());
                Place::Unix(socket.ok_or_else(bad)?.into())
            }
            "nbd" if !host.is_empty() => {
                // A colon within brackets belongs to an IPv6 address.
                let (host, port) = match host.rsplit_once(':') {
                    Some((host, port)) if !port.ends_with(']') => {
                        (host, port.parse().map_err(|_| bad())?)
                    }
                    _ => (host, PORT),
                };
                Place::Tcp(host.trim_matches(['[', ']']).to_owned(), port)
            }
            _ => return Err(bad()),
        };
        Ok(Export { place, name })
    }

    /// Connects and looks.
    pub(crate) fn look(&self, head: usize) -> LabResult<Looks> {
        let unreachable =
            |error: std::io::Error| other(format!("the NBD server cannot be reached: {error}"));
        match &self.place {
            Place::Unix(path) => {
                let stream = UnixStream::connect(path).map_err(unreachable)?;
                stream.set_read_timeout(Some(PATIENCE))?;
                look(stream, &self.name, head)
            }
            Place::Tcp(host, port) => {
                let stream = TcpStream::connect((host.as_str(), *port)).map_err(unreachable)?;
                stream.set_read_timeout(Some(PATIENCE))?;
                look(stream, &self.name, head)
            }
        }
    }
}

fn look(mut stream: impl Read + Write, name: &str, head: usize) -> LabResult<Looks> {
    greet(&mut stream)?;
    let export = go(&mut stream, name, &[])?;
    let (size, read_only) = (export.size, export.has(transmission_flag::READ_ONLY));
    let mut read = vec![0; size.min(head as u64) as usize];
    let mut request = [0; REQUEST_BYTES];
    if !read.is_empty() {
        header(&mut request, command::READ, 0, read.len() as u32);
        stream.write_all(&request)?;
        let mut reply = [0; REPLY_BYTES];
        stream.read_exact(&mut reply)?;
        check_reply(&reply)
            .map_err(|_| other("the NBD server cannot read the beginning of the export"))?;
        stream.read_exact(&mut read)?;
    }
    header(&mut request, command::DISC, 0, 0);
    stream.write_all(&request)?;
    Ok(Looks { size, read_only, head: read })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nbd::tests::script;

    #[test]
    fn uris_are_told_from_paths() {
        for (text, uri) in [
            ("nbd://localhost/data", true),
            ("nbd+unix:///data?socket=/run/x", true),
            ("http://a/", true),
            ("/dev/sda", false),
            ("./nbd://x", false),
            ("://x", false),
        ] {
            assert_eq!(is_uri(text), uri, "{text}");
        }
    }

    #[test]
    fn uris_are_taken_apart() {
        let export = |uri| Export::parse(uri).expect(uri);
        assert_eq!(
            export("nbd+unix:///my%20data?socket=/run/a%3fb"),
            Export { place: Place::Unix("/run/a?b".into()), name: "my data".into() }
        );
        for (uri, host, port) in [
            ("nbd://h/x", "h", PORT),
            ("nbd://h:7/x", "h", 7),
            ("nbd://[::1]/x", "::1", PORT),
            ("nbd://[::1]:7/x", "::1", 7),
        ] {
            assert_eq!(
                export(uri),
                Export { place: Place::Tcp(host.into(), port), name: "x".into() }
            );
        }
        for bad in [
            "nbd:///x",
            "nbd+unix:///x",
            "nbd+unix:///x?socket=",
            "nbds://h/x",
            "nbd://h:p/x",
            "nbd://h/%zz",
        ] {
            assert_eq!(Export::parse(bad).expect_err(bad).exit_code(), 2);
        }
    }

    /// A server with prepared replies.
    struct Script {
        says: std::io::Cursor<Vec<u8>>,
        heard: Vec<u8>,
    }

    impl Read for Script {
        fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
            self.says.read(into)
        }
    }

    impl Write for Script {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.heard.write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_server_is_understood_and_every_broken_one_is_refused() {
        let ask = |says: Vec<u8>| {
            let mut script = Script { says: std::io::Cursor::new(says), heard: Vec::new() };
            let looks = look(&mut script, "x", 4096);
            (looks, script.heard)
        };
        let (looks, heard) = ask(script(0));
        let looks = looks.expect("good");
        assert_eq!((looks.size, looks.read_only, looks.head), (1024, true, vec![7; 1024]));
        assert_eq!(heard.len(), 4 + 16 + 4 + 1 + 2 + 2 * 28);
        assert!(ask(script(5)).0.is_err());
        let whole = script(0);
        for len in 0..whole.len() {
            assert!(ask(whole[..len].to_vec()).0.is_err(), "cut after {len}");
        }
    }
}
