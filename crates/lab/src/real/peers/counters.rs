//! CPU time of the whole machine, and bytes written to the fast device, between two moments.

use std::time::Duration;

use forebay_core::SECTOR_SIZE;

use super::disk::Disk;
use crate::error::LabResult;
use crate::process::machine_cpu;

/// Both at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Counters {
    /// CPU time of all processors.
    busy: Duration,
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
        Ok(Counters { busy: machine_cpu()?, ssd: ssd.bytes_written() })
    }

    /// Returns the difference to an earlier moment.
    pub(crate) fn since(self, before: Counters) -> Spent {
        Spent {
            cpu_seconds: self.busy.saturating_sub(before.busy).as_secs_f64(),
            ssd_bytes: self.ssd.zip(before.ssd).map(|(after, before)| after.saturating_sub(before)),
        }
    }
}

/// The unit of the kernel's counters is the one of requests.
const _: () = assert!(SECTOR_SIZE == 512);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_are_not_counted_stay_unknown() {
        let busy = Duration::from_secs;
        let before = Counters { busy: busy(1), ssd: Some(1000) };
        let spent = Counters { busy: busy(3), ssd: Some(5096) }.since(before);
        assert_eq!(spent, Spent { cpu_seconds: 2.0, ssd_bytes: Some(4096) });
        assert_eq!(Counters { busy: busy(3), ssd: None }.since(before).ssd_bytes, None);
    }
}
