//! A device in RAM.
//!
//! The content is lost when the device is dropped. Any number of lanes may use it at once: the
//! memory is divided into stripes, and a copy holds the lock of each stripe that it accesses. Each
//! lock serves many stripes, so the locks take little memory however large the device is.

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use parking_lot::RwLock;

use crate::api::{
    Device, DeviceDone, DeviceError, DeviceErrorKind, DeviceOp, DeviceQueue, OpId, QueueContext,
};
use crate::data::IoData;
use crate::hint::{Spot, copy_past_caches, fetch, fetch_to_write};
use crate::memory::{PAGE, Pages};
use crate::table::{OpTable, Shape};

/// Base-two logarithm of the bytes in a stripe.
const STRIPE_SHIFT: u32 = 16;
const STRIPE: usize = 1 << STRIPE_SHIFT;
/// Locks of one device; a power of two.
const LOCKS: usize = 1024;
/// Minimum size of zeroed memory that is returned to the system.
const GIVE_BACK: u64 = 2 << 20;
const LOGICAL_BLOCK: u64 = 512;
/// Writes of at least this size bypass the CPU's caches, because they will not be read back soon.
const MUCH: usize = 32 << 10;

/// Bytes of the next read to prefetch: after the first lines the CPU's own prefetcher continues.
const AHEAD: usize = 512;

/// A lock on its own cache line, so that lanes on neighbouring stripes do not contend.
#[repr(align(64))]
#[derive(Default)]
struct StripeLock(RwLock<()>);

/// State shared by all queues.
struct RamStorage {
    shape: Shape,
    pages: Pages,
    locks: Box<[StripeLock]>,
}

/// A part of a range within one stripe.
struct StripePiece {
    /// First byte on the device.
    start: usize,
    /// First byte within the range.
    at: usize,
    len: usize,
}

/// Splits `len` bytes from `start` at the borders of stripes.
fn pieces(start: usize, len: usize) -> impl Iterator<Item = StripePiece> {
    let mut at = 0;
    std::iter::from_fn(move || {
        if at >= len {
            return None;
        }
        let start = start + at;
        let piece = StripePiece { start, at, len: (STRIPE - start % STRIPE).min(len - at) };
        at += piece.len;
        Some(piece)
    })
}

impl RamStorage {
    fn lock(&self, start: usize) -> &RwLock<()> {
        &self.locks[(start >> STRIPE_SHIFT) % LOCKS].0
    }

    /// Returns the address of a piece, which must be inside the device.
    fn place(&self, piece: &StripePiece) -> *mut u8 {
        debug_assert!(piece.start + piece.len <= self.pages.len());
        // SAFETY: every piece is part of a range that `Shape::check` found inside the device,
        // whose size is that of the mapping.
        unsafe { self.pages.start().as_ptr().add(piece.start) }
    }

    /// Reads a range. `next`: the address of the next read, if it is known.
    fn read(
        &self,
        offset: u64,
        into: &mut [u8],
        mut next: Option<Spot>,
    ) -> Result<(), DeviceError> {
        self.shape.check("read", offset, into.len() as u64)?;
        for piece in pieces(offset as usize, into.len()) {
            let _shared = self.lock(piece.start).read();
            // Prefetch here, where the copy hides the time in which the CPU translates the address.
            // Taking or releasing a lock would have to wait for it.
            if let Some(next) = next.take() {
                fetch(next, AHEAD);
            }
            // SAFETY: the piece is inside the mapping, is initialised, and no thread writes it
            // while the lock of its stripe is held for reading.
            let bytes = unsafe { std::slice::from_raw_parts(self.place(&piece), piece.len) };
            into[piece.at..piece.at + piece.len].copy_from_slice(bytes);
        }
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), DeviceError> {
        self.shape.check("write", offset, data.len() as u64)?;
        for piece in pieces(offset as usize, data.len()) {
            let _exclusive = self.lock(piece.start).write();
            // SAFETY: the piece is inside the mapping and no other thread touches it while the lock
            // of its stripe is held for writing.
            let bytes = unsafe { std::slice::from_raw_parts_mut(self.place(&piece), piece.len) };
            let data = &data[piece.at..piece.at + piece.len];
            if piece.len >= MUCH {
                copy_past_caches(bytes, data);
            } else {
                bytes.copy_from_slice(data);
            }
        }
        Ok(())
    }

    fn zero(&self, what: &'static str, offset: u64, len: u64) -> Result<(), DeviceError> {
        self.shape.check(what, offset, len)?;
        for piece in pieces(offset as usize, len as usize) {
            let _exclusive = self.lock(piece.start).write();
            if len >= GIVE_BACK && piece.len == STRIPE {
                // SAFETY: as in `write`.
                if unsafe { self.pages.give_back(piece.start, STRIPE) } {
                    continue;
                }
            }
            // SAFETY: as in `write`.
            let bytes = unsafe { std::slice::from_raw_parts_mut(self.place(&piece), piece.len) };
            bytes.fill(0);
        }
        Ok(())
    }
}

