//! A device that fails, hangs or panics on command.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};

use forebay_device::{
    Device, DeviceDone, DeviceError, DeviceErrorKind, DeviceOp, DeviceQueue, IoData, OpId,
    QueueContext,
};
use parking_lot::Mutex;

/// Kinds of operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    Read,
    Write,
    /// Counts as a write too.
    Discard,
    Sync,
}

struct Rule {
    what: What,
    range: Range<u64>,
    /// How many more operations the rule applies to.
    left: u64,
    fault: Fault,
}

#[derive(Clone, Copy)]
enum Fault {
    Fails(DeviceErrorKind),
    Hangs,
    Panics,
}

const FAILS: Fault = Fault::Fails(DeviceErrorKind::Io);

/// The faults of a device at present.
#[derive(Default)]
pub struct Faults {
    rules: Mutex<Vec<Rule>>,
    hung: Mutex<Vec<Waker>>,
    discards: AtomicU64,
}

impl Faults {
    fn add(&self, what: What, range: Range<u64>, left: u64, fault: Fault) {
        self.rules.lock().push(Rule { what, range, left, fault });
    }

    /// Makes every operation of these kinds fail.
    pub fn fail(&self, kinds: &[What]) {
        kinds.iter().for_each(|what| self.add(*what, 0..u64::MAX, u64::MAX, FAILS));
    }

    /// Makes the next `times` operations of this kind fail.
    pub fn fail_next(&self, what: What, times: u64) {
        self.add(what, 0..u64::MAX, times, FAILS);
    }

    /// Makes every operation of this kind fail that overlaps the range.
    pub fn fail_in(&self, what: What, range: Range<u64>) {
        self.add(what, range, u64::MAX, FAILS);
    }

    /// Makes operations of this kind unsupported.
    pub fn refuse(&self, what: What) {
        self.add(what, 0..u64::MAX, u64::MAX, Fault::Fails(DeviceErrorKind::NotSupported));
    }

    /// Returns whether a discard was attempted, successful or not.
    pub fn has_seen_discards(&self) -> bool {
        self.discards.load(Ordering::SeqCst) > 0
    }

    /// Makes the next `times` operations of this kind that overlap the range panic, in the task
    /// that starts them.
    pub fn panic_in(&self, what: What, range: Range<u64>, times: u64) {
        self.add(what, range, times, Fault::Panics);
    }

    /// Makes every operation of these kinds hang.
    pub fn hang(&self, kinds: &[What]) {
        kinds.iter().for_each(|what| self.add(*what, 0..u64::MAX, u64::MAX, Fault::Hangs));
    }

    /// Removes all faults, and lets hung operations continue.
    pub fn heal(&self) {
        self.rules.lock().clear();
        std::mem::take(&mut *self.hung.lock()).into_iter().for_each(Waker::wake);
    }

    /// Returns the fault that an operation meets, if any.
    fn meets(&self, op: &DeviceOp) -> Option<Fault> {
        let (what, range) = match op {
            DeviceOp::Read { offset, buf } => (What::Read, *offset..*offset + buf.len() as u64),
            DeviceOp::Write { offset, data } => {
                let len = match data {
                    IoData::Owned(buf) => buf.len(),
                    IoData::Log(_, range) => range.len(),
                };
                (What::Write, *offset..*offset + len as u64)
            }
            DeviceOp::DurableWrite { offset, range, .. } => {
                (What::Write, *offset..*offset + range.len() as u64)
            }
            DeviceOp::WriteZeroes { offset, len } => (What::Write, *offset..*offset + *len),
            DeviceOp::Discard { offset, len } => {
                self.discards.fetch_add(u64::from(*len > 0), Ordering::SeqCst);
                (What::Discard, *offset..*offset + (*len).max(1))
            }
            DeviceOp::Sync => (What::Sync, 0..1),
        };
        let mut rules = self.rules.lock();
        let meets = |rule: &&mut Rule| {
            let overlaps = rule.range.start < range.end && range.start < rule.range.end;
            let concerns = rule.what == what || (rule.what, what) == (What::Write, What::Discard);
            concerns && rule.left > 0 && overlaps
        };
        let rule = rules.iter_mut().find(meets)?;
        rule.left -= 1;
        Some(rule.fault)
    }
}

/// Wraps a device so that its operations can fail, hang or panic.
pub fn faulty(inner: Arc<dyn Device>) -> (Arc<dyn Device>, Arc<Faults>) {
    let faults: Arc<Faults> = Arc::default();
    (Arc::new(Faulty(inner, faults.clone())), faults)
}

struct Faulty(Arc<dyn Device>, Arc<Faults>);

impl Device for Faulty {
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
        let (inner, faults) = (self.0.open_queue(context)?, self.1.clone());
        Ok(Rc::new(FaultyQueue { inner, faults, ops: RefCell::default() }))
    }
}

enum State {
    Passed(OpId),
    Failed(DeviceDone),
    Hung(DeviceOp),
}

struct FaultyQueue {
    inner: Rc<dyn DeviceQueue>,
    faults: Arc<Faults>,
    /// The operations under way by number, and the last number.
    ops: RefCell<(HashMap<u64, State>, u64)>,
}

impl FaultyQueue {
    fn begin(&self, op: DeviceOp) -> State {
        match self.faults.meets(&op) {
            None => State::Passed(self.inner.start(op)),
            Some(Fault::Hangs) => State::Hung(op),
            Some(Fault::Panics) => panic!("on purpose"),
            Some(Fault::Fails(kind)) => {
                let buf = match op {
                    DeviceOp::Read { buf, .. } => Some(buf),
                    DeviceOp::Write { data: IoData::Owned(buf), .. } => Some(buf),
                    _ => None,
                };
                let (device, cause) = ("faulty".into(), "told to fail".into());
                let error = DeviceError { kind, device, what: "it", offset: 0, cause };
                State::Failed(DeviceDone { result: Err(error), buf })
            }
        }
    }
}

impl DeviceQueue for FaultyQueue {
    fn start(&self, op: DeviceOp) -> OpId {
        let state = self.begin(op);
        let mut ops = self.ops.borrow_mut();
        ops.1 += 1;
        let id = ops.1;
        ops.0.insert(id, state);
        OpId(id)
    }

    fn poll_op(&self, id: OpId, context: &mut Context<'_>) -> Poll<DeviceDone> {
        let mut ops = self.ops.borrow_mut();
        let mut state = ops.0.remove(&id.0).expect("polled after its end");
        if let State::Hung(op) = state {
            state = self.begin(op);
            if matches!(state, State::Hung(_)) {
                self.faults.hung.lock().push(context.waker().clone());
            }
        }
        let polled = match state {
            State::Failed(done) => return Poll::Ready(done),
            State::Passed(inner) => self.inner.poll_op(inner, context),
            State::Hung(_) => Poll::Pending,
        };
        if polled.is_pending() {
            ops.0.insert(id.0, state);
        }
        polled
    }

    fn forget(&self, id: OpId) {
        if let Some(State::Passed(inner)) = self.ops.borrow_mut().0.remove(&id.0) {
            self.inner.forget(inner);
        }
    }
}
