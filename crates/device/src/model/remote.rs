//! Block storage behind a network: a link for each direction, and servers that work on many
//! operations at a time. Nothing depends on the address.
//!
//! A write passes the link, then a server takes it; a read is served, then its data passes the link
//! back. An operation takes a server for [`LATENCY`], whatever its length, and [`SERVERS`] of them
//! work at a time; it is assigned the one that is free first, in order of arrival. Small operations
//! are limited by the servers to 64,000 a second, large ones by the link.
//!
//! The rates of the links follow from Ethernet: a frame with 1,448 bytes of data (IPv4, TCP with
//! timestamps) takes 1,538 bytes on the wire, so 10 Gbit/s carry 1,177 MB/s of data, and 1 Gbit/s
//! 117.7. The other two figures are conventions: 1 ms lies between the 0.1 ms of a read and the 3.8
//! ms of a write of the small Ceph cluster in `docs/remote.md`, and 64 is the depth at which
//! writeback keeps an origin by default. A sync takes one more [`LATENCY`] after everything before
//! it, and blocks nothing. A write is durable when it ends.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use forebay_core::Nanos;

use super::{Completed, ModelCounters, ModelOp, ModelOpId, ModelOpKind, Pending};

/// The time of one operation in a server.
const LATENCY: Duration = Duration::from_millis(1);

/// Operations that are served at a time.
const SERVERS: u32 = 64;

/// Bytes per nanosecond of data on a link of 10 Gbit/s, and on one of 1 Gbit/s.
pub(super) const TEN_GIGABIT: f64 = 1.25 * 1448.0 / 1538.0;
pub(super) const GIGABIT: f64 = TEN_GIGABIT / 10.0;

/// The state of remote storage. The completion time of an operation is known when it arrives.
#[derive(Clone, Debug)]
pub(super) struct Remote {
    /// Bytes per nanosecond, for each direction.
    rate: f64,
    /// When the links to and from the servers become free.
    link_free: [Nanos; 2],
    /// When each server becomes free.
    servers: BinaryHeap<Reverse<Nanos>>,
    /// When all operations so far will have completed.
    all_done: Nanos,
    /// Completions not collected yet.
    pending: Pending,
    counters: ModelCounters,
}

impl Remote {
    pub(super) fn new(rate: f64) -> Self {
        Remote {
            rate,
            link_free: [Nanos(0); 2],
            servers: (0..SERVERS).map(|_| Reverse(Nanos(0))).collect(),
            all_done: Nanos(0),
            pending: Pending::default(),
            counters: ModelCounters::default(),
        }
    }

    /// Submits an operation and returns its completion time.
    pub(super) fn submit(&mut self, now: Nanos, id: ModelOpId, op: ModelOp) -> Nanos {
        let (to, from) = match op.kind {
            ModelOpKind::Read => (0, op.len),
            ModelOpKind::Write | ModelOpKind::DurableWrite => (op.len, 0),
            ModelOpKind::WriteZeroes | ModelOpKind::Discard | ModelOpKind::Sync => (0, 0),
        };
        let at = if op.kind == ModelOpKind::Sync {
            self.counters.count(&op, Duration::ZERO);
            now.max(self.all_done) + LATENCY
        } else {
            let arrived = self.pass(0, now, to);
            let served = self.serve(arrived);
            self.counters.count(&op, LATENCY / SERVERS);
            self.pass(1, served, from)
        };
        self.all_done = self.all_done.max(at);
        self.pending.push(Completed { at, id });
        at
    }

    /// Sends bytes in one direction; returns the time of their arrival.
    fn pass(&mut self, direction: usize, now: Nanos, bytes: u64) -> Nanos {
        if bytes == 0 {
            return now;
        }
        let free = &mut self.link_free[direction];
        *free = now.max(*free) + Duration::from_nanos((bytes as f64 / self.rate).round() as u64);
        *free
    }

    /// Assigns the server that is free first; returns the time at which it has finished.
    fn serve(&mut self, arrived: Nanos) -> Nanos {
        let Reverse(free) = self.servers.pop().unwrap_or(Reverse(arrived));
        let end = arrived.max(free) + LATENCY;
        self.servers.push(Reverse(end));
        end
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

    /// Submits all operations at time 0 and returns the completion times in order of arrival, in
    /// microseconds.
    fn times(kind: ModelKind, ops: &[ModelOp]) -> Vec<u64> {
        let mut model = Model::new(kind, 1 << 40);
        let time = |op: &ModelOp| model.submit_known(Nanos(0), *op).1.map_or(0, |at| at.0 / 1000);
        ops.iter().map(time).collect()
    }

    #[test]
    fn directions_have_links_of_their_own_and_a_sync_waits_for_all() {
        let (read, write) = (ModelOp::read(0, 1 << 20), ModelOp::write(1 << 39, 1 << 20));
        let all = [read, write, read, ModelOp::sync(), write];
        assert_eq!(times(ModelKind::Remote, &all), [1891, 1891, 2782, 3782, 2782]);
        assert_eq!(times(ModelKind::RemoteGigabit, &all), [9909, 9909, 18819, 19819, 18819]);
    }

    #[test]
    fn as_many_operations_are_served_at_a_time_as_there_are_servers() {
        let all = times(ModelKind::Remote, &[ModelOp::write(0, 512); 129]);
        assert!(all[63] < 1_100 && all[64] >= 2_000 && all[127] < 2_100 && all[128] >= 3_000);
    }
}
