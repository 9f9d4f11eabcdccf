//! Parses requests of the kernel: bytes to a [`FuseRequest`]. Every length is checked. No I/O.

use rustix::fs::OFlags;
use zerocopy::FromBytes;

use crate::wire::{
    self, FallocateIn, IN_HEADER, InHeader, InitIn, OpenIn, ReadIn, SetAttrIn, WriteIn, opcode,
};

/// Identifies a request to the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RequestId(pub u64);

/// The operation that the kernel requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FuseRequest {
    /// Negotiate.
    Init {
        /// The kernel's version.
        major: u32,
        /// See `major`.
        minor: u32,
        /// Bytes.
        max_readahead: u32,
        /// See [`wire::init_flag`].
        flags: u32,
        /// Flags behind [`wire::init_flag::MORE`].
        more: u32,
    },
    /// Look up a name; the file has none.
    Lookup,
    /// Report the attributes.
    GetAttr,
    /// Change attributes.
    SetAttr {
        /// The new size in bytes, if the size is the only attribute to be changed.
        size: Option<u64>,
    },
    /// Open the file.
    Open {
        /// Whether the file is opened for writes as well.
        writes: bool,
    },
    /// Read.
    Read {
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u32,
    },
    /// Write; the data are behind [`wire::WRITE_HEADER`].
    Write {
        /// First byte.
        offset: u64,
        /// Bytes; the message has as many.
        len: u32,
        /// Must be durable before the reply.
        durable: bool,
    },
    /// Report the size of the file system.
    StatFs,
    /// Close the file.
    Release,
    /// Make writes durable.
    Fsync,
    /// Report errors of earlier writes.
    Flush,
    /// Change how a range is stored.
    Fallocate {
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
        /// See [`wire::fallocate_mode`].
        mode: u32,
    },
    /// End the connection.
    Destroy,
    /// Needs no reply.
    Notice,
    /// Anything else.
    Unknown,
}

/// A request with its identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// Returned in the reply.
    pub id: RequestId,
    /// The node to which the request applies.
    pub node: u64,
    /// The requested operation.
    pub request: FuseRequest,
}

/// Why bytes are not a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// The message has no complete header, so no reply is possible.
    #[error("a message of {0} bytes has no header")]
    NoHeader(usize),
    /// The length in the header differs from that of the message.
    #[error("a message of {found} bytes says that it has {said}")]
    Length {
        /// The request.
        id: RequestId,
        /// Bytes of the message.
        found: usize,
        /// Number of bytes in the header.
        said: u32,
    },
    /// Parameters are incomplete, or data are missing or too long.
    #[error("a request with opcode {opcode} has {found} bytes")]
    Body {
        /// The request.
        id: RequestId,
        /// The opcode of the request.
        opcode: u32,
        /// Bytes of the message.
        found: usize,
    },
}

impl Malformed {
    /// Returns the ID of the request, if it can be answered.
    pub fn id(&self) -> Option<RequestId> {
        match *self {
            Malformed::NoHeader(_) => None,
            Malformed::Length { id, .. } | Malformed::Body { id, .. } => Some(id),
        }
    }
}

/// Parses one message.
///
/// # Errors
/// See [`Malformed`].
pub fn parse(message: &[u8]) -> Result<Message, Malformed> {
    let found = message.len();
    let Ok((header, body)) = InHeader::read_from_prefix(message) else {
        return Err(Malformed::NoHeader(found));
    };
    let id = RequestId(header.unique);
    if usize::try_from(header.len) != Ok(found) {
        return Err(Malformed::Length { id, found, said: header.len });
    }
    message_of(&header, (body, None), found)
}

/// Parses a request whose header, parameters and data are in different buffers. Bytes behind the
/// header and behind the parameters in their buffers are ignored.
///
/// # Errors
/// See [`Malformed`].
pub fn parse_entry(header: &[u8], parameters: &[u8], data: usize) -> Result<Message, Malformed> {
    let Ok((header, _)) = InHeader::read_from_prefix(header) else {
        return Err(Malformed::NoHeader(header.len()));
    };
    message_of(&header, (parameters, Some(data)), header.len as usize)
}