/// A device in RAM.
pub struct RamDevice {
    shared: Arc<RamStorage>,
}

impl RamDevice {
    /// Creates a device of `size` bytes, a positive multiple of 4096, all zeroes. Memory is taken
    /// from the system when it is first written.
    ///
    /// # Errors
    /// `InvalidInput` for another size; `OutOfMemory` if there is not enough address space.
    pub fn new(name: &str, size: u64) -> io::Result<Arc<Self>> {
        let len = usize::try_from(size).map_err(|_| io::ErrorKind::InvalidInput)?;
        debug_assert!(STRIPE.is_multiple_of(PAGE));
        let pages = Pages::new(len)?;
        let shape = Shape { name: name.into(), size, logical_block: LOGICAL_BLOCK };
        let locks = (0..LOCKS).map(|_| StripeLock::default()).collect();
        Ok(Arc::new(RamDevice { shared: Arc::new(RamStorage { shape, pages, locks }) }))
    }
}

impl Device for RamDevice {
    fn name(&self) -> &str {
        &self.shared.shape.name
    }

    fn size(&self) -> u64 {
        self.shared.shape.size
    }

    fn logical_block(&self) -> u64 {
        LOGICAL_BLOCK
    }

    fn writes_durably(&self) -> bool {
        true
    }

    fn rotational(&self) -> Option<bool> {
        Some(false)
    }

    fn open_queue(&self, _context: &QueueContext) -> Result<Rc<dyn DeviceQueue>, DeviceError> {
        Ok(Rc::new(RamQueue {
            shared: self.shared.clone(),
            done: RefCell::default(),
            expected: Cell::default(),
        }))
    }
}

/// One lane's queue to the memory. Operations end immediately.
struct RamQueue {
    shared: Arc<RamStorage>,
    done: RefCell<OpTable<DeviceDone>>,
    /// Address of the next immediate read, if it was announced.
    expected: Cell<Option<Spot>>,
}

impl RamQueue {
    fn perform(&self, op: DeviceOp) -> DeviceDone {
        let shared = &self.shared;
        match op {
            DeviceOp::Read { offset, mut buf } => {
                DeviceDone { result: shared.read(offset, &mut buf, None), buf: Some(buf) }
            }
            DeviceOp::Write { offset, data: IoData::Owned(buf) } => {
                DeviceDone { result: shared.write(offset, &buf), buf: Some(buf) }
            }
            DeviceOp::Write { offset, data: IoData::Log(log, range) }
            | DeviceOp::DurableWrite { offset, log, range } => {
                let result = match log.get(range) {
                    Some(bytes) => shared.write(offset, bytes),
                    None => Err(unpublished(&shared.shape, offset)),
                };
                DeviceDone { result, buf: None }
            }
            DeviceOp::Sync => DeviceDone { result: Ok(()), buf: None },
            DeviceOp::Discard { offset, len } => {
                DeviceDone { result: shared.zero("discard", offset, len), buf: None }
            }
            DeviceOp::WriteZeroes { offset, len } => {
                DeviceDone { result: shared.zero("write zeroes", offset, len), buf: None }
            }
        }
    }
}

/// Returns the error for a write from a log buffer whose bytes are not published, or out of its
/// bounds.
pub(crate) fn unpublished(shape: &Shape, offset: u64) -> DeviceError {
    let cause = "the bytes in the log buffer are not published";
    shape.error(DeviceErrorKind::Invalid, "write", offset, cause)
}

/// Returns the result for an operation ID that the queue does not have.
pub(crate) fn unknown(shape: &Shape) -> DeviceDone {
    let cause = "there is no such operation on this queue";
    DeviceDone { result: Err(shape.error(DeviceErrorKind::Invalid, "poll", 0, cause)), buf: None }
}

impl DeviceQueue for RamQueue {
    fn start(&self, op: DeviceOp) -> OpId {
        let done = self.perform(op);
        self.done.borrow_mut().add(done)
    }

    fn poll_op(&self, id: OpId, _context: &mut Context<'_>) -> Poll<DeviceDone> {
        let done = self.done.borrow_mut().take(id);
        Poll::Ready(done.unwrap_or_else(|| unknown(&self.shared.shape)))
    }

    fn forget(&self, id: OpId) {
        self.done.borrow_mut().take(id);
    }

    fn read_now(&self, offset: u64, into: &mut [u8]) -> Option<Result<(), DeviceError>> {
        Some(self.shared.read(offset, into, self.expected.take()))
    }

    fn reads_now(&self) -> bool {
        true
    }

