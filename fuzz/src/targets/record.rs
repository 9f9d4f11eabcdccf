//! One record header, of data or of marks. Zeroes at its end may be left out; the reserved byte
//! chooses the block size.

use std::sync::LazyLock;

use crate::{CACHE, block_size, memory, mend};
use forebay_core::SegmentId;
use forebay_format::record::{self, HEADER_BYTES};
use forebay_format::{Body, Geometry, Head, RecordHeader, max_entries};

const RESERVED: usize = 37;

static GEOMETRIES: LazyLock<Vec<Geometry>> = LazyLock::new(|| {
    let plan = |choice| Geometry::plan(1 << 30, block_size(choice), 512, Some(8 << 20));
    (0..10).map(|choice| plan(choice).expect("a gigabyte is enough")).collect()
});

/// See [`super::Mutate`].
pub(crate) fn mutate(data: &mut [u8], size: usize, max_size: usize, seed: u32) -> usize {
    mend::mutate(data, size, max_size, seed, 1, mend::record)
}

fn check(header: &RecordHeader, geometry: &Geometry) {
    assert!(header.segment.0 < geometry.segment_count);
    assert!(header.durable_through.0 < header.number.0.max(1));
    let end = u64::from(header.position) + u64::from(header.granules(geometry));
    assert!(end <= geometry.granules_per_segment());
    let head = Head {
        cache: CACHE,
        segment: header.segment,
        generation: header.generation,
        position: header.position,
        number: header.number,
        durable_through: header.durable_through,
    };
    let mut page = [0xee; HEADER_BYTES];
    match &header.body {
        Body::Data(entries) => {
            assert!((1..=max_entries(geometry.block)).contains(&entries.len()));
            for index in 0..entries.len() {
                let cell = header.cell(geometry, index);
                assert!(geometry.holds_block(cell));
                assert_eq!(geometry.place_of(cell).0, header.segment);
            }
            record::encode_data(&mut page, &head, geometry.block, entries)
        }
        Body::Marks(marks) => {
            for mark in marks {
                assert!(geometry.holds_block(mark.slot));
                let last = SegmentId(geometry.segment_count - 1);
                assert!(geometry.place_of(mark.slot).0 <= last);
            }
            record::encode_marks(&mut page, &head, marks)
        }
        Body::Opening(free) => record::encode_opening(&mut page, &head, free),
    }
    .expect("what was read can be written");
    assert_eq!(record::decode(&page, geometry, &CACHE).as_ref(), Ok(header));
}

/// Runs one input.
pub(crate) fn run(data: &[u8]) {
    let choice = data.get(RESERVED).copied().unwrap_or(0);
    let geometry = &GEOMETRIES[usize::from(choice) % GEOMETRIES.len()];
    let mut page = data.to_vec();
    page.resize(page.len().max(HEADER_BYTES), 0);
    memory::within(256 << 10, || {
        assert!(record::decode(&page[..HEADER_BYTES - 1], geometry, &CACHE).is_err());
        if let Ok(header) = record::decode(&page, geometry, &CACHE) {
            check(&header, geometry);
        }
    });
}
