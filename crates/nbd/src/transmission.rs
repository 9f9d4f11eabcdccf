//! Parses requests of the transmission phase: bytes to commands or refusals.
//!
//! No I/O. The [`Parser`] gets the bytes received so far and returns the next event in them. It
//! reads no further than that, allocates nothing, and skips the data of refused writes.

use forebay_core::{Op, SECTOR_SIZE, Survives};

use crate::outliving::OutlivingDevice;
use crate::status::Contexts;
use crate::wire::{ErrorCode, Header, Headers, ReplyTo, command, command_flag};

/// Largest read or write, in bytes.
pub const MAX_PAYLOAD: u32 = 32 << 20;

/// Result of the handshake.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Session {
    /// Size of the export in bytes, a multiple of 512.
    pub size: u64,
    /// Writes are refused.
    pub read_only: bool,
    /// The form of requests and replies.
    pub headers: Headers,
    /// The metadata contexts that the client may query.
    pub contexts: Contexts,
    /// The device that the client is, which outlives the connection: each write survives the daemon
    /// before it is answered, see [`OUTLIVING`](crate::wire::option::OUTLIVING).
    pub device: Option<OutlivingDevice>,
}

/// The effect of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestEffect {
    /// An operation of the volume.
    Volume {
        /// The operation.
        op: Op,
        /// Must survive this before the reply.
        survives: Survives,
        /// Must fail rather than be slow (`WriteZeroes` only).
        fast: bool,
        /// The zeroes must stay allocated (`WriteZeroes` only).
        no_hole: bool,
    },
    /// A query of the metadata contexts.
    BlockStatus {
        /// The client wants one extent only.
        one: bool,
    },
}

/// A valid request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Command {
    /// Returned in the reply.
    pub cookie: u64,
    /// The effect of the request.
    pub kind: RequestEffect,
    /// First byte, a multiple of 512.
    pub offset: u64,
    /// Length in bytes, a multiple of 512; `offset + len` is inside the export. At most
    /// [`MAX_PAYLOAD`] for reads and writes.
    pub len: u64,
}

impl Command {
    /// Returns the request for its reply.
    pub fn to(&self) -> ReplyTo {
        ReplyTo { cookie: self.cookie, offset: self.offset }
    }
}

/// A request that is answered with an error without asking the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The request.
    pub to: ReplyTo,
    /// The error code.
    pub error: ErrorCode,
    /// The reason, for people.
    pub message: &'static str,
}

/// Result of checking a request header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The request is valid.
    Accept(Command),
    /// The request is answered with an error, after its payload is skipped.
    Refuse(Refusal),
    /// The client disconnects.
    Disconnect,
}

/// The next request cannot be found, or its payload is too long to skip.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StreamError {
    /// The stream is not a sequence of requests.
    #[error("a request starts with {found:#010x} instead of the magic number")]
    BadMagic {
        /// The number found instead.
        found: u32,
    },
    /// An extended request has a larger payload than the client agreed to send.
    #[error("a request announces a payload of {len} bytes, more than 32 MiB")]
    Payload {
        /// Bytes of the payload.
        len: u64,
    },
}

/// The next event in the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// More bytes are needed: at least this many behind the unconsumed ones.
    Incomplete {
        /// Bytes, at least 1.
        missing: usize,
    },
    /// A request with its payload, which is empty unless it is a write.
    Command {
        /// The request.
        command: Command,
        /// The data of the command.
        payload: &'a [u8],
    },
    /// A write whose data are larger than the window and incomplete. The caller receives the
    /// remaining `command.len - start.len()` bytes itself.
    LargeWrite {
        /// The request.
        command: Command,
        /// The data received so far.
        start: &'a [u8],
    },
    /// A request to be answered with an error.
    Refused(Refusal),
    /// The client disconnects.
    Disconnect,
}

/// Finds requests in a stream of bytes.
#[derive(Debug)]
pub struct Parser {
    session: Session,
    window: usize,
    skip: u64,
    refusal: Option<Refusal>,
}

