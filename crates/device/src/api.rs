//! Devices, their operations, and the results of operations.
//!
//! A [`Device`] is shared by all lanes. Each lane opens its own [`DeviceQueue`] and is the only one
//! to use it. Operations own their buffers from start to end, so that memory that the kernel may
//! still access is neither freed nor read early.

use std::future::Future;
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use forebay_core::{Clock, Evidence, Identity, Nanos, Sectors};
use uuid::Uuid;

use crate::buffer::IoBuf;
use crate::data::IoData;
use crate::displaced::Displaced;
use crate::log_buffer::LogBuffer;
use crate::meter::{Measured, Meter, OpKind, QueueMeter};
use crate::watch::OpsInFlight;

/// One operation. Offsets and lengths are in bytes and multiples of the logical block size.
#[derive(Debug)]
pub enum DeviceOp {
    /// Fills `buf` from `offset`.
    Read {
        /// First byte on the device.
        offset: u64,
        /// The destination; its length is the number of bytes to read.
        buf: IoBuf,
    },
    /// Writes `data` at `offset`.
    Write {
        /// First byte on the device.
        offset: u64,
        /// The data to write.
        data: IoData,
    },
    /// Writes published bytes of a log buffer and makes them durable by the end of the operation.
    /// Makes no promise about other writes.
    DurableWrite {
        /// First byte on the device.
        offset: u64,
        /// The log buffer.
        log: Arc<LogBuffer>,
        /// The bytes of the buffer to write.
        range: Range<usize>,
    },
    /// Makes every write that completed before this was started durable.
    Sync,
    /// Discards a range cheaply; it reads as zeroes afterwards. Devices that cannot do both answer
    /// [`DeviceErrorKind::NotSupported`] and leave the data alone. With a length of 0 the operation
    /// only queries this, and changes nothing.
    Discard {
        /// First byte on the device.
        offset: u64,
        /// Length in bytes.
        len: u64,
    },
    /// Writes zeroes to a range, which stays allocated.
    WriteZeroes {
        /// First byte on the device.
        offset: u64,
        /// Length in bytes.
        len: u64,
    },
}

impl DeviceOp {
    /// Returns the name of the operation in errors.
    pub fn what(&self) -> &'static str {
        match self {
            DeviceOp::Read { .. } => "read",
            DeviceOp::Write { .. } | DeviceOp::DurableWrite { .. } => "write",
            DeviceOp::Sync => "sync",
            DeviceOp::Discard { .. } => "discard",
            DeviceOp::WriteZeroes { .. } => "write zeroes",
        }
    }

    /// Returns the kind under which the operation is counted.
    pub(crate) fn kind(&self) -> OpKind {
        match self {
            DeviceOp::Read { .. } => OpKind::Read,
            DeviceOp::Write { .. }
            | DeviceOp::DurableWrite { .. }
            | DeviceOp::WriteZeroes { .. } => OpKind::Write,
            DeviceOp::Sync => OpKind::Sync,
            DeviceOp::Discard { .. } => OpKind::Discard,
        }
    }

    /// Returns the bytes of the device that the operation reads or changes; `None` for a sync.
    pub fn range(&self) -> Option<Range<u64>> {
        let (offset, len) = match self {
            DeviceOp::Read { offset, buf } => (*offset, buf.len() as u64),
            DeviceOp::Write { offset, data } => (*offset, data.len() as u64),
            DeviceOp::DurableWrite { offset, range, .. } => (*offset, range.len() as u64),
            DeviceOp::Discard { offset, len } | DeviceOp::WriteZeroes { offset, len } => {
                (*offset, *len)
            }
            DeviceOp::Sync => return None,
        };
        Some(offset..offset.saturating_add(len))
    }

    /// Returns the buffer of the operation, for its [`DeviceDone`].
    pub fn into_buf(self) -> Option<IoBuf> {
        match self {
            DeviceOp::Read { buf, .. } | DeviceOp::Write { data: IoData::Owned(buf), .. } => {
                Some(buf)
            }
            _ => None,
        }
    }
}

/// The result of an operation.
#[derive(Debug)]
pub struct DeviceDone {
    /// Success, or the error.
    pub result: Result<(), DeviceError>,
    /// The buffer of a read or of an owned write.
    pub buf: Option<IoBuf>,
}

