//! Tests the handshake over its matrix of options, and every kind of invalid input.

use std::rc::Rc;

use forebay_engine::BlockService;

use super::*;
use crate::null::{ExportList, NullTarget};
use crate::wire::option_reply as kind;

const BASE: Contexts = Contexts { allocation: true, state: false };

fn exports() -> ExportList {
    let volume =
        |size, read_only| Rc::new(NullTarget::new(size, read_only)) as Rc<dyn BlockService>;
    ExportList::new(vec![
        ("first".into(), volume(1 << 20, false)),
        ("zwölf".into(), volume((1 << 30) + 100, true)),
    ])
}

fn option(code: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = OPTION_MAGIC.to_be_bytes().to_vec();
    bytes.extend_from_slice(&code.to_be_bytes());
    bytes.extend_from_slice(&(data.len() as u32).to_be_bytes());
    bytes.extend_from_slice(data);
    bytes
}

fn string(text: &[u8]) -> Vec<u8> {
    [&(text.len() as u32).to_be_bytes(), text].concat()
}

fn go(name: &[u8], wanted: &[u16]) -> Vec<u8> {
    let mut data = string(name);
    data.extend_from_slice(&(wanted.len() as u16).to_be_bytes());
    data.extend(wanted.iter().flat_map(|kind| kind.to_be_bytes()));
    data
}

fn contexts(name: &[u8], queries: &[&[u8]]) -> Vec<u8> {
    let mut data = string(name);
    data.extend_from_slice(&(queries.len() as u32).to_be_bytes());
    data.extend(queries.iter().flat_map(|query| string(query)));
    data
}

/// Parses replies into (option, kind, data).
fn parse_replies(mut bytes: &[u8]) -> Vec<(u32, u32, Vec<u8>)> {
    let mut replies = Vec::new();
    while let Ok((header, rest)) = OptionReplyHeader::read_from_prefix(bytes) {
        assert_eq!(header.magic.get(), OPTION_REPLY_MAGIC);
        let (data, rest) = rest.split_at(header.len.get() as usize);
        replies.push((header.option.get(), header.kind.get(), data.to_vec()));
        bytes = rest;
    }
    assert!(bytes.is_empty());
    replies
}

struct Outcome {
    sent: Vec<u8>,
    left: Vec<u8>,
    end: Option<HandshakeStep>,
}

impl Outcome {
    fn replies(&self) -> Vec<(u32, u32, Vec<u8>)> {
        parse_replies(&self.sent[18..])
    }

    fn kinds(&self) -> Vec<u32> {
        self.replies().iter().map(|(_, kind, _)| *kind).collect()
    }

    fn start(&self) -> &Start {
        match &self.end {
            Some(HandshakeStep::Start(start)) => start,
            _ => panic!("no session"),
        }
    }

    fn reason(&self) -> Reason {
        match &self.end {
            Some(HandshakeStep::Close(reason)) => *reason,
            _ => panic!("not closed"),
        }
    }
}

/// Runs a handshake on `input`, given in pieces of `step` bytes.
fn run(input: &[u8], step: usize) -> Outcome {
    run_with(Security::Local, input, step)
}

/// Runs as [`run`] does; with [`Security::Required`] the bytes behind STARTTLS count as encrypted.
fn run_with(security: Security, input: &[u8], step: usize) -> Outcome {
    let exports = exports();
    let (mut sent, mut replies, mut held, mut at) = (Vec::new(), Vec::new(), Vec::new(), 0);
    let mut handshake = Handshake::new(security, &mut replies);
    loop {
        let (consumed, progress) = handshake.advance(&held, &exports, &mut replies);
        assert!(consumed <= held.len());
        held.drain(..consumed);
        sent.append(&mut replies);
        match progress {
            HandshakeStep::Receive if at == input.len() => {
                return Outcome { sent, left: held, end: None };
            }
            HandshakeStep::Receive => {
                assert!(held.len() < OPTION_DATA_MAX + OptionHeader::SIZE);
                let end = (at + step).min(input.len());
                held.extend_from_slice(&input[at..end]);
                at = end;
            }
            HandshakeStep::Send => {}
            HandshakeStep::StartTls => handshake.secured(),
            end => {
                held.extend_from_slice(&input[at..]);
                return Outcome { sent, left: held, end: Some(end) };
            }
        }
    }
}

