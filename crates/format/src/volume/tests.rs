use proptest::prelude::*;

use super::*;
use crate::superblock::VolumeTableRef;
use crate::{PAGE, crc32c};

const BLOCK: BlockSize = BlockSize::DEFAULT;

fn cache() -> Uuid {
    Uuid::from_u128(0xcafe)
}

fn volume(id: u16) -> VolumeRecord {
    VolumeRecord {
        id: VolumeId(id),
        uuid: Uuid::from_u128(u128::from(id) + 1),
        name: format!("volume-{id}"),
        origin: format!("/dev/disk/by-id/\u{e4}-{id}"),
        origin_bytes: 1 << 40,
        alignment: 512,
        mode: Mode::ALL[usize::from(id) % Mode::ALL.len()],
        durability: Durability::ALL[usize::from(id) % Durability::ALL.len()],
        policy: ReplacementKind::ALL[usize::from(id) % ReplacementKind::ALL.len()],
        withdrawn_policy: None,
        started: id.is_multiple_of(2),
        fingerprint: id.is_multiple_of(3).then_some([id as u8; 32]),
        identity: id.is_multiple_of(2).then(|| identity(id)),
        left: Left::default(),
        samples: id.is_multiple_of(128).then(|| samples(id)),
        settings: (0..id % 5).map(|tag| (tag, u64::MAX - u64::from(tag))).collect(),
    }
}

fn identity(id: u16) -> Identity {
    Identity::from_parts(vec![(2, format!("serial {id}")), (250, "x".repeat(20))]).expect("good")
}

/// Samples of an origin of 1 TiB.
fn samples(id: u16) -> Samples {
    let checks = (0..128).map(|number| number * u32::from(id)).collect();
    let by = if id < 128 { SampleCheck::Crc32c } else { SampleCheck::Digest };
    Samples { by, checks, untouched: u128::MAX << (id % 100) }
}

fn crcs(checks: Vec<u32>, untouched: u128) -> Samples {
    Samples { by: SampleCheck::Crc32c, checks, untouched }
}

#[test]
fn digests_of_samples_are_none_to_programs_that_compare_crcs() {
    let (mut before, digests) = (volume(1), samples(128));
    before.origin_bytes = 1 << 40;
    before.samples = Some(digests.clone());
    let table = encode(&[before.clone()], &cache(), BLOCK).expect("possible");
    assert_eq!(read(&table), Ok(vec![before.clone()]));
    // Such a program finds no untouched sample, and keeps the settings that it does not know.
    let as_seen = |checks: &[u32], untouched| VolumeRecord {
        samples: Some(crcs(checks.to_vec(), untouched)),
        settings: before.settings.iter().copied().chain(digests.settings()).collect(),
        ..before.clone()
    };
    let seen = encode(&[as_seen(&digests.checks, 0)], &cache(), BLOCK).expect("possible");
    assert_eq!(seen.bytes, table.bytes);
    // Once such a release has taken new samples, these are valid, for any `untouched`.
    let others: Vec<u32> = digests.checks.iter().map(|check| check ^ 1).collect();
    for untouched in [5, 0] {
        let own = encode(&[as_seen(&others, untouched)], &cache(), BLOCK).expect("possible");
        let samples = Some(crcs(others.clone(), untouched));
        assert_eq!(read(&own), Ok(vec![VolumeRecord { samples, ..before.clone() }]));
    }
}

fn read(table: &EncodedTable) -> Result<Vec<VolumeRecord>, VolumeTableError> {
    decode(&table.bytes, &table.reference(0), &cache(), BLOCK)
}

#[test]
fn tables_of_every_size_survive_the_round_trip() {
    for count in [0, 1, 2, 30, 255, 256] {
        let volumes: Vec<_> = (0..count).map(volume).collect();
        let table = encode(&volumes, &cache(), BLOCK).expect("possible");
        assert_eq!(table.bytes.len() % PAGE, 0);
        assert_eq!(read(&table), Ok(volumes));
    }
}

