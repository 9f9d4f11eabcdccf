//! One lane's queue to a faulty device.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use forebay_core::{Clock, Nanos};
use rustix::io::Errno;

use super::Shared;
use super::control::Judged;
use super::held::{Drain, Patch};
use super::rules::{self, OpFate};
use crate::api::{DeviceDone, DeviceError, DeviceErrorKind, DeviceOp, DeviceQueue, OpId};
use crate::buffer::IoBuf;
use crate::data::IoData;
use crate::file::kind_of;
use crate::ram::{unknown, unpublished};
use crate::table::OpTable;

/// Interval of checks of the file while operations wait.
const TICK: Duration = Duration::from_millis(2);

enum OpPhase {
    /// The operation was not handed to the inner device yet.
    Waiting(WaitingOp),
    /// Handed to the inner device.
    Running(OpId, Then),
    /// Held writes are being written to the inner device; a sync follows.
    Draining {
        writes: Vec<OpId>,
        drain: Drain,
        error: Option<DeviceError>,
    },
    Ended(DeviceDone),
}

struct WaitingOp {
    op: DeviceOp,
    since: Nanos,
    judged: Judged,
    waker: Option<Waker>,
}

/// The step after the inner device has finished.
enum Then {
    /// Return the result of the inner operation.
    Give,
    /// Fail nevertheless, and return the buffer.
    Fail(DeviceError, Option<IoBuf>),
    /// Overlay the data with the writes that were held when the read started.
    Patch(Vec<Patch>),
    /// The held writes are on the device now.
    Settle(Drain),
}

/// One lane's queue to a faulty device.
pub(super) struct FaultyQueue {
    inner: Rc<dyn DeviceQueue>,
    shared: Arc<Shared>,
    clock: Arc<dyn Clock>,
    ops: RefCell<OpTable<OpPhase>>,
    /// The operations in [`OpPhase::Waiting`].
    waiting: RefCell<Vec<OpId>>,
    /// The operations whose results were abandoned.
    orphans: RefCell<Vec<OpId>>,
}

impl FaultyQueue {
    pub(super) fn new(
        inner: Rc<dyn DeviceQueue>,
        shared: Arc<Shared>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let (waiting, orphans) = (RefCell::default(), RefCell::default());
        FaultyQueue { inner, shared, clock, ops: RefCell::default(), waiting, orphans }
    }

    /// Checks the control file; returns the number of its version.
    fn look(&self, now: Nanos) -> u64 {
        let (edition, forget) = self.shared.control.look(now);
        if forget {
            self.shared.held.forget();
        }
        edition
    }

    fn judge(&self, op: &DeviceOp) -> Judged {
        self.shared.control.judge(&self.shared.shape.name, &rules::Shape::of(op))
    }

    /// Returns the result of an operation that fails.
    fn failed(&self, op: DeviceOp, kind: DeviceErrorKind, cause: String) -> DeviceDone {
        let offset = op.range().map_or(0, |range| range.start);
        let error = self.shared.shape.error(kind, op.what(), offset, cause);
        DeviceDone { result: Err(error), buf: op.into_buf() }
    }

    /// Carries out a verdict.
    ///
    /// # Errors
    /// Begins an operation. Returns it if another operation is moving held writes: it must be tried
    /// again.
    fn begin(&self, op: DeviceOp, verdict: &Result<OpFate, String>) -> Result<OpPhase, DeviceOp> {
        let injected = |errno| {
            let error = io::Error::from(errno);
            (kind_of(&error), format!("{error} (injected)"))
        };
        if let Err(error) = self.shared.shape.check_op(&op) {
            return Ok(OpPhase::Ended(DeviceDone { result: Err(error), buf: op.into_buf() }));
        }
        match verdict {
            Ok(OpFate::Pass | OpFate::Hang) => self.pass(op),
            Ok(OpFate::Fail(errno)) => {
                let (kind, cause) = injected(*errno);
                Ok(OpPhase::Ended(self.failed(op, kind, cause)))
            }
            Ok(OpFate::Tear(bytes)) => {
                let (kind, cause) = injected(Errno::IO);
                Ok(self.tear(op, *bytes, kind, cause))
            }
            Err(cause) => Ok(OpPhase::Ended(self.failed(op, DeviceErrorKind::Io, cause.clone()))),
        }
    }

    /// Returns whether writes are held. After the file stops requesting this, they are held until a
    /// sync has moved the earlier ones, because later writes must not overtake them.
    fn holds(&self) -> bool {
        self.shared.control.is_volatile() || !self.shared.held.is_empty()
    }

