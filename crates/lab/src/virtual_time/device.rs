//! The devices of the virtual world: a [`Timing`] and synthetic content.
//!
//! Every payload page is the same page, so it costs nothing to keep; what else is written to a
//! cache device (headers, marks, checkpoints) is kept, each page without its trailing zeroes. An
//! origin holds that same page everywhere. So hundreds of gigabytes fit into memory, and the
//! engine still reads back, and verifies, what it wrote.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use forebay_core::{Clock, Nanos};
use forebay_device::model::{ModelCounters, ModelOp};
use forebay_device::{
    Device, DeviceDone, DeviceError, DeviceErrorKind, DeviceOp, DeviceQueue, IoData, OpId,
    QueueContext,
};
use parking_lot::Mutex;

use super::timing::Timing;

const PAGE: usize = 4096;
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
        let Content::Cache { written, other, kept, keep } = self else { return };
        let mut at = offset;
        let mut rest = data;
        while !rest.is_empty() {
            let page = at / PAGE as u64;
            let within = (at % PAGE as u64) as usize;
            let (part, next) = rest.split_at((PAGE - within).min(rest.len()));
            rest = next;
            at += part.len() as u64;
            let blank = !bit(written, page);
            if blank {
                set_bit(written, page, true);
            }
            if part.len() == PAGE && page_is_payload(part) {
                if bit(other, page) {
                    set_bit(other, page, false);
                    kept.remove(&page);
                }
                continue;
            }
            let mut whole = [0; PAGE];
            let bytes = if part.len() == PAGE {
                part
            } else {
                read_page(blank || bit(other, page), kept.get(&page), &mut whole);
                whole[within..within + part.len()].copy_from_slice(part);
                &whole
            };
            set_bit(other, page, true);
            if *keep {
                kept.insert(page, compact(bytes));
            } else {
                kept.remove(&page);
            }
        }
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

fn read_page(zeroes: bool, kept: Option<&Kept>, whole: &mut [u8; PAGE]) {
    match kept {
        Some(Kept::Bytes(bytes)) => whole[..bytes.len()].copy_from_slice(bytes),
        Some(Kept::Sectors(mask)) => {
            for (index, sector) in whole.chunks_mut(SECTOR).enumerate() {
                if mask >> index & 1 == 1 {
                    fill_payload(sector);
                }
            }
        }
        None if zeroes => (),
        None => fill_payload(whole),
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
    uses: u32,
    done: Option<DeviceDone>,
    due: bool,
    forgotten: bool,
    waker: Option<Waker>,
}

struct Inner {
    timing: Timing,
    content: Content,
    places: Vec<InFlight>,
    free: Vec<u32>,
    completed: Vec<u32>,
    in_flight: usize,
    most_in_flight: usize,
}

pub(crate) struct VirtualDevice {
    name: Arc<str>,
    size: u64,
    inner: Arc<Mutex<Inner>>,
}

impl VirtualDevice {
    fn new(name: &str, size: u64, timing: Timing, content: Content) -> Arc<Self> {
        let inner = Inner {
            timing,
            content,
            places: Vec::new(),
            free: Vec::new(),
            completed: Vec::new(),
            in_flight: 0,
            most_in_flight: 0,
        };
        Arc::new(VirtualDevice { name: name.into(), size, inner: Arc::new(Mutex::new(inner)) })
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
        if let Content::Cache { keep, .. } = &mut self.inner.lock().content {
            *keep = false;
        }
    }

    /// Changes the timing and resets the counters. Returns `false`, and changes nothing, if
    /// operations are in flight.
    pub(crate) fn replace_timing(&self, timing: Timing) -> bool {
        let mut inner = self.inner.lock();
        let idle = inner.timing.next_event().is_none();
        if idle {
            inner.timing = timing;
        }
        idle
    }

    pub(crate) fn counters(&self) -> ModelCounters {
        self.inner.lock().timing.counters()
    }

    /// The most operations that were under way together since this was last asked.
    pub(crate) fn most_in_flight(&self) -> usize {
        let mut inner = self.inner.lock();
        let now = inner.in_flight;
        std::mem::replace(&mut inner.most_in_flight, now)
    }

    /// Returns the time of the next completion for [`VirtualDevice::drive`].
    pub(crate) fn next_event(&self) -> Option<Nanos> {
        self.inner.lock().timing.next_event()
    }

    /// Wakes those whose operations have ended.
    pub(crate) fn drive(&self, now: Nanos) {
        let mut inner = self.inner.lock();
        let mut completed = std::mem::take(&mut inner.completed);
        inner.timing.advance(now, &mut completed);
        inner.in_flight -= completed.len();
        for place in completed.drain(..) {
            let op = &mut inner.places[place as usize];
            op.due = true;
            if let Some(waker) = op.waker.take() {
                waker.wake();
            } else if op.forgotten {
                op.done = None;
                inner.free.push(place);
            }
        }
        inner.completed = completed;
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
        self.inner.lock().timing.writes_durably()
    }

    fn rotational(&self) -> Option<bool> {
        Some(self.inner.lock().timing.is_rotational())
    }

    fn open_queue(&self, context: &QueueContext) -> Result<Rc<dyn DeviceQueue>, DeviceError> {
        Ok(Rc::new(VirtualQueue {
            name: self.name.clone(),
            size: self.size,
            clock: context.clock.clone(),
            inner: self.inner.clone(),
        }))
    }
}

struct VirtualQueue {
    name: Arc<str>,
    size: u64,
    clock: Arc<dyn Clock>,
    inner: Arc<Mutex<Inner>>,
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
        let inner = &mut *self.inner.lock();
        let done = self.transfer(&mut inner.content, op, &shape);
        let place = inner.free.pop().unwrap_or_else(|| {
            let empty = InFlight { uses: 0, done: None, due: false, forgotten: false, waker: None };
            inner.places.push(empty);
            (inner.places.len() - 1) as u32
        });
        let op = &mut inner.places[place as usize];
        op.uses = op.uses.wrapping_add(1);
        (op.done, op.due, op.forgotten) = (Some(done), false, false);
        let id = OpId(u64::from(op.uses) << 32 | u64::from(place));
        inner.timing.submit(now, shape, place);
        inner.in_flight += 1;
        inner.most_in_flight = inner.most_in_flight.max(inner.in_flight);
        id
    }

    fn poll_op(&self, id: OpId, context: &mut Context<'_>) -> Poll<DeviceDone> {
        let inner = &mut *self.inner.lock();
        let place = id.0 as u32;
        let Some(op) = inner.places.get_mut(place as usize) else { return Poll::Pending };
        if u64::from(op.uses) != id.0 >> 32 {
            return Poll::Pending;
        }
        if !op.due {
            match &mut op.waker {
                Some(waker) => waker.clone_from(context.waker()),
                none => *none = Some(context.waker().clone()),
            }
            return Poll::Pending;
        }
        match op.done.take() {
            Some(done) => {
                inner.free.push(place);
                Poll::Ready(done)
            }
            None => Poll::Pending,
        }
    }

    fn forget(&self, id: OpId) {
        let inner = &mut *self.inner.lock();
        let place = id.0 as u32;
        if let Some(op) = inner.places.get_mut(place as usize)
            && u64::from(op.uses) == id.0 >> 32
        {
            op.waker = None;
            op.forgotten = true;
            if op.due && op.done.take().is_some() {
                inner.free.push(place);
            }
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
