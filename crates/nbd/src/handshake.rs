//! The handshake: a state machine from the client's bytes to replies and, finally, a session.
//!
//! No I/O. [`Handshake::advance`] consumes whole options only, so the caller's buffer needs space
//! for [`OPTION_DATA_MAX`] bytes and a header. A client can make it keep at most one export name.

use std::rc::Rc;

use forebay_engine::{BlockService, Exports};
use zerocopy::big_endian::{U32, U64};
use zerocopy::{FromBytes, IntoBytes};

use crate::outliving::OutlivingDevice;
use crate::status::Contexts;
use crate::transmission::{MAX_PAYLOAD, Session};
use crate::wire::{
    Greeting, Headers, OPTION_MAGIC, OPTION_REPLY_MAGIC, OptionHeader, OptionReplyHeader, Reader,
    allocation, handshake_flag, info, option, option_reply, state, transmission_flag,
};

/// Most bytes of data in an option; longer options are skipped and refused.
pub const OPTION_DATA_MAX: usize = 16 << 10;
/// Longest export name or query, in bytes, as in the protocol.
pub const NAME_MAX: usize = 4096;
/// A client that sends more options than this is dropped.
pub const OPTIONS_MAX: u32 = 4096;
/// Replies of at least this many bytes are sent before more options are read.
const REPLIES_HIGH: usize = 16 << 10;
/// Padding that old clients expect after the answer to `EXPORT_NAME`.
const PADDING: [u8; 124] = [0; 124];

/// The caller's next step.
pub enum HandshakeStep {
    /// Receive more.
    Receive,
    /// Send the replies, then advance again on the rest of the input.
    Send,
    /// Send the replies, then start with the rest of the input.
    Start(Start),
    /// Send the replies, start TLS with the rest of the input, call [`Handshake::secured`], then
    /// advance again.
    StartTls,
    /// Send the replies, then close.
    Close(Reason),
}

/// The negotiated session.
pub struct Start {
    /// The name under which the volume is listed.
    pub export: String,
    /// The volume.
    pub target: Rc<dyn BlockService>,
    /// Size and flags of the session.
    pub session: Session,
}

/// Why a handshake ends without a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    /// The client sent `ABORT`.
    #[error("the client left during the handshake")]
    Abort,
    /// The client uses flags that this server does not know.
    #[error("the client uses unknown handshake flags: {0:#x}")]
    Flags(u32),
    /// The client sent bytes that are not an option.
    #[error("the client sent something that is not an option")]
    Magic,
    /// The client sent too many options.
    #[error("the client sent more than {OPTIONS_MAX} options")]
    TooManyOptions,
    /// The export does not exist; `EXPORT_NAME` has no error reply.
    #[error("the client chose an export that does not exist")]
    UnknownExport,
    /// `EXPORT_NAME` before TLS is used; it has no error reply.
    #[error("the client chose an export with EXPORT_NAME without TLS, which is required")]
    TlsRequired,
    /// `EXPORT_NAME` after extended headers were agreed on; it has no error reply.
    #[error("the client chose an export with EXPORT_NAME although it wants extended headers")]
    Extended,
    /// Options other than `EXPORT_NAME` need the fixed handshake.
    #[error("the client sent an option without agreeing to the fixed handshake")]
    NotFixed,
}

#[derive(Clone, Copy, Debug)]
enum State {
    ClientFlags,
    Option,
    Skip { option: u32, left: u64 },
}

/// Whether a connection is encrypted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Security {
    /// The connection is not encrypted and need not be: the client is on this machine and has
    /// permission to use the socket.
    Local,
    /// The connection is not encrypted and need not be.
    Plain,
    /// The connection must be encrypted before anything else is negotiated.
    Required,
    /// The connection is encrypted.
    Encrypted,
}

/// One client's handshake.
pub struct Handshake {
    state: State,
    security: Security,
    fixed: bool,
    padding: bool,
    headers: Headers,
    /// The metadata contexts that were chosen, and the export for which they hold.
    contexts: Option<(String, Contexts)>,
    device: Option<OutlivingDevice>,
    options: u32,
}

