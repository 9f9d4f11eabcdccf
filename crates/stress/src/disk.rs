//! Devices in RAM that all lanes use simultaneously, with a volatile write cache, power cuts and
//! failures.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll};

use forebay_device::{
    Device, DeviceDone, DeviceError, DeviceErrorKind, DeviceOp, DeviceQueue, IoData, OpId, OpTable,
    QueueContext,
};
use forebay_engine::{Ledger, Note, Noted};
use parking_lot::{Mutex, RwLock};

/// Number of bytes that one lock protects.
const PART: usize = 32 << 10;
/// The unit of a torn write, in bytes: a power cut keeps or loses it as a whole.
const ATOM: usize = 512;

/// Held for reading while a device changes, and for writing at the instant at which the power fails
/// on all devices.
pub(crate) type Power = Arc<RwLock<()>>;

/// The behaviour of a device.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Nature {
    /// Whether log writes to the device can be durable on completion.
    pub(crate) writes_durably: bool,
    /// Whether the device can be read without waiting.
    pub(crate) reads_at_once: bool,
    /// Maximum number of turns of a lane that an operation takes.
    pub(crate) turns: u32,
}

/// Failing operations, per million.
#[derive(Default)]
pub(crate) struct Failures {
    pub(crate) reads: AtomicU32,
    pub(crate) writes: AtomicU32,
    pub(crate) syncs: AtomicU32,
}

/// A write in the volatile cache.
struct Unsynced {
    number: u64,
    offset: usize,
    data: Vec<u8>,
}

/// The content after a power cut.
#[derive(Default)]
struct Medium {
    image: Vec<u8>,
    /// Writes in order.
    unsynced: Vec<Unsynced>,
    /// A sync has failed over the writes up to this number: no later sync makes them durable,
    /// though they may survive a power cut.
    given_up: u64,
    next: u64,
}

impl Unsynced {
    fn range(&self) -> Range<usize> {
        self.offset..self.offset + self.data.len()
    }
}

impl Medium {
    /// Drops writes that overlap a newer durable write, which is given by its number and range: no
    /// power cut restores them.
    fn forget_older(&mut self, durable: &[(u64, Range<usize>)]) {
        self.unsynced.retain(|old| {
            let own = old.range();
            !durable.iter().any(|(number, range)| {
                old.number < *number && own.start < range.end && range.start < own.end
            })
        });
    }
}

/// See the module.
pub(crate) struct Disk {
    name: String,
    nature: Nature,
    content: Box<[RwLock<Box<[u8]>>]>,
    size: u64,
    medium: Mutex<Medium>,
    pub(crate) failures: Failures,
    power: Power,
}

impl Disk {
    pub(crate) fn new(name: &str, image: Vec<u8>, nature: Nature, power: &Power) -> Arc<Self> {
        Arc::new(Disk {
            name: name.to_owned(),
            nature,
            content: image.chunks(PART).map(|part| RwLock::new(part.into())).collect(),
            size: image.len() as u64,
            medium: Mutex::new(Medium { image, ..Medium::default() }),
            failures: Failures::default(),
            power: power.clone(),
        })
    }

    /// The device for the engine.
    pub(crate) fn device(self: &Arc<Self>) -> Arc<dyn Device> {
        Arc::new(DiskRef(self.clone()))
    }

    /// Calls `visit` for each part of a range, with the offset within the part.
    fn parts(offset: usize, len: usize, mut visit: impl FnMut(usize, usize, Range<usize>)) {
        let mut done = 0;
        while done < len {
            let at = offset + done;
            let some = (PART - at % PART).min(len - done);
            visit(at / PART, at % PART, done..done + some);
            done += some;
        }
    }

    pub(crate) fn read(&self, offset: u64, into: &mut [u8]) {
        let len = into.len();
        Self::parts(offset as usize, len, |part, at, range| {
            let content = self.content[part].read();
            into[range.clone()].copy_from_slice(&content[at..at + range.len()]);
        });
    }

