use std::mem::size_of_val;

use proptest::prelude::*;

use forebay_core::{Generation, SegmentId, Slot};

use super::*;

fn geometry() -> Geometry {
    Geometry::plan(1 << 30, BlockSize::DEFAULT, 512, None).expect("a plan")
}

fn sample() -> Superblock {
    Superblock {
        cache: Uuid::from_u128(0x0102_0304_0506_0708_090a_0b0c_0d0e_0f10),
        generation: 7,
        compat: 5,
        incompat: 0,
        ro_compat: 0,
        geometry: geometry(),
        volume_table: VolumeTableRef { area: 1, len: 40, crc: 0xdead_beef },
        checkpoint: Some(CheckpointRef { area: 1, len: 8192, header_crc: 0x1234_5678, number: 3 }),
        clean_shutdown: true,
        next_volume_id: 2,
        last_record: RecordNumber(99),
        accepted: None,
    }
}

/// A superblock with as much of an accepted log as fits.
fn with_accepted() -> Superblock {
    let geometry = geometry();
    let accepted = AcceptedLog {
        through: RecordNumber(1000),
        sequence: 2000,
        next_generation: Generation(300),
        left_out: (0..MAX_LEFT_OUT as u64).map(|it| it * 10 + 3..=it * 10 + 3 + it % 8).collect(),
        torn: (0..MAX_TORN as u32).map(|it| geometry.slot_at(SegmentId(it % 7), it + 1)).collect(),
    };
    assert!(accepted.fits());
    let mut superblock = sample();
    superblock.accept(Some(accepted));
    superblock
}

/// Changes the raw fields and mends the checksum.
fn forged(change: impl FnOnce(&mut OnDiskSuperblock)) -> [u8; PAGE] {
    let mut bytes = with_accepted().encode(COPY_A);
    change(OnDiskSuperblock::mut_from_bytes(&mut bytes).expect("a page"));
    seal(&mut bytes);
    bytes
}

#[test]
fn a_superblock_survives_the_round_trip() {
    for at in [COPY_A, COPY_B] {
        assert_eq!(Superblock::decode(&sample().encode(at), at), Ok(sample()));
        let bare = Superblock { checkpoint: None, clean_shutdown: false, ..sample() };
        assert_eq!(Superblock::decode(&bare.encode(at), at), Ok(bare));
        let accepted = with_accepted();
        assert_eq!(Superblock::decode(&accepted.encode(at), at), Ok(accepted.clone()));
        let mut forgotten = accepted;
        forgotten.accept(None);
        assert_eq!(forgotten, sample());
    }
}

#[test]
fn an_accepted_log_knows_the_numbers_that_it_leaves_out() {
    let left_out = vec![3..=5, 9..=9, 20..=30];
    let mut accepted = AcceptedLog { left_out, ..AcceptedLog::default() };
    let numbers: Vec<u64> = (0..40).filter(|number| accepted.leaves_out(*number)).collect();
    assert_eq!(numbers, [3, 4, 5, 9].into_iter().chain(20..=30).collect::<Vec<_>>());
    assert!(accepted.fits() && !AcceptedLog::default().leaves_out(0));
    assert_eq!([2, 3, 5, 6, 25].map(|it| accepted.counting_from(it)), [2, 6, 6, 6, 31]);
    accepted.torn = vec![Slot(1); MAX_TORN + 1];
    assert!(!accepted.fits());
    let left_out = (0..=MAX_LEFT_OUT as u64).map(|it| 2 * it..=2 * it).collect();
    assert!(!AcceptedLog { left_out, ..AcceptedLog::default() }.fits());
}

#[test]
fn every_flipped_bit_is_refused() {
    let good = sample().encode(COPY_A);
    for bit in 0..PAGE * 8 {
        let mut bytes = good;
        bytes[bit / 8] ^= 1 << (bit % 8);
        let expected =
            if bit < 64 { SuperblockError::NotForebay } else { SuperblockError::Checksum };
        assert_eq!(Superblock::decode(&bytes, COPY_A), Err(expected), "bit {bit}");
    }
}

