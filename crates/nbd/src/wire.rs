//! The NBD protocol on the wire: numbers, fixed structures, reply headers.
//!
//! Pure. All integers on the wire are big-endian. Decisions are made in [`crate::handshake`] and
//! [`crate::transmission`].

use forebay_core::IoError;
use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

mod numbers;

pub use numbers::*;

/// Error codes of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum ErrorCode {
    /// The export is read-only.
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
    /// Makes the greeting of this server.
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

/// Header of a request; the data of a write follow.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
pub struct RequestHeader {
    /// [`REQUEST_MAGIC`].
    pub magic: U32,
    /// Set of [`command_flag`].
    pub flags: U16,
    /// One of [`command`].
    pub command: U16,
    /// Chosen by the client; returned in the reply.
    pub cookie: U64,
    /// First byte of the range.
    pub offset: U64,
    /// Length of the range in bytes.
    pub len: U32,
}

impl RequestHeader {
    /// Bytes on the wire.
    pub const SIZE: usize = size_of::<Self>();
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

    /// Makes a reply to the request with this cookie.
    pub fn new(cookie: u64, error: Option<ErrorCode>) -> Self {
        SimpleReply {
            magic: U32::new(SIMPLE_REPLY_MAGIC),
            error: U32::new(error.map_or(0, |code| code as u32)),
            cookie: U64::new(cookie),
        }
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

    /// Makes the header of the only chunk of a reply.
    pub fn only(cookie: u64, kind: u16, len: u32) -> Self {
        ChunkHeader {
            magic: U32::new(CHUNK_MAGIC),
            flags: U16::new(chunk::FLAG_DONE),
            kind: U16::new(kind),
            cookie: U64::new(cookie),
            len: U32::new(len),
        }
    }
}

/// Header of the only chunk of a read's reply; the data follow.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
pub struct DataChunk {
    /// Kind [`chunk::OFFSET_DATA`].
    pub header: ChunkHeader,
    /// Offset of the data.
    pub offset: U64,
}

impl DataChunk {
    /// Bytes on the wire, without the data.
    pub const SIZE: usize = size_of::<Self>();

    /// Makes the header of a chunk with `len` bytes at `offset`.
    pub fn new(cookie: u64, offset: u64, len: u32) -> Self {
        let header = ChunkHeader::only(cookie, chunk::OFFSET_DATA, len.saturating_add(8));
        DataChunk { header, offset: U64::new(offset) }
    }
}

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

/// Longest text of an error chunk, in bytes.
pub const MESSAGE_MAX: usize = 128;

/// Most bytes of a reply without data.
pub const SMALL_REPLY_MAX: usize = ChunkHeader::SIZE + 6 + MESSAGE_MAX;

/// Writes a whole error chunk to the start of `into` and returns its length; 0 if it does not fit.
pub fn encode_error_chunk(into: &mut [u8], cookie: u64, error: ErrorCode, message: &str) -> usize {
    let text = message.get(..message.len().min(MESSAGE_MAX)).unwrap_or_default();
    let content = 6 + text.len();
    let total = ChunkHeader::SIZE + content;
    let Some(into) = into.get_mut(..total) else { return 0 };
    let (head, rest) = into.split_at_mut(ChunkHeader::SIZE);
    head.copy_from_slice(ChunkHeader::only(cookie, chunk::ERROR, content as u32).as_bytes());
    let (code, rest) = rest.split_at_mut(4);
    code.copy_from_slice(&(error as u32).to_be_bytes());
    let (len, rest) = rest.split_at_mut(2);
    len.copy_from_slice(&(text.len() as u16).to_be_bytes());
    rest.copy_from_slice(text.as_bytes());
    total
}

/// A cursor over bytes of a client: each step returns `None` at the end.
pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) fn bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(head)
    }

    pub(crate) fn u16(&mut self) -> Option<u16> {
        let (value, rest) = U16::read_from_prefix(self.0).ok()?;
        self.0 = rest;
        Some(value.get())
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        let (value, rest) = U32::read_from_prefix(self.0).ok()?;
        self.0 = rest;
        Some(value.get())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_have_the_sizes_of_the_protocol() {
        assert_eq!(size_of::<Greeting>(), 18);
        assert_eq!(OptionHeader::SIZE, 16);
        assert_eq!(size_of::<OptionReplyHeader>(), 20);
        assert_eq!(RequestHeader::SIZE, 28);
        assert_eq!(SimpleReply::SIZE, 16);
        assert_eq!(ChunkHeader::SIZE, 20);
        assert_eq!(DataChunk::SIZE, 28);
        assert_eq!(Greeting::new().as_bytes(), b"NBDMAGICIHAVEOPT\0\x03");
    }

    #[test]
    fn error_chunks_are_cut_and_never_overrun() {
        let mut into = [0xff; SMALL_REPLY_MAX];
        let long = "x".repeat(500);
        let len = encode_error_chunk(&mut into, 7, ErrorCode::NoSpace, &long);
        assert_eq!(len, SMALL_REPLY_MAX);
        let header = ChunkHeader::read_from_bytes(&into[..20]).expect("header");
        assert_eq!(header.len.get() as usize, len - 20);
        assert_eq!(into[20..26], [0, 0, 0, 28, 0, 128]);
        assert_eq!(encode_error_chunk(&mut into[..30], 7, ErrorCode::Io, &long), 0);
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
