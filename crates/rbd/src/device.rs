//! The image as a device, and its queues.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use forebay_core::{Clock, Identity, Nanos, Sectors};
use forebay_device::{
    Access, Claiming, Device, DeviceDone, DeviceError, DeviceErrorKind, DeviceOp, DeviceQueue,
    OpId, OpTable, OpenError, QueueContext, RbdName, Tasks,
};
use forebay_lane::MemoryHold;
use uuid::Uuid;

use crate::claim::{Claimant, ImageClaim};
use crate::flight::Flight;
use crate::handle::CallError;
use crate::thread::{self, Image, judge};

const LOGICAL_BLOCK: u64 = 512;
/// Minimum and maximum interval at which operations are checked against the time limit.
const LOOKING: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(1)];
/// Maximum number of bytes in the given-up operations of a queue that the cluster may still
/// execute.
const GIVEN_UP_MAX: usize = 32 << 20;

/// An image of a Ceph cluster. An image that is opened for writing holds its exclusive lock.
pub struct RbdDevice {
    image: Arc<Image>,
}

impl RbdDevice {
    /// Bytes of memory that are accounted for an open image: 2 MiB for its connection and 17
    /// threads, as measured with librbd 16, and copies of requests in flight.
    pub const MEMORY: u64 = 16 << 20;

    /// Connects to the cluster and opens the image. Waits up to the name's time limit, so it must
    /// not be called on a lane. `memory` is held until the image is closed; see
    /// [`MEMORY`](RbdDevice::MEMORY).
    ///
    /// # Errors
    /// `NotFound`: the cluster has no such pool or image. `InUse`: another client has the lock.
    /// `Denied`: the cluster does not allow the access, or the image has no lock. `BadSize`: the
    /// image is empty. `WrongType`: librbd cannot be loaded. `Io`: the cluster does not answer, and
    /// may do so later.
    pub fn open(
        name: &RbdName,
        access: Access,
        memory: Option<MemoryHold>,
    ) -> Result<Arc<dyn Device>, OpenError> {
        let image = thread::open(name, access == Access::Exclusive, memory)?;
        Ok(Arc::new(RbdDevice { image: Arc::new(image) }))
    }
}

impl Device for RbdDevice {
    fn name(&self) -> &str {
        &self.image.shared().text
    }

    fn size(&self) -> u64 {
        self.image.shared().size
    }

    fn logical_block(&self) -> u64 {
        LOGICAL_BLOCK
    }

    fn sectors(&self) -> Sectors {
        self.image.shared().sectors
    }

    fn shrunk_to(&self) -> Option<u64> {
        let shared = self.image.shared();
        let now = shared.size_now.load(Ordering::Relaxed);
        (now < shared.size).then_some(now)
    }

    fn fenced(&self) -> Option<Arc<str>> {
        self.image.shared().lost().cloned()
    }

    fn for_reading_only(&self) -> bool {
        !self.image.shared().writable
    }

    /// The cluster spreads objects over many disks, so the kind of disk does not matter.
    fn rotational(&self) -> Option<bool> {
        Some(false)
    }

    fn identity(&self) -> Option<Identity> {
        self.image.shared().identity.clone()
    }

    fn holder(&self) -> Option<Uuid> {
        self.image.shared().holder
    }

    fn claim(&self, volume: Uuid) -> Claiming {
        let (image, claim) = (self.image.clone(), Arc::new(ImageClaim::new(volume)));
        image.shared().bell.ring(|news| news.claims.push(claim.clone()));
        let limit = image.shared().name.timeout;
        let claimant = Claimant(claim);
        // The image's thread does not end before this future, which shares the image.
        let recorded = std::future::poll_fn(move |context| {
            let shared = image.shared();
            claimant.poll(context).map_err(|error| {
                judge(shared, error.errno);
                shared.error(DeviceErrorKind::Io, "claim", 0, error.to_string())
            })
        });
        Claiming { recorded: Box::pin(recorded), limit }
    }

    fn open_queue(&self, context: &QueueContext) -> Result<Rc<dyn DeviceQueue>, DeviceError> {
        Ok(Rc::new(RbdQueue(Rc::new(Inner {
            image: self.image.clone(),
            clock: context.clock.clone(),
            tasks: context.tasks.clone(),
            ops: RefCell::default(),
            given_up: RefCell::default(),
            is_timed: Cell::new(false),
        }))))
    }
}

