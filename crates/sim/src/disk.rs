//! A disk that completes operations in any order, forgets what was not synced, and has faults.
//!
//! Operations wait in one list for all lanes. The scheduler completes them one at a time, when
//! they are due; that is the moment at which they take effect.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use forebay_core::{Clock, Nanos};
use forebay_device::{
    Device, DeviceDone, DeviceError, DeviceErrorKind, DeviceOp, DeviceQueue, IoBuf, IoData, OpId,
    QueueContext,
};
use parking_lot::Mutex;

use crate::faults::{FaultPlan, Latency, happens};
use crate::image::{Image, Patch, PatchContent, PowerCut};
use crate::shared::Shared;
use crate::stamp::{self, SECTOR};
use crate::trace::{hash_bytes, mix};

/// What an operation does when it takes effect.
enum Effect {
    Read {
        offset: u64,
        buf: IoBuf,
    },
    Change {
        patch: Arc<Patch>,
        /// Sectors that took effect before the rest.
        early: BTreeSet<u64>,
        buf: Option<IoBuf>,
        what: &'static str,
    },
    Sync {
        before: u64,
    },
}

struct InFlight {
    id: u64,
    effect: Effect,
}

struct State {
    image: Image,
    rng: fastrand::Rng,
    plan: FaultPlan,
    latency: Latency,
    /// Keyed by the time at which they are due, then by their number.
    in_flight: BTreeMap<(Nanos, u64), InFlight>,
    done: BTreeMap<u64, DeviceDone>,
    wakers: BTreeMap<u64, Waker>,
    next_id: u64,
    order: u64,
    bad_sectors: Vec<u64>,
    slow_until: Nanos,
    outage_until: Nanos,
}

/// A simulated disk, shared by all lanes of one world.
pub struct SimDisk {
    name: Arc<str>,
    /// Number in the trace; 0 is the cache device.
    number: u64,
    size: u64,
    logical_block: u64,
    shared: Shared,
    state: Mutex<State>,
}

/// What a disk is made of.
pub struct DiskSpec {
    /// As the operator would name it.
    pub name: String,
    /// Number in the trace; 0 is the cache device.
    pub number: u64,
    /// Size in bytes, a multiple of the logical block.
    pub size: u64,
    /// 512 or 4096.
    pub logical_block: u64,
    /// How long operations take.
    pub latency: Latency,
    /// What goes wrong.
    pub plan: FaultPlan,
}

impl SimDisk {
    /// A disk of zeroes.
    pub fn new(spec: DiskSpec, shared: &Shared, rng: fastrand::Rng) -> Arc<Self> {
        Arc::new(SimDisk {
            name: spec.name.into(),
            number: spec.number,
            size: spec.size,
            logical_block: spec.logical_block,
            shared: shared.clone(),
            state: Mutex::new(State {
                image: Image::new(spec.size),
                rng,
                plan: spec.plan,
                latency: spec.latency,
                in_flight: BTreeMap::new(),
                done: BTreeMap::new(),
                wakers: BTreeMap::new(),
                next_id: 0,
                order: 1,
                bad_sectors: Vec::new(),
                slow_until: Nanos(0),
                outage_until: Nanos(0),
            }),
        })
    }

    /// When the next operation is due.
    pub fn next_due(&self) -> Option<Nanos> {
        self.state.lock().in_flight.keys().next().map(|key| key.0)
    }

    /// Operations that have started and not completed.
    pub fn in_flight(&self) -> usize {
        self.state.lock().in_flight.len()
    }

    /// Looks at the content, or presets it.
    pub fn with_image<R>(&self, look: impl FnOnce(&mut Image) -> R) -> R {
        look(&mut self.state.lock().image)
    }

    /// Replaces the plan of faults; what is broken stays broken unless `mend`.
    pub fn set_plan(&self, plan: FaultPlan, mend: bool) {
        let mut state = self.state.lock();
        state.plan = plan;
        if mend {
            state.bad_sectors.clear();
            state.slow_until = Nanos(0);
            state.outage_until = Nanos(0);
        }
    }

    /// One bit of a durable sector with stamped data flips. `false` if none was found.
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

    /// Completes the operation that is due first, if it is due now. `false` if there is none.
    pub fn complete_one(&self) -> bool {
        let waker = {
            let state = &mut *self.state.lock();
            let Some(entry) = state.in_flight.first_entry() else { return false };
            if entry.key().0 > self.shared.clock.now() {
                return false;
            }
            let operation = entry.remove();
            let done = self.take_effect(state, operation.id, operation.effect);
            state.done.insert(operation.id, done);
            state.wakers.remove(&operation.id)
        };
        if !self.shared.stopped()
            && let Some(waker) = waker
        {
            waker.wake();
        }
        true
    }

