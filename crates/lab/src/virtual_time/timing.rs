//! Timing of the devices of the reports: the product's own models where they fit a report's
//! baselines, and three more where they do not.
//!
//! - [`Timing::model`]: the disks and the remote storage of `forebay-device`
//! - [`Timing::affine`]: one or two serial links, each operation `overhead + bytes * rate`, and a
//!   latency behind the link. Two published rows fit it exactly.
//! - [`Timing::cached_disk`]: the disk with faster mechanics and a read cache in its own RAM.
//!
//! All take arrivals and give completions; none reads a clock or draws random numbers.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};

use forebay_core::Nanos;
use forebay_device::model::{Completed, Model, ModelCounters, ModelKind, ModelOp, ModelOpKind};

/// Costs of one direction of an [`Affine`] device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Link {
    /// Nanoseconds of the link for each command.
    pub(crate) overhead: f64,
    /// Nanoseconds of the link for each byte.
    pub(crate) per_byte: f64,
    /// Nanoseconds from leaving the link to completion.
    pub(crate) latency: f64,
}

/// A device of serial links.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Affine {
    pub(crate) read: Link,
    pub(crate) write: Link,
    /// Both directions share one link, and a sync excludes all else.
    pub(crate) shared: bool,
    /// Nanoseconds of a sync, after everything before it.
    pub(crate) sync: u64,
}

/// A disk of other mechanics than the modelled one, with a read cache.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct CachedDisk {
    /// Speed of the arm, the platters and the interface as a multiple of the model's.
    pub(crate) speed: f64,
    /// Blocks of 4 KiB in the disk's own cache; least recently used leave first. Reads that it
    /// holds cost no arm; writes do.
    pub(crate) cached_blocks: usize,
    /// Nanoseconds of a read that the cache answers.
    pub(crate) hit: u64,
}

enum Core {
    Hdd { model: Box<Model>, owners: HashMap<u64, u64> },
    Ssd(Box<Model>),
    Affine { spec: Affine, free: [u64; 2], all_done: u64, counters: ModelCounters },
    Cached { model: Box<Model>, owners: HashMap<u64, u64>, spec: CachedDisk, cache: Lru },
}

/// See the module. Operations are known by tokens that the caller chooses.
pub(crate) struct Timing {
    core: Core,
    known: BinaryHeap<Reverse<(Nanos, u64, u64)>>,
    order: u64,
    scratch: Vec<Completed>,
}

impl Timing {
    pub(crate) fn model(kind: ModelKind, capacity: u64) -> Self {
        let model = Box::new(Model::new(kind, capacity));
        Timing::of(match kind {
            ModelKind::Hdd7200 => Core::Hdd { model, owners: HashMap::new() },
            ModelKind::SataSsd
            | ModelKind::PcieSsd
            | ModelKind::Remote
            | ModelKind::RemoteGigabit => Core::Ssd(model),
        })
    }

    pub(crate) fn affine(spec: Affine) -> Self {
        let counters = ModelCounters::default();
        Timing::of(Core::Affine { spec, free: [0; 2], all_done: 0, counters })
    }

    pub(crate) fn cached_disk(spec: CachedDisk, capacity: u64) -> Self {
        Timing::of(Core::Cached {
            model: Box::new(Model::new(ModelKind::Hdd7200, capacity)),
            owners: HashMap::new(),
            spec,
            cache: Lru::new(spec.cached_blocks),
        })
    }

    fn of(core: Core) -> Self {
        Timing { core, known: BinaryHeap::new(), order: 0, scratch: Vec::new() }
    }

    fn know(&mut self, at: Nanos, token: u64) {
        self.order += 1;
        self.known.push(Reverse((at, self.order, token)));
    }

