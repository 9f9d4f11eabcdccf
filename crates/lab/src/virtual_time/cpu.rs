//! CPU time of software, which the virtual clock would make free.
//!
//! A request occupies the one CPU of its lane before it enters the engine. Requests queue for it
//! in order of arrival. Devices work meanwhile.

use forebay_core::Nanos;

use super::access::Access;

/// CPU time of a request, in nanoseconds.
///
/// The defaults are measurements of `forebay-lab engine` for a read hit and for a write over dirty
/// blocks, reclaim included (540 to 560 and 680 to 720 ns; over clean blocks it is 430), and the
/// additional time of a front end: the server's 1.5 and 1.7 us for each request of `forebay-lab
/// nbd` at depth 32, less the engine's. Each further block of a request has no front end and its
/// neighbour's cache lines.
#[derive(Clone, Copy, Debug, PartialEq, clap::Args)]
pub(crate) struct CpuCosts {
    /// CPU time of a block that is read, in ns
    #[arg(long, default_value_t = CpuCosts::default().cpu_read, value_name = "NS")]
    pub(crate) cpu_read: u64,
    /// CPU time of a block that is written, background work included, in ns
    #[arg(long, default_value_t = CpuCosts::default().cpu_write, value_name = "NS")]
    pub(crate) cpu_write: u64,
    /// CPU time of the front end for each request, in ns
    #[arg(long, default_value_t = CpuCosts::default().cpu_front, value_name = "NS")]
    pub(crate) cpu_front: u64,
    /// CPU time of each block of a request after its first, in ns
    #[arg(long, default_value_t = CpuCosts::default().cpu_more, value_name = "NS")]
    pub(crate) cpu_more: u64,
}

impl Default for CpuCosts {
    fn default() -> Self {
        CpuCosts { cpu_read: 560, cpu_write: 720, cpu_front: 1000, cpu_more: 400 }
    }
}

/// The CPU of a lane, or none.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cpu {
    costs: Option<CpuCosts>,
    free: Nanos,
}

impl Cpu {
    /// Requests enter at once: raw devices.
    pub(crate) fn none() -> Self {
        Cpu { costs: None, free: Nanos(0) }
    }

    pub(crate) fn new(costs: CpuCosts) -> Self {
        Cpu { costs: Some(costs), free: Nanos(0) }
    }

    /// The same, idle at `now`.
    pub(crate) fn starting(self, now: Nanos) -> Self {
        Cpu { free: now, ..self }
    }

    /// A request arrives; when it has had its CPU time.
    #[inline]
    pub(crate) fn take(&mut self, now: Nanos, access: &Access) -> Nanos {
        let Some(costs) = &self.costs else { return now };
        let first = if access.write { costs.cpu_write } else { costs.cpu_read };
        let more = (access.len / 4096).saturating_sub(1) * costs.cpu_more;
        let start = self.free.max(now);
        self.free = Nanos(start.0 + costs.cpu_front + first + more);
        self.free
    }
}
