//! Headers of replies. No I/O; every field from the server is checked.

use forebay_device::DeviceErrorKind;
use forebay_nbd_wire::{CHUNK_MAGIC, ChunkHeader, ErrorCode, SIMPLE_REPLY_MAGIC, SimpleReply};
use zerocopy::FromBytes;

/// The header of a reply, or of one chunk of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReplyHeader {
    Simple { cookie: u64, error: u32 },
    Chunk { cookie: u64, flags: u16, kind: u16, len: u32 },
}

/// The server does not keep to the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProtocolViolation(pub(crate) &'static str);

impl ReplyHeader {
    /// Returns the header at the start of `input` and its length; `None` if it is incomplete.
    pub(crate) fn read(
        input: &[u8],
        chunks: bool,
    ) -> Result<Option<(ReplyHeader, usize)>, ProtocolViolation> {
        let Some(magic) = input.first_chunk::<4>() else { return Ok(None) };
        match u32::from_be_bytes(*magic) {
            SIMPLE_REPLY_MAGIC => Ok(SimpleReply::read_from_prefix(input).ok().map(|(head, _)| {
                let head =
                    ReplyHeader::Simple { cookie: head.cookie.get(), error: head.error.get() };
                (head, SimpleReply::SIZE)
            })),
            CHUNK_MAGIC if chunks => {
                Ok(ChunkHeader::read_from_prefix(input).ok().map(|(head, _)| {
                    let (cookie, flags) = (head.cookie.get(), head.flags.get());
                    let (kind, len) = (head.kind.get(), head.len.get());
                    (ReplyHeader::Chunk { cookie, flags, kind, len }, ChunkHeader::SIZE)
                }))
            }
            _ => Err(ProtocolViolation("a reply does not begin with the right number")),
        }
    }
}

/// Returns the kind of a server's error.
pub(crate) fn kind_of(error: u32) -> DeviceErrorKind {
    const NO_SPACE: u32 = ErrorCode::NoSpace as u32;
    const NOT_SUPPORTED: u32 = ErrorCode::NotSupported as u32;
    const PERMISSION: u32 = ErrorCode::Permission as u32;
    match error {
        PERMISSION => DeviceErrorKind::ReadOnly,
        NO_SPACE => DeviceErrorKind::NoSpace,
        NOT_SUPPORTED => DeviceErrorKind::NotSupported,
        _ => DeviceErrorKind::Io,
    }
}

/// Returns whether an error code means that the server is shutting down.
pub(crate) fn ends(error: u32) -> bool {
    error == ErrorCode::Shutdown as u32
}
