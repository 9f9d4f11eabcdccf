use forebay_core::{BlockSize, Generation, Slot};
use forebay_format::{Geometry, MarkKind};

use super::*;

const SEGMENTS: u32 = 35;

fn layout() -> SegmentLayout {
    SegmentLayout::new(&Geometry::plan(64 << 20, BlockSize::DEFAULT, 512, None).expect("a plan"))
}

fn log(lanes: usize, segments: u32) -> Log {
    Log::new(layout(), lanes, segments, RecordNumber(100))
}

/// Closes a record of marks; returns its number.
fn close(log: &Log, segments: &Segments, durably: bool) -> RecordNumber {
    let segment = SegmentId(0);
    let record = Record::marks(segment, Generation(1), 1, LogBuffer::new(4096), Vec::new());
    let ready = log.close(segments, &Arc::new(record), 0, 2, durably).expect("it has no cells");
    assert_eq!(ready.durably, durably);
    ready.number
}

fn marks(slots: impl IntoIterator<Item = u32>) -> Vec<Mark> {
    let mark = |slot| Mark { slot: Slot(slot), generation: Generation(1), kind: MarkKind::Gone };
    slots.into_iter().map(mark).collect()
}

fn slots(marks: &[Mark]) -> Vec<u32> {
    marks.iter().map(|mark| mark.slot.0).collect()
}

#[test]
fn there_are_more_appenders_where_there_are_segments_enough() {
    let roles = |segments| {
        let log = log(3, segments);
        let roles = log.roles();
        let of: Vec<_> = (0..4).map(|lane| roles.of_lane(lane)).collect();
        (roles.count(), of, roles.ordered(), roles.background())
    };
    let parted = vec![(0, Some(3)), (1, Some(4)), (2, Some(5)), (0, Some(3))];
    // 3 lanes with two appenders each, one for ordered volumes, one for background work: 8 times 5
    // segments.
    assert_eq!(roles(SEGMENTS + 5), (8, parted.clone(), Some(6), 7));
    assert_eq!(roles(SEGMENTS + 4), (7, parted, None, 6));
    let small = vec![(0, None), (1, None), (2, None), (0, None)];
    assert_eq!(roles(SEGMENTS - 1), (4, small, None, 3));
}

#[test]
fn images_are_used_again_and_limited() {
    assert_eq!(Log::most_buffers(3, SEGMENTS + 5), 14, "the one for what is in order has none");
    assert_eq!(Log::most_buffers(3, SEGMENTS), 14);
    assert_eq!(Log::most_buffers(3, SEGMENTS - 1), 12);

    let log = log(1, 16);
    let mut taken: Vec<_> = (0..6).map_while(|_| log.take_buffer()).collect();
    assert_eq!(taken.len(), 6);
    assert!(log.take_buffer().is_none());
    assert_eq!(log.buffer_bytes(), 6 * layout().segment_bytes);

    let buffer = taken.pop().expect("six");
    let (known, reader) = (Arc::as_ptr(&buffer), taken[0].clone());
    log.return_buffer(buffer);
    taken.extend(log.take_buffer());
    assert_eq!(taken.last().map(Arc::as_ptr), Some(known), "the same one again");

    // A reader keeps its image: another buffer replaces it.
    log.return_buffer(taken.swap_remove(0));
    let another = log.take_buffer().expect("its place is free");
    assert!(!Arc::ptr_eq(&another, &reader));
    assert!(log.take_buffer().is_none());
    assert_eq!(log.buffer_bytes(), 6 * layout().segment_bytes);
}

#[test]
fn records_are_written_through_when_no_earlier_one_is_on_its_way() {
    let (log, segments) = (log(1, 16), Segments::new(16, Generation(1)));
    assert_eq!((log.last_closed(), log.durable_through()), (RecordNumber(99), RecordNumber(99)));
    let numbers = [(); 3].map(|()| close(&log, &segments, false));
    assert_eq!(numbers.map(|it| it.0), [100, 101, 102]);
    assert_eq!((log.last_closed(), segments.position(SegmentId(0))), (numbers[2], 2));

    let through = || [99, 100, 101, 102].map(|number| log.written_through(RecordNumber(number)));
    assert_eq!(through(), [true, false, false, false]);
    log.wrote(numbers[1]);
    assert_eq!(through(), [true, false, false, false]);
    log.wrote(numbers[0]);
    assert_eq!(through(), [true, true, true, false]);
    log.wrote(numbers[2]);
    assert_eq!(through(), [true; 4]);

    log.set_durable(RecordNumber(101));
    log.set_durable(RecordNumber(100));
    assert_eq!(log.durable_through(), RecordNumber(101));
}

#[test]
fn a_sync_is_needed_for_records_that_were_not_written_durably() {
    let (log, segments) = (log(1, 16), Segments::new(16, Generation(1)));
    assert!(!log.needs_sync());
    close(&log, &segments, true);
    assert!(!log.needs_sync());
    let plain = close(&log, &segments, false);
    close(&log, &segments, true);
    assert!(log.needs_sync());
    log.set_durable(RecordNumber(plain.0 - 1));
    assert!(log.needs_sync());
    log.set_durable(plain);
    assert!(!log.needs_sync());
}

