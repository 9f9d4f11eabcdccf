use super::*;
use crate::memory::{ClientAddress, GuestAddress};
use crate::testing::{BUFFERS, CLIENT, GUEST, Guest};

const SIZE: u16 = 8;

/// Parses a request of readable and writable buffers of these lengths, which are adjacent.
fn parse(
    header: &[u8],
    readable: &[u32],
    writable: &[u32],
) -> Result<GuestOperation, RequestError> {
    let guest = Guest::new(SIZE);
    guest.memory.write(GuestAddress(BUFFERS), header).expect("in memory");
    let (mut at, count) = (BUFFERS, readable.len() + writable.len());
    for (index, len) in readable.iter().chain(writable).enumerate() {
        let writes = if index < readable.len() { 0 } else { 2 };
        let next = u16::from(index + 1 < count);
        guest.describe(GUEST, index as u16, (at, *len), writes | next, index as u16 + 1);
        at += u64::from(*len);
    }
    let table = guest.memory.window(ClientAddress(CLIENT), 16 * u64::from(SIZE)).expect("there");
    let mut buffers = Buffers::default();
    buffers.walk(&table, SIZE, Head(0), &guest.memory, false).expect("valid");
    BlockRequest::parse(Head(0), buffers, &guest.memory).map(|request| request.kind)
}

fn header(kind: u32, sector: u64, range: &[u64]) -> Vec<u8> {
    let mut bytes = kind.to_le_bytes().to_vec();
    bytes.extend([0; 4]);
    bytes.extend(sector.to_le_bytes());
    range.iter().for_each(|word| bytes.extend(word.to_le_bytes()));
    bytes
}

#[test]
fn requests_are_read_whatever_their_framing() {
    let read = header(IN, 3, &[]);
    for (readable, writable) in [
        (&[16][..], &[4096, 1][..]),
        (&[1, 15], &[1, 4095, 1]),
        (&[16], &[4097]),
        (&[0, 16, 0], &[0, 4096, 0, 1]),
    ] {
        let expected = Ok(GuestOperation::Read { offset: 1536, len: 4096 });
        assert_eq!(parse(&read, readable, writable), expected, "{readable:?} {writable:?}");
    }
    let write = parse(&header(OUT, 1, &[]), &[16, 512, 512], &[1]);
    assert_eq!(write, Ok(GuestOperation::Write { offset: 512, len: 1024 }));
    assert_eq!(parse(&header(FLUSH, 7, &[]), &[16], &[1]), Ok(GuestOperation::Flush));
    assert_eq!(parse(&header(GET_ID, 0, &[]), &[16], &[20, 1]), Ok(GuestOperation::Id));
}

#[test]
fn ranges_are_read() {
    let range = |flags: u64| header(DISCARD, 0, &[8, 16 | flags << 32]);
    let discard = parse(&range(0), &[16, 16], &[1]);
    assert_eq!(discard, Ok(GuestOperation::Discard { offset: 4096, len: 8192 }));
    assert_eq!(parse(&range(1), &[32], &[1]), Ok(GuestOperation::Refused(Status::Unsupported)));
    let zeroes = |flags: u64| header(WRITE_ZEROES, 0, &[8, 16 | flags << 32]);
    for (flags, no_hole) in [(0, true), (1, false)] {
        let expected = Ok(GuestOperation::WriteZeroes { offset: 4096, len: 8192, no_hole });
        assert_eq!(parse(&zeroes(flags), &[32], &[1]), expected);
    }
    assert_eq!(parse(&zeroes(2), &[32], &[1]), Ok(GuestOperation::Refused(Status::Unsupported)));
    let two = header(WRITE_ZEROES, 0, &[8, 16, 8, 16]);
    assert_eq!(parse(&two, &[48], &[1]), Ok(GuestOperation::Refused(Status::Unsupported)));
    let far = header(WRITE_ZEROES, 0, &[u64::MAX, 16]);
    assert_eq!(parse(&far, &[32], &[1]), Ok(GuestOperation::Refused(Status::Failed)));
    let long = header(WRITE_ZEROES, 0, &[0, u64::from(u32::MAX)]);
    assert_eq!(parse(&long, &[32], &[1]), Ok(GuestOperation::Refused(Status::Failed)));
}

#[test]
fn unanswerable_requests_differ_from_refused_ones() {
    let read = header(IN, 0, &[]);
    assert_eq!(parse(&read, &[15], &[513]), Err(RequestError::Header));
    assert_eq!(parse(&read, &[16], &[]), Err(RequestError::Status));
    assert_eq!(parse(&read, &[16], &[0]), Err(RequestError::Status));
    assert_eq!(parse(&read, &[16], &[100]), Ok(GuestOperation::Refused(Status::Failed)));
    assert_eq!(
        parse(&header(IN, u64::MAX, &[]), &[16], &[513]),
        Ok(GuestOperation::Refused(Status::Failed))
    );
    assert_eq!(
        parse(&header(77, 0, &[]), &[16], &[1]),
        Ok(GuestOperation::Refused(Status::Unsupported))
    );
}

#[test]
fn answers_fill_the_buffers_and_end_with_the_status() {
    let guest = Guest::new(SIZE);
    guest.memory.write(GuestAddress(BUFFERS), &header(IN, 0, &[])).expect("in memory");
    guest.describe(GUEST, 0, (BUFFERS, 16), 1, 1);
    guest.describe(GUEST, 1, (BUFFERS + 1000, 300), 3, 2);
    guest.describe(GUEST, 2, (BUFFERS + 2000, 213), 2, 0);
    let table = guest.memory.window(ClientAddress(CLIENT), 16 * u64::from(SIZE)).expect("there");
    let mut buffers = Buffers::default();
    buffers.walk(&table, SIZE, Head(0), &guest.memory, false).expect("valid");
    let request = BlockRequest::parse(Head(0), buffers, &guest.memory).expect("valid");
    let data: Vec<u8> = (0..512).map(|index| index as u8).collect();
    assert_eq!(request.answer(&guest.memory, &data, Status::Failed), Ok(513));
    let (mut first, mut second) = ([0; 300], [9; 213]);
    guest.memory.read(GuestAddress(BUFFERS + 1000), &mut first).expect("in memory");
    guest.memory.read(GuestAddress(BUFFERS + 2000), &mut second).expect("in memory");
    assert_eq!((&first[..], &second[..212]), (&data[..300], &data[300..]));
    assert_eq!(second[212], Status::Failed as u8);
    assert_eq!(request.answer(&guest.memory, &[0; 4096], Status::Ok), Ok(513), "never too much");
}
