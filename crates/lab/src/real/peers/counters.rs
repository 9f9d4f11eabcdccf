//! What the whole machine spent, and what the fast device was written, between two moments.

use forebay_core::SECTOR_SIZE;

use super::disk::Disk;
use super::host::get;
use crate::error::{LabResult, other};

/// Both at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Counters {
    /// Ticks in which the processors were not idle.
    busy: u64,
    /// Bytes written to the fast device; `None` where the kernel does not count them.
    ssd: Option<u64>,
}

/// The difference of two moments.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Spent {
    /// Seconds of all processors together.
    pub(crate) cpu_seconds: f64,
    pub(crate) ssd_bytes: Option<u64>,
}

impl Counters {
    pub(crate) fn now(ssd: &Disk) -> LabResult<Self> {
        let busy = busy_ticks(&get("/proc/stat")?)
            .ok_or_else(|| other("/proc/stat is not as it should be"))?;
        Ok(Counters { busy, ssd: ssd.bytes_written() })
    }

    /// What was spent since.
    pub(crate) fn since(self, before: Counters) -> Spent {
        let ticks = self.busy.saturating_sub(before.busy);
        Spent {
            cpu_seconds: ticks as f64 / rustix::param::clock_ticks_per_second().max(1) as f64,
            ssd_bytes: self.ssd.zip(before.ssd).map(|(after, before)| after.saturating_sub(before)),
        }
    }
}

/// Everything but idle, waiting for I/O, and what a hypervisor took: user, nice, system, irq and
/// softirq. Guests are part of user.
fn busy_ticks(stat: &str) -> Option<u64> {
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let ticks: Option<Vec<u64>> = line.split_whitespace().map(|word| word.parse().ok()).collect();
    let ticks = ticks?;
    [0, 1, 2, 5, 6].iter().map(|&index| ticks.get(index).copied()).sum()
}

/// The unit of the kernel's counters is the one of requests.
const _: () = assert!(SECTOR_SIZE == 512);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_time_does_not_count() {
        let stat = "cpu  10 2 300 99999 88888 4 5 77777 0 0\ncpu0 1 2 3 4 5 6 7 8 9 10\n";
        assert_eq!(busy_ticks(stat), Some(321));
        assert_eq!(busy_ticks("intr 1 2 3"), None);
        assert_eq!(busy_ticks("cpu  1 2 x 4 5 6 7"), None);
        assert_eq!(busy_ticks("cpu  1 2"), None);
    }

    #[test]
    fn what_is_not_counted_stays_unknown() {
        let before = Counters { busy: 100, ssd: Some(1000) };
        let spent = Counters { busy: 300, ssd: Some(5096) }.since(before);
        let ticks = rustix::param::clock_ticks_per_second() as f64;
        assert_eq!(spent, Spent { cpu_seconds: 200.0 / ticks, ssd_bytes: Some(4096) });
        assert_eq!(Counters { busy: 300, ssd: None }.since(before).ssd_bytes, None);
    }
}
