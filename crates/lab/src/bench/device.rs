//! Devices for measurements: one that keeps repetitive pages in a few bytes, so that large caches
//! fit into RAM, one that makes up what was never written, and one that copies beside the lanes.

mod dma;
mod made;

use std::cell::RefCell;
use std::collections::HashMap;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use forebay_device::{
    Device, DeviceDone, DeviceError, DeviceErrorKind, DeviceOp, DeviceQueue, IoData, OpId, OpTable,
    QueueContext,
};
use parking_lot::RwLock;

pub(crate) use dma::DmaDevice;
pub(crate) use made::{Behind, MadeDevice};

const PAGE: usize = 4096;

/// Content of a device, by pages.
pub(crate) trait Content: Send + Sync + 'static {
    /// Whether operations end at once. Those of a disk end after another turn of the lane.
    const AT_ONCE: bool;

    /// Reads a part of a page, from its byte `at` on.
    fn read(&self, page: usize, at: usize, into: &mut [u8]);

    /// Writes a part of a page.
    fn write(&mut self, page: usize, at: usize, data: &[u8]);

    /// Writes zeroes to whole pages.
    fn zero(&mut self, pages: Range<usize>) {
        pages.for_each(|page| self.write(page, 0, &[0; PAGE]));
    }
}

/// Content of a page of a [`SparseDevice`].
#[derive(Clone)]
enum Page {
    /// Eight bytes that are repeated.
    Repeated(u64),
    /// Other content.
    Kept(Box<[u8]>),
}

/// All pages of a [`SparseDevice`].
#[derive(Clone, Default)]
pub(crate) struct Pages {
    /// A value of `patterns`, or of `kept` from [`FIRST_KEPT`] on.
    numbers: Vec<u32>,
    patterns: Vec<u64>,
    known: HashMap<u64, u32>,
    kept: Vec<Page>,
    free: Vec<u32>,
}

/// Numbers below this are patterns, the others kept pages.
const FIRST_KEPT: u32 = 1 << 20;

impl Pages {
    /// The pattern of these bytes, if they are one, and its number, while there are few patterns.
    fn pattern(&mut self, bytes: &[u8]) -> Option<u32> {
        let pattern = u64::from_le_bytes(*bytes.first_chunk::<8>()?);
        if bytes[8..] != bytes[..bytes.len() - 8] {
            return None;
        }
        if let Some(number) = self.known.get(&pattern) {
            return Some(*number);
        }
        let number = u32::try_from(self.patterns.len()).ok().filter(|next| *next < FIRST_KEPT)?;
        self.patterns.push(pattern);
        self.known.insert(pattern, number);
        Some(number)
    }
}

impl Content for Pages {
    const AT_ONCE: bool = true;

    fn read(&self, page: usize, at: usize, into: &mut [u8]) {
        let number = self.numbers[page];
        let kept = number.checked_sub(FIRST_KEPT).map(|kept| &self.kept[kept as usize]);
        match kept {
            Some(Page::Kept(bytes)) => into.copy_from_slice(&bytes[at..at + into.len()]),
            Some(Page::Repeated(pattern)) => repeat(*pattern, into),
            None => repeat(self.patterns[number as usize], into),
        }
    }

    fn write(&mut self, page: usize, at: usize, data: &[u8]) {
        let mut whole = [0u8; PAGE];
        let bytes = if data.len() == PAGE {
            data
        } else {
            self.read(page, 0, &mut whole);
            whole[at..at + data.len()].copy_from_slice(data);
            &whole
        };
        let old = self.numbers[page].checked_sub(FIRST_KEPT);
        if let Some(number) = self.pattern(bytes) {
            self.numbers[page] = number;
            if let Some(old) = old {
                self.kept[old as usize] = Page::Repeated(0);
                self.free.push(old);
            }
            return;
        }
        let place = old.or_else(|| self.free.pop()).unwrap_or_else(|| {
            self.kept.push(Page::Repeated(0));
            (self.kept.len() - 1) as u32
        });
        self.kept[place as usize] = Page::Kept(bytes.into());
        self.numbers[page] = FIRST_KEPT + place;
    }
}