    fn write(&self, offset: u64, data: &[u8], durably: bool) {
        let _powered = self.power.read();
        let offset = offset as usize;
        Self::parts(offset, data.len(), |part, at, range| {
            let mut content = self.content[part].write();
            content[at..at + range.len()].copy_from_slice(&data[range]);
        });
        let medium = &mut *self.medium.lock();
        if durably {
            let range = offset..offset + data.len();
            medium.image[range.clone()].copy_from_slice(data);
            medium.forget_older(&[(medium.next, range)]);
            return;
        }
        let number = medium.next;
        medium.next += 1;
        medium.unsynced.push(Unsynced { number, offset, data: data.to_vec() });
    }

    /// Makes the writes durable that were made before the sync began, unless an earlier sync has
    /// failed over them.
    fn sync(&self, begun: u64) {
        let _powered = self.power.read();
        let medium = &mut *self.medium.lock();
        let (image, given_up, mut durable) = (&mut medium.image, medium.given_up, Vec::new());
        medium.unsynced.retain(|write| {
            let stays = write.number >= begun || write.number < given_up;
            if !stays {
                image[write.range()].copy_from_slice(&write.data);
                durable.push((write.number, write.range()));
            }
            stays
        });
        medium.forget_older(&durable);
    }

    /// Behaves like a system whose sync fails: the failure is reported once, and the writes are
    /// dropped.
    fn sync_fails(&self, begun: u64) {
        let medium = &mut *self.medium.lock();
        medium.given_up = medium.given_up.max(begun);
    }

    /// Returns the content that remains if the power fails now. Of the data that is not durable, a
    /// random part remains, and writes may be torn. The caller has cut the power.
    pub(crate) fn left(&self, random: &mut fastrand::Rng) -> Vec<u8> {
        let medium = self.medium.lock();
        let mut image = medium.image.clone();
        let spared = [0, 30, 70, 100][random.usize(..4)];
        for write in &medium.unsynced {
            if random.u32(..100) >= spared {
                continue;
            }
            let atoms = write.data.len() / ATOM;
            let torn = random.u32(..4) == 0;
            let range = if torn { 0..random.usize(..=atoms) * ATOM } else { 0..write.data.len() };
            image[write.offset..][range.clone()].copy_from_slice(&write.data[range]);
        }
        image
    }

    fn fails(&self, op: &DeviceOp, random: &mut fastrand::Rng) -> Option<DeviceError> {
        let rate = match op {
            DeviceOp::Read { .. } => &self.failures.reads,
            DeviceOp::Sync => &self.failures.syncs,
            _ => &self.failures.writes,
        };
        let rate = rate.load(Ordering::Relaxed);
        (rate > 0 && random.u32(..1_000_000) < rate).then(|| DeviceError {
            kind: DeviceErrorKind::Io,
            device: self.name.as_str().into(),
            what: op.what(),
            offset: op.range().map_or(0, |range| range.start),
            cause: "it fails by chance".into(),
        })
    }
}

struct DiskRef(Arc<Disk>);

impl Device for DiskRef {
    fn name(&self) -> &str {
        &self.0.name
    }

    fn size(&self) -> u64 {
        self.0.size
    }

    fn logical_block(&self) -> u64 {
        ATOM as u64
    }

    fn writes_durably(&self) -> bool {
        self.0.nature.writes_durably
    }

    fn open_queue(&self, context: &QueueContext) -> Result<Rc<dyn DeviceQueue>, DeviceError> {
        let seed = context.clock.now().0;
        Ok(Rc::new(DiskQueue {
            disk: self.0.clone(),
            random: RefCell::new(fastrand::Rng::with_seed(seed)),
            ops: RefCell::default(),
        }))
    }
}

/// An operation, with its remaining turns and the number of the next write when it began.
struct Doing {
    op: Option<DeviceOp>,
    turns: u32,
    begun: u64,
}

struct DiskQueue {
    disk: Arc<Disk>,
    random: RefCell<fastrand::Rng>,
    ops: RefCell<OpTable<Doing>>,
}

