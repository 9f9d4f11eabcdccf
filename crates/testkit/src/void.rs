//! A device of any size that stores nothing: it accepts writes and discards, and reads return
//! zeroes.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use forebay_device::{
    Device, DeviceDone, DeviceError, DeviceErrorKind, DeviceOp, DeviceQueue, IoData, OpId, OpTable,
    QueueContext,
};

/// Creates a device of this many bytes.
pub fn void(bytes: u64) -> Arc<dyn Device> {
    Arc::new(Void(bytes))
}

struct Void(u64);

impl Device for Void {
    fn name(&self) -> &str {
        "void"
    }

    fn size(&self) -> u64 {
        self.0
    }

    fn logical_block(&self) -> u64 {
        512
    }

    fn open_queue(&self, _context: &QueueContext) -> Result<Rc<dyn DeviceQueue>, DeviceError> {
        Ok(Rc::new(VoidQueue::default()))
    }
}

#[derive(Default)]
struct VoidQueue(RefCell<OpTable<DeviceDone>>);

impl DeviceQueue for VoidQueue {
    fn start(&self, op: DeviceOp) -> OpId {
        let buf = match op {
            DeviceOp::Read { mut buf, .. } => {
                buf.fill(0);
                Some(buf)
            }
            DeviceOp::Write { data: IoData::Owned(buf), .. } => Some(buf),
            _ => None,
        };
        self.0.borrow_mut().add(DeviceDone { result: Ok(()), buf })
    }

    fn poll_op(&self, id: OpId, _context: &mut Context<'_>) -> Poll<DeviceDone> {
        let unknown = || DeviceError {
            kind: DeviceErrorKind::Invalid,
            device: "void".into(),
            what: "poll",
            offset: 0,
            cause: "there is no such operation".into(),
        };
        let done = self.0.borrow_mut().take(id);
        Poll::Ready(done.unwrap_or_else(|| DeviceDone { result: Err(unknown()), buf: None }))
    }

    fn forget(&self, id: OpId) {
        self.0.borrow_mut().take(id);
    }
}
