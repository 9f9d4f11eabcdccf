//! The devices of the virtual world: a [`Timing`] and synthetic content.
//!
//! Every payload page is the same page, so it costs nothing to keep; what else is written to a
//! cache device (headers, marks, checkpoints) is kept, each page without its trailing zeroes. An
//! origin holds that same page everywhere. So hundreds of gigabytes fit into memory, and the
//! engine still reads back, and verifies, what it wrote.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};

use forebay_core::{Clock, Nanos};
use forebay_device::model::{ModelCounters, ModelOp};
use forebay_device::{
    Device, DeviceDone, DeviceError, DeviceErrorKind, DeviceOp, DeviceQueue, IoData, OpId, OpTable,
    QueueContext,
};
use parking_lot::Mutex;

use super::timing::Timing;

const PAGE: usize = 4096;
/// Nanoseconds by which a [`Timing`] may complete an operation before the time that it announced.
const ROUNDING: u64 = 2;
const SECTOR: usize = 512;
/// Every eight bytes of a payload.
const PAYLOAD: u64 = 0x464f_5245_4241_5921;

/// Fills with payload; `into` starts at a multiple of eight of its block.
pub(crate) fn fill_payload(into: &mut [u8]) {
    for chunk in into.chunks_exact_mut(8) {
        chunk.copy_from_slice(&PAYLOAD.to_le_bytes());
    }
}

/// Whether this sector is payload, by its ends: nothing else that is written has it there.
fn sector_is_payload(sector: &[u8]) -> bool {
    let word = PAYLOAD.to_le_bytes();
    sector.first_chunk::<8>() == Some(&word) && sector.last_chunk::<8>() == Some(&word)
}

fn page_is_payload(page: &[u8]) -> bool {
    page.chunks_exact(SECTOR).all(sector_is_payload)
}

/// A page that is not wholly payload.
enum Kept {
    /// Sectors with a bit are payload, the others zeroes.
    Sectors(u8),
    /// The bytes, without trailing zeroes.
    Bytes(Box<[u8]>),
}

/// Content of a device.
enum Content {
    /// Payload everywhere, whatever is written.
    Payload,
    /// Payload in pages that were written, but for those with a bit in `other`; zeroes elsewhere.
    Cache { written: Vec<u64>, other: Vec<u64>, kept: HashMap<u64, Kept>, keep: bool },
}

impl Content {
    fn read(&self, offset: u64, into: &mut [u8]) -> bool {
        let Content::Cache { written, other, kept, .. } = self else {
            fill_payload(into);
            return true;
        };
        let mut at = offset;
        for part in split(offset, into) {
            let page = at / PAGE as u64;
            let within = (at % PAGE as u64) as usize;
            at += part.len() as u64;
            if !bit(other, page) {
                if bit(written, page) {
                    fill_payload(part);
                } else {
                    part.fill(0);
                }
                continue;
            }
            match kept.get(&page) {
                // A header that was not kept cannot be read.
                None => return false,
                Some(Kept::Bytes(bytes)) => {
                    let rest = bytes.get(within..).unwrap_or(&[]);
                    let len = rest.len().min(part.len());
                    part[..len].copy_from_slice(&rest[..len]);
                    part[len..].fill(0);
                }
                Some(Kept::Sectors(mask)) => {
                    for (index, sector) in part.chunks_mut(SECTOR).enumerate() {
                        if mask >> (within / SECTOR + index) & 1 == 1 {
                            fill_payload(sector);
                        } else {
                            sector.fill(0);
                        }
                    }
                }
            }
        }
        true
    }

    fn write(&mut self, offset: u64, data: &[u8]) {
        if let Content::Payload = self {
            return;
        }
        let mut at = offset;
        let mut rest = data;
        while !rest.is_empty() {
            let page = at / PAGE as u64;
            let within = (at % PAGE as u64) as usize;
            let (part, next) = rest.split_at((PAGE - within).min(rest.len()));
            rest = next;
            at += part.len() as u64;
            if part.len() == PAGE {
                self.put(page, part);
            } else {
                let mut whole = [0; PAGE];
                self.read(page * PAGE as u64, &mut whole);
                whole[within..within + part.len()].copy_from_slice(part);
                self.put(page, &whole);
            }
        }
    }