impl Parser {
    /// Creates a parser for a session. Writes of up to `window` bytes are collected in the caller's
    /// buffer, which must have space for one more header.
    pub fn new(session: Session, window: usize) -> Self {
        Parser { session, window, skip: 0, refusal: None }
    }

    /// Changes the window, see [`Parser::new`].
    pub fn set_window(&mut self, window: usize) {
        self.window = window;
    }

    /// Returns the session.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// Returns whether the unconsumed bytes begin with a request, so that another parser can
    /// continue there.
    pub fn is_between_requests(&self) -> bool {
        self.skip == 0
    }

    /// Refuses a write of which `rest` bytes of data have not arrived.
    pub(crate) fn refuse(&mut self, refusal: Refusal, rest: u64) {
        self.skip = rest;
        self.refusal = Some(refusal);
    }

    /// Returns the number of bytes of `input` consumed, and the next event.
    ///
    /// # Errors
    /// See [`StreamError`]; nothing more can be read from this stream.
    pub fn next<'a>(&mut self, input: &'a [u8]) -> Result<(usize, Event<'a>), StreamError> {
        if self.skip > 0 {
            let here = self.skip.min(input.len() as u64);
            self.skip -= here;
            if self.skip > 0 {
                let missing = usize::try_from(self.skip).unwrap_or(usize::MAX);
                return Ok((here as usize, Event::Incomplete { missing }));
            }
            if let Some(refusal) = self.refusal.take() {
                return Ok((here as usize, Event::Refused(refusal)));
            }
        }
        let headers = self.session.headers;
        let size = Header::size(headers);
        let header = Header::read(input, headers);
        let Some((header, rest)) = header.map_err(|found| StreamError::BadMagic { found })? else {
            return Ok((0, Event::Incomplete { missing: size - input.len() }));
        };
        let payload = header.payload(headers);
        if headers == Headers::Extended && payload > u64::from(MAX_PAYLOAD) {
            return Err(StreamError::Payload { len: payload });
        }
        // At most 4 GiB: compact headers have 32 bits.
        let payload_len = payload as usize;
        match judge(&header, &self.session) {
            Verdict::Disconnect => Ok((size, Event::Disconnect)),
            Verdict::Refuse(refusal) => {
                let here = payload_len.min(rest.len());
                let consumed = size + here;
                if here == payload_len {
                    return Ok((consumed, Event::Refused(refusal)));
                }
                self.skip = (payload_len - here) as u64;
                self.refusal = Some(refusal);
                Ok((consumed, Event::Incomplete { missing: payload_len - here }))
            }
            Verdict::Accept(command) => match rest.get(..payload_len) {
                Some(payload) => {
                    let consumed = size + payload_len;
                    Ok((consumed, Event::Command { command, payload }))
                }
                None if payload_len <= self.window => {
                    Ok((0, Event::Incomplete { missing: payload_len - rest.len() }))
                }
                None => Ok((input.len(), Event::LargeWrite { command, start: rest })),
            },
        }
    }
}

/// A read or write found in received bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// `Read` or `Write`.
    pub op: Op,
    /// First byte, not validated.
    pub offset: u64,
    /// Bytes up to the next request.
    pub bytes: usize,
}

/// Parses a read or write at the start of `input`, as a hint: nothing but the magic number and the
/// command is checked.
pub fn waiting(input: &[u8], headers: Headers) -> Option<Waiting> {
    let (header, _) = Header::read(input, headers).ok()??;
    let op = match header.command {
        command::READ => Op::Read,
        command::WRITE => Op::Write,
        _ => return None,
    };
    let payload = usize::try_from(header.payload(headers)).unwrap_or(usize::MAX);
    let bytes = Header::size(headers).saturating_add(payload);
    Some(Waiting { op, offset: header.offset, bytes })
}

