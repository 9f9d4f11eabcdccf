//! Tests the parser and `judge` over their matrices.

use zerocopy::IntoBytes;
use zerocopy::big_endian::{U16, U32, U64};

use super::*;
use crate::wire::{EXTENDED_REQUEST_MAGIC, ExtendedRequestHeader, REQUEST_MAGIC, RequestHeader};

const BASE: Contexts = Contexts { allocation: true, state: false };
const COMPACT: [Headers; 2] = [Headers::Simple, Headers::Structured];
const ALL: [Headers; 3] = [Headers::Simple, Headers::Structured, Headers::Extended];
const SIZE: u64 = 1 << 30;

fn session() -> Session {
    let headers = Headers::Structured;
    Session { size: SIZE, read_only: false, headers, contexts: BASE, device: None }
}

fn header(command: u16, flags: u16, offset: u64, len: u64) -> Header {
    Header { flags, command, cookie: 0xc00c, offset, len }
}

fn encode(header: Header, headers: Headers) -> Vec<u8> {
    let Header { flags, command, cookie, offset, len } = header;
    let (flags, command) = (U16::new(flags), U16::new(command));
    let (cookie, offset) = (U64::new(cookie), U64::new(offset));
    if headers == Headers::Extended {
        let (magic, len) = (U32::new(EXTENDED_REQUEST_MAGIC), U64::new(len));
        let header = ExtendedRequestHeader { magic, flags, command, cookie, offset, len };
        return header.as_bytes().to_vec();
    }
    let (magic, len) = (U32::new(REQUEST_MAGIC), U32::new(len as u32));
    RequestHeader { magic, flags, command, cookie, offset, len }.as_bytes().to_vec()
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
    for headers in ALL {
        let structured = headers.has_chunks();
        let session = Session {
            headers,
            contexts: if structured { BASE } else { Contexts::default() },
            ..session()
        };
        for command in 0..12 {
            for flags in (0..64).chain([1 << 15]) {
                let len = if command == command::FLUSH { 0 } else { 4096 };
                let verdict = judge(&header(command, flags, 0, len), &session);
                let extended_write = headers == Headers::Extended && command == command::WRITE;
                let allowed = match command {
                    command::READ if structured => Some(DF),
                    command::WRITE_ZEROES => Some(NO_HOLE | FAST_ZERO),
                    command::BLOCK_STATUS if structured => Some(REQ_ONE),
                    command::WRITE if extended_write => Some(PAYLOAD_LEN),
                    command::READ
                    | command::WRITE
                    | command::FLUSH
                    | command::TRIM
                    | command::CACHE => Some(0),
                    _ => None,
                };
                if command == command::DISC {
                    assert_eq!(verdict, Verdict::Disconnect);
                } else if allowed.is_some_and(|allowed| flags & !(allowed | FUA) == 0)
                    && (!extended_write || flags & PAYLOAD_LEN != 0)
                {
                    assert!(matches!(verdict, Verdict::Accept(_)), "{command} {flags:#x}");
                } else {
                    assert_eq!(error_of(verdict), Some(ErrorCode::Invalid), "{command} {flags:#x}");
                }
            }
        }
    }
}