    /// Writes a whole page.
    fn put(&mut self, page: u64, bytes: &[u8]) {
        let Content::Cache { written, other, kept, keep } = self else { return };
        set_bit(written, page, true);
        let payload = page_is_payload(bytes);
        if !payload && *keep {
            kept.insert(page, compact(bytes));
        } else if bit(other, page) {
            kept.remove(&page);
        }
        set_bit(other, page, !payload);
    }

    fn zero(&mut self, offset: u64, len: u64) {
        let Content::Cache { written, other, kept, .. } = self else { return };
        for page in offset / PAGE as u64..(offset + len).div_ceil(PAGE as u64) {
            set_bit(written, page, false);
            set_bit(other, page, false);
            kept.remove(&page);
        }
    }
}

fn compact(bytes: &[u8]) -> Kept {
    let mut mask = 0u8;
    for (index, sector) in bytes.chunks(SECTOR).enumerate() {
        if sector_is_payload(sector) {
            mask |= 1 << index;
        } else if sector.iter().any(|byte| *byte != 0) {
            let end = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
            return Kept::Bytes(bytes[..end].into());
        }
    }
    Kept::Sectors(mask)
}

fn bit(bits: &[u64], index: u64) -> bool {
    bits.get((index / 64) as usize).is_some_and(|word| word >> (index % 64) & 1 == 1)
}

fn set_bit(bits: &mut [u64], index: u64, to: bool) {
    if let Some(word) = bits.get_mut((index / 64) as usize) {
        *word = *word & !(1 << (index % 64)) | u64::from(to) << (index % 64);
    }
}

/// Cuts a buffer at the borders of pages.
fn split(offset: u64, into: &mut [u8]) -> impl Iterator<Item = &mut [u8]> {
    let first = (PAGE - (offset % PAGE as u64) as usize).min(into.len());
    let (head, tail) = into.split_at_mut(first);
    std::iter::once(head).chain(tail.chunks_mut(PAGE))
}

struct InFlight {
    done: DeviceDone,
    due: bool,
    forgotten: bool,
    waker: Option<Waker>,
}

struct Inner {
    timing: Timing,
    content: Content,
    ops: OpTable<InFlight>,
    completed: Vec<u64>,
    in_flight: usize,
    most_in_flight: usize,
}

/// The state of a device, and the time of its next completion; [`IDLE`] without one.
struct Shared {
    inner: Mutex<Inner>,
    next: AtomicU64,
}

const IDLE: u64 = u64::MAX;

impl Shared {
    /// Notes when the next operation ends, after a change.
    fn plan(&self, inner: &Inner) {
        let next = inner.timing.next_event().map_or(IDLE, |next| next.0);
        self.next.store(next, Ordering::Relaxed);
    }
}

pub(crate) struct VirtualDevice {
    name: Arc<str>,
    size: u64,
    shared: Arc<Shared>,
}

impl VirtualDevice {
    fn new(name: &str, size: u64, timing: Timing, content: Content) -> Arc<Self> {
        let inner = Inner {
            timing,
            content,
            ops: OpTable::default(),
            completed: Vec::new(),
            in_flight: 0,
            most_in_flight: 0,
        };
        let shared = Shared { inner: Mutex::new(inner), next: AtomicU64::new(IDLE) };
        Arc::new(VirtualDevice { name: name.into(), size, shared: Arc::new(shared) })
    }

    /// A device that holds payload, whatever is written to it.
    pub(crate) fn origin(size: u64, timing: Timing) -> Arc<Self> {
        Self::new("disk", size, timing, Content::Payload)
    }

    /// A device that can be a cache device.
    pub(crate) fn cache(size: u64, timing: Timing) -> Arc<Self> {
        let words = (size / PAGE as u64).div_ceil(64) as usize;
        let (written, other) = (vec![0; words], vec![0; words]);
        let content = Content::Cache { written, other, kept: HashMap::new(), keep: true };
        Self::new("ssd", size, timing, content)
    }