/// Why an option is refused: kind of reply and a text for people.
type Refused = (u32, &'static str);

impl Handshake {
    /// Starts a handshake; appends the greeting to `replies`.
    pub fn new(security: Security, replies: &mut Vec<u8>) -> Self {
        replies.extend_from_slice(Greeting::new().as_bytes());
        Handshake {
            state: State::ClientFlags,
            security,
            fixed: false,
            padding: true,
            headers: Headers::Simple,
            contexts: None,
            device: None,
            options: 0,
        }
    }

    /// Records that the connection is encrypted from here on.
    pub fn secured(&mut self) {
        self.security = Security::Encrypted;
    }

    /// Parses options from `input` and appends the replies. Returns the number of bytes consumed,
    /// and the next step.
    pub fn advance(
        &mut self,
        input: &[u8],
        exports: &dyn Exports,
        replies: &mut Vec<u8>,
    ) -> (usize, HandshakeStep) {
        let mut rest = input;
        let progress = loop {
            if replies.len() >= REPLIES_HIGH {
                break HandshakeStep::Send;
            }
            match self.step(&mut rest, exports, replies) {
                Some(HandshakeStep::Send) => {}
                Some(progress) => break progress,
                None => break HandshakeStep::Receive,
            }
        };
        (input.len() - rest.len(), progress)
    }

    /// Takes one step. Returns `None` if more input is needed, `Send` to continue.
    fn step(
        &mut self,
        rest: &mut &[u8],
        exports: &dyn Exports,
        replies: &mut Vec<u8>,
    ) -> Option<HandshakeStep> {
        match self.state {
            State::ClientFlags => {
                let (flags, after) = U32::read_from_prefix(rest).ok()?;
                *rest = after;
                Some(self.client_flags(flags.get()))
            }
            State::Skip { option, left } => {
                let here = left.min(rest.len() as u64);
                *rest = rest.get(here as usize..)?;
                if left > here {
                    self.state = State::Skip { option, left: left - here };
                    return None;
                }
                let text = "the option is longer than this server reads";
                let refused = match self.security {
                    Security::Required => NO_TLS,
                    _ => (option_reply::ERR_TOO_BIG, text),
                };
                refuse(replies, option, refused);
                self.state = State::Option;
                Some(HandshakeStep::Send)
            }
            State::Option => {
                let (header, after) = OptionHeader::read_from_prefix(rest).ok()?;
                if header.magic.get() != OPTION_MAGIC {
                    return Some(HandshakeStep::Close(Reason::Magic));
                }
                let (option, len) = (header.option.get(), header.len.get() as usize);
                if len <= OPTION_DATA_MAX && after.len() < len {
                    return None;
                }
                self.options += 1;
                if self.options > OPTIONS_MAX {
                    return Some(HandshakeStep::Close(Reason::TooManyOptions));
                }
                if option == option::EXPORT_NAME && len > NAME_MAX {
                    return Some(HandshakeStep::Close(Reason::UnknownExport));
                }
                if !self.fixed && option != option::EXPORT_NAME {
                    return Some(HandshakeStep::Close(Reason::NotFixed));
                }
                if len > OPTION_DATA_MAX {
                    *rest = after;
                    self.state = State::Skip { option, left: len as u64 };
                    return Some(HandshakeStep::Send);
                }
                let (data, after) = after.split_at_checked(len)?;
                *rest = after;
                Some(self.option(option, data, exports, replies))
            }
        }
    }

    fn client_flags(&mut self, flags: u32) -> HandshakeStep {
        let known = u32::from(handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES);
        if flags & !known != 0 {
            return HandshakeStep::Close(Reason::Flags(flags));
        }
        self.fixed = flags & u32::from(handshake_flag::FIXED_NEWSTYLE) != 0;
        self.padding = flags & u32::from(handshake_flag::NO_ZEROES) == 0;
        self.state = State::Option;
        HandshakeStep::Send
    }

    fn option(
        &mut self,
        option: u32,
        data: &[u8],
        exports: &dyn Exports,
        replies: &mut Vec<u8>,
    ) -> HandshakeStep {
        let outcome = match option {
            option::STARTTLS => match self.start_tls(data) {
                Ok(()) => {
                    reply(replies, option, option_reply::ACK, &[]);
                    return HandshakeStep::StartTls;
                }
                Err(refused) => Err(refused),
            },
            option::EXPORT_NAME if self.security == Security::Required => {
                return HandshakeStep::Close(Reason::TlsRequired);
            }
            _ if self.security == Security::Required && option != option::ABORT => Err(NO_TLS),
            option::EXPORT_NAME => return self.export_name(data, exports, replies),
            option::ABORT => {
                reply(replies, option, option_reply::ACK, &[]);
                return HandshakeStep::Close(Reason::Abort);
            }
            option::LIST => list(data, exports, replies),
            option::STRUCTURED_REPLY | option::EXTENDED_HEADERS => self.headers(option, data),
            // Only the kernel of this machine can have devices that belong to this daemon.
            option::OUTLIVING if self.security == Security::Local => {
                let device = OutlivingDevice::from_bytes(data);
                self.device = device.or(self.device);
                device.map(drop).ok_or(DATA)
            }
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT => {
                self.meta_context(option, data, exports, replies)
            }
            option::INFO | option::GO => match self.describe(option, data, exports, replies) {
                Ok(start) if option == option::GO => {
                    reply(replies, option, option_reply::ACK, &[]);
                    return HandshakeStep::Start(start);
                }
                Ok(_) => Ok(()),
                Err(refused) => Err(refused),
            },
            _ => Err((option_reply::ERR_UNSUP, "unknown option")),
        };
        match outcome {
            Ok(()) => reply(replies, option, option_reply::ACK, &[]),
            Err(refused) => refuse(replies, option, refused),
        }
        HandshakeStep::Send
    }

    fn start_tls(&self, data: &[u8]) -> Result<(), Refused> {
        match self.security {
            Security::Local | Security::Plain => {
                Err((option_reply::ERR_UNSUP, "there is no TLS at this address"))
            }
            Security::Encrypted => Err((option_reply::ERR_INVALID, "TLS is in use already")),
            Security::Required if data.is_empty() => Ok(()),
            Security::Required => Err(DATA),
        }
    }

    /// Agrees on the form of requests and replies.
    fn headers(&mut self, option: u32, data: &[u8]) -> Result<(), Refused> {
        if !data.is_empty() {
            return Err(DATA);
        }
        match (option, self.headers) {
            (option::EXTENDED_HEADERS, _) => self.headers = Headers::Extended,
            (_, Headers::Extended) => {
                let text = "extended headers are in use already";
                return Err((option_reply::ERR_EXT_HEADER_REQD, text));
            }
            (_, Headers::Simple | Headers::Structured) => self.headers = Headers::Structured,
        }
        Ok(())
    }

    fn export_name(
        &self,
        data: &[u8],
        exports: &dyn Exports,
        replies: &mut Vec<u8>,
    ) -> HandshakeStep {
        if self.headers == Headers::Extended {
            return HandshakeStep::Close(Reason::Extended);
        }
        let found = std::str::from_utf8(data).ok().and_then(|name| find(name, exports));
        let Some((export, target)) = found else {
            return HandshakeStep::Close(Reason::UnknownExport);
        };
        let start = self.start(export, target);
        replies.extend_from_slice(&start.session.size.to_be_bytes());
        replies.extend_from_slice(&transmission_flags(&start.session).to_be_bytes());
        if self.padding {
            replies.extend_from_slice(&PADDING);
        }
        HandshakeStep::Start(start)
    }

    fn start(&self, export: String, target: Rc<dyn BlockService>) -> Start {
        let session = Session {
            size: target.size() - target.size() % u64::from(target.sectors().logical.max(1)),
            read_only: target.read_only(),
            headers: self.headers,
            contexts: self.contexts_of(&export),
            device: self.device,
        };
        Start { export, target, session }
    }

    /// Returns the metadata contexts that were chosen for an export.
    fn contexts_of(&self, export: &str) -> Contexts {
        let chosen = self.contexts.as_ref().filter(|(chosen_for, _)| chosen_for == export);
        chosen.map_or(Contexts::default(), |(_, contexts)| *contexts)
    }

    /// Answers `INFO` and `GO` up to the acknowledgement.
    fn describe(
        &self,
        option: u32,
        data: &[u8],
        exports: &dyn Exports,
        replies: &mut Vec<u8>,
    ) -> Result<Start, Refused> {
        let mut reader = Reader(data);
        let name = read_string(&mut reader)?;
        let count = reader.u16().ok_or(DATA)?;
        let mut wanted = Vec::with_capacity(2);
        for _ in 0..count {
            let kind = reader.u16().ok_or(DATA)?;
            if matches!(kind, info::NAME | info::DESCRIPTION) && !wanted.contains(&kind) {
                wanted.push(kind);
            }
        }
        if !reader.0.is_empty() {
            return Err(DATA);
        }
        let (export, target) = find(name, exports).ok_or(UNKNOWN)?;
        let start = self.start(export, target);

        let mut fact = |kind: u16, parts: &[&[u8]]| {
            let content = [&[kind.to_be_bytes().as_slice()], parts].concat().concat();
            reply(replies, option, option_reply::INFO, &content);
        };
        let (size, flags) = (U64::new(start.session.size), transmission_flags(&start.session));
        fact(info::EXPORT, &[size.as_bytes(), &flags.to_be_bytes()]);
        let sectors = start.target.sectors();
        let preferred = start.target.preferred_block().max(sectors.physical.into());
        let preferred = preferred.min(u64::from(MAX_PAYLOAD));
        // Many clients ignore the minimum size; their smaller requests are served nevertheless.
        let sizes = [sectors.logical, preferred as u32, MAX_PAYLOAD].map(U32::new);
        fact(info::BLOCK_SIZE, &[sizes.as_bytes()]);
        for kind in wanted {
            match kind {
                info::NAME => fact(kind, &[start.export.as_bytes()]),
                _ => fact(kind, &[b"Forebay volume ", start.export.as_bytes()]),
            }
        }
        Ok(start)
    }

    fn meta_context(
        &mut self,
        option: u32,
        data: &[u8],
        exports: &dyn Exports,
        replies: &mut Vec<u8>,
    ) -> Result<(), Refused> {
        let set = option == option::SET_META_CONTEXT;
        if set {
            // Contexts of an earlier option do not survive, even if this one is invalid.
            self.contexts = None;
        }
        if !self.headers.has_chunks() {
            return Err((option_reply::ERR_INVALID, "agree on structured replies first"));
        }
        let mut reader = Reader(data);
        let name = read_string(&mut reader)?;
        let count = reader.u32().ok_or(DATA)?;
        // A list without queries is a list of all.
        let all = count == 0 && !set;
        let mut chosen = Contexts { allocation: all, state: all };
        for _ in 0..count {
            let query = read_string(&mut reader)?;
            chosen.allocation |= query == allocation::NAME || (!set && query == "base:");
            chosen.state |= query == state::NAME || (!set && query == "forebay:");
        }
        if !reader.0.is_empty() {
            return Err(DATA);
        }
        let (export, _) = find(name, exports).ok_or(UNKNOWN)?;
        for (chosen, id, name) in [
            (chosen.allocation, allocation::ID, allocation::NAME),
            (chosen.state, state::ID, state::NAME),
        ] {
            if chosen {
                let id = if set { id } else { 0 };
                let content = [&id.to_be_bytes(), name.as_bytes()].concat();
                reply(replies, option, option_reply::META_CONTEXT, &content);
            }
        }
        if set {
            self.contexts = Some((export, chosen));
        }
        Ok(())
    }
}

const DATA: Refused = (option_reply::ERR_INVALID, "the option's data are malformed");
const NO_TLS: Refused = (option_reply::ERR_TLS_REQD, "start TLS first");
const UNKNOWN: Refused = (option_reply::ERR_UNKNOWN, "there is no started volume of this name");

fn read_string<'a>(reader: &mut Reader<'a>) -> Result<&'a str, Refused> {
    let len = reader.u32().ok_or(DATA)? as usize;
    if len > NAME_MAX {
        return Err((option_reply::ERR_TOO_BIG, "a name is longer than 4096 bytes"));
    }
    let bytes = reader.bytes(len).ok_or(DATA)?;
    std::str::from_utf8(bytes).map_err(|_| (option_reply::ERR_INVALID, "a name is not UTF-8"))
}

