//! A device that can be recovered without being changed: reads go through, writes are discarded.
//! That is sound because recovery never reads what it has written.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use forebay_core::Nanos;
use forebay_device::{
    Device, DeviceDone, DeviceError, DeviceOp, DeviceQueue, IoBuf, IoData, OpId, QueueContext,
};

/// A device whose writes are discarded.
pub(super) struct Overlay(pub(super) Arc<dyn Device>);

impl Device for Overlay {
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
        Ok(Rc::new(SwallowingQueue {
            inner: self.0.open_queue(context)?,
            reads: RefCell::default(),
            discarded: RefCell::default(),
            next: Cell::new(0),
        }))
    }
}

struct SwallowingQueue {
    inner: Rc<dyn DeviceQueue>,
    /// Reads of the inner device, by our own operation number.
    reads: RefCell<HashMap<u64, OpId>>,
    /// Buffers of discarded writes, returned when they are polled.
    discarded: RefCell<HashMap<u64, Option<IoBuf>>>,
    next: Cell<u64>,
}

impl DeviceQueue for SwallowingQueue {
    fn start(&self, op: DeviceOp) -> OpId {
        let id = self.next.replace(self.next.get() + 1);
        match op {
            DeviceOp::Read { .. } => {
                let read = self.inner.start(op);
                self.reads.borrow_mut().insert(id, read);
            }
            DeviceOp::Write { data: IoData::Owned(buf), .. } => {
                self.discarded.borrow_mut().insert(id, Some(buf));
            }
            DeviceOp::Write { .. }
            | DeviceOp::DurableWrite { .. }
            | DeviceOp::Sync
            | DeviceOp::Discard { .. }
            | DeviceOp::WriteZeroes { .. } => {
                self.discarded.borrow_mut().insert(id, None);
            }
        }
        OpId(id)
    }

    fn poll_op(&self, id: OpId, context: &mut Context<'_>) -> Poll<DeviceDone> {
        let read = self.reads.borrow().get(&id.0).copied();
        match read {
            Some(read) => {
                let polled = self.inner.poll_op(read, context);
                if polled.is_ready() {
                    self.reads.borrow_mut().remove(&id.0);
                }
                polled
            }
            None => {
                let buf = self.discarded.borrow_mut().remove(&id.0).flatten();
                Poll::Ready(DeviceDone { result: Ok(()), buf })
            }
        }
    }

    fn forget(&self, id: OpId) {
        if let Some(read) = self.reads.borrow_mut().remove(&id.0) {
            self.inner.forget(read);
        }
        self.discarded.borrow_mut().remove(&id.0);
    }

    fn reads_now(&self) -> bool {
        self.inner.reads_now()
    }

    fn read_now(&self, offset: u64, into: &mut [u8]) -> Option<Result<(), DeviceError>> {
        self.inner.read_now(offset, into)
    }

    fn drive(&self) {
        self.inner.drive();
    }

    fn next_event(&self) -> Option<Nanos> {
        self.inner.next_event()
    }
}