/// The state of an operation in its queue.
struct ImageOp {
    what: &'static str,
    offset: u64,
    since: Nanos,
    /// A flush follows.
    durable: bool,
    step: OpState,
}

enum OpState {
    InFlight(Arc<Flight>),
    Ended(DeviceDone),
}

/// One lane's queue to an image.
struct RbdQueue(Rc<Inner>);

struct Inner {
    image: Arc<Image>,
    clock: Arc<dyn Clock>,
    tasks: Option<Rc<dyn Tasks>>,
    ops: RefCell<OpTable<ImageOp>>,
    /// Operations that were given up and have no entry any more. The cluster executes them before
    /// later operations on the same object, so they overwrite no newer data.
    given_up: RefCell<Vec<Arc<Flight>>>,
    /// A task checks the time limit.
    is_timed: Cell<bool>,
}

impl Inner {
    /// Returns why an operation is not sent.
    fn refusal(&self, op: &DeviceOp) -> Option<(DeviceErrorKind, Arc<str>)> {
        let shared = self.image.shared();
        if let Some(range) = op.range() {
            let (size, len) = (shared.size, range.end - range.start);
            if range.end > size
                || !range.start.is_multiple_of(LOGICAL_BLOCK)
                || !len.is_multiple_of(LOGICAL_BLOCK)
            {
                let cause = format!(
                    "{len} bytes are not in whole blocks of {LOGICAL_BLOCK} bytes below {size}"
                );
                return Some((DeviceErrorKind::Invalid, cause.into()));
            }
        }
        if let Some(cause) = shared.lost() {
            return Some((DeviceErrorKind::Gone, cause.clone()));
        }
        if !shared.writable && !matches!(op, DeviceOp::Read { .. } | DeviceOp::Sync) {
            let cause = "it is open for reading only".into();
            return Some((DeviceErrorKind::ReadOnly, cause));
        }
        let mut given_up = self.given_up.borrow_mut();
        given_up.retain(|flight| !flight.has_ended());
        let held: usize = given_up.iter().map(|flight| flight.bytes()).sum();
        (held > GIVEN_UP_MAX).then(|| {
            let cause = "the cluster has not answered earlier requests yet".into();
            (DeviceErrorKind::Io, cause)
        })
    }

    fn begin(&self, op: DeviceOp) -> ImageOp {
        let (what, offset) = (op.what(), op.range().map_or(0, |range| range.start));
        let refusal = self.refusal(&op);
        let nothing = matches!(op.range(), Some(range) if range.is_empty());
        let durable = matches!(op, DeviceOp::DurableWrite { .. });
        let handle = &self.image.shared().handle;
        let step = match op {
            _ if refusal.is_some() || nothing => {
                let failed = |(kind, cause)| self.image.shared().error(kind, what, offset, cause);
                let result = refusal.map_or(Ok(()), |refusal| Err(failed(refusal)));
                OpState::Ended(DeviceDone { result, buf: op.into_buf() })
            }
            DeviceOp::Read { offset, buf } => OpState::InFlight(handle.read(offset, buf)),
            DeviceOp::Write { offset, data } => OpState::InFlight(handle.write(offset, data)),
            DeviceOp::DurableWrite { offset, log, range } => {
                OpState::InFlight(handle.write(offset, forebay_device::IoData::Log(log, range)))
            }
            DeviceOp::Sync => OpState::InFlight(handle.flush()),
            DeviceOp::Discard { offset, len } => {
                OpState::InFlight(handle.write_zeroes(offset, len, false))
            }
            DeviceOp::WriteZeroes { offset, len } => {
                OpState::InFlight(handle.write_zeroes(offset, len, true))
            }
        };
        ImageOp { what, offset, since: self.clock.now(), durable, step }
    }

    fn failure(&self, entry: &ImageOp, error: &CallError) -> DeviceError {
        let shared = self.image.shared();
        judge(shared, error.errno);
        if let Some(cause) = shared.lost() {
            return shared.error(DeviceErrorKind::Gone, entry.what, entry.offset, cause.clone());
        }
        let kind = match error.errno {
            libc::ENOSPC | libc::EDQUOT => DeviceErrorKind::NoSpace,
            libc::EINVAL => DeviceErrorKind::Invalid,
            libc::EOPNOTSUPP => DeviceErrorKind::NotSupported,
            libc::EROFS | libc::EPERM => DeviceErrorKind::ReadOnly,
            libc::ENOENT => DeviceErrorKind::Gone,
            libc::ETIMEDOUT | libc::ESHUTDOWN => DeviceErrorKind::Unreachable,
            _ => DeviceErrorKind::Io,
        };
        shared.bell.ring(|news| news.look = true);
        shared.error(kind, entry.what, entry.offset, error.to_string())
    }

