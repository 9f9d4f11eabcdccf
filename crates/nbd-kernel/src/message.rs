//! Messages of generic netlink: a header, a command, and attributes. Pure.
//!
//! Numbers are in native byte order; attributes begin at multiples of four bytes.

use rustix::io::Errno;

/// Bytes of `struct nlmsghdr`.
const HEADER: usize = 16;
/// Bytes of `struct genlmsghdr`.
const COMMAND: usize = 4;
/// Bytes of `struct nlattr`.
const ATTRIBUTE: usize = 4;
/// Alignment of messages and attributes, in bytes.
const ALIGN: usize = 4;

/// `NLM_F_REQUEST | NLM_F_ACK`.
const ASKS: u16 = 1 | 4;
/// `NLMSG_ERROR`: the result of a request; 0 is success.
const RESULT: u16 = 2;
/// `NLA_F_NESTED`.
const NESTED: u16 = 1 << 15;
/// `NLA_F_NESTED | NLA_F_NET_BYTEORDER`.
const ATTRIBUTE_FLAGS: u16 = NESTED | 1 << 14;

/// A request.
#[derive(Clone, Debug)]
pub struct NetlinkRequest(Vec<u8>);

impl NetlinkRequest {
    /// Begins a request for `command` of a family.
    pub fn new(family: u16, command: u8, version: u8, sequence: u32) -> Self {
        let mut bytes = vec![0; ALIGN];
        bytes.extend(family.to_ne_bytes());
        bytes.extend(ASKS.to_ne_bytes());
        bytes.extend(sequence.to_ne_bytes());
        // The kernel fills in the sender.
        bytes.extend([0; 4]);
        bytes.extend([command, version, 0, 0]);
        NetlinkRequest(bytes)
    }

    /// Adds an attribute.
    #[must_use]
    pub fn with(mut self, kind: u16, content: &[u8]) -> Self {
        let len = u16::try_from(ATTRIBUTE + content.len()).unwrap_or(u16::MAX);
        self.0.extend(len.to_ne_bytes());
        self.0.extend(kind.to_ne_bytes());
        self.0.extend(content);
        self.0.resize(self.0.len().next_multiple_of(ALIGN), 0);
        self
    }

    /// Adds an attribute of 32 bits.
    #[must_use]
    pub fn with_u32(self, kind: u16, value: u32) -> Self {
        self.with(kind, &value.to_ne_bytes())
    }

    /// Adds an attribute of 64 bits.
    #[must_use]
    pub fn with_u64(self, kind: u16, value: u64) -> Self {
        self.with(kind, &value.to_ne_bytes())
    }

    /// Adds a text that ends with a zero byte.
    #[must_use]
    pub fn with_text(self, kind: u16, text: &str) -> Self {
        self.with(kind, &[text.as_bytes(), &[0]].concat())
    }

    /// Adds an attribute that contains the attributes of `inner`.
    #[must_use]
    pub fn with_nested(
        self,
        kind: u16,
        inner: impl FnOnce(NetlinkRequest) -> NetlinkRequest,
    ) -> Self {
        let content = inner(NetlinkRequest(Vec::new())).0;
        self.with(kind | NESTED, &content)
    }

    /// Returns the bytes to send.
    pub fn finish(mut self) -> Vec<u8> {
        let len = u32::try_from(self.0.len()).unwrap_or(u32::MAX);
        if let Some(place) = self.0.get_mut(..ALIGN) {
            place.copy_from_slice(&len.to_ne_bytes());
        }
        self.0
    }
}

/// An answer of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer<'a> {
    /// The request has ended with this result.
    Result(Result<(), Errno>),
    /// A message with attributes.
    Attributes(&'a [u8]),
}

/// Returns the answers among received bytes to the request with number `sequence`. Bytes that are
/// no message end the list.
pub fn answers(mut bytes: &[u8], sequence: u32) -> Vec<Answer<'_>> {
    let mut all = Vec::new();
    while let Some(len) = u32_at(bytes, 0) {
        let Some(message) = bytes.get(..len as usize).filter(|it| it.len() >= HEADER) else {
            break;
        };
        if u32_at(message, 8) == Some(sequence) {
            all.extend(answer(message));
        }
        bytes = bytes.get(message.len().next_multiple_of(ALIGN)..).unwrap_or_default();
    }
    all
}