/// The kind of an error, as far as it determines the caller's next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DeviceErrorKind {
    /// The medium failed in this range: other parts of the range and of the device may be readable.
    Io,
    /// The device serves no range at the moment: it does not answer in time, or has no path.
    Unreachable,
    /// Out of space under a sparse file.
    NoSpace,
    /// Outside the device or not aligned: a bug in the caller.
    Invalid,
    /// The device does not support this (for example discard on an old filesystem).
    NotSupported,
    /// The device is gone.
    Gone,
    /// The device refuses writes at the moment: it is write-protected, or open for reading only.
    ReadOnly,
}

/// A failed operation on a device.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{device}: {what} failed at byte {offset}: {cause}")]
pub struct DeviceError {
    /// The kind, to match on.
    pub kind: DeviceErrorKind,
    /// The device, by the name that the operator gave it.
    pub device: Arc<str>,
    /// `read`, `write`, `sync`, `discard`, `write zeroes` or `open`.
    pub what: &'static str,
    /// First byte of the operation.
    pub offset: u64,
    /// The system's error message.
    pub cause: Arc<str>,
}

impl DeviceError {
    /// Returns whether the same operation on a smaller part of the range may succeed.
    pub fn is_local(&self) -> bool {
        self.kind == DeviceErrorKind::Io
    }
}

/// Identifies a started operation on the queue that returned it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OpId(pub u64);

/// The resources that a lane provides to the queues opened on it.
pub struct QueueContext {
    /// The lane's clock.
    pub clock: Arc<dyn Clock>,
    /// The lane's ring; absent in simulations and in-process benchmarks.
    #[cfg(target_os = "linux")]
    pub ring: Option<Rc<crate::ring::Ring>>,
    /// The lane's tasks; absent without a ring.
    pub tasks: Option<Rc<dyn Tasks>>,
}

/// A boxed future.
pub type BoxedTask = Pin<Box<dyn Future<Output = ()>>>;

/// Runs a device's work on the lane, independent of single operations.
pub trait Tasks {
    /// Runs a task until it ends or the lane does.
    fn spawn(&self, task: BoxedTask);

    /// Ends after `time` on the lane's clock.
    fn sleep(&self, time: Duration) -> BoxedTask;
}

/// A run of bytes of a device, see [`Device::extent_at`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceExtent {
    /// Offset of the first byte behind the extent.
    pub end: u64,
    /// The extent is a hole: no data is stored there, and it reads as zeroes.
    pub hole: bool,
}

/// A device, shared by all lanes.
pub trait Device: Send + Sync {
    /// Returns the name that the operator gave to the device.
    fn name(&self) -> &str;

    /// Returns the size in bytes.
    fn size(&self) -> u64;

    /// Returns the smallest unit of a read or write in bytes: 512 or 4096.
    fn logical_block(&self) -> u64;

    /// Returns the sizes that clients should see. The logical sectors of a disk are its logical
    /// blocks. Those of a file are 512 bytes whatever direct I/O on its filesystem demands, because
    /// the partitions in an image must not depend on where the image lies.
    fn sectors(&self) -> Sectors {
        Sectors::of(u32::try_from(self.logical_block()).unwrap_or(Sectors::SMALL.logical))
    }

    /// Returns whether a [`DeviceOp::DurableWrite`] costs little more than a write and does not
    /// delay other operations (forced unit access), so that it is better than a write and a sync.
    fn writes_durably(&self) -> bool {
        false
    }

    /// Returns the size of a device that has become smaller than [`Device::size`] since it was
    /// opened. Data behind that end is lost, even if the device grows again.
    fn shrunk_to(&self) -> Option<u64> {
        None
    }

    /// Returns how the path under which the device was opened differs from it, if the path does not
    /// lead to the device any more. Operations are not affected. May wait for a file server, so it
    /// must not be called on a lane.
    fn displaced(&self) -> Option<Displaced> {
        None
    }

    /// Returns the reason why the device must not be used until it is opened again: another machine
    /// has taken it over, or may do so. Every operation fails then.
    fn fenced(&self) -> Option<Arc<str>> {
        None
    }

    /// Returns whether the device was opened read-only.
    fn for_reading_only(&self) -> bool {
        false
    }

    /// Returns the reason why the device refuses writes at the moment, in a sentence with the
    /// remedy; `None` if no reason is known. It may change at any time. Does not wait for the
    /// device.
    fn write_protected(&self) -> Option<Arc<str>> {
        None
    }

