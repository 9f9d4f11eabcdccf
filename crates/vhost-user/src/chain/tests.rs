use proptest::prelude::*;

use super::*;
use crate::memory::ClientAddress;
use crate::testing::{BUFFERS, BYTES, GUEST, Guest};

const SIZE: u16 = 8;

fn walk(guest: &Guest, head: u16, indirect: bool) -> Result<Buffers, ChainError> {
    let table = guest
        .memory
        .window(ClientAddress(crate::testing::CLIENT), u64::from(SIZE) * DESCRIPTOR)
        .expect("in memory");
    let mut buffers = Buffers::default();
    buffers.walk(&table, SIZE, Head(head), &guest.memory, indirect)?;
    Ok(buffers)
}

#[test]
fn chains_are_read_in_their_order() {
    let guest = Guest::new(SIZE);
    guest.describe(GUEST, 3, (BUFFERS, 16), NEXT, 1);
    guest.describe(GUEST, 1, (BUFFERS + 512, 100), NEXT | WRITE, 7);
    guest.describe(GUEST, 7, (BUFFERS + 4096, 1), WRITE, 99);
    let buffers = walk(&guest, 3, false).expect("valid");
    assert_eq!(buffers.readable(), [Segment { at: GuestAddress(BUFFERS), len: 16 }]);
    assert_eq!(total(buffers.writable()), 101);

    let table = BUFFERS + 8192;
    guest.describe(GUEST, 0, (table, 32), INDIRECT, 0);
    guest.describe(table, 0, (BUFFERS, 16), NEXT, 1);
    guest.describe(table, 1, (BUFFERS, 1), WRITE, 0);
    let buffers = walk(&guest, 0, true).expect("valid");
    assert_eq!((buffers.readable().len(), buffers.writable().len()), (1, 1));
    assert_eq!(walk(&guest, 0, false), Err(ChainError::Indirect), "not negotiated");
}

#[test]
fn every_wrong_chain_is_refused() {
    let table = BUFFERS + 8192;
    let outside = OutOfMemory { at: GUEST + BYTES - 8, len: 16 };
    for (what, expected) in [
        ("loop", ChainError::TooLong),
        ("next", ChainError::NoDescriptor(SIZE)),
        ("order", ChainError::Order),
        ("memory", ChainError::Memory(outside)),
        ("indirect next", ChainError::Indirect),
        ("indirect empty", ChainError::Indirect),
        ("indirect odd", ChainError::Indirect),
        ("indirect inner", ChainError::Indirect),
        ("indirect short", ChainError::NoDescriptor(2)),
        ("indirect long", ChainError::TooLong),
    ] {
        let guest = Guest::new(SIZE);
        let good = (BUFFERS, 16);
        guest.describe(GUEST, 0, good, NEXT, 1);
        guest.describe(GUEST, 1, good, WRITE, 0);
        assert!(walk(&guest, 0, true).is_ok());
        match what {
            "loop" => guest.describe(GUEST, 1, good, NEXT, 0),
            "next" => guest.describe(GUEST, 1, good, NEXT, SIZE),
            "order" => {
                guest.describe(GUEST, 0, good, NEXT | WRITE, 1);
                guest.describe(GUEST, 1, good, 0, 0);
            }
            "memory" => guest.describe(GUEST, 1, (outside.at, 16), WRITE, 0),
            "indirect next" => guest.describe(GUEST, 1, (table, 16), INDIRECT | NEXT, 2),
            "indirect empty" => guest.describe(GUEST, 1, (table, 0), INDIRECT, 0),
            "indirect odd" => guest.describe(GUEST, 1, (table, 24), INDIRECT, 0),
            "indirect inner" => {
                guest.describe(GUEST, 1, (table, 16), INDIRECT, 0);
                guest.describe(table, 0, (table, 16), INDIRECT, 0);
            }
            "indirect short" => {
                guest.describe(GUEST, 1, (table, 32), INDIRECT, 0);
                guest.describe(table, 0, good, NEXT, 2);
            }
            _ => guest.describe(GUEST, 1, (table, 16 << 16), INDIRECT, 0),
        }
        assert_eq!(walk(&guest, 0, true), Err(expected), "{what}");
    }
}

/// Any descriptor, with a preference for almost valid ones.
fn any_descriptor() -> impl Strategy<Value = (u64, u32, u16, u16)> {
    let address = prop_oneof![
        4 => GUEST..GUEST + BYTES,
        1 => any::<u64>(),
        1 => (0_u64..64).prop_map(|less| u64::MAX - less),
    ];
    let len =
        prop_oneof![4 => 0_u32..8192, 1 => any::<u32>(), 2 => (1_u32..9).prop_map(|n| n * 16)];
    let flags = prop_oneof![4 => 0_u16..8, 1 => any::<u16>()];
    (address, len, flags, prop_oneof![4 => 0..SIZE, 1 => any::<u16>()])
}

proptest! {
    #[test]
    fn any_table_is_walked_to_an_end(
        table in prop::collection::vec(any_descriptor(), usize::from(SIZE)),
        inner in prop::collection::vec(any_descriptor(), 8),
        head in 0..SIZE,
        indirect in any::<bool>(),
    ) {
        let guest = Guest::new(SIZE);
        for (index, (at, len, flags, next)) in (0..).zip(&table) {
            // Some indirect tables overlap the descriptors.
            let at = if flags & INDIRECT != 0 && at % 2 == 0 { BUFFERS } else { *at };
            guest.describe(GUEST, index, (at, *len), *flags, *next);
        }
        for (index, (at, len, flags, next)) in (0..).zip(&inner) {
            guest.describe(BUFFERS, index, (*at, *len), *flags, *next);
        }
        if let Ok(buffers) = walk(&guest, head, indirect) {
            let segments = buffers.readable().iter().chain(buffers.writable());
            prop_assert!(segments.clone().count() <= DESCRIPTORS_MAX as usize);
            for segment in segments {
                prop_assert!(guest.memory.check(segment.at, segment.len as usize).is_ok());
            }
        }
    }

    #[test]
    fn data_is_gathered_and_scattered_like_one_buffer(
        lens in prop::collection::vec(0_u32..300, 1..6),
        skip in 0_u64..1000,
        want in 0_usize..1000,
    ) {
        let guest = Guest::new(SIZE);
        let mut at = BUFFERS;
        let segments: Vec<_> = lens.iter().map(|len| {
            let segment = Segment { at: GuestAddress(at), len: *len };
            at += u64::from(*len) + 17;
            segment
        }).collect();
        let all = total(&segments) as usize;
        let whole: Vec<u8> = (0..all).map(|index| index as u8).collect();
        prop_assert_eq!(scatter(&guest.memory, &segments, 0, &whole), Ok(all));
        let mut part = vec![0; want];
        let got = gather(&guest.memory, &segments, skip, &mut part).expect("in memory");
        let rest = whole.get(skip as usize..).unwrap_or_default();
        prop_assert_eq!(got, want.min(rest.len()));
        prop_assert_eq!(&part[..got], &rest[..got]);
    }
}
