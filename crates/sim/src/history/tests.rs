use super::*;

const fn own(number: u32) -> SectorContent {
    SectorContent::Own(Value::Write(number))
}

/// Submits and ends writes `(id, submitted, ended)`, where 0 means "not yet".
fn history(writes: &[(u32, Moment, Moment)]) -> SectorHistory {
    let mut history = SectorHistory::new(Value::Write(0));
    let mut events: Vec<(Moment, u32, bool)> = Vec::new();
    for &(id, submitted, ended) in writes {
        events.push((submitted, id, false));
        if ended > 0 {
            events.push((ended, id, true));
        }
    }
    events.sort_unstable();
    for (now, id, ends) in events {
        if ends {
            history.end(id, true, Survives::Nothing, now, NEVER);
        } else {
            history.submit(id, Value::Write(id), false, now);
        }
    }
    history
}

/// Returns the values that a read from `started` to 100 may return.
fn readable(history: &SectorHistory, started: Moment) -> Vec<u32> {
    (0..9).filter(|&id| history.clone().observe(own(id), started, 100, 0).is_ok()).collect()
}

fn after_crash(history: &SectorHistory) -> Vec<u32> {
    let mut crashed = history.clone();
    crashed.crash(true, 100);
    assert_eq!(crashed.expected(), history.after_a_crash());
    readable(&crashed, 101)
}

#[test]
fn a_read_returns_the_last_write_or_one_under_way() {
    assert_eq!(readable(&history(&[]), 50), [0]);
    assert_eq!(readable(&history(&[(1, 10, 0)]), 50), [0, 1]);
    assert_eq!(readable(&history(&[(1, 10, 20)]), 50), [1]);
    assert_eq!(readable(&history(&[(1, 10, 20), (2, 15, 30)]), 50), [1, 2]);
    assert_eq!(readable(&history(&[(1, 10, 20), (2, 25, 30)]), 50), [2]);
    assert_eq!(readable(&history(&[(1, 10, 20), (2, 25, 0), (3, 30, 40)]), 50), [2, 3]);
}

#[test]
fn a_read_begun_before_the_end_of_a_write_may_be_old() {
    let mut history = SectorHistory::new(Value::Write(0));
    history.submit(1, Value::Write(1), false, 10);
    history.end(1, true, Survives::PowerLoss, 20, 15);
    assert_eq!(readable(&history, 15), [0, 1]);
    assert_eq!(readable(&history, 25), [1]);
}

#[test]
fn values_that_were_read_stay() {
    let mut history = history(&[(1, 10, 20), (2, 15, 30)]);
    assert_eq!(history.observe(own(1), 50, 60, 0), Ok(()));
    assert_eq!(readable(&history, 70), [1]);
    // A read that ran concurrently with the first one is bound by it; a read that began before
    // write 1 ended is not.
    assert_eq!(readable(&history, 55), [1]);
    assert_eq!(readable(&history, 18), [0, 1, 2]);
    // After a crash the other value may reappear, because nothing was flushed.
    assert_eq!(after_crash(&history), [0, 1, 2]);
    history.flushed(70, NEVER);
    assert_eq!(after_crash(&history), [1]);
}

#[test]
fn a_write_under_way_that_was_read_may_not_vanish() {
    let mut history = history(&[(1, 10, 0)]);
    assert_eq!(history.observe(own(1), 50, 60, NEVER), Ok(()));
    assert_eq!(readable(&history, 70), [1]);
    // The write is not acknowledged, so a flush does not cover it.
    history.flushed(70, NEVER);
    assert_eq!(after_crash(&history), [0, 1]);
}

#[test]
fn a_flush_covers_what_ended_before_it_was_submitted() {
    let mut all = history(&[(1, 10, 20), (2, 25, 40)]);
    assert_eq!(after_crash(&all), [0, 1, 2]);
    all.flushed(30, NEVER);
    assert_eq!(after_crash(&all), [1, 2]);
    all.flushed(45, NEVER);
    assert_eq!(after_crash(&all), [2]);
}

#[test]
fn fua_covers_its_own_write() {
    let mut history = history(&[(1, 10, 20)]);
    history.submit(2, Value::Write(2), false, 30);
    history.submit(3, Value::Write(3), false, 31);
    history.end(3, true, Survives::Nothing, 35, NEVER);
    history.end(2, true, Survives::PowerLoss, 40, NEVER);
    assert_eq!(after_crash(&history), [2, 3]);
}

#[test]
fn written_data_survives_the_process_but_no_power_cut() {
    let mut history = history(&[(1, 10, 20)]);
    history.submit(2, Value::Write(2), false, 30);
    history.end(2, true, Survives::Daemon, 40, NEVER);
    history.submit(3, Value::Write(3), false, 50);
    assert_eq!(after_crash(&history), [0, 1, 2, 3]);
    history.crash(false, 60);
    assert_eq!(readable(&history, 61), [2, 3]);
    let mut again = history.clone();
    again.crash(false, 70);
    assert_eq!(readable(&again, 71), [2, 3], "it died once more");
    again.crash(true, 80);
    assert_eq!(readable(&again, 81), [0, 1, 2, 3], "it was not up when the power failed");
    history.opened();
    history.crash(true, 70);
    assert_eq!(readable(&history, 71), [2, 3]);
}

#[test]
fn writes_before_a_failed_sync_need_not_survive() {
    let mut history = history(&[(1, 10, 20)]);
    history.submit(2, Value::Write(2), false, 30);
    history.end(2, true, Survives::Daemon, 40, NEVER);
    history.unwritten();
    history.crash(false, 60);
    assert_eq!(readable(&history, 61), [0, 1, 2]);
}