/// Returns the kind of a command and the flags that it allows besides FUA; `None`: it is unknown.
fn classify(command: u16, flags: u16, headers: Headers) -> Option<(RequestEffect, u16)> {
    use command_flag::{DF, FAST_ZERO, FUA, NO_HOLE, PAYLOAD_LEN, REQ_ONE};

    let volume = |op| RequestEffect::Volume {
        op,
        survives: if flags & FUA != 0 { Survives::PowerLoss } else { Survives::Nothing },
        fast: flags & FAST_ZERO != 0,
        no_hole: flags & NO_HOLE != 0,
    };
    Some(match command {
        command::READ => (volume(Op::Read), if headers.has_chunks() { DF } else { 0 }),
        command::WRITE => {
            (volume(Op::Write), if headers == Headers::Extended { PAYLOAD_LEN } else { 0 })
        }
        command::FLUSH => (volume(Op::Flush), 0),
        command::TRIM => (volume(Op::Discard), 0),
        command::CACHE => (volume(Op::Prefetch), 0),
        command::WRITE_ZEROES => (volume(Op::WriteZeroes), NO_HOLE | FAST_ZERO),
        command::BLOCK_STATUS => {
            (RequestEffect::BlockStatus { one: flags & REQ_ONE != 0 }, REQ_ONE)
        }
        _ => return None,
    })
}

/// Checks the length of a request against the limits of this server.
fn check_length(header: &Header, session: &Session) -> Result<(), (ErrorCode, &'static str)> {
    let Header { flags, command, offset, len, .. } = *header;
    let extended = session.headers == Headers::Extended;
    let carries_data = matches!(command, command::READ | command::WRITE);
    if carries_data && len > u64::from(MAX_PAYLOAD) {
        let may_split = flags & command_flag::DF != 0 || extended;
        let error = if may_split { ErrorCode::Overflow } else { ErrorCode::Invalid };
        return Err((error, "the request is larger than 32 MiB"));
    }
    if command == command::CACHE && len > u64::from(u32::MAX) {
        // A cache request reads the range.
        return Err((ErrorCode::Overflow, "at most 4 GiB can be cached at once"));
    }
    if command == command::FLUSH && (offset != 0 || len != 0) {
        return Err((ErrorCode::Invalid, "a flush has no offset and no length"));
    }
    if command == command::BLOCK_STATUS && (session.contexts.is_empty() || len == 0) {
        return Err((ErrorCode::Invalid, "block status needs a metadata context and a length"));
    }
    Ok(())
}

/// Checks one request from its header alone.
pub fn judge(header: &Header, session: &Session) -> Verdict {
    let Header { flags, command, cookie, offset, len } = *header;
    let to = ReplyTo { cookie, offset };
    let refuse = |error, message| Verdict::Refuse(Refusal { to, error, message });
    if command == command::DISC {
        return Verdict::Disconnect;
    }
    let Some((mut kind, allowed)) = classify(command, flags, session.headers) else {
        return refuse(ErrorCode::Invalid, "unknown command");
    };
    // FUA has no meaning for commands that do not write, but is allowed.
    if flags & !(allowed | command_flag::FUA) != 0 {
        return refuse(ErrorCode::Invalid, "a flag is not allowed on this command");
    }
    if allowed & command_flag::PAYLOAD_LEN != 0 && flags & command_flag::PAYLOAD_LEN == 0 {
        return refuse(ErrorCode::Invalid, "a write without a payload");
    }
    let writes = matches!(command, command::WRITE | command::TRIM | command::WRITE_ZEROES);
    if writes && session.read_only {
        return refuse(ErrorCode::Permission, "the export is read-only");
    }
    if let (RequestEffect::Volume { survives, .. }, Some(device), true) =
        (&mut kind, session.device, writes)
    {
        *survives = device.promise().max(*survives);
    }
    if let Err((error, message)) = check_length(header, session) {
        return refuse(error, message);
    }
    if !offset.is_multiple_of(SECTOR_SIZE) || !len.is_multiple_of(SECTOR_SIZE) {
        return refuse(ErrorCode::Invalid, "offset and length must be multiples of 512");
    }
    if offset.checked_add(len).is_none_or(|end| end > session.size) {
        let grows = matches!(command, command::WRITE | command::WRITE_ZEROES);
        let error = if grows { ErrorCode::NoSpace } else { ErrorCode::Invalid };
        return refuse(error, "the range ends beyond the end of the export");
    }
    Verdict::Accept(Command { cookie, kind, offset, len })
}

#[cfg(test)]
mod tests;
