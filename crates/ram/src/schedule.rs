//! Schedule of write-downs: pure functions that decide the next step of the write-down task.

use std::time::Duration;

use forebay_core::{Nanos, WriteDown};

use crate::options::Deferral;

/// Above this share of the space, data is written down early.
const URGENT: f64 = 0.5;
/// Early write-downs end at this share.
const RELAXED: f64 = 0.45;
/// Fill from which on write-downs run at the greatest depth.
const PRESSED: f64 = 0.9;

/// Regions written down concurrently: in time, and at most.
const DEPTH: usize = 4;
const MOST_DEPTH: usize = 16;

/// Time without a client's request after which a lower tier is idle.
const IDLE: Duration = Duration::from_millis(50);

/// The amount of deferred data, and the state of the lower tier.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Situation {
    pub(crate) now: Nanos,
    /// The time at which the oldest data that is not being written down was acknowledged; `None`
    /// without such data.
    pub(crate) oldest: Option<Nanos>,
    /// Deferred bytes.
    pub(crate) bytes: u64,
    /// The share of the space that is used.
    pub(crate) fill: f64,
    /// Writes wait for space.
    pub(crate) waiting: bool,
    /// When a client last needed the lower tier.
    pub(crate) used: Nanos,
    /// Bytes per second of the last write-down; 0 if unknown.
    pub(crate) rate: f64,
}

/// The next step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum WriteDownStep {
    /// Wait for the first deferred write, or for scarce space.
    Wait,
    /// Wait until this time, or until space is scarce.
    WaitUntil(Nanos),
    /// Write down everything that is deferred now.
    Write {
        /// Regions in flight.
        depth: usize,
        /// The time over which the regions are spread; `None` to write as fast as possible.
        spread: Duration,
        /// Stop writing once there is enough space again.
        urgent: bool,
        /// Write only until a client needs the lower tier.
        idle: bool,
    },
}

const ALL: WriteDownStep =
    WriteDownStep::Write { depth: DEPTH, spread: Duration::ZERO, urgent: false, idle: false };

/// Returns whether space is scarce. `before`: whether it was scarce at the last check.
pub(crate) fn is_scarce(fill: f64, waiting: bool, before: bool) -> bool {
    waiting || fill > if before { RELAXED } else { URGENT }
}

/// Returns how many regions are written down concurrently while space is scarce.
fn urgent_depth(fill: f64, waiting: bool) -> usize {
    let pressure = ((fill - URGENT) / (PRESSED - URGENT)).clamp(0.0, 1.0);
    if waiting { MOST_DEPTH } else { 1 + (pressure * (MOST_DEPTH - 1) as f64) as usize }
}

/// Returns whether an early write-down of this depth has become much too slow. One over many
/// regions takes seconds, during which space may run out.
pub(crate) fn is_overtaken(depth: usize, fill: f64, waiting: bool) -> bool {
    urgent_depth(fill, waiting) >= 2 * depth
}

/// Returns the next step.
pub(crate) fn next(how: &Deferral, it: &Situation) -> WriteDownStep {
    let Some(oldest) = it.oldest else { return WriteDownStep::Wait };
    if is_scarce(it.fill, it.waiting, false) {
        let depth = urgent_depth(it.fill, it.waiting);
        return WriteDownStep::Write { depth, spread: Duration::ZERO, urgent: true, idle: false };
    }
    // Enough time to write everything down: the time it took at the last rate and half as much
    // again, within limits.
    let needed = if it.rate > 0.0 { it.bytes as f64 / it.rate * 1.5 } else { f64::INFINITY };
    let within = how.within.as_secs_f64();
    let lead = Duration::from_secs_f64(needed.clamp(within / 8.0, within / 2.0));
    let due = oldest + how.within.saturating_sub(lead);
    let wait = |until: Nanos| if until <= it.now { ALL } else { WriteDownStep::WaitUntil(until) };
    match how.mode {
        WriteDown::Infinite => WriteDownStep::Wait,
        WriteDown::Buffer => ALL,
        WriteDown::Interval => wait(due),
        WriteDown::Idle => {
            let idle = it.used + IDLE;
            if due > it.now && idle <= it.now {
                return WriteDownStep::Write {
                    depth: 1,
                    spread: Duration::ZERO,
                    urgent: false,
                    idle: true,
                };
            }
            wait(due.min(idle.max(it.now)))
        }
        WriteDown::Average if due <= it.now => ALL,
        WriteDown::Average => {
            // The next sweep must reach data that arrives just behind this one before its age
            // limit, with enough time to write it.
            let spread = (how.within.saturating_sub(lead) / 2).min(due.since(it.now));
            WriteDownStep::Write { depth: 1, spread, urgent: false, idle: false }
        }
    }
}