/// Fills with eight bytes again and again; all parts of pages start at a multiple of eight.
fn repeat(pattern: u64, into: &mut [u8]) {
    for chunk in into.chunks_exact_mut(8) {
        chunk.copy_from_slice(&pattern.to_le_bytes());
    }
}

/// A device in RAM on which a page costs four bytes if it is the same eight bytes again and
/// again. A test of a cache of many gigabytes writes payloads of that kind.
pub(crate) type SparseDevice = PagedDevice<Pages>;

impl SparseDevice {
    /// A device of `size` bytes, a multiple of 4096, all zeroes.
    pub(crate) fn new(name: &str, size: u64) -> Arc<Self> {
        let count = (size / PAGE as u64) as usize;
        // Written one by one: the system gives zeroed memory only when it is touched, and then it
        // would seem to be the engine that grows.
        Self::with((0..count).map(|_| std::hint::black_box(0)).collect(), name, size)
    }

    /// Like [`SparseDevice::new`], but its memory grows as it is written.
    pub(crate) fn untouched(name: &str, size: u64) -> Arc<Self> {
        Self::with(vec![0; (size / PAGE as u64) as usize], name, size)
    }

    fn with(numbers: Vec<u32>, name: &str, size: u64) -> Arc<Self> {
        let pages = Pages {
            numbers,
            patterns: vec![0],
            known: HashMap::from([(0, 0)]),
            ..Pages::default()
        };
        Self::of(name, size, pages)
    }

    /// A copy with a life of its own.
    pub(crate) fn fork(&self) -> Arc<Self> {
        Self::of(&self.name, self.size, self.pages.read().clone())
    }

    /// Makes room for so many pages that are kept, so that memory does not grow later on.
    pub(crate) fn reserve(&self, count: usize) {
        let mut pages = self.pages.write();
        for _ in 0..count {
            let place = pages.kept.len() as u32;
            // Filled, so that the memory is there and not only promised.
            pages.kept.push(Page::Kept(vec![1; PAGE].into()));
            pages.free.push(place);
        }
        pages.free.reserve(count);
    }

    /// Writes whole pages at once, past any queue.
    pub(crate) fn put(&self, offset: u64, data: &[u8]) {
        let mut pages = self.pages.write();
        for (page, data) in data.chunks_exact(PAGE).enumerate() {
            pages.write(offset as usize / PAGE + page, 0, data);
        }
    }

    /// Bytes of memory that it takes.
    pub(crate) fn memory(&self) -> u64 {
        let pages = self.pages.read();
        let kept = pages.kept.iter().filter(|page| matches!(page, Page::Kept(_))).count();
        (pages.numbers.len() * 4 + kept * PAGE) as u64
    }
}

/// A device whose content is pages.
pub(crate) struct PagedDevice<C> {
    name: Arc<str>,
    size: u64,
    pages: Arc<RwLock<C>>,
}

impl<C: Content> PagedDevice<C> {
    fn of(name: &str, size: u64, pages: C) -> Arc<Self> {
        Arc::new(PagedDevice { name: name.into(), size, pages: Arc::new(RwLock::new(pages)) })
    }
}

impl<C: Content> Device for PagedDevice<C> {
    fn name(&self) -> &str {
        &self.name
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn logical_block(&self) -> u64 {
        512
    }

    fn open_queue(&self, _context: &QueueContext) -> Result<Rc<dyn DeviceQueue>, DeviceError> {
        let PagedDevice { name, size, pages } = self;
        let device = PagedDevice { name: name.clone(), size: *size, pages: pages.clone() };
        Ok(Rc::new(PagedQueue { device, done: RefCell::default() }))
    }
}

struct PagedQueue<C> {
    device: PagedDevice<C>,
    /// Operations that have ended; `true`: their completion may be polled.
    done: RefCell<OpTable<(DeviceDone, bool)>>,
}

impl<C: Content> PagedDevice<C> {
    fn error(&self, what: &'static str, offset: u64, cause: &str) -> DeviceError {
        DeviceError {
            kind: DeviceErrorKind::Invalid,
            device: self.name.clone(),
            what,
            offset,
            cause: cause.into(),
        }
    }

