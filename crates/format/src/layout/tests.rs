use super::*;
use forebay_core::{SegmentId, Slot};

const SIZES: [u64; 10] = [
    2 << 10,
    4 << 10,
    8 << 10,
    16 << 10,
    32 << 10,
    64 << 10,
    128 << 10,
    256 << 10,
    512 << 10,
    1 << 20,
];

fn block(bytes: u64) -> BlockSize {
    BlockSize::new(bytes).expect("a block size")
}

/// Every block size on every power of two and its neighbours, from nothing to 1 EiB.
#[test]
fn every_plan_is_valid_or_names_a_size_that_is_enough() {
    for bytes in SIZES {
        let block = block(bytes);
        for exponent in 0..60 {
            for device in [(1u64 << exponent) - 1, 1 << exponent, (1 << exponent) + 4096 * 77 + 1] {
                match Geometry::plan(device, block, 512, None) {
                    Ok(geometry) => {
                        assert_eq!(geometry.validate(), Ok(()), "{geometry:?}");
                        assert!(geometry.slot_count() <= MAX_SLOTS);
                        let count = u64::from(geometry.segment_count) + 1;
                        let more = Geometry::lay_out(device, block, geometry.segment_bytes, count);
                        assert!(more.end() > device || more.slot_count() > MAX_SLOTS);
                    }
                    Err(FormatError::TooSmall { device_bytes, needed }) => {
                        assert_eq!(device_bytes, device);
                        assert!(needed > device);
                        assert!(Geometry::plan(needed, block, 512, None).is_ok());
                        assert!(Geometry::plan(needed - 1, block, 512, None).is_err());
                    }
                    Err(other) => panic!("{other}"),
                }
            }
        }
    }
}

#[test]
fn segments_follow_the_device() {
    let plan = |device, bytes| Geometry::plan(device, block(bytes), 512, None).expect("a plan");
    assert_eq!(plan(1 << 40, 4096).segment_bytes, 4 << 20);
    assert_eq!(plan(1 << 40, 1 << 20).segment_bytes, 8 << 20);
    assert_eq!(plan(16 << 20, 4096).segment_bytes, 256 << 10);
    assert_eq!(plan(1 << 40, 64 << 10).segment_bytes, 4 << 20);
    assert_eq!(smallest_segment(block(64 << 10)), 512 << 10);
    assert_eq!(smallest_segment(block(1 << 20)), 8 << 20);
    let medium = plan(128 << 20, 4096);
    assert!(u64::from(medium.segment_count) >= WANTED_SEGMENTS && medium.segment_bytes < 4 << 20);
    // 2^32 slots of 4 KiB are 16 TiB.
    assert_eq!(plan(1 << 50, 4096).slot_count(), MAX_SLOTS);
}

#[test]
fn the_cost_of_metadata_is_bounded() {
    let geometry = Geometry::plan(1 << 40, block(4096), 512, None).expect("a plan");
    assert!(geometry.segments_offset < geometry.device_bytes / 60);
}

#[test]
fn inconsistent_sizes_are_refused() {
    let plan = |bytes, logical, segment| Geometry::plan(1 << 30, block(bytes), logical, segment);
    assert_eq!(
        plan(2048, 4096, None),
        Err(FormatError::BlockTooSmall { block: 2048, logical_block: 4096 })
    );
    assert!(plan(2048, 2048, None).is_ok());
    for logical_block in [0, 1, 256, 513, 8192, u64::MAX] {
        assert_eq!(
            plan(4096, logical_block, None),
            Err(FormatError::LogicalBlock { logical_block })
        );
    }
    for segment_bytes in [0, 1, 128 << 10, 3 << 20, 2 << 30, u64::MAX] {
        let expected = FormatError::SegmentSize { segment_bytes, smallest: MIN_SEGMENT_BYTES };
        assert_eq!(plan(4096, 512, Some(segment_bytes)), Err(expected));
    }
    assert_eq!(plan(4096, 512, Some(1 << 20)).expect("a plan").segment_bytes, 1 << 20);
    assert!(matches!(plan(4096, 512, Some(1 << 30)), Err(FormatError::TooSmall { .. })));
}

#[test]
fn slots_and_places_are_inverse_and_cells_stay_inside() {
    for bytes in SIZES {
        let geometry = Geometry::plan(1 << 30, block(bytes), 512, None).expect("a plan");
        for segment in [0, 1, geometry.segment_count - 1].map(SegmentId) {
            for position in 0..geometry.granules_per_segment() as u32 {
                let slot = geometry.slot_at(segment, position);
                assert_eq!(geometry.place_of(slot), (segment, position));
                let offset = geometry.slot_offset(slot) - geometry.segment_offset(segment);
                let inside = offset >= 4096 && offset + bytes <= geometry.segment_bytes;
                assert_eq!(geometry.holds_block(slot), inside, "{slot:?} of {bytes}");
            }
        }
        if geometry.slot_count() < MAX_SLOTS {
            assert!(!geometry.holds_block(Slot(geometry.slot_count() as u32 + 3)));
        }
        assert!(!geometry.holds_block(Slot(u32::MAX)));
    }
}
