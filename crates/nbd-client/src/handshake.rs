//! The client's side of the handshake: fixed newstyle, with `GO`.
//!
//! It is done in a thread that may wait, before the connection goes to a lane. The server's lengths
//! and numbers of replies are bounded.

use std::io::{self, Read, Write};

use forebay_nbd_wire::{
    GREETING_MAGIC, OPTION_MAGIC, OPTION_REPLY_MAGIC, OptionHeader, OptionReplyHeader, Reader,
    allocation, handshake_flag, info, option, option_reply, transmission_flag,
};
use zerocopy::big_endian::{U32, U64};
use zerocopy::{FromBytes, IntoBytes};

/// Longest reply to an option that is read, in bytes.
const REPLY_MAX: usize = 64 << 10;
/// Maximum number of replies to one option.
const REPLIES_MAX: usize = 64;
/// Bytes of the greeting.
const GREETING: usize = 18;
/// The largest request to a server that says nothing about it, in bytes.
const USUAL_MAX: u32 = 32 << 20;

/// A server's description of an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Export {
    /// Bytes.
    pub size: u64,
    /// Set of [`transmission_flag`].
    pub flags: u16,
    /// The smallest unit of requests in bytes, at least 1.
    pub least: u32,
    /// The size of requests that the server prefers, in bytes; 0: it has not said.
    pub preferred: u32,
    /// The largest payload of a request in bytes, at least `least`.
    pub most: u32,
    /// Whether replies can be chunks.
    pub chunks: bool,
    /// The server's number for `base:allocation`, if it knows that.
    pub allocation: Option<u32>,
}

impl Export {
    /// Returns whether the server has this [`transmission_flag`].
    pub(crate) fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The system's error, or that of TLS.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The server does not, or cannot, do as asked; the text is a sentence for the operator.
    #[error("{0}")]
    Refused(String),
}

fn refused(cause: impl Into<String>) -> ConnectError {
    ConnectError::Refused(cause.into())
}

fn nonsense(what: &str) -> ConnectError {
    refused(format!("the server does not keep to the NBD protocol: {what}"))
}

/// Reads a part of the handshake.
fn receive(stream: &mut impl Read, into: &mut [u8]) -> io::Result<()> {
    stream.read_exact(into).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => closed(),
        _ => error,
    })
}

/// Returns the error for a server that hangs up in the handshake.
fn closed() -> io::Error {
    let cause = "the server closed the connection in the handshake; its log may say why, or there is no NBD server at \
        this address";
    io::Error::new(io::ErrorKind::ConnectionAborted, cause)
}

/// Reads the greeting and answers it.
///
/// # Errors
/// See [`ConnectError`].
pub fn greet(stream: &mut (impl Read + Write)) -> Result<(), ConnectError> {
    let mut greeting = [0; GREETING];
    receive(stream, &mut greeting)?;
    let Some(rest) = greeting.strip_prefix(&GREETING_MAGIC.to_be_bytes()) else {
        return Err(refused("there is no NBD server at this address"));
    };
    let Some(flags) = rest.strip_prefix(&OPTION_MAGIC.to_be_bytes()) else {
        return Err(refused("the server has the old handshake of NBD; use a newer server"));
    };
    let flags = Reader(flags).u16().unwrap_or(0);
    if flags & handshake_flag::FIXED_NEWSTYLE == 0 {
        return Err(refused("the server has an old handshake of NBD; use a newer server"));
    }
    let answer = flags & (handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES);
    stream.write_all(&u32::from(answer).to_be_bytes())?;
    Ok(())
}

/// Asks for TLS, which begins with the next byte.
///
/// # Errors
/// See [`ConnectError`].
pub fn start_tls(stream: &mut (impl Read + Write)) -> Result<(), ConnectError> {
    match ask(stream, option::STARTTLS, &[], |_, _| Ok(()))? {
        None => Ok(()),
        Some(_) => Err(refused(
            "the server has no TLS; configure it there, or write nbd:// instead of nbds://",
        )),
    }
}

