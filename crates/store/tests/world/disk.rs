//! A disk in memory whose pages can be damaged, made unreadable and made to fail for a while.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use forebay_device::{
    Device, DeviceDone, DeviceError, DeviceErrorKind, DeviceOp, DeviceQueue, IoData, OpId,
    QueueContext,
};
use parking_lot::Mutex;

pub const PAGE: usize = 4096;

#[derive(Default)]
struct State {
    content: Vec<u8>,
    unreadable: HashSet<usize>,
    /// Reads of a page that will still fail.
    failing: HashMap<usize, u32>,
    writes: u64,
    bytes_read: u64,
    /// The content after each write since it was asked for.
    recorded: Option<Vec<Vec<u8>>>,
}

pub struct Disk(Arc<Mutex<State>>);

impl Disk {
    pub fn of(content: Vec<u8>) -> Arc<Disk> {
        Arc::new(Disk(Arc::new(Mutex::new(State { content, ..State::default() }))))
    }

    pub fn content(&self) -> Vec<u8> {
        self.0.lock().content.clone()
    }

    pub fn overwrite(&self, content: &[u8]) {
        self.0.lock().content.copy_from_slice(content);
    }

    /// Changes one page; the rest stays as it is.
    pub fn edit(&self, page: usize, change: impl FnOnce(&mut [u8])) {
        change(&mut self.0.lock().content[page * PAGE..(page + 1) * PAGE]);
    }

    /// Every read of the page fails until it is written.
    pub fn make_unreadable(&self, page: usize) {
        self.0.lock().unreadable.insert(page);
    }

    /// The next `times` reads of the page fail.
    pub fn fail_reads(&self, page: usize, times: u32) {
        self.0.lock().failing.insert(page, times);
    }

    pub fn record_writes(&self) {
        self.0.lock().recorded = Some(Vec::new());
    }

    /// The content after each write since [`Disk::record_writes`].
    pub fn recorded(&self) -> Vec<Vec<u8>> {
        self.0.lock().recorded.take().unwrap_or_default()
    }

    /// Bytes of the reads that succeeded.
    pub fn bytes_read(&self) -> u64 {
        self.0.lock().bytes_read
    }

    pub fn writes(&self) -> u64 {
        self.0.lock().writes
    }
}

impl Device for Disk {
    fn name(&self) -> &str {
        "disk"
    }

    fn size(&self) -> u64 {
        self.0.lock().content.len() as u64
    }

    fn logical_block(&self) -> u64 {
        512
    }

    fn open_queue(&self, _: &QueueContext) -> Result<Rc<dyn DeviceQueue>, DeviceError> {
        let (state, done) = (self.0.clone(), RefCell::default());
        Ok(Rc::new(DiskQueue { state, done, next: Cell::new(0) }))
    }
}

struct DiskQueue {
    state: Arc<Mutex<State>>,
    done: RefCell<HashMap<u64, DeviceDone>>,
    next: Cell<u64>,
}

impl State {
    fn read(&mut self, offset: usize, into: &mut [u8]) -> Result<(), DeviceError> {
        for page in offset / PAGE..(offset + into.len()).div_ceil(PAGE) {
            let left = self.failing.get_mut(&page).filter(|left| **left > 0);
            let fails = left.is_some_and(|left| {
                *left -= 1;
                true
            });
            if fails || self.unreadable.contains(&page) {
                return Err(DeviceError {
                    kind: DeviceErrorKind::Io,
                    device: "disk".into(),
                    what: "read",
                    offset: (page * PAGE) as u64,
                    cause: "a bad page".into(),
                });
            }
        }
        self.bytes_read += into.len() as u64;
        into.copy_from_slice(&self.content[offset..offset + into.len()]);
        Ok(())
    }

    fn write(&mut self, offset: usize, bytes: &[u8]) {
        self.writes += 1;
        for page in offset / PAGE..(offset + bytes.len()).div_ceil(PAGE) {
            self.unreadable.remove(&page);
        }
        self.content[offset..offset + bytes.len()].copy_from_slice(bytes);
        if let Some(recorded) = &mut self.recorded {
            recorded.push(self.content.clone());
        }
    }
}

impl DeviceQueue for DiskQueue {
    fn start(&self, op: DeviceOp) -> OpId {
        let id = self.next.replace(self.next.get() + 1);
        let mut state = self.state.lock();
        let done = match op {
            DeviceOp::Read { offset, mut buf } => {
                let result = state.read(offset as usize, &mut buf);
                DeviceDone { result, buf: Some(buf) }
            }
            DeviceOp::Write { offset, data: IoData::Owned(buf) } => {
                state.write(offset as usize, &buf);
                DeviceDone { result: Ok(()), buf: Some(buf) }
            }
            DeviceOp::Write { offset, data: IoData::Log(log, range) }
            | DeviceOp::DurableWrite { offset, log, range } => {
                state.write(offset as usize, log.get(range).expect("published"));
                DeviceDone { result: Ok(()), buf: None }
            }
            DeviceOp::Sync => DeviceDone { result: Ok(()), buf: None },
            DeviceOp::Discard { offset, len } | DeviceOp::WriteZeroes { offset, len } => {
                state.write(offset as usize, &vec![0; len as usize]);
                DeviceDone { result: Ok(()), buf: None }
            }
        };
        self.done.borrow_mut().insert(id, done);
        OpId(id)
    }

    fn poll_op(&self, id: OpId, _: &mut Context<'_>) -> Poll<DeviceDone> {
        self.done.borrow_mut().remove(&id.0).map_or(Poll::Pending, Poll::Ready)
    }

    fn forget(&self, id: OpId) {
        self.done.borrow_mut().remove(&id.0);
    }
}