#[test]
fn every_flipped_bit_and_every_truncation_is_refused() {
    let volumes: Vec<_> = (0..4).map(volume).collect();
    let table = encode(&volumes, &cache(), BLOCK).expect("possible");
    for bit in 0..table.len as usize * 8 {
        let mut flipped = table.clone();
        flipped.bytes[bit / 8] ^= 1 << (bit % 8);
        let expected =
            if bit < 64 { VolumeTableError::NotATable } else { VolumeTableError::Checksum };
        assert_eq!(read(&flipped), Err(expected), "bit {bit}");
    }
    for len in 0..table.len as usize {
        let cut = decode(&table.bytes[..len], &table.reference(0), &cache(), BLOCK);
        assert_eq!(cut, Err(VolumeTableError::Truncated));
        // A reference that is too short, with a checksum that matches its range.
        let mut bytes = table.bytes[..len].to_vec();
        if len >= 12 {
            let crc = crc32c(&bytes[12..]);
            bytes[8..12].copy_from_slice(&crc.to_le_bytes());
            let reference = VolumeTableRef { area: 0, len: len as u32, crc };
            assert!(decode(&bytes, &reference, &cache(), BLOCK).is_err());
        }
    }
}

#[test]
fn a_table_that_is_not_meant_is_refused() {
    let table = encode(&[volume(1)], &cache(), BLOCK).expect("possible");
    let newer = encode(&[volume(2)], &cache(), BLOCK).expect("possible");
    let stale = decode(&table.bytes, &newer.reference(0), &cache(), BLOCK);
    assert_eq!(stale, Err(VolumeTableError::Checksum));
    let foreign = decode(&table.bytes, &table.reference(0), &Uuid::from_u128(9), BLOCK);
    assert_eq!(foreign, Err(VolumeTableError::OtherCache));
    let empty = decode(&[0; PAGE], &table.reference(0), &cache(), BLOCK);
    assert_eq!(empty, Err(VolumeTableError::NotATable));
}

