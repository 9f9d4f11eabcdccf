//! The lower tier of the tests: a disk with a volatile write cache. The test decides when requests
//! take effect and when they end.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;

use forebay_core::{IoError, Op, Survives};
use forebay_device::IoBuf;
use forebay_engine::{BlockService, Completion, CompletionSink, Extent, Request};

use super::{SECTOR, fill, request, sectors, value};

/// A sector's content.
#[derive(Clone, Copy, Default)]
struct Content {
    value: u32,
    /// Greater for later writes.
    version: u64,
}

/// See the module. The chances are in percent.
#[derive(Default)]
pub(super) struct Disk {
    image: RefCell<Vec<Content>>,
    /// The content after a crash.
    stable: RefCell<Vec<Content>>,
    version: Cell<u64>,
    losses: Cell<u64>,
    /// Number of uses that were reported.
    pub(super) told: Cell<u64>,
    /// Ranges that were offered, and whether the offers were current.
    pub(super) offers: RefCell<Vec<(Range<usize>, bool)>>,
    waiting: RefCell<Vec<Waiting>>,
    /// Every request that took effect or failed: operation, offset, length.
    pub(super) log: RefCell<Vec<(Op, u64, u64)>>,
    /// Size of a block, in bytes.
    pub(super) block: Cell<u64>,
    /// Chance that a small request is answered at once.
    pub(super) quick: Cell<u32>,
    /// Chance that a write fails after it took effect in part.
    pub(super) fails: Cell<u32>,
    /// Chance that a read fails.
    pub(super) read_fails: Cell<u32>,
    /// Chance that a discarded sector becomes zero.
    pub(super) discards: Cell<u32>,
    /// Sectors that cannot be read.
    pub(super) unreadable: RefCell<Range<usize>>,
    /// Sectors that cannot be written.
    pub(super) unwritable: RefCell<Range<usize>>,
    pub(super) read_only: Cell<bool>,
    rng: RefCell<fastrand::Rng>,
}

struct Waiting {
    request: Request,
    sink: Rc<dyn CompletionSink>,
    /// For a flush: the content that it makes durable.
    flushed: Vec<Content>,
    done: Option<Result<(), IoError>>,
}

impl Waiting {
    fn end(self) {
        let Waiting { request, sink, done, .. } = self;
        let result = done.expect("it has taken effect");
        sink.complete(Completion { tag: request.tag, result, data: request.data });
    }
}

impl Disk {
    pub(super) fn new(sectors: u64, rng: fastrand::Rng) -> Rc<Self> {
        let empty = || RefCell::new(vec![Content::default(); sectors as usize]);
        let block = Cell::new(SECTOR as u64);
        let rng = RefCell::new(rng);
        Rc::new(Disk { image: empty(), stable: empty(), block, rng, ..Disk::default() })
    }

    /// Returns the content that a read of a sector returns.
    pub(super) fn now(&self, sector: usize) -> u32 {
        self.image.borrow()[sector].value
    }

    /// Returns the content of a sector after a crash.
    pub(super) fn after_a_crash(&self, sector: usize) -> u32 {
        self.stable.borrow()[sector].value
    }

    /// Returns the requests of one kind so far: offset, length.
    pub(super) fn requests(&self, op: Op) -> Vec<(u64, u64)> {
        let log = self.log.borrow();
        log.iter().filter(|entry| entry.0 == op).map(|entry| (entry.1, entry.2)).collect()
    }