fn fixed(options: &[Vec<u8>]) -> Vec<u8> {
    [&3u32.to_be_bytes()[..], &options.concat()].concat()
}

fn outcome(options: &[Vec<u8>]) -> Outcome {
    let input = fixed(options);
    run(&input, input.len())
}

#[test]
fn a_session_is_agreed_on_wherever_the_bytes_are_cut() {
    let input = fixed(&[
        option(option::STRUCTURED_REPLY, &[]),
        option(option::LIST, &[]),
        option(4711, b"what"),
        option(option::STARTTLS, &[]),
        option(option::LIST_META_CONTEXT, &contexts(b"", &[])),
        option(option::SET_META_CONTEXT, &contexts(b"first", &[b"qemu:x", b"base:allocation"])),
        option(option::INFO, &go(b"first", &[info::BLOCK_SIZE])),
        option(option::GO, &go(b"", &[info::NAME, info::DESCRIPTION, info::NAME, 77])),
        b"the next phase".to_vec(),
    ]);
    for step in 1..=input.len() {
        let outcome = run(&input, step);
        assert_eq!(outcome.left, b"the next phase");
        let start = outcome.start();
        assert_eq!(start.export, "first");
        let headers = Headers::Structured;
        let expected =
            Session { size: 1 << 20, read_only: false, headers, contexts: BASE, device: None };
        assert_eq!(start.session, expected);
        let expected = [
            vec![kind::ACK, kind::SERVER, kind::SERVER, kind::ACK, kind::ERR_UNSUP],
            vec![kind::ERR_UNSUP, kind::META_CONTEXT, kind::META_CONTEXT, kind::ACK],
            vec![kind::META_CONTEXT, kind::ACK],
            vec![kind::INFO, kind::INFO, kind::ACK],
            vec![kind::INFO, kind::INFO, kind::INFO, kind::INFO, kind::ACK],
        ];
        assert_eq!(outcome.kinds(), expected.concat());
    }
}

#[test]
fn facts_are_those_of_the_volume() {
    let name = "zwölf".as_bytes();
    let outcome = outcome(&[option(option::GO, &go(name, &[info::NAME]))]);
    let facts: Vec<_> = outcome.replies().into_iter().map(|(_, _, data)| data).collect();
    let flags = transmission_flags(&outcome.start().session);
    assert_eq!(facts[0], [&[0, 0][..], &(1u64 << 30).to_be_bytes(), &flags.to_be_bytes()].concat());
    assert_eq!(facts[1], [0, 3, 0, 0, 2, 0, 0, 0, 16, 0, 2, 0, 0, 0]);
    assert_eq!(facts[2], [&[0, 1], name].concat());
    let has = |flag| flags & flag != 0;
    assert!(has(transmission_flag::READ_ONLY) && !has(transmission_flag::SEND_TRIM));
    assert!(has(transmission_flag::CAN_MULTI_CONN) && !has(transmission_flag::SEND_DF));
}

#[test]
fn flush_is_offered_to_an_outliving_device_with_a_write_cache() {
    use transmission_flag::{READ_ONLY, SEND_FLUSH, SEND_FUA, SEND_TRIM};
    let go = option(option::GO, &go(b"first", &[]));
    let outliving = |data: &[u8]| outcome(&[option(option::OUTLIVING, data), go.clone()]);
    let device = outliving(&[0, 0, 0, 0, 0, 0, 1, 2, 0]);
    assert_eq!(device.kinds(), [kind::ACK, kind::INFO, kind::INFO, kind::ACK]);
    let known = OutlivingDevice { mark: 0x102, flushes: false };
    assert_eq!(device.start().session.device, Some(known));
    let flags = transmission_flags(&device.start().session);
    assert_eq!(flags & (READ_ONLY | SEND_FLUSH | SEND_FUA | SEND_TRIM), SEND_TRIM);
    let cached = outliving(&[0, 0, 0, 0, 0, 0, 1, 2, 1]);
    let known = OutlivingDevice { flushes: true, ..known };
    assert_eq!(cached.start().session.device, Some(known));
    let flags = transmission_flags(&cached.start().session);
    assert_eq!(flags & (SEND_FLUSH | SEND_FUA), SEND_FLUSH | SEND_FUA);
    // Only the kernel of this machine has devices that outlive the daemon.
    let far = [option(option::OUTLIVING, &[0; 9]), go.clone()];
    let far = run_with(Security::Plain, &fixed(&far), 64);
    assert_eq!((far.kinds()[0], far.start().session.device), (kind::ERR_UNSUP, None));
    for bad in [&[][..], &[0; 8], &[0; 10], &[2; 9]] {
        let other = outliving(bad);
        assert_eq!(other.kinds()[0], kind::ERR_INVALID);
        assert_eq!(other.start().session.device, None);
        let flags = transmission_flags(&other.start().session);
        assert_eq!(flags & SEND_FLUSH, SEND_FLUSH);
    }
}

