//! The client's side of the handshake, for every client: fixed newstyle, with `GO`.
//!
//! It blocks, so it belongs in a thread that may wait. Lengths and numbers of the server's replies
//! are limited, and nothing beyond the last reply is read.

use std::fmt;
use std::io::{self, Read, Write};

use zerocopy::big_endian::{U32, U64};
use zerocopy::{FromBytes, IntoBytes};

use crate::{
    GREETING_MAGIC, Greeting, OPTION_MAGIC, OPTION_REPLY_MAGIC, OptionHeader, OptionReplyHeader,
    Reader, handshake_flag, info, option, option_reply,
};

/// Longest reply to an option that is read, in bytes.
const REPLY_MAX: usize = 64 << 10;
/// Maximum number of replies to one option.
const REPLIES_MAX: usize = 64;
/// Largest request, in bytes, to a server that reports no limit.
const USUAL_MAX: u32 = 32 << 20;

/// A server's description of an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Export {
    /// Bytes.
    pub size: u64,
    /// Set of [`transmission_flag`](crate::transmission_flag).
    pub flags: u16,
    /// The smallest unit of requests in bytes, at least 1.
    pub least: u32,
    /// The size of requests that the server prefers, in bytes; 0 if the server did not report one.
    pub preferred: u32,
    /// The largest payload of a request in bytes, at least `least`.
    pub most: u32,
}

impl Export {
    /// Returns whether the server has this [`transmission_flag`](crate::transmission_flag).
    pub fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }
}

/// The error reply of a server to an option.
#[derive(Debug)]
pub struct Refusal {
    /// One of [`option_reply`].
    pub kind: u32,
    message: Vec<u8>,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error {:#x}", self.kind)?;
        let text = String::from_utf8_lossy(&self.message);
        let text: String = text.chars().filter(|c| !c.is_control()).take(200).collect();
        if text.is_empty() { Ok(()) } else { write!(f, ": {text}") }
    }
}