    fn poll(&self, entry: &mut ImageOp, context: &mut Context<'_>) -> Poll<DeviceDone> {
        loop {
            let flight = match &mut entry.step {
                OpState::InFlight(flight) => flight.clone(),
                OpState::Ended(done) => {
                    let ended = DeviceDone { result: Ok(()), buf: None };
                    return Poll::Ready(std::mem::replace(done, ended));
                }
            };
            let Poll::Ready((result, buf)) = flight.poll(context) else { return Poll::Pending };
            match result {
                Ok(()) if std::mem::take(&mut entry.durable) => {
                    entry.step = OpState::InFlight(self.image.shared().handle.flush());
                }
                result => {
                    let result = result.map_err(|error| self.failure(entry, &error));
                    return Poll::Ready(DeviceDone { result, buf });
                }
            }
        }
    }

    /// Keeps a given-up operation, whose memory the library may still use.
    fn give_up(&self, flight: Arc<Flight>) {
        if !flight.has_ended() {
            self.given_up.borrow_mut().push(flight);
        }
    }

    /// Fails operations that exceed the time limit. Returns whether any operation is left to check.
    fn look(&self) -> bool {
        let (now, shared) = (self.clock.now(), self.image.shared());
        let limit = shared.name.timeout;
        let mut late = Vec::new();
        let mut ops = self.ops.borrow_mut();
        let ids: Vec<OpId> = ops.ids().collect();
        for &id in &ids {
            let Some(entry) = ops.get_mut(id) else { continue };
            let OpState::InFlight(flight) = &entry.step else { continue };
            if now.since(entry.since) >= limit && !flight.has_ended() {
                let flight = flight.clone();
                let cause = format!("the cluster has not answered for {} s", limit.as_secs());
                let result =
                    Err(shared.error(DeviceErrorKind::Io, entry.what, entry.offset, cause));
                entry.step = OpState::Ended(DeviceDone { result, buf: None });
                late.push(flight);
            }
        }
        drop(ops);
        for flight in late {
            flight.wake();
            self.give_up(flight);
        }
        !ids.is_empty()
    }

    /// Starts a task that checks the time limit while operations are in flight.
    fn time(self: &Rc<Self>) {
        let Some(tasks) = self.tasks.clone().filter(|_| !self.is_timed.replace(true)) else {
            return;
        };
        let step = (self.image.shared().name.timeout / 8).clamp(LOOKING[0], LOOKING[1]);
        let (own, timer) = (Rc::downgrade(self), tasks.clone());
        tasks.spawn(Box::pin(async move {
            loop {
                timer.sleep(step).await;
                let Some(inner) = Weak::upgrade(&own) else { return };
                if !inner.look() {
                    inner.is_timed.set(false);
                    return;
                }
            }
        }));
    }
}

impl DeviceQueue for RbdQueue {
    fn start(&self, op: DeviceOp) -> OpId {
        let entry = self.0.begin(op);
        let id = self.0.ops.borrow_mut().add(entry);
        self.0.time();
        id
    }

    fn poll_op(&self, id: OpId, context: &mut Context<'_>) -> Poll<DeviceDone> {
        let mut ops = self.0.ops.borrow_mut();
        let polled = match ops.get_mut(id) {
            Some(entry) => self.0.poll(entry, context),
            None => {
                let (kind, cause) = (DeviceErrorKind::Invalid, "no such operation");
                let result = Err(self.0.image.shared().error(kind, "poll", 0, cause));
                Poll::Ready(DeviceDone { result, buf: None })
            }
        };
        if polled.is_ready() {
            ops.take(id);
        }
        polled
    }

    fn forget(&self, id: OpId) {
        let entry = self.0.ops.borrow_mut().take(id);
        if let Some(ImageOp { step: OpState::InFlight(flight), .. }) = entry {
            self.0.give_up(flight);
        }
    }
}