    /// Stops keeping headers, for caches that are so large that nothing is reclaimed. Reading a
    /// header that was not kept is an error.
    pub(crate) fn stop_keeping(&self) {
        if let Content::Cache { keep, .. } = &mut self.shared.inner.lock().content {
            *keep = false;
        }
    }

    /// Changes the timing and resets the counters. Returns `false`, and changes nothing, if
    /// operations are in flight.
    pub(crate) fn replace_timing(&self, timing: Timing) -> bool {
        let mut inner = self.shared.inner.lock();
        let idle = inner.timing.next_event().is_none();
        if idle {
            inner.timing = timing;
        }
        idle
    }

    pub(crate) fn counters(&self) -> ModelCounters {
        self.shared.inner.lock().timing.counters()
    }

    /// The most operations that were under way together since this was last asked.
    pub(crate) fn most_in_flight(&self) -> usize {
        let mut inner = self.shared.inner.lock();
        let now = inner.in_flight;
        std::mem::replace(&mut inner.most_in_flight, now)
    }

    /// Returns the time of the next completion for [`VirtualDevice::drive`].
    #[inline]
    pub(crate) fn next_event(&self) -> Option<Nanos> {
        let next = self.shared.next.load(Ordering::Relaxed);
        (next != IDLE).then_some(Nanos(next))
    }

    /// Wakes those whose operations have ended.
    #[inline]
    pub(crate) fn drive(&self, now: Nanos) {
        if self.shared.next.load(Ordering::Relaxed) <= now.0.saturating_add(ROUNDING) {
            self.complete(now);
        }
    }

    fn complete(&self, now: Nanos) {
        let mut inner = self.shared.inner.lock();
        let mut completed = std::mem::take(&mut inner.completed);
        inner.timing.advance(now, &mut completed);
        inner.in_flight -= completed.len();
        for id in completed.drain(..).map(OpId) {
            let Some(op) = inner.ops.get_mut(id) else { continue };
            op.due = true;
            if let Some(waker) = op.waker.take() {
                waker.wake();
            } else if op.forgotten {
                inner.ops.take(id);
            }
        }
        inner.completed = completed;
        self.shared.plan(&inner);
    }
}

impl Device for VirtualDevice {
    fn name(&self) -> &str {
        &self.name
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn logical_block(&self) -> u64 {
        512
    }

    fn writes_durably(&self) -> bool {
        self.shared.inner.lock().timing.writes_durably()
    }

    fn rotational(&self) -> Option<bool> {
        Some(self.shared.inner.lock().timing.is_rotational())
    }

    fn open_queue(&self, context: &QueueContext) -> Result<Rc<dyn DeviceQueue>, DeviceError> {
        Ok(Rc::new(VirtualQueue {
            name: self.name.clone(),
            size: self.size,
            clock: context.clock.clone(),
            shared: self.shared.clone(),
        }))
    }
}

struct VirtualQueue {
    name: Arc<str>,
    size: u64,
    clock: Arc<dyn Clock>,
    shared: Arc<Shared>,
}

impl VirtualQueue {
    fn error(&self, what: &'static str, offset: u64, cause: &str) -> DeviceError {
        let (device, cause) = (self.name.clone(), cause.into());
        DeviceError { kind: DeviceErrorKind::Invalid, device, what, offset, cause }
    }

