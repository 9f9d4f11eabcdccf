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
fn new_blocks_are_on_probation_whoever_appends_them() {
    let on_probation = |segments: u32, numbers: &[usize]| {
        let log = log(3, segments);
        numbers.iter().map(|number| log.roles().is_on_probation(*number)).collect::<Vec<_>>()
    };
    // In this order: new blocks of three lanes, rewritten blocks, ordered volumes, background work.
    assert_eq!(
        on_probation(SEGMENTS + 5, &[0, 2, 3, 5, 6, 7]),
        [true, true, false, false, true, false]
    );
    assert_eq!(on_probation(SEGMENTS - 1, &[0, 2, 3]), [true, true, false]);
}

#[test]
fn images_are_used_again_and_limited() {
    assert_eq!(Log::most_buffers(3, SEGMENTS + 5), 14, "the one for what is in order has none");
    assert_eq!(Log::most_buffers(3, SEGMENTS), 14);
    assert_eq!(Log::most_buffers(3, SEGMENTS - 1), 12);

    let log = log(1, 16);
    let mut taken: Vec<_> = (0..6).map_while(|_| log.take_buffer(0)).collect();
    assert_eq!(taken.len(), 6);
    assert!(log.take_buffer(0).is_none());
    assert_eq!(log.buffer_bytes(), 6 * layout().segment_bytes);

    let buffer = taken.pop().expect("six");
    let (known, reader) = (Arc::as_ptr(&buffer), taken[0].clone());
    log.return_buffer(0, buffer);
    taken.extend(log.take_buffer(0));
    assert_eq!(taken.last().map(Arc::as_ptr), Some(known), "the same one again");

    // A reader holds the image, so another buffer replaces it.
    log.return_buffer(0, taken.swap_remove(0));
    let another = log.take_buffer(0).expect("its place is free");
    assert!(!Arc::ptr_eq(&another, &reader));
    assert!(log.take_buffer(0).is_none());
    assert_eq!(log.buffer_bytes(), 6 * layout().segment_bytes);
}

#[test]
fn a_lane_gets_the_image_back_that_it_used_last() {
    let log = log(2, SEGMENTS);
    let [new, rewritten] = [1, 3];
    assert_eq!(log.roles().of_lane(1), (new, Some(rewritten)));
    let taken = [(); 4].map(|()| log.take_buffer(0).expect("one of ten"));
    let at: Vec<_> = taken.iter().map(Arc::as_ptr).collect();
    for (appender, buffer) in [new, 0, rewritten, 0].into_iter().zip(taken) {
        log.return_buffer(appender, buffer);
    }
    // The buffers of the second lane come first, the last used one before the others; then another
    // lane's.
    for (appender, expected) in [(rewritten, 2), (new, 0), (new, 3), (log.roles().background(), 1)]
    {
        let buffer = log.take_buffer(appender).expect("one is free");
        assert_eq!(Arc::as_ptr(&buffer), at[expected]);
    }
    assert_eq!(log.buffer_bytes(), 4 * layout().segment_bytes);
}

#[test]
fn records_are_written_through_when_no_earlier_one_is_in_flight() {
    let (log, segments) = (log(1, 16), Segments::new(16, 2, Generation(1)));
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
    let (log, segments) = (log(1, 16), Segments::new(16, 2, Generation(1)));
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
fn removed_blocks_wait_for_no_later_marks_of_clean_blocks() {
    let log = log(1, 16);
    let clean = |slot| Mark { kind: MarkKind::Clean, ..marks([slot])[0] };
    log.push_marks([clean(0)]);
    assert_eq!((log.marks_pushed(), log.gone_pushed()), (1, 0));
    log.push_marks(marks(1..3).into_iter().chain([clean(3)]));
    assert_eq!((log.marks_pushed(), log.gone_pushed()), (4, 3));
}

#[test]
fn a_checkpoint_makes_the_marks_that_came_before_it_superfluous() {
    let log = log(1, 16);
    log.push_marks(marks(0..6));
    log.take_marks(2);
    // Of the first 4 marks pushed, two are still pending.
    log.forget_marks(4);
    assert_eq!((log.marks_durable(), log.marks_taken()), (4, 4));
    // All of these marks were taken before.
    log.forget_marks(3);
    assert_eq!((log.marks_durable(), log.marks_taken()), (4, 4));
    assert_eq!(slots(&log.take_marks(9)), [4, 5]);
}
