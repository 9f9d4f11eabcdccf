//! Making room: moving entries to their other bucket, and out of the overflow list.

use super::{At, LANES, Overflow, Table, first_lane, unused};

/// Buckets examined before the long search; nearly always enough.
const SHORT_SEARCH: usize = 64;
/// Buckets examined before an entry goes to the overflow list. Even if only one bucket in a hundred
/// has room, this fails once in 30,000 times.
const LONG_SEARCH: usize = 1024;

/// A bucket that is reachable by moving the entry at `lane` of the `parent` step's bucket.
#[derive(Clone, Copy, Default)]
struct PathStep {
    bucket: u32,
    /// The first step of a path is its own parent.
    parent: u16,
    lane: u8,
}

impl Table {
    /// Frees a word in one of two full buckets, and returns its bucket and lane.
    #[cold]
    pub(super) fn make_room(&mut self, first: usize, second: usize) -> Option<At> {
        self.search::<SHORT_SEARCH>(first, second)
            .or_else(|| self.search::<LONG_SEARCH>(first, second))
    }

    /// Breadth first, so that as few entries as possible move. This also ensures that no path
    /// visits a bucket twice, where it could move an entry that it has just put there: everything
    /// reachable from the second visit was reached earlier from the first.
    fn search<const LIMIT: usize>(&mut self, first: usize, second: usize) -> Option<At> {
        let mut steps = [PathStep::default(); LIMIT];
        steps[0] = PathStep { bucket: first as u32, parent: 0, lane: 0 };
        steps[1] = PathStep { bucket: second as u32, parent: 1, lane: 0 };
        let mut known = if first == second { 1 } else { 2 };
        let mut next = 0;
        while next < known {
            let bucket = steps[next].bucket as usize;
            for lane in 0..LANES {
                let remainder = self.layout.remainder(self.buckets.word(At { bucket, lane }));
                let target = self.other_bucket(remainder, bucket);
                if let Some(unused) = first_lane(unused(&self.buckets[target])) {
                    let hole = At { bucket: target, lane: unused };
                    return Some(self.shift_along(&steps, next, lane, hole));
                }
                if known < LIMIT {
                    let (parent, lane) = (next as u16, lane as u8);
                    steps[known] = PathStep { bucket: target as u32, parent, lane };
                    known += 1;
                }
            }
            next += 1;
        }
        None
    }

    /// Moves the entry at `lane` of the last step's bucket to `hole`, then its predecessor's to the
    /// freed word, and so on; returns the hole at the beginning of the path.
    fn shift_along(&mut self, steps: &[PathStep], last: usize, lane: usize, hole: At) -> At {
        let choice = self.layout.choice_bit();
        let (mut at, mut lane, mut hole) = (last, lane, hole);
        loop {
            let PathStep { bucket, parent, lane: lane_of_parent } = steps[at];
            let bucket = bucket as usize;
            let from = At { bucket, lane };
            let word = self.buckets.word(from);
            self.buckets.put(from, 0);
            self.buckets.put(hole, word ^ choice);
            hole = from;
            if usize::from(parent) == at {
                return hole;
            }
            lane = usize::from(lane_of_parent);
            at = usize::from(parent);
        }
    }

    /// Moves entries from the overflow list to their buckets where there is room.
    pub(super) fn drain_overflow(&mut self) {
        let mut index = 0;
        while let Some(&Overflow { key, word }) = self.overflow.get(index) {
            let (remainder, first) = self.divide(key);
            let second = self.other_bucket(remainder, first);
            let Some(at) = self.unused_in(first, second) else {
                index += 1;
                continue;
            };
            self.buckets.put(at, self.at_bucket(word, at.bucket, first));
            self.overflow.swap_remove(index);
        }
    }
}
