//! The two superblock copies, one behind the other.

use crate::{CACHE, block_size, memory, mend};
use forebay_core::{Generation, RecordNumber, SegmentId, Slot};
use forebay_format::superblock::{COPY_A, COPY_B, MAX_LEFT_OUT, MAX_TORN};
use forebay_format::{
    AcceptedLog, CheckpointRef, Geometry, PAGE, Superblock, Uuid, VolumeTableRef,
};

/// See [`super::Mutate`]. Three times in four a value of one copy that is accepted changes, as
/// random bytes hardly ever make a geometry whose parts fit.
pub(crate) fn mutate(data: &mut [u8], size: usize, max_size: usize, seed: u32) -> usize {
    let mut rng = fastrand::Rng::with_seed(u64::from(seed));
    if rng.u32(0..4) == 0 || max_size < 2 * PAGE {
        return mend::mutate(data, size, max_size, seed, 2, |data| {
            let (a, b) = data.split_at_mut(data.len().min(PAGE));
            mend::superblock(a, COPY_A);
            mend::superblock(b, COPY_B);
        });
    }
    data[size.min(2 * PAGE)..2 * PAGE].fill(0);
    let (page, at) = if rng.bool() { (0, COPY_A) } else { (PAGE, COPY_B) };
    let mut superblock =
        Superblock::decode(&data[page..][..PAGE], at).unwrap_or_else(|_| invent(&mut rng));
    change(&mut superblock, &mut rng);
    data[page..][..PAGE].copy_from_slice(&superblock.encode(at));
    2 * PAGE
}

/// A geometry of a device of any size.
fn plan(rng: &mut fastrand::Rng) -> Geometry {
    loop {
        let most = 1 << rng.u32(21..50);
        let device = rng.u64(1 << 20..=most);
        let segment = rng.bool().then(|| 1 << rng.u32(18..31));
        if let Ok(geometry) = Geometry::plan(device, block_size(rng.u8(..)), 512, segment) {
            return geometry;
        }
    }
}

fn invent(rng: &mut fastrand::Rng) -> Superblock {
    Superblock {
        cache: CACHE,
        generation: rng.u64(0..8),
        compat: 0,
        incompat: 0,
        ro_compat: 0,
        geometry: plan(rng),
        volume_table: VolumeTableRef { area: 0, len: 40, crc: 0 },
        checkpoint: None,
        clean_shutdown: false,
        next_volume_id: 1,
        last_record: RecordNumber(0),
        accepted: None,
    }
}

/// A number that is small, a border, or anything.
fn number(rng: &mut fastrand::Rng) -> u64 {
    match rng.u32(0..3) {
        0 => rng.u64(0..16),
        1 => (1u64 << rng.u32(0..64)).wrapping_sub(rng.u64(0..2)),
        _ => rng.u64(..),
    }
}

fn change(superblock: &mut Superblock, rng: &mut fastrand::Rng) {
    let geometry = &mut superblock.geometry;
    match rng.u32(0..19) {
        0 => superblock.cache = Uuid::from_u128(u128::from(number(rng))),
        1 => superblock.generation = number(rng),
        2 => superblock.compat = number(rng),
        3 => superblock.incompat = number(rng),
        4 => superblock.ro_compat = number(rng),
        5 => superblock.volume_table.area = rng.u8(0..3),
        6 => superblock.volume_table.len = number(rng) as u32,
        7 => {
            superblock.checkpoint = Some(CheckpointRef {
                area: rng.u8(0..3),
                len: number(rng).min(geometry.checkpoint_area_bytes + 1),
                header_crc: rng.u32(..),
                number: number(rng),
            });
        }
        8 => superblock.clean_shutdown ^= true,
        9 => superblock.last_record = RecordNumber(number(rng)),
        10 => geometry.device_bytes = number(rng),
        11 => geometry.segment_bytes = number(rng),
        12 => geometry.segment_count = number(rng) as u32,
        13 => geometry.segments_offset = number(rng),
        14 => geometry.volume_areas[rng.usize(0..2)] = number(rng) & !(PAGE as u64 - 1),
        15 => geometry.checkpoint_areas[rng.usize(0..2)] = number(rng) & !(PAGE as u64 - 1),
        16 => geometry.checkpoint_area_bytes = number(rng) & !(PAGE as u64 - 1),
        17 => {
            let range = number(rng)..=number(rng);
            let accepted = AcceptedLog {
                through: RecordNumber(number(rng)),
                sequence: number(rng),
                next_generation: Generation(number(rng)),
                left_out: vec![range; rng.usize(0..=MAX_LEFT_OUT + 1)],
                torn: vec![Slot(number(rng) as u32); rng.usize(0..=MAX_TORN + 1)],
            };
            superblock.accept(Some(accepted));
        }
        _ => *geometry = plan(rng),
    }
}

/// Everything that follows from an accepted geometry must be inside the device.
fn check_geometry(geometry: &Geometry) {
    assert_eq!(geometry.validate(), Ok(()));
    assert!(geometry.end() <= geometry.device_bytes);
    assert!((1..=1 << 32).contains(&geometry.slot_count()));
    assert!(geometry.blocks_per_segment() >= 4);
    let last = SegmentId(geometry.segment_count - 1);
    assert_eq!(geometry.segment_offset(last) + geometry.segment_bytes, geometry.end());
    let granules = geometry.granules_per_segment();
    let slot = geometry.slot_at(last, (granules - 1) as u32);
    assert_eq!(u64::from(slot.0), geometry.slot_count() - 1);
    assert_eq!(geometry.slot_offset(slot) + geometry.granule(), geometry.end());
    assert_eq!(geometry.place_of(slot), (last, (granules - 1) as u32));
    let first_cell = geometry.slot_at(last, geometry.granules_per_header() as u32);
    assert!(geometry.holds_block(first_cell) && !geometry.holds_block(Slot(0)));
}

/// Runs one input.
pub(crate) fn run(data: &[u8]) {
    let (a, b) = data.split_at(data.len().min(PAGE));
    memory::within(64 << 10, || {
        let copies = [Superblock::decode(a, COPY_A), Superblock::decode(b, COPY_B)];
        for (copy, at) in copies.iter().zip([COPY_A, COPY_B]) {
            if let Ok(superblock) = copy {
                check_geometry(&superblock.geometry);
                assert_eq!(Superblock::decode(&superblock.encode(at), at).as_ref(), Ok(superblock));
            }
        }
        match (Superblock::choose(a, b), copies) {
            (Ok(chosen), [Ok(a), Ok(b)]) => {
                assert_eq!(a.cache, b.cache);
                assert_eq!(chosen.generation, a.generation.max(b.generation));
                assert!(chosen == a || chosen == b);
            }
            (Ok(chosen), [Ok(one), Err(_)] | [Err(_), Ok(one)]) => assert_eq!(chosen, one),
            (Ok(_), [Err(_), Err(_)]) => panic!("a superblock out of nothing"),
            (Err(_), _) => {}
        }
    });
}
