//! The execution of requests, against a volume that answers when the test asks for it.

use std::cell::OnceCell;

use forebay_core::{IoError, ManualClock};
use forebay_engine::Extent;
use forebay_lane::{LaneId, MemoryBudget, MemoryUse};

use super::*;

const MAX_IO: u32 = 16 << 10;

/// A volume that holds requests back until they are answered.
#[derive(Default)]
struct Keeping {
    requests: RefCell<Vec<Request>>,
    sink: OnceCell<Rc<dyn CompletionSink>>,
    /// Reads of this many bytes are answered at once.
    quick: usize,
}

impl BlockService for Keeping {
    fn size(&self) -> u64 {
        1 << 20
    }

    fn preferred_block(&self) -> u64 {
        4096
    }

    fn read_only(&self) -> bool {
        false
    }

    fn read_now(&self, _: u64, into: &mut [u8]) -> Option<Result<(), IoError>> {
        (into.len() == self.quick).then(|| {
            into.fill(3);
            Ok(())
        })
    }

    fn write_now(&self, _: u64, _: &[u8]) -> Option<Result<(), IoError>> {
        Some(Ok(()))
    }

    fn submit(&self, request: Request, sink: &Rc<dyn CompletionSink>) {
        self.requests.borrow_mut().push(request);
        let _ = self.sink.set(sink.clone());
    }

    fn extents(&self, _: u64, len: u64) -> Vec<Extent> {
        vec![Extent { len, hole: false, zero: false }]
    }
}

impl Keeping {
    /// Completes the oldest request; with `other`, its data are in another buffer than its own.
    fn answer(&self, result: Result<(), IoError>, other: bool) {
        let Request { tag, data, len, .. } = self.requests.borrow_mut().remove(0);
        let data = data.map(|mut data| {
            data.fill(7);
            if other { IoBuf::copy_from(&vec![7; len as usize]) } else { data }
        });
        self.sink.get().expect("submitted").complete(Completion { tag, result, data });
    }
}

type Executed = (Result<(), Errno>, IoBuf);

struct Bench {
    lane: Rc<Lane>,
    queue: Rc<ServedQueue>,
    volume: Rc<Keeping>,
    budget: Arc<MemoryBudget>,
    executed: Rc<RefCell<Vec<Executed>>>,
}

impl Bench {
    fn new(outlives: bool) -> Self {
        let budget = Arc::new(MemoryBudget::new(1 << 30));
        let memory = Rc::new(LaneMemory::new(budget.clone()));
        let volume = Rc::new(Keeping { quick: 512, ..Keeping::default() });
        let facts = DeviceFacts {
            size: 1 << 20,
            read_only: false,
            max_io: MAX_IO,
            outlives,
            flushes: true,
        };
        let ring = Ring::new().expect("a ring");
        let queue = ServedQueue::new(("v", 0), (volume.clone(), facts), (ring, memory));
        queue.outcomes.replace((0..2).map(|_| Rc::default()).collect());
        let lane = Lane::new(LaneId(0), Arc::new(ManualClock::default()), || ());
        Bench { lane, queue, volume, budget, executed: Rc::default() }
    }

    /// Executes a request with this tag, until it ends or waits.
    fn execute(&self, tag: u16, op: Op, len: u64, survives: Survives) {
        let request = VolumeRequest { op, offset: 4096, len, survives, no_hole: false };
        let (queue, executed) = (self.queue.clone(), self.executed.clone());
        self.lane.spawn(async move {
            let sink: Rc<dyn CompletionSink> = queue.clone();
            let mut buf = queue.buffer();
            buf.fill(5);
            let result = queue.execute(tag, &request, buf, &sink).await;
            executed.borrow_mut().push(result);
        });
        while self.lane.run_ready() {}
    }

    fn next(&self) -> Option<Executed> {
        while self.lane.run_ready() {}
        self.executed.borrow_mut().pop()
    }

    /// Returns the bytes that requests hold.
    fn held(&self) -> u64 {
        self.queue.memory.return_spare(0);
        self.budget.used(MemoryUse::Requests)
    }
}

#[test]
fn the_buffer_of_a_tag_comes_back_whole_with_the_data_of_a_read() {
    let bench = Bench::new(true);
    for other in [false, true] {
        for len in [4096, u64::from(MAX_IO)] {
            bench.execute(0, Op::Read, len, Survives::Nothing);
            assert!(bench.next().is_none() && !bench.queue.is_quiet() && bench.held() > 0);
            bench.volume.answer(Ok(()), other);
            let (result, buf) = bench.next().expect("answered");
            assert_eq!((result, buf.len()), (Ok(()), MAX_IO as usize));
            assert!(buf[..len as usize].iter().all(|byte| *byte == 7), "{len} bytes, {other}");
            assert!(bench.queue.is_quiet() && bench.held() == 0);
        }
    }
    bench.execute(0, Op::Read, 512, Survives::Nothing);
    let (result, buf) = bench.next().expect("at once");
    assert!(result.is_ok() && buf[..512].iter().all(|byte| *byte == 3) && buf[512] == 5);
}

#[test]
fn surviving_writes_are_submitted_with_their_data() {
    let bench = Bench::new(true);
    bench.execute(0, Op::Write, 4096, Survives::Nothing);
    assert!(bench.next().is_some_and(|(result, _)| result.is_ok()), "it need not be");
    bench.execute(0, Op::Write, 4096, Survives::Daemon);
    {
        let requests = bench.volume.requests.borrow();
        let request = requests.first().expect("submitted");
        assert!(
            request.survives == Survives::Daemon
                && request.op == Op::Write
                && request.offset == 4096
        );
        assert!(request.data.as_ref().is_some_and(|data| **data == [5; 4096]));
    }
    bench.volume.answer(Err(IoError::NoSpace), false);
    let (result, buf) = bench.next().expect("answered");
    assert_eq!((result, buf.len()), (Err(Errno::NOSPC), MAX_IO as usize));
    bench.execute(1, Op::Flush, 0, Survives::Nothing);
    bench.volume.answer(Ok(()), false);
    assert!(bench.next().is_some_and(|(result, buf)| result.is_ok() && !buf.is_empty()));
}

#[test]
fn a_failed_queue_answers_at_once_and_ignores_completions() {
    let bench = Bench::new(false);
    bench.execute(0, Op::Read, 4096, Survives::Nothing);
    bench.execute(1, Op::Write, 4096, Survives::Daemon);
    // The device cannot have another server.
    bench.queue.leave();
    for _ in 0..2 {
        let (result, buf) = bench.next().expect("answered");
        assert_eq!((result, buf.len()), (Err(Errno::IO), MAX_IO as usize));
    }
    bench.execute(0, Op::Read, 512, Survives::Nothing);
    assert_eq!(bench.next().expect("at once").0, Err(Errno::IO));
    assert!(bench.held() > 0 && !bench.queue.is_quiet());
    bench.volume.answer(Ok(()), false);
    bench.volume.answer(Ok(()), false);
    assert!(bench.next().is_none() && bench.queue.is_quiet());
    assert_eq!(bench.held(), 0);
}

#[test]
fn a_queue_without_its_volume_fails() {
    let bench = Bench::new(true);
    bench.execute(0, Op::Read, 4096, Survives::Nothing);
    bench.queue.let_go();
    bench.volume.answer(Ok(()), false);
    assert!(bench.next().is_some_and(|(result, _)| result.is_ok()), "it was in flight");
    bench.execute(0, Op::Read, 512, Survives::Nothing);
    assert_eq!(bench.next().expect("at once").0, Err(Errno::IO));
}
