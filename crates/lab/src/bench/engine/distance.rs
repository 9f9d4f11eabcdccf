//! Distance of the CPUs of two lanes: the time that a cache line takes from one to the other.
//! A virtual machine's CPUs move on the host within seconds, from hyperthreads of one core to
//! different sockets, where memory shared by lanes costs many times as much.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use serde::Serialize;

use crate::bench::engine::worker::Crew;
use crate::error::LabResult;

/// Batches of round trips; the fastest counts, as others processes delay the rest.
const BATCHES: u64 = 16;
const ROUND_TRIPS: u64 = 128;

/// Nanoseconds that a line takes between CPUs that count as near, at most, and between CPUs that
/// count as far, at least. Between hyperthreads or cores that share a last-level cache it takes 20
/// to 60, between others of a socket 140 to 160, between sockets 200 to 500.
const NEAR: f64 = 100.0;
const FAR: f64 = 120.0;

/// Distance of the CPUs of the first two lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Distance {
    Near,
    Far,
}

impl Distance {
    /// Returns the distance, if both of these times in nanoseconds agree on it.
    pub(super) fn of(before: f64, after: f64) -> Option<Self> {
        match (before.min(after), before.max(after)) {
            (_, most) if most <= NEAR => Some(Distance::Near),
            (least, _) if least >= FAR => Some(Distance::Far),
            _ => None,
        }
    }
}

/// Returns the nanoseconds that a cache line takes from the CPU of the first lane to that of the
/// second; there have to be two.
pub(super) fn line_ns(crew: &Crew) -> LabResult<f64> {
    let line = Arc::new(AtomicU64::new(0));
    let times = crew.together(2, move |_, lane| {
        let mut fastest = f64::MAX;
        for batch in 0..BATCHES {
            let began = Instant::now();
            let first = batch * ROUND_TRIPS;
            for turn in (first..first + ROUND_TRIPS).map(|trip| 2 * trip + lane as u64) {
                while line.load(Ordering::Acquire) != turn {
                    std::hint::spin_loop();
                }
                line.store(turn + 1, Ordering::Release);
            }
            fastest = fastest.min(began.elapsed().as_nanos() as f64);
        }
        fastest / (2 * ROUND_TRIPS) as f64
    })?;
    Ok(times.first().copied().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_are_near_or_far_if_they_are_before_and_after() {
        for (before, after, distance) in [
            (40.0, 60.0, Some(Distance::Near)),
            (370.0, 210.0, Some(Distance::Far)),
            (40.0, 370.0, None),
            (370.0, 40.0, None),
            (150.0, 150.0, Some(Distance::Far)),
            (110.0, 110.0, None),
        ] {
            assert_eq!(Distance::of(before, after), distance, "{before}, {after}");
        }
    }
}
