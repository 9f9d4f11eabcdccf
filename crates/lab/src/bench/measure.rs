//! Time on the wall, time on the CPU.

use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_setaffinity};
use rustix::time::{ClockId, Timespec, clock_gettime};

use crate::error::LabResult;
use crate::progress::Progress;

/// CPU time that the calling thread has used.
pub(crate) fn thread_cpu() -> Duration {
    let Timespec { tv_sec, tv_nsec } = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(u64::try_from(tv_sec).unwrap_or(0), u32::try_from(tv_nsec).unwrap_or(0))
}

/// Measures both times of the calling thread.
pub(crate) struct Stopwatch {
    wall: Instant,
    cpu: Duration,
}

impl Stopwatch {
    pub(crate) fn start() -> Self {
        Stopwatch { wall: Instant::now(), cpu: thread_cpu() }
    }

    /// Time on the wall so far.
    pub(crate) fn wall(&self) -> Duration {
        self.wall.elapsed()
    }

    /// Both times since the start, for so many operations.
    pub(crate) fn sample(&self, operations: u64) -> Sample {
        Sample { operations, wall: self.wall.elapsed(), cpu: thread_cpu().saturating_sub(self.cpu) }
    }
}

/// Result of one thread in one stretch of time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sample {
    pub(crate) operations: u64,
    pub(crate) wall: Duration,
    pub(crate) cpu: Duration,
}

impl Sample {
    pub(crate) fn per_second(&self) -> f64 {
        self.operations as f64 / self.wall.as_secs_f64().max(1e-9)
    }
}

/// Result of several threads that ran at the same time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rates {
    /// Operations a second, all threads together.
    pub(crate) per_second: f64,
    /// CPU microseconds of an operation.
    pub(crate) cpu_us: f64,
    /// Operations per second for which the threads had a CPU, all threads together: the rate on an
    /// otherwise idle machine.
    pub(crate) per_cpu_second: f64,
    /// Share of the time in which the threads had a CPU.
    pub(crate) on_cpu: f64,
}

impl Rates {
    /// Puts the threads' samples together.
    pub(crate) fn of(samples: &[Sample]) -> Self {
        let rate = |time: fn(&Sample) -> Duration| -> f64 {
            samples
                .iter()
                .map(|sample| sample.operations as f64 / time(sample).as_secs_f64().max(1e-9))
                .sum()
        };
        let sum = |time: fn(&Sample) -> Duration| -> f64 {
            samples.iter().map(|sample| time(sample).as_secs_f64()).sum()
        };
        let operations: u64 = samples.iter().map(|sample| sample.operations).sum();
        Rates {
            per_second: rate(|sample| sample.wall),
            cpu_us: sum(|sample| sample.cpu) * 1e6 / operations.max(1) as f64,
            per_cpu_second: rate(|sample| sample.cpu),
            on_cpu: sum(|sample| sample.cpu) / sum(|sample| sample.wall).max(1e-9),
        }
    }
}

/// Measures `count` things in each of `rounds`, after a round that does not count: everyone is
/// first, and everyone follows everyone. Returns the points of each.
pub(crate) fn in_turns<P>(
    (rounds, count): (usize, usize),
    progress: &Progress,
    mut point: impl FnMut(usize) -> LabResult<P>,
) -> LabResult<Vec<Vec<P>>> {
    let mut points: Vec<Vec<P>> = (0..count).map(|_| Vec::new()).collect();
    for round in 0..=rounds {
        for turn in 0..count {
            let turn = if round % 2 == 0 { turn } else { 2 * count - 1 - turn };
            let index = (turn + round / 2) % count;
            let point = point(index)?;
            if round > 0 {
                points[index].push(point);
            }
        }
        progress.advance(u64::from(round > 0));
    }
    Ok(points)
}

/// Ties the calling thread to a CPU. Where that is not allowed, it stays as it was.
pub(crate) fn pin(cpu: usize) {
    let mut set = CpuSet::new();
    if cpu < CpuSet::MAX_CPU {
        set.set(cpu);
        let _ = sched_setaffinity(None, &set);
    }
}

/// Lets the calling thread run on every CPU, whatever its parent was tied to.
pub(crate) fn unpin() {
    let mut set = CpuSet::new();
    (0..CpuSet::MAX_CPU).for_each(|cpu| set.set(cpu));
    let _ = sched_setaffinity(None, &set);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_of_threads_add_up() {
        let sample = |operations, wall, cpu| Sample {
            operations,
            wall: Duration::from_secs(wall),
            cpu: Duration::from_secs(cpu),
        };
        let rates = Rates::of(&[sample(100, 2, 1), sample(300, 3, 3)]);
        assert_eq!(rates.per_second, 150.0);
        assert_eq!(rates.per_cpu_second, 200.0);
        assert_eq!(rates.cpu_us, 10_000.0);
        assert_eq!(rates.on_cpu, 0.8);
        assert_eq!(Rates::of(&[]).per_second, 0.0);
    }
}
