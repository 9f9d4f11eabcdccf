//! Parses requests of the transmission phase: bytes to commands or refusals.
//!
//! Pure. The [`Parser`] gets the bytes received so far and returns the next event in them. It reads
//! no further than that, allocates nothing, and skips the data of refused writes.

use forebay_core::{Op, SECTOR_SIZE};
use zerocopy::FromBytes;

use crate::wire::{ErrorCode, REQUEST_MAGIC, RequestHeader, command, command_flag};

/// Largest read or write, in bytes.
pub const MAX_PAYLOAD: u32 = 32 << 20;

/// Result of the handshake.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Session {
    /// Size of the export in bytes, a multiple of 512.
    pub size: u64,
    /// Writes are refused.
    pub read_only: bool,
    /// Reads are answered with structured replies.
    pub structured: bool,
    /// The client may query `base:allocation`.
    pub allocation: bool,
}

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// An operation of the volume.
    Volume {
        /// The operation.
        op: Op,
        /// Must be durable before the reply (FUA).
        fua: bool,
        /// Must fail rather than be slow (`WriteZeroes` only).
        fast: bool,
        /// The zeroes must stay allocated (`WriteZeroes` only).
        no_hole: bool,
    },
    /// A query of the allocation status.
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
    /// What the request does.
    pub kind: Kind,
    /// First byte, a multiple of 512.
    pub offset: u64,
    /// Length in bytes, a multiple of 512; with `offset` it ends inside the export.
    pub len: u32,
}

/// A request that is answered with an error without asking the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Returned in the reply.
    pub cookie: u64,
    /// The error code.
    pub error: ErrorCode,
    /// The reason, for people.
    pub message: &'static str,
    /// Whether the reply must be a chunk rather than a simple reply.
    pub structured: bool,
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

/// The stream is not a sequence of requests; the next one cannot be found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a request starts with {found:#010x} instead of {REQUEST_MAGIC:#010x}")]
pub struct BadMagic {
    /// The number found instead.
    pub found: u32,
}