    fn pass(&self, op: DeviceOp) -> Result<OpPhase, DeviceOp> {
        let held = &self.shared.held;
        if !self.holds() {
            return Ok(OpPhase::Running(self.inner.start(op), Then::Give));
        }
        let done = |result, buf| OpPhase::Ended(DeviceDone { result, buf });
        Ok(match op {
            DeviceOp::Read { offset, ref buf } => {
                let patches = held.patches(offset, buf.len() as u64);
                OpPhase::Running(self.inner.start(op), Then::Patch(patches))
            }
            DeviceOp::Write { offset, data: IoData::Owned(buf) } => {
                held.put(offset, &buf);
                done(Ok(()), Some(buf))
            }
            DeviceOp::Write { offset, data: IoData::Log(log, range) } => {
                let result = match log.get(range) {
                    Some(bytes) => {
                        held.put(offset, bytes);
                        Ok(())
                    }
                    None => Err(unpublished(&self.shared.shape, offset)),
                };
                done(result, None)
            }
            DeviceOp::Sync => match held.drain(0..u64::MAX) {
                Some(drain) => self.drain(drain),
                None => return Err(op),
            },
            DeviceOp::DurableWrite { offset, ref log, ref range } => {
                let Some(bytes) = log.get(range.clone()) else {
                    return Ok(done(Err(unpublished(&self.shared.shape, offset)), None));
                };
                // The write is held before the drain starts, so that the drain includes it.
                held.put(offset, bytes);
                match held.drain(offset..offset + bytes.len() as u64) {
                    Some(drain) => self.drain(drain),
                    None => return Err(op),
                }
            }
            // The inner device does these immediately, as a write cache may.
            DeviceOp::Discard { offset, len } | DeviceOp::WriteZeroes { offset, len } => {
                match held.drain(offset..offset + len) {
                    Some(drain) => OpPhase::Running(self.inner.start(op), Then::Settle(drain)),
                    None => return Err(op),
                }
            }
        })
    }

    fn drain(&self, drain: Drain) -> OpPhase {
        let start =
            |(offset, buf)| self.inner.start(DeviceOp::Write { offset, data: IoData::Owned(buf) });
        let writes = drain.writes().into_iter().map(start).collect();
        OpPhase::Draining { writes, drain, error: None }
    }

    /// Writes the first bytes and fails.
    fn tear(&self, op: DeviceOp, bytes: u64, kind: DeviceErrorKind, cause: String) -> OpPhase {
        let offset = op.range().map_or(0, |range| range.start);
        let whole = |len: usize| {
            let bytes = bytes.min(len as u64);
            (bytes - bytes % self.shared.shape.logical_block) as usize
        };
        let part = match &op {
            DeviceOp::Write { data: IoData::Owned(buf), .. } => {
                Some(IoBuf::copy_from(&buf[..whole(buf.len())]))
            }
            DeviceOp::Write { data: IoData::Log(log, range), .. }
            | DeviceOp::DurableWrite { log, range, .. } => {
                log.get(range.clone()).map(|bytes| IoBuf::copy_from(&bytes[..whole(bytes.len())]))
            }
            _ => None,
        };
        let done = self.failed(op, kind, cause);
        match (part, done.result) {
            (Some(part), Err(error)) if !part.is_empty() => {
                if self.holds() {
                    self.shared.held.put(offset, &part);
                    return OpPhase::Ended(DeviceDone { result: Err(error), buf: done.buf });
                }
                let write = DeviceOp::Write { offset, data: IoData::Owned(part) };
                OpPhase::Running(self.inner.start(write), Then::Fail(error, done.buf))
            }
            (_, result) => OpPhase::Ended(DeviceDone { result, buf: done.buf }),
        }
    }

    /// Advances a phase; returns the phase if it has not ended.
    fn step(&self, phase: OpPhase, context: &mut Context<'_>) -> Result<DeviceDone, OpPhase> {
        match phase {
            OpPhase::Waiting(mut waiting) => {
                waiting.waker = Some(context.waker().clone());
                Err(OpPhase::Waiting(waiting))
            }
            OpPhase::Running(id, then) => match self.inner.poll_op(id, context) {
                Poll::Ready(done) => Ok(then.finish(done)),
                Poll::Pending => Err(OpPhase::Running(id, then)),
            },
            OpPhase::Draining { mut writes, drain, mut error } => {
                writes.retain(|id| match self.inner.poll_op(*id, context) {
                    Poll::Ready(done) => {
                        error = error.take().or(done.result.err());
                        false
                    }
                    Poll::Pending => true,
                });
                match error {
                    _ if !writes.is_empty() => Err(OpPhase::Draining { writes, drain, error }),
                    Some(error) => Ok(DeviceDone { result: Err(error), buf: None }),
                    None => {
                        let sync = self.inner.start(DeviceOp::Sync);
                        self.step(OpPhase::Running(sync, Then::Settle(drain)), context)
                    }
                }
            }
            OpPhase::Ended(done) => Ok(done),
        }
    }

