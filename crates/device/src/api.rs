//! What a device is, what can be asked of it, how an operation ends.
//!
//! A [`Device`] is shared by all lanes. Each lane opens its own [`DeviceQueue`] and is the only
//! one to use it. Operations own their buffers from start to end, so that nothing that the kernel
//! may still write to can be freed or read early.

use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use forebay_core::{Clock, Identity, Nanos};

use crate::buffer::IoBuf;
use crate::log_buffer::LogBuffer;
use crate::watch::UnderWay;

/// One operation. Offsets and lengths are in bytes and multiples of the logical block size.
#[derive(Debug)]
pub enum DeviceOp {
    /// Fills `buf` from `offset`.
    Read {
        /// First byte on the device.
        offset: u64,
        /// Where the data goes; its length says how much.
        buf: IoBuf,
    },
    /// Writes `data` at `offset`.
    Write {
        /// First byte on the device.
        offset: u64,
        /// What is written.
        data: IoData,
    },
    /// Writes published bytes of a log buffer, which are durable when this ends, whatever else is
    /// not.
    DurableWrite {
        /// First byte on the device.
        offset: u64,
        /// What is written, and which part of it.
        log: Arc<LogBuffer>,
        /// Bytes of the buffer.
        range: Range<usize>,
    },
    /// Makes every write that completed before this was started durable.
    Sync,
    /// The range is no longer needed: it reads as zeroes afterwards, at no great cost. Devices that
    /// cannot promise both answer [`DeviceErrorKind::NotSupported`] and leave the data alone. With a
    /// length of 0 this asks whether they can, and changes nothing.
    Discard {
        /// First byte on the device.
        offset: u64,
        /// Length in bytes.
        len: u64,
    },
    /// The range reads as zeroes afterwards, and has its space: no hole is made.
    WriteZeroes {
        /// First byte on the device.
        offset: u64,
        /// Length in bytes.
        len: u64,
    },
}

/// Data to write: a buffer of one's own, or published bytes of a log buffer.
#[derive(Debug)]
pub enum IoData {
    /// A buffer that comes back with the completion.
    Owned(IoBuf),
    /// A range of a log buffer; every byte must have been published.
    Log(Arc<LogBuffer>, Range<usize>),
}

/// How an operation ended.
#[derive(Debug)]
pub struct DeviceDone {
    /// Success, or why not.
    pub result: Result<(), DeviceError>,
    /// The buffer of a read or of an owned write.
    pub buf: Option<IoBuf>,
}

/// What went wrong, as far as the caller's next step depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DeviceErrorKind {
    /// The medium or the connection to it failed.
    Io,
    /// Out of space under a sparse file.
    NoSpace,
    /// Outside the device or not aligned: a fault in the caller.
    Invalid,
    /// The device cannot do this (discard on an old filesystem, say).
    NotSupported,
    /// The device is gone.
    Gone,
}

/// A failed operation on a device.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{device}: {what} failed at byte {offset}: {cause}")]
pub struct DeviceError {
    /// What to match on.
    pub kind: DeviceErrorKind,
    /// The device as the operator named it.
    pub device: Arc<str>,
    /// `read`, `write`, `sync`, `discard`, `write zeroes` or `open`.
    pub what: &'static str,
    /// First byte of the operation.
    pub offset: u64,
    /// The system's own words.
    pub cause: Arc<str>,
}

/// Ticket of a started operation, valid on the queue that gave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OpId(pub u64);

/// What a lane offers to the queues that are opened on it.
pub struct QueueContext {
    /// The lane's clock.
    pub clock: Arc<dyn Clock>,
    /// The lane's ring; absent in simulations and in-process benchmarks.
    #[cfg(target_os = "linux")]
    pub ring: Option<Rc<crate::ring::Ring>>,
}

/// A device, shared by all lanes.
pub trait Device: Send + Sync {
    /// The device as the operator named it.
    fn name(&self) -> &str;

    /// Size in bytes.
    fn size(&self) -> u64;

    /// Smallest unit of a read or write in bytes: 512 or 4096.
    fn logical_block(&self) -> u64;

    /// Whether a [`DeviceOp::DurableWrite`] costs little more than a write and holds nobody up
    /// (forced unit access), so that it is better than a write and a sync.
    fn writes_durably(&self) -> bool {
        false
    }

    /// How many bytes there are, if they have become fewer than [`Device::size`] since it was opened.
    /// What lay behind that end is lost, whatever is there later.
    fn shrunk_to(&self) -> Option<u64> {
        None
    }

    /// What tells this device from all others, also after a restart of the machine, whatever its
    /// content is. `None`: nothing is known, as of RAM.
    fn identity(&self) -> Option<Identity> {
        None
    }

    /// Opens this device for one lane.
    ///
    /// # Errors
    /// When the lane has no ring and the device needs one, or descriptors run out.
    fn open_queue(&self, context: &QueueContext) -> Result<Rc<dyn DeviceQueue>, DeviceError>;
}

