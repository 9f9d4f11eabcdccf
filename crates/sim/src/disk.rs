//! A disk that completes operations in any order, loses unsynced writes in crashes, and has faults.
//!
//! Operations of all lanes wait in one list. The scheduler completes them one at a time when they
//! are due; they take effect at that moment.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::task::Waker;

use forebay_core::{Clock, Nanos};
use forebay_device::{DeviceDone, DisplacedKind, IoBuf};
use parking_lot::Mutex;

use crate::faults::{FaultPlan, LatencyModel};
use crate::image::{DiskImage, Patch, PowerCut};
use crate::protected::ProtectedPeriod;
use crate::shared::SimContext;
use crate::stamp::{self, SECTOR};

/// The effect of an operation.
pub(crate) enum Effect {
    Read {
        offset: u64,
        buf: IoBuf,
    },
    Change {
        patch: Arc<Patch>,
        /// Sectors that took effect earlier than the rest.
        early: BTreeSet<u64>,
        buf: Option<IoBuf>,
        what: &'static str,
        /// Whether the change is durable when it completes.
        durable: bool,
    },
    Sync {
        before: u64,
    },
}

impl Effect {
    /// Returns a change that has not taken effect yet.
    pub(crate) fn change(patch: Arc<Patch>, buf: Option<IoBuf>, what: &'static str) -> Self {
        Effect::Change { patch, early: BTreeSet::new(), buf, what, durable: false }
    }
}

/// The fate of an operation in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// The operation takes effect, unless a fault intervenes.
    Normal,
    /// The operation succeeds, but its caller no longer waits for it.
    Abandoned,
    /// The operation fails: it has timed out, or its connection was lost.
    Fails,
    /// A change that has been reported as failed, and still takes effect.
    Late,
}

pub(crate) struct PendingEffect {
    pub(crate) id: u64,
    pub(crate) effect: Effect,
    pub(crate) fate: Fate,
}

pub(crate) struct State {
    pub(crate) image: DiskImage,
    pub(crate) rng: fastrand::Rng,
    pub(crate) plan: FaultPlan,
    pub(crate) latency: LatencyModel,
    /// Operations, keyed by due time, then by number.
    pub(crate) in_flight: BTreeMap<(Nanos, u64), PendingEffect>,
    pub(crate) done: BTreeMap<u64, DeviceDone>,
    pub(crate) wakers: BTreeMap<u64, Waker>,
    pub(crate) next_id: u64,
    pub(crate) order: u64,
    pub(crate) bad_sectors: Vec<u64>,
    /// Sectors that stay unreadable until they are written, even when other faults have been
    /// repaired.
    pub(crate) rotten: BTreeSet<u64>,
    /// Sectors that cannot be written until the disk is repaired, and whether they can be read.
    pub(crate) bad_spots: BTreeMap<u64, bool>,
    /// The reason why the path no longer leads to the disk.
    pub(crate) displaced: Option<DisplacedKind>,
    pub(crate) slow_until: Nanos,
    pub(crate) outage_until: Nanos,
    pub(crate) hung_until: Nanos,
    /// The period in which the disk refuses writes.
    pub(crate) protection: ProtectedPeriod,
    /// The time before which there is no connection.
    pub(crate) away_until: Nanos,
    /// Whether a connection was lost while changes were not synced, so that the next sync fails.
    pub(crate) doubtful: bool,
    /// Queues of the client.
    pub(crate) queues: usize,
    /// Number of changes of the content, as the modification time of a file would reveal it.
    pub(crate) changes: u64,
}

/// A simulated disk, shared by all lanes of one world.
pub struct SimDisk {
    pub(crate) name: Arc<str>,
    /// Number in the trace; 0 is the cache device.
    pub(crate) number: u64,
    pub(crate) logical_block: u64,
    pub(crate) shared: SimContext,
    pub(crate) state: Mutex<State>,
}

/// The properties of a disk.
pub struct DiskSpec {
    /// The name by which an operator knows the disk.
    pub name: String,
    /// Number in the trace; 0 is the cache device.
    pub number: u64,
    /// Size in bytes, a multiple of the logical block.
    pub size: u64,
    /// 512 or 4096.
    pub logical_block: u64,
    /// Latency of operations.
    pub latency: LatencyModel,
    /// The faults of the disk.
    pub plan: FaultPlan,
}

impl SimDisk {
    /// Creates a disk of zeroes.
    pub fn new(spec: DiskSpec, shared: &SimContext, rng: fastrand::Rng) -> Arc<Self> {
        Arc::new(SimDisk {
            name: spec.name.into(),
            number: spec.number,
            logical_block: spec.logical_block,
            shared: shared.clone(),
            state: Mutex::new(State {
                image: DiskImage::new(spec.size),
                rng,
                plan: spec.plan,
                latency: spec.latency,
                in_flight: BTreeMap::new(),
                done: BTreeMap::new(),
                wakers: BTreeMap::new(),
                next_id: 0,
                order: 1,
                bad_sectors: Vec::new(),
                rotten: BTreeSet::new(),
                bad_spots: BTreeMap::new(),
                displaced: None,
                slow_until: Nanos(0),
                outage_until: Nanos(0),
                hung_until: Nanos(0),
                protection: ProtectedPeriod::default(),
                away_until: Nanos(0),
                doubtful: false,
                queues: 0,
                changes: 0,
            }),
        })
    }

