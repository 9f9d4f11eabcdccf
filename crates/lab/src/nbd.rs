//! Heads of requests and of replies, for clients of NBD.

use forebay_nbd::wire::{RequestHeader, SimpleReply};

use crate::error::{LabResult, other};

pub(crate) const REQUEST_BYTES: usize = RequestHeader::SIZE;
pub(crate) const REPLY_BYTES: usize = SimpleReply::SIZE;

/// Puts the head of a request at the start of a buffer.
pub(crate) fn header(request: &mut [u8], command: u16, offset: u64, len: u32) {
    if let Some(place) = request.first_chunk_mut() {
        *place = RequestHeader::new(command, offset, offset, len).to_bytes();
    }
}

/// Checks that a reply is one, and reports success.
pub(crate) fn check_reply(reply: &[u8]) -> LabResult<()> {
    match SimpleReply::error_in(reply) {
        Some(0) => Ok(()),
        Some(error) => Err(other(format!("the server answers with error {error}"))),
        None => Err(other("the server's answer is not a reply")),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use forebay_nbd::wire::{
        GREETING_MAGIC, OPTION_MAGIC, OPTION_REPLY_MAGIC, SIMPLE_REPLY_MAGIC, info, option,
        option_reply,
    };

    use super::*;

    #[test]
    fn replies_are_told_from_errors_and_noise() {
        let mut good = [0; REPLY_BYTES];
        good[..4].copy_from_slice(&SIMPLE_REPLY_MAGIC.to_be_bytes());
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
        says.extend(GREETING_MAGIC.to_be_bytes());
        says.extend(OPTION_MAGIC.to_be_bytes());
        says.extend(3u16.to_be_bytes());
        let mut answer = |kind: u32, payload: &[u8]| {
            says.extend(OPTION_REPLY_MAGIC.to_be_bytes());
            says.extend(option::GO.to_be_bytes());
            says.extend(kind.to_be_bytes());
            says.extend((payload.len() as u32).to_be_bytes());
            says.extend(payload);
        };
        let mut description = info::EXPORT.to_be_bytes().to_vec();
        description.extend(1024u64.to_be_bytes());
        description.extend(3u16.to_be_bytes());
        answer(option_reply::INFO, &description);
        answer(option_reply::ACK, &[]);
        says.extend(SIMPLE_REPLY_MAGIC.to_be_bytes());
        says.extend(error.to_be_bytes());
        says.extend([0; 8]);
        says.extend([7; 1024]);
        says
    }
}
