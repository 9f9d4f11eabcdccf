//! Simulated disks as devices of a daemon.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use forebay_core::{Clock, Identity, IdentityPart, Nanos};
use forebay_device::{
    Device, DeviceDone, DeviceError, DeviceErrorKind, DeviceOp, DeviceQueue, IoBuf, OpId,
    QueueContext,
};
use forebay_threads::Simulation;

use crate::media::{Action, DiskClaim, Health, Media, latency};

/// Interval at which a queue checks whether a hung disk answers again.
const LOOK: Duration = Duration::from_millis(20);

/// An open disk.
pub(crate) struct OpenDisk {
    media: Arc<Media>,
    /// The claim of the disk. `None` if the disk may be shared.
    claim: Option<Arc<DiskClaim>>,
    reading_only: bool,
}

impl OpenDisk {
    pub(crate) fn new(
        media: Arc<Media>,
        claim: Option<Arc<DiskClaim>>,
        reading_only: bool,
    ) -> Self {
        OpenDisk { media, claim, reading_only }
    }
}

impl Device for OpenDisk {
    fn name(&self) -> &str {
        &self.media.name
    }

    fn size(&self) -> u64 {
        self.media.size()
    }

    fn logical_block(&self) -> u64 {
        512
    }

    fn for_reading_only(&self) -> bool {
        self.reading_only
    }

    fn rotational(&self) -> Option<bool> {
        None
    }

    fn identity(&self) -> Option<Identity> {
        Identity::new([(IdentityPart::Serial, self.media.name.clone())])
    }

    fn open_queue(&self, context: &QueueContext) -> Result<Rc<dyn DeviceQueue>, DeviceError> {
        Ok(Rc::new(OpenDiskQueue {
            media: self.media.clone(),
            _claim: self.claim.clone(),
            clock: context.clock.clone(),
            state: RefCell::default(),
        }))
    }
}

struct PendingOp {
    id: u64,
    what: &'static str,
    action: Action,
    offset: u64,
    buf: Option<IoBuf>,
}

#[derive(Default)]
struct State {
    last: u64,
    in_flight: BTreeMap<(Nanos, u64), PendingOp>,
    done: BTreeMap<u64, DeviceDone>,
    wakers: BTreeMap<u64, Waker>,
}

struct OpenDiskQueue {
    media: Arc<Media>,
    _claim: Option<Arc<DiskClaim>>,
    clock: Arc<dyn Clock>,
    state: RefCell<State>,
}

fn is_ending() -> bool {
    Simulation::current().is_some_and(|simulation| simulation.is_ending())
}

impl DeviceQueue for OpenDiskQueue {
    fn start(&self, op: DeviceOp) -> OpId {
        let state = &mut *self.state.borrow_mut();
        state.last += 1;
        let id = state.last;
        // A process that was killed starts no more operations.
        if !is_ending() {
            let what = op.what();
            let (action, offset, buf) = Action::of(op);
            let due = self.clock.now().0 + latency(self.media.number, offset).0;
            state.in_flight.insert((Nanos(due), id), PendingOp { id, what, action, offset, buf });
        }
        OpId(id)
    }

    fn poll_op(&self, id: OpId, context: &mut Context<'_>) -> Poll<DeviceDone> {
        let mut state = self.state.borrow_mut();
        match state.done.remove(&id.0) {
            Some(done) => Poll::Ready(done),
            None => {
                state.wakers.insert(id.0, context.waker().clone());
                Poll::Pending
            }
        }
    }

    fn forget(&self, id: OpId) {
        let mut state = self.state.borrow_mut();
        state.wakers.remove(&id.0);
        state.done.remove(&id.0);
    }

    fn drive(&self) {
        if is_ending() || self.media.health() == Health::Hangs {
            return;
        }
        let now = self.clock.now();
        loop {
            let waker = {
                let state = &mut *self.state.borrow_mut();
                let Some(first) = state.in_flight.first_entry().filter(|it| it.key().0 <= now)
                else {
                    return;
                };
                let PendingOp { id, what, action, offset, mut buf } = first.remove();
                let ran = self.media.run(&action, offset, buf.as_mut());
                let result = ran.map_err(|kind| self.error(kind, what, offset));
                state.done.insert(id, DeviceDone { result, buf });
                state.wakers.remove(&id)
            };
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }

    fn next_event(&self) -> Option<Nanos> {
        let state = self.state.borrow();
        let ((due, _), _) = state.in_flight.first_key_value()?;
        match self.media.health() {
            Health::Hangs => Some(self.clock.now() + LOOK),
            _ => Some(*due),
        }
    }
}

impl OpenDiskQueue {
    fn error(&self, kind: DeviceErrorKind, what: &'static str, offset: u64) -> DeviceError {
        let cause = "injected by the simulator".into();
        DeviceError { kind, device: self.media.name.as_str().into(), what, offset, cause }
    }
}

impl Drop for OpenDiskQueue {
    fn drop(&mut self) {
        for operation in std::mem::take(&mut self.state.get_mut().in_flight).into_values() {
            self.media.is_late(operation.action);
        }
    }
}