/// Returns the volume of this name; the empty name stands for the first one.
fn find(name: &str, exports: &dyn Exports) -> Option<(String, Rc<dyn BlockService>)> {
    if !name.is_empty() {
        return exports.open(name).map(|target| (name.to_owned(), target));
    }
    exports.names().into_iter().find_map(|name| {
        let target = exports.open(&name)?;
        Some((name, target))
    })
}

fn list(data: &[u8], exports: &dyn Exports, replies: &mut Vec<u8>) -> Result<(), Refused> {
    if !data.is_empty() {
        return Err(DATA);
    }
    for name in exports.names() {
        let content = [&(name.len() as u32).to_be_bytes(), name.as_bytes()].concat();
        reply(replies, option::LIST, option_reply::SERVER, &content);
    }
    Ok(())
}

/// Returns the transmission flags of an export.
pub fn transmission_flags(session: &Session) -> u16 {
    use transmission_flag::*;
    let mut flags = HAS_FLAGS | SEND_FLUSH | SEND_FUA | CAN_MULTI_CONN | SEND_CACHE;
    if session.device.is_some_and(|device| !device.flushes) {
        // Linux takes a device without these flags for one without a volatile write cache.
        flags &= !(SEND_FLUSH | SEND_FUA);
    }
    if session.read_only {
        flags |= READ_ONLY;
    } else {
        flags |= SEND_TRIM | SEND_WRITE_ZEROES | SEND_FAST_ZERO;
    }
    if session.headers.has_chunks() {
        flags |= SEND_DF;
    }
    flags
}

fn reply(replies: &mut Vec<u8>, option: u32, kind: u32, data: &[u8]) {
    let header = OptionReplyHeader {
        magic: U64::new(OPTION_REPLY_MAGIC),
        option: U32::new(option),
        kind: U32::new(kind),
        len: U32::new(data.len() as u32),
    };
    replies.extend_from_slice(header.as_bytes());
    replies.extend_from_slice(data);
}

fn refuse(replies: &mut Vec<u8>, option: u32, (kind, text): Refused) {
    reply(replies, option, kind, text.as_bytes());
}

#[cfg(test)]
mod tests;
