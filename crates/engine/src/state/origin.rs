//! A lane's queue to a volume's origin, and the time for which operations on it have been in
//! progress.
//!
//! An origin that does not answer must delay only its own volume. Tasks that would wait for it on
//! behalf of other volumes check `Volume::is_bound` first.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use forebay_core::why::WakeReason;
use forebay_core::{Clock, Nanos};
use forebay_device::{DeviceDone, DeviceError, DeviceErrorKind, DeviceOp, IoBuf, IoData, Queue};
use forebay_lane::LaneId;

use crate::stats::rest::Rest;

/// Operations that take longer are shown to the operator.
const SHOWN_AFTER: Duration = Duration::from_secs(5);

/// Time after which a slow operation keeps its volume's writers from taking the last free space. In
/// a small cache they would have taken it long before the origin counts as hung.
const LATE_AFTER: Duration = Duration::from_secs(1);

/// Time after which an operation counts as hung: it may never end. Reads count too, because a write
/// waits for a read of its range. A disk that flushes its own cache takes less.
const HUNG_AFTER: Duration = Duration::from_secs(10);

/// Time after which operators' commands no longer wait. A sleeping disk takes up to 15 s to spin up
/// and answer.
const GIVEN_UP_AFTER: Duration = Duration::from_secs(20);

/// The time at which the oldest operation of one lane began, in nanoseconds; 0 if none is in
/// progress.
#[repr(align(64))]
#[derive(Default)]
struct Oldest(AtomicU64);

/// Durations of the operations in flight on one origin, across all lanes.
pub(crate) struct Waits {
    clock: Arc<dyn Clock>,
    lanes: Box<[Oldest]>,
    /// Whether the volume has left its origin: see [`Waits::close`].
    closed: AtomicBool,
}

impl Waits {
    pub(crate) fn new(clock: Arc<dyn Clock>, lanes: usize) -> Self {
        let lanes = (0..lanes.max(1)).map(|_| Oldest::default()).collect();
        Waits { clock, lanes, closed: AtomicBool::new(false) }
    }

    /// Closes the origin: the volume leaves it, and other programs may write to it. No further
    /// operation is started, even by tasks that are waiting.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
    }

    /// Returns whether the volume has left its origin.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// Returns the time.
    pub(crate) fn now(&self) -> Nanos {
        self.clock.now()
    }

    fn of(&self, lane: LaneId) -> &Oldest {
        &self.lanes[usize::from(lane.0) % self.lanes.len()]
    }

    /// Returns for how long the oldest operation has been in progress.
    fn longest(&self) -> Duration {
        let begun = self.lanes.iter().map(|lane| lane.0.load(Ordering::Relaxed));
        match begun.filter(|begun| *begun > 0).min() {
            Some(begun) => self.clock.now().since(Nanos(begun)),
            None => Duration::ZERO,
        }
    }

    /// Returns the time for which the origin has not answered, if it is long enough to be reported.
    pub(crate) fn too_long(&self) -> Option<Duration> {
        Some(self.longest()).filter(|waits| *waits >= SHOWN_AFTER)
    }

    /// Returns the time for which the origin has not answered, if waiting for it should end.
    pub(crate) fn given_up(&self) -> Option<Duration> {
        Some(self.longest()).filter(|waits| *waits >= GIVEN_UP_AFTER)
    }

    /// Returns whether an operation takes long.
    pub(crate) fn is_late(&self) -> bool {
        self.longest() >= LATE_AFTER
    }

    /// Returns whether an operation may never end.
    pub(crate) fn is_hung(&self) -> bool {
        self.longest() >= HUNG_AFTER
    }
}

/// Operations on one lane, in the order in which they began.
#[derive(Default)]
struct Order {
    /// The number of the first one.
    first: u64,
    /// The time at which each operation began; `None` once it has ended.
    begun: VecDeque<Option<Nanos>>,
}

impl Order {
    fn begin(&mut self, now: Nanos, oldest: &AtomicU64) -> u64 {
        if self.begun.is_empty() {
            oldest.store(now.0.max(1), Ordering::Relaxed);
        }
        self.begun.push_back(Some(now));
        self.first + self.begun.len() as u64 - 1
    }

    fn end(&mut self, number: u64, oldest: &AtomicU64) {
        if let Some(begun) = self.begun.get_mut((number - self.first) as usize) {
            *begun = None;
        }
        while let Some(None) = self.begun.front() {
            self.begun.pop_front();
            self.first += 1;
        }
        let next = self.begun.front().copied().flatten().map_or(0, |begun| begun.0.max(1));
        oldest.store(next, Ordering::Relaxed);
    }
}

