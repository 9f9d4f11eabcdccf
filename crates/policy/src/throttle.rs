//! How much clients are slowed down when nearly all of the cache is dirty.
//!
//! Clients that write faster than the origin can take must wait in the end. If they are let go on until
//! there is no room at all, they then wait for a whole segment to be emptied, seconds on a disk, and all
//! at once. So they are slowed down before, a little at first and more and more: each block has to wait
//! for its turn, and turns are further apart the more is dirty. What is dirty then stays where turns
//! come as often as the origin takes blocks, whatever rate that is, and every client gets its share.
//!
//! This is how ZFS delays transactions on the way to its limit of dirty data (OpenZFS, `dmu_tx.c`).
//! There the delay is a hyperbola; here it grows by the same factor for each step, so that the level
//! answers to origins of 100 blocks and of 100,000 blocks per second alike.

use std::time::Duration;

/// Clients are slowed down from so many percent above the highest share that an operator lets become
/// dirty before writeback starts: writeback alone has to have a chance.
const ABOVE: u8 = 5;

/// The shares of the usable cache, in percent, between which that begins at least and at most.
const EARLIEST: u8 = 60;
const LATEST: u8 = 85;

/// So many percent further on, turns are as far apart as they get.
const RANGE: u8 = 20;

/// Or here, at the latest: reclaim needs the rest. The more of a segment is dirty, the more has to be
/// reinserted for what is gained.
const END: u8 = 95;

/// Between two blocks at first, in seconds.
const SHORTEST: f64 = 5e-6;

/// Between two blocks in the end, in seconds: a disk that takes 50 random blocks per second is busy with
/// something else as well.
const LONGEST: f64 = 20e-3;

/// The time between the turns of two blocks that are about to become dirty, if `dirty` of `usable` are
/// dirty, and writeback starts at `high` percent; `None`: they need not wait.
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
                // One part in a thousand of the cache is a small step: nobody feels it.
                assert!(last.is_zero() || pause.as_secs_f64() < 1.09 * last.as_secs_f64());
                last = pause;
            }
            assert_eq!(last, Duration::from_millis(20));
            assert_eq!(pause(2000, 1000, high), Some(last));
        }
        assert_eq!(pause(1, 0, 60), Some(Duration::from_millis(20)));
        assert_eq!(pause(u64::MAX, u64::MAX, 60), Some(Duration::from_millis(20)));
    }

    /// An origin that takes blocks in batches, and clients that write as often as they may.
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