#[test]
fn content_found_after_a_crash_stays() {
    let mut history = history(&[(1, 10, 20), (2, 25, 0)]);
    history.crash(true, 40);
    assert_eq!(readable(&history, 41), [0, 1, 2]);
    assert_eq!(history.observe(own(1), 41, 42, NEVER), Ok(()));
    assert_eq!(readable(&history, 43), [1]);
    assert_eq!(after_crash(&history), [1]);
    assert!(history.is_settled());
    history.submit(4, Value::Write(4), false, 50);
    history.end(4, true, Survives::Nothing, 51, NEVER);
    assert_eq!(after_crash(&history), [1, 4]);
}

#[test]
fn a_failed_write_may_have_happened_but_hides_nothing() {
    let mut history = history(&[(1, 10, 20)]);
    history.submit(2, Value::Write(2), false, 30);
    history.end(2, false, Survives::Nothing, 40, NEVER);
    assert_eq!(readable(&history, 50), [1, 2]);
    assert_eq!(history.observe(own(1), 50, 51, NEVER), Ok(()));
    assert_eq!(readable(&history, 60), [1]);
    history.submit(3, Value::Write(3), false, 70);
    history.end(3, true, Survives::PowerLoss, 80, NEVER);
    assert_eq!(after_crash(&history), [3]);
}

#[test]
fn a_discard_leaves_the_last_value_or_zeroes_and_nothing_older() {
    let zero = SectorContent::Own(Value::Zero);
    let mut history = history(&[(1, 10, 20)]);
    history.submit(2, Value::Zero, true, 30);
    history.end(2, true, Survives::Nothing, 40, NEVER);
    assert_eq!(readable(&history, 50), [1]);
    assert!(history.clone().observe(zero, 50, 51, NEVER).is_ok());
    assert_eq!(after_crash(&history), [0, 1]);
    history.flushed(45, NEVER);
    assert_eq!(after_crash(&history), [1]);
    assert!(history.clone().observe(zero, 50, 51, NEVER).is_ok());
    let mut zeroed = history.clone();
    assert!(zeroed.observe(zero, 50, 51, NEVER).is_ok());
    assert!(readable(&zeroed, 60).is_empty());
    assert!(after_crash(&zeroed).is_empty());
    let mut kept = history.clone();
    assert!(kept.observe(own(1), 50, 51, NEVER).is_ok());
    assert!(kept.clone().observe(zero, 60, 61, NEVER).is_err());
    assert_eq!(kept.expected(), [Value::Write(1)]);
}

#[test]
fn a_read_in_flight_may_return_data_lost_since_it_began() {
    // The read begins at 15. A write is made durable, and then the origin fails a sync.
    let mut history = history(&[(1, 20, 30)]);
    history.flushed(40, 15);
    history.reopen(50, 15);
    assert!(history.clone().observe(own(0), 15, 60, NEVER).is_ok());
    for (value, possible) in [(0, false), (1, true)] {
        assert_eq!(history.clone().observe(own(value), 55, 60, NEVER).is_ok(), possible);
    }
    assert_eq!(after_crash(&history), [1]);
    // Without such a read, the value is lost.
    history.reopen(60, NEVER);
    assert!(history.observe(own(0), 15, 70, NEVER).is_err());
}

#[test]
fn a_damaged_value_stays_damaged_until_a_later_one_is_durable() {
    let mut history = history(&[]);
    history.taint(5);
    history.submit(1, Value::Write(1), false, 10);
    assert!(history.is_tainted());
    history.end(1, true, Survives::Nothing, 20, NEVER);
    assert!(!history.is_tainted() && history.is_tainted_below());
    let mut flushed = history.clone();
    history.crash(true, 30);
    assert!(history.is_tainted(), "the crash may have taken the write");
    flushed.flushed(25, NEVER);
    flushed.crash(true, 30);
    assert!(!flushed.is_tainted());
}

#[test]
fn a_doubtful_sector_has_one_of_its_values_and_keeps_it() {
    let mut history = history(&[(3, 10, 20)]);
    history.flushed(30, NEVER);
    history.crash(true, 40);
    history.doubt(&[1, 2, 3].map(Value::Write), &[], 50);
    assert_eq!(readable(&history, 60), [1, 2, 3]);
    assert_eq!(history.observe(own(2), 60, 70, NEVER), Ok(()));
    assert_eq!(readable(&history, 80), [2]);
    assert_eq!(after_crash(&history), [2]);
}

#[test]
fn a_stale_copy_and_the_origin_may_alternate_until_a_write() {
    let mut history = history(&[]);
    history.crash(true, 40);
    history.doubt(&[1, 2, 3].map(Value::Write), &[Value::Write(3)], 50);
    assert_eq!(history.observe(own(2), 60, 70, NEVER), Ok(()));
    assert_eq!(readable(&history, 80), [2, 3]);
    let mut written = history.clone();
    assert_eq!(history.observe(own(3), 80, 90, NEVER), Ok(()));
    assert_eq!(readable(&history, 95), [2, 3]);
    written.submit(4, Value::Write(4), false, 80);
    written.end(4, true, Survives::Nothing, 90, NEVER);
    assert_eq!(readable(&written, 95), [4]);
    assert_eq!(after_crash(&written), [2, 3, 4]);
}

#[test]
fn messages_tell_stale_from_never_written() {
    let mut history = history(&[(1, 10, 20), (2, 25, 30)]);
    assert_eq!(history.observe(own(1), 50, 60, NEVER), Err(Wrong::Stale));
    history.flushed(40, NEVER);
    assert_eq!(history.observe(own(1), 50, 60, NEVER), Err(Wrong::CameBack));
    assert_eq!(history.observe(SectorContent::Garbage, 50, 60, NEVER), Err(Wrong::NeverWritten));
}
