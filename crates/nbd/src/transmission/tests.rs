//! Tests the parser and `judge` over their matrices.

use zerocopy::IntoBytes;
use zerocopy::big_endian::{U16, U32, U64};

use super::*;

const SIZE: u64 = 1 << 30;

fn session() -> Session {
    Session { size: SIZE, read_only: false, structured: true, allocation: true }
}

fn header(command: u16, flags: u16, offset: u64, len: u32) -> RequestHeader {
    RequestHeader {
        magic: U32::new(REQUEST_MAGIC),
        flags: U16::new(flags),
        command: U16::new(command),
        cookie: U64::new(0xc00c),
        offset: U64::new(offset),
        len: U32::new(len),
    }
}

fn error_of(verdict: Verdict) -> Option<ErrorCode> {
    match verdict {
        Verdict::Refuse(refusal) => Some(refusal.error),
        _ => None,
    }
}

#[test]
fn every_command_with_every_flag_is_decided() {
    use command_flag::*;
    for structured in [false, true] {
        let session = Session { structured, allocation: structured, ..session() };
        for command in 0..12 {
            for flags in (0..64).chain([1 << 15]) {
                let len = if command == command::FLUSH { 0 } else { 4096 };
                let verdict = judge(&header(command, flags, 0, len), &session);
                let allowed = match command {
                    command::READ if structured => Some(DF),
                    command::WRITE_ZEROES => Some(NO_HOLE | FAST_ZERO),
                    command::BLOCK_STATUS if structured => Some(REQ_ONE),
                    command::READ
                    | command::WRITE
                    | command::FLUSH
                    | command::TRIM
                    | command::CACHE => Some(0),
                    _ => None,
                };
                if command == command::DISC {
                    assert_eq!(verdict, Verdict::Disconnect);
                } else if allowed.is_some_and(|allowed| flags & !(allowed | FUA) == 0) {
                    assert!(matches!(verdict, Verdict::Accept(_)), "{command} {flags:#x}");
                } else {
                    assert_eq!(error_of(verdict), Some(ErrorCode::Invalid), "{command} {flags:#x}");
                }
            }
        }
    }
}

#[test]
fn ranges_are_checked_without_wrapping() {
    use ErrorCode::{Invalid, NoSpace, Overflow, Permission};
    let beyond = |command| match command {
        command::WRITE | command::WRITE_ZEROES => NoSpace,
        _ => Invalid,
    };
    for command in [
        command::READ,
        command::WRITE,
        command::TRIM,
        command::CACHE,
        command::WRITE_ZEROES,
        command::BLOCK_STATUS,
    ] {
        for (offset, len, expected) in [
            (0, 512, None),
            (SIZE - 512, 512, None),
            (SIZE, 512, Some(beyond(command))),
            (SIZE - 512, 1024, Some(beyond(command))),
            (u64::MAX - 511, 512, Some(beyond(command))),
            (u64::MAX - 511, 1024, Some(beyond(command))),
            (1, 512, Some(Invalid)),
            (0, 511, Some(Invalid)),
            (0, u32::MAX, Some(Invalid)),
        ] {
            let verdict = judge(&header(command, 0, offset, len), &session());
            assert_eq!(error_of(verdict), expected, "command {command} at {offset}+{len}");
        }
        let data = matches!(command, command::READ | command::WRITE);
        let verdict = judge(&header(command, 0, 0, MAX_PAYLOAD + 512), &session());
        assert_eq!(error_of(verdict), data.then_some(Invalid));
        assert_eq!(error_of(judge(&header(command, 0, 0, MAX_PAYLOAD), &session())), None);
        let read_only = Session { read_only: true, ..session() };
        let refused = matches!(command, command::WRITE | command::TRIM | command::WRITE_ZEROES);
        let verdict = judge(&header(command, 0, 0, 512), &read_only);
        assert_eq!(error_of(verdict), refused.then_some(Permission));
    }
    let df = header(command::READ, command_flag::DF, 0, MAX_PAYLOAD + 512);
    assert_eq!(error_of(judge(&df, &session())), Some(Overflow));
    assert_eq!(error_of(judge(&header(command::FLUSH, 0, 512, 0), &session())), Some(Invalid));
}

