use super::*;

const NO_READER: fn(SegmentId) -> bool = |_| false;

fn eight() -> Segments {
    Segments::new(8, 2, Generation(10))
}

fn open(segments: &Segments) -> SegmentId {
    segments.open(0, (0, 1), true).expect("one is free").0
}

/// A segment that is open and has records up to `number`, which end at granule `end`.
fn with_record(segments: &Segments, number: u64, end: u32) -> SegmentId {
    let segment = open(segments);
    segments.record_closed(segment, RecordNumber(number), 0..end);
    segment
}

fn closed(segments: &Segments) -> Vec<SegmentUse> {
    let mut closed = Vec::new();
    segments.closed(&mut closed);
    closed
}

#[test]
fn counts_that_share_a_word_do_not_run_into_each_other() {
    let most = 1 << 19;
    for blocks in [0, 1, 5, most] {
        for dirty in [0, 1, 6, most] {
            for kept in [0, 1, 7, most] {
                let live = Live { blocks, dirty, kept };
                assert_eq!(Live::unpacked(live.packed()), live);
            }
        }
    }
    assert_eq!(Live::one(true, 0), Live { blocks: 1, dirty: 1, kept: 0 });
    assert_eq!(Live::one(false, 3), Live { blocks: 1, dirty: 0, kept: 1 });
}

#[test]
fn entries_that_point_into_a_segment_are_counted() {
    let segments = eight();
    let (one, other) = (SegmentId(1), SegmentId(6));
    for (dirty, rank) in [(true, 0), (true, 2), (false, 1)] {
        segments.add_live(one, Live::one(dirty, rank));
    }
    segments.add_live(other, Live::one(false, 4));
    let of = |segment: SegmentId| segments.live.of(segment.0 as usize, Ordering::SeqCst);
    assert_eq!(of(one), Live { blocks: 3, dirty: 2, kept: 2 });
    assert_eq!((segments.live(one), segments.live(other)), (3, 1));
    assert_eq!(segments.all_live(), (4, 3));

    // Only whether a rank is 0 matters.
    for (before, after, kept) in [(0, 3, 3), (3, 1, 3), (1, 0, 2), (0, 0, 2)] {
        segments.ranked(one, before, after);
        assert_eq!(of(one).kept, kept, "{before} to {after}");
    }
    segments.turned_clean(one);
    segments.remove_live(one, Live::one(true, 1));
    assert_eq!(of(one), Live { blocks: 2, dirty: 0, kept: 1 });
    segments.remove_live(other, Live::one(false, 4));
    assert_eq!(segments.all_live(), (2, 1));
}

#[test]
fn segments_that_are_withheld_are_for_background_work() {
    let segments = eight();
    let opens = |reserve| segments.open(reserve, (0, 1), true).is_some();
    segments.withhold_beyond(3);
    // One segment stays in reserve, and five are withheld.
    assert_eq!([(); 3].map(|()| opens(1)), [true, true, false]);
    assert!(opens(0) && segments.free_count() == 5);
    segments.withhold(0);
    assert_eq!([(); 5].map(|()| opens(1)), [true, true, true, true, false]);
    assert!(opens(0) && !opens(0));
    segments.withhold_beyond(3);
    assert!(!opens(0), "there is none");
}

#[test]
fn each_appender_opens_its_own_part_of_the_free_segments() {
    let segments = eight();
    assert_eq!((segments.count(), segments.free_count()), (8, 8));
    assert_eq!(segments.open(0, (0, 3), true), Some((SegmentId(0), Generation(10))));
    // Of 7 free segments, 7 * 1 / 3 = 2 come before its part.
    assert_eq!(segments.open(0, (1, 3), true), Some((SegmentId(3), Generation(11))));
    assert_eq!(segments.open(0, (2, 3), false).map(|it| it.1), Some(Generation(12)));
    assert_eq!(segments.next_generation(), Generation(13));
    segments.skip_generations(5);
    assert_eq!(segments.next_generation(), Generation(18));
    assert_eq!(segments.open(4, (0, 1), true).map(|it| it.1), Some(Generation(18)));
    assert_eq!(segments.free_count(), 4);
    assert_eq!(segments.open(4, (0, 1), true), None, "4 are kept in reserve");
    assert!(segments.open(3, (0, 1), true).is_some());
}

