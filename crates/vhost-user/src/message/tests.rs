use proptest::prelude::*;

use super::*;

fn header(code: u32, flags: u32, len: u32) -> [u8; HEADER] {
    let mut bytes = [0; HEADER];
    for (place, word) in bytes.chunks_exact_mut(4).zip([code, flags, len]) {
        place.copy_from_slice(&word.to_ne_bytes());
    }
    bytes
}

fn parse(code: u32, payload: &[u8], descriptors: usize) -> Result<Message, MessageError> {
    let header = Header::parse(header(code, VERSION, payload.len() as u32)).expect("valid");
    Message::parse(header, payload, descriptors)
}

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

fn pair(first: u32, second: u32) -> Vec<u8> {
    [first, second].iter().flat_map(|word| word.to_ne_bytes()).collect()
}

#[test]
fn headers_of_other_versions_and_answers_are_refused() {
    let good = Header::parse(header(3, VERSION | NEED_REPLY, 8)).expect("valid");
    assert_eq!(good, Header { code: 3, need_reply: true, len: 8 });
    assert_eq!(good.reply(4), header(3, VERSION | REPLY, 4));
    for flags in [0, 2, 3, VERSION | REPLY] {
        assert_eq!(Header::parse(header(3, flags, 0)), Err(MessageError::Flags(flags)));
    }
    let long = PAYLOAD_MAX as u32 + 1;
    assert_eq!(Header::parse(header(3, VERSION, long)), Err(MessageError::Length(long)));
}

#[test]
fn messages_are_read() {
    let region =
        RegionPlace { guest: GuestAddress(1), size: 2, client: ClientAddress(3), file_offset: 4 };
    let place = InflightPlace { len: 1, offset: 2, queues: 3, queue_size: 4 };
    let inflight = [words(&[1, 2]), vec![3, 0, 4, 0]].concat();
    let addresses = RingAddresses {
        descriptors: ClientAddress(5),
        used: ClientAddress(6),
        available: ClientAddress(7),
    };
    let table = [pair(2, 0), words(&[1, 2, 3, 4, 1, 2, 3, 4])].concat();
    for (code, payload, descriptors, expected) in [
        (1, vec![], 0, Message::GetFeatures),
        (2, words(&[9]), 0, Message::SetFeatures(9)),
        (5, table, 2, Message::SetMemory(vec![region, region])),
        (8, pair(1, 128), 0, Message::SetQueueSize(QueueIndex(1), 128)),
        (
            9,
            [pair(1, 0), words(&[5, 6, 7, 0])].concat(),
            0,
            Message::SetQueueAddresses(QueueIndex(1), addresses),
        ),
        (11, pair(2, 0), 0, Message::GetQueueBase(QueueIndex(2))),
        (12, words(&[3]), 1, Message::SetKick(QueueIndex(3))),
        (13, words(&[3 | 256]), 0, Message::SetCall(QueueIndex(3))),
        (18, pair(0, 1), 0, Message::SetQueueEnabled(QueueIndex(0), true)),
        (24, [pair(8, 2), vec![0; 6]].concat(), 0, Message::GetConfig { offset: 8, len: 2 }),
        (
            25,
            [pair(32, 1), vec![0, 0, 0, 0, 7]].concat(),
            0,
            Message::SetConfig { offset: 32, bytes: vec![7] },
        ),
        (31, inflight.clone(), 0, Message::GetInflight(place)),
        (32, [inflight, vec![0; 4]].concat(), 1, Message::SetInflight(place)),
        (37, words(&[0, 1, 2, 3, 4]), 1, Message::AddRegion(region)),
        (38, words(&[0, 1, 2, 3, 4]), 0, Message::RemoveRegion(region)),
        (38, words(&[0, 1, 2, 3, 4]), 1, Message::RemoveRegion(region)),
    ] {
        assert_eq!(parse(code, &payload, descriptors), Ok(expected), "{code}");
        let more = descriptors + 1;
        if code != 38 {
            let refused = Err(MessageError::Descriptors(code, more));
            assert_eq!(parse(code, &payload, more), refused);
        }
        if let Some(shorter) = payload.len().checked_sub(8) {
            assert!(parse(code, &payload[..shorter], descriptors).is_err(), "{code}");
        }
    }
}

#[test]
fn impossible_messages_are_refused() {
    let queues = u32::from(QUEUES_MAX);
    for (code, payload) in [
        (8, pair(queues, 1)),
        (8, pair(u32::MAX, 1)),
        (12, words(&[u64::from(QUEUES_MAX)])),
        (12, words(&[512])),
        (18, pair(0, 2)),
        (5, [pair(9, 0), vec![0; 9 * 32]].concat()),
        (24, [pair(u32::MAX, 2), vec![0; 6]].concat()),
        (24, [pair(0, 257), vec![0; 261]].concat()),
        (25, [pair(0, 4), vec![0; 7]].concat()),
        (2, words(&[1, 2])),
    ] {
        let refused = Err(MessageError::Payload(code));
        assert_eq!(parse(code, &payload, usize::from(code == 12)), refused, "{code}");
    }
    for code in [0, 6, 7, 19, 23, 26, 33, 34, 39, 40, u32::MAX] {
        assert_eq!(parse(code, &[], 0), Err(MessageError::Unknown(code)));
    }
}

proptest! {
    #[test]
    fn any_message_is_read_or_refused(
        code in 0_u32..45,
        payload in prop::collection::vec(any::<u8>(), 0..400),
        descriptors in 0_usize..10,
    ) {
        let _ = parse(code, &payload, descriptors);
    }
}