/// Agrees on an export and on the form of replies. Reads nothing beyond the last reply.
///
/// # Errors
/// See [`ConnectError`].
pub fn choose(stream: &mut (impl Read + Write), name: &str) -> Result<Export, ConnectError> {
    let chunks = match ask(stream, option::STRUCTURED_REPLY, &[], |_, _| Ok(()))? {
        None => true,
        Some(Refusal { kind: option_reply::ERR_TLS_REQD, .. }) => return Err(needs_tls()),
        Some(_) => false,
    };
    let allocation = if chunks { choose_allocation(stream, name)? } else { None };
    let mut export =
        Export { size: 0, flags: 0, least: 1, preferred: 0, most: USUAL_MAX, chunks, allocation };
    let mut described = false;
    let mut asked = sized(name.as_bytes());
    asked.extend_from_slice(&1u16.to_be_bytes());
    asked.extend_from_slice(&info::BLOCK_SIZE.to_be_bytes());
    let answer = ask(stream, option::GO, &asked, |kind, data| {
        if kind != option_reply::INFO {
            return Err(nonsense("another reply to GO"));
        }
        let mut reader = Reader(data);
        match reader.u16().ok_or_else(|| nonsense("empty information"))? {
            info::EXPORT => {
                let size = reader.bytes(8).and_then(|bytes| U64::read_from_bytes(bytes).ok());
                let (Some(size), Some(flags)) = (size, reader.u16()) else {
                    return Err(nonsense("a short description of the export"));
                };
                (export.size, export.flags, described) = (size.get(), flags, true);
            }
            info::BLOCK_SIZE => {
                let (Some(least), Some(preferred), Some(most)) =
                    (reader.u32(), reader.u32(), reader.u32())
                else {
                    return Err(nonsense("short block sizes"));
                };
                if !least.is_power_of_two() || most < least {
                    return Err(nonsense("impossible block sizes"));
                }
                (export.least, export.preferred, export.most) = (least, preferred, most);
            }
            _ => {}
        }
        Ok(())
    })?;
    match answer {
        None if described => Ok(export),
        None => Err(nonsense("no description of the export")),
        Some(refusal) => Err(refused(match refusal.kind {
            option_reply::ERR_UNKNOWN => format!(
                "the server has no export '{name}'; 'nbdinfo --list' shows those that it has"
            ),
            option_reply::ERR_UNSUP => "the server does not know GO; use a newer server".to_owned(),
            option_reply::ERR_TLS_REQD => return Err(needs_tls()),
            kind => format!(
                "the server refuses the export '{name}' with error {:#x}{}",
                kind,
                refusal.text()
            ),
        })),
    }
}

fn needs_tls() -> ConnectError {
    refused("the server insists on TLS; write nbds:// instead of nbd://")
}

/// Asks for the context `base:allocation`; returns the server's number for it.
fn choose_allocation(
    stream: &mut (impl Read + Write),
    name: &str,
) -> Result<Option<u32>, ConnectError> {
    let mut asked = sized(name.as_bytes());
    asked.extend_from_slice(&1u32.to_be_bytes());
    asked.extend_from_slice(&sized(allocation::NAME.as_bytes()));
    let mut number = None;
    let refusal = ask(stream, option::SET_META_CONTEXT, &asked, |kind, data| {
        let mut reader = Reader(data);
        let id = reader.u32();
        if kind == option_reply::META_CONTEXT && reader.0 == allocation::NAME.as_bytes() {
            number = id;
        }
        Ok(())
    })?;
    Ok(number.filter(|_| refusal.is_none()))
}

/// An error of the server.
struct Refusal {
    kind: u32,
    message: Vec<u8>,
}