/// Makes a stream with one of each event, and the expected events.
fn stream() -> (Vec<u8>, Vec<String>) {
    let mut bytes = Vec::new();
    let mut events = Vec::new();
    let mut add = |header: RequestHeader, payload: usize, name: &str| {
        bytes.extend_from_slice(header.as_bytes());
        bytes.extend((0..payload).map(|at| (at % 251) as u8));
        events.push(name.to_owned());
    };
    add(header(command::READ, 0, 0, 512), 0, "read 0");
    add(header(command::WRITE, 0, 0, 1024), 1024, "write 1024");
    add(header(command::WRITE, 0, SIZE, 2048), 2048, "refused NoSpace");
    add(header(command::WRITE, 0, 0, 777), 777, "refused Invalid");
    add(header(99, 0, 0, 512), 0, "refused Invalid");
    add(header(command::WRITE, 0, 0, 0), 0, "write 0");
    add(header(command::WRITE, 0, 0, 8192), 8192, "write 8192");
    add(header(command::FLUSH, 0, 0, 0), 0, "flush 0");
    add(header(command::DISC, 0, 0, 0), 0, "leave");
    (bytes, events)
}

/// Feeds `bytes` in pieces of `step` bytes and returns the names of the events.
fn feed(bytes: &[u8], step: usize, window: usize) -> Vec<String> {
    let mut parser = Parser::new(session(), window);
    let (mut events, mut held, mut at) = (Vec::new(), Vec::new(), 0);
    loop {
        let (consumed, event) = parser.next(&held).expect("valid stream");
        let mut skip = consumed;
        let name = |op: Op, payload: &[u8]| {
            assert!(payload.iter().enumerate().all(|(at, byte)| *byte == (at % 251) as u8));
            format!("{op:?} {}", payload.len()).to_lowercase()
        };
        match event {
            Event::Incomplete { missing } => {
                assert!(missing > 0 && held.len() - consumed <= window + RequestHeader::SIZE);
                if at == bytes.len() {
                    return events;
                }
                let end = (at + step).min(bytes.len());
                held.drain(..skip);
                skip = 0;
                held.extend_from_slice(&bytes[at..end]);
                at = end;
            }
            Event::Command { command: Command { kind: Kind::Volume { op, .. }, .. }, payload } => {
                events.push(name(op, payload));
            }
            Event::LargeWrite { command, start } => {
                assert!(command.len as usize > window);
                let rest = command.len as usize - start.len();
                let whole = [start, &bytes[at..at + rest]].concat();
                at += rest;
                events.push(name(Op::Write, &whole));
            }
            Event::Refused(refusal) => events.push(format!("refused {:?}", refusal.error)),
            Event::Disconnect => events.push("leave".into()),
            Event::Command { .. } => unreachable!("no block status in the stream"),
        }
        held.drain(..skip);
    }
}

#[test]
fn the_stream_may_be_cut_anywhere() {
    let (bytes, events) = stream();
    for window in [512, 4096, 1 << 20] {
        for step in (1..70).chain([512, 1024, 4096, bytes.len()]) {
            assert_eq!(feed(&bytes, step, window), events, "step {step}, window {window}");
        }
    }
}

#[test]
fn bad_magic_is_an_error_at_any_request() {
    let mut bytes = header(command::READ, 0, 0, 512).as_bytes().to_vec();
    bytes.extend_from_slice(&[0x55; 28]);
    let mut parser = Parser::new(session(), 4096);
    let (consumed, _) = parser.next(&bytes).expect("first request");
    assert_eq!(parser.next(&bytes[consumed..]), Err(BadMagic { found: 0x5555_5555 }));
}

#[test]
fn a_write_of_four_gigabytes_is_stepped_over() {
    let mut parser = Parser::new(session(), 4096);
    let head = header(command::WRITE, 0, 0, u32::MAX);
    let (consumed, event) = parser.next(head.as_bytes()).expect("header");
    assert_eq!((consumed, event), (28, Event::Incomplete { missing: u32::MAX as usize }));
    let (piece, mut left) = (vec![0; 1 << 20], u64::from(u32::MAX));
    while left > 0 {
        let here = left.min(piece.len() as u64) as usize;
        let (consumed, event) = parser.next(&piece[..here]).expect("payload");
        assert_eq!(consumed, here);
        left -= here as u64;
        assert_eq!(matches!(event, Event::Refused(_)), left == 0);
    }
}

#[test]
fn what_waits_is_recognised_only_by_a_whole_header() {
    let read = header(command::READ, 0, 8192, 4096);
    let write = header(command::WRITE, 0, 512, u32::MAX);
    for (request, op, offset, payload) in
        [(&read, Op::Read, 8192, 0), (&write, Op::Write, 512, u32::MAX as usize)]
    {
        let bytes = request.as_bytes();
        let expected = Waiting { op, offset, bytes: RequestHeader::SIZE + payload };
        assert_eq!(waiting(bytes), Some(expected));
        for len in 0..bytes.len() {
            assert_eq!(waiting(&bytes[..len]), None);
        }
    }
    assert_eq!(waiting(header(command::FLUSH, 0, 0, 0).as_bytes()), None);
    let bad = RequestHeader { magic: U32::new(7), ..read };
    assert_eq!(waiting(bad.as_bytes()), None);
}