    fn error(&self, what: &'static str, offset: u64, kind: DeviceErrorKind) -> DeviceError {
        DeviceError {
            kind,
            device: self.name.clone(),
            what,
            offset,
            cause: "injected by the simulator".into(),
        }
    }

    fn take_effect(&self, state: &mut State, id: u64, effect: Effect) -> DeviceDone {
        let outage = self.shared.clock.now() < state.outage_until;
        let (kind, result, buf, hash) = match effect {
            Effect::Read { offset, mut buf } => {
                let result = self.complete_read(state, offset, &mut buf, outage);
                let hash = if result.is_ok() { hash_bytes(&buf) } else { 0 };
                ("read", result, Some(buf), hash)
            }
            Effect::Change { patch, early, buf, what } => {
                let result = self.complete_change(state, &patch, &early, what, outage);
                self.shared.tick();
                (what, result, buf, 0)
            }
            Effect::Sync { before } => {
                let result = self.complete_sync(state, before, outage);
                self.shared.tick();
                ("sync", result, None, 0)
            }
        };
        self.shared.event(
            "done",
            &[self.number, id, u64::from(result.is_ok()), hash],
            format_args!(
                "{} {kind} #{id} {}",
                self.name,
                if result.is_ok() { "ok" } else { "failed" }
            ),
        );
        DeviceDone { result, buf }
    }

    fn complete_read(
        &self,
        state: &mut State,
        offset: u64,
        buf: &mut IoBuf,
        outage: bool,
    ) -> Result<(), DeviceError> {
        let sectors = offset / SECTOR as u64..(offset + buf.len() as u64) / SECTOR as u64;
        if happens(state.plan.read_error, &mut state.rng) && !sectors.is_empty() {
            let sector = state.rng.u64(sectors.clone());
            if state.plan.bad_sectors {
                state.bad_sectors.push(sector);
            }
            self.shared.fault(
                "read error",
                &[self.number, sector],
                format_args!("{} sector {sector}", self.name),
            );
            return Err(self.error("read", offset, DeviceErrorKind::Io));
        }
        if outage || state.bad_sectors.iter().any(|bad| sectors.contains(bad)) {
            return Err(self.error("read", offset, DeviceErrorKind::Io));
        }
        self.show_some_early(state, sectors);
        state.image.read(offset, buf);
        Ok(())
    }

    /// A write in flight may be visible already, sector by sector; once seen it stays.
    fn show_some_early(&self, state: &mut State, sectors: Range<u64>) {
        let State { in_flight, image, rng, order, .. } = state;
        for other in in_flight.values_mut() {
            let Effect::Change { patch, early, .. } = &mut other.effect else { continue };
            let end = (patch.first + patch.sectors()).min(sectors.end);
            for sector in patch.first.max(sectors.start)..end {
                if rng.u32(0..4) == 0 && early.insert(sector) {
                    image.apply_sector(patch, sector, *order);
                    *order += 1;
                }
            }
        }
    }

    fn complete_change(
        &self,
        state: &mut State,
        patch: &Arc<Patch>,
        early: &BTreeSet<u64>,
        what: &'static str,
        outage: bool,
    ) -> Result<(), DeviceError> {
        let offset = patch.first * SECTOR as u64;
        let order = state.order;
        state.order += 1;
        if outage || happens(state.plan.write_error, &mut state.rng) {
            if !outage {
                self.shared.fault(
                    "write error",
                    &[self.number, patch.first],
                    format_args!("{} sector {}", self.name, patch.first),
                );
                state.image.process_killed(&patch.without(early), order, &mut state.rng);
            }
            return Err(self.error(what, offset, DeviceErrorKind::Io));
        }
        if happens(state.plan.lost_write, &mut state.rng) && self.taint_all(patch) {
            self.shared.fault(
                "lost write",
                &[self.number, patch.first],
                format_args!("{} sector {}", self.name, patch.first),
            );
            return Ok(());
        }
        if happens(state.plan.misdirected_write, &mut state.rng)
            && let Some(elsewhere) = self.misdirect(state, patch)
        {
            state.image.apply(&elsewhere, order);
            return Ok(());
        }
        state.bad_sectors.retain(|bad| !(patch.first..patch.first + patch.sectors()).contains(bad));
        for rest in patch.without(early) {
            state.image.apply(&rest, order);
        }
        Ok(())
    }

