//! Submission of operations to a simulated disk: checks, numbers, and due times.

use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use forebay_core::evidence::{EvidenceKind, FileEvidence, FileTime};
use forebay_core::{Clock, Evidence, Identity, IdentityPart};
use forebay_device::{
    Device, DeviceDone, DeviceError, DeviceErrorKind, DeviceOp, DeviceQueue, Displaced, IoBuf,
    IoData, OpId, QueueContext,
};
use forebay_format::superblock::{COPY_A, COPY_B};

use crate::disk::{Effect, Fate, PendingEffect, SimDisk, State};
use crate::faults::happens;
use crate::image::{Patch, PatchContent};
use crate::stamp::SECTOR;
use crate::trace::{hash_bytes, mix};

impl SimDisk {
    /// Returns the effect of the operation, or its buffer if it is refused; then its offset, length
    /// and name.
    fn prepare(
        &self,
        state: &State,
        op: DeviceOp,
    ) -> (Result<Effect, Option<IoBuf>>, u64, u64, &'static str) {
        let size = state.image.sectors() * SECTOR as u64;
        let fits = |offset: u64, len: u64| {
            offset.is_multiple_of(self.logical_block)
                && len.is_multiple_of(self.logical_block)
                && offset.checked_add(len).is_some_and(|end| end <= size)
        };
        let change = |offset: u64, content, buf, what| {
            let patch = Arc::new(Patch { first: offset / SECTOR as u64, content });
            Effect::change(patch, buf, what)
        };
        let zeroes = |offset: u64, len: u64, what| {
            let content = PatchContent::Zeroes(len / SECTOR as u64);
            if fits(offset, len) { Ok(change(offset, content, None, what)) } else { Err(None) }
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
            DeviceOp::DurableWrite { offset, log, range } => {
                let len = range.len() as u64;
                let effect =
                    log.get(range).filter(|_| fits(offset, len)).ok_or(None).map(|bytes| {
                        let content = PatchContent::Data(bytes.into());
                        match change(offset, content, None, "durable write") {
                            Effect::Change { patch, early, buf, what, .. } => {
                                Effect::Change { patch, early, buf, what, durable: true }
                            }
                            other => other,
                        }
                    });
                (effect, offset, len, "durable write")
            }
            DeviceOp::Sync => (Ok(Effect::Sync { before: state.order }), 0, 0, "sync"),
            DeviceOp::Discard { offset, len } => {
                (zeroes(offset, len, "discard"), offset, len, "discard")
            }
            DeviceOp::WriteZeroes { offset, len } => {
                (zeroes(offset, len, "write zeroes"), offset, len, "write zeroes")
            }
        }
    }

    /// Sometimes begins a slow episode or an outage.
    fn begin_episodes(&self, state: &mut State) {
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
            // The answer will not be seen.
            return OpId(id);
        }
        let (effect, offset, len, what) = self.prepare(state, op);
        let mut numbers = [self.number, id, offset, len, 0];
        // Some disks cannot guarantee zeroes cheaply, and refuse the operation.
        let refuses = !state.plan.discards_zero && mix(self.shared.seed, self.number) & 1 == 0;
        if what == "discard" && refuses && effect.is_ok() {
            let result = Err(self.error(what, offset, DeviceErrorKind::NotSupported));
            state.done.insert(id, DeviceDone { result, buf: None });
            return OpId(id);
        }
        if what == "discard" && len == 0 {
            // The operation only queries whether the disk supports discards.
            state.done.insert(id, DeviceDone { result: Ok(()), buf: None });
            return OpId(id);
        }
        let mut effect = match effect {
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
        if let Effect::Change { buf, .. } = &mut effect
            && state.refuses_changes(self.shared.clock.now())
        {
            let result = Err(self.error(what, offset, DeviceErrorKind::ReadOnly));
            state.done.insert(id, DeviceDone { result, buf: buf.take() });
            return OpId(id);
        }
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
        self.begin_episodes(state);
        self.disturb_connection(state);
        let factor = if now < state.slow_until { 40 } else { 1 };
        let due = now.max(state.hung_until).max(state.away_until)
            + state.latency.sample(factor, &mut state.rng);
        self.shared.event(
            "start",
            &numbers,
            format_args!("{} {what} #{id} {offset}+{len} {:08x}", self.name, numbers[4] as u32),
        );
        // The world may stop just before the operation reaches the disk, or just after.
        let early = state.rng.bool();
        let is_root = self.number == 0 && len > 0 && [COPY_A, COPY_B].contains(&offset);
        if changes && is_root {
            self.shared.root_begins();
        }
        let stopped = changes && self.shared.tick();
        if !(stopped && early) {
            state.in_flight.insert((due, id), PendingEffect { id, effect, fate: Fate::Normal });
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
        let mut in_flight = state.in_flight.values_mut();
        if let Some(operation) = in_flight.find(|it| it.id == id.0 && it.fate == Fate::Normal) {
            operation.fate = Fate::Abandoned;
        }
    }
}

struct SimQueue(Arc<SimDisk>);

impl Drop for SimQueue {
    fn drop(&mut self) {
        let queues = &mut self.0.state.lock().queues;
        *queues = queues.saturating_sub(1);
    }
}

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

/// The device that the engine opens.
pub struct DiskHandle {
    /// The disk.
    pub disk: Arc<SimDisk>,
    /// Serial number of the disk.
    pub serial: String,
}

impl DiskHandle {
    /// Creates a handle whose serial number is the disk's name.
    pub fn new(disk: Arc<SimDisk>) -> Self {
        let serial = disk.name.to_string();
        DiskHandle { disk, serial }
    }
}

impl Device for DiskHandle {
    fn name(&self) -> &str {
        &self.disk.name
    }

    fn size(&self) -> u64 {
        self.disk.with_image(|image| image.sectors() * SECTOR as u64)
    }

    fn logical_block(&self) -> u64 {
        self.disk.logical_block
    }

    fn identity(&self) -> Option<Identity> {
        Identity::new([(IdentityPart::Serial, self.serial.clone())])
    }

    fn write_protected(&self) -> Option<Arc<str>> {
        self.disk.says_protected().then(|| "protected by the simulator".into())
    }

    fn displaced(&self) -> Option<Displaced> {
        self.disk.displaced()
    }

    /// Returns the exact number of changes on most disks, and nothing on some.
    fn write_evidence(&self) -> Option<Evidence> {
        if mix(self.disk.shared.seed, self.disk.number ^ 0xe71d) & 3 == 0 {
            return None;
        }
        let changes = FileTime::from(self.disk.changes());
        let kind = EvidenceKind::File(FileEvidence {
            part: false,
            inode: self.disk.number,
            size: 0,
            modified: changes,
            changed: changes,
        });
        Some(Evidence { kind, exact: true })
    }

    /// Chosen by the seed; some disks do not tell.
    fn rotational(&self) -> Option<bool> {
        [None, Some(true), Some(false), Some(false)]
            [(mix(self.disk.shared.seed, self.disk.number ^ 0x4074) & 3) as usize]
    }

    /// Returns whether writes can be durable on completion, which depends on the seed.
    fn writes_durably(&self) -> bool {
        mix(self.disk.shared.seed, self.disk.number) & 2 == 0
    }

    fn open_queue(&self, _context: &QueueContext) -> Result<Rc<dyn DeviceQueue>, DeviceError> {
        let mut state = self.disk.state.lock();
        // A new client does not know of earlier connections, but another lane of the same client
        // does.
        state.doubtful &= state.queues > 0;
        state.queues += 1;
        Ok(Rc::new(SimQueue(self.disk.clone())))
    }
}