    /// Returns whether a waiting operation may begin; decides again if the file has changed.
    fn is_due(&self, waiting: &mut WaitingOp, edition: u64, now: Nanos) -> bool {
        if waiting.judged.edition != edition {
            waiting.judged = self.judge(&waiting.op);
        }
        !matches!(waiting.judged.verdict, Ok(OpFate::Hang))
            && now >= waiting.since + waiting.judged.delay
    }

    /// Begins `id` if it may; returns the waker to call. `false`: it still waits.
    fn advance(&self, id: OpId, edition: u64, now: Nanos) -> (bool, Option<Waker>) {
        let mut ops = self.ops.borrow_mut();
        let Some(OpPhase::Waiting(waiting)) = ops.get_mut(id) else { return (true, None) };
        if !self.is_due(waiting, edition, now) {
            return (false, None);
        }
        let op = std::mem::replace(&mut waiting.op, DeviceOp::Sync);
        let phase = match self.begin(op, &waiting.judged.verdict) {
            Ok(phase) => phase,
            Err(op) => {
                waiting.op = op;
                return (false, None);
            }
        };
        let waker = waiting.waker.take();
        if let Some(entry) = ops.get_mut(id) {
            *entry = phase;
        }
        (true, waker)
    }
}

impl Then {
    fn finish(self, mut done: DeviceDone) -> DeviceDone {
        match self {
            Then::Give => {}
            Then::Fail(error, buf) => return DeviceDone { result: Err(error), buf },
            Then::Patch(patches) => {
                for (at, bytes) in patches {
                    let place = done.buf.as_mut().and_then(|buf| buf.get_mut(at..at + bytes.len()));
                    if let Some(place) = place {
                        place.copy_from_slice(&bytes);
                    }
                }
            }
            Then::Settle(drain) => {
                if done.result.is_ok() {
                    drain.settle();
                }
            }
        }
        done
    }
}

impl DeviceQueue for FaultyQueue {
    fn start(&self, op: DeviceOp) -> OpId {
        let now = self.clock.now();
        let edition = self.look(now);
        let judged = self.judge(&op);
        let mut waiting = WaitingOp { op, since: now, judged, waker: None };
        if self.is_due(&mut waiting, edition, now) {
            match self.begin(waiting.op, &waiting.judged.verdict) {
                Ok(phase) => return self.ops.borrow_mut().add(phase),
                Err(op) => waiting.op = op,
            }
        }
        let id = self.ops.borrow_mut().add(OpPhase::Waiting(waiting));
        self.waiting.borrow_mut().push(id);
        id
    }

    fn poll_op(&self, id: OpId, context: &mut Context<'_>) -> Poll<DeviceDone> {
        let mut ops = self.ops.borrow_mut();
        let Some(phase) = ops.get_mut(id) else {
            return Poll::Ready(unknown(&self.shared.shape));
        };
        let nothing = OpPhase::Ended(DeviceDone { result: Ok(()), buf: None });
        match self.step(std::mem::replace(phase, nothing), context) {
            Ok(done) => {
                ops.take(id);
                Poll::Ready(done)
            }
            Err(left) => {
                *phase = left;
                Poll::Pending
            }
        }
    }

    fn forget(&self, id: OpId) {
        self.orphans.borrow_mut().push(id);
    }

    fn drive(&self) {
        self.inner.drive();
        let mut nobody = Context::from_waker(Waker::noop());
        self.orphans.borrow_mut().retain(|id| self.poll_op(*id, &mut nobody).is_pending());
        if self.waiting.borrow().is_empty() {
            return;
        }
        let now = self.clock.now();
        let edition = self.look(now);
        let mut wakers = Vec::new();
        self.waiting.borrow_mut().retain(|id| {
            let (begun, waker) = self.advance(*id, edition, now);
            wakers.extend(waker);
            !begun
        });
        wakers.into_iter().for_each(Waker::wake);
    }

    fn next_event(&self) -> Option<Nanos> {
        let idle = self.waiting.borrow().is_empty() && self.orphans.borrow().is_empty();
        let tick = (!idle).then(|| self.clock.now() + TICK);
        [self.inner.next_event(), tick].into_iter().flatten().min()
    }
}

impl Drop for FaultyQueue {
    /// The inner device may outlive the queue, but its results can no longer be collected.
    fn drop(&mut self) {
        for phase in self.ops.get_mut().drain() {
            match phase {
                OpPhase::Running(id, _) => self.inner.forget(id),
                OpPhase::Draining { writes, .. } => {
                    writes.into_iter().for_each(|id| self.inner.forget(id));
                }
                OpPhase::Waiting(_) | OpPhase::Ended(_) => {}
            }
        }
    }
}