    fn expect_read(&self, offset: u64) {
        if let Ok(offset) = usize::try_from(offset) {
            fetch_to_write(Spot::of(self.shared.lock(offset)));
            self.expected.set(Some(Spot::at(self.shared.pages.start()).plus(offset)));
        }
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "what threads share is tried with threads")]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::Waker;

    use forebay_core::ManualClock;

    use super::*;
    use crate::api::Queue;
    use crate::buffer::IoBuf;
    use crate::log_buffer::LogBuffer;
    use crate::testing::{filled, poll};

    fn queue(device: &RamDevice) -> Queue {
        let context =
            QueueContext { clock: Arc::new(ManualClock::default()), ring: None, tasks: None };
        Queue::new(device.open_queue(&context).expect("needs nothing"))
    }

    /// RAM operations never wait.
    fn now<T>(future: impl Future<Output = T>) -> T {
        poll(pin!(future)).expect("had to wait")
    }

    #[test]
    fn every_operation_does_what_it_says() {
        let device = RamDevice::new("ram:192K", 192 << 10).expect("memory");
        let queue = queue(&device);
        let at = |offset: u64| {
            let mut byte = [0; 512];
            queue.read_now(offset, &mut byte).expect("now").expect("read");
            byte[0]
        };
        // Across the border of a stripe.
        now(queue.write(60 << 10, filled(8192, 1))).expect("written");
        assert_eq!([59, 60, 63, 64, 67, 68].map(|kib| at(kib << 10)), [0, 1, 1, 1, 1, 0]);
        let buf = now(queue.read(60 << 10, IoBuf::zeroed(8192))).expect("read");
        assert!(buf.iter().all(|&byte| byte == 1));
        now(queue.sync()).expect("nothing to do");

        for op in [
            DeviceOp::Discard { offset: 60 << 10, len: 1024 },
            DeviceOp::WriteZeroes { offset: 64 << 10, len: 1024 },
        ] {
            now(queue.run(op)).result.expect("zeroed");
        }
        assert_eq!([60, 61, 64, 65].map(|kib| at(kib << 10)), [0, 1, 0, 1]);

        let log = LogBuffer::new(4096);
        let write = || DeviceOp::Write { offset: 0, data: IoData::Log(log.clone(), 0..512) };
        let mut claim = log.claim(0..512).expect("free");
        claim.fill(7);
        let error = now(queue.run(write())).result.expect_err("not published");
        assert_eq!(error.kind, DeviceErrorKind::Invalid);
        claim.publish();
        now(queue.run(write())).result.expect("written");
        assert_eq!(at(0), 7);
    }

    #[test]
    #[cfg_attr(miri, ignore = "the interpreter takes minutes for so many bytes")]
    fn large_discards_give_memory_back_and_read_as_zeroes() {
        let device = RamDevice::new("ram:4M", 4 << 20).expect("memory");
        let queue = queue(&device);
        now(queue.write(0, filled(4 << 20, 1))).expect("written");
        now(queue.run(DeviceOp::Discard { offset: 512, len: (4 << 20) - 1024 }))
            .result
            .expect("ok");
        let buf = now(queue.read(0, IoBuf::for_overwrite(4 << 20))).expect("read");
        let (first, rest) = buf.split_at(512);
        let (middle, last) = rest.split_at(rest.len() - 512);
        assert!(first.iter().chain(last).all(|&byte| byte == 1));
        assert!(middle.iter().all(|&byte| byte == 0));
    }

    #[test]
    fn ranges_outside_or_unaligned_are_refused() {
        let device = RamDevice::new("ram:8K", 8192).expect("memory");
        let queue = queue(&device);
        for (offset, len) in [(1, 512), (0, 100), (8192, 512), (7680, 1024), (u64::MAX - 511, 512)]
        {
            let read = now(queue.read(offset, IoBuf::zeroed(len))).expect_err("refused");
            let write = now(queue.write(offset, IoBuf::zeroed(len))).expect_err("refused");
            let into = &mut vec![0; len];
            let quick = queue.read_now(offset, into).expect("now").expect_err("refused");
            for error in [read, write, quick] {
                assert_eq!(error.kind, DeviceErrorKind::Invalid, "{error}");
            }
        }
        for size in [0, 512, 5000, u64::MAX] {
            assert!(RamDevice::new("bad", size).is_err());
        }
        let lost = OpId(77);
        let mut context = Context::from_waker(Waker::noop());
        assert!(
            matches!(queue.inner().poll_op(lost, &mut context), Poll::Ready(done) if done.result.is_err())
        );
        queue.inner().forget(lost);
    }

    #[test]
    fn lanes_never_see_half_a_block() {
        let device = RamDevice::new("ram:64K", 64 << 10).expect("memory");
        let rounds = if cfg!(miri) { 5 } else { 2000 };
        std::thread::scope(|scope| {
            for lane in 1..=2u8 {
                let device = &device;
                scope.spawn(move || {
                    let queue = queue(device);
                    let mut seen = [0; 4096];
                    for _ in 0..rounds {
                        now(queue.write(4096, filled(4096, lane))).expect("written");
                        queue.read_now(4096, &mut seen).expect("now").expect("read");
                        assert!(seen.iter().all(|&byte| byte == seen[0]));
                    }
                });
            }
        });
    }
}
