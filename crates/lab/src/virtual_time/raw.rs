//! A bare device as a server.

use forebay_core::Nanos;
use forebay_device::model::ModelOp;

use crate::error::LabResult;

use super::access::Access;
use super::clients::Server;
use super::flushed::Flush;
use super::tally::Gauges;
use super::timing::Timing;

/// See the module. The device counts as the disk.
pub(crate) struct Raw {
    timing: Timing,
    now: Nanos,
    ended: Vec<u64>,
}

impl Raw {
    pub(crate) fn new(timing: Timing) -> Self {
        Raw { timing, now: Nanos(0), ended: Vec::new() }
    }
}

impl Server for Raw {
    fn now(&self) -> Nanos {
        self.now
    }

    #[inline]
    fn start(&mut self, client: u32, access: &Access) -> LabResult<bool> {
        let make = if access.write { ModelOp::write } else { ModelOp::read };
        self.timing.submit(self.now, make(access.offset, access.len), client.into());
        Ok(false)
    }

    #[inline]
    fn settle(&mut self, ended: &mut Vec<u32>) -> LabResult<()> {
        self.timing.advance(self.now, &mut self.ended);
        ended.extend(self.ended.drain(..).map(|client| client as u32));
        Ok(())
    }

    fn next_event(&self) -> Option<Nanos> {
        self.timing.next_event()
    }

    fn advance(&mut self, to: Nanos) {
        self.now = to;
    }

    fn gauges(&self) -> Gauges {
        let counters = self.timing.counters();
        Gauges {
            disk_read: counters.read_bytes,
            disk_written: counters.written_bytes,
            disk_busy: Nanos(counters.busy.as_nanos() as u64),
            disk_read_busy: Nanos(counters.read_busy.as_nanos() as u64),
            ..Gauges::default()
        }
    }
}

impl Flush for Raw {
    fn start_flush(&mut self, client: u32) {
        self.timing.submit(self.now, ModelOp::sync(), client.into());
    }
}

#[cfg(test)]
mod tests {
    use super::super::access::{Shape, Workload};
    use super::super::clients::{Span, run};
    use super::super::cpu::{Cpu, CpuCosts};
    use super::super::timing::{Affine, Link};
    use super::*;

    const LINK: Link = Link { overhead: 10_000.0, per_byte: 2.0, latency: 50_000.0 };

    fn per_second(depth: usize, cpu: Cpu) -> (f64, f64) {
        let spec = Affine { read: LINK, write: LINK, shared: true, sync: 0 };
        let workload = Workload {
            shape: Shape::Random,
            start: 0,
            span: 1 << 30,
            len: 4096,
            writes: 30,
            depth,
        };
        let mut raw = Raw::new(Timing::affine(spec));
        let found = run(&mut raw, cpu, workload, 1, Span::seconds(1.0)).expect("runs");
        assert_eq!(found.seconds, 1.0);
        let all = found.reads.mean() * found.reads.requests as f64
            + found.writes.mean() * found.writes.requests as f64;
        (found.requests() as f64, all / found.requests() as f64)
    }

    #[test]
    fn closed_loops_meet_the_closed_form() {
        let service = 10_000.0 + 4096.0 * 2.0;
        for depth in [1, 2, 3, 4, 16, 256] {
            let alone = service + 50_000.0;
            let expected = (depth as f64 / alone).min(1.0 / service) * 1e9;
            let (found, latency) = per_second(depth, Cpu::none());
            assert!((found / expected - 1.0).abs() < 0.01, "{depth}: {found}, not {expected}");
            // Little's law.
            let inside = found * latency / 1e9;
            assert!((inside / depth as f64 - 1.0).abs() < 0.01, "{depth}: {inside}");
        }
    }

    #[test]
    fn a_slow_cpu_is_the_bottleneck() {
        let costs = CpuCosts { cpu_read: 30_000, cpu_write: 60_000, cpu_front: 1_000, cpu_more: 0 };
        let (found, _) = per_second(64, Cpu::new(costs));
        let expected = 1e9 / (31_000.0 * 0.7 + 61_000.0 * 0.3);
        assert!((found / expected - 1.0).abs() < 0.02, "{found}, not {expected}");
    }

    #[test]
    fn requests_of_the_warm_up_are_counted_apart() {
        let spec = Affine { read: LINK, write: LINK, shared: true, sync: 0 };
        let (shape, span) = (Shape::Random, 1 << 30);
        let workload = Workload { shape, start: 0, span, len: 4096, writes: 100, depth: 2 };
        let mut raw = Raw::new(Timing::affine(spec));
        let time = Span { warm_up: 0.5, ..Span::seconds(1.0) };
        let found = run(&mut raw, Cpu::none(), workload, 1, time).expect("runs");
        let share = found.unmeasured_bytes as f64 / found.bytes() as f64;
        assert!((share - 0.5).abs() < 0.01, "{share}");
    }
}
