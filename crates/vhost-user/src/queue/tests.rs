//! A queue of a guest in memory, against a volume that answers when the test asks for it.

use std::cell::OnceCell;
use std::os::fd::AsRawFd;
use std::time::Duration;

use forebay_core::{ManualClock, Op};
use forebay_engine::{Extent, Request};
use forebay_lane::{Lane, LaneId};
use rustix::event::{EventfdFlags, eventfd};

use super::*;
use crate::answer::answer;
use crate::inflight::{Record, record_bytes};
use crate::memory::{ClientAddress, GuestAddress, RegionPlace};
use crate::message::InflightPlace;
use crate::testing::{BUFFERS, BYTES, CLIENT, GUEST, Guest, file};
use forebay_device::SharedMemory;

const SIZE: u16 = 64;
/// First guest address of a region that holds only data of requests.
const DATA: u64 = GUEST + (4 << 20);
const IN: u32 = 0;
const OUT: u32 = 1;

/// A volume that holds requests back until they are answered.
#[derive(Default)]
struct Keeping {
    requests: RefCell<Vec<Request>>,
    sink: OnceCell<Rc<dyn CompletionSink>>,
    /// The next request makes the task of the queue panic.
    panics: Cell<bool>,
}

impl BlockService for Keeping {
    fn size(&self) -> u64 {
        1 << 30
    }

    fn preferred_block(&self) -> u64 {
        4096
    }

    fn read_only(&self) -> bool {
        false
    }

    fn read_now(&self, _: u64, _: &mut [u8]) -> Option<Result<(), IoError>> {
        None
    }

    fn write_now(&self, _: u64, _: &[u8]) -> Option<Result<(), IoError>> {
        None
    }

    fn memory(&self, _: Op, _: u64, len: u64) -> u64 {
        assert!(!self.panics.get(), "the test wants it");
        len
    }

    fn submit(&self, request: Request, sink: &Rc<dyn CompletionSink>) {
        self.requests.borrow_mut().push(request);
        let _ = self.sink.set(sink.clone());
    }

    fn extents(&self, _: u64, len: u64) -> Vec<Extent> {
        vec![Extent { len, hole: false, zero: false }]
    }
}

struct Bench {
    guest: Guest,
    lane: Rc<Lane>,
    ring: Rc<Ring>,
    clock: Arc<ManualClock>,
    queue: Rc<GuestQueue>,
    volume: Rc<Keeping>,
    budget: Arc<MemoryBudget>,
    /// The record of requests in progress.
    record: OwnedFd,
    /// The file of the region with data.
    data: OwnedFd,
    base: Rc<RefCell<Option<Option<u16>>>>,
}

fn data_region() -> RegionPlace {
    let client = ClientAddress(CLIENT + (4 << 20));
    RegionPlace { guest: GuestAddress(DATA), size: BYTES, client, file_offset: 0 }
}

fn tracker(record: &OwnedFd) -> Tracker {
    let size = QueueSize::new(SIZE.into()).expect("a power of two");
    let len = record_bytes(1, size);
    let memory = SharedMemory::map(record, 0, len).expect("mapped");
    let place = InflightPlace { len, offset: 0, queues: 1, queue_size: SIZE };
    let record = Record::new(memory, place).expect("valid");
    record.queue(QueueIndex(0), size).expect("there is one")
}

impl Bench {
    fn new(outlives: bool) -> Self {
        let mut guest = Guest::new(SIZE);
        let (data, record) = (file(BYTES), file(4096));
        guest.memory.add(data_region(), &data).expect("mapped");
        Self::over(guest, data, record, outlives)
    }

    /// Serves a queue after the former daemon has ended.
    fn resume(guest: Guest, data: OwnedFd, record: OwnedFd) -> Self {
        Self::over(guest, data, record, true)
    }