    /// Returns whether distance costs time, as on a disk with a moving head. `None` if it is
    /// unknown.
    fn rotational(&self) -> Option<bool> {
        None
    }

    /// Returns the identity that distinguishes this device from all others, independent of its
    /// content and stable across restarts of the machine. `None` if nothing is known, as for RAM.
    fn identity(&self) -> Option<Identity> {
        None
    }

    /// Returns the system's evidence of writes to the device so far. The caller has ended and
    /// synced all writes of this process. `None`: there is no evidence, so the content must be
    /// compared.
    fn write_evidence(&self) -> Option<Evidence> {
        None
    }

    /// Returns whether [`Device::write_evidence`] may wait for a file server. If so, it must not be
    /// called on a lane.
    fn evidence_may_wait(&self) -> bool {
        false
    }

    /// Returns the volume that was the last to claim the device, on this machine or another, as of
    /// the opening of the device. `None` if no volume has claimed it, or the device cannot record a
    /// claim.
    fn holder(&self) -> Option<Uuid> {
        None
    }

    /// Records on the device, durably and outside of its data, that this volume uses it from now
    /// on. Has no effect on a device that cannot record it. Fails like a write.
    fn claim(&self, _volume: Uuid) -> Claiming {
        Claiming::recorded()
    }

    /// Returns whether [`Device::extent_at`] may find holes.
    fn knows_holes(&self) -> bool {
        false
    }

    /// Returns the run of bytes from `offset` on that is a hole, or is data throughout. `None` if
    /// it is unknown. May wait for the device, so it must not be called on a lane.
    fn extent_at(&self, _offset: u64) -> Option<DeviceExtent> {
        None
    }

    /// Opens the device again for reading through the kernel's page cache, for programs that cannot
    /// use a [`DeviceQueue`]. `None` if it has no descriptor. May wait for the device, so it must
    /// not be called on a lane.
    fn descriptor(&self) -> Option<OwnedFd> {
        None
    }

    /// Makes the kernel read the partition table again, if this is a disk whose partitions it
    /// shows. May wait for the device, so it must not be called on a lane.
    ///
    /// # Errors
    /// `ResourceBusy` if a partition is in use, or another error of the kernel.
    fn reread_partitions(&self) -> io::Result<()> {
        Ok(())
    }

    /// Opens this device for one lane.
    ///
    /// # Errors
    /// The device needs a ring and the lane has none, or there are no file descriptors left.
    fn open_queue(&self, context: &QueueContext) -> Result<Rc<dyn DeviceQueue>, DeviceError>;
}

/// A claim in progress, see [`Device::claim`].
pub struct Claiming {
    /// Resolves when the claim is durable; may never resolve. Dropping it does not cancel the
    /// claim.
    pub recorded: Pin<Box<dyn Future<Output = Result<(), DeviceError>>>>,
    /// Time limit for waiting for the claim.
    pub limit: Duration,
}

impl Claiming {
    /// Returns a claim that needs no waiting.
    pub fn recorded() -> Self {
        Claiming { recorded: Box::pin(std::future::ready(Ok(()))), limit: Duration::from_secs(60) }
    }
}

/// One lane's queue to one device.
///
/// Operations in flight may take effect in any order. The caller must not overlap writes in flight.
pub trait DeviceQueue {
    /// Starts an operation. Its result is collected once, with [`DeviceQueue::poll_op`].
    fn start(&self, op: DeviceOp) -> OpId;

    /// Collects the result of an operation, or stores the waker.
    fn poll_op(&self, id: OpId, context: &mut Context<'_>) -> Poll<DeviceDone>;

    /// Abandons an operation: its result is dropped when it arrives.
    fn forget(&self, id: OpId);

    /// Reads immediately if the device can do so without waiting (RAM can). `None`: use
    /// [`DeviceQueue::start`] instead.
    fn read_now(&self, _offset: u64, _into: &mut [u8]) -> Option<Result<(), DeviceError>> {
        None
    }

    /// Returns whether [`DeviceQueue::read_now`] can read.
    fn reads_now(&self) -> bool {
        false
    }

    /// A hint: `offset` will be read immediately soon, see [`DeviceQueue::read_now`].
    fn expect_read(&self, _offset: u64) {}

    /// Collects completions and wakes the waiters. Called by the lane between rounds of tasks.
    /// Queues on a ring do nothing here: the lane drives the ring.
    fn drive(&self) {}

    /// Returns when [`DeviceQueue::drive`] must be called next, for devices that model time.
    fn next_event(&self) -> Option<Nanos> {
        None
    }
}

/// One lane's queue to one device, with operations as futures.
#[derive(Clone)]
pub struct Queue {
    inner: Rc<dyn DeviceQueue>,
    under_way: Rc<OpsInFlight>,
    meter: Option<Rc<QueueMeter>>,
}

impl Queue {
    /// Wraps an opened queue.
    pub fn new(queue: Rc<dyn DeviceQueue>) -> Self {
        Queue { inner: queue, under_way: Rc::default(), meter: None }
    }