#[test]
fn impossible_volumes_are_refused_by_field() {
    type Change = (&'static str, fn(&mut VolumeRecord));
    let matrix: &[Change] = &[
        ("name", |volume| volume.name.clear()),
        ("name", |volume| volume.name = "x".repeat(65)),
        ("name", |volume| volume.name = "a b".into()),
        ("name", |volume| volume.name = "a/b".into()),
        ("name", |volume| volume.name = "..".into()),
        ("name", |volume| volume.name = "\u{e4}".into()),
        ("origin", |volume| volume.origin.clear()),
        ("origin", |volume| volume.origin = "x".repeat(1025)),
        ("origin", |volume| volume.origin = "a\nb".into()),
        ("origin", |volume| volume.origin = "a\0".into()),
        ("alignment", |volume| volume.alignment = 4096),
        ("alignment", |volume| volume.alignment = 1),
        ("origin_bytes", |volume| volume.origin_bytes = u64::MAX),
        ("origin_bytes", |volume| volume.origin_bytes = 1 << 56),
        ("uuid", |volume| volume.uuid = Uuid::nil()),
        ("samples", |volume| volume.samples = Some(crcs(vec![0; 3], 0))),
        ("samples", |volume| {
            volume.origin_bytes = 8192;
            volume.samples = Some(crcs(vec![0; 2], 4));
        }),
        ("settings", |volume| volume.settings = vec![(1, 1), (1, 2)]),
        ("settings", |volume| volume.settings = (0..65).map(|tag| (tag, 0)).collect()),
    ];
    for (index, (field, change)) in matrix.iter().enumerate() {
        let mut bad = volume(7);
        change(&mut bad);
        let error = encode(&[bad], &cache(), BLOCK).expect_err("impossible");
        let named = matches!(&error, VolumeTableError::Volume { field: f, .. } if f == field);
        assert!(named, "line {index}: {error:?}");
    }
    for name in ["a", "A-1_b.c", "...", &"x".repeat(64)] {
        assert!(VolumeRecord::is_valid_name(name), "{name}");
    }
}

#[test]
fn volumes_in_each_others_way_are_refused() {
    let duplicate = |change: fn(&mut VolumeRecord)| {
        let mut second = volume(2);
        change(&mut second);
        match encode(&[volume(1), second], &cache(), BLOCK) {
            Err(VolumeTableError::Duplicate { field, .. }) => field,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(duplicate(|volume| volume.id = VolumeId(1)), "id");
    assert_eq!(duplicate(|volume| volume.name = "volume-1".into()), "name");
    assert_eq!(duplicate(|volume| volume.uuid = Uuid::from_u128(2)), "uuid");
    let many: Vec<_> = (0..257).map(volume).collect();
    assert_eq!(encode(&many, &cache(), BLOCK), Err(VolumeTableError::TooMany(257)));
    let long = |id| VolumeRecord { origin: "x".repeat(1024), ..volume(id) };
    let large: Vec<_> = (0..256).map(long).collect();
    let refused = encode(&large, &cache(), BLOCK);
    assert!(matches!(refused, Err(VolumeTableError::TooLarge(_))));
}

/// A table whose first volume's fixed part was changed, with a corrected checksum.
fn forged(at: usize, value: &[u8]) -> EncodedTable {
    let mut table = encode(&[volume(3), volume(4)], &cache(), BLOCK).expect("possible");
    table.bytes[at..at + value.len()].copy_from_slice(value);
    table.crc = crc32c(&table.bytes[12..table.len as usize]);
    table.bytes[8..12].copy_from_slice(&table.crc.to_le_bytes());
    table
}

#[test]
fn forged_lengths_and_codes_are_refused() {
    use VolumeTableError::{Absurd, TooMany};
    assert_eq!(read(&forged(12, &[0xff; 4])), Err(Absurd("len")));
    assert_eq!(read(&forged(32, &[0xff; 4])), Err(TooMany(u32::MAX as usize)));
    assert_eq!(read(&forged(32, &[3, 0, 0, 0])), Err(Absurd("len")));
    assert_eq!(read(&forged(32, &[1, 0, 0, 0])), Err(Absurd("len")));
    let field = |at: usize, value: &[u8]| match read(&forged(40 + at, value)) {
        Err(VolumeTableError::Volume { field, .. }) => field,
        other => panic!("{other:?}"),
    };
    for code in [0, 100, 255] {
        assert_eq!(field(2, &[code]), "mode");
        assert_eq!(field(3, &[code]), "durability");
        assert_eq!(field(4, &[code]), "policy");
    }
    assert_eq!(field(5, &[16]), "flags");
    assert_eq!(field(72, &[0xff]), "name");
    assert_eq!(field(12, &[0xff; 4]), "alignment");
    assert_eq!(read(&forged(46, &[0xff; 6])), Err(Absurd("len")));
}

#[test]
fn a_withdrawn_policy_is_read_as_its_successor() {
    // 14 was `auto`.
    let read = read(&forged(40 + 4, &[14])).expect("a table of an earlier version");
    assert_eq!(read[0].policy, ReplacementKind::S3Fifo);
    assert_eq!(read[0].withdrawn_policy, Some("auto"));
    let again = encode(&read, &cache(), BlockSize::DEFAULT).expect("valid");
    assert_eq!(again.bytes[40 + 4], ReplacementKind::S3Fifo.code());
}

#[test]
fn forged_identities_and_samples_are_refused() {
    let whole = VolumeRecord { samples: Some(samples(2)), settings: vec![], ..volume(2) };
    let table = encode(std::slice::from_ref(&whole), &cache(), BLOCK).expect("possible");
    let identity_at = 40 + 72 + whole.name.len() + whole.origin.len();
    let samples_at = identity_at + 1 + 2 + "serial 2".len() + 2 + 20;
    let forged = |at: usize, value: &[u8]| {
        let mut table = table.clone();
        table.bytes[at..at + value.len()].copy_from_slice(value);
        table.crc = crc32c(&table.bytes[12..table.len as usize]);
        table.bytes[8..12].copy_from_slice(&table.crc.to_le_bytes());
        match read(&table) {
            Err(VolumeTableError::Volume { field, .. } | VolumeTableError::Absurd(field)) => field,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(forged(identity_at, &[0]), "identity");
    assert_eq!(forged(identity_at + 1, &[250]), "identity");
    assert_eq!(forged(identity_at + 2, &[0]), "identity");
    assert_eq!(forged(identity_at + 3, b"\n"), "identity");
    assert_eq!(forged(identity_at + 3, &[0xff]), "identity");
    assert_eq!(forged(samples_at, &[129]), "samples");
    assert_eq!(forged(samples_at, &[127]), "len");
    assert_eq!(forged(samples_at, &[0xff, 0xff]), "samples");
    let mut short = whole;
    short.origin_bytes = 8192;
    short.samples = Some(crcs(vec![1, 2], 3));
    let good = encode(&[short], &cache(), BLOCK).expect("possible");
    assert!(read(&good).is_ok());
}

proptest! {
    #[test]
    fn random_tables_with_a_valid_checksum_never_panic(
        at in 12usize..400,
        value in prop::collection::vec(any::<u8>(), 1..40),
    ) {
        if let Ok(volumes) = read(&forged(at, &value)) {
            prop_assert_eq!(check_names(&volumes), true);
        }
    }
}

fn check_names(volumes: &[VolumeRecord]) -> bool {
    volumes.iter().all(|volume| VolumeRecord::is_valid_name(&volume.name))
}