#[test]
fn an_answered_write_of_an_outliving_device_survives_the_daemon() {
    let outliving = |flushes| Some(OutlivingDevice { mark: 7, flushes });
    let devices = [
        (None, Survives::Nothing),
        (outliving(true), Survives::Daemon),
        (outliving(false), Survives::PowerLoss),
    ];
    for ((device, least), asked) in devices.into_iter().flat_map(|it| [(it, false), (it, true)]) {
        let session = Session { device, ..session() };
        for command in [command::READ, command::WRITE, command::TRIM, command::WRITE_ZEROES] {
            let flags = if asked { command_flag::FUA } else { 0 };
            let verdict = judge(&header(command, flags, 0, 4096), &session);
            let Verdict::Accept(Command { kind: RequestEffect::Volume { survives, .. }, .. }) =
                verdict
            else {
                panic!("{command} is refused");
            };
            let expected = match command {
                _ if asked => Survives::PowerLoss,
                command::READ => Survives::Nothing,
                _ => least,
            };
            assert_eq!(survives, expected, "{command} {device:?}");
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
            (0, u32::MAX.into(), Some(Invalid)),
        ] {
            let verdict = judge(&header(command, 0, offset, len), &session());
            assert_eq!(error_of(verdict), expected, "command {command} at {offset}+{len}");
        }
        let data = matches!(command, command::READ | command::WRITE);
        let most = u64::from(MAX_PAYLOAD);
        let verdict = judge(&header(command, 0, 0, most + 512), &session());
        assert_eq!(error_of(verdict), data.then_some(Invalid));
        assert_eq!(error_of(judge(&header(command, 0, 0, most), &session())), None);
        let read_only = Session { read_only: true, ..session() };
        let refused = matches!(command, command::WRITE | command::TRIM | command::WRITE_ZEROES);
        let verdict = judge(&header(command, 0, 0, 512), &read_only);
        assert_eq!(error_of(verdict), refused.then_some(Permission));
    }
    let df = header(command::READ, command_flag::DF, 0, u64::from(MAX_PAYLOAD) + 512);
    assert_eq!(error_of(judge(&df, &session())), Some(Overflow));
    assert_eq!(error_of(judge(&header(command::FLUSH, 0, 512, 0), &session())), Some(Invalid));
}

#[test]
fn extended_lengths_have_64_bits_where_no_data_are_sent() {
    use ErrorCode::{Invalid, NoSpace, Overflow};
    const LARGE: u64 = 1 << 60;
    let session = Session { size: LARGE, headers: Headers::Extended, ..session() };
    for (command, len, expected) in [
        (command::TRIM, LARGE, None),
        (command::WRITE_ZEROES, LARGE, None),
        (command::BLOCK_STATUS, LARGE, None),
        (command::CACHE, 1 << 31, None),
        (command::CACHE, 1 << 32, Some(Overflow)),
        (command::READ, 1 << 25, None),
        (command::READ, (1 << 25) + 512, Some(Overflow)),
        (command::READ, 1 << 32, Some(Overflow)),
        (command::READ, u64::MAX - 511, Some(Overflow)),
        (command::TRIM, LARGE + 512, Some(Invalid)),
        (command::WRITE_ZEROES, LARGE + 512, Some(NoSpace)),
        (command::WRITE_ZEROES, u64::MAX - 511, Some(NoSpace)),
        (command::BLOCK_STATUS, LARGE + 512, Some(Invalid)),
        (command::BLOCK_STATUS, u64::MAX, Some(Invalid)),
        (command::BLOCK_STATUS, 0, Some(Invalid)),
        // A write has a payload; its length is not that of a range.
        (command::WRITE, 512, Some(Invalid)),
    ] {
        let verdict = judge(&header(command, 0, 0, len), &session);
        assert_eq!(error_of(verdict), expected, "command {command}, {len} bytes");
    }
}

/// Makes a stream with one of each event, and the expected events.
fn stream(headers: Headers) -> (Vec<u8>, Vec<String>) {
    let mut bytes = Vec::new();
    let mut events = Vec::new();
    let mut add = |mut header: Header, payload: usize, name: &str| {
        if headers == Headers::Extended && header.command == command::WRITE {
            header.flags |= command_flag::PAYLOAD_LEN;
        }
        bytes.extend(encode(header, headers));
        bytes.extend((0..payload).map(|at| (at % 251) as u8));
        events.push(name.to_owned());
    };
    add(header(command::READ, 0, 0, 512), 0, "read 0");
    add(header(command::WRITE, 0, 0, 1024), 1024, "write 1024");
    add(header(command::WRITE, 0, SIZE, 2048), 2048, "refused NoSpace");
    add(header(command::WRITE, 0, 0, 777), 777, "refused Invalid");
    add(header(99, 0, 0, 512), 0, "refused Invalid");
    if headers == Headers::Extended {
        // A payload is stepped over whatever the command.
        for command in [command::READ, command::BLOCK_STATUS, command::FLUSH, 99] {
            let payload = header(command, command_flag::PAYLOAD_LEN, 0, 12);
            add(payload, 12, "refused Invalid");
        }
    }
    add(header(command::WRITE, 0, 0, 0), 0, "write 0");
    add(header(command::WRITE, 0, 0, 8192), 8192, "write 8192");
    add(header(command::FLUSH, 0, 0, 0), 0, "flush 0");
    add(header(command::DISC, 0, 0, 0), 0, "leave");
    (bytes, events)
}