    /// Makes `meter` count the operations of this queue, which belongs to `lane`. Reads that
    /// [`Queue::read_now`] answers are not counted.
    #[must_use]
    pub fn metered(mut self, meter: Arc<Meter>, lane: usize, clock: Arc<dyn Clock>) -> Self {
        self.meter = Some(Rc::new(QueueMeter { meter, lane, clock }));
        self
    }

    /// Returns the meter that counts its operations.
    pub fn meter(&self) -> Option<&Arc<Meter>> {
        self.meter.as_ref().map(|own| &own.meter)
    }

    /// Returns the wrapped queue.
    pub fn inner(&self) -> &Rc<dyn DeviceQueue> {
        &self.inner
    }

    /// Returns the watch over operations in flight.
    pub fn under_way(&self) -> &OpsInFlight {
        &self.under_way
    }

    /// Starts `op` at the first poll and waits for its end.
    pub fn run(&self, op: DeviceOp) -> RunningOp {
        RunningOp { queue: self.clone(), op: Some(op), id: None }
    }

    /// Fills `buf` from `offset`.
    ///
    /// # Errors
    /// The device's error; the buffer's content is then undefined.
    pub async fn read(&self, offset: u64, buf: IoBuf) -> Result<IoBuf, DeviceError> {
        let done = self.run(DeviceOp::Read { offset, buf }).await;
        done.result.map(|()| done.buf.unwrap_or_else(|| IoBuf::zeroed(0)))
    }

    /// Writes a buffer and returns it.
    ///
    /// # Errors
    /// The device's error; it is then unknown how much was written.
    pub async fn write(&self, offset: u64, buf: IoBuf) -> Result<IoBuf, DeviceError> {
        let done = self.run(DeviceOp::Write { offset, data: IoData::Owned(buf) }).await;
        done.result.map(|()| done.buf.unwrap_or_else(|| IoBuf::zeroed(0)))
    }

    /// Makes completed writes durable.
    ///
    /// # Errors
    /// The device's error. A later success proves nothing about writes before this one.
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

/// An operation in flight, see [`Queue::run`].
#[must_use = "nothing happens until this is awaited"]
pub struct RunningOp {
    queue: Queue,
    op: Option<DeviceOp>,
    /// The operation's ID, its place in the watch, and the meter's data.
    id: Option<(OpId, u32, Option<Measured>)>,
}

impl Future for RunningOp {
    type Output = DeviceDone;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<DeviceDone> {
        if let Some(op) = self.op.take() {
            let place = self.queue.under_way.begin();
            let measured = self.queue.meter.as_ref().map(|meter| {
                let bytes = op.range().map_or(0, |range| range.end - range.start);
                meter.begin(op.kind(), bytes)
            });
            self.id = Some((self.queue.inner.start(op), place, measured));
        }
        let Some((id, place, measured)) = self.id else { return Poll::Pending };
        let polled = self.queue.inner.poll_op(id, context);
        if let Poll::Ready(done) = &polled {
            self.id = None;
            self.queue.under_way.end(place);
            // An operation that the device does not support is not counted as attempted or failed.
            let refused =
                matches!(&done.result, Err(error) if error.kind == DeviceErrorKind::NotSupported);
            if let (Some(meter), Some(measured)) =
                (&self.queue.meter, measured.filter(|_| !refused))
            {
                meter.end(measured, done.result.is_ok());
            }
        }
        polled
    }
}

impl Drop for RunningOp {
    fn drop(&mut self) {
        if let Some((id, place, _)) = self.id.take() {
            self.queue.inner.forget(id);
            self.queue.under_way.end(place);
        }
    }
}