/// One lane's access to the origin.
pub(crate) struct Origin {
    queue: Queue,
    waits: Arc<Waits>,
    rest: Arc<Rest>,
    lane: LaneId,
    order: RefCell<Order>,
}

/// An operation that is in progress until this is dropped.
struct OriginOpGuard<'a> {
    origin: &'a Origin,
    number: u64,
    cause: WakeReason,
}

impl Drop for OriginOpGuard<'_> {
    fn drop(&mut self) {
        let oldest = self.origin.waits.of(self.origin.lane);
        self.origin.order.borrow_mut().end(self.number, &oldest.0);
        self.origin.rest.end(self.origin.waits.clock.now(), self.cause);
    }
}

impl Origin {
    pub(crate) fn new(queue: Queue, waits: Arc<Waits>, rest: Arc<Rest>, lane: LaneId) -> Self {
        Origin { queue, waits, rest, lane, order: RefCell::default() }
    }

    fn begin(&self, cause: WakeReason) -> OriginOpGuard<'_> {
        let (now, oldest) = (self.waits.clock.now(), self.waits.of(self.lane));
        self.rest.begin(now, cause, || !self.waits.longest().is_zero());
        OriginOpGuard { origin: self, number: self.order.borrow_mut().begin(now, &oldest.0), cause }
    }

    /// Runs an operation, see [`Queue::run`]. `cause` is counted if this ends a rest of the origin.
    pub(crate) async fn run(&self, op: DeviceOp, cause: WakeReason) -> DeviceDone {
        if self.waits.is_closed() {
            return closed(op);
        }
        let _under_way = self.begin(cause);
        self.queue.run(op).await
    }

    /// See [`Queue::read`].
    pub(crate) async fn read(
        &self,
        offset: u64,
        buf: IoBuf,
        cause: WakeReason,
    ) -> Result<IoBuf, DeviceError> {
        let done = self.run(DeviceOp::Read { offset, buf }, cause).await;
        done.result.map(|()| done.buf.unwrap_or_else(|| IoBuf::zeroed(0)))
    }

    /// See [`Queue::write`].
    pub(crate) async fn write(
        &self,
        offset: u64,
        buf: IoBuf,
        cause: WakeReason,
    ) -> Result<IoBuf, DeviceError> {
        let done = self.run(DeviceOp::Write { offset, data: IoData::Owned(buf) }, cause).await;
        done.result.map(|()| done.buf.unwrap_or_else(|| IoBuf::zeroed(0)))
    }

    /// See [`Queue::sync`].
    pub(crate) async fn sync(&self, cause: WakeReason) -> Result<(), DeviceError> {
        self.run(DeviceOp::Sync, cause).await.result
    }
}

/// Fails an operation of a volume that has left its origin.
fn closed(op: DeviceOp) -> DeviceDone {
    let (what, offset, buf) = match op {
        DeviceOp::Read { offset, buf } => ("read", offset, Some(buf)),
        DeviceOp::Write { offset, .. } | DeviceOp::DurableWrite { offset, .. } => {
            ("write", offset, None)
        }
        DeviceOp::Discard { offset, .. } => ("discard", offset, None),
        DeviceOp::WriteZeroes { offset, .. } => ("write zeroes", offset, None),
        DeviceOp::Sync => ("sync", 0, None),
    };
    let (kind, device) = (DeviceErrorKind::Gone, "origin".into());
    let cause = "the volume has been stopped or deleted".into();
    DeviceDone { result: Err(DeviceError { kind, device, what, offset, cause }), buf }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_is_known_whatever_ends_first() {
        let (mut order, oldest) = (Order::default(), AtomicU64::new(0));
        let known = |oldest: &AtomicU64| oldest.load(Ordering::Relaxed);
        let one = order.begin(Nanos(5), &oldest);
        let two = order.begin(Nanos(7), &oldest);
        let three = order.begin(Nanos(9), &oldest);
        assert_eq!(known(&oldest), 5);
        order.end(two, &oldest);
        assert_eq!(known(&oldest), 5);
        order.end(one, &oldest);
        assert_eq!(known(&oldest), 9);
        order.end(three, &oldest);
        assert_eq!(known(&oldest), 0);
        let four = order.begin(Nanos(0), &oldest);
        assert_eq!(known(&oldest), 1, "0 would mean that there is none");
        order.end(four, &oldest);
        assert_eq!(known(&oldest), 0);
    }
}