fn answer(message: &[u8]) -> Option<Answer<'_>> {
    let content = message.get(HEADER..)?;
    if u16_at(message, 4)? != RESULT {
        return content.get(COMMAND..).map(Answer::Attributes);
    }
    // A negative number of an error.
    let code = u32_at(content, 0)?.cast_signed().checked_neg()?;
    let failed = || Err(Errno::from_raw_os_error(code));
    Some(Answer::Result(if code == 0 { Ok(()) } else { failed() }))
}

/// Returns the content of the first attribute of a kind.
pub fn attribute(mut bytes: &[u8], kind: u16) -> Option<&[u8]> {
    loop {
        let len = usize::from(u16_at(bytes, 0)?);
        let found = u16_at(bytes, 2)? & !ATTRIBUTE_FLAGS;
        let content = bytes.get(ATTRIBUTE..len)?;
        if found == kind {
            return Some(content);
        }
        bytes = bytes.get(len.next_multiple_of(ALIGN)..)?;
    }
}

/// Returns a number of 16 bits.
pub fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|bytes| u16::from_ne_bytes(*bytes))
}

/// Returns a number of 32 bits.
pub fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_read_back_and_are_aligned() {
        let request = NetlinkRequest::new(0x1c, 3, 1, 9)
            .with_u32(1, 7)
            .with_text(10, "abcd")
            .with_nested(7, |all| all.with_nested(1, |item| item.with_u32(1, 5)))
            .with_u64(2, 1 << 40);
        let bytes = request.finish();
        assert_eq!(bytes.len() % ALIGN, 0);
        assert_eq!(u32_at(&bytes, 0), Some(bytes.len() as u32));
        assert_eq!((u16_at(&bytes, 4), u16_at(&bytes, 6)), (Some(0x1c), Some(5)));
        assert_eq!((u32_at(&bytes, 8), &bytes[16..20]), (Some(9), &[3, 1, 0, 0][..]));
        let all = &bytes[HEADER + COMMAND..];
        assert_eq!(attribute(all, 1), Some(&7u32.to_ne_bytes()[..]));
        assert_eq!(attribute(all, 10), Some(&b"abcd\0"[..]));
        assert_eq!(attribute(all, 2), Some(&(1u64 << 40).to_ne_bytes()[..]));
        let item = attribute(all, 7).and_then(|sockets| attribute(sockets, 1)).expect("nested");
        assert_eq!(attribute(item, 1), Some(&5u32.to_ne_bytes()[..]));
        assert_eq!(attribute(all, 3), None);
    }

    fn message(kind: u16, sequence: u32, content: &[u8]) -> Vec<u8> {
        let mut bytes = ((HEADER + content.len()) as u32).to_ne_bytes().to_vec();
        bytes.extend([kind.to_ne_bytes(), [0; 2]].concat());
        bytes.extend([sequence.to_ne_bytes(), [0; 4]].concat());
        bytes.extend(content);
        bytes
    }

    #[test]
    fn answers_to_other_requests_are_left_out() {
        let result = |code: i32| [&code.to_ne_bytes()[..], &[0; 16]].concat();
        let bytes = [
            message(RESULT, 1, &result(-2)),
            message(0x1c, 2, &[1, 1, 0, 0, 8, 0, 1, 0, 3, 0, 0, 0]),
            message(RESULT, 2, &result(0)),
            message(RESULT, 2, &result(-28)),
        ];
        let bytes = bytes.concat();
        let [Answer::Attributes(attributes), done, failed] = answers(&bytes, 2)[..] else {
            panic!("three answers");
        };
        assert_eq!(attribute(attributes, 1), Some(&[3, 0, 0, 0][..]));
        assert_eq!(done, Answer::Result(Ok(())));
        assert_eq!(failed, Answer::Result(Err(Errno::NOSPC)));
        assert_eq!(answers(&bytes, 1), [Answer::Result(Err(Errno::NOENT))]);
    }

    #[test]
    fn anything_else_ends_the_answers() {
        for len in [0u32, 1, 15, 17, u32::MAX] {
            let bytes = [&len.to_ne_bytes()[..], &[0; 12]].concat();
            assert_eq!(answers(&bytes, 0), []);
        }
        assert_eq!(answers(&message(RESULT, 0, &i32::MIN.to_ne_bytes()), 0), []);
        for bytes in [&[][..], &[4, 0, 1], &[3, 0, 1, 0], &[9, 0, 1, 0, 0, 0, 0, 0]] {
            assert_eq!(attribute(bytes, 1), None, "{bytes:?}");
        }
    }
}