#[test]
fn closed_segments_are_listed_with_their_age_and_use() {
    let segments = eight();
    let (first, second, third) = (open(&segments), open(&segments), open(&segments));
    assert!(closed(&segments).is_empty());
    let (generation, _) =
        (segments.generation(second), segments.record_closed(second, RecordNumber(3), 0..9));
    assert_eq!((generation, segments.position(second)), (Generation(11), 9));
    for segment in [second, third] {
        segments.add_live(segment, Live::one(true, 1));
        segments.close(segment);
    }
    segments.hold(third);
    segments.end_probation(second);
    let listed = closed(&segments);
    let seen: Vec<_> =
        listed.iter().map(|it| (it.id, it.opened, it.on_probation, it.held)).collect();
    assert_eq!(seen, [(second, 2, false, false), (third, 3, true, true)]);
    assert!(listed.iter().all(|it| it.live == Live::one(true, 1)));

    // A segment is not listed while its records are being written.
    let image = LogBuffer::new(4096);
    segments.attach_buffer(first, image.clone());
    segments.close(first);
    assert_eq!(closed(&segments).len(), 2);
    assert!(segments.is_buffered(first) && !segments.is_buffered(second));
    assert!(segments.buffer(first).is_some_and(|it| Arc::ptr_eq(&it, &image)));
    assert!(segments.buffer(second).is_none());
    assert!(segments.detach_buffer(first).is_some_and(|it| Arc::ptr_eq(&it, &image)));
    assert!(!segments.is_buffered(first) && segments.buffer(first).is_none());
    assert_eq!(closed(&segments).len(), 3);
}

#[test]
fn a_record_is_durable_to_its_end_and_in_its_own_life_only() {
    let segments = eight();
    let segment = with_record(&segments, 4, 10);
    segments.record_closed(segment, RecordNumber(5), 0..20);
    segments.record_closed(segment, RecordNumber(6), 20..30);
    assert!(!segments.is_durable(segment, 0));
    let taken = segments.take_undurable(RecordNumber(5));
    assert_eq!(taken.iter().map(|it| it.number.0).collect::<Vec<_>>(), [4, 5]);
    segments.set_durable(&taken);
    assert!(segments.is_durable(segment, 0) && segments.is_durable(segment, 19));
    assert!(!segments.is_durable(segment, 20));

    let late = segments.take_undurable(RecordNumber(6));
    assert_eq!(late.len(), 1, "each record is taken once");
    segments.state.lock().lives[segment.0 as usize].generation = Generation(99);
    segments.set_durable(&late);
    assert!(!segments.is_durable(segment, 20), "that was an earlier life");
}

#[test]
fn a_new_life_begins_with_nothing_durable() {
    let segments = Segments::new(1, 2, Generation(1));
    segments.set_live(&[Live::default()]);
    assert!(segments.is_durable(SegmentId(0), 1000), "recovery has seen it");
    open(&segments);
    assert!(!segments.is_durable(SegmentId(0), 0));
}

#[test]
fn only_closed_segments_are_reclaimed_and_only_empty_ones_drain() {
    let segments = eight();
    let segment = open(&segments);
    assert!(!segments.begin_reclaim(segment), "it is open");
    segments.close(segment);
    segments.add_live(segment, Live::one(false, 0));
    assert!(segments.begin_reclaim(segment));
    assert!(!segments.begin_reclaim(segment), "somebody else has it");
    assert!(!segments.end_reclaim(segment, || (0, 0)));
    assert_eq!((segments.draining_count(), closed(&segments).len()), (0, 1));

    assert!(segments.begin_reclaim(segment));
    segments.remove_live(segment, Live::one(false, 0));
    assert!(segments.end_reclaim(segment, || (0, 0)));
    assert_eq!((segments.draining_count(), closed(&segments).len()), (1, 0));
    assert_eq!(segments.free_count(), 7, "it is not free yet");
}

/// A segment whose newest record is 5 and that drains until round 3 has succeeded and 7 marks are
/// durable.
fn draining() -> (Segments, SegmentId) {
    let segments = eight();
    let segment = with_record(&segments, 5, 10);
    segments.close(segment);
    assert!(segments.begin_reclaim(segment) && segments.end_reclaim(segment, || (3, 7)));
    (segments, segment)
}

#[test]
fn a_drained_segment_is_free_when_nothing_speaks_against_it() {
    let (segments, segment) = draining();
    let freed = |round, marks| segments.free_drained(round, marks, NO_READER);
    assert_eq!(freed(2, 7), (0, false), "the round has not ended");
    assert_eq!(freed(3, 7), (0, true), "the checkpoint is older than the record");
    segments.checkpoint_durable(RecordNumber(4));
    assert_eq!(freed(3, 7), (0, true), "still older");
    segments.checkpoint_durable(RecordNumber(5));
    assert_eq!(freed(3, 6), (0, true), "a checkpoint would do what the marks do");
    assert_eq!(freed(2, 6), (0, false), "it would not help before the round has ended");

    segments.pin(segment);
    assert_eq!(freed(3, 7), (0, false), "somebody reads it");
    segments.unpin(segment);
    segments.hold(segment);
    assert_eq!(freed(3, 7), (0, false), "a version is held");
    segments.release(segment);
    let skipped = segments.free_drained(3, 7, |it| it == segment);
    assert_eq!(skipped, (0, false), "a lane looks at it");
    assert_eq!((segments.draining_count(), segments.free_count()), (1, 7));

    assert_eq!(freed(3, 7), (1, false));
    assert_eq!((segments.draining_count(), segments.free_count()), (0, 8));
    assert_eq!(freed(3, 7), (0, false), "once");
}