/// Why a handshake fails; the text is a sentence for the operator.
#[derive(Debug, thiserror::Error)]
pub enum HandshakeError {
    /// An error of the system or of TLS, or the server has closed the connection.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The server speaks another protocol, or an obsolete version of this one.
    #[error("{0}")]
    Unfit(&'static str),
    /// The server breaks the protocol.
    #[error("the server does not keep to the NBD protocol: {0}")]
    Violation(&'static str),
    /// The server refuses the export.
    #[error("the server refuses the export with {0}")]
    Refused(Refusal),
}

/// Reads the greeting and answers the handshake flags.
///
/// # Errors
/// See [`HandshakeError`].
pub fn greet(stream: &mut (impl Read + Write)) -> Result<(), HandshakeError> {
    let mut greeting = [0; size_of::<Greeting>()];
    receive(stream, &mut greeting)?;
    let Some(rest) = greeting.strip_prefix(&GREETING_MAGIC.to_be_bytes()) else {
        return Err(HandshakeError::Unfit("there is no NBD server at this address"));
    };
    let Some(flags) = rest.strip_prefix(&OPTION_MAGIC.to_be_bytes()) else {
        let cause = "the server has the old handshake of NBD; use a newer server";
        return Err(HandshakeError::Unfit(cause));
    };
    let flags = Reader(flags).u16().unwrap_or(0);
    if flags & handshake_flag::FIXED_NEWSTYLE == 0 {
        let cause = "the server has an old handshake of NBD; use a newer server";
        return Err(HandshakeError::Unfit(cause));
    }
    let answer = flags & (handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES);
    stream.write_all(&u32::from(answer).to_be_bytes())?;
    Ok(())
}

/// Sends an option and reads its replies, up to the last one. Returns the refusal if the last one
/// is an error. Passes all other replies to `each`, with their kinds.
///
/// # Errors
/// See [`HandshakeError`]; [`HandshakeError::Refused`] only if `each` returns it.
pub fn ask(
    stream: &mut (impl Read + Write),
    option: u32,
    data: &[u8],
    mut each: impl FnMut(u32, &[u8]) -> Result<(), HandshakeError>,
) -> Result<Option<Refusal>, HandshakeError> {
    let header = OptionHeader {
        magic: U64::new(OPTION_MAGIC),
        option: U32::new(option),
        len: U32::new(data.len() as u32),
    };
    stream.write_all(&[header.as_bytes(), data].concat())?;
    stream.flush()?;
    for _ in 0..REPLIES_MAX {
        let mut head = [0; size_of::<OptionReplyHeader>()];
        receive(stream, &mut head)?;
        let head: OptionReplyHeader = zerocopy::transmute!(head);
        let len = head.len.get() as usize;
        if head.magic.get() != OPTION_REPLY_MAGIC || head.option.get() != option || len > REPLY_MAX
        {
            let cause = "the reply to another option, or a very long one";
            return Err(HandshakeError::Violation(cause));
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
    Err(HandshakeError::Violation("more replies than there is something to say"))
}

/// Negotiates an export; requests follow. `facts`: kinds of [`info`] to ask for, besides
/// [`info::EXPORT`]; a server may send others too.
///
/// # Errors
/// See [`HandshakeError`].
pub fn go(
    stream: &mut (impl Read + Write),
    name: &str,
    facts: &[u16],
) -> Result<Export, HandshakeError> {
    use HandshakeError::Violation;
    let mut export = Export { size: 0, flags: 0, least: 1, preferred: 0, most: USUAL_MAX };
    let mut described = false;
    let mut asked = sized(name.as_bytes());
    asked.extend((facts.len() as u16).to_be_bytes());
    asked.extend(facts.iter().flat_map(|fact| fact.to_be_bytes()));
    let refusal = ask(stream, option::GO, &asked, |kind, data| {
        if kind != option_reply::INFO {
            return Err(Violation("another reply to GO"));
        }
        let mut reader = Reader(data);
        match reader.u16().ok_or(Violation("empty information"))? {
            info::EXPORT => {
                let size = reader.bytes(8).and_then(|bytes| U64::read_from_bytes(bytes).ok());
                let (Some(size), Some(flags)) = (size, reader.u16()) else {
                    return Err(Violation("a short description of the export"));
                };
                (export.size, export.flags, described) = (size.get(), flags, true);
            }
            info::BLOCK_SIZE => {
                let (Some(least), Some(preferred), Some(most)) =
                    (reader.u32(), reader.u32(), reader.u32())
                else {
                    return Err(Violation("short block sizes"));
                };
                if !least.is_power_of_two() || most < least {
                    return Err(Violation("impossible block sizes"));
                }
                (export.least, export.preferred, export.most) = (least, preferred, most);
            }
            _ => {}
        }
        Ok(())
    })?;
    match refusal {
        Some(refusal) => Err(HandshakeError::Refused(refusal)),
        None if described => Ok(export),
        None => Err(Violation("no description of the export")),
    }
}

/// Returns bytes behind their length, as the protocol has names.
pub fn sized(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u32).to_be_bytes(), bytes].concat()
}

/// Reads a part of the handshake.
fn receive(stream: &mut impl Read, into: &mut [u8]) -> io::Result<()> {
    stream.read_exact(into).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => io::Error::new(
            io::ErrorKind::ConnectionAborted,
            "the server closed the connection in the handshake; its log may say why, or there is no NBD server at this address",
        ),
        _ => error,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server that sends fixed bytes and then hangs up.
    struct Script<'a> {
        sends: &'a [u8],
        received: Vec<u8>,
    }

    impl Read for Script<'_> {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            self.sends.read(into)
        }
    }

    impl Write for Script<'_> {
        fn write(&mut self, data: &[u8]) -> io::Result<usize> {
            self.received.write(data)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn greeting(flags: u16) -> Vec<u8> {
        [&b"NBDMAGICIHAVEOPT"[..], &flags.to_be_bytes()].concat()
    }

    fn reply(option: u32, kind: u32, data: &[u8]) -> Vec<u8> {
        let head = OptionReplyHeader {
            magic: U64::new(OPTION_REPLY_MAGIC),
            option: U32::new(option),
            kind: U32::new(kind),
            len: U32::new(data.len() as u32),
        };
        [head.as_bytes(), data].concat()
    }

    /// A reply to `GO` with one fact about the export.
    fn fact(kind: u16, numbers: &[u8]) -> Vec<u8> {
        reply(option::GO, option_reply::INFO, &[&kind.to_be_bytes(), numbers].concat())
    }

    /// Negotiates the export `v`; returns the result and the bytes sent by the client.
    fn shake(sends: &[u8], facts: &[u16]) -> (Result<Export, HandshakeError>, Vec<u8>) {
        let mut server = Script { sends, received: Vec::new() };
        let agreed = greet(&mut server).and_then(|()| go(&mut server, "v", facts));
        (agreed, server.received)
    }

    #[test]
    fn only_flags_offered_and_facts_asked_for_are_sent() {
        let description = fact(info::EXPORT, &[0, 0, 0, 0, 0, 16, 0, 0, 0, 5]);
        let sizes = fact(info::BLOCK_SIZE, &[0, 0, 2, 0, 0, 0, 16, 0, 2, 0, 0, 0]);
        let name = fact(info::NAME, b"v");
        let end = reply(option::GO, option_reply::ACK, &[]);
        let export = Export { size: 1 << 20, flags: 5, least: 1, preferred: 0, most: USUAL_MAX };
        let sized = Export { least: 512, preferred: 4096, most: 32 << 20, ..export };
        for (offered, answer) in [(1, 1), (3, 3), (0xfff3, 3)] {
            let sends =
                [greeting(offered), description.clone(), name.clone(), end.clone()].concat();
            let (agreed, sent) = shake(&sends, &[]);
            assert_eq!(agreed.expect("good"), export);
            let go = b"IHAVEOPT\0\0\0\x07\0\0\0\x07\0\0\0\x01v\0\0";
            assert_eq!(sent, [&[0, 0, 0, answer], &go[..]].concat());
            let sends =
                [greeting(offered), sizes.clone(), description.clone(), end.clone()].concat();
            let (agreed, sent) = shake(&sends, &[info::BLOCK_SIZE]);
            assert_eq!(agreed.expect("good"), sized);
            let go = b"IHAVEOPT\0\0\0\x07\0\0\0\x09\0\0\0\x01v\0\x01\0\x03";
            assert_eq!(sent, [&[0, 0, 0, answer], &go[..]].concat());
        }
    }

    #[test]
    fn a_server_that_breaks_the_protocol_is_refused() {
        let description = fact(info::EXPORT, &[0; 10]);
        let end = reply(option::GO, option_reply::ACK, &[]);
        let after = |replies: &[&[u8]]| [greeting(3), replies.concat(), end.clone()].concat();
        let long = [&OPTION_REPLY_MAGIC.to_be_bytes()[..], &[0, 0, 0, 7, 0, 0, 0, 3, 0, 1, 0, 1]];
        for (sends, cause) in [
            (vec![0; 64], "there is no NBD server"),
            ([&b"NBDMAGIC"[..], &[0; 64]].concat(), "the old handshake"),
            (greeting(2), "an old handshake"),
            (after(&[]), "no description"),
            (after(&[&reply(option::INFO, option_reply::ACK, &[])]), "another option"),
            (after(&[&[0; 20]]), "another option"),
            (after(&[&long.concat()]), "a very long one"),
            (after(&[&reply(option::GO, option_reply::SERVER, &[])]), "another reply to GO"),
            (after(&[&reply(option::GO, option_reply::INFO, &[0])]), "empty information"),
            (after(&[&fact(info::EXPORT, &[0; 9])]), "a short description"),
            (after(&[&fact(info::BLOCK_SIZE, &[0; 11])]), "short block sizes"),
            (after(&[&fact(info::BLOCK_SIZE, &[1; 12])]), "impossible block sizes"),
            (
                after(&[&fact(info::BLOCK_SIZE, &[0, 0, 2, 0, 0, 0, 2, 0, 0, 0, 1, 0])]),
                "impossible",
            ),
            (after(&[&description.repeat(REPLIES_MAX)]), "more replies"),
        ] {
            let error = shake(&sends, &[]).0.expect_err(cause).to_string();
            assert!(error.contains(cause), "{cause}: {error}");
        }
        assert!(shake(&after(&[&description.repeat(REPLIES_MAX - 1)]), &[]).0.is_ok());
    }

    #[test]
    fn a_refusal_is_printed_without_control_characters() {
        let refusal = reply(option::GO, option_reply::ERR_UNKNOWN, b"none\nsuch\x1b[0m");
        let error = shake(&[greeting(3), refusal].concat(), &[]).0.expect_err("refused");
        let text = "the server refuses the export with error 0x80000006: nonesuch[0m";
        assert_eq!(error.to_string(), text);
    }

    #[test]
    fn a_server_that_hangs_up_in_the_handshake_is_named() {
        let sends =
            [greeting(3), fact(info::EXPORT, &[0; 10]), reply(option::GO, option_reply::ACK, &[])]
                .concat();
        assert!(shake(&sends, &[]).0.is_ok());
        for len in 0..sends.len() {
            let error = shake(&sends[..len], &[]).0.expect_err("it hangs up").to_string();
            assert!(error.contains("the server closed the connection"), "{len}: {error}");
        }
    }
}
