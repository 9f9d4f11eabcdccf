//! Requests of every kind, whole, cut and too long.

use zerocopy::IntoBytes;

use super::*;
use crate::wire::{WRITE_HEADER, opcode::*};

/// Returns a message with a matching header.
pub(crate) fn message(opcode: u32, node: u64, body: &[u8]) -> Vec<u8> {
    let len = (IN_HEADER + body.len()) as u32;
    let header = InHeader {
        len,
        opcode,
        unique: 7,
        node,
        uid: 1,
        gid: 2,
        pid: 3,
        extensions: 0,
        padding: 0,
    };
    [header.as_bytes(), body].concat()
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

/// Returns every opcode with its valid parameters: the opcode, the shortest valid body, and the
/// request.
fn kinds() -> Vec<(u32, Vec<u8>, FuseRequest)> {
    let long = |number: u64| [number as u32, (number >> 32) as u32];
    let at = 5 << 32 | 512;
    let [low, high] = long(at);
    let dsync = OFlags::DSYNC.bits();
    vec![
        (
            INIT,
            words(&[7, 44, 4096, 9]),
            FuseRequest::Init { major: 7, minor: 44, max_readahead: 4096, flags: 9, more: 0 },
        ),
        (SETATTR, words(&[[1 << 3, 0, 0, 0, low, high].as_slice(), &[0; 16]].concat()), {
            FuseRequest::SetAttr { size: Some(at) }
        }),
        (OPEN, words(&[OFlags::RDWR.bits(), 0]), FuseRequest::Open { writes: true }),
        (
            READ,
            words(&[0, 0, low, high, 100, 0, 0, 0, 0, 0]),
            FuseRequest::Read { offset: at, len: 100 },
        ),
        (
            WRITE,
            words(&[0, 0, low, high, 0, 0, 0, 0, dsync, 0]),
            FuseRequest::Write { offset: at, len: 0, durable: true },
        ),
        (
            FALLOCATE,
            words(&[0, 0, low, high, 1024, 0, 3, 0]),
            FuseRequest::Fallocate { offset: at, len: 1024, mode: 3 },
        ),
    ]
}

#[test]
fn every_request_is_parsed_and_no_shorter_one() {
    for (opcode, body, request) in kinds() {
        let whole = message(opcode, ROOT, &body);
        let parsed = parse(&whole).expect("valid");
        assert_eq!(parsed, Message { id: RequestId(7), node: ROOT, request }, "{opcode}");
        for len in 0..body.len() {
            let cut = message(opcode, ROOT, &body[..len]);
            let malformed = parse(&cut).expect_err("cut");
            assert_eq!(malformed.id(), Some(RequestId(7)), "{opcode} with {len} bytes");
            assert!(matches!(malformed, Malformed::Body { .. }));
        }
    }
}

#[test]
fn requests_without_parameters_that_count_are_parsed_with_any() {
    for (opcode, request) in [
        (LOOKUP, FuseRequest::Lookup),
        (GETATTR, FuseRequest::GetAttr),
        (STATFS, FuseRequest::StatFs),
        (RELEASE, FuseRequest::Release),
        (FSYNC, FuseRequest::Fsync),
        (FLUSH, FuseRequest::Flush),
        (DESTROY, FuseRequest::Destroy),
        (FORGET, FuseRequest::Notice),
        (BATCH_FORGET, FuseRequest::Notice),
        (NOTIFY_REPLY, FuseRequest::Notice),
        (INTERRUPT, FuseRequest::Unknown),
        (0, FuseRequest::Unknown),
        (u32::MAX, FuseRequest::Unknown),
    ] {
        for len in [0, 1, 8, 40, 5000] {
            let parsed = parse(&message(opcode, 9, &vec![0xff; len])).expect("valid");
            assert_eq!(parsed, Message { id: RequestId(7), node: 9, request }, "{opcode} {len}");
        }
    }
}

#[test]
fn every_opcode_and_every_length_is_parsed_or_refused() {
    for opcode in 0..=60 {
        for len in 0..200 {
            let _ = parse(&message(opcode, ROOT, &vec![0xa5; len]));
        }
    }
}

#[test]
fn a_header_must_be_whole_and_say_the_length() {
    let whole = message(GETATTR, ROOT, &[0; 16]);
    for len in 0..IN_HEADER {
        assert_eq!(parse(&whole[..len]), Err(Malformed::NoHeader(len)));
        assert_eq!(Malformed::NoHeader(len).id(), None);
    }
    for len in (IN_HEADER..whole.len()).chain([whole.len() + 1]) {
        let mut other = whole.clone();
        other.resize(len, 0);
        let malformed = parse(&other).expect_err("another length");
        let id = RequestId(7);
        assert_eq!(malformed, Malformed::Length { id, found: len, said: whole.len() as u32 });
        assert_eq!(malformed.id(), Some(id));
    }
}

#[test]
fn a_write_has_exactly_the_data_that_it_says() {
    for (said, has, good) in [(512, 512, true), (512, 511, false), (512, 513, false), (0, 1, false)]
    {
        let mut body = words(&[0, 0, 0, 0, said, 0, 0, 0, 0, 0]);
        body.resize(body.len() + has, 1);
        let bytes = message(WRITE, ROOT, &body);
        assert_eq!(bytes.len(), WRITE_HEADER + has);
        let request = FuseRequest::Write { offset: 0, len: said, durable: false };
        assert_eq!(parse(&bytes).map(|it| it.request).ok(), good.then_some(request));
    }
}

#[test]
fn attributes_other_than_the_size_are_told_apart() {
    let set = |valid: u32| {
        let body = words(&[[valid, 0, 0, 0, 512, 0].as_slice(), &[0; 16]].concat());
        parse(&message(SETATTR, ROOT, &body)).expect("valid").request
    };
    assert_eq!(set(1 << 3), FuseRequest::SetAttr { size: Some(512) });
    assert_eq!(set(1 << 3 | 1 << 6 | 1 << 9), FuseRequest::SetAttr { size: Some(512) });
    for valid in [0, 1, 1 << 3 | 1, 1 << 5, u32::MAX] {
        assert_eq!(set(valid), FuseRequest::SetAttr { size: None }, "{valid:#x}");
    }
}

#[test]
fn reads_and_writes_are_recognised_before_they_are_parsed() {
    let body = words(&[0, 0, 4096, 0, 512, 0, 0, 0, 0, 0]);
    assert_eq!(coming(&message(READ, ROOT, &body)), Some((false, 4096)));
    assert_eq!(coming(&message(WRITE, ROOT, &body)), Some((true, 4096)));
    assert_eq!(coming(&message(STATFS, ROOT, &body)), None);
    assert_eq!(coming(&message(READ, ROOT, &body)[..IN_HEADER + 39]), None);
}

const ROOT: u64 = wire::ROOT;

#[test]
fn parts_of_an_entry_are_parsed_like_a_message() {
    for (opcode, body, request) in kinds() {
        let message = message(opcode, 1, &body);
        let (mut header, mut parameters) = ([7; 128], [7; 128]);
        header[..IN_HEADER].copy_from_slice(&message[..IN_HEADER]);
        parameters[..body.len()].copy_from_slice(&body);
        let parsed = parse_entry(&header, &parameters, 0).expect("sound");
        assert_eq!(parsed.request, request);
        if opcode == WRITE {
            assert!(parse_entry(&header, &parameters, 1).is_err(), "it has more data than it says");
        }
    }
    assert!(parse_entry(&[0; 39], &[0; 128], 0).is_err());
    let more = words(&[7, 44, 0, 1 << 30, 5]);
    let parsed = parse(&message(INIT, 1, &more)).expect("sound").request;
    assert!(matches!(parsed, FuseRequest::Init { more: 5, .. }));
}