#[test]
fn marks_are_taken_in_their_order_and_counted() {
    let log = log(1, 16);
    log.push_marks(marks(0..3));
    log.push_marks(marks(3..5));
    assert_eq!((log.marks_pushed(), log.marks_taken()), (5, 0));
    let taken = log.take_marks(2);
    assert_eq!((slots(&taken), log.marks_taken()), (vec![0, 1], 2));
    log.return_marks(taken);
    assert_eq!(log.marks_taken(), 0);
    assert_eq!(slots(&log.take_marks(4)), [0, 1, 2, 3]);
    assert_eq!(slots(&log.take_marks(4)), [4]);
    assert!(log.take_marks(4).is_empty());
    assert_eq!((log.marks_pushed(), log.marks_taken()), (5, 5));

    assert_eq!(log.marks_durable(), 0);
    log.set_marks_durable(4);
    log.set_marks_durable(3);
    assert_eq!(log.marks_durable(), 4);
}

#[test]
fn a_checkpoint_makes_the_marks_that_came_before_it_superfluous() {
    let log = log(1, 16);
    log.push_marks(marks(0..6));
    log.take_marks(2);
    // Of the first 4 marks pushed, two are still pending.
    log.forget_marks(4);
    assert_eq!((log.marks_durable(), log.marks_taken()), (4, 4));
    // All of these were taken before.
    log.forget_marks(3);
    assert_eq!((log.marks_durable(), log.marks_taken()), (4, 4));
    assert_eq!(slots(&log.take_marks(9)), [4, 5]);
}

fn run(log: &Log, durably: bool, ample: bool) -> Option<RoundTicket> {
    match log.begin_round(&mut 0, durably, ample) {
        Round::Run(ticket) => Some(ticket),
        Round::Wait => None,
        Round::Covered(_) | Round::Failed => panic!("nobody has run a round for this caller"),
    }
}

#[test]
fn a_round_covers_whoever_came_before_it_began() {
    let log = log(1, 16);
    assert_eq!((log.next_round(), log.last_round()), (1, 0));
    let first = run(&log, false, false).expect("none is on its way");
    assert_eq!((first.number, first.durably), (1, false));
    assert_eq!(log.next_round(), 2);

    // This caller came later, so it waits for the next round.
    let mut late = 0;
    assert!(matches!(log.begin_round(&mut late, false, false), Round::Wait));
    assert_eq!(late, 2);
    log.end_round(first, true);
    assert_eq!(log.last_round(), 1);
    let Round::Run(second) = log.begin_round(&mut late, false, false) else {
        panic!("the first round does not cover it")
    };
    assert_eq!((second.number, late), (2, 2));
    // Another caller that came with it waits for the same round.
    assert!(matches!(log.begin_round(&mut 2, false, false), Round::Wait));
    log.end_round(second, true);
    assert!(matches!(log.begin_round(&mut 2, false, false), Round::Covered(2)));
    assert!(matches!(log.begin_round(&mut 1, false, false), Round::Covered(2)));
}

#[test]
fn after_a_failed_round_none_ends_well() {
    let log = log(1, 16);
    let round = run(&log, false, false).expect("none is on its way");
    log.end_round(round, true);
    let round = run(&log, false, false).expect("none is on its way");
    log.end_round(round, false);
    assert_eq!(log.last_round(), 1);
    assert!(matches!(log.begin_round(&mut 0, false, false), Round::Failed));
    assert!(matches!(log.begin_round(&mut 2, false, false), Round::Failed));
    assert!(matches!(log.begin_round(&mut 1, false, false), Round::Covered(1)), "that went well");
}

/// Counts the rounds that can begin before one has to wait, and ends them.
fn side_by_side(log: &Log, durably: bool, ample: bool) -> usize {
    let rounds: Vec<_> = (0..50).map_while(|_| run(log, durably, ample)).collect();
    assert!(rounds.iter().all(|it| it.durably == (durably && !log.needs_sync())));
    let count = rounds.len();
    rounds.into_iter().for_each(|round| log.end_round(round, true));
    count
}

#[test]
fn several_rounds_are_on_their_way_where_none_needs_a_sync() {
    let (log, segments) = (log(1, 16), Segments::new(16, Generation(1)));
    for (durably, ample, most) in [
        (false, false, 1),
        (false, true, 1),
        (true, false, ROUNDS_WITHOUT_SYNC),
        (true, true, AMPLE_ROUNDS),
        (true, false, ROUNDS_WITHOUT_SYNC),
    ] {
        assert_eq!(side_by_side(&log, durably, ample), most, "{durably} {ample}");
    }

    // A round that is not ample waits for ample rounds, and for no others.
    let plain = run(&log, true, false).expect("none is on its way");
    let ample = run(&log, true, true).expect("there is room");
    assert!(run(&log, true, false).is_none());
    log.end_round(ample, true);
    let other = run(&log, true, false).expect("only one is on its way");
    log.end_round(plain, true);
    log.end_round(other, true);

    // A record that needs a sync.
    let record = close(&log, &segments, false);
    assert_eq!(side_by_side(&log, true, true), 1);
    log.set_durable(record);
    assert_eq!(side_by_side(&log, true, true), AMPLE_ROUNDS);
}

#[test]
fn a_round_with_a_sync_is_alone() {
    let log = log(1, 16);
    let with_sync = run(&log, false, true).expect("none is on its way");
    assert!(run(&log, true, true).is_none(), "one with a sync is on its way");
    log.end_round(with_sync, true);
    let without = run(&log, true, true).expect("none is on its way");
    assert!(without.durably);
    assert!(run(&log, false, true).is_none(), "one without a sync is on its way");
    log.end_round(without, true);
    assert!(run(&log, false, true).is_some());
}
