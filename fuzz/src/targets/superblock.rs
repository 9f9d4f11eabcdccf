//! The two superblock copies, one behind the other.

use crate::{memory, mend};
use forebay_core::{SegmentId, Slot};
use forebay_format::superblock::{COPY_A, COPY_B};
use forebay_format::{Geometry, PAGE, Superblock};

/// See [`super::Mutate`].
pub(crate) fn mutate(data: &mut [u8], size: usize, max_size: usize, seed: u32) -> usize {
    mend::mutate(data, size, max_size, seed, 2, |data| {
        let (a, b) = data.split_at_mut(data.len().min(PAGE));
        mend::superblock(a, COPY_A);
        mend::superblock(b, COPY_B);
    })
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

/// One input.
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
