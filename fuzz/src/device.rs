//! A device whose content is an image that is never changed, and the pages that were written since.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use forebay_device::{
    Device, DeviceDone, DeviceError, DeviceErrorKind, DeviceOp, DeviceQueue, IoBuf, IoData, OpId,
    OpTable, QueueContext,
};
use forebay_format::PAGE;
use parking_lot::Mutex;

const LOGICAL_BLOCK: u64 = 512;

/// The changes; a page that is not here is as in the image.
type Pages = Mutex<HashMap<usize, Box<[u8; PAGE]>>>;

/// The changes of a device.
#[derive(Default)]
struct Done {
    reads: AtomicU64,
    bytes_read: AtomicU64,
    writes: AtomicU64,
}

/// A device over an image.
#[derive(Clone)]
pub(crate) struct ImageDevice {
    /// The content; zeroes follow it.
    image: &'static [u8],
    size: u64,
    pages: Arc<Pages>,
    done: Arc<Done>,
}

impl ImageDevice {
    /// A device with the content of `image`, a whole number of pages.
    pub(crate) fn new(image: &'static [u8]) -> Self {
        let size = image.len() as u64;
        ImageDevice { image, size, pages: Arc::default(), done: Arc::default() }
    }

    /// A device of zeroes, a whole number of pages.
    pub(crate) fn sparse(size: u64) -> Self {
        ImageDevice { image: &[], size, pages: Arc::default(), done: Arc::default() }
    }

    /// The size in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.size
    }

    /// The number of reads, and their bytes.
    pub(crate) fn reads(&self) -> (u64, u64) {
        let Done { reads, bytes_read, .. } = &*self.done;
        (reads.load(Ordering::Relaxed), bytes_read.load(Ordering::Relaxed))
    }

    /// The number of operations that change something.
    pub(crate) fn writes(&self) -> u64 {
        self.done.writes.load(Ordering::Relaxed)
    }

    /// A device with the same content, whose changes are apart.
    pub(crate) fn copy(&self) -> Self {
        let pages = Arc::new(Mutex::new(self.pages.lock().clone()));
        ImageDevice { pages, done: Arc::default(), ..self.clone() }
    }

    fn check(&self, what: &'static str, offset: u64, len: u64) -> Result<(), DeviceError> {
        let aligned = offset.is_multiple_of(LOGICAL_BLOCK) && len.is_multiple_of(LOGICAL_BLOCK);
        let end = offset.checked_add(len);
        if aligned && end.is_some_and(|end| end <= self.size) {
            return Ok(());
        }
        let cause = "outside the device or not aligned".into();
        Err(DeviceError {
            kind: DeviceErrorKind::Invalid,
            device: "image".into(),
            what,
            offset,
            cause,
        })
    }

    /// Changes every page that `offset..offset + len` touches: `change` gets the part of the page,
    /// and where in the range it begins.
    fn change(&self, offset: usize, len: usize, mut change: impl FnMut(&mut [u8], usize)) {
        let mut pages = self.pages.lock();
        let mut at = 0;
        while at < len {
            let (page, start) = ((offset + at) / PAGE, (offset + at) % PAGE);
            let count = (PAGE - start).min(len - at);
            let bytes = pages.entry(page).or_insert_with(|| {
                let mut bytes = Box::new([0; PAGE]);
                if let Some(found) = self.image.get(page * PAGE..).and_then(|at| at.get(..PAGE)) {
                    bytes.copy_from_slice(found);
                }
                bytes
            });
            change(&mut bytes[start..start + count], at);
            at += count;
        }
    }

    /// Copies from `offset` on, which must be inside.
    pub(crate) fn read(&self, offset: usize, into: &mut [u8]) {
        let pages = self.pages.lock();
        let mut at = 0;
        while at < into.len() {
            let (page, start) = ((offset + at) / PAGE, (offset + at) % PAGE);
            let count = (PAGE - start).min(into.len() - at);
            let from = match pages.get(&page) {
                Some(bytes) => Some(&bytes[start..start + count]),
                None => self.image.get(offset + at..).and_then(|at| at.get(..count)),
            };
            let into = &mut into[at..at + count];
            match from {
                Some(from) => into.copy_from_slice(from),
                None => into.fill(0),
            }
            at += count;
        }
    }

    /// Overwrites from `offset` on, which must be inside.
    pub(crate) fn write(&self, offset: usize, data: &[u8]) {
        self.change(offset, data.len(), |part, at| {
            part.copy_from_slice(&data[at..at + part.len()])
        });
    }

    fn count_read(&self, bytes: usize) {
        self.done.reads.fetch_add(1, Ordering::Relaxed);
        self.done.bytes_read.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    fn perform(&self, op: DeviceOp) -> DeviceDone {
        match &op {
            DeviceOp::Read { buf, .. } => self.count_read(buf.len()),
            DeviceOp::Sync => {}
            _ => _ = self.done.writes.fetch_add(1, Ordering::Relaxed),
        }
        let (result, buf) = match op {
            DeviceOp::Read { offset, mut buf } => {
                let checked = self.check("read", offset, buf.len() as u64);
                (checked.map(|()| self.read(offset as usize, &mut buf)), Some(buf))
            }
            DeviceOp::Write { offset, data: IoData::Owned(buf) } => {
                let checked = self.check("write", offset, buf.len() as u64);
                (checked.map(|()| self.write(offset as usize, &buf)), Some(buf))
            }
            DeviceOp::Write { offset, data: IoData::Log(log, range) }
            | DeviceOp::DurableWrite { offset, log, range } => {
                let bytes = log.get(range).expect("only published bytes are written");
                let checked = self.check("write", offset, bytes.len() as u64);
                (checked.map(|()| self.write(offset as usize, bytes)), None::<IoBuf>)
            }
            DeviceOp::Sync => (Ok(()), None),
            DeviceOp::Discard { offset, len } | DeviceOp::WriteZeroes { offset, len } => {
                let checked = self.check("write zeroes", offset, len);
                let zero = |()| self.change(offset as usize, len as usize, |part, _| part.fill(0));
                (checked.map(zero), None)
            }
        };
        DeviceDone { result, buf }
    }
}

impl Device for ImageDevice {
    fn name(&self) -> &str {
        "image"
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn logical_block(&self) -> u64 {
        LOGICAL_BLOCK
    }

    fn open_queue(&self, _: &QueueContext) -> Result<Rc<dyn DeviceQueue>, DeviceError> {
        Ok(Rc::new(ImageQueue { device: self.clone(), done: RefCell::default() }))
    }
}

struct ImageQueue {
    device: ImageDevice,
    /// Operations that have ended and were not yet collected.
    done: RefCell<OpTable<DeviceDone>>,
}

impl DeviceQueue for ImageQueue {
    fn start(&self, op: DeviceOp) -> OpId {
        self.done.borrow_mut().add(self.device.perform(op))
    }

    fn poll_op(&self, id: OpId, _: &mut Context<'_>) -> Poll<DeviceDone> {
        let done = self.done.borrow_mut().take(id);
        Poll::Ready(done.expect("an operation is collected once"))
    }

    fn forget(&self, id: OpId) {
        self.done.borrow_mut().take(id);
    }

    fn read_now(&self, offset: u64, into: &mut [u8]) -> Option<Result<(), DeviceError>> {
        self.device.count_read(into.len());
        let checked = self.device.check("read", offset, into.len() as u64);
        Some(checked.map(|()| self.device.read(offset as usize, into)))
    }
}