impl DiskQueue {
    fn carry_out(&self, op: DeviceOp, begun: u64) -> DeviceDone {
        if let Some(error) = self.disk.fails(&op, &mut self.random.borrow_mut()) {
            if matches!(op, DeviceOp::Sync) {
                self.disk.sync_fails(begun);
            }
            return DeviceDone { result: Err(error), buf: op.into_buf() };
        }
        let of_log = |log: &forebay_device::LogBuffer, range: Range<usize>| {
            log.get(range).map(<[u8]>::to_vec).unwrap_or_default()
        };
        let done = |buf| DeviceDone { result: Ok(()), buf };
        match op {
            DeviceOp::Read { offset, mut buf } => {
                self.disk.read(offset, &mut buf);
                done(Some(buf))
            }
            DeviceOp::Write { offset, data: IoData::Owned(buf) } => {
                self.disk.write(offset, &buf, false);
                done(Some(buf))
            }
            DeviceOp::Write { offset, data: IoData::Log(log, range) } => {
                self.disk.write(offset, &of_log(&log, range), false);
                done(None)
            }
            DeviceOp::DurableWrite { offset, log, range } => {
                self.disk.write(offset, &of_log(&log, range), true);
                done(None)
            }
            DeviceOp::Sync => {
                self.disk.sync(begun);
                done(None)
            }
            DeviceOp::Discard { offset, len } | DeviceOp::WriteZeroes { offset, len } => {
                self.disk.write(offset, &vec![0; len as usize], false);
                done(None)
            }
        }
    }
}

impl DeviceQueue for DiskQueue {
    fn start(&self, op: DeviceOp) -> OpId {
        let turns = self.random.borrow_mut().u32(..=self.disk.nature.turns);
        let begun = self.disk.medium.lock().next;
        self.ops.borrow_mut().add(Doing { op: Some(op), turns, begun })
    }

    fn poll_op(&self, id: OpId, context: &mut Context<'_>) -> Poll<DeviceDone> {
        let doing = {
            let mut ops = self.ops.borrow_mut();
            match ops.get_mut(id) {
                Some(doing) if doing.turns > 0 => {
                    doing.turns -= 1;
                    context.waker().wake_by_ref();
                    return Poll::Pending;
                }
                _ => ops.take(id),
            }
        };
        match doing.and_then(|Doing { op, begun, .. }| Some((op?, begun))) {
            Some((op, begun)) => Poll::Ready(self.carry_out(op, begun)),
            None => Poll::Pending,
        }
    }

    fn forget(&self, id: OpId) {
        let doing = self.ops.borrow_mut().take(id);
        if let Some((op, begun)) = doing.and_then(|Doing { op, begun, .. }| Some((op?, begun))) {
            self.carry_out(op, begun);
        }
    }

    fn read_now(&self, offset: u64, into: &mut [u8]) -> Option<Result<(), DeviceError>> {
        let fails = self.disk.failures.reads.load(Ordering::Relaxed) > 0;
        (self.disk.nature.reads_at_once && !fails).then(|| {
            self.disk.read(offset, into);
            Ok(())
        })
    }

    fn reads_now(&self) -> bool {
        self.disk.nature.reads_at_once
    }
}

/// Notes that are stored outside the devices, and are durable as soon as they are written.
pub(crate) struct Book {
    notes: Mutex<HashMap<String, Note>>,
    power: Power,
}

impl Book {
    pub(crate) fn new(notes: HashMap<String, Note>, power: &Power) -> Arc<Self> {
        Arc::new(Book { notes: Mutex::new(notes), power: power.clone() })
    }

    /// Returns all notes. The caller has cut the power.
    pub(crate) fn left(&self) -> HashMap<String, Note> {
        self.notes.lock().clone()
    }
}

impl Ledger for Book {
    fn note_of(&self, volume: &str) -> Option<Note> {
        self.notes.lock().get(volume).cloned()
    }

    fn write(&self, volume: &str, note: Note, noted: Noted) {
        let powered = self.power.read();
        self.notes.lock().insert(volume.to_owned(), note);
        drop(powered);
        noted(Ok(()));
    }
}