/// One lane's way to one device.
///
/// Operations that are in flight together may happen in any order. The caller keeps overlapping
/// writes apart.
pub trait DeviceQueue {
    /// Starts an operation. Its end is collected once, with [`DeviceQueue::poll_op`].
    fn start(&self, op: DeviceOp) -> OpId;

    /// Collects the end of an operation, or remembers the waker.
    fn poll_op(&self, id: OpId, context: &mut Context<'_>) -> Poll<DeviceDone>;

    /// Gives up on an operation: its result is dropped when it comes.
    fn forget(&self, id: OpId);

    /// Reads at once if the device can do that without waiting (RAM can); `None` means: use
    /// [`DeviceQueue::start`].
    fn read_now(&self, _offset: u64, _into: &mut [u8]) -> Option<Result<(), DeviceError>> {
        None
    }

    /// Whether [`DeviceQueue::read_now`] reads.
    fn reads_now(&self) -> bool {
        false
    }

    /// A hint: what lies at `offset` will be read at once soon, see [`DeviceQueue::read_now`].
    fn expect_read(&self, _offset: u64) {}

    /// Notices completions and wakes those who wait. Called by the lane between rounds of tasks.
    /// Queues on a ring have nothing to do here: the lane drives the ring.
    fn drive(&self) {}

    /// When [`DeviceQueue::drive`] will next have something to do, for devices that model time.
    fn next_event(&self) -> Option<Nanos> {
        None
    }
}

/// One lane's way to one device, with operations as futures.
#[derive(Clone)]
pub struct Queue {
    inner: Rc<dyn DeviceQueue>,
    under_way: Rc<UnderWay>,
}

impl Queue {
    /// Wraps an opened queue.
    pub fn new(queue: Rc<dyn DeviceQueue>) -> Self {
        Queue { inner: queue, under_way: Rc::default() }
    }

    /// The queue itself.
    pub fn inner(&self) -> &Rc<dyn DeviceQueue> {
        &self.inner
    }

    /// What is under way on it.
    pub fn under_way(&self) -> &UnderWay {
        &self.under_way
    }

    /// Starts `op` and waits for its end. The operation is started at the first poll.
    pub fn run(&self, op: DeviceOp) -> Running {
        Running { queue: self.clone(), op: Some(op), id: None }
    }

    /// Fills `buf` from `offset`.
    ///
    /// # Errors
    /// What the device reports; the buffer's content is then undefined.
    pub async fn read(&self, offset: u64, buf: IoBuf) -> Result<IoBuf, DeviceError> {
        let done = self.run(DeviceOp::Read { offset, buf }).await;
        done.result.map(|()| done.buf.unwrap_or_else(|| IoBuf::zeroed(0)))
    }

    /// Writes a buffer and gives it back.
    ///
    /// # Errors
    /// What the device reports; how much was written is then unknown.
    pub async fn write(&self, offset: u64, buf: IoBuf) -> Result<IoBuf, DeviceError> {
        let done = self.run(DeviceOp::Write { offset, data: IoData::Owned(buf) }).await;
        done.result.map(|()| done.buf.unwrap_or_else(|| IoBuf::zeroed(0)))
    }

    /// Makes completed writes durable.
    ///
    /// # Errors
    /// What the device reports. A later success proves nothing about writes before this one.
    pub async fn sync(&self) -> Result<(), DeviceError> {
        self.run(DeviceOp::Sync).await.result
    }

    /// See [`DeviceQueue::read_now`].
    pub fn read_now(&self, offset: u64, into: &mut [u8]) -> Option<Result<(), DeviceError>> {
        self.inner.read_now(offset, into)
    }

    /// See [`DeviceQueue::reads_now`].
    #[inline]
    pub fn reads_now(&self) -> bool {
        self.inner.reads_now()
    }

    /// See [`DeviceQueue::expect_read`].
    #[inline]
    pub fn expect_read(&self, offset: u64) {
        self.inner.expect_read(offset);
    }
}

/// An operation on its way, see [`Queue::run`].
#[must_use = "nothing happens until this is awaited"]
pub struct Running {
    queue: Queue,
    op: Option<DeviceOp>,
    /// Its ticket, and its place among those that are under way.
    id: Option<(OpId, u32)>,
}

impl Future for Running {
    type Output = DeviceDone;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<DeviceDone> {
        if let Some(op) = self.op.take() {
            let place = self.queue.under_way.begin();
            self.id = Some((self.queue.inner.start(op), place));
        }
        let Some((id, place)) = self.id else { return Poll::Pending };
        let polled = self.queue.inner.poll_op(id, context);
        if polled.is_ready() {
            self.id = None;
            self.queue.under_way.end(place);
        }
        polled
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some((id, place)) = self.id.take() {
            self.queue.inner.forget(id);
            self.queue.under_way.end(place);
        }
    }
}
