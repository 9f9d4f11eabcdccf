//! Starts of some records of each segment, so that reclaim can read headers from several positions
//! at once: a header only locates the next one. Known for segments that were opened since the cache
//! was opened; takes 36 bytes per segment.

use forebay_core::SegmentId;
use forebay_lane::turns;

/// Number of starts that are kept per segment, evenly spread over its records.
const MOST: usize = 16;

/// The starts of a segment: those of each `2^spread`-th record.
#[derive(Clone, Copy, Default)]
struct Starts {
    /// Positions in granules.
    at: [u16; MOST],
    /// Records so far.
    records: u16,
    kept: u8,
    spread: u8,
}

impl Starts {
    fn add(&mut self, start: u32) {
        let number = self.records;
        let (Ok(start), Some(records)) = (u16::try_from(start), number.checked_add(1)) else {
            return;
        };
        self.records = records;
        if !number.is_multiple_of(1 << self.spread) {
            return;
        }
        if usize::from(self.kept) == MOST {
            for place in 1..MOST / 2 {
                self.at[place] = self.at[place * 2];
            }
            (self.kept, self.spread) = (MOST as u8 / 2, self.spread + 1);
        }
        // With twice the spread this record is still among those that are kept, because `MOST` is
        // even.
        self.at[usize::from(self.kept)] = start;
        self.kept += 1;
    }
}

/// The starts of all segments.
pub(super) struct RecordStarts(Box<[Starts]>);

impl RecordStarts {
    pub(super) fn new(segments: u32) -> Self {
        RecordStarts(vec![Starts::default(); segments as usize].into())
    }

    /// Makes an empty set like [`RecordStarts::new`]. Other tasks of the lane run meanwhile.
    pub(super) async fn in_turns(segments: u32) -> Self {
        RecordStarts(turns::filled(segments as usize, |_| Starts::default()).await.into())
    }

    /// Forgets the starts of a segment that is opened.
    pub(super) fn clear(&mut self, segment: SegmentId) {
        self.0[segment.0 as usize] = Starts::default();
    }

    /// Adds the next record of a segment, by its first granule.
    pub(super) fn add(&mut self, segment: SegmentId, start: u32) {
        self.0[segment.0 as usize].add(start);
    }

    /// Returns the known starts of a segment, in ascending order.
    pub(super) fn of(&self, segment: SegmentId) -> Vec<u32> {
        let starts = &self.0[segment.0 as usize];
        starts.at[..usize::from(starts.kept)].iter().map(|start| u32::from(*start)).collect()
    }

    /// Returns the bytes for this number of segments.
    pub(super) fn bytes_for(segments: u32) -> u64 {
        u64::from(segments) * size_of::<Starts>() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn starts_are_spread_evenly_over_the_records_of_a_segment() {
        let segment = SegmentId(1);
        for records in [0, 1, 5, 16, 17, 31, 32, 33, 100, 1000, 65_000] {
            let mut all = RecordStarts::new(2);
            all.add(segment, 7);
            all.clear(segment);
            (0..records).for_each(|number| all.add(segment, number));
            let starts = all.of(segment);
            let spread = starts.get(1).map_or(1, |second| second - starts[0]);
            assert!(spread.is_power_of_two());
            let expected: Vec<u32> = (0..records).step_by(spread as usize).collect();
            assert_eq!(starts, expected, "{records}");
            assert!(starts.len() as u32 >= records.min(MOST as u32 / 2), "{records}");
            assert!(all.of(SegmentId(0)).is_empty());
        }
    }

    #[test]
    fn starts_beyond_what_is_counted_are_left_out() {
        let segment = SegmentId(0);
        let mut all = RecordStarts::new(1);
        all.add(segment, 3);
        all.add(segment, 1 << 16);
        assert_eq!(all.of(segment), [3]);
        (0..1 << 17).for_each(|_| all.add(segment, 9));
        assert!(all.of(segment).len() <= MOST);
        assert_eq!(RecordStarts::bytes_for(3), 108);
    }
}