#[test]
fn export_name_is_padded_only_for_old_clients() {
    for (client, padding) in [(0u32, true), (1, true), (2, false), (3, false)] {
        let input = [&client.to_be_bytes()[..], &option(option::EXPORT_NAME, b"first")].concat();
        let outcome = run(&input, input.len());
        assert_eq!(outcome.sent.len(), 18 + 10 + if padding { 124 } else { 0 });
        assert_eq!(outcome.start().session.size, 1 << 20);
        let input = [&client.to_be_bytes()[..], &option(option::LIST, &[])].concat();
        let fixed = client & 1 != 0;
        assert_eq!(run(&input, 1).end.is_none(), fixed);
    }
    let outcome = outcome(&[option(option::EXPORT_NAME, b"nobody")]);
    assert_eq!(outcome.reason(), Reason::UnknownExport);
}

#[test]
fn contexts_hold_for_the_export_for_which_they_were_set() {
    let set =
        |name: &[u8], queries: &[&[u8]]| option(option::SET_META_CONTEXT, &contexts(name, queries));
    let structured = option(option::STRUCTURED_REPLY, &[]);
    let base: &[&[u8]] = &[b"base:allocation"];
    let both: &[&[u8]] = &[b"forebay:state", b"base:allocation", b"forebay:state"];
    for (options, contexts) in [
        (vec![structured.clone(), set(b"first", base)], BASE),
        (vec![structured.clone(), set(b"", base)], BASE),
        (vec![structured.clone(), set("zwölf".as_bytes(), base)], Contexts::default()),
        (vec![structured.clone(), set(b"first", &[b"base:"])], Contexts::default()),
        (vec![structured.clone(), set(b"first", &[])], Contexts::default()),
        (vec![structured.clone(), set(b"first", base), set(b"first", &[])], Contexts::default()),
        (vec![structured.clone(), set(b"first", base), set(b"nobody", base)], Contexts::default()),
        (vec![structured.clone(), set(b"first", both)], Contexts { allocation: true, state: true }),
        (
            vec![structured.clone(), set(b"first", &[b"forebay:state"])],
            Contexts { allocation: false, state: true },
        ),
        (
            vec![structured.clone(), set(b"first", &[b"forebay:", b"forebay:x"])],
            Contexts::default(),
        ),
        (vec![set(b"first", base), structured], Contexts::default()),
    ] {
        let outcome = outcome(&[options, vec![option(option::GO, &go(b"first", &[]))]].concat());
        assert_eq!(outcome.start().session.contexts, contexts);
    }
}

#[test]
fn extended_headers_take_precedence() {
    let (structured, extended) =
        (option(option::STRUCTURED_REPLY, &[]), option(option::EXTENDED_HEADERS, &[]));
    let set = option(option::SET_META_CONTEXT, &contexts(b"first", &[b"base:allocation"]));
    let begin = option(option::GO, &go(b"first", &[]));
    let (ack, refused) = (kind::ACK, kind::ERR_EXT_HEADER_REQD);
    for (options, answers, headers) in [
        (vec![], vec![], Headers::Simple),
        (vec![&structured], vec![ack], Headers::Structured),
        (vec![&extended], vec![ack], Headers::Extended),
        (vec![&extended, &extended], vec![ack, ack], Headers::Extended),
        (vec![&structured, &extended], vec![ack, ack], Headers::Extended),
        (vec![&extended, &structured], vec![ack, refused], Headers::Extended),
    ] {
        let options: Vec<_> = options.into_iter().chain([&begin]).cloned().collect();
        let outcome = outcome(&options);
        assert_eq!(outcome.kinds()[..answers.len()], answers);
        assert_eq!(outcome.start().session.headers, headers);
    }
    // Metadata contexts need no structured replies if extended headers were negotiated.
    let with_context = outcome(&[extended.clone(), set, begin]);
    assert!(with_context.start().session.contexts.allocation);
    let flags = transmission_flags(&with_context.start().session);
    assert!(flags & transmission_flag::SEND_DF != 0);
    let old = outcome(&[extended, option(option::EXPORT_NAME, b"first")]);
    assert_eq!(old.reason(), Reason::Extended);
}