/// Feeds `bytes` in pieces of `step` bytes and returns the names of the events.
fn feed(headers: Headers, bytes: &[u8], step: usize, window: usize) -> Vec<String> {
    let mut parser = Parser::new(Session { headers, ..session() }, window);
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
                assert!(missing > 0 && held.len() - consumed <= window + Header::SIZE_MAX);
                if at == bytes.len() {
                    return events;
                }
                let end = (at + step).min(bytes.len());
                held.drain(..skip);
                skip = 0;
                held.extend_from_slice(&bytes[at..end]);
                at = end;
            }
            Event::Command {
                command: Command { kind: RequestEffect::Volume { op, .. }, .. },
                payload,
            } => {
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
    for headers in [Headers::Structured, Headers::Extended] {
        let (bytes, events) = stream(headers);
        for window in [512, 4096, 1 << 20] {
            for step in (1..70).chain([512, 1024, 4096, bytes.len()]) {
                let fed = feed(headers, &bytes, step, window);
                assert_eq!(fed, events, "step {step}, window {window}");
            }
        }
    }
}

#[test]
fn bad_magic_is_an_error_at_any_request() {
    for headers in ALL {
        let mut bytes = encode(header(command::READ, 0, 0, 512), headers);
        bytes.extend_from_slice(&[0x55; 32]);
        let mut parser = Parser::new(Session { headers, ..session() }, 4096);
        let (consumed, _) = parser.next(&bytes).expect("first request");
        let bad = StreamError::BadMagic { found: 0x5555_5555 };
        assert_eq!(parser.next(&bytes[consumed..]), Err(bad));
    }
    // The other form is not understood.
    for (sent, headers) in
        [(Headers::Extended, Headers::Structured), (Headers::Structured, Headers::Extended)]
    {
        let bytes = [encode(header(command::READ, 0, 0, 512), sent), vec![0; 8]].concat();
        let mut parser = Parser::new(Session { headers, ..session() }, 4096);
        assert!(matches!(parser.next(&bytes), Err(StreamError::BadMagic { .. })));
    }
}

#[test]
fn a_write_of_four_gigabytes_is_stepped_over() {
    for headers in COMPACT {
        let mut parser = Parser::new(Session { headers, ..session() }, 4096);
        let head = encode(header(command::WRITE, 0, 0, u32::MAX.into()), headers);
        let (consumed, event) = parser.next(&head).expect("header");
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
}

#[test]
fn an_extended_payload_beyond_the_limit_ends_the_stream() {
    let headers = Headers::Extended;
    for command in [command::WRITE, command::READ, command::TRIM, 99] {
        for (len, ends) in [(1 << 25, false), ((1 << 25) + 1, true), (u64::MAX, true)] {
            let mut parser = Parser::new(Session { headers, ..session() }, 4096);
            let head = header(command, command_flag::PAYLOAD_LEN, 0, len);
            let next = parser.next(&encode(head, headers)).map(|_| ());
            assert_eq!(next, if ends { Err(StreamError::Payload { len }) } else { Ok(()) });
        }
    }
}

#[test]
fn a_waiting_request_is_recognised_by_a_whole_header_only() {
    for headers in ALL {
        let flags = if headers == Headers::Extended { command_flag::PAYLOAD_LEN } else { 0 };
        let read = header(command::READ, 0, 8192, 4096);
        let write = header(command::WRITE, flags, 512, u32::MAX.into());
        for (request, op, offset, payload) in
            [(read, Op::Read, 8192, 0), (write, Op::Write, 512, u32::MAX as usize)]
        {
            let bytes = encode(request, headers);
            let expected = Waiting { op, offset, bytes: bytes.len() + payload };
            assert_eq!(waiting(&bytes, headers), Some(expected));
            for len in 0..bytes.len() {
                assert_eq!(waiting(&bytes[..len], headers), None);
            }
        }
        assert_eq!(waiting(&encode(header(command::FLUSH, 0, 0, 0), headers), headers), None);
        let mut bad = encode(read, headers);
        bad[0] = 7;
        assert_eq!(waiting(&bad, headers), None);
    }
}
