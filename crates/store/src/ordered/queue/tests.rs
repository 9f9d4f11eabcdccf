use super::*;
use crate::table::TableGeometry;

fn index() -> Index {
    Index::new(TableGeometry::new(1 << 12, 1, 20, 20).expect("it is possible"), 1)
}

fn version(sequence: u64) -> OrderedVersion {
    OrderedVersion { slot: Slot(sequence as u32), check: Check::default(), mask: None, sequence }
}

/// A queue whose cuts are given by a test.
struct Bench {
    queue: GroupQueue,
    index: Index,
}

impl Bench {
    fn new() -> Self {
        Bench { queue: GroupQueue::new(Some(Horizon::default())), index: index() }
    }

    fn add(&self, block: u64, sequence: u64) -> Option<u64> {
        self.queue.add(OriginBlock(block), version(sequence)).map(|left| left.sequence)
    }

    /// Takes a cut at this highest sequence.
    fn cut(&self, sequence: u64) -> u64 {
        self.index.raise_sequence(sequence);
        self.queue.cut(&self.index, Nanos(1))
    }

    /// Returns blocks and sequences of the front group, and whether to settle before it.
    fn front(&self) -> Option<(Vec<(u64, u64)>, bool)> {
        let front = self.queue.front()?;
        let versions = front.versions.iter().map(|(block, it)| (block.0, it.sequence)).collect();
        Some((versions, front.settle_first))
    }

    fn write(&self) {
        let through = self.queue.front().expect("there is one").through;
        assert!(self.queue.written(through, &BTreeSet::new()).is_empty());
    }
}

#[test]
fn a_group_keeps_the_newest_version_between_two_cuts() {
    let bench = Bench::new();
    assert_eq!(bench.add(1, 1), None);
    assert_eq!(bench.add(1, 3), Some(1), "the older one is not needed");
    assert_eq!(bench.add(1, 2), Some(2), "also if it comes later");
    let cut = bench.cut(3);
    assert_eq!(bench.add(1, 4), None, "the one of the group before stays");
    assert!(bench.front().is_none(), "the commit has not ended");
    bench.queue.confirm(cut);
    assert_eq!(bench.front(), Some((vec![(1, 3)], false)));
    assert_eq!(bench.queue.len(), 2);
}

#[test]
fn late_versions_join_the_group_of_their_sequence() {
    let bench = Bench::new();
    let first = bench.cut(5);
    bench.add(1, 6);
    bench.add(2, 5);
    let second = bench.cut(6);
    bench.add(3, 4);
    bench.queue.confirm(first);
    assert_eq!(bench.front(), Some((vec![(2, 5), (3, 4)], false)));
    bench.write();
    assert!(bench.front().is_none());
    bench.queue.confirm(second);
    assert_eq!(bench.front(), Some((vec![(1, 6)], false)));
}

#[test]
fn unannounced_cuts_are_no_boundaries() {
    let bench = Bench::new();
    bench.add(1, 1);
    let first = bench.cut(1);
    bench.add(1, 2);
    bench.add(2, 3);
    let second = bench.cut(3);
    assert_eq!(bench.queue.confirm(second).len(), 1);
    assert_eq!(bench.front(), Some((vec![(1, 2), (2, 3)], false)));
    assert!(bench.queue.confirm(first).is_empty());
    assert_eq!(bench.queue.len(), 2);
}

#[test]
fn the_horizon_comes_first_where_the_log_has_something_older() {
    let bench = Bench::new();
    for (block, sequence) in [(1, 1), (2, 2), (3, 3), (2, 4)] {
        bench.add(block, sequence);
        let cut = bench.cut(sequence);
        bench.queue.confirm(cut);
    }
    for (block, sequence, settle) in [(1, 1, false), (2, 2, false), (3, 3, false), (2, 4, true)] {
        assert_eq!(bench.front(), Some((vec![(block, sequence)], settle)));
        if !settle {
            bench.write();
        }
    }
    let horizon = bench.queue.written_through().expect("three groups");
    assert_eq!(horizon.sequence, 3);
    assert_eq!(bench.queue.settle(horizon).versions.len(), 3);
    assert_eq!(bench.front(), Some((vec![(2, 4)], false)));
    // A block was written twice in a group: the log has a version that must not return once the
    // origin has any block of the next group.
    bench.add(7, 5);
    bench.add(7, 6);
    let cut = bench.cut(6);
    bench.queue.confirm(cut);
    bench.add(8, 7);
    let cut = bench.cut(7);
    bench.queue.confirm(cut);
    bench.write();
    bench.write();
    assert_eq!(bench.front(), Some((vec![(8, 7)], true)));
}

#[test]
fn groups_without_blocks_are_none() {
    let bench = Bench::new();
    for sequence in 1..4 {
        let cut = bench.cut(sequence);
        bench.queue.confirm(cut);
        assert!(bench.front().is_none());
        assert!(bench.queue.has_settled(cut));
    }
    bench.add(1, 4);
    let cut = bench.cut(4);
    bench.queue.confirm(cut);
    assert!(!bench.queue.has_settled(cut));
}

#[test]
fn before_the_first_cut_there_are_no_groups() {
    let bench = Bench { queue: GroupQueue::new(None), index: index() };
    bench.add(1, 1);
    let cut = bench.cut(1);
    bench.queue.confirm(cut);
    assert!(bench.front().is_none() && !bench.queue.in_effect());
    assert_eq!(bench.queue.drop_through(cut).len(), 1);
    bench.add(1, 0);
    bench.add(2, 0);
    bench.add(2, 5);
    bench.index.raise_sequence(5);
    let cut = bench.queue.first_cut(&bench.index, Nanos(1));
    bench.add(1, 6);
    bench.queue.confirm(cut);
    assert_eq!(bench.front(), Some((vec![(1, 0), (2, 5)], false)));
    bench.write();
    assert!(!bench.queue.in_effect());
    let horizon = bench.queue.written_through().expect("one group");
    bench.queue.settle(horizon);
    assert!(bench.queue.in_effect());
    assert_eq!(bench.queue.clear().len(), 1);
}

#[test]
fn a_group_written_by_another_task_is_not_taken_for_the_next() {
    let bench = Bench::new();
    bench.add(1, 1);
    let first = bench.cut(1);
    bench.queue.confirm(first);
    bench.add(2, 2);
    let second = bench.cut(2);
    bench.queue.confirm(second);
    let front = bench.queue.front().expect("the first");
    bench.write();
    bench.queue.written(front.through, &BTreeSet::new());
    assert_eq!(bench.front(), Some((vec![(2, 2)], false)));
    bench.queue.unwrite();
    assert_eq!(bench.front(), Some((vec![(1, 1)], false)));
    let unreadable = BTreeSet::from([OriginBlock(1)]);
    assert_eq!(bench.queue.written(front.through, &unreadable).len(), 1);
    assert_eq!(bench.queue.len(), 1);
}