#[test]
fn contexts_are_listed_by_name_and_by_namespace() {
    for (queries, names) in [
        (vec![], vec!["base:allocation", "forebay:state"]),
        (vec!["base:"], vec!["base:allocation"]),
        (vec!["forebay:"], vec!["forebay:state"]),
        (vec!["forebay:state", "forebay:"], vec!["forebay:state"]),
        (vec!["forebay:", "base:allocation"], vec!["base:allocation", "forebay:state"]),
        (vec!["forebay", "forebay:states", "qemu:", ""], vec![]),
    ] {
        let queries: Vec<_> = queries.iter().map(|query| query.as_bytes()).collect();
        let list = option(option::LIST_META_CONTEXT, &contexts(b"first", &queries));
        let replies = outcome(&[option(option::EXTENDED_HEADERS, &[]), list]).replies();
        let found = replies.iter().filter(|(_, kind, _)| *kind == kind::META_CONTEXT);
        let found: Vec<_> = found.map(|(_, _, data)| String::from_utf8_lossy(&data[4..])).collect();
        assert_eq!(found, names);
    }
}

#[test]
fn nothing_is_told_before_tls_where_it_is_required() {
    let begin = option(option::GO, &go(b"first", &[]));
    let (required, ack) = (kind::ERR_TLS_REQD, kind::ACK);
    let before = [
        option(option::LIST, &[]),
        option(option::INFO, &go(b"first", &[])),
        begin.clone(),
        option(option::GO, b"malformed"),
        option(option::STRUCTURED_REPLY, &[]),
        option(option::EXTENDED_HEADERS, &[]),
        option(option::LIST_META_CONTEXT, &contexts(b"", &[])),
        option(4711, b"what"),
        option(option::LIST, &vec![0; OPTION_DATA_MAX + 1]),
    ];
    let after = [
        option(option::STARTTLS, &[0]),
        option(option::STARTTLS, &[]),
        option(option::STARTTLS, &[]),
        option(option::EXTENDED_HEADERS, &[]),
        begin,
    ];
    let input = fixed(&[&before[..], &after[..]].concat());
    for step in [1, 7, 1000, input.len()] {
        let outcome = run_with(Security::Required, &input, step);
        let expected = [vec![required; before.len()], vec![kind::ERR_INVALID, ack]].concat();
        assert_eq!(outcome.kinds()[..expected.len()], expected);
        assert_eq!(outcome.kinds()[expected.len()..][..2], [kind::ERR_INVALID, ack]);
        assert_eq!(outcome.start().session.headers, Headers::Extended);
    }
    let outcome_of = |options: &[Vec<u8>]| run_with(Security::Required, &fixed(options), 64);
    let old = outcome_of(&[option(option::EXPORT_NAME, b"first")]);
    assert_eq!((old.reason(), old.kinds()), (Reason::TlsRequired, vec![]));
    let aborted = outcome_of(&[option(option::ABORT, &[])]);
    assert_eq!((aborted.reason(), aborted.kinds()), (Reason::Abort, vec![ack]));
    let encrypted =
        outcome_of(&[option(option::STARTTLS, &[]), option(option::EXPORT_NAME, b"first")]);
    assert_eq!(encrypted.start().export, "first");
}