    /// Returns when the next operation is due.
    pub fn next_due(&self) -> Option<Nanos> {
        self.state.lock().in_flight.keys().next().map(|key| key.0)
    }

    /// Returns the number of operations in flight.
    pub fn in_flight(&self) -> usize {
        self.state.lock().in_flight.len()
    }

    /// Returns whether any operation in flight changes the disk.
    pub fn changes_in_flight(&self) -> bool {
        let state = self.state.lock();
        state.in_flight.values().any(|one| matches!(one.effect, Effect::Change { .. }))
    }

    /// Accesses the content, to examine or preset it.
    pub fn with_image<R>(&self, look: impl FnOnce(&mut DiskImage) -> R) -> R {
        look(&mut self.state.lock().image)
    }

    /// Returns the number of changes to the content so far.
    pub(crate) fn changes(&self) -> u64 {
        self.state.lock().changes
    }

    /// Sets the number of changes of the content, after a change that bypassed the disk.
    pub(crate) fn set_changes(&self, changes: u64) {
        self.state.lock().changes = changes;
    }

    /// Replaces the fault plan; existing faults persist unless `mend`.
    pub fn set_plan(&self, plan: FaultPlan, mend: bool) {
        let mut state = self.state.lock();
        state.plan = plan;
        if mend {
            state.bad_sectors.clear();
            state.slow_until = Nanos(0);
            state.outage_until = Nanos(0);
            state.protection.end(self.shared.clock.now());
            drop(state);
            self.hang(Nanos(0));
        }
    }

    /// Holds up all operations until `until`, including those in flight; a time in the past ends
    /// the hang.
    pub fn hang(&self, until: Nanos) {
        let state = &mut *self.state.lock();
        let held = state.hung_until;
        state.hung_until = until;
        let in_flight = std::mem::take(&mut state.in_flight);
        let now = self.shared.clock.now();
        let moved = in_flight.into_iter().map(|((due, id), operation)| {
            let due = if due >= held && held > now { now.max(until) } else { due.max(until) };
            ((due, id), operation)
        });
        state.in_flight = moved.collect();
    }

    /// Flips one bit of a durable sector with stamped data. Returns `false` if no such sector was
    /// found.
    pub fn rot(&self) -> bool {
        let mut state = self.state.lock();
        let sectors = state.image.sectors();
        for _ in 0..64 {
            let sector = state.rng.u64(0..sectors);
            let found = stamp::read(state.image.visible(sector), self.shared.seed);
            if let (true, Some((place, _))) = (state.image.is_settled(sector), found) {
                let bit = state.rng.usize(0..SECTOR * 8);
                state.image.flip(sector, bit);
                self.shared.taint(place);
                self.shared.fault(
                    "bit rot",
                    &[self.number, sector, bit as u64],
                    format_args!("{} sector {sector}, data of {place}", self.name),
                );
                return true;
            }
        }
        false
    }

    /// Makes a sector unreadable until it is written.
    pub(crate) fn make_unreadable(&self, sector: u64) {
        self.state.lock().rotten.insert(sector);
    }

    /// Returns whether any of these sectors is permanently unreadable.
    pub(crate) fn has_rotten(&self, sectors: Range<u64>) -> bool {
        self.state.lock().rotten.range(sectors).next().is_some()
    }

    /// Completes the earliest due operation. Returns `false` if none is due.
    pub fn complete_one(&self) -> bool {
        self.complete_until(self.shared.clock.now())
    }

    /// Completes all operations in flight immediately.
    pub fn complete_all(&self) {
        while self.complete_until(Nanos(u64::MAX)) {}
    }

    fn complete_until(&self, until: Nanos) -> bool {
        let waker = {
            let state = &mut *self.state.lock();
            let Some(entry) = state.in_flight.first_entry() else { return false };
            if entry.key().0 > until {
                return false;
            }
            let operation = entry.remove();
            let id = operation.id;
            if let (Fate::Late, Effect::Change { patch, .. }) = (operation.fate, &operation.effect)
            {
                state.changes += 1;
                self.execute_late(state, patch);
                return true;
            }
            let done = self.take_effect(state, operation);
            state.done.insert(id, done);
            state.wakers.remove(&id)
        };
        if !self.shared.stopped()
            && let Some(waker) = waker
        {
            waker.wake();
        }
        true
    }

    /// Ends all operations. `power`: the volatile write cache is lost in the given way; `None`:
    /// only the process died. No operations are in flight afterwards.
    pub fn crash(&self, power: Option<PowerCut>) {
        let state = &mut *self.state.lock();
        let in_flight: Vec<_> = std::mem::take(&mut state.in_flight)
            .into_values()
            .flat_map(|operation| match operation.effect {
                Effect::Change { patch, early, .. } => patch.without(&early),
                Effect::Read { .. } | Effect::Sync { .. } => Vec::new(),
            })
            .collect();
        state.done.clear();
        state.wakers.clear();
        state.doubtful = false;
        // These operations may have had an effect. Changes that a power cut reverts do not change
        // the times of a file.
        state.changes += u64::from(!in_flight.is_empty());
        match power {
            Some(cut) => state.image.power_cut(cut, &in_flight, &mut state.rng),
            None => {
                let order = state.order;
                state.order += 1;
                state.image.process_killed(&in_flight, order, &mut state.rng);
            }
        }
        self.shared.event(
            "crash",
            &[self.number, in_flight.len() as u64],
            format_args!("{}: {power:?}, {} changes in flight", self.name, in_flight.len()),
        );
    }
}