    fn over(guest: Guest, data: OwnedFd, record: OwnedFd, outlives: bool) -> Self {
        let budget = Arc::new(MemoryBudget::new(16 << 20));
        let event = || Arc::new(eventfd(0, EventfdFlags::CLOEXEC).expect("an eventfd"));
        let start = QueueStart {
            session: Session::new("v".to_owned(), event()),
            index: QueueIndex(0),
            size: QueueSize::new(SIZE.into()).expect("a power of two"),
            addresses: Guest::addresses(),
            features: QueueFeatures { event_index: false, indirect: true },
            base: 0,
            flushes: true,
            // Each read takes one notification.
            kick: Arc::new(
                eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::SEMAPHORE).expect("an eventfd"),
            ),
            call: None,
            memory: Arc::new(guest.memory.clone()),
            tracker: outlives.then(|| tracker(&record)),
        };
        let (volume, ring) = (Rc::new(Keeping::default()), Ring::new().expect("a ring"));
        let queue = GuestQueue::open(start, volume.clone(), &ring, &budget).expect("valid");
        let clock = Arc::new(ManualClock::default());
        let lane = Lane::new(LaneId(0), clock.clone(), || ());
        lane.spawn(run(queue.clone(), lane.clone()));
        let base = Rc::default();
        let bench = Bench { guest, lane, ring, clock, queue, volume, budget, record, data, base };
        bench.run();
        bench
    }

    fn run(&self) {
        while self.lane.run_ready() {}
    }

    /// Completes kernel operations that the queue waits for, in steps, until `over` returns true.
    fn wait_until(&self, over: impl Fn() -> bool) {
        while !over() {
            self.ring.wait(Some(Duration::from_millis(10)));
            self.run();
        }
    }

    /// Offers a read of one sector into `parts` buffers.
    fn offer_parts(&mut self, parts: u32) {
        let (table, last) = (DATA + (512 << 10), 1 + parts as u16);
        let flags = |index: u16| if index == last { 2 } else { 3 };
        self.guest.memory.write(GuestAddress(BUFFERS), &[0; 16]).expect("in memory");
        self.guest.describe(table, 0, (BUFFERS, 16), 1, 1);
        for index in 1..=last {
            let len = if index == last { 1 } else { 512 / parts };
            self.guest.describe(table, index, (DATA, len), flags(index), index + 1);
        }
        self.guest.describe(GUEST, 0, (table, 16 * u32::from(last + 1)), 4, 0);
        self.guest.offer(Head(0), false);
        self.queue.work.raise();
        self.run();
    }

    /// Offers request number `slot` for the first bytes of the volume, and makes the queue look for
    /// it.
    fn offer(&mut self, slot: u16, kind: u32, len: u32) {
        let (first, place) = (slot * 3, u64::from(slot));
        let (header, status) = (BUFFERS + place * 16, BUFFERS + 4096 + place);
        let mut bytes = [0; 16];
        bytes[..4].copy_from_slice(&kind.to_le_bytes());
        self.guest.memory.write(GuestAddress(header), &bytes).expect("in memory");
        let writes = if kind == IN { 2 } else { 0 };
        self.guest.describe(GUEST, first, (header, 16), 1, first + 1);
        self.guest.describe(GUEST, first + 1, (DATA, len), 1 | writes, first + 2);
        self.guest.describe(GUEST, first + 2, (status, 1), 2, 0);
        self.guest.offer(Head(first), false);
        self.queue.work.raise();
        self.run();
    }

    /// Returns the status of a request.
    fn status(&self, slot: u16) -> u8 {
        let mut status = [0xff];
        let at = GuestAddress(BUFFERS + 4096 + u64::from(slot));
        self.guest.memory.read(at, &mut status).expect("in memory");
        status[0]
    }

    /// Returns the number of requests that the volume holds.
    fn waiting(&self) -> usize {
        self.volume.requests.borrow().len()
    }

    /// Completes the oldest request.
    fn answer(&self, result: Result<(), IoError>) {
        let Request { tag, data, .. } = self.volume.requests.borrow_mut().remove(0);
        self.volume.sink.get().expect("submitted").complete(Completion { tag, result, data });
        self.run();
    }

    /// Takes all memory for requests, and returns the number of bytes.
    fn take_memory(&self) -> u64 {
        let mut taken = 0;
        while self.budget.take_for_request(4096, 0) {
            taken += 4096;
        }
        taken
    }

    /// Stops the queue.
    fn stop(&self) {
        let (reply, answer) = answer();
        let base = self.base.clone();
        self.lane.spawn(async move {
            let told = answer.wait().await;
            base.replace(Some(told));
        });
        self.queue.stop(reply);
        self.run();
    }

    /// Returns the answer to the stop, if there is one.
    fn stopped(&self) -> Option<Option<u16>> {
        *self.base.borrow()
    }
}