/// The next event in the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// More bytes are needed: at least this many beyond the given bytes that are not consumed.
    Incomplete {
        /// Bytes, at least 1.
        missing: usize,
    },
    /// A request with its payload, which is empty unless it is a write.
    Command {
        /// The request.
        command: Command,
        /// Its data.
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
    /// Makes a parser for a session. Writes of up to `window` bytes are collected in the caller's
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

    /// Whether the bytes that are not consumed begin with a request: another parser can go on there.
    pub fn is_between_requests(&self) -> bool {
        self.skip == 0
    }

    /// Returns the number of bytes of `input` consumed, and the next event.
    ///
    /// # Errors
    /// There is no request where one should start; nothing more can be read from this stream.
    pub fn next<'a>(&mut self, input: &'a [u8]) -> Result<(usize, Event<'a>), BadMagic> {
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
        let Ok((header, rest)) = RequestHeader::read_from_prefix(input) else {
            return Ok((0, Event::Incomplete { missing: RequestHeader::SIZE - input.len() }));
        };
        if header.magic.get() != REQUEST_MAGIC {
            return Err(BadMagic { found: header.magic.get() });
        }
        let is_write = header.command.get() == command::WRITE;
        let payload_len = if is_write { header.len.get() as usize } else { 0 };
        match judge(&header, &self.session) {
            Verdict::Disconnect => Ok((RequestHeader::SIZE, Event::Disconnect)),
            Verdict::Refuse(refusal) => {
                let here = payload_len.min(rest.len());
                let consumed = RequestHeader::SIZE + here;
                if here == payload_len {
                    return Ok((consumed, Event::Refused(refusal)));
                }
                self.skip = (payload_len - here) as u64;
                self.refusal = Some(refusal);
                Ok((consumed, Event::Incomplete { missing: payload_len - here }))
            }
            Verdict::Accept(command) => match rest.get(..payload_len) {
                Some(payload) => {
                    let consumed = RequestHeader::SIZE + payload_len;
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
pub fn waiting(input: &[u8]) -> Option<Waiting> {
    let (header, _) = RequestHeader::read_from_prefix(input).ok()?;
    let (op, payload) = match header.command.get() {
        command::READ => (Op::Read, 0),
        command::WRITE => (Op::Write, header.len.get() as usize),
        _ => return None,
    };
    let bytes = RequestHeader::SIZE.saturating_add(payload);
    (header.magic.get() == REQUEST_MAGIC).then_some(Waiting {
        op,
        offset: header.offset.get(),
        bytes,
    })
}

/// Checks one request from its header alone.
pub fn judge(header: &RequestHeader, session: &Session) -> Verdict {
    use command_flag::{DF, FAST_ZERO, FUA, NO_HOLE, REQ_ONE};

    let (flags, offset, len) = (header.flags.get(), header.offset.get(), header.len.get());
    let cookie = header.cookie.get();
    let command = header.command.get();
    let refuse = |error, message| {
        // Once structured replies are negotiated, errors of reads and block status must be chunks;
        // other errors are sent as chunks too, because a chunk has space for the reason.
        Verdict::Refuse(Refusal { cookie, error, message, structured: session.structured })
    };
    let volume = |op| Kind::Volume {
        op,
        fua: flags & FUA != 0,
        fast: flags & FAST_ZERO != 0,
        no_hole: flags & NO_HOLE != 0,
    };
    let (kind, allowed) = match command {
        command::READ => (volume(Op::Read), if session.structured { DF } else { 0 }),
        command::WRITE => (volume(Op::Write), 0),
        command::DISC => return Verdict::Disconnect,
        command::FLUSH => (volume(Op::Flush), 0),
        command::TRIM => (volume(Op::Discard), 0),
        command::CACHE => (volume(Op::Prefetch), 0),
        command::WRITE_ZEROES => (volume(Op::WriteZeroes), NO_HOLE | FAST_ZERO),
        command::BLOCK_STATUS => (Kind::BlockStatus { one: flags & REQ_ONE != 0 }, REQ_ONE),
        _ => return refuse(ErrorCode::Invalid, "unknown command"),
    };
    // FUA is meaningless but allowed where nothing is written.
    if flags & !(allowed | FUA) != 0 {
        return refuse(ErrorCode::Invalid, "a flag is not allowed on this command");
    }
    let writes = matches!(command, command::WRITE | command::TRIM | command::WRITE_ZEROES);
    if writes && session.read_only {
        return refuse(ErrorCode::Permission, "the export is read-only");
    }
    let carries_data = matches!(command, command::READ | command::WRITE);
    if carries_data && len > MAX_PAYLOAD {
        let error = if flags & DF != 0 { ErrorCode::Overflow } else { ErrorCode::Invalid };
        return refuse(error, "the request is larger than 32 MiB");
    }
    if command == command::FLUSH && (offset != 0 || len != 0) {
        return refuse(ErrorCode::Invalid, "a flush has no offset and no length");
    }
    if command == command::BLOCK_STATUS && (!session.allocation || len == 0) {
        return refuse(ErrorCode::Invalid, "block status needs base:allocation and a length");
    }
    if !offset.is_multiple_of(SECTOR_SIZE) || !u64::from(len).is_multiple_of(SECTOR_SIZE) {
        return refuse(ErrorCode::Invalid, "offset and length must be multiples of 512");
    }
    if offset.checked_add(u64::from(len)).is_none_or(|end| end > session.size) {
        let grows = matches!(command, command::WRITE | command::WRITE_ZEROES);
        let error = if grows { ErrorCode::NoSpace } else { ErrorCode::Invalid };
        return refuse(error, "the range ends beyond the end of the export");
    }
    Verdict::Accept(Command { cookie, kind, offset, len })
}

#[cfg(test)]
mod tests;
