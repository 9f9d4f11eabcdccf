//! The device with the timing of the model.
//!
//! The data is stored in the inner device and is transferred when an operation starts. The
//! operation ends when both the transfer and its time in the model have ended. So a read returns
//! the content at its start, and a write is visible at once to operations that do not wait for it,
//! as with any operations in flight.
//!
//! All queues share one model behind one lock, because there is one arm or link. They must use the
//! same clock.

use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use forebay_core::{Clock, Nanos, Sectors};
use parking_lot::Mutex;
use uuid::Uuid;

use crate::api::{
    Claiming, Device, DeviceDone, DeviceError, DeviceOp, DeviceQueue, OpId, QueueContext,
};
use crate::displaced::Displaced;

use super::{Completed, Model, ModelCounters, ModelKind, ModelOp, ModelOpId, ModelOpKind};

/// A device with the data of an inner device and the timing of a model.
pub struct ModelledDevice {
    inner: Arc<dyn Device>,
    name: String,
    shared: Arc<Mutex<TimedState>>,
}

/// State shared by all lanes.
struct TimedState {
    model: Model,
    /// Queue and id of the operations whose completion time only [`Model::advance`] knows.
    owners: HashMap<ModelOpId, (u64, OpId)>,
    /// Completions of each queue that the queue has not collected yet.
    arrived: HashMap<u64, Vec<(Nanos, OpId)>>,
    next_queue: u64,
    completed: Vec<Completed>,
}

impl TimedState {
    /// Advances the time and assigns each completion to its queue.
    fn advance(&mut self, now: Nanos) {
        self.model.advance(now, &mut self.completed);
        for completed in self.completed.drain(..) {
            if let Some((queue, op)) = self.owners.remove(&completed.id)
                && let Some(arrived) = self.arrived.get_mut(&queue)
            {
                arrived.push((completed.at, op));
            }
        }
    }
}

impl ModelledDevice {
    /// Wraps `inner` with the timing of `kind`. The name is that of the kind, a colon and the name
    /// of `inner`.
    #[expect(clippy::new_ret_no_self, reason = "devices are always shared")]
    pub fn new(inner: Arc<dyn Device>, kind: ModelKind) -> Arc<dyn Device> {
        Arc::new(Self::with_counters(inner, kind))
    }

    /// Like [`ModelledDevice::new`], for callers that need [`ModelledDevice::counters`].
    pub fn with_counters(inner: Arc<dyn Device>, kind: ModelKind) -> Self {
        let shared = TimedState {
            model: Model::new(kind, inner.size()),
            owners: HashMap::new(),
            arrived: HashMap::new(),
            next_queue: 0,
            completed: Vec::new(),
        };
        ModelledDevice {
            name: format!("{kind}:{}", inner.name()),
            inner,
            shared: Arc::new(Mutex::new(shared)),
        }
    }

    /// Returns the counters of the model, for all lanes.
    pub fn counters(&self) -> ModelCounters {
        self.shared.lock().model.counters()
    }
}

impl Device for ModelledDevice {
    fn name(&self) -> &str {
        &self.name
    }

    fn size(&self) -> u64 {
        self.inner.size()
    }

    fn logical_block(&self) -> u64 {
        self.inner.logical_block()
    }

    fn sectors(&self) -> Sectors {
        self.inner.sectors()
    }

    fn writes_durably(&self) -> bool {
        !self.shared.lock().model.kind().is_rotational()
    }

    fn shrunk_to(&self) -> Option<u64> {
        self.inner.shrunk_to()
    }

    fn displaced(&self) -> Option<Displaced> {
        self.inner.displaced()
    }

    fn fenced(&self) -> Option<Arc<str>> {
        self.inner.fenced()
    }

    fn for_reading_only(&self) -> bool {
        self.inner.for_reading_only()
    }

    fn write_protected(&self) -> Option<Arc<str>> {
        self.inner.write_protected()
    }

    fn rotational(&self) -> Option<bool> {
        Some(self.shared.lock().model.kind().is_rotational())
    }

    fn identity(&self) -> Option<forebay_core::Identity> {
        self.inner.identity()
    }

