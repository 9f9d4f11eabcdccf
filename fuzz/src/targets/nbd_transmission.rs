//! NBD requests: a byte for the negotiated options, then the bytes of a client, in one piece and in
//! many.

use crate::{memory, mend, mutation, pieces};
use forebay_core::Op;
use forebay_nbd::OutlivingDevice;
use forebay_nbd::status::Contexts;
use forebay_nbd::transmission::{
    Command, Event, MAX_PAYLOAD, Parser, Refusal, RequestEffect, Session, StreamError,
};
use forebay_nbd::wire::{
    EXTENDED_REQUEST_MAGIC, ExtendedRequestHeader, Header, Headers, REQUEST_MAGIC, RequestHeader,
};

const WINDOWS: [usize; 4] = [0, 512, 4096, 64 << 10];
const SIZES: [u64; 4] = [1 << 20, 1 << 40, 512, (1 << 63) - 512];

/// See [`super::Mutate`].
pub(crate) fn mutate(data: &mut [u8], size: usize, max_size: usize, seed: u32) -> usize {
    let size = mutation::change(data, size, max_size);
    if !seed.is_multiple_of(8) {
        let data = &mut data[..size];
        match data.first().map(|choice| headers(*choice)) {
            Some(Headers::Extended) => mend_extended(data),
            _ => mend_requests(data),
        }
    }
    size
}

/// The form of the headers that the first byte asks for.
fn headers(choice: u8) -> Headers {
    match choice >> 1 & 1 | choice >> 6 & 2 {
        0 => Headers::Simple,
        1 => Headers::Structured,
        _ => Headers::Extended,
    }
}

/// Like [`mend_requests`], for extended headers.
fn mend_extended(data: &mut [u8]) {
    let mut at = 1;
    while at + ExtendedRequestHeader::SIZE <= data.len() {
        let left = (data.len() - at - ExtendedRequestHeader::SIZE) & !511;
        let header = &mut data[at..at + ExtendedRequestHeader::SIZE];
        header[..4].copy_from_slice(&EXTENDED_REQUEST_MAGIC.to_be_bytes());
        header[4] = 0;
        header[6] = 0;
        header[7] %= 9;
        if header[7] == 1 {
            header[5] |= 0x20;
        }
        header[22] &= 0xfe;
        header[23] = 0;
        header[30] &= 0xfe;
        header[31] = 0;
        let mut len = [0; 8];
        len.copy_from_slice(&header[24..]);
        let mut len = u64::from_be_bytes(len);
        let payload = header[5] & 0x20 != 0;
        if payload && len > left as u64 && len <= 8 << 20 {
            len = left as u64;
        }
        mend::put(data, at + 24, &len.to_be_bytes());
        at += ExtendedRequestHeader::SIZE + if payload { len.min(1 << 30) as usize } else { 0 };
    }
}

/// Requests where requests should be, most with known commands and offsets that are aligned.
fn mend_requests(data: &mut [u8]) {
    let mut at = 1;
    while at + RequestHeader::SIZE <= data.len() {
        let header = &mut data[at..at + RequestHeader::SIZE];
        header[..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
        (header[4], header[6]) = (0, 0);
        header[7] %= 9;
        header[22] &= 0xfe;
        header[23] = 0;
        header[26] &= 0xfe;
        header[27] = 0;
        let len = u32::from_be_bytes([header[24], header[25], header[26], header[27]]) as usize;
        let is_write = header[7] == 1;
        let left = (data.len() - at - RequestHeader::SIZE) & !511;
        let len = if is_write && len > left && len <= 8 << 20 { left } else { len };
        mend::put(data, at + 24, &(len as u32).to_be_bytes());
        at += RequestHeader::SIZE + if is_write { len } else { 0 };
    }
}

/// The results of the parser for its caller, for any division of the bytes.
#[derive(Debug, PartialEq)]
enum Seen {
    Command(Command, Vec<u8>),
    Refused(Refusal),
    Disconnect,
    Bad(StreamError),
}

fn check(session: &Session, command: &Command, payload: &[u8]) {
    let is = |wanted: Op| matches!(command.kind, RequestEffect::Volume { op, .. } if op == wanted);
    assert!(command.offset.is_multiple_of(512) && command.len.is_multiple_of(512));
    assert!(command.offset + command.len <= session.size);
    assert!(!(is(Op::Read) || is(Op::Write)) || command.len <= u64::from(MAX_PAYLOAD));
    assert_eq!(payload.len(), if is(Op::Write) { command.len as usize } else { 0 });
    let writes = is(Op::Write) || is(Op::Discard) || is(Op::WriteZeroes);
    assert!(!(writes && session.read_only));
    assert!(
        !session.contexts.is_empty() || !matches!(command.kind, RequestEffect::BlockStatus { .. })
    );
}

fn feed(session: Session, window: usize, pieces: &[&[u8]]) -> Vec<Seen> {
    let mut parser = Parser::new(session, window);
    let (mut seen, mut input) = (Vec::new(), Vec::new());
    // The rest of a large write is received without the parser.
    let mut large: Option<(Command, Vec<u8>)> = None;
    for piece in pieces {
        input.extend_from_slice(piece);
        loop {
            if let Some((command, mut data)) = large.take() {
                let missing = (command.len as usize - data.len()).min(input.len());
                data.extend(input.drain(..missing));
                if data.len() < command.len as usize {
                    large = Some((command, data));
                    break;
                }
                check(&session, &command, &data);
                seen.push(Seen::Command(command, data));
            }
            let (consumed, event) = match parser.next(&input) {
                Ok(next) => next,
                Err(bad) => {
                    seen.push(Seen::Bad(bad));
                    return seen;
                }
            };
            assert!(consumed <= input.len());
            match event {
                Event::Incomplete { missing } => {
                    assert!(missing > 0);
                    input.drain(..consumed);
                    assert!(input.len() < window + Header::SIZE_MAX, "too much is kept");
                    break;
                }
                Event::Command { command, payload } => {
                    check(&session, &command, payload);
                    seen.push(Seen::Command(command, payload.to_vec()));
                }
                Event::LargeWrite { command, start } => {
                    assert!(command.len as usize > window && start.len() < command.len as usize);
                    large = Some((command, start.to_vec()));
                }
                Event::Refused(refusal) => {
                    seen.push(Seen::Refused(refusal));
                }
                Event::Disconnect => {
                    seen.push(Seen::Disconnect);
                    return seen;
                }
            }
            input.drain(..consumed);
        }
    }
    seen
}

/// Runs one input.
pub(crate) fn run(data: &[u8]) {
    let Some((choice, stream)) = data.split_first() else { return };
    let session = Session {
        size: SIZES[usize::from(choice >> 5 & 3)],
        read_only: choice & 1 != 0,
        headers: headers(*choice),
        contexts: Contexts { allocation: choice & 4 != 0, state: choice & 2 != 0 },
        device: (choice & 6 == 6).then_some(OutlivingDevice { mark: 1, flushes: choice & 1 != 0 }),
    };
    let window = WINDOWS[usize::from(choice >> 3 & 3)];
    memory::within((1 << 20) + 32 * data.len(), || {
        let whole = feed(session, window, &[stream]);
        assert!(whole == feed(session, window, &pieces(stream, usize::MAX)), "a split matters");
        if stream.len() <= 512 {
            let bytes: Vec<&[u8]> = stream.chunks(1).collect();
            assert!(whole == feed(session, window, &bytes), "single bytes matter");
        }
    });
}
