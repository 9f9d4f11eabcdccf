//! A cache without devices around a policy, which counts hits and misses.

use std::time::Instant;

use forebay_core::{Admission, Op, ReplacementKind};
use forebay_policy::exact::{Node, build};
use forebay_policy::{Ghost, Past, admits};

use crate::progress::Progress;

use super::accesses::Accesses;

/// Counts of one run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// Blocks read or written.
    pub(super) accesses: u64,
    pub(super) misses: u64,
    /// Blocks that entered the cache.
    pub(super) insertions: u64,
    /// Blocks that were written while they were resident.
    pub(super) write_hits: u64,
    /// Reads and writes.
    pub(super) requests: u64,
    /// Requests of which at least one block was missed.
    pub(super) missed_requests: u64,
    pub(super) read_requests: u64,
    pub(super) missed_read_requests: u64,
    /// RAM that the policy takes.
    pub(super) state_bytes: Option<usize>,
    pub(super) nanos: u128,
}

impl Counts {
    /// Counts a request that has ended; `missed`: at least one of its blocks was missed.
    pub(super) fn request(&mut self, op: Op, missed: bool) {
        self.requests += 1;
        self.missed_requests += u64::from(missed);
        if op == Op::Read {
            self.read_requests += 1;
            self.missed_read_requests += u64::from(missed);
        }
    }

    /// A block was read or written.
    pub(super) fn access(&mut self, op: Op, hit: bool) {
        self.accesses += 1;
        self.misses += u64::from(!hit);
        self.write_hits += u64::from(hit && op == Op::Write);
    }
}

/// Progress of one thread through the trace.
#[derive(Default)]
pub(super) struct Steps<'a> {
    progress: Option<&'a Progress>,
    /// Blocks not yet reported to `progress`.
    own: u64,
}

impl<'a> Steps<'a> {
    pub(super) fn shown(progress: &'a Progress) -> Self {
        Steps { progress: Some(progress), own: 0 }
    }

    /// Counts processed blocks.
    pub(super) fn advance(&mut self, blocks: usize) {
        self.own += blocks as u64;
        if self.own >= 1 << 16 {
            let own = std::mem::take(&mut self.own);
            if let Some(progress) = self.progress {
                progress.advance(own);
            }
        }
    }
}

const NONE: u32 = u32::MAX;

/// Runs a trace through a cache of a policy. `admission` is asked about reads and writes alike.
pub(super) fn run(
    kind: ReplacementKind,
    capacity: u32,
    admission: Admission,
    accesses: &Accesses,
    seed: u64,
    steps: &mut Steps<'_>,
) -> Counts {
    // As large as the engine's.
    let times = u64::from(admission.times());
    let memory = (times > 0).then(|| Ghost::new(u64::from(capacity) * times));
    let address = |block: u32| accesses.key(block).0;
    let nodes = capacity + 1;
    let mut policy = build(kind, capacity, nodes, seed);
    let mut node_of = vec![NONE; accesses.blocks() as usize];
    let mut block_of = vec![NONE; nodes as usize];
    let mut free: Vec<u32> = (0..nodes).rev().collect();
    let mut counts = Counts::default();
    let begin = Instant::now();
    for span in accesses.iter() {
        steps.advance(span.blocks.len());
        if span.op == Op::Discard {
            for block in span.blocks {
                let node = std::mem::replace(&mut node_of[*block as usize], NONE);
                if node != NONE {
                    policy.remove(Node(node));
                    free.push(node);
                }
            }
            continue;
        }
        let mut missed = false;
        for block in span.blocks {
            let node = node_of[*block as usize];
            counts.access(span.op, node != NONE);
            if node != NONE {
                policy.hit(Node(node));
                continue;
            }
            missed = true;
            let key = accesses.key(*block);
            let refused = |memory: &&Ghost| !admits(admission, memory.recall(address(*block)));
            if let Some(memory) = memory.as_ref().filter(refused) {
                memory.note(address(*block), Past::NotAdmitted);
                continue;
            }
            if !policy.admits(key) {
                continue;
            }
            if let Some(memory) = &memory {
                memory.forget(address(*block));
            }
            // There is one node more than blocks can be resident.
            let Some(node) = free.pop() else { continue };
            if let Some(Node(left)) = policy.insert(Node(node), key) {
                let gone = block_of[left as usize];
                node_of[gone as usize] = NONE;
                free.push(left);
                if let Some(memory) = &memory {
                    memory.note(address(gone), Past::Evicted);
                }
            }
            node_of[*block as usize] = node;
            block_of[node as usize] = *block;
            counts.insertions += 1;
        }
        counts.request(span.op, missed);
    }
    counts.nanos = begin.elapsed().as_nanos();
    counts.state_bytes = Some(policy.state_bytes().total());
    counts
}

#[cfg(test)]
mod tests {
    use super::super::accesses::tests::accesses;
    use super::*;

    /// FIFO with room for two blocks, by hand.
    #[test]
    fn blocks_and_requests_are_counted() {
        let trace = accesses(&[
            (Op::Write, 0, 4096),      // 0 enters
            (Op::Read, 0, 8192),       // 0 hit, 1 enters
            (Op::Read, 0, 8192),       // both hit
            (Op::Write, 4096, 4096),   // 1 hit
            (Op::Read, 8192, 4096),    // 2 enters, 0 leaves
            (Op::Discard, 4096, 4096), // 1 leaves
            (Op::Read, 0, 1),          // 0 enters, no block leaves
            (Op::Read, 8192, 1),       // 2 hit
        ]);
        let mut counts =
            run(ReplacementKind::Fifo, 2, Admission::Always, &trace, 1, &mut Steps::default());
        counts.nanos = 0;
        let expected = Counts {
            accesses: 9,
            misses: 4,
            insertions: 4,
            write_hits: 1,
            requests: 7,
            missed_requests: 4,
            read_requests: 5,
            missed_read_requests: 3,
            state_bytes: counts.state_bytes,
            nanos: 0,
        };
        assert_eq!(counts, expected);
    }
    /// A block enters at its second miss; after an eviction it has to be missed twice again.
    #[test]
    fn admission_refuses_blocks_that_were_not_missed_before() {
        let blocks = [0, 1, 2, 0, 0, 1, 0, 0, 1, 0];
        let requests: Vec<_> = blocks.iter().map(|block| (Op::Read, block * 4096, 1)).collect();
        let trace = accesses(&requests);
        let second = Admission::from_times(1).expect("a rule");
        let counts = run(ReplacementKind::Lru, 1, second, &trace, 1, &mut Steps::default());
        // 0 enters at its second use; 1 takes its place at its second; 0 is refused, and enters
        // again; 1 is refused, and 0 is hit.
        assert_eq!((counts.insertions, counts.misses), (3, 8));
    }
}
