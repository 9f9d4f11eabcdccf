//! The two SSDs: operations pass a serial link one after the other, taking `overhead + len / rate`
//! each, and complete a fixed time after they have left it.
//!
//! The overheads and rates exactly fit both the sequential throughput and the 4 KiB saturation of
//! measured devices. A SATA SSD has one link for both directions, a PCIe SSD one for each. Nothing
//! depends on the address, and garbage collection is not modelled. The limit of 32 commands of SATA
//! need not be modelled: 32 of the shortest keep the link busy for 177 us, longer than any latency,
//! so the link never waits for a command beyond the limit.
//!
//! Three figures are conventions without a measurement. A sync takes 200 us on SATA, where it waits
//! for all earlier commands and blocks all later ones (the flush of SATA is not a queued command),
//! and ends 50 us after all earlier commands on PCIe. A discard takes as long as a write of no
//! bytes. A durable write ends later than a plain one by the time of a sync, and blocks nothing:
//! with forced unit access it is an ordinary queued command.

use std::time::Duration;

use forebay_core::Nanos;

use super::{Completed, ModelCounters, ModelOp, ModelOpId, ModelOpKind, Pending};

/// The costs of one direction.
#[derive(Debug)]
struct LinkCosts {
    /// Nanoseconds for each command.
    overhead: f64,
    /// Bytes per nanosecond.
    rate: f64,
    /// Time from leaving the link to completion.
    latency: Duration,
}

/// The parameters of one SSD.
#[derive(Debug)]
pub(super) struct SsdSpec {
    read: LinkCosts,
    write: LinkCosts,
    /// SATA: both directions share a link, a sync excludes other commands, zeroes are written.
    sata: bool,
    sync: Duration,
}

const fn link(overhead_us: f64, megabytes_per_second: f64, latency_us: u64) -> LinkCosts {
    LinkCosts {
        overhead: overhead_us * 1000.0,
        rate: megabytes_per_second / 1000.0,
        latency: Duration::from_micros(latency_us),
    }
}

pub(super) static SATA: SsdSpec = SsdSpec {
    read: link(5.53, 280.65, 90),
    write: link(11.14, 271.09, 40),
    sata: true,
    sync: Duration::from_micros(200),
};

pub(super) static PCIE: SsdSpec = SsdSpec {
    read: link(4.11, 2077.5, 80),
    write: link(4.49, 1832.7, 20),
    sata: false,
    sync: Duration::from_micros(50),
};

/// An SSD's state. Service is first come, first served, so the completion time of an operation is
/// known when it arrives.
#[derive(Clone, Debug)]
pub(super) struct Ssd {
    spec: &'static SsdSpec,
    /// When each link becomes free; a shared link is the first.
    link_free: [Nanos; 2],
    /// When all commands so far will have completed.
    all_done: Nanos,
    /// Completions not collected yet.
    pending: Pending,
    counters: ModelCounters,
}

impl Ssd {
    pub(super) fn new(spec: &'static SsdSpec) -> Self {
        Ssd {
            spec,
            link_free: [Nanos(0); 2],
            all_done: Nanos(0),
            pending: Pending::default(),
            counters: ModelCounters::default(),
        }
    }

    /// Submits an operation and returns its completion time.
    pub(super) fn submit(&mut self, now: Nanos, id: ModelOpId, op: ModelOp) -> Nanos {
        let kind = match op.kind {
            ModelOpKind::WriteZeroes if !self.spec.sata => ModelOpKind::Discard,
            other => other,
        };
        let op = ModelOp { kind, ..op };
        let at = match kind {
            ModelOpKind::Sync => self.sync(now, &op),
            ModelOpKind::Read => self.transfer(now, &op, &self.spec.read, op.len),
            ModelOpKind::Write | ModelOpKind::WriteZeroes => {
                self.transfer(now, &op, &self.spec.write, op.len)
            }
            ModelOpKind::DurableWrite => {
                self.transfer(now, &op, &self.spec.write, op.len) + self.spec.sync
            }
            ModelOpKind::Discard => self.transfer(now, &op, &self.spec.write, 0),
        };
        self.all_done = self.all_done.max(at);
        self.pending.push(Completed { at, id });
        at
    }

    fn sync(&mut self, now: Nanos, op: &ModelOp) -> Nanos {
        let end = now.max(self.all_done) + self.spec.sync;
        if self.spec.sata {
            self.link_free = [end; 2];
            self.counters.count(op, self.spec.sync);
        } else {
            self.counters.count(op, Duration::ZERO);
        }
        end
    }

    fn transfer(&mut self, now: Nanos, op: &ModelOp, link: &LinkCosts, len: u64) -> Nanos {
        let service = (link.overhead + len as f64 / link.rate).round() as u64;
        let service = Duration::from_nanos(service);
        let own_link = !self.spec.sata && op.kind != ModelOpKind::Read;
        let free = &mut self.link_free[usize::from(own_link)];
        *free = now.max(*free) + service;
        let at = *free + link.latency;
        self.counters.count(op, service);
        at
    }

    pub(super) fn next_event(&self) -> Option<Nanos> {
        self.pending.next_event()
    }

    pub(super) fn advance(&mut self, now: Nanos, into: &mut Vec<Completed>) {
        self.pending.advance(now, into);
    }

    pub(super) fn counters(&self) -> ModelCounters {
        self.counters
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Model, ModelKind};
    use super::*;

    const CAPACITY: u64 = 1 << 30;

    /// Submits all operations at time 0 and returns the completion times in order of arrival, in
    /// microseconds.
    fn times(kind: ModelKind, ops: &[ModelOp]) -> Vec<u64> {
        let mut model = Model::new(kind, CAPACITY);
        ops.iter()
            .map(|op| model.submit_known(Nanos(0), *op).1.map_or(0, |at| at.0 / 1000))
            .collect()
    }

    #[test]
    fn directions_share_the_link_of_sata_and_not_of_pcie() {
        let (read, write) = (ModelOp::read(0, 4096), ModelOp::write(8192, 4096));
        assert_eq!(times(ModelKind::SataSsd, &[read, write]), [110, 86]);
        assert_eq!(times(ModelKind::SataSsd, &[write, read]), [66, 136]);
        assert_eq!(times(ModelKind::PcieSsd, &[read, write, read]), [86, 26, 92]);
    }

    #[test]
    fn a_sync_comes_after_everything_before_it() {
        let (read, sync) = (ModelOp::read(0, 4096), ModelOp::sync());
        assert_eq!(times(ModelKind::SataSsd, &[read, sync, read]), [110, 310, 420]);
        assert_eq!(times(ModelKind::PcieSsd, &[read, sync, read]), [86, 136, 92]);
    }

    #[test]
    fn zeroing_costs_data_on_sata_and_a_command_on_pcie() {
        let op = |kind| ModelOp { kind, offset: 0, len: 1 << 20 };
        for (model, zeroes_like) in
            [(ModelKind::SataSsd, ModelOpKind::Write), (ModelKind::PcieSsd, ModelOpKind::Discard)]
        {
            assert_eq!(
                times(model, &[op(ModelOpKind::WriteZeroes)]),
                times(model, &[op(zeroes_like)])
            );
            assert!(times(model, &[op(ModelOpKind::Discard)])[0] < 60);
        }
    }
}