    fn complete_sync(
        &self,
        state: &mut State,
        before: u64,
        outage: bool,
    ) -> Result<(), DeviceError> {
        if outage || happens(state.plan.sync_error, &mut state.rng) {
            if !outage {
                self.shared.fault("sync error", &[self.number], format_args!("{}", self.name));
                let forgotten = state.image.forget_some(&mut state.rng);
                self.shared.forgot(self.number, forgotten);
            }
            return Err(self.error("sync", 0, DeviceErrorKind::Io));
        }
        state.image.sync(before);
        Ok(())
    }

    /// Taints every place whose data `patch` carries; `false` if it carries none.
    fn taint_all(&self, patch: &Patch) -> bool {
        let PatchContent::Data(bytes) = &patch.content else { return false };
        let mut any = false;
        for sector in bytes.as_chunks::<SECTOR>().0 {
            if let Some((place, _)) = stamp::read(sector, self.shared.seed) {
                self.shared.taint(place);
                any = true;
            }
        }
        any
    }

    /// The same data at another place where all sectors hold stamped data; taints both.
    fn misdirect(&self, state: &mut State, patch: &Patch) -> Option<Arc<Patch>> {
        let PatchContent::Data(bytes) = &patch.content else { return None };
        let (sectors, total) = (patch.sectors(), state.image.sectors());
        let aligned = total.checked_sub(sectors)? / 8;
        for _ in 0..64 {
            let first = state.rng.u64(0..=aligned) * 8;
            let target = first..first + sectors;
            let stamped = |sector| stamp::read(state.image.visible(sector), self.shared.seed);
            if first == patch.first || !target.clone().all(|sector| stamped(sector).is_some()) {
                continue;
            }
            if !self.taint_all(patch) {
                return None;
            }
            for (place, _) in target.filter_map(stamped) {
                self.shared.taint(place);
            }
            self.shared.fault(
                "misdirected write",
                &[self.number, patch.first, first],
                format_args!("{} sector {} went to {first}", self.name, patch.first),
            );
            return Some(Arc::new(Patch { first, content: PatchContent::Data(bytes.clone()) }));
        }
        None
    }

    /// Everything stops. `power`: the volatile write cache is lost in the given way; otherwise
    /// only the process died. Operations in flight are gone afterwards.
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

    /// What the operation will do, or why it is refused.
    fn prepare(
        &self,
        state: &State,
        op: DeviceOp,
    ) -> (Result<Effect, Option<IoBuf>>, u64, u64, &'static str) {
        let fits = |offset: u64, len: u64| {
            offset.is_multiple_of(self.logical_block)
                && len.is_multiple_of(self.logical_block)
                && offset.checked_add(len).is_some_and(|end| end <= self.size)
        };
        let change = |offset: u64, content, buf, what| {
            let patch = Arc::new(Patch { first: offset / SECTOR as u64, content });
            Effect::Change { patch, early: BTreeSet::new(), buf, what }
        };
        match op {
            DeviceOp::Read { offset, buf } => {
                let len = buf.len() as u64;
                let effect = if fits(offset, len) {
                    Ok(Effect::Read { offset, buf })
                } else {
                    Err(Some(buf))
                };
                (effect, offset, len, "read")
            }
            DeviceOp::Write { offset, data: IoData::Owned(buf) } => {
                let len = buf.len() as u64;
                let effect = if fits(offset, len) {
                    let content = PatchContent::Data(buf.to_vec().into());
                    Ok(change(offset, content, Some(buf), "write"))
                } else {
                    Err(Some(buf))
                };
                (effect, offset, len, "write")
            }
            DeviceOp::Write { offset, data: IoData::Log(buffer, range) } => {
                let len = range.len() as u64;
                let bytes = buffer.get(range).filter(|_| fits(offset, len));
                let effect = bytes
                    .map(|bytes| change(offset, PatchContent::Data(bytes.into()), None, "write"))
                    .ok_or(None);
                (effect, offset, len, "write")
            }
            DeviceOp::Sync => (Ok(Effect::Sync { before: state.order }), 0, 0, "sync"),
            DeviceOp::Discard { offset, len } => {
                // What a discarded range reads as is undefined: here nothing happens, or it is zeroed.
                let zeroed = match state.plan.discards_zero {
                    true => 1,
                    false => mix(self.shared.seed, state.next_id) & 1,
                };
                let effect = if fits(offset, len) {
                    let content = PatchContent::Zeroes(zeroed * len / SECTOR as u64);
                    Ok(change(offset, content, None, "discard"))
                } else {
                    Err(None)
                };
                (effect, offset, len, "discard")
            }
            DeviceOp::WriteZeroes { offset, len } => {
                let effect = if fits(offset, len) {
                    let content = PatchContent::Zeroes(len / SECTOR as u64);
                    Ok(change(offset, content, None, "write zeroes"))
                } else {
                    Err(None)
                };
                (effect, offset, len, "write zeroes")
            }
        }
    }

