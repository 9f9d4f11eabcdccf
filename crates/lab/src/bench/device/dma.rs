//! A device in RAM that a thread of its own copies to, as an SSD reads the log's buffers by DMA: a
//! lane only hands the operation over.

use std::cell::Cell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::task::{Context, Poll, Waker};
use std::thread;

use forebay_device::{
    Device, DeviceDone, DeviceError, DeviceErrorKind, DeviceOp, DeviceQueue, OpId, QueueContext,
    RamDevice,
};
use parking_lot::Mutex;

use crate::bench::measure::unpin;

/// A RAM device behind threads that copy, one for each queue.
pub(crate) struct DmaDevice {
    ram: Arc<RamDevice>,
}

impl DmaDevice {
    pub(crate) fn new(ram: Arc<RamDevice>) -> Arc<Self> {
        Arc::new(DmaDevice { ram })
    }
}

impl Device for DmaDevice {
    fn name(&self) -> &str {
        self.ram.name()
    }

    fn size(&self) -> u64 {
        self.ram.size()
    }

    fn logical_block(&self) -> u64 {
        self.ram.logical_block()
    }

    fn open_queue(&self, context: &QueueContext) -> Result<Rc<dyn DeviceQueue>, DeviceError> {
        let operations: Arc<Operations> = Arc::default();
        let (start, started) = mpsc::channel();
        let (ram, done, clock) = (self.ram.clone(), operations.clone(), context.clock.clone());
        let copy = move || {
            unpin();
            if let Ok(queue) = ram.open_queue(&QueueContext { clock, ring: None, tasks: None }) {
                done.serve(&started, &*queue);
            }
        };
        thread::Builder::new().name("dma".into()).spawn(copy).map_err(|error| DeviceError {
            kind: DeviceErrorKind::Io,
            device: self.name().into(),
            what: "open",
            offset: 0,
            cause: error.to_string().into(),
        })?;
        let reads = self.ram.open_queue(context)?;
        Ok(Rc::new(DmaQueue { reads, start, operations, next: Cell::new(0) }))
    }
}

/// The state of an operation.
enum Slot {
    Waiting(Waker),
    Forgotten,
    Done(DeviceDone),
}

/// Operations that have ended, are waited for, or are not wanted any more.
#[derive(Default)]
struct Operations(Mutex<HashMap<u64, Slot>>);

impl Operations {
    /// Executes what it receives until the queue is closed.
    fn serve(&self, started: &Receiver<(u64, DeviceOp)>, queue: &dyn DeviceQueue) {
        for (id, op) in started {
            let own = queue.start(op);
            // RAM has the result at once.
            let Poll::Ready(done) = queue.poll_op(own, &mut Context::from_waker(Waker::noop()))
            else {
                continue;
            };
            let mut slots = self.0.lock();
            let waiting = match slots.remove(&id) {
                Some(Slot::Forgotten) => continue,
                Some(Slot::Waiting(waker)) => Some(waker),
                Some(Slot::Done(_)) | None => None,
            };
            slots.insert(id, Slot::Done(done));
            drop(slots);
            if let Some(waker) = waiting {
                waker.wake();
            }
        }
    }
}

struct DmaQueue {
    /// For reads that are hits: the lane copies these to the client in any case.
    reads: Rc<dyn DeviceQueue>,
    start: Sender<(u64, DeviceOp)>,
    operations: Arc<Operations>,
    next: Cell<u64>,
}

impl DeviceQueue for DmaQueue {
    fn start(&self, op: DeviceOp) -> OpId {
        let id = self.next.get();
        self.next.set(id + 1);
        // The other end is gone only if its thread has panicked; the lane waits in vain then.
        let _ = self.start.send((id, op));
        OpId(id)
    }

    fn poll_op(&self, id: OpId, context: &mut Context<'_>) -> Poll<DeviceDone> {
        let mut slots = self.operations.0.lock();
        match slots.remove(&id.0) {
            Some(Slot::Done(done)) => Poll::Ready(done),
            _ => {
                slots.insert(id.0, Slot::Waiting(context.waker().clone()));
                Poll::Pending
            }
        }
    }

    fn forget(&self, id: OpId) {
        let mut slots = self.operations.0.lock();
        if !matches!(slots.remove(&id.0), Some(Slot::Done(_))) {
            slots.insert(id.0, Slot::Forgotten);
        }
    }

    fn reads_now(&self) -> bool {
        self.reads.reads_now()
    }

    fn read_now(&self, offset: u64, into: &mut [u8]) -> Option<Result<(), DeviceError>> {
        self.reads.read_now(offset, into)
    }

    fn expect_read(&self, offset: u64) {
        self.reads.expect_read(offset);
    }
}