    fn descriptor(&self) -> Option<OwnedFd> {
        self.inner.descriptor()
    }

    fn reread_partitions(&self) -> io::Result<()> {
        self.inner.reread_partitions()
    }

    fn write_evidence(&self) -> Option<forebay_core::Evidence> {
        self.inner.write_evidence()
    }

    fn evidence_may_wait(&self) -> bool {
        self.inner.evidence_may_wait()
    }

    fn holder(&self) -> Option<Uuid> {
        self.inner.holder()
    }

    fn claim(&self, volume: Uuid) -> Claiming {
        self.inner.claim(volume)
    }

    fn open_queue(&self, context: &QueueContext) -> Result<Rc<dyn DeviceQueue>, DeviceError> {
        let inner = self.inner.open_queue(context)?;
        let mut shared = self.shared.lock();
        let number = shared.next_queue;
        shared.next_queue += 1;
        shared.arrived.insert(number, Vec::new());
        drop(shared);
        Ok(Rc::new(ModelledQueue {
            inner,
            clock: context.clock.clone(),
            shared: self.shared.clone(),
            number,
            ops: RefCell::default(),
            known: RefCell::default(),
            unknown: Cell::new(0),
            due: RefCell::default(),
        }))
    }
}

/// State of the transfer to or from the inner device.
enum Transfer {
    /// The transfer is being started, within [`DeviceQueue::start`].
    Starting,
    Running(OpId),
    Ended(DeviceDone),
}

struct TimedTransfer {
    transfer: Transfer,
    /// Whether the operation's time in the model has passed.
    due: bool,
    waker: Option<Waker>,
}

/// Operations in flight, in reusable slots; an id includes the slot's use count.
#[derive(Default)]
struct InFlightTable {
    places: Vec<(u32, Option<TimedTransfer>)>,
    free: Vec<u32>,
}

impl InFlightTable {
    fn insert(&mut self, op: TimedTransfer) -> OpId {
        let place = self.free.pop().unwrap_or_else(|| {
            self.places.push((0, None));
            (self.places.len() - 1) as u32
        });
        let (uses, content) = &mut self.places[place as usize];
        *uses = uses.wrapping_add(1);
        *content = Some(op);
        OpId(u64::from(*uses) << 32 | u64::from(place))
    }

    fn get(&mut self, id: OpId) -> Option<&mut TimedTransfer> {
        let (uses, content) = self.places.get_mut(id.0 as u32 as usize)?;
        content.as_mut().filter(|_| u64::from(*uses) == id.0 >> 32)
    }

    fn remove(&mut self, id: OpId) -> Option<TimedTransfer> {
        self.get(id)?;
        let place = id.0 as u32;
        self.free.push(place);
        self.places.get_mut(place as usize)?.1.take()
    }
}

struct ModelledQueue {
    inner: Rc<dyn DeviceQueue>,
    clock: Arc<dyn Clock>,
    shared: Arc<Mutex<TimedState>>,
    number: u64,
    ops: RefCell<InFlightTable>,
    /// Operations whose completion time was known at once; no lock is needed to detect their end.
    known: RefCell<BinaryHeap<Reverse<(Nanos, u64)>>>,
    /// Number of this queue's operations that the model may still reorder.
    unknown: Cell<usize>,
    /// Scratch space.
    due: RefCell<Vec<(Nanos, OpId)>>,
}

impl From<&DeviceOp> for ModelOp {
    fn from(op: &DeviceOp) -> Self {
        let kind = match op {
            DeviceOp::Read { .. } => ModelOpKind::Read,
            DeviceOp::Write { .. } => ModelOpKind::Write,
            DeviceOp::DurableWrite { .. } => ModelOpKind::DurableWrite,
            DeviceOp::Sync => ModelOpKind::Sync,
            DeviceOp::Discard { .. } => ModelOpKind::Discard,
            DeviceOp::WriteZeroes { .. } => ModelOpKind::WriteZeroes,
        };
        let range = op.range().unwrap_or(0..0);
        ModelOp { kind, offset: range.start, len: range.end - range.start }
    }
}