    fn check_overlap(&self, state: &State, patch: &Patch) {
        for other in state.in_flight.values() {
            if let Effect::Change { patch: other, .. } = &other.effect
                && other.overlaps(patch)
            {
                self.shared.complain(format!(
                    "{}: sectors {}..{} are written while {}..{} are on their way",
                    self.name,
                    patch.first,
                    patch.first + patch.sectors(),
                    other.first,
                    other.first + other.sectors(),
                ));
            }
        }
    }

    fn start(&self, op: DeviceOp) -> OpId {
        let state = &mut *self.state.lock();
        let id = state.next_id;
        state.next_id += 1;
        if self.shared.stopped() {
            // Nobody will ever see an answer.
            return OpId(id);
        }
        let (effect, offset, len, what) = self.prepare(state, op);
        let mut numbers = [self.number, id, offset, len, 0];
        let effect = match effect {
            Ok(effect) => effect,
            Err(buf) => {
                self.shared.complain(format!(
                    "{}: {what} of {len} bytes at {offset} is not possible",
                    self.name
                ));
                let result = Err(self.error(what, offset, DeviceErrorKind::Invalid));
                state.done.insert(id, DeviceDone { result, buf });
                return OpId(id);
            }
        };
        let changes = !matches!(effect, Effect::Read { .. });
        if let Effect::Change { patch, .. } = &effect {
            if state.plan.overlap_is_fault {
                self.check_overlap(state, patch);
            }
            if let PatchContent::Data(bytes) = &patch.content {
                numbers[4] = hash_bytes(bytes);
            }
        }
        let now = self.shared.clock.now();
        if happens(state.plan.slow_episode, &mut state.rng) {
            state.slow_until = now + state.latency.sample(2_000, &mut state.rng);
            self.shared.fault(
                "slow episode",
                &[self.number],
                format_args!("{} until {}", self.name, state.slow_until),
            );
        }
        if happens(state.plan.outage, &mut state.rng) {
            state.outage_until = now + state.latency.sample(2_000, &mut state.rng);
            self.shared.fault(
                "outage",
                &[self.number],
                format_args!("{} until {}", self.name, state.outage_until),
            );
        }
        let factor = if now < state.slow_until { 40 } else { 1 };
        let due = now + state.latency.sample(factor, &mut state.rng);
        self.shared.event(
            "start",
            &numbers,
            format_args!("{} {what} #{id} {offset}+{len}", self.name),
        );
        // The world may stop just before the operation reaches the disk, or just after.
        let early = state.rng.bool();
        let stopped = changes && self.shared.tick();
        if !(stopped && early) {
            state.in_flight.insert((due, id), InFlight { id, effect });
        }
        OpId(id)
    }

    fn poll(&self, id: OpId, context: &Context<'_>) -> Poll<DeviceDone> {
        let mut state = self.state.lock();
        if let Some(done) = state.done.remove(&id.0) {
            return Poll::Ready(done);
        }
        state.wakers.insert(id.0, context.waker().clone());
        Poll::Pending
    }

    fn forget(&self, id: OpId) {
        let mut state = self.state.lock();
        state.wakers.remove(&id.0);
        state.done.remove(&id.0);
    }
}

struct SimQueue(Arc<SimDisk>);

impl DeviceQueue for SimQueue {
    fn start(&self, op: DeviceOp) -> OpId {
        self.0.start(op)
    }

    fn poll_op(&self, id: OpId, context: &mut Context<'_>) -> Poll<DeviceDone> {
        self.0.poll(id, context)
    }

    fn forget(&self, id: OpId) {
        self.0.forget(id);
    }
}

/// The device that is handed to the engine.
pub struct DiskHandle(pub Arc<SimDisk>);

impl Device for DiskHandle {
    fn name(&self) -> &str {
        &self.0.name
    }

    fn size(&self) -> u64 {
        self.0.size
    }

    fn logical_block(&self) -> u64 {
        self.0.logical_block
    }

    fn open_queue(&self, _context: &QueueContext) -> Result<Rc<dyn DeviceQueue>, DeviceError> {
        Ok(Rc::new(SimQueue(self.0.clone())))
    }
}
