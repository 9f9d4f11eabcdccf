//! The bound: the block whose next use is latest, or that has none, is evicted (Belady 1966). With
//! blocks of one size, no policy that admits every block misses less.

use std::collections::BinaryHeap;
use std::time::Instant;

use forebay_core::Op;

use super::accesses::Accesses;
use super::plain::{Counts, Steps};

/// There is no further use.
const NEVER: u32 = u32::MAX;

/// Returns for each access to a block the place of the next one. A discard is no use: a block that
/// is discarded before its next use need not be kept.
fn next_uses(accesses: &Accesses) -> Vec<u32> {
    let spans: Vec<_> = accesses.iter().collect();
    let mut coming = vec![NEVER; accesses.blocks() as usize];
    let mut next: Vec<u32> = Vec::new();
    let all: usize = spans.iter().map(|span| span.blocks.len()).sum();
    let mut place = all as u32;
    for span in spans.iter().rev() {
        for block in span.blocks.iter().rev() {
            place -= 1;
            let now = if span.op == Op::Discard { NEVER } else { place };
            next.push(std::mem::replace(&mut coming[*block as usize], now));
        }
    }
    next.reverse();
    next
}

/// Runs a trace through a cache that knows it.
pub(super) fn run(capacity: u32, accesses: &Accesses, steps: &mut Steps<'_>) -> Counts {
    let begin = Instant::now();
    let next = next_uses(accesses);
    // The next use of each resident block; blocks by it, with entries that are out of date among
    // them.
    let mut resident: Vec<Option<u32>> = vec![None; accesses.blocks() as usize];
    let mut count = 0;
    let mut queue: BinaryHeap<(u32, u32)> = BinaryHeap::new();
    let mut uses = next.iter();
    let mut counts = Counts::default();
    for span in accesses.iter() {
        steps.advance(span.blocks.len());
        let mut missed = false;
        for (block, next) in span.blocks.iter().zip(uses.by_ref()) {
            let is_resident = resident[*block as usize].is_some();
            if span.op == Op::Discard {
                resident[*block as usize] = None;
                count -= u32::from(is_resident);
                continue;
            }
            counts.access(span.op, is_resident);
            if !is_resident {
                missed = true;
                counts.insertions += 1;
                while count >= capacity
                    && let Some((time, victim)) = queue.pop()
                {
                    if resident[victim as usize] == Some(time) {
                        resident[victim as usize] = None;
                        count -= 1;
                    }
                }
                count += 1;
            }
            resident[*block as usize] = Some(*next);
            queue.push((*next, *block));
        }
        if span.op != Op::Discard {
            counts.request(span.op, missed);
        }
    }
    counts.nanos = begin.elapsed().as_nanos();
    counts
}

#[cfg(test)]
mod tests {
    use forebay_core::{Admission, ReplacementKind};

    use super::super::accesses::tests::accesses;
    use super::super::plain;
    use super::*;

    /// The fewest misses, by trying everything.
    fn fewest(trace: &[u64], resident: &[u64], capacity: usize) -> u64 {
        let Some((first, rest)) = trace.split_first() else { return 0 };
        if resident.contains(first) {
            return fewest(rest, resident, capacity);
        }
        let with = |others: &[u64]| [others, &[*first]].concat();
        if resident.len() < capacity {
            return 1 + fewest(rest, &with(resident), capacity);
        }
        let without = |place: usize| {
            let mut others = resident.to_vec();
            others.remove(place);
            others
        };
        let best = (0..capacity).map(|place| fewest(rest, &with(&without(place)), capacity)).min();
        1 + best.expect("there is a block that can leave")
    }

    /// Two blocks in turn and room for one: a policy that admits every block never hits.
    #[test]
    fn a_policy_that_refuses_blocks_can_miss_less() {
        let requests: Vec<_> = (0..200).map(|i| (Op::Read, i % 2 * 4096, 1)).collect();
        let trace = accesses(&requests);
        let bound = run(1, &trace, &mut Steps::default());
        let smq = plain::run(
            ReplacementKind::Smq,
            1,
            Admission::Always,
            &trace,
            1,
            &mut Steps::default(),
        );
        assert_eq!(bound.misses, 200);
        assert!(smq.misses < 150, "{}", smq.misses);
    }

    #[test]
    fn no_policy_that_admits_every_block_misses_less() {
        let mut random = fastrand::Rng::with_seed(1);
        for _ in 0..300 {
            let blocks: Vec<u64> = (0..11).map(|_| random.u64(0..5)).collect();
            let requests: Vec<_> = blocks.iter().map(|block| (Op::Read, block * 4096, 1)).collect();
            let trace = accesses(&requests);
            for capacity in 1..4 {
                let counts = run(capacity, &trace, &mut Steps::default());
                assert_eq!(counts.misses, fewest(&blocks, &[], capacity as usize), "{blocks:?}");
            }
        }
    }

    #[test]
    fn discarded_blocks_are_not_kept() {
        let trace = accesses(&[
            (Op::Read, 0, 1),
            (Op::Read, 4096, 1),
            (Op::Read, 8192, 1),
            (Op::Discard, 0, 4096),
            (Op::Read, 0, 1),
            (Op::Write, 4096, 1),
        ]);
        let counts = run(2, &trace, &mut Steps::default());
        assert_eq!((counts.misses, counts.write_hits, counts.requests), (4, 1, 5));
    }
}