#[test]
fn requests_failed_by_an_ending_volume_are_left_in_the_record() {
    for (outlives, error) in
        [(false, IoError::ShuttingDown), (true, IoError::Io), (true, IoError::ShuttingDown)]
    {
        let mut bench = Bench::new(outlives);
        bench.offer(0, OUT, 4096);
        bench.offer(1, IN, 4096);
        assert_eq!(bench.waiting(), 2);
        bench.stop();
        bench.answer(Ok(()));
        assert_eq!(bench.stopped(), None, "a request is in progress");
        bench.answer(Err(error));
        assert_eq!(bench.stopped(), Some(Some(2)));
        assert_eq!(bench.queue.held.get(), 0);
        let mut next = tracker(&bench.record);
        if outlives && error == IoError::ShuttingDown {
            assert_eq!(bench.guest.collect(), [(0, 1)]);
            assert_eq!(next.recover(1), Ok(vec![Head(3)]));
        } else {
            assert_eq!(bench.guest.collect(), [(0, 1), (3, 1)]);
            assert_eq!((bench.status(0), bench.status(1)), (0, 1));
            assert_eq!(next.recover(2), Ok(vec![]));
        }
    }
}

#[test]
fn nothing_is_written_whose_data_the_guest_has_taken_away() {
    for len in [4096, 256 << 10] {
        for truncated in [false, true] {
            let mut bench = Bench::new(false);
            let taken = bench.take_memory();
            bench.offer(0, OUT, len);
            bench.offer(1, OUT, len);
            assert_eq!(bench.waiting(), 0, "there is no memory");
            if truncated {
                rustix::fs::ftruncate(&bench.data, 0).expect("shorter");
            } else {
                let mut memory = bench.guest.memory.clone();
                memory.remove(data_region()).expect("it is there");
                bench.queue.set_memory(Arc::new(memory)).expect("the rings stay");
            }
            bench.budget.give(MemoryUse::Requests, taken);
            bench.run();
            assert_eq!(bench.waiting(), 0, "{len} {truncated}");
            assert_eq!(bench.queue.phase.get(), QueuePhase::Over, "the client is dropped");
            assert_eq!(bench.guest.collect(), [], "nothing is answered");
            assert_eq!(bench.budget.used(MemoryUse::Requests), 0);
        }
    }
}

#[test]
fn a_stop_after_a_panic_waits_for_the_requests_in_progress() {
    let mut bench = Bench::new(true);
    bench.offer(0, OUT, 4096);
    bench.offer(1, OUT, 4096);
    bench.volume.panics.set(true);
    bench.offer(2, OUT, 4096);
    assert_eq!((bench.lane.panics(), bench.queue.phase.get()), (1, QueuePhase::Over));
    bench.stop();
    for _ in 0..2 {
        assert_eq!(bench.stopped(), None, "the volume has a request");
        bench.answer(Ok(()));
    }
    assert_eq!(bench.stopped(), Some(Some(3)));
    assert_eq!(bench.guest.collect(), [], "the next daemon answers them");
    assert_eq!(tracker(&bench.record).recover(0), Ok(vec![Head(0), Head(3), Head(6)]));
}

