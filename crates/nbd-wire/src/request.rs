//! Headers of requests, compact and extended.

use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::{EXTENDED_REQUEST_MAGIC, Headers, REQUEST_MAGIC, command, command_flag};

/// Header of a compact request; the data of a write follow.
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

    /// Creates the header of a request without flags.
    pub fn new(command: u16, cookie: u64, offset: u64, len: u32) -> Self {
        RequestHeader {
            magic: U32::new(REQUEST_MAGIC),
            flags: U16::new(0),
            command: U16::new(command),
            cookie: U64::new(cookie),
            offset: U64::new(offset),
            len: U32::new(len),
        }
    }

    /// Returns the bytes on the wire.
    pub fn to_bytes(self) -> [u8; Self::SIZE] {
        zerocopy::transmute!(self)
    }
}

/// Header of an extended request; a payload follows if [`command_flag::PAYLOAD_LEN`] is set.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
pub struct ExtendedRequestHeader {
    /// [`EXTENDED_REQUEST_MAGIC`].
    pub magic: U32,
    /// Set of [`command_flag`].
    pub flags: U16,
    /// One of [`command`].
    pub command: U16,
    /// Chosen by the client; returned in the reply.
    pub cookie: U64,
    /// First byte of the range.
    pub offset: U64,
    /// Bytes of the payload with [`command_flag::PAYLOAD_LEN`], length of the range otherwise.
    pub len: U64,
}

impl ExtendedRequestHeader {
    /// Bytes on the wire.
    pub const SIZE: usize = size_of::<Self>();
}

/// A request's header, whatever its form on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Set of [`command_flag`].
    pub flags: u16,
    /// One of [`command`].
    pub command: u16,
    /// Returned in the reply.
    pub cookie: u64,
    /// First byte of the range, not checked.
    pub offset: u64,
    /// Length of the range or of the payload in bytes, not checked.
    pub len: u64,
}

impl Header {
    /// Maximum number of bytes on the wire.
    pub const SIZE_MAX: usize = ExtendedRequestHeader::SIZE;

    /// Returns the bytes on the wire.
    pub fn size(headers: Headers) -> usize {
        match headers {
            Headers::Simple | Headers::Structured => RequestHeader::SIZE,
            Headers::Extended => ExtendedRequestHeader::SIZE,
        }
    }

    /// Returns the header at the start of `input` and the bytes behind it; `None`: it is
    /// incomplete.
    ///
    /// # Errors
    /// The number found where the magic number should be.
    pub fn read(input: &[u8], headers: Headers) -> Result<Option<(Header, &[u8])>, u32> {
        if headers == Headers::Extended {
            let Ok((raw, rest)) = ExtendedRequestHeader::read_from_prefix(input) else {
                return Ok(None);
            };
            let ExtendedRequestHeader { magic, flags, command, cookie, offset, len } = raw;
            if magic.get() != EXTENDED_REQUEST_MAGIC {
                return Err(magic.get());
            }
            let (flags, command) = (flags.get(), command.get());
            let (cookie, offset, len) = (cookie.get(), offset.get(), len.get());
            return Ok(Some((Header { flags, command, cookie, offset, len }, rest)));
        }
        let Ok((raw, rest)) = RequestHeader::read_from_prefix(input) else { return Ok(None) };
        let RequestHeader { magic, flags, command, cookie, offset, len } = raw;
        if magic.get() != REQUEST_MAGIC {
            return Err(magic.get());
        }
        let (flags, command, len) = (flags.get(), command.get(), u64::from(len.get()));
        let (cookie, offset) = (cookie.get(), offset.get());
        Ok(Some((Header { flags, command, cookie, offset, len }, rest)))
    }

    /// Returns the bytes of payload that follow the header.
    pub fn payload(&self, headers: Headers) -> u64 {
        let carries = match headers {
            Headers::Extended => self.flags & command_flag::PAYLOAD_LEN != 0,
            Headers::Simple | Headers::Structured => self.command == command::WRITE,
        };
        if carries { self.len } else { 0 }
    }
}
