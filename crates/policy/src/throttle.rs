//! Throttling of clients when nearly all of the cache is dirty.
//!
//! Clients that write faster than the origin can take must wait eventually. Without a throttle they
//! run until no space is left, and then all wait at once until a whole segment is emptied, which
//! takes seconds on a disk. So they are slowed down earlier, a little at first and increasingly:
//! each block waits for its turn, and turns are further apart the more is dirty. The dirty share
//! settles where turns come as often as the origin takes blocks, whatever its rate, and every
//! client gets its share.
//!
//! ZFS delays transactions likewise on the way to its limit of dirty data (OpenZFS, `dmu_tx.c`).
//! Its delay is a hyperbola; here it grows by a constant factor per step, so that the dirty share
//! responds alike for origins of 100 and of 100,000 blocks per second.

use std::time::Duration;

/// The throttle starts this many percent above the watermark at which writeback starts, so that
/// writeback alone has a chance first.
const ABOVE: u8 = 5;

/// Lowest and highest start of the throttle, in percent of the usable cache.
const EARLIEST: u8 = 60;
const LATEST: u8 = 85;

/// Turns reach their longest distance this many percent above the start.
const RANGE: u8 = 20;

/// Upper end of the range, because reclaim needs the rest: the more of a segment is dirty, the more
/// must be reinserted for the space gained.
const END: u8 = 95;

/// Shortest distance between two blocks, in seconds.
const SHORTEST: f64 = 5e-6;

/// Longest distance between two blocks, in seconds: a disk of 50 random blocks per second is busy
/// with other requests as well.
const LONGEST: f64 = 20e-3;

/// Returns the interval between the turns of two blocks about to become dirty, if `dirty` of
/// `usable` blocks are dirty and writeback starts at `high` percent; `None` if there is no wait.
pub fn pause(dirty: u64, usable: u64, high: u8) -> Option<Duration> {
    let from = high.saturating_add(ABOVE).clamp(EARLIEST, LATEST);
    let full = (from + RANGE).min(END);
    let share = dirty as f64 / usable.max(1) as f64 * 100.0;
    let position = (share - f64::from(from)) / f64::from(full - from);
    if position <= 0.0 {
        return None;
    }
    let factor: f64 = LONGEST / SHORTEST;
    Some(Duration::from_secs_f64(SHORTEST * factor.powf(position.min(1.0))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_more_is_dirty_the_longer_the_pause() {
        for (high, from, full) in
            [(0, 600, 800), (60, 650, 850), (70, 750, 950), (90, 850, 950), (255, 850, 950)]
        {
            assert_eq!(pause(0, 1000, high), None);
            assert_eq!(pause(from, 1000, high), None);
            let mut last = Duration::ZERO;
            for dirty in from + 1..=full {
                let pause = pause(dirty, 1000, high).expect("beyond the first mark");
                assert!(pause > last, "{dirty}");
                // A thousandth of the cache is a small step, too small to notice.
                assert!(last.is_zero() || pause.as_secs_f64() < 1.09 * last.as_secs_f64());
                last = pause;
            }
            assert_eq!(last, Duration::from_millis(20));
            assert_eq!(pause(2000, 1000, high), Some(last));
        }
        assert_eq!(pause(1, 0, 60), Some(Duration::from_millis(20)));
        assert_eq!(pause(u64::MAX, u64::MAX, 60), Some(Duration::from_millis(20)));
    }

    /// An origin that accepts blocks in batches, and clients that write whenever they may.
    #[test]
    fn the_level_settles_where_the_origin_keeps_up() {
        const USABLE: u64 = 200_000;
        for per_second in [150.0, 1500.0, 25_000.0] {
            let (mut dirty, mut time, mut taken) = (0u64, 0.0f64, 0.0f64);
            let batch = USABLE as f64 / 256.0;
            let mut pauses = Vec::new();
            while time < 4000.0 * batch / per_second {
                let wait = pause(dirty, USABLE, 60).map_or(1e-6, |pause| pause.as_secs_f64());
                time += wait;
                dirty += 1;
                if time * per_second >= taken + batch {
                    taken += batch;
                    dirty -= (batch as u64).min(dirty);
                }
                if time > 2000.0 * batch / per_second {
                    pauses.push(wait);
                }
            }
            pauses.sort_by(f64::total_cmp);
            let median = pauses[pauses.len() / 2];
            let late = pauses[pauses.len() * 99 / 100];
            assert!((median * per_second - 1.0).abs() < 0.2, "{per_second}: {median}");
            assert!(late < 2.0 * median, "{per_second}: {late} and {median}");
        }
    }
}
