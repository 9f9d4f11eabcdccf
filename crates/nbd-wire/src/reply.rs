//! The server's side of the protocol: greeting, replies to options, replies to requests.

use forebay_core::IoError;
use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::{
    CHUNK_MAGIC, EXTENDED_CHUNK_MAGIC, GREETING_MAGIC, OPTION_MAGIC, SIMPLE_REPLY_MAGIC, chunk,
    handshake_flag,
};

/// The form of requests and replies that client and server have agreed on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Headers {
    /// Compact requests, simple replies.
    #[default]
    Simple,
    /// Compact requests; replies with data, and errors, are chunks.
    Structured,
    /// Extended requests; every reply is an extended chunk.
    Extended,
}

impl Headers {
    /// Returns whether replies can be chunks.
    pub fn has_chunks(self) -> bool {
        self != Headers::Simple
    }

    /// Returns the bytes of a chunk's header.
    pub fn chunk_header(self) -> usize {
        match self {
            Headers::Simple | Headers::Structured => ChunkHeader::SIZE,
            Headers::Extended => ExtendedChunkHeader::SIZE,
        }
    }
}

/// The request that a reply belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplyTo {
    /// Cookie of the request.
    pub cookie: u64,
    /// Offset of the request, which extended replies repeat.
    pub offset: u64,
}

/// Error codes of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum ErrorCode {
    /// A write, and the export is read-only.
    Permission = 1,
    /// The data could not be read or written.
    Io = 5,
    /// The request is invalid here.
    Invalid = 22,
    /// A write beyond the end of the export.
    NoSpace = 28,
    /// The request is too large for one chunk.
    Overflow = 75,
    /// Not supported, or not fast.
    NotSupported = 95,
    /// The export is shutting down.
    Shutdown = 108,
}

impl From<IoError> for ErrorCode {
    fn from(error: IoError) -> Self {
        match error {
            IoError::Invalid => ErrorCode::Invalid,
            IoError::NoSpace => ErrorCode::NoSpace,
            IoError::Io => ErrorCode::Io,
            IoError::ReadOnly => ErrorCode::Permission,
            IoError::ShuttingDown => ErrorCode::Shutdown,
            IoError::NotSupported => ErrorCode::NotSupported,
        }
    }
}

/// The server's greeting.
#[derive(IntoBytes, Immutable, Unaligned)]
#[repr(C)]
pub struct Greeting {
    magic: U64,
    option_magic: U64,
    flags: U16,
}

impl Greeting {
    /// Creates the greeting of this server.
    pub fn new() -> Self {
        Greeting {
            magic: U64::new(GREETING_MAGIC),
            option_magic: U64::new(OPTION_MAGIC),
            flags: U16::new(handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES),
        }
    }
}

impl Default for Greeting {
    fn default() -> Self {
        Self::new()
    }
}

/// Header of an option.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
pub struct OptionHeader {
    /// [`OPTION_MAGIC`].
    pub magic: U64,
    /// One of [`option`].
    pub option: U32,
    /// Bytes of data that follow.
    pub len: U32,
}

impl OptionHeader {
    /// Bytes on the wire.
    pub const SIZE: usize = size_of::<Self>();
}

/// Header of a reply to an option.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
pub struct OptionReplyHeader {
    /// [`OPTION_REPLY_MAGIC`].
    pub magic: U64,
    /// The option being answered.
    pub option: U32,
    /// One of [`option_reply`].
    pub kind: U32,
    /// Bytes of data that follow.
    pub len: U32,
}

/// Header of a simple reply; the data of a read follow if there is no error.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
pub struct SimpleReply {
    /// [`SIMPLE_REPLY_MAGIC`].
    pub magic: U32,
    /// 0 or an [`ErrorCode`].
    pub error: U32,
    /// Cookie of the request.
    pub cookie: U64,
}

impl SimpleReply {
    /// Bytes on the wire.
    pub const SIZE: usize = size_of::<Self>();

    /// Creates a reply to the request with this cookie.
    pub fn new(cookie: u64, error: Option<ErrorCode>) -> Self {
        SimpleReply {
            magic: U32::new(SIMPLE_REPLY_MAGIC),
            error: U32::new(error.map_or(0, |code| code as u32)),
            cookie: U64::new(cookie),
        }
    }