#[test]
fn malformed_options_are_refused_and_the_next_one_works() {
    let long = vec![b'n'; NAME_MAX + 1];
    let mut overrun = string(b"first");
    overrun[3] = 200;
    let cases: Vec<(u32, Vec<u8>, u32)> = vec![
        (option::LIST, vec![0], kind::ERR_INVALID),
        (option::STRUCTURED_REPLY, vec![0], kind::ERR_INVALID),
        (option::EXTENDED_HEADERS, vec![0], kind::ERR_INVALID),
        (option::SET_META_CONTEXT, vec![], kind::ERR_INVALID),
        (option::SET_META_CONTEXT, contexts(b"nobody", &[]), kind::ERR_UNKNOWN),
        (option::LIST_META_CONTEXT, contexts(&long, &[]), kind::ERR_TOO_BIG),
        (option::LIST_META_CONTEXT, contexts(b"first", &[&long]), kind::ERR_TOO_BIG),
        (option::LIST_META_CONTEXT, contexts(b"first", &[b"\xff"]), kind::ERR_INVALID),
        (option::LIST_META_CONTEXT, [string(b"first"), vec![255; 4]].concat(), kind::ERR_INVALID),
        (option::LIST_META_CONTEXT, [contexts(b"", &[]), vec![0]].concat(), kind::ERR_INVALID),
        (option::GO, vec![], kind::ERR_INVALID),
        (option::GO, string(b"first"), kind::ERR_INVALID),
        (option::GO, overrun.clone(), kind::ERR_INVALID),
        (option::GO, vec![255; 6], kind::ERR_TOO_BIG),
        (option::GO, go(b"nobody", &[]), kind::ERR_UNKNOWN),
        (option::GO, go(b"\xff\xfe", &[]), kind::ERR_INVALID),
        (option::GO, go(&long, &[]), kind::ERR_TOO_BIG),
        (option::GO, [go(b"first", &[]), vec![0]].concat(), kind::ERR_INVALID),
        (option::GO, [string(b"first"), vec![255, 255]].concat(), kind::ERR_INVALID),
        (option::INFO, go(b"nobody", &[]), kind::ERR_UNKNOWN),
        (option::GO, vec![0; OPTION_DATA_MAX + 1], kind::ERR_TOO_BIG),
        (0, vec![], kind::ERR_UNSUP),
        (u32::MAX, vec![1; OPTION_DATA_MAX], kind::ERR_UNSUP),
    ];
    for (code, data, expected) in cases {
        let input = fixed(&[
            option(option::STRUCTURED_REPLY, &[]),
            option(code, &data),
            option(option::ABORT, &[]),
        ]);
        for step in [input.len(), 1000] {
            let outcome = run(&input, step);
            assert_eq!(outcome.kinds(), [kind::ACK, expected, kind::ACK], "option {code}");
            assert_eq!(outcome.reason(), Reason::Abort);
        }
    }
}

#[test]
fn other_protocols_are_dropped() {
    assert_eq!(run(b"GET / HTTP/1.1\r\n", 3).reason(), Reason::Flags(u32::from_be_bytes(*b"GET ")));
    assert_eq!(run(&4u32.to_be_bytes(), 4).reason(), Reason::Flags(4));
    assert_eq!(outcome(&[vec![7; 16]]).reason(), Reason::Magic);
    assert_eq!(
        outcome(&[option(option::EXPORT_NAME, &[b'n'; NAME_MAX + 1])]).reason(),
        Reason::UnknownExport
    );
    assert_eq!(outcome(&[option(option::EXPORT_NAME, b"\xff")]).reason(), Reason::UnknownExport);
}

#[test]
fn a_thousand_options_are_answered_and_ten_thousand_are_not() {
    let outcome_of = |count| outcome(&vec![option(4711, &[]); count]);
    assert_eq!(outcome_of(1000).kinds(), vec![kind::ERR_UNSUP; 1000]);
    assert_eq!(outcome_of(10_000).reason(), Reason::TooManyOptions);
}

#[test]
fn replies_do_not_pile_up() {
    let exports = exports();
    let mut replies = Vec::new();
    let mut handshake = Handshake::new(Security::Plain, &mut replies);
    let input = fixed(&vec![option(option::LIST, &[]); 3000]);
    let (consumed, progress) = handshake.advance(&input, &exports, &mut replies);
    assert!(matches!(progress, HandshakeStep::Send));
    assert!(consumed < input.len() && replies.len() < REPLIES_HIGH + 1024);
}