    fn check(&self, what: &'static str, offset: u64, len: u64) -> Result<(), DeviceError> {
        let inside = offset.checked_add(len).is_some_and(|end| end <= self.size);
        let aligned = offset.is_multiple_of(512) && len.is_multiple_of(512);
        if inside && aligned {
            return Ok(());
        }
        Err(self.error(what, offset, "outside the device or not aligned"))
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), DeviceError> {
        self.check("read", offset, into.len() as u64)?;
        let pages = self.pages.read();
        for (page, at, range) in parts(offset, into.len()) {
            pages.read(page, at, &mut into[range]);
        }
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), DeviceError> {
        self.check("write", offset, data.len() as u64)?;
        let mut pages = self.pages.write();
        for (page, at, range) in parts(offset, data.len()) {
            pages.write(page, at, &data[range]);
        }
        Ok(())
    }

    fn zero(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        self.check("write zeroes", offset, len)?;
        let mut pages = self.pages.write();
        let (start, end) = (offset as usize, (offset + len) as usize);
        let whole = start.next_multiple_of(PAGE)..end / PAGE * PAGE;
        let head = whole.start.min(end);
        for part in [start..head, whole.end.max(head)..end] {
            if !part.is_empty() {
                pages.write(part.start / PAGE, part.start % PAGE, &[0; PAGE][..part.len()]);
            }
        }
        pages.zero(whole.start / PAGE..whole.end / PAGE);
        Ok(())
    }

    fn perform(&self, op: DeviceOp) -> DeviceDone {
        match op {
            DeviceOp::Read { offset, mut buf } => {
                DeviceDone { result: self.read(offset, &mut buf), buf: Some(buf) }
            }
            DeviceOp::Write { offset, data: IoData::Owned(buf) } => {
                DeviceDone { result: self.write(offset, &buf), buf: Some(buf) }
            }
            DeviceOp::Write { offset, data: IoData::Log(log, range) }
            | DeviceOp::DurableWrite { offset, log, range } => {
                let result = match log.get(range) {
                    Some(bytes) => self.write(offset, bytes),
                    None => Err(self.error("write", offset, "these bytes are not published")),
                };
                DeviceDone { result, buf: None }
            }
            DeviceOp::Sync => DeviceDone { result: Ok(()), buf: None },
            DeviceOp::Discard { offset, len } | DeviceOp::WriteZeroes { offset, len } => {
                DeviceDone { result: self.zero(offset, len), buf: None }
            }
        }
    }
}

/// The pages of a range: number, first byte in the page, bytes within the range.
fn parts(offset: u64, len: usize) -> impl Iterator<Item = (usize, usize, Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        if done >= len {
            return None;
        }
        let at = offset as usize + done;
        let part = (PAGE - at % PAGE).min(len - done);
        let range = done..done + part;
        done += part;
        Some((at / PAGE, at % PAGE, range))
    })
}

impl<C: Content> DeviceQueue for PagedQueue<C> {
    fn start(&self, op: DeviceOp) -> OpId {
        let done = self.device.perform(op);
        self.done.borrow_mut().add((done, C::AT_ONCE))
    }

    fn poll_op(&self, id: OpId, context: &mut Context<'_>) -> Poll<DeviceDone> {
        let mut done = self.done.borrow_mut();
        if let Some((_, may_be_polled @ false)) = done.get_mut(id) {
            *may_be_polled = true;
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let unknown = || self.device.error("poll", 0, "there is no such operation on this queue");
        Poll::Ready(match done.take(id) {
            Some((done, _)) => done,
            None => DeviceDone { result: Err(unknown()), buf: None },
        })
    }

    fn forget(&self, id: OpId) {
        self.done.borrow_mut().take(id);
    }

    fn reads_now(&self) -> bool {
        C::AT_ONCE
    }

    fn read_now(&self, offset: u64, into: &mut [u8]) -> Option<Result<(), DeviceError>> {
        C::AT_ONCE.then(|| self.device.read(offset, into))
    }
}

#[cfg(test)]
mod tests;
