//! A device that can be recovered without being changed: reads go through, writes are discarded.
//! That is sound because recovery never reads what it has written.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use forebay_core::Nanos;
use forebay_device::{
    Device, DeviceDone, DeviceError, DeviceOp, DeviceQueue, IoBuf, OpId, OpTable, QueueContext,
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
        Ok(Rc::new(OverlayQueue { inner: self.0.open_queue(context)?, ops: RefCell::default() }))
    }
}

/// A started operation.
enum StartedOp {
    /// A read of the inner device.
    Read(OpId),
    /// A discarded operation; its buffer is returned when it is polled.
    Discarded(Option<IoBuf>),
}

struct OverlayQueue {
    inner: Rc<dyn DeviceQueue>,
    ops: RefCell<OpTable<StartedOp>>,
}

impl DeviceQueue for OverlayQueue {
    fn start(&self, op: DeviceOp) -> OpId {
        let begun = match op {
            DeviceOp::Read { .. } => StartedOp::Read(self.inner.start(op)),
            _ => StartedOp::Discarded(op.into_buf()),
        };
        self.ops.borrow_mut().add(begun)
    }

    fn poll_op(&self, id: OpId, context: &mut Context<'_>) -> Poll<DeviceDone> {
        let mut ops = self.ops.borrow_mut();
        let done = match ops.get_mut(id) {
            Some(StartedOp::Read(read)) => ready!(self.inner.poll_op(*read, context)),
            Some(StartedOp::Discarded(buf)) => DeviceDone { result: Ok(()), buf: buf.take() },
            None => DeviceDone { result: Ok(()), buf: None },
        };
        ops.take(id);
        Poll::Ready(done)
    }

    fn forget(&self, id: OpId) {
        if let Some(StartedOp::Read(read)) = self.ops.borrow_mut().take(id) {
            self.inner.forget(read);
        }
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
