//! Volumes without a cache: they measure the cost of the front end alone, and serve its tests.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use forebay_core::{IoError, Op, Sectors};
use forebay_device::IoBuf;
use forebay_engine::{BlockService, Completion, CompletionSink, Exports, Extent, Request};
use forebay_lane::Lane;
use parking_lot::RwLock;

/// Bytes per allocation in a [`MemoryDisk`].
const CHUNK: u64 = 1 << 20;

/// Operations of a target that never waits; the macro below derives the rest.
trait Immediate {
    fn size(&self) -> u64;
    fn read_only(&self) -> bool;
    fn read(&self, offset: u64, into: &mut [u8]);
    fn write(&self, offset: u64, data: &[u8]);
    /// With `no_hole` the zeroes stay allocated.
    fn zero(&self, offset: u64, len: u64, no_hole: bool);
    fn holes(&self, offset: u64, len: u64) -> Vec<Extent>;

    fn check(&self, op: Op, offset: u64, len: u64) -> Result<(), IoError> {
        let writes = matches!(op, Op::Write | Op::WriteZeroes | Op::Discard);
        if writes && self.read_only() {
            return Err(IoError::NotSupported);
        }
        let inside = offset.checked_add(len).is_some_and(|end| end <= self.size());
        match op {
            _ if inside => Ok(()),
            Op::Write | Op::WriteZeroes => Err(IoError::NoSpace),
            _ => Err(IoError::Invalid),
        }
    }

    fn answer(&self, request: Request) -> Completion {
        let Request { tag, op, offset, len, no_hole, data, .. } = request;
        let mut completion = Completion { tag, result: self.check(op, offset, len), data };
        if completion.result.is_err() {
            return completion;
        }
        match op {
            Op::Read => {
                let buf = completion.data.take();
                let mut buf = buf.unwrap_or_else(|| IoBuf::for_overwrite(len as usize));
                self.read(offset, &mut buf);
                completion.data = Some(buf);
            }
            Op::Write => match &completion.data {
                Some(data) => self.write(offset, data),
                None => completion.result = Err(IoError::Invalid),
            },
            Op::WriteZeroes | Op::Discard => self.zero(offset, len, no_hole),
            Op::Flush | Op::Prefetch => {}
        }
        completion
    }
}

macro_rules! immediate_target {
    ($type:ty) => {
        impl BlockService for $type {
            fn size(&self) -> u64 {
                Immediate::size(self)
            }

            fn preferred_block(&self) -> u64 {
                4096
            }

            fn read_only(&self) -> bool {
                Immediate::read_only(self)
            }

            fn read_now(&self, offset: u64, into: &mut [u8]) -> Option<Result<(), IoError>> {
                let checked = self.check(Op::Read, offset, into.len() as u64);
                Some(checked.map(|()| self.read(offset, into)))
            }

            fn write_now(&self, offset: u64, data: &[u8]) -> Option<Result<(), IoError>> {
                let checked = self.check(Op::Write, offset, data.len() as u64);
                Some(checked.map(|()| self.write(offset, data)))
            }

            fn submit(&self, request: Request, sink: &Rc<dyn CompletionSink>) {
                sink.complete(self.answer(request));
            }

            fn extents(&self, offset: u64, len: u64) -> Vec<Extent> {
                self.holes(offset, len)
            }
        }
    };
}

/// Reads as zeroes and discards writes.
#[derive(Clone, Copy, Debug)]
pub struct NullTarget {
    size: u64,
    read_only: bool,
}

impl NullTarget {
    /// Creates a volume of `size` bytes.
    pub fn new(size: u64, read_only: bool) -> Self {
        NullTarget { size, read_only }
    }
}

impl Immediate for NullTarget {
    fn size(&self) -> u64 {
        self.size
    }

    fn read_only(&self) -> bool {
        self.read_only
    }

    fn read(&self, _offset: u64, into: &mut [u8]) {
        into.fill(0);
    }

    fn write(&self, _offset: u64, _data: &[u8]) {}

    fn zero(&self, _offset: u64, _len: u64, _no_hole: bool) {}

    fn holes(&self, _offset: u64, len: u64) -> Vec<Extent> {
        vec![Extent { len, hole: true, zero: true }]
    }
}

immediate_target!(NullTarget);

/// A sparse RAM disk that all lanes share.
#[derive(Debug)]
pub struct MemoryDisk {
    size: u64,
    chunks: Vec<RwLock<Option<Box<[u8]>>>>,
}

impl MemoryDisk {
    /// Creates a disk of `size` bytes that reads as zeroes. RAM is allocated on write.
    pub fn new(size: u64) -> Arc<Self> {
        let chunks = (0..size.div_ceil(CHUNK)).map(|_| RwLock::new(None)).collect();
        Arc::new(MemoryDisk { size, chunks })
    }

    /// Calls `each` with the chunk, the range in it and the position in the request.
    fn pieces(
        &self,
        offset: u64,
        len: u64,
        mut each: impl FnMut(&RwLock<Option<Box<[u8]>>>, std::ops::Range<usize>, usize),
    ) {
        let mut at = offset;
        while at < offset + len {
            let start = at % CHUNK;
            let end = CHUNK.min(start + (offset + len - at));
            if let Some(chunk) = self.chunks.get((at / CHUNK) as usize) {
                each(chunk, start as usize..end as usize, (at - offset) as usize);
            }
            at += end - start;
        }
    }
}