fn message_of(
    header: &InHeader,
    (body, data): (&[u8], Option<usize>),
    found: usize,
) -> Result<Message, Malformed> {
    let id = RequestId(header.unique);
    let malformed = Malformed::Body { id, opcode: header.opcode, found };
    let request = request(header.opcode, body, data).ok_or(malformed)?;
    Ok(Message { id, node: header.node, request })
}

/// Parses the parameters and data, of which `data` bytes are elsewhere or at the end of `body`.
/// `None`: `body` is too short, or the length of the data differs from the announced one.
fn request(number: u32, body: &[u8], data: Option<usize>) -> Option<FuseRequest> {
    Some(match number {
        opcode::INIT => {
            let (init, rest) = InitIn::read_from_prefix(body).ok()?;
            let InitIn { major, minor, max_readahead, flags } = init;
            let more = rest.first_chunk().filter(|_| flags & wire::init_flag::MORE != 0);
            let more = u32::from_ne_bytes(more.copied().unwrap_or_default());
            FuseRequest::Init { major, minor, max_readahead, flags, more }
        }
        opcode::LOOKUP => FuseRequest::Lookup,
        opcode::GETATTR => FuseRequest::GetAttr,
        opcode::SETATTR => {
            let (set, _) = SetAttrIn::read_from_prefix(body).ok()?;
            // File handle and lock owner identify the caller; they are not attributes.
            const WHO: u32 = 1 << 6 | 1 << 9;
            let size_alone = set.valid & !WHO == wire::SETATTR_SIZE;
            FuseRequest::SetAttr { size: size_alone.then_some(set.size) }
        }
        opcode::OPEN => {
            let (open, _) = OpenIn::read_from_prefix(body).ok()?;
            let access = OFlags::from_bits_retain(open.flags) & OFlags::RWMODE;
            FuseRequest::Open { writes: access != OFlags::RDONLY }
        }
        opcode::READ => {
            let (read, _) = ReadIn::read_from_prefix(body).ok()?;
            FuseRequest::Read { offset: read.offset, len: read.size }
        }
        opcode::WRITE => {
            let (write, behind) = WriteIn::read_from_prefix(body).ok()?;
            if usize::try_from(write.size) != Ok(data.unwrap_or(behind.len())) {
                return None;
            }
            let durable = write.flags & OFlags::DSYNC.bits() != 0;
            FuseRequest::Write { offset: write.offset, len: write.size, durable }
        }
        opcode::STATFS => FuseRequest::StatFs,
        opcode::RELEASE => FuseRequest::Release,
        opcode::FSYNC => FuseRequest::Fsync,
        opcode::FLUSH => FuseRequest::Flush,
        opcode::FALLOCATE => {
            let (change, _) = FallocateIn::read_from_prefix(body).ok()?;
            let FallocateIn { offset, len, mode, .. } = change;
            FuseRequest::Fallocate { offset, len, mode }
        }
        opcode::DESTROY => FuseRequest::Destroy,
        opcode::FORGET | opcode::BATCH_FORGET | opcode::NOTIFY_REPLY => FuseRequest::Notice,
        _ => FuseRequest::Unknown,
    })
}

/// Returns the range of a read or write at the start of `message`, as an unchecked hint: whether it
/// is a write, and its first byte.
pub fn coming(message: &[u8]) -> Option<(bool, u64)> {
    let (header, body) = InHeader::read_from_prefix(message).ok()?;
    let (read, _) = ReadIn::read_from_prefix(body).ok()?;
    match header.opcode {
        opcode::READ => Some((false, read.offset)),
        opcode::WRITE => Some((true, read.offset)),
        _ => None,
    }
}

const _: () = assert!(IN_HEADER == size_of::<InHeader>());

#[cfg(test)]
mod tests;