    /// Returns the error of the reply at the start of `input`, 0 for success; `None`: there is no
    /// whole simple reply.
    pub fn error_in(input: &[u8]) -> Option<u32> {
        let (reply, _) = Self::read_from_prefix(input).ok()?;
        (reply.magic.get() == SIMPLE_REPLY_MAGIC).then(|| reply.error.get())
    }
}

/// Header of a chunk.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
pub struct ChunkHeader {
    /// [`CHUNK_MAGIC`].
    pub magic: U32,
    /// [`chunk::FLAG_DONE`] or 0.
    pub flags: U16,
    /// One of [`chunk`].
    pub kind: U16,
    /// Cookie of the request.
    pub cookie: U64,
    /// Bytes of content that follow.
    pub len: U32,
}

impl ChunkHeader {
    /// Bytes on the wire.
    pub const SIZE: usize = size_of::<Self>();

    /// Creates the header of a chunk.
    pub fn new(cookie: u64, flags: u16, kind: u16, len: u32) -> Self {
        ChunkHeader {
            magic: U32::new(CHUNK_MAGIC),
            flags: U16::new(flags),
            kind: U16::new(kind),
            cookie: U64::new(cookie),
            len: U32::new(len),
        }
    }
}

/// Header of an extended chunk.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
pub struct ExtendedChunkHeader {
    /// [`EXTENDED_CHUNK_MAGIC`].
    pub magic: U32,
    /// [`chunk::FLAG_DONE`] or 0.
    pub flags: U16,
    /// One of [`chunk`].
    pub kind: U16,
    /// Cookie of the request.
    pub cookie: U64,
    /// Offset of the request.
    pub offset: U64,
    /// Bytes of content that follow.
    pub len: U64,
}

impl ExtendedChunkHeader {
    /// Bytes on the wire.
    pub const SIZE: usize = size_of::<Self>();

    /// Creates the header of a chunk.
    pub fn new(to: ReplyTo, flags: u16, kind: u16, len: u32) -> Self {
        ExtendedChunkHeader {
            magic: U32::new(EXTENDED_CHUNK_MAGIC),
            flags: U16::new(flags),
            kind: U16::new(kind),
            cookie: U64::new(to.cookie),
            offset: U64::new(to.offset),
            len: U64::new(len.into()),
        }
    }
}

/// Maximum number of bytes in front of the data of a read.
pub const DATA_HEADER_MAX: usize = ExtendedChunkHeader::SIZE + 8;

/// One extent of a block status.
#[derive(
    FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy, Debug, PartialEq, Eq,
)]
#[repr(C)]
pub struct StatusExtent {
    /// Length in bytes.
    pub len: U32,
    /// [`allocation::HOLE`] and [`allocation::ZERO`].
    pub flags: U32,
}

/// One extent of a block status with extended headers.
#[derive(
    FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy, Debug, PartialEq, Eq,
)]
#[repr(C)]
pub struct ExtendedStatusExtent {
    /// Length in bytes.
    pub len: U64,
    /// [`allocation::HOLE`] and [`allocation::ZERO`].
    pub flags: U64,
}

/// Longest text of an error chunk, in bytes.
pub const MESSAGE_MAX: usize = 128;

/// Maximum number of bytes of a reply without data.
pub const SMALL_REPLY_MAX: usize = ExtendedChunkHeader::SIZE + 6 + MESSAGE_MAX;

/// Writes the header of a chunk to the start of `into` and returns its length; 0 if it does not
/// fit. `flags` are [`chunk::FLAG_DONE`], for the last one of a reply, or 0.
pub fn encode_chunk_header(
    into: &mut [u8],
    headers: Headers,
    to: ReplyTo,
    (flags, kind): (u16, u16),
    len: u32,
) -> usize {
    let fits = match headers {
        Headers::Extended => {
            ExtendedChunkHeader::new(to, flags, kind, len).write_to_prefix(into).is_ok()
        }
        Headers::Simple | Headers::Structured => {
            ChunkHeader::new(to.cookie, flags, kind, len).write_to_prefix(into).is_ok()
        }
    };
    if fits { headers.chunk_header() } else { 0 }
}