/// Returns whether a lower tier that a client needed at `used` is idle at `now`.
pub(crate) fn is_idle(used: Nanos, now: Nanos) -> bool {
    used + IDLE <= now
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn how(mode: WriteDown) -> Deferral {
        Deferral { within: Duration::from_secs(8), mode, share: 100, ignore_flush: false }
    }

    fn at(seconds: u64) -> Situation {
        let oldest = Some(Nanos(0));
        let now = Nanos(seconds * SECOND);
        Situation { now, oldest, bytes: 1 << 20, rate: 1e9, used: now, ..Situation::default() }
    }

    #[test]
    fn nothing_happens_while_nothing_is_deferred() {
        for mode in WriteDown::ALL {
            let it = Situation { oldest: None, fill: 1.0, waiting: true, ..at(3) };
            assert_eq!(next(&how(*mode), &it), WriteDownStep::Wait);
        }
    }

    #[test]
    fn data_is_written_down_in_time_to_meet_its_limit() {
        let interval = how(WriteDown::Interval);
        assert_eq!(next(&interval, &at(1)), WriteDownStep::WaitUntil(Nanos(7 * SECOND)));
        assert_eq!(next(&interval, &at(7)), ALL);
        let much = Situation { bytes: 2_000_000_000, ..at(1) };
        assert_eq!(next(&interval, &much), WriteDownStep::WaitUntil(Nanos(5 * SECOND)));
        let unknown = Situation { rate: 0.0, ..at(1) };
        assert_eq!(next(&interval, &unknown), WriteDownStep::WaitUntil(Nanos(4 * SECOND)));
        assert_eq!(next(&how(WriteDown::Buffer), &at(0)), ALL);
        assert_eq!(next(&how(WriteDown::Infinite), &at(1000)), WriteDownStep::Wait);
    }

    #[test]
    fn equal_parts_leave_time_to_write_them() {
        let average = how(WriteDown::Average);
        let sweep = |millis| {
            let spread = Duration::from_millis(millis);
            WriteDownStep::Write { depth: 1, spread, urgent: false, idle: false }
        };
        assert_eq!(next(&average, &at(0)), sweep(3500));
        let much = Situation { bytes: 2_000_000_000, ..at(1) };
        assert_eq!(next(&average, &much), sweep(2500), "3 s of 8 to write them");
        let unknown = Situation { rate: 0.0, ..at(0) };
        assert_eq!(next(&average, &unknown), sweep(2000));
        // After a failure, for example, the rest of the time is used up, and the sweep begins at
        // once.
        assert_eq!(next(&average, &at(6)), sweep(1000));
        assert_eq!(next(&average, &at(7)), ALL);
    }

    #[test]
    fn an_idle_device_is_used_early_and_a_busy_one_at_the_limit() {
        let idle = how(WriteDown::Idle);
        let busy = at(1);
        assert_eq!(next(&idle, &busy), WriteDownStep::WaitUntil(busy.used + IDLE));
        let free = Situation { used: Nanos(0), ..at(1) };
        assert!(matches!(next(&idle, &free), WriteDownStep::Write { idle: true, .. }));
        assert_eq!(next(&idle, &at(7)), ALL);
    }

    #[test]
    fn scarce_space_makes_it_urgent_whatever_the_mode_and_gradually() {
        for mode in WriteDown::ALL {
            let mut last = 0;
            for fill in [0.51, 0.6, 0.7, 0.8, 0.9, 1.0] {
                let it = Situation { fill, ..at(0) };
                let WriteDownStep::Write { depth, urgent: true, .. } = next(&how(*mode), &it)
                else {
                    panic!("{mode} at {fill}");
                };
                assert!(depth >= last && depth <= MOST_DEPTH, "{fill}");
                last = depth;
            }
            assert_eq!(last, MOST_DEPTH);
        }
        assert!(!is_scarce(0.47, false, false) && is_scarce(0.47, false, true));
        assert!(is_overtaken(1, 0.6, false) && !is_overtaken(4, 0.6, false));
        assert!(is_overtaken(8, 0.6, true) && !is_overtaken(9, 1.0, true));
    }
}