impl Refusal {
    /// Returns the server's text for a message.
    fn text(&self) -> String {
        let text = String::from_utf8_lossy(&self.message);
        let text: String = text.chars().filter(|c| !c.is_control()).take(200).collect();
        if text.is_empty() { text } else { format!(": {text}") }
    }
}

/// Returns bytes behind their length.
fn sized(bytes: &[u8]) -> Vec<u8> {
    let mut data = (bytes.len() as u32).to_be_bytes().to_vec();
    data.extend_from_slice(bytes);
    data
}

/// Sends an option and reads the replies until the last one. Each of the others goes to `each`.
fn ask(
    stream: &mut (impl Read + Write),
    option: u32,
    data: &[u8],
    mut each: impl FnMut(u32, &[u8]) -> Result<(), ConnectError>,
) -> Result<Option<Refusal>, ConnectError> {
    let header = OptionHeader {
        magic: U64::new(OPTION_MAGIC),
        option: U32::new(option),
        len: U32::new(data.len() as u32),
    };
    let mut message = header.as_bytes().to_vec();
    message.extend_from_slice(data);
    stream.write_all(&message)?;
    stream.flush()?;
    for _ in 0..REPLIES_MAX {
        let mut head = [0; size_of::<OptionReplyHeader>()];
        receive(stream, &mut head)?;
        let Ok(head) = OptionReplyHeader::read_from_bytes(&head) else {
            return Err(nonsense("a short reply"));
        };
        let len = head.len.get() as usize;
        if head.magic.get() != OPTION_REPLY_MAGIC || head.option.get() != option || len > REPLY_MAX
        {
            return Err(nonsense("the reply to another option, or a very long one"));
        }
        let mut reply = vec![0; len];
        receive(stream, &mut reply)?;
        match head.kind.get() {
            option_reply::ACK => return Ok(None),
            kind if kind & option_reply::ERROR != 0 => {
                return Ok(Some(Refusal { kind, message: reply }));
            }
            kind => each(kind, &reply)?,
        }
    }
    Err(nonsense("more replies than there is something to say"))
}

/// Returns the reason why an export cannot be a device that is written to.
pub(crate) fn unfit(export: &Export) -> Option<&'static str> {
    if export.has(transmission_flag::READ_ONLY) {
        Some("the server exports it for reading only; export it for writing")
    } else if !export.has(transmission_flag::SEND_FLUSH) {
        Some(
            "the server offers no flush, so nothing written to it would be known to be durable; use a server that does",
        )
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server that says something and hangs up.
    struct Script<'a>(&'a [u8]);

    impl Read for Script<'_> {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            self.0.read(into)
        }
    }

    impl Write for Script<'_> {
        fn write(&mut self, data: &[u8]) -> io::Result<usize> {
            Ok(data.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_server_that_hangs_up_in_the_handshake_is_named() {
        let mut said = GREETING_MAGIC.to_be_bytes().to_vec();
        said.extend(OPTION_MAGIC.to_be_bytes());
        said.extend(handshake_flag::FIXED_NEWSTYLE.to_be_bytes());
        for (option, kind, data) in [
            (option::STRUCTURED_REPLY, option_reply::ERR_UNSUP, &b"no"[..]),
            (option::GO, option_reply::INFO, &[0; 12]),
            (option::GO, option_reply::ACK, &[]),
        ] {
            let head = OptionReplyHeader {
                magic: U64::new(OPTION_REPLY_MAGIC),
                option: U32::new(option),
                kind: U32::new(kind),
                len: U32::new(data.len() as u32),
            };
            said.extend(head.as_bytes());
            said.extend(data);
        }
        let shake = |said| {
            let mut server = Script(said);
            greet(&mut server).and_then(|()| choose(&mut server, "v"))
        };
        assert!(shake(&said).is_ok());
        for len in 0..said.len() {
            let error = shake(&said[..len]).expect_err("it hangs up").to_string();
            assert!(error.contains("the server closed the connection"), "{len}: {error}");
        }
    }
}