/// Writes a whole error chunk to the start of `into` and returns its length; 0 if it does not fit.
pub fn encode_error_chunk(
    into: &mut [u8],
    headers: Headers,
    to: ReplyTo,
    error: ErrorCode,
    message: &str,
) -> usize {
    let text = message.get(..message.len().min(MESSAGE_MAX)).unwrap_or_default();
    let content = 6 + text.len();
    let total = headers.chunk_header() + content;
    let Some(into) = into.get_mut(..total) else { return 0 };
    let head =
        encode_chunk_header(into, headers, to, (chunk::FLAG_DONE, chunk::ERROR), content as u32);
    let (code, rest) = into.split_at_mut(head).1.split_at_mut(4);
    code.copy_from_slice(&(error as u32).to_be_bytes());
    let (len, rest) = rest.split_at_mut(2);
    len.copy_from_slice(&(text.len() as u16).to_be_bytes());
    rest.copy_from_slice(text.as_bytes());
    total
}

/// A cursor over bytes received from the other side: each step returns `None` at the end.
pub struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    /// Returns the next `len` bytes.
    pub fn bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(head)
    }

    /// Returns the next two bytes as a number.
    pub fn u16(&mut self) -> Option<u16> {
        let (value, rest) = U16::read_from_prefix(self.0).ok()?;
        self.0 = rest;
        Some(value.get())
    }

    /// Returns the next four bytes as a number.
    pub fn u32(&mut self) -> Option<u32> {
        let (value, rest) = U32::read_from_prefix(self.0).ok()?;
        self.0 = rest;
        Some(value.get())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ExtendedRequestHeader, RequestHeader};

    #[test]
    fn structures_have_the_sizes_of_the_protocol() {
        assert_eq!(size_of::<Greeting>(), 18);
        assert_eq!(OptionHeader::SIZE, 16);
        assert_eq!(size_of::<OptionReplyHeader>(), 20);
        assert_eq!(RequestHeader::SIZE, 28);
        assert_eq!(SimpleReply::SIZE, 16);
        assert_eq!(ChunkHeader::SIZE, 20);
        assert_eq!(ExtendedRequestHeader::SIZE, 32);
        assert_eq!(ExtendedChunkHeader::SIZE, 32);
        assert_eq!(size_of::<ExtendedStatusExtent>(), 16);
        assert_eq!(Greeting::new().as_bytes(), b"NBDMAGICIHAVEOPT\0\x03");
    }

    #[test]
    fn error_chunks_are_cut_and_never_overrun() {
        let (to, long) = (ReplyTo { cookie: 7, offset: 512 }, "x".repeat(500));
        for headers in [Headers::Structured, Headers::Extended] {
            let mut into = [0xff; SMALL_REPLY_MAX];
            let len = encode_error_chunk(&mut into, headers, to, ErrorCode::NoSpace, &long);
            let head = headers.chunk_header();
            assert_eq!(len, head + 6 + MESSAGE_MAX);
            let content = match headers {
                Headers::Extended => {
                    let header = ExtendedChunkHeader::read_from_bytes(&into[..head]);
                    let header = header.expect("header");
                    assert_eq!((header.cookie.get(), header.offset.get()), (7, 512));
                    header.len.get() as usize
                }
                _ => {
                    let header = ChunkHeader::read_from_bytes(&into[..head]).expect("header");
                    assert_eq!(header.cookie.get(), 7);
                    header.len.get() as usize
                }
            };
            assert_eq!(content, len - head);
            assert_eq!(into[head..head + 6], [0, 0, 0, 28, 0, 128]);
            let short = &mut into[..30];
            assert_eq!(encode_error_chunk(short, headers, to, ErrorCode::Io, &long), 0);
        }
    }

    #[test]
    fn readers_stop_at_the_end() {
        let mut reader = Reader(&[0, 1, 0, 0, 0, 2, 9]);
        assert_eq!(reader.u16(), Some(1));
        assert_eq!(reader.u32(), Some(2));
        assert_eq!(reader.u16(), None);
        assert_eq!(reader.bytes(2), None);
        assert_eq!(reader.bytes(1), Some(&[9][..]));
    }
}
