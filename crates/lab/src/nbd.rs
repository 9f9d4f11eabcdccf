//! Messages of every NBD client: the handshake, heads of requests and of replies.

use std::io::{Read, Write};

use crate::error::{LabResult, other};

// Numbers of the protocol.
const GREETING: u64 = 0x4e42_444d_4147_4943;
const OPTION: u64 = 0x4948_4156_454f_5054;
const OPTION_REPLY: u64 = 0x0003_e889_0455_65a9;
const REQUEST: u32 = 0x2560_9513;
const REPLY: u32 = 0x6744_6698;
const OPTION_GO: u32 = 7;
const ACK: u32 = 1;
const INFO: u32 = 3;
const INFO_EXPORT: u16 = 0;
const FIXED_NEW_STYLE: u32 = 1;
const NO_ZEROES: u32 = 2;
pub(crate) const READ: u16 = 0;
pub(crate) const WRITE: u16 = 1;
pub(crate) const DISCONNECT: u16 = 2;
pub(crate) const FLUSH: u16 = 3;
const READ_ONLY: u16 = 2;

pub(crate) const REQUEST_BYTES: usize = 28;
pub(crate) const REPLY_BYTES: usize = 16;

/// The longest answer to an option that is taken.
const LONGEST_ANSWER: u32 = 64 << 10;

/// An export as the server describes it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Export {
    /// Bytes.
    pub(crate) size: u64,
    pub(crate) read_only: bool,
}

fn bytes<const N: usize>(stream: &mut impl Read) -> LabResult<[u8; N]> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn u32_of(stream: &mut impl Read) -> LabResult<u32> {
    Ok(u32::from_be_bytes(bytes(stream)?))
}

fn u64_of(stream: &mut impl Read) -> LabResult<u64> {
    Ok(u64::from_be_bytes(bytes(stream)?))
}

/// Takes an export by its name. After this come requests.
pub(crate) fn handshake(stream: &mut (impl Read + Write), name: &str) -> LabResult<Export> {
    let strange = || other("this is no NBD server, or one that speaks an old dialect");
    if u64_of(stream)? != GREETING || u64_of(stream)? != OPTION {
        return Err(strange());
    }
    let offered = u32::from(u16::from_be_bytes(bytes(stream)?));
    let len = u32::try_from(name.len()).map_err(|_| strange())?;
    let mut go = (offered & (FIXED_NEW_STYLE | NO_ZEROES)).to_be_bytes().to_vec();
    go.extend(OPTION.to_be_bytes());
    go.extend(OPTION_GO.to_be_bytes());
    go.extend(len.saturating_add(6).to_be_bytes());
    go.extend(len.to_be_bytes());
    go.extend(name.as_bytes());
    go.extend(0u16.to_be_bytes());
    stream.write_all(&go)?;
    let mut found = None;
    loop {
        let (magic, _option) = (u64_of(stream)?, u32_of(stream)?);
        let (kind, len) = (u32_of(stream)?, u32_of(stream)?);
        if magic != OPTION_REPLY || len > LONGEST_ANSWER {
            return Err(strange());
        }
        let mut answer = vec![0; len as usize];
        stream.read_exact(&mut answer)?;
        match kind {
            ACK => return found.ok_or_else(strange),
            INFO => found = export_info(&answer).or(found),
            kind if kind >> 31 == 1 => {
                return Err(other(format!("the NBD server has no export '{name}'")));
            }
            _ => (),
        }
    }
}

/// Out of an answer about the export.
fn export_info(answer: &[u8]) -> Option<Export> {
    let (kind, rest) = answer.split_first_chunk()?;
    let (size, rest) = rest.split_first_chunk()?;
    let flags = u16::from_be_bytes(*rest.first_chunk()?);
    let (size, read_only) = (u64::from_be_bytes(*size), flags & READ_ONLY != 0);
    (u16::from_be_bytes(*kind) == INFO_EXPORT).then_some(Export { size, read_only })
}

/// Puts the head of a request at the start of a buffer.
pub(crate) fn header(request: &mut [u8], kind: u16, offset: u64, len: u32) {
    let mut bytes = [0; REQUEST_BYTES];
    bytes[..4].copy_from_slice(&REQUEST.to_be_bytes());
    bytes[6..8].copy_from_slice(&kind.to_be_bytes());
    bytes[8..16].copy_from_slice(&offset.to_be_bytes());
    bytes[16..24].copy_from_slice(&offset.to_be_bytes());
    bytes[24..].copy_from_slice(&len.to_be_bytes());
    if let Some(place) = request.first_chunk_mut() {
        *place = bytes;
    }
}

/// Whether a reply is one, and reports success.
pub(crate) fn check_reply(reply: &[u8]) -> LabResult<()> {
    let word = |at: usize| {
        reply
            .get(at..at + 4)
            .map(|bytes| u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    };
    match (word(0), word(4)) {
        (Some(REPLY), Some(0)) => Ok(()),
        (Some(REPLY), Some(error)) => Err(other(format!("the server answers with error {error}"))),
        _ => Err(other("the server answers with something else than a reply")),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    #[test]
    fn replies_are_told_from_errors_and_noise() {
        let mut good = [0; REPLY_BYTES];
        good[..4].copy_from_slice(&REPLY.to_be_bytes());
        assert!(check_reply(&good).is_ok());
        let mut bad = good;
        bad[7] = 5;
        assert!(check_reply(&bad).is_err());
        assert!(check_reply(&[0; REPLY_BYTES]).is_err());
        assert!(check_reply(&good[..6]).is_err());
    }

    /// Replies of a server that has a read-only export of 1024 bytes, all 7, and answers a read
    /// with this error.
    pub(crate) fn script(error: u32) -> Vec<u8> {
        let mut says = Vec::new();
        says.extend(GREETING.to_be_bytes());
        says.extend(OPTION.to_be_bytes());
        says.extend(3u16.to_be_bytes());
        let mut answer = |kind: u32, payload: &[u8]| {
            says.extend(OPTION_REPLY.to_be_bytes());
            says.extend(OPTION_GO.to_be_bytes());
            says.extend(kind.to_be_bytes());
            says.extend((payload.len() as u32).to_be_bytes());
            says.extend(payload);
        };
        let mut info = INFO_EXPORT.to_be_bytes().to_vec();
        info.extend(1024u64.to_be_bytes());
        info.extend(3u16.to_be_bytes());
        answer(INFO, &info);
        answer(ACK, &[]);
        says.extend(REPLY.to_be_bytes());
        says.extend(error.to_be_bytes());
        says.extend([0; 8]);
        says.extend([7; 1024]);
        says
    }
}