#[test]
fn segments_are_freed_together_without_waiting_for_others() {
    let segments = eight();
    for number in 1..=4 {
        let segment = with_record(&segments, number, 10);
        segments.close(segment);
        assert!(segments.begin_reclaim(segment) && segments.end_reclaim(segment, || (0, 0)));
    }
    segments.checkpoint_durable(RecordNumber(3));
    assert_eq!(segments.free_drained(9, 9, NO_READER), (3, true));
    assert_eq!((segments.draining_count(), segments.free_count()), (1, 7));
}

#[test]
fn segments_with_something_held_are_counted_once() {
    let segments = eight();
    segments.set_held(0, &[0, 2]);
    segments.set_held(2, &[0, 1]);
    assert_eq!(segments.with_held(), 2);
    segments.hold(SegmentId(1));
    assert_eq!(segments.with_held(), 2);
    segments.hold(SegmentId(5));
    assert_eq!(segments.with_held(), 3);
    for (segment, left) in [(1, 3), (1, 3), (1, 2), (3, 1), (5, 0)] {
        segments.release(SegmentId(segment));
        assert_eq!(segments.with_held(), left);
    }
}

#[test]
fn a_checkpoint_sees_each_segment_as_recovery_has_to_treat_it() {
    let segments = eight();
    let states = |base| -> Vec<SegmentState> {
        let parts = [0..3, 3..7, 7..100].map(|part| segments.snapshot(RecordNumber(base), part));
        parts.iter().flatten().map(|it| it.state).collect()
    };
    // In this order: open without a record, closed, being reclaimed, draining; with records 1 to 3.
    let quiet = open(&segments);
    let ids: Vec<_> = (1..=3).map(|number| with_record(&segments, number, 40)).collect();
    for segment in &ids {
        segments.close(*segment);
    }
    assert!(segments.begin_reclaim(ids[1]) && segments.begin_reclaim(ids[2]));
    assert!(segments.end_reclaim(ids[2], || (0, 0)));
    assert_eq!((quiet, &ids[..]), (SegmentId(0), &[1, 2, 3].map(SegmentId)[..]));

    use SegmentState::{Closed, Free, Open};
    assert_eq!(states(3), [Open, Closed, Closed, Closed, Free, Free, Free, Free]);
    assert_eq!(states(2), [Open, Closed, Closed, Open, Free, Free, Free, Free]);
    assert_eq!(states(0), [Open, Open, Open, Open, Free, Free, Free, Free]);

    let life = segments.snapshot(RecordNumber(3), 1..2)[0];
    assert_eq!((life.generation, life.position), (Generation(11), 40));

    // A free segment is not replayed, whatever its content.
    segments.checkpoint_durable(RecordNumber(3));
    assert_eq!(segments.free_drained(0, 0, NO_READER), (1, false));
    assert_eq!(states(0)[3], Free);
}

#[test]
fn restored_segments_keep_their_order_and_state() {
    let segments = eight();
    let life = |segment, generation, state| {
        let generation = Generation(generation);
        let snapshot = SegmentSnapshot { generation, state, position: 30 };
        (SegmentId(segment), snapshot, RecordNumber(0))
    };
    segments.restore_all([
        life(6, 1, SegmentState::Closed),
        life(2, 3, SegmentState::Free),
        life(1, 4, SegmentState::Closed),
    ]);
    let live = Live { blocks: 3, dirty: 2, kept: 1 };
    let mut counts = [Live::default(); 8];
    counts[6] = live;
    segments.set_live(&counts);
    segments.set_held(0, &[0, 1]);
    let seen: Vec<_> =
        closed(&segments).iter().map(|it| (it.id.0, it.opened, it.live, it.held)).collect();
    assert_eq!(seen, [(1, 3, Live::default(), true), (6, 1, live, false)]);
    assert_eq!(segments.free_count(), 6);
    assert_eq!(
        (segments.generation(SegmentId(6)), segments.position(SegmentId(6))),
        (Generation(1), 30)
    );
    // The next segment opened is younger than all of them.
    let next = open(&segments);
    segments.close(next);
    assert!(closed(&segments).iter().any(|it| it.id == next && it.opened == 4));
}

#[test]
fn memory_is_told_for_every_segment() {
    let one = Segments::bytes_for(1, 2);
    let parts = [
        size_of::<Counters>(),
        size_of::<Mutex<Option<Arc<LogBuffer>>>>(),
        size_of::<SegmentLife>(),
    ];
    let generation = size_of::<Generation>() as u64;
    let parts = parts.iter().sum::<usize>() as u64 + generation;
    assert_eq!(one, parts + RecordStarts::bytes_for(1) + 2 * 8);
    assert_eq!(eight().bytes(), 8 * one);
}