    /// An operation arrives. Its end comes out of [`Timing::advance`].
    pub(crate) fn submit(&mut self, now: Nanos, op: ModelOp, token: u64) {
        match &mut self.core {
            Core::Hdd { model, owners } => {
                let id = model.submit(now, op);
                owners.insert(id.0, token);
            }
            Core::Ssd(model) => {
                let (_, at) = model.submit_known(now, op);
                // The completion is known already, so it is not taken from the model.
                model.advance(now, &mut self.scratch);
                self.scratch.clear();
                self.know(at.unwrap_or(now), token);
            }
            Core::Affine { spec, free, all_done, counters } => {
                let at = spec.serve(now.0, &op, free, *all_done, counters);
                *all_done = at.max(*all_done);
                self.know(Nanos(at), token);
            }
            Core::Cached { model, owners, spec, cache } => {
                let hit = cache.access(&op);
                if hit && op.kind == ModelOpKind::Read {
                    let at = Nanos(now.0 + spec.hit);
                    self.know(at, token);
                } else {
                    let id = model.submit(Nanos((now.0 as f64 * spec.speed).round() as u64), op);
                    owners.insert(id.0, token);
                }
            }
        }
    }

    /// Whether single writes can be durable by themselves: SSDs can.
    pub(crate) fn writes_durably(&self) -> bool {
        matches!(self.core, Core::Ssd(_) | Core::Affine { .. })
    }

    /// Whether distance costs time.
    pub(crate) fn is_rotational(&self) -> bool {
        matches!(self.core, Core::Hdd { .. } | Core::Cached { .. })
    }

    /// When the next operation completes, unless another arrives before.
    pub(crate) fn next_event(&self) -> Option<Nanos> {
        let known = self.known.peek().map(|Reverse((at, ..))| *at);
        let model = match &self.core {
            Core::Hdd { model, .. } => model.next_event(),
            Core::Cached { model, spec, .. } => {
                model.next_event().map(|at| Nanos((at.0 as f64 / spec.speed).ceil() as u64 + 1))
            }
            Core::Ssd(_) | Core::Affine { .. } => None,
        };
        match (known, model) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        }
    }

    /// Lets time pass until `now` and appends the tokens of completed operations.
    pub(crate) fn advance(&mut self, now: Nanos, into: &mut Vec<u64>) {
        while let Some(&Reverse((at, _, token))) = self.known.peek()
            && at <= now
        {
            self.known.pop();
            into.push(token);
        }
        match &mut self.core {
            Core::Hdd { model, owners } => {
                model.advance(now, &mut self.scratch);
                into.extend(self.scratch.drain(..).filter_map(|done| owners.remove(&done.id.0)));
            }
            Core::Cached { model, owners, spec, .. } => {
                let now = Nanos((now.0 as f64 * spec.speed).round() as u64);
                model.advance(now, &mut self.scratch);
                into.extend(self.scratch.drain(..).filter_map(|done| owners.remove(&done.id.0)));
            }
            Core::Ssd(_) | Core::Affine { .. } => (),
        }
    }

    /// Returns the counters so far. The busy time of a faster disk is in its own seconds.
    pub(crate) fn counters(&self) -> ModelCounters {
        match &self.core {
            Core::Hdd { model, .. } | Core::Ssd(model) => model.counters(),
            Core::Affine { counters, .. } => *counters,
            Core::Cached { model, spec, .. } => {
                let mut counters = model.counters();
                counters.busy = counters.busy.div_f64(spec.speed);
                counters.read_busy = counters.read_busy.div_f64(spec.speed);
                counters
            }
        }
    }
}

impl Affine {
    fn serve(
        &self,
        now: u64,
        op: &ModelOp,
        free: &mut [u64; 2],
        all_done: u64,
        counters: &mut ModelCounters,
    ) -> u64 {
        let (link, len, own) = match op.kind {
            ModelOpKind::Sync => {
                let end = now.max(all_done) + self.sync;
                if self.shared {
                    *free = [end; 2];
                }
                counters.syncs += 1;
                return end;
            }
            ModelOpKind::Read => (&self.read, op.len, false),
            ModelOpKind::Write | ModelOpKind::DurableWrite | ModelOpKind::WriteZeroes => {
                (&self.write, op.len, !self.shared)
            }
            ModelOpKind::Discard => (&self.write, 0, !self.shared),
        };
        let service = (link.overhead + len as f64 * link.per_byte).round() as u64;
        let free = &mut free[usize::from(own)];
        *free = now.max(*free) + service;
        counters.busy += std::time::Duration::from_nanos(service);
        match op.kind {
            ModelOpKind::Read => {
                counters.reads += 1;
                counters.read_bytes += len;
            }
            ModelOpKind::Discard => counters.discards += 1,
            _ => {
                counters.writes += 1;
                counters.written_bytes += len;
            }
        }
        // As in the models of the device crate: a durable write ends as much later as a sync takes,
        // and does not delay other commands.
        let durable = if op.kind == ModelOpKind::DurableWrite { self.sync } else { 0 };
        *free + link.latency.round() as u64 + durable
    }
}

