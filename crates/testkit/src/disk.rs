//! A disk in RAM whose content a test can read and damage.

use std::ops::Range;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use forebay_core::ManualClock;
use forebay_device::{
    Device, DeviceDone, DeviceError, DeviceOp, IoBuf, IoData, Queue, QueueContext, RamDevice,
};
use parking_lot::Mutex;

use crate::faults::Faults;
use crate::faulty::faulty;

/// Unit of damage in bytes.
const PAGE: usize = 4096;

/// Creates a device of `mib` MiB in RAM.
///
/// # Panics
/// If there is not enough memory.
pub fn ram(mib: u64) -> Arc<dyn Device> {
    RamDevice::new(&format!("ram:{mib}M"), mib << 20).expect("memory")
}

/// Reads `len` bytes at `offset` without a lane.
///
/// # Panics
/// If the device has to wait or fails.
pub fn peek(device: &Arc<dyn Device>, offset: u64, len: usize) -> Vec<u8> {
    at_once(device, DeviceOp::Read { offset, buf: IoBuf::zeroed(len) }).to_vec()
}

/// Writes `data` at `offset`, past any lane.
///
/// # Panics
/// Like [`peek`].
pub fn poke(device: &Arc<dyn Device>, offset: u64, data: &[u8]) {
    at_once(device, DeviceOp::Write { offset, data: IoData::Owned(IoBuf::copy_from(data)) });
}

/// Opens a device that needs neither a lane nor a ring.
///
/// # Errors
/// Errors of the device.
pub fn open_queue(device: &Arc<dyn Device>) -> Result<Queue, DeviceError> {
    let clock = Arc::new(ManualClock::default());
    device.open_queue(&QueueContext { clock, ring: None, tasks: None }).map(Queue::new)
}

fn at_once(device: &Arc<dyn Device>, op: DeviceOp) -> IoBuf {
    let queue = open_queue(device).expect("a queue");
    match pin!(queue.run(op)).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(DeviceDone { result: Ok(()), buf: Some(buf) }) => buf,
        other => panic!("{} does not work: {other:?}", device.name()),
    }
}

/// The content of a disk before each write.
type States = Arc<Mutex<Vec<Vec<u8>>>>;

/// A disk in RAM. Accesses with these methods bypass the faults and are not counted.
pub struct Disk {
    /// The device for the code under test.
    pub device: Arc<dyn Device>,
    /// Faults and counters of the disk.
    pub faults: Arc<Faults>,
    ram: Arc<dyn Device>,
    states: States,
}

impl Disk {
    /// Creates a disk with this content, whose length is a multiple of a page.
    ///
    /// # Panics
    /// If there is not enough memory.
    pub fn of(content: &[u8]) -> Disk {
        let ram: Arc<dyn Device> =
            RamDevice::new("disk", content.len() as u64).expect("whole pages, and memory");
        poke(&ram, 0, content);
        let (device, faults) = faulty(ram.clone());
        Disk { device, faults, ram, states: States::default() }
    }

    /// Returns the whole content.
    pub fn content(&self) -> Vec<u8> {
        content(&self.ram)
    }

    /// Replaces the whole content.
    pub fn overwrite(&self, content: &[u8]) {
        poke(&self.ram, 0, content);
    }

    /// Changes one page with `change`.
    pub fn edit(&self, page: usize, change: impl FnOnce(&mut [u8])) {
        let mut content = peek(&self.ram, bytes(page).start, PAGE);
        change(&mut content);
        poke(&self.ram, bytes(page).start, &content);
    }

    /// Makes every read of the page fail until it is written.
    pub fn make_unreadable(&self, page: usize) {
        self.faults.make_unreadable(bytes(page));
    }

    /// Starts to record the content after each write, for [`Disk::recorded`].
    pub fn record_writes(&self) {
        let (ram, states) = (self.ram.clone(), self.states.clone());
        self.faults.observe(move |op| {
            if !matches!(op, DeviceOp::Read { .. } | DeviceOp::Sync) {
                states.lock().push(content(&ram));
            }
        });
    }

    /// Returns the content after each write since [`Disk::record_writes`].
    pub fn recorded(&self) -> Vec<Vec<u8>> {
        let before = std::mem::take(&mut *self.states.lock());
        before.into_iter().chain([self.content()]).skip(1).collect()
    }
}

/// Returns the byte range of a page.
pub fn bytes(page: usize) -> Range<u64> {
    let start = (page * PAGE) as u64;
    start..start + PAGE as u64
}

fn content(device: &Arc<dyn Device>) -> Vec<u8> {
    peek(device, 0, device.size() as usize)
}
