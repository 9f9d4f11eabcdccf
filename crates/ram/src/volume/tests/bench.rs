//! One volume whose disk answers in order, for tests of single properties.

use std::collections::BTreeMap;
use std::time::Duration;

use forebay_core::WriteDown;

use super::disk::Disk;
use super::*;
use crate::write_down;

/// See the module.
pub(super) struct Bench {
    pub(super) disk: Rc<Disk>,
    pub(super) tier: Arc<Tier>,
    pub(super) clock: Arc<ManualClock>,
    pub(super) lane: Rc<Lane>,
    pub(super) volume: Rc<RamVolume>,
    answers: Rc<Answers>,
    ended: RefCell<BTreeMap<u64, Completion>>,
    next: RefCell<u64>,
}

/// Writes are deferred until a flush.
pub(super) const INFINITE: Deferral = Deferral {
    within: Duration::from_secs(10),
    mode: WriteDown::Infinite,
    share: 100,
    ignore_flush: false,
};

impl Bench {
    /// Creates a volume that defers writes. Nothing is written down until [`Bench::keep`].
    pub(super) fn new(bytes: u64, block: u64, how: Deferral) -> Self {
        Self::over(8192, bytes, block, how)
    }

    /// Like [`Bench::new`], with a disk of `sectors` sectors.
    pub(super) fn over(sectors: u64, bytes: u64, block: u64, how: Deferral) -> Self {
        let disk = Disk::new(sectors, fastrand::Rng::with_seed(1));
        let ([lane, _], clock) = lanes();
        let tier = Arc::new(Tier::new(options(bytes, block), clock.clone()).expect("memory"));
        tier.defer_writes(Some(how));
        let volume = RamVolume::new(tier.clone(), disk.clone(), lane.clone());
        let (answers, ended, next) = (Rc::default(), RefCell::default(), RefCell::default());
        Bench { disk, tier, clock, lane, volume, answers, ended, next }
    }

    /// Starts the write-down task.
    pub(super) fn keep(&self) {
        let lower: Rc<dyn BlockService> = self.disk.clone();
        self.lane.spawn(write_down::keep(self.tier.clone(), lower, self.lane.clone()));
        self.run();
    }

    /// Runs tasks while the disk does not answer.
    pub(super) fn run(&self) {
        while self.lane.run_ready() {}
        let ended = self.answers.0.take().into_iter().map(|answer| (answer.tag, answer));
        self.ended.borrow_mut().extend(ended);
        assert_eq!(self.lane.panics(), 0);
    }

    /// Runs tasks and answers requests until none are left.
    pub(super) fn settle(&self) {
        self.run();
        while self.disk.progress(|_| 0) {
            self.run();
        }
    }

    /// Advances the time, and then runs and answers everything.
    pub(super) fn pass(&self, time: Duration) {
        self.clock.pass(time);
        self.settle();
    }

    /// Submits a request and returns its tag.
    pub(super) fn submit(&self, request: Request) -> u64 {
        *self.next.borrow_mut() += 1;
        let tag = *self.next.borrow();
        let sink: Rc<dyn CompletionSink> = self.answers.clone();
        self.volume.submit(Request { tag, ..request }, &sink);
        self.run();
        tag
    }

    /// Returns the result of a request, if it has ended.
    pub(super) fn result(&self, tag: u64) -> Option<Result<(), IoError>> {
        self.ended.borrow().get(&tag).map(|answer| answer.result)
    }

    /// Submits a request and returns its result.
    pub(super) fn ask(&self, request: Request) -> Result<(), IoError> {
        let tag = self.submit(request);
        self.settle();
        self.result(tag).expect("the request ends")
    }

    pub(super) fn flush(&self) -> Result<(), IoError> {
        self.ask(request(Op::Flush, 0, 0, None))
    }

    /// Reads sectors, and returns the value of each.
    pub(super) fn read(&self, first: u64, count: usize) -> Vec<u32> {
        let tag = self.submit(request(Op::Read, first * SECTOR_SIZE, count * SECTOR, None));
        self.settle();
        let answer = self.ended.borrow_mut().remove(&tag).expect("the request ends");
        assert_eq!(answer.result, Ok(()));
        answer.data.expect("the data").chunks(SECTOR).map(value).collect()
    }

    /// Returns the content of sectors on the disk.
    pub(super) fn below(&self, sectors: Range<usize>) -> Vec<u32> {
        sectors.map(|sector| self.disk.now(sector)).collect()
    }
}

/// Returns a write of `count` sectors that have the same value.
pub(super) fn write(first: u64, count: usize, value: u32) -> Request {
    let mut data = IoBuf::zeroed(count * SECTOR);
    fill(&mut data, value);
    request(Op::Write, first * SECTOR_SIZE, count * SECTOR, Some(data))
}