/// The least recently used replacement of so many blocks of 4 KiB.
struct Lru {
    capacity: usize,
    stamps: HashMap<u64, u64>,
    /// Uses in order, also those that a later use of the same block has replaced.
    uses: VecDeque<(u64, u64)>,
    next: u64,
}

impl Lru {
    fn new(capacity: usize) -> Self {
        Lru { capacity, stamps: HashMap::new(), uses: VecDeque::new(), next: 0 }
    }

    /// Uses the blocks of an operation; whether all were there.
    fn access(&mut self, op: &ModelOp) -> bool {
        let moves =
            matches!(op.kind, ModelOpKind::Read | ModelOpKind::Write | ModelOpKind::DurableWrite);
        if !moves || op.len == 0 {
            return false;
        }
        let mut all = true;
        for block in op.offset / 4096..(op.offset + op.len).div_ceil(4096) {
            self.next += 1;
            all &= self.stamps.insert(block, self.next).is_some();
            self.uses.push_back((block, self.next));
        }
        while self.stamps.len() > self.capacity || self.uses.len() > 4 * self.capacity + 64 {
            let Some((block, stamp)) = self.uses.pop_front() else { break };
            if self.stamps.get(&block) == Some(&stamp) {
                if self.stamps.len() > self.capacity {
                    self.stamps.remove(&block);
                } else {
                    self.uses.push_back((block, stamp));
                }
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(timing: &mut Timing, now: u64) -> Vec<u64> {
        let mut done = Vec::new();
        timing.advance(Nanos(now), &mut done);
        done
    }

    #[test]
    fn an_affine_device_serves_in_order_and_latency_overlaps() {
        let link = Link { overhead: 1000.0, per_byte: 1.0, latency: 500.0 };
        let mut timing =
            Timing::affine(Affine { read: link, write: link, shared: true, sync: 100 });
        timing.submit(Nanos(0), ModelOp::read(0, 1000), 1);
        timing.submit(Nanos(0), ModelOp::write(0, 1000), 2);
        assert_eq!(timing.next_event(), Some(Nanos(2500)));
        assert!(tokens(&mut timing, 2499).is_empty());
        assert_eq!(tokens(&mut timing, 2500), [1]);
        assert_eq!(tokens(&mut timing, 4500), [2]);
        timing.submit(Nanos(4500), ModelOp::sync(), 3);
        assert_eq!(timing.next_event(), Some(Nanos(4600)));
        assert_eq!(timing.counters().busy.as_nanos(), 4000);
    }

    #[test]
    fn a_disk_that_is_twice_as_fast_takes_half_the_time() {
        let spec = CachedDisk { speed: 2.0, cached_blocks: 0, hit: 0 };
        let mut fast = Timing::cached_disk(spec, 1 << 36);
        let mut plain = Timing::model(ModelKind::Hdd7200, 1 << 36);
        for timing in [&mut fast, &mut plain] {
            timing.submit(Nanos(0), ModelOp::read(1 << 35, 4096), 7);
        }
        let at = |timing: &Timing| timing.next_event().map_or(0, |at| at.0);
        assert!(at(&plain).abs_diff(2 * at(&fast)) <= 4, "{} {}", at(&plain), at(&fast));
        let end = at(&fast);
        assert_eq!(tokens(&mut fast, end), [7]);
    }

    #[test]
    fn the_cache_of_a_disk_keeps_what_was_used_last() {
        let mut lru = Lru::new(2);
        let mut read = |block: u64| lru.access(&ModelOp::read(block * 4096, 4096));
        assert_eq!([1, 2, 1, 3, 1, 2].map(&mut read), [false, false, true, false, true, false]);
        for round in 0..1000 {
            read(round % 2);
        }
        assert!(lru.uses.len() <= 4 * 2 + 65);
    }
}