#[test]
fn lists_of_buffers_are_counted_and_long_ones_not_kept() {
    let mut bench = Bench::new(false);
    for (parts, kept) in [(2, 1), (256, 0), (256, 0), (2, 1)] {
        bench.offer_parts(parts);
        let used = bench.budget.used(MemoryUse::Requests);
        assert!(used >= 512 + 16 * u64::from(parts), "{parts}: {used}");
        bench.answer(Ok(()));
        assert_eq!(bench.budget.used(MemoryUse::Requests), 0);
        assert_eq!(bench.queue.spare.borrow().len(), kept, "{parts}");
        assert!(bench.queue.spare.borrow().iter().all(|spare| spare.bytes() <= KEPT_BYTES));
    }
    assert_eq!(bench.guest.collect(), [(0, 1); 4], "the volume gave no data");
}

#[test]
fn many_requests_of_a_record_are_executed_again_before_new_ones() {
    let mut former = Bench::new(true);
    for slot in 0..20 {
        former.offer(slot, OUT, 4096);
    }
    let Bench { guest, record, data, .. } = former;
    let mut bench = Bench::resume(guest, data, record);
    bench.stop();
    assert_eq!((bench.waiting(), bench.stopped()), (20, None));
    (0..20).for_each(|_| bench.answer(Ok(())));
    assert_eq!(bench.stopped(), Some(Some(20)));
    let expected: Vec<(u16, u32)> = (0..20).map(|slot| (slot * 3, 1)).collect();
    assert_eq!(bench.guest.collect(), expected);
}

/// Returns the counter of an eventfd.
fn counter(event: &OwnedFd) -> u64 {
    let about = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", event.as_raw_fd()));
    let about = about.expect("mounted");
    let count = about.lines().find_map(|line| line.strip_prefix("eventfd-count:"));
    u64::from_str_radix(count.expect("an eventfd").trim(), 16).expect("a number")
}

#[test]
fn a_blocked_eventfd_delays_neither_the_next_one_nor_the_end() {
    let bench = Bench::new(false);
    let event = || Arc::new(eventfd(0, EventfdFlags::CLOEXEC).expect("an eventfd"));
    let (full, other) = (event(), event());
    rustix::io::write(&full, &(u64::MAX - 1).to_ne_bytes()).expect("it was empty");
    let set_call = |call: &Arc<OwnedFd>| {
        bench.queue.set_call(Some(call.clone()));
        bench.run();
        bench.ring.drive();
    };
    set_call(&full);
    set_call(&other);
    bench.wait_until(|| counter(&other) == 1);
    set_call(&full);
    bench.stop();
    for _ in 0..10 {
        bench.ring.wait(Some(Duration::from_millis(5)));
        bench.run();
    }
    assert_eq!(bench.stopped(), None, "the kernel gets time for a notification");
    bench.clock.pass(Duration::from_secs(1));
    bench.run();
    assert_eq!(bench.stopped(), Some(Some(0)));
    // The write is given up, and not left behind.
    bench.queue.set_call(None);
    bench.wait_until(|| Arc::strong_count(&full) == 1);
    assert_eq!(counter(&full), u64::MAX - 1);
}

#[test]
fn notifications_without_requests_are_slowed_down() {
    const MANY: u64 = 1 << 40;
    let mut bench = Bench::new(false);
    rustix::io::write(&bench.queue.kick, &MANY.to_ne_bytes()).expect("it is empty");
    let taken = || MANY - counter(&bench.queue.kick);
    bench.wait_until(|| taken() > 16);
    for _ in 0..20 {
        bench.ring.wait(Some(Duration::from_millis(1)));
        bench.run();
    }
    let slowed = taken();
    assert!(slowed < 20, "{slowed} notifications in no time");
    bench.clock.pass(Duration::from_millis(10));
    bench.run();
    bench.wait_until(|| taken() > slowed);
    assert_eq!(taken(), slowed + 1);
    bench.offer(0, IN, 4096);
    assert_eq!(bench.waiting(), 1, "a request is served meanwhile");
}