    fn transfer(&self, content: &mut Content, op: DeviceOp, shape: &ModelOp) -> DeviceDone {
        let inside = shape.offset.checked_add(shape.len).is_some_and(|end| end <= self.size);
        if !inside {
            let result = Err(self.error("access", shape.offset, "outside the device"));
            return DeviceDone { result, buf: None };
        }
        match op {
            DeviceOp::Read { offset, mut buf } => {
                let kept = content.read(offset, &mut buf);
                let lost = || self.error("read", offset, "this page was not kept");
                DeviceDone { result: if kept { Ok(()) } else { Err(lost()) }, buf: Some(buf) }
            }
            DeviceOp::Write { offset, data: IoData::Owned(buf) } => {
                content.write(offset, &buf);
                DeviceDone { result: Ok(()), buf: Some(buf) }
            }
            DeviceOp::Write { offset, data: IoData::Log(log, range) }
            | DeviceOp::DurableWrite { offset, log, range } => {
                let result = match log.get(range) {
                    Some(bytes) => {
                        content.write(offset, bytes);
                        Ok(())
                    }
                    None => Err(self.error("write", offset, "these bytes are not published")),
                };
                DeviceDone { result, buf: None }
            }
            DeviceOp::Sync => DeviceDone { result: Ok(()), buf: None },
            DeviceOp::Discard { offset, len } | DeviceOp::WriteZeroes { offset, len } => {
                content.zero(offset, len);
                DeviceDone { result: Ok(()), buf: None }
            }
        }
    }
}

impl DeviceQueue for VirtualQueue {
    fn start(&self, op: DeviceOp) -> OpId {
        let now = self.clock.now();
        let shape = ModelOp::from(&op);
        let inner = &mut *self.shared.inner.lock();
        let done = self.transfer(&mut inner.content, op, &shape);
        let id = inner.ops.add(InFlight { done, due: false, forgotten: false, waker: None });
        inner.timing.submit(now, shape, id.0);
        self.shared.plan(inner);
        inner.in_flight += 1;
        inner.most_in_flight = inner.most_in_flight.max(inner.in_flight);
        id
    }

    fn poll_op(&self, id: OpId, context: &mut Context<'_>) -> Poll<DeviceDone> {
        let ops = &mut self.shared.inner.lock().ops;
        match ops.get_mut(id) {
            Some(op) if !op.due => match &mut op.waker {
                Some(waker) => waker.clone_from(context.waker()),
                none => *none = Some(context.waker().clone()),
            },
            _ => return ops.take(id).map_or(Poll::Pending, |op| Poll::Ready(op.done)),
        }
        Poll::Pending
    }

    fn forget(&self, id: OpId) {
        let ops = &mut self.shared.inner.lock().ops;
        match ops.get_mut(id) {
            Some(op) if !op.due => (op.waker, op.forgotten) = (None, true),
            _ => drop(ops.take(id)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content() -> Content {
        Content::Cache { written: vec![0; 4], other: vec![0; 4], kept: HashMap::new(), keep: true }
    }

    fn kept(content: &Content) -> usize {
        match content {
            Content::Cache { kept, .. } => kept.len(),
            Content::Payload => 0,
        }
    }

    #[test]
    fn payload_costs_nothing_and_everything_reads_back() {
        let mut content = content();
        let mut payload = vec![0; PAGE];
        fill_payload(&mut payload);
        let mut header = vec![0; PAGE];
        header[..100].fill(7);
        let mut half = vec![0; PAGE];
        fill_payload(&mut half[..512]);
        fill_payload(&mut half[PAGE - 512..]);
        for (page, bytes) in [(0, &payload), (1, &header), (2, &half), (3, &payload)] {
            content.write(page * PAGE as u64, bytes);
        }
        assert_eq!(kept(&content), 2);
        let mut all = vec![9; 4 * PAGE];
        assert!(content.read(0, &mut all));
        assert_eq!(all, [&payload[..], &header, &half, &payload].concat());
        content.write(PAGE as u64, &payload);
        content.write(2 * PAGE as u64 + 512, &[0; 512]);
        let mut back = vec![9; PAGE + 512];
        assert!(content.read(2 * PAGE as u64 - 512, &mut back));
        assert_eq!(back, [&payload[..512], &half].concat());
        assert_eq!(kept(&content), 1);
    }

    #[test]
    fn reading_a_header_that_was_not_kept_is_an_error() {
        let mut content = content();
        if let Content::Cache { keep, .. } = &mut content {
            *keep = false;
        }
        content.write(0, &[7; PAGE]);
        assert!(!content.read(0, &mut [0; PAGE]));
        let mut back = [9; PAGE];
        assert!(content.read(PAGE as u64, &mut back));
        assert_eq!(back, [0; PAGE]);
    }
}
