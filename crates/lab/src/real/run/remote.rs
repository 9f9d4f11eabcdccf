//! Size and first bytes of an NBD export, which is all that has to be known before fio has it.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use crate::error::{LabError, LabResult, other};

// Numbers of the protocol.
const GREETING: u64 = 0x4e42_444d_4147_4943;
const OPTION: u64 = 0x4948_4156_454f_5054;
const OPTION_REPLY: u64 = 0x0003_e889_0455_65a9;
const REQUEST: u32 = 0x2560_9513;
const REPLY: u32 = 0x6744_6698;
const OPTION_GO: u32 = 7;
const ACK: u32 = 1;
const INFO: u32 = 3;
const INFO_EXPORT: u16 = 0;
const FIXED_NEW_STYLE: u32 = 1;
const NO_ZEROES: u32 = 2;
const READ: u16 = 0;
const DISCONNECT: u16 = 2;
const READ_ONLY: u16 = 2;

const PORT: u16 = 10809;
const PATIENCE: Duration = Duration::from_secs(30);
/// The longest answer to an option that is taken.
const LONGEST_ANSWER: u32 = 64 << 10;

/// Where an export is.
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

/// What an export is like.
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
    ///
    /// # Errors
    /// `Usage`.
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

fn bytes<const N: usize>(stream: &mut impl Read) -> LabResult<[u8; N]> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn look(mut stream: impl Read + Write, name: &str, head: usize) -> LabResult<Looks> {
    let strange = || other("this is no NBD server, or one that speaks an old dialect");
    let greeting = u64::from_be_bytes(bytes(&mut stream)?);
    if greeting != GREETING || u64::from_be_bytes(bytes(&mut stream)?) != OPTION {
        return Err(strange());
    }
    let offered = u32::from(u16::from_be_bytes(bytes(&mut stream)?));
    let len = u32::try_from(name.len()).map_err(|_| strange())?;
    let mut go = (offered & (FIXED_NEW_STYLE | NO_ZEROES)).to_be_bytes().to_vec();
    go.extend(OPTION.to_be_bytes());
    go.extend(OPTION_GO.to_be_bytes());
    go.extend(len.saturating_add(6).to_be_bytes());
    go.extend(len.to_be_bytes());
    go.extend(name.as_bytes());
    go.extend(0u16.to_be_bytes());
    stream.write_all(&go)?;
    let mut found = None;
    loop {
        let magic = u64::from_be_bytes(bytes(&mut stream)?);
        let _option: [u8; 4] = bytes(&mut stream)?;
        let kind = u32::from_be_bytes(bytes(&mut stream)?);
        let len = u32::from_be_bytes(bytes(&mut stream)?);
        if magic != OPTION_REPLY || len > LONGEST_ANSWER {
            return Err(strange());
        }
        let mut answer = vec![0; len as usize];
        stream.read_exact(&mut answer)?;
        match kind {
            ACK => break,
            INFO => found = export_info(&answer).or(found),
            kind if kind >> 31 == 1 => {
                return Err(other(format!("the NBD server has no export '{name}'")));
            }
            _ => (),
        }
    }
    let (size, flags) = found.ok_or_else(strange)?;
    let len = u32::try_from(size.min(head as u64)).map_err(|_| strange())?;
    let mut read = vec![0; len as usize];
    if len > 0 {
        stream.write_all(&request(READ, len))?;
        let reply: [u8; 16] = bytes(&mut stream)?;
        let word = |at: usize| reply.get(at..at + 4).map(|word| word.to_vec());
        if word(0) != Some(REPLY.to_be_bytes().to_vec()) || word(4) != Some(vec![0; 4]) {
            return Err(other("the NBD server cannot read the beginning of the export"));
        }
        stream.read_exact(&mut read)?;
    }
    stream.write_all(&request(DISCONNECT, 0))?;
    Ok(Looks { size, read_only: flags & READ_ONLY != 0, head: read })
}

/// Size and flags out of an answer about the export.
fn export_info(answer: &[u8]) -> Option<(u64, u16)> {
    let (kind, rest) = answer.split_first_chunk()?;
    let (size, rest) = rest.split_first_chunk()?;
    let flags = rest.first_chunk()?;
    (u16::from_be_bytes(*kind) == INFO_EXPORT)
        .then(|| (u64::from_be_bytes(*size), u16::from_be_bytes(*flags)))
}

/// A request at byte 0.
fn request(kind: u16, len: u32) -> Vec<u8> {
    let mut request = REQUEST.to_be_bytes().to_vec();
    request.extend(0u16.to_be_bytes());
    request.extend(kind.to_be_bytes());
    request.extend([0; 16]);
    request.extend(len.to_be_bytes());
    request
}

#[cfg(test)]
mod tests {
    use super::*;

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

    /// A server that says what it is told to say.
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

    fn script(error: u32) -> Vec<u8> {
        let mut says = Vec::new();
        says.extend(GREETING.to_be_bytes());
        says.extend(OPTION.to_be_bytes());
        says.extend(3u16.to_be_bytes());
        let mut answer = |kind: u32, payload: &[u8]| {
            says.extend(OPTION_REPLY.to_be_bytes());
            says.extend(OPTION_GO.to_be_bytes());
            says.extend(kind.to_be_bytes());
            says.extend((payload.len() as u32).to_be_bytes());
            says.extend(payload);
        };
        let mut info = INFO_EXPORT.to_be_bytes().to_vec();
        info.extend(1024u64.to_be_bytes());
        info.extend(3u16.to_be_bytes());
        answer(INFO, &info);
        answer(ACK, &[]);
        says.extend(REPLY.to_be_bytes());
        says.extend(error.to_be_bytes());
        says.extend([0; 8]);
        says.extend([7; 1024]);
        says
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