/// A [`MemoryDisk`] as served by one lane.
#[derive(Clone, Debug)]
pub struct MemoryTarget(pub Arc<MemoryDisk>);

impl Immediate for MemoryTarget {
    fn size(&self) -> u64 {
        self.0.size
    }

    fn read_only(&self) -> bool {
        false
    }

    fn read(&self, offset: u64, into: &mut [u8]) {
        self.0.pieces(offset, into.len() as u64, |chunk, range, at| {
            let into = &mut into[at..at + range.len()];
            match chunk.read().as_ref() {
                Some(bytes) => into.copy_from_slice(&bytes[range]),
                None => into.fill(0),
            }
        });
    }

    fn write(&self, offset: u64, data: &[u8]) {
        self.0.pieces(offset, data.len() as u64, |chunk, range, at| {
            let mut chunk = chunk.write();
            let bytes = chunk.get_or_insert_with(|| vec![0; CHUNK as usize].into());
            bytes[range.clone()].copy_from_slice(&data[at..at + range.len()]);
        });
    }

    fn zero(&self, offset: u64, len: u64, no_hole: bool) {
        self.0.pieces(offset, len, |chunk, range, _| {
            let mut chunk = chunk.write();
            if no_hole {
                chunk.get_or_insert_with(|| vec![0; CHUNK as usize].into())[range].fill(0);
            } else if range.len() as u64 == CHUNK {
                *chunk = None;
            } else if let Some(bytes) = chunk.as_mut() {
                bytes[range].fill(0);
            }
        });
    }

    fn holes(&self, offset: u64, len: u64) -> Vec<Extent> {
        let mut extents: Vec<Extent> = Vec::new();
        self.0.pieces(offset, len, |chunk, range, _| {
            let (len, hole) = (range.len() as u64, chunk.read().is_none());
            match extents.last_mut() {
                Some(last) if last.hole == hole => last.len += len,
                _ => extents.push(Extent { len, hole, zero: hole }),
            }
        });
        extents
    }
}

immediate_target!(MemoryTarget);

/// Wraps a target so that every answer comes later, and only once released.
pub struct LaterTarget {
    inner: Rc<dyn BlockService>,
    lane: Rc<Lane>,
    held: Rc<Held>,
}

#[derive(Default)]
struct Held {
    holding: Cell<bool>,
    requests: RefCell<VecDeque<(Request, Rc<dyn CompletionSink>)>>,
    submitted: Cell<usize>,
}

impl LaterTarget {
    /// Creates a wrapper around `inner` that answers after the lane's other work.
    pub fn new(lane: Rc<Lane>, inner: Rc<dyn BlockService>) -> Self {
        LaterTarget { inner, lane, held: Rc::default() }
    }

    /// Holds requests from now on, until [`LaterTarget::release`].
    pub fn hold(&self) {
        self.held.holding.set(true);
    }

    /// Returns the number of held requests.
    pub fn waiting(&self) -> usize {
        self.held.requests.borrow().len()
    }

    /// Returns the number of requests submitted so far.
    pub fn submitted(&self) -> usize {
        self.held.submitted.get()
    }

    /// Releases held requests, last first, and stops holding.
    pub fn release(&self) {
        self.held.holding.set(false);
        let waiting = std::mem::take(&mut *self.held.requests.borrow_mut());
        for (request, sink) in waiting.into_iter().rev() {
            self.inner.submit(request, &sink);
        }
    }

    /// Fails the held requests.
    pub fn fail(&self, error: IoError) {
        for (Request { tag, data, .. }, sink) in self.held.requests.take() {
            sink.complete(Completion { tag, result: Err(error), data });
        }
    }
}

impl BlockService for LaterTarget {
    fn size(&self) -> u64 {
        self.inner.size()
    }

    fn preferred_block(&self) -> u64 {
        self.inner.preferred_block()
    }

    fn sectors(&self) -> Sectors {
        self.inner.sectors()
    }

    fn read_only(&self) -> bool {
        self.inner.read_only()
    }

    fn read_now(&self, _offset: u64, _into: &mut [u8]) -> Option<Result<(), IoError>> {
        None
    }

    fn write_now(&self, _offset: u64, _data: &[u8]) -> Option<Result<(), IoError>> {
        None
    }

    fn submit(&self, request: Request, sink: &Rc<dyn CompletionSink>) {
        self.held.submitted.set(self.held.submitted.get() + 1);
        let sink = sink.clone();
        if self.held.holding.get() {
            self.held.requests.borrow_mut().push_back((request, sink));
            return;
        }
        let inner = self.inner.clone();
        self.lane.spawn(async move {
            forebay_lane::yield_now().await;
            inner.submit(request, &sink);
        });
    }

    fn extents(&self, offset: u64, len: u64) -> Vec<Extent> {
        self.inner.extents(offset, len)
    }
}

/// A fixed list of volumes.
pub struct ExportList {
    volumes: Vec<(String, Rc<dyn BlockService>)>,
}

impl ExportList {
    /// Creates a list of these volumes, in this order.
    pub fn new(volumes: Vec<(String, Rc<dyn BlockService>)>) -> Self {
        ExportList { volumes }
    }
}

impl Exports for ExportList {
    fn names(&self) -> Vec<String> {
        self.volumes.iter().map(|(name, _)| name.clone()).collect()
    }

    fn open(&self, name: &str) -> Option<Rc<dyn BlockService>> {
        let found = self.volumes.iter().find(|(known, _)| known == name);
        found.map(|(_, target)| target.clone())
    }
}