impl ModelledQueue {
    fn arrive(&self, id: OpId, op: ModelOp) {
        let mut shared = self.shared.lock();
        // The clock is read under the lock, so that the arrivals of all lanes are in order of time.
        let now = self.clock.now();
        let (number, end) = shared.model.submit_known(now, op);
        match end {
            Some(end) => {
                // Completions with known times are not collected from the model.
                shared.advance(now);
                self.known.borrow_mut().push(Reverse((end, id.0)));
            }
            None => {
                shared.owners.insert(number, (self.number, id));
                self.unknown.set(self.unknown.get() + 1);
            }
        }
    }

    fn mark_due(&self, id: OpId) {
        let waker = match self.ops.borrow_mut().get(id) {
            Some(op) => {
                op.due = true;
                op.waker.take()
            }
            None => None,
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl DeviceQueue for ModelledQueue {
    fn start(&self, op: DeviceOp) -> OpId {
        let starting = TimedTransfer { transfer: Transfer::Starting, due: false, waker: None };
        let id = self.ops.borrow_mut().insert(starting);
        self.arrive(id, ModelOp::from(&op));
        // Start the transfer after the arrival, so that a copy to or from RAM overlaps with the
        // model's time instead of adding to it.
        let transfer = self.inner.start(op);
        if let Some(op) = self.ops.borrow_mut().get(id) {
            op.transfer = Transfer::Running(transfer);
        }
        id
    }

    fn poll_op(&self, id: OpId, context: &mut Context<'_>) -> Poll<DeviceDone> {
        let mut ops = self.ops.borrow_mut();
        // The ID was collected already or never existed, so it never completes.
        let Some(op) = ops.get(id) else { return Poll::Pending };
        if let Transfer::Running(inner) = op.transfer
            && let Poll::Ready(done) = self.inner.poll_op(inner, context)
        {
            op.transfer = Transfer::Ended(done);
        }
        if !op.due {
            match &mut op.waker {
                Some(waker) => waker.clone_from(context.waker()),
                none => *none = Some(context.waker().clone()),
            }
            return Poll::Pending;
        }
        if matches!(op.transfer, Transfer::Running(_)) {
            return Poll::Pending;
        }
        match ops.remove(id) {
            Some(TimedTransfer { transfer: Transfer::Ended(done), .. }) => Poll::Ready(done),
            _ => Poll::Pending,
        }
    }

    fn forget(&self, id: OpId) {
        let removed = self.ops.borrow_mut().remove(id);
        if let Some(TimedTransfer { transfer: Transfer::Running(inner), .. }) = removed {
            self.inner.forget(inner);
        }
    }

    fn drive(&self) {
        self.inner.drive();
        let now = self.clock.now();
        let mut due = self.due.take();
        let mut known = self.known.borrow_mut();
        while let Some(&Reverse((at, id))) = known.peek()
            && at <= now
        {
            due.push((at, OpId(id)));
            known.pop();
        }
        drop(known);
        if self.unknown.get() > 0 {
            let mut shared = self.shared.lock();
            shared.advance(now);
            if let Some(arrived) = shared.arrived.get_mut(&self.number) {
                self.unknown.set(self.unknown.get().saturating_sub(arrived.len()));
                due.append(arrived);
            }
        }
        for (_, id) in due.drain(..) {
            self.mark_due(id);
        }
        self.due.replace(due);
    }

    fn next_event(&self) -> Option<Nanos> {
        let known = self.known.borrow().peek().map(|Reverse((at, _))| *at);
        let unknown = || {
            let shared = self.shared.lock();
            let arrived = shared.arrived.get(&self.number).and_then(|arrived| arrived.first());
            // A lower bound: no operation of this queue completes before the model's next one.
            arrived.map(|(at, _)| *at).or_else(|| shared.model.next_event())
        };
        let modelled = if self.unknown.get() > 0 { unknown() } else { None };
        [self.inner.next_event(), known, modelled].into_iter().flatten().min()
    }
}

impl Drop for ModelledQueue {
    fn drop(&mut self) {
        self.shared.lock().arrived.remove(&self.number);
    }
}
