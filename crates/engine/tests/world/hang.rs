//! A device that hangs or fails on command, and recovers on command.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};

use forebay_device::{
    Device, DeviceDone, DeviceError, DeviceErrorKind, DeviceOp, DeviceQueue, OpId, QueueContext,
};
use parking_lot::Mutex;

/// The faults of operations that start from now on. Hung operations are carried out when the fault
/// ends.
#[derive(Default)]
pub struct Faults {
    pub reads_hang: AtomicBool,
    pub writes_hang: AtomicBool,
    pub syncs_hang: AtomicBool,
    pub writes_fail: AtomicBool,
    /// Writes and syncs that were carried out.
    pub writes: AtomicU64,
    pub syncs: AtomicU64,
    waiting: Mutex<Vec<Waker>>,
}

impl Faults {
    /// Makes all operations hang from now on, or none.
    pub fn hang(&self, hang: bool) {
        for kind in [&self.reads_hang, &self.writes_hang, &self.syncs_hang] {
            kind.store(hang, Ordering::SeqCst);
        }
        self.waiting.lock().drain(..).for_each(Waker::wake);
    }

    fn hangs(&self, op: &DeviceOp) -> bool {
        let kind = match op {
            DeviceOp::Read { .. } => &self.reads_hang,
            DeviceOp::Sync => &self.syncs_hang,
            _ => &self.writes_hang,
        };
        kind.load(Ordering::SeqCst)
    }
}

struct Hanging(Arc<dyn Device>, Arc<Faults>);

/// Wraps a device; returns it with its faults.
pub fn hanging(inner: Arc<dyn Device>) -> (Arc<dyn Device>, Arc<Faults>) {
    let faults: Arc<Faults> = Arc::default();
    (Arc::new(Hanging(inner, faults.clone())), faults)
}

impl Device for Hanging {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn size(&self) -> u64 {
        self.0.size()
    }

    fn logical_block(&self) -> u64 {
        self.0.logical_block()
    }

    fn open_queue(&self, context: &QueueContext) -> Result<Rc<dyn DeviceQueue>, DeviceError> {
        Ok(Rc::new(HangingQueue {
            inner: self.0.open_queue(context)?,
            faults: self.1.clone(),
            next: Cell::new(0),
            ops: RefCell::default(),
        }))
    }
}

enum State {
    Hangs(DeviceOp),
    Runs(OpId),
    Failed(DeviceDone),
}

struct HangingQueue {
    inner: Rc<dyn DeviceQueue>,
    faults: Arc<Faults>,
    next: Cell<u64>,
    ops: RefCell<HashMap<u64, State>>,
}

impl HangingQueue {
    fn begin(&self, op: DeviceOp) -> State {
        let write = !matches!(op, DeviceOp::Read { .. } | DeviceOp::Sync);
        if write && self.faults.writes_fail.load(Ordering::SeqCst) {
            let error = DeviceError {
                kind: DeviceErrorKind::Io,
                device: "hanging".into(),
                what: "write",
                offset: 0,
                cause: "told to fail".into(),
            };
            return State::Failed(DeviceDone { result: Err(error), buf: None });
        }
        match op {
            DeviceOp::Sync => self.faults.syncs.fetch_add(1, Ordering::SeqCst),
            _ if write => self.faults.writes.fetch_add(1, Ordering::SeqCst),
            _ => 0,
        };
        State::Runs(self.inner.start(op))
    }
}

impl DeviceQueue for HangingQueue {
    fn start(&self, op: DeviceOp) -> OpId {
        let id = self.next.get();
        self.next.set(id + 1);
        let state = if self.faults.hangs(&op) { State::Hangs(op) } else { self.begin(op) };
        self.ops.borrow_mut().insert(id, state);
        OpId(id)
    }

    fn poll_op(&self, id: OpId, context: &mut Context<'_>) -> Poll<DeviceDone> {
        let state = self.ops.borrow_mut().remove(&id.0).expect("it was started");
        let state = match state {
            State::Hangs(op) if self.faults.hangs(&op) => {
                self.faults.waiting.lock().push(context.waker().clone());
                self.ops.borrow_mut().insert(id.0, State::Hangs(op));
                return Poll::Pending;
            }
            State::Hangs(op) => self.begin(op),
            state => state,
        };
        match state {
            State::Failed(done) => Poll::Ready(done),
            State::Runs(inner) => match self.inner.poll_op(inner, context) {
                Poll::Pending => {
                    self.ops.borrow_mut().insert(id.0, State::Runs(inner));
                    Poll::Pending
                }
                ready => ready,
            },
            State::Hangs(_) => unreachable!("it has begun"),
        }
    }

    fn forget(&self, id: OpId) {
        if let Some(State::Runs(inner)) = self.ops.borrow_mut().remove(&id.0) {
            self.inner.forget(inner);
        }
    }

    fn drive(&self) {
        self.inner.drive();
    }
}