#[test]
fn every_truncation_is_refused() {
    let good = sample().encode(COPY_A);
    for len in 0..PAGE {
        assert_eq!(Superblock::decode(&good[..len], COPY_A), Err(SuperblockError::Truncated));
    }
    let mut longer = good.to_vec();
    longer.extend_from_slice(&[0xff; 100]);
    assert_eq!(Superblock::decode(&longer, COPY_A), Ok(sample()));
}

#[test]
fn every_tear_between_two_superblocks_is_refused() {
    let old = sample().encode(COPY_A);
    let new = Superblock { generation: 8, last_record: RecordNumber(1 << 40), ..sample() };
    let mut reserved = new.encode(COPY_A);
    // Something in every sector, as a later version might have.
    reserved[512..4092].fill(0x55);
    seal(&mut reserved);
    for pattern in 1..255u32 {
        let mut torn = old;
        for sector in (0..8).filter(|sector| pattern >> sector & 1 == 1) {
            torn[sector * 512..][..512].copy_from_slice(&reserved[sector * 512..][..512]);
        }
        assert_eq!(Superblock::decode(&torn, COPY_A), Err(SuperblockError::Checksum));
    }
}

type Forgery = (&'static str, fn(&mut OnDiskSuperblock));

#[test]
fn absurd_values_with_a_valid_checksum_are_refused_by_name() {
    let matrix: &[Forgery] = &[
        ("flags", |raw| raw.flags = 2.into()),
        ("flags", |raw| raw.flags = u32::MAX.into()),
        ("cache", |raw| raw.cache = [0; 16]),
        ("generation", |raw| raw.generation = u64::MAX.into()),
        ("generation", |raw| raw.generation = MAX_COUNT.into()),
        ("last_record", |raw| raw.last_record = MAX_COUNT.into()),
        ("checkpoint_number", |raw| raw.checkpoint_number = MAX_COUNT.into()),
        ("block_size", |raw| raw.block_size = 0.into()),
        ("block_size", |raw| raw.block_size = 3.into()),
        ("block_size", |raw| raw.block_size = 512.into()),
        ("block_size", |raw| raw.block_size = (2 << 20).into()),
        ("block_size", |raw| raw.block_size = (1 << 31).into()),
        ("granule", |raw| raw.granule = 0.into()),
        ("granule", |raw| raw.granule = 2048.into()),
        ("segment_bytes", |raw| raw.segment_bytes = 0.into()),
        ("segment_bytes", |raw| raw.segment_bytes = 4096.into()),
        ("segment_bytes", |raw| raw.segment_bytes = (3 << 20).into()),
        ("segment_bytes", |raw| raw.segment_bytes = (1u64 << 63).into()),
        ("segment_bytes", |raw| raw.segment_bytes = u64::MAX.into()),
        ("segment_count", |raw| raw.segment_count = 0.into()),
        ("segment_count", |raw| raw.segment_count = 15.into()),
        ("segment_count", |raw| raw.segment_count = u32::MAX.into()),
        ("segment_count", |raw| raw.segment_count = (1 << 31).into()),
        ("segments_offset", |raw| raw.segment_count = (1 << 20).into()),
        ("segments_offset", |raw| raw.segments_offset = 0.into()),
        ("segments_offset", |raw| raw.segments_offset = 4096.into()),
        ("segments_offset", |raw| raw.segments_offset = (1 << 30).into()),
        ("segments_offset", |raw| raw.segments_offset = (u64::MAX - 0xf_ffff).into()),
        ("segments_offset", |raw| raw.device_bytes = (1 << 29).into()),
        ("superblock", |raw| raw.device_bytes = 0.into()),
        ("volume_area_bytes", |raw| raw.volume_area_bytes = 0.into()),
        ("volume_area_bytes", |raw| raw.volume_area_bytes = 4097.into()),
        ("volume_area_bytes", |raw| raw.volume_area_bytes = (32 << 20).into()),
        ("volume_area_bytes", |raw| raw.volume_area_bytes = u64::MAX.into()),
        ("volume_area_offsets", |raw| raw.volume_area_offsets[0] = 0.into()),
        ("volume_area_offsets", |raw| raw.volume_area_offsets[0] = 512.into()),
        ("volume_area_offsets", |raw| raw.volume_area_offsets[0] = (64 << 10).into()),
        ("volume_area_offsets", |raw| raw.volume_area_offsets[1] = (128 << 10).into()),
        ("volume_area_offsets", |raw| raw.volume_area_offsets[1] = (252 << 10).into()),
        ("volume_area_offsets", |raw| raw.volume_area_offsets[1] = (u64::MAX - 4095).into()),
        ("checkpoint_area_bytes", |raw| raw.checkpoint_area_bytes = 0.into()),
        ("checkpoint_area_bytes", |raw| raw.checkpoint_area_bytes = 4096.into()),
        ("checkpoint_area_bytes", |raw| raw.checkpoint_area_bytes = 5000.into()),
        ("checkpoint_area_offsets", |raw| raw.checkpoint_area_bytes = (1 << 29).into()),
        ("checkpoint_area_offsets", |raw| raw.checkpoint_area_offsets[0] = (128 << 10).into()),
        ("checkpoint_area_offsets", |raw| {
            raw.checkpoint_area_offsets[1] = raw.checkpoint_area_offsets[0];
        }),
        ("checkpoint_area_offsets", |raw| raw.checkpoint_area_offsets[0] = 1.into()),
        ("segments_offset", |raw| raw.checkpoint_area_offsets[1] = raw.segments_offset),
        ("volume_table_area", |raw| raw.volume_table_area = 2.into()),
        ("volume_table_area", |raw| raw.volume_table_area = u32::MAX.into()),
        ("volume_table_len", |raw| raw.volume_table_len = u32::MAX.into()),
        ("volume_table_len", |raw| raw.volume_table_len = ((128 << 10) + 1).into()),
        ("checkpoint_area", |raw| raw.checkpoint_area = 2.into()),
        ("checkpoint_len", |raw| raw.checkpoint_len = 0.into()),
        ("checkpoint_len", |raw| raw.checkpoint_len = u64::MAX.into()),
    ];
    are_refused(matrix);
}

#[test]
fn absurd_values_of_an_accepted_log_are_refused_by_name() {
    are_refused(&[
        ("accepted_through", |raw| raw.accepted.through = MAX_COUNT.into()),
        ("accepted_sequence", |raw| raw.accepted.sequence = MAX_COUNT.into()),
        ("accepted_generation", |raw| raw.accepted.next_generation = MAX_COUNT.into()),
        ("left_out_count", |raw| raw.accepted.left_out_count = (MAX_LEFT_OUT as u16 + 1).into()),
        ("torn_count", |raw| raw.accepted.torn_count = (MAX_TORN as u16 + 1).into()),
        ("left_out", |raw| raw.accepted.left_out[0][1] = 2.into()),
        ("left_out", |raw| raw.accepted.left_out[0][1] = 12.into()),
        ("left_out", |raw| raw.accepted.left_out[1][0] = 4.into()),
        ("left_out", |raw| raw.accepted.through = 500.into()),
        ("torn", |raw| raw.accepted.torn[9] = 0.into()),
        ("torn", |raw| raw.accepted.torn[0] = u32::MAX.into()),
    ]);
}

fn are_refused(matrix: &[Forgery]) {
    for (index, (field, change)) in matrix.iter().enumerate() {
        let result = Superblock::decode(&forged(change), COPY_A);
        assert_eq!(result, Err(SuperblockError::Absurd(field)), "line {index}");
    }
}

#[test]
fn other_kinds_have_names_of_their_own() {
    use SuperblockError::{Incompatible, Misplaced, NotForebay, Version};
    let decode = |bytes: [u8; PAGE]| Superblock::decode(&bytes, COPY_A);
    assert_eq!(decode([0; PAGE]), Err(NotForebay));
    assert_eq!(decode([0xff; PAGE]), Err(NotForebay));
    for version in [0, 2, u32::MAX] {
        let forgery = forged(|raw| raw.version = version.into());
        assert_eq!(decode(forgery), Err(Version(version)));
    }
    for bit in 0..64 {
        let forgery = forged(|raw| raw.incompat = (1 << bit).into());
        match KNOWN_INCOMPAT & (1 << bit) {
            0 => assert_eq!(decode(forgery), Err(Incompatible(1 << bit))),
            known => assert_eq!(decode(forgery).map(|found| found.incompat), Ok(known)),
        }
        let forgery = forged(|raw| raw.ro_compat = (1 << bit).into());
        assert!(decode(forgery).expect("readable").is_read_only());
    }
    assert!(!sample().is_read_only());
    let moved = Superblock::decode(&sample().encode(COPY_A), COPY_B);
    assert_eq!(moved, Err(Misplaced { at: COPY_B, own: COPY_A }));
}

#[test]
fn the_valid_copy_with_the_higher_generation_counts() {
    use SuperblockError::{Checksum, Incompatible, Mixed, NotForebay, Version};
    let at = |generation, offset| Superblock { generation, ..sample() }.encode(offset);
    let chosen = |a: &[u8], b: &[u8]| Superblock::choose(a, b).map(|found| found.generation);
    let (mut torn_a, mut torn_b) = (at(9, COPY_A), at(9, COPY_B));
    torn_a[100] ^= 1;
    torn_b[100] ^= 1;
    let zero = [0; PAGE];
    assert_eq!(chosen(&at(1, COPY_A), &at(2, COPY_B)), Ok(2));
    assert_eq!(chosen(&at(2, COPY_A), &at(1, COPY_B)), Ok(2));
    assert_eq!(chosen(&at(2, COPY_A), &at(2, COPY_B)), Ok(2));
    assert_eq!(chosen(&at(MAX_COUNT - 1, COPY_A), &at(0, COPY_B)), Ok(MAX_COUNT - 1));
    assert_eq!(chosen(&torn_a, &at(1, COPY_B)), Ok(1));
    assert_eq!(chosen(&at(1, COPY_A), &torn_b), Ok(1));
    assert_eq!(chosen(&at(1, COPY_A), &zero), Ok(1));
    assert_eq!(chosen(&zero, &at(1, COPY_B)), Ok(1));
    // Copy A found at the position of copy B is invalid.
    assert_eq!(chosen(&at(1, COPY_A), &at(5, COPY_A)), Ok(1));
    assert_eq!(chosen(&torn_a, &torn_b), Err(Checksum));
    assert_eq!(chosen(&zero, &torn_b), Err(Checksum));
    assert_eq!(chosen(&torn_a, &zero), Err(Checksum));
    assert_eq!(chosen(&zero, &zero), Err(NotForebay));
    assert_eq!(chosen(&zero, &[]), Err(SuperblockError::Truncated));
    let newer = forged(|raw| raw.version = 2.into());
    assert_eq!(chosen(&newer, &at(9, COPY_B)), Err(Version(2)));
    let newer = forged(|raw| raw.incompat = 32.into());
    assert_eq!(chosen(&newer, &at(9, COPY_B)), Err(Incompatible(32)));
    let other = Superblock { cache: Uuid::from_u128(1), ..sample() };
    let mixed = Mixed(sample().cache, other.cache);
    assert_eq!(chosen(&at(1, COPY_A), &other.encode(COPY_B)), Err(mixed));
}

proptest! {
    #[test]
    fn random_pages_behind_the_magic_never_panic(mut bytes in prop::collection::vec(any::<u8>(), PAGE)) {
        bytes[..8].copy_from_slice(&MAGIC);
        let mut page = [0; PAGE];
        page.copy_from_slice(&bytes);
        prop_assert!(Superblock::decode(&page, COPY_A).is_err());
        page[8..64].copy_from_slice(&sample().encode(COPY_A)[8..64]);
        seal(&mut page);
        prop_assert!(Superblock::decode(&page, COPY_A).is_err());
    }

    /// Any one field with any value: it is refused, or the superblock is wholly possible.
    #[test]
    fn any_forged_word_is_refused_or_possible(at in 0usize..900, value: u32, small in 0u32..70_000) {
        for value in [value, small] {
            let bytes = forged(|raw| {
                let raw = raw.as_mut_bytes();
                raw[8 + at * 4..][..size_of_val(&value)].copy_from_slice(&value.to_le_bytes());
            });
            if let Ok(superblock) = Superblock::decode(&bytes, COPY_A) {
                prop_assert_eq!(superblock.geometry.validate(), Ok(()));
                prop_assert!(superblock.geometry.end() <= superblock.geometry.device_bytes);
            }
        }
    }
}