    /// Returns the number of requests without an answer.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.borrow().len()
    }

    /// Ends all failures.
    pub(super) fn repair(&self) {
        self.fails.set(0);
        self.read_fails.set(0);
        self.unreadable.replace(0..0);
        self.unwritable.replace(0..0);
    }

    /// Loses the writes to a range that no flush has covered.
    pub(super) fn lose(&self, range: Range<usize>) {
        for sector in range {
            self.set(sector, self.after_a_crash(sector), false);
        }
        self.losses.set(self.losses.get() + 1);
    }

    fn is(&self, chance: &Cell<u32>) -> bool {
        self.rng.borrow_mut().u32(0..100) < chance.get()
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), IoError> {
        let range = sectors(offset, into.len() as u64);
        let bad = self.unreadable.borrow().clone();
        if self.is(&self.read_fails) || range.clone().any(|sector| bad.contains(&sector)) {
            fill(into, u32::MAX);
            return Err(IoError::Io);
        }
        for (place, content) in into.chunks_mut(SECTOR).zip(&self.image.borrow()[range]) {
            fill(place, content.value);
        }
        Ok(())
    }

    fn set(&self, sector: usize, value: u32, durable: bool) {
        self.version.set(self.version.get() + 1);
        let content = Content { value, version: self.version.get() };
        self.image.borrow_mut()[sector] = content;
        if durable {
            self.stable.borrow_mut()[sector] = content;
        }
    }

    /// Applies a request. A failed one takes effect in some of its sectors.
    fn act(&self, request: &mut Request, flushed: &[Content]) -> Result<(), IoError> {
        let (op, offset, len) = (request.op, request.offset, request.len);
        self.log.borrow_mut().push((op, offset, len));
        let range = sectors(offset, len);
        let bad = self.unwritable.borrow().clone();
        let fails = matches!(op, Op::Write | Op::WriteZeroes)
            && (self.is(&self.fails) || (bad.start < range.end && range.start < bad.end));
        let half = Cell::new(50);
        match (op, &mut request.data) {
            (Op::Read, Some(data)) => return self.read(offset, data),
            (Op::Write, Some(data)) => {
                for (sector, bytes) in range.zip(data.chunks(SECTOR)) {
                    let value = value(bytes);
                    if !fails || self.is(&half) {
                        self.set(sector, value, request.survives == Survives::PowerLoss);
                    }
                }
            }
            (Op::WriteZeroes, _) => range
                .filter(|_| !fails || self.is(&half))
                .for_each(|sector| self.set(sector, 0, request.survives == Survives::PowerLoss)),
            (Op::Discard, _) => range
                .filter(|_| self.is(&self.discards))
                .for_each(|sector| self.set(sector, 0, false)),
            (Op::Flush, _) => {
                for (stable, content) in self.stable.borrow_mut().iter_mut().zip(flushed) {
                    if stable.version < content.version {
                        *stable = *content;
                    }
                }
            }
            _ => (),
        }
        if fails { Err(IoError::Io) } else { Ok(()) }
    }

    /// Lets one waiting request, chosen by `choose`, take effect or, if it has taken effect, end.
    /// Returns `false` if there is none.
    pub(super) fn progress(&self, choose: impl FnOnce(usize) -> usize) -> bool {
        let mut waiting = self.waiting.borrow_mut();
        if waiting.is_empty() {
            return false;
        }
        let number = choose(waiting.len());
        let chosen = &mut waiting[number];
        if chosen.done.is_none() {
            chosen.done = Some(self.act(&mut chosen.request, &chosen.flushed));
        } else {
            let chosen = waiting.remove(number);
            drop(waiting);
            chosen.end();
        }
        true
    }
}

impl BlockService for Disk {
    fn size(&self) -> u64 {
        (self.image.borrow().len() * SECTOR) as u64
    }

    fn preferred_block(&self) -> u64 {
        self.block.get()
    }

    fn read_only(&self) -> bool {
        self.read_only.get()
    }

    fn read_now(&self, offset: u64, into: &mut [u8]) -> Option<Result<(), IoError>> {
        self.is(&self.quick).then(|| self.read(offset, into))
    }

    fn write_now(&self, offset: u64, data: &[u8]) -> Option<Result<(), IoError>> {
        let mut request = request(Op::Write, offset, data.len(), Some(IoBuf::copy_from(data)));
        self.is(&self.quick).then(|| self.act(&mut request, &[]))
    }

    fn losses(&self) -> u64 {
        self.losses.get()
    }

    fn used(&self, _: u64, _: u64) {
        self.told.set(self.told.get() + 1);
    }

    fn takes_offers(&self) -> bool {
        true
    }

    fn offer(&self, offset: u64, data: &[u8], is_current: &dyn Fn() -> bool) {
        let (range, current) = (sectors(offset, data.len() as u64), is_current());
        if current {
            for (sector, bytes) in range.clone().zip(data.chunks(SECTOR)) {
                assert_eq!(value(bytes), self.now(sector), "sector {sector} is not current");
            }
            let writes = |request: &Request| matches!(request.op, Op::Write | Op::WriteZeroes);
            let waiting = self.waiting.borrow();
            let begun = waiting.iter().filter(|waiting| writes(&waiting.request));
            let touches = |request: &Request| {
                let written = sectors(request.offset, request.len);
                written.start < range.end && range.start < written.end
            };
            assert!(!begun.into_iter().any(|begun| touches(&begun.request)), "a write has begun");
        }
        self.offers.borrow_mut().push((range, current));
    }

    fn submit(&self, mut request: Request, sink: &Rc<dyn CompletionSink>) {
        if request.op == Op::Read && request.data.is_none() {
            request.data = Some(IoBuf::for_overwrite(request.len as usize));
        }
        let image = if request.op == Op::Flush { self.image.borrow().clone() } else { Vec::new() };
        let (sink, done) = (sink.clone(), None);
        let mut waiting = Waiting { request, sink, flushed: image, done };
        if self.is(&self.quick) {
            waiting.done = Some(self.act(&mut waiting.request, &waiting.flushed));
            waiting.end();
        } else {
            self.waiting.borrow_mut().push(waiting);
        }
    }

    fn extents(&self, offset: u64, len: u64) -> Vec<Extent> {
        let end = ((offset + len) as usize).div_ceil(SECTOR);
        let hole =
            self.image.borrow()[offset as usize / SECTOR..end].iter().all(|it| it.value == 0);
        vec![Extent { len, hole, zero: hole }]
    }
}
