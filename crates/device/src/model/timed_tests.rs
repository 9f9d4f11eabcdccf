//! The modelled device, on a manual clock.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use forebay_core::{ManualClock, Nanos};

use crate::api::{
    Device, DeviceDone, DeviceError, DeviceErrorKind, DeviceOp, DeviceQueue, OpId, QueueContext,
};
use crate::buffer::IoBuf;
use crate::data::IoData;
use crate::ram::RamDevice;
use crate::testing::filled;

use super::calibration::Random;
use super::{Model, ModelKind, ModelOp, ModelledDevice};

const SIZE: u64 = 8 << 20;

/// A device in RAM whose operations end as soon as `open` is set.
#[derive(Clone)]
struct Memory {
    ram: Arc<RamDevice>,
    open: Arc<AtomicBool>,
    started: Arc<AtomicUsize>,
    ended: Arc<AtomicUsize>,
}

struct MemoryQueue {
    memory: Memory,
    ram: Rc<dyn DeviceQueue>,
}

impl Memory {
    fn new() -> Self {
        let ram = RamDevice::new("memory", SIZE).expect("memory");
        let open = Arc::new(AtomicBool::new(true));
        Memory { ram, open, started: Arc::default(), ended: Arc::default() }
    }
}

impl Device for Memory {
    fn name(&self) -> &str {
        self.ram.name()
    }

    fn size(&self) -> u64 {
        self.ram.size()
    }

    fn logical_block(&self) -> u64 {
        self.ram.logical_block()
    }

    fn open_queue(&self, context: &QueueContext) -> Result<Rc<dyn DeviceQueue>, DeviceError> {
        Ok(Rc::new(MemoryQueue { memory: self.clone(), ram: self.ram.open_queue(context)? }))
    }
}

impl DeviceQueue for MemoryQueue {
    fn start(&self, op: DeviceOp) -> OpId {
        self.memory.started.fetch_add(1, Ordering::SeqCst);
        self.ram.start(op)
    }

    fn poll_op(&self, id: OpId, context: &mut Context<'_>) -> Poll<DeviceDone> {
        if !self.memory.open.load(Ordering::SeqCst) {
            return Poll::Pending;
        }
        self.memory.ended.fetch_add(1, Ordering::SeqCst);
        self.ram.poll_op(id, context)
    }

    fn forget(&self, id: OpId) {
        self.memory.ended.fetch_add(1, Ordering::SeqCst);
        self.ram.forget(id);
    }

    fn read_now(&self, offset: u64, into: &mut [u8]) -> Option<Result<(), DeviceError>> {
        self.ram.read_now(offset, into)
    }
}

#[derive(Default)]
struct Wakes(AtomicUsize);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

struct Bench {
    clock: Arc<ManualClock>,
    memory: Memory,
    device: Arc<dyn Device>,
    queues: Vec<Rc<dyn DeviceQueue>>,
    wakes: Arc<Wakes>,
}

fn bench(kind: ModelKind, queues: usize) -> Bench {
    let clock = Arc::new(ManualClock::default());
    let memory = Memory::new();
    let device = ModelledDevice::new(Arc::new(memory.clone()), kind);
    let context = QueueContext {
        clock: clock.clone(),
        #[cfg(target_os = "linux")]
        ring: None,
        tasks: None,
    };
    let queues = (0..queues).map(|_| device.open_queue(&context).expect("opens")).collect();
    Bench { clock, memory, device, queues, wakes: Arc::default() }
}

impl Bench {
    fn poll(&self, queue: usize, id: OpId) -> Option<DeviceDone> {
        let waker = Waker::from(self.wakes.clone());
        match self.queues[queue].poll_op(id, &mut Context::from_waker(&waker)) {
            Poll::Ready(done) => Some(done),
            Poll::Pending => None,
        }
    }

    fn drive_at(&self, queue: usize, now: Nanos) {
        self.clock.advance_to(now);
        self.queues[queue].drive();
    }
}

fn read(offset: u64, len: usize) -> DeviceOp {
    DeviceOp::Read { offset, buf: IoBuf::zeroed(len) }
}

fn write(offset: u64, byte: u8, len: usize) -> DeviceOp {
    DeviceOp::Write { offset, data: IoData::Owned(filled(len, byte)) }
}

/// Returns the completion time of a single operation that arrives at `now`, according to the model.
fn expected(model: &mut Model, now: Nanos, op: ModelOp) -> Nanos {
    model.submit(now, op);
    let mut done = Vec::new();
    let at = model.next_event().expect("one in flight");
    model.advance(at, &mut done);
    assert_eq!(done.len(), 1);
    at
}

#[test]
fn data_is_right_and_comes_exactly_when_the_model_says() {
    for kind in ModelKind::ALL {
        let bench = bench(kind, 1);
        assert_eq!(bench.device.name(), format!("{kind}:memory"));
        assert_eq!(bench.device.rotational(), Some(kind == ModelKind::Hdd7200));
        assert_eq!((bench.device.size(), bench.device.logical_block()), (SIZE, 512));
        assert!(bench.queues[0].read_now(0, &mut [0; 512]).is_none(), "no way round the model");
        let mut model = Model::new(kind, SIZE);
        let mut now = Nanos(1_000_000_007);
        for (op, shape, bytes) in [
            (write(12_288, 7, 4096), ModelOp::write(12_288, 4096), Some([7, 7])),
            (read(14_336, 4096), ModelOp::read(14_336, 4096), Some([7, 0])),
            (DeviceOp::Sync, ModelOp::sync(), None),
            (read(1 << 22, 1 << 20), ModelOp::read(1 << 22, 1 << 20), Some([0, 0])),
        ] {
            bench.clock.advance_to(now);
            assert_eq!(bench.queues[0].next_event(), None);
            let id = bench.queues[0].start(op);
            let end = expected(&mut model, now, shape);
            assert!(end > now);
            assert_eq!(bench.queues[0].next_event(), Some(end));
            let woken = bench.wakes.0.load(Ordering::SeqCst);
            bench.drive_at(0, Nanos(end.0 - 1));
            assert!(bench.poll(0, id).is_none(), "{kind}: a nanosecond early");
            bench.drive_at(0, end);
            assert_eq!(bench.wakes.0.load(Ordering::SeqCst), woken + 1);
            let done = bench.poll(0, id).expect("its time has come");
            assert!(done.result.is_ok());
            let ends = done.buf.map(|buf| [buf[0], buf[buf.len() - 1]]);
            assert_eq!(ends, bytes, "{kind}");
            assert!(bench.poll(0, id).is_none(), "collected twice");
            now = Nanos(end.0 + 12_345);
        }
    }
}

#[test]
fn errors_take_their_time_and_come_through() {
    for kind in ModelKind::ALL {
        let bench = bench(kind, 1);
        let id = bench.queues[0].start(read(SIZE, 4096));
        assert!(bench.poll(0, id).is_none());
        bench.drive_at(0, bench.queues[0].next_event().expect("in flight"));
        let done = bench.poll(0, id).expect("ended");
        assert_eq!(done.result.map_err(|error| error.kind), Err(DeviceErrorKind::Invalid));
    }
}

#[test]
fn the_transfer_must_have_ended_too() {
    for kind in ModelKind::ALL {
        let bench = bench(kind, 1);
        bench.memory.open.store(false, Ordering::SeqCst);
        let id = bench.queues[0].start(read(0, 4096));
        bench.drive_at(0, Nanos(1_000_000_000));
        assert!(bench.poll(0, id).is_none());
        bench.memory.open.store(true, Ordering::SeqCst);
        assert!(bench.poll(0, id).is_some());
    }
}

#[test]
fn abandoned_operations_disturb_no_other() {
    for kind in ModelKind::ALL {
        let bench = bench(kind, 1);
        let queue = &bench.queues[0];
        let first = queue.start(read(0, 4096));
        let end = queue.next_event().expect("in flight");
        queue.forget(first);
        let second = queue.start(read(1 << 20, 4096));
        assert_ne!(first, second);
        bench.drive_at(0, end);
        assert!(bench.poll(0, first).is_none());
        assert!(bench.poll(0, second).is_none(), "took the time of the one before");
        bench.drive_at(0, queue.next_event().expect("in flight"));
        assert!(bench.poll(0, second).is_some());
        let last = queue.start(read(0, 4096));
        drop(queue.clone());
        queue.forget(last);
        assert_eq!(bench.memory.started.load(Ordering::SeqCst), 3);
        assert_eq!(bench.memory.ended.load(Ordering::SeqCst), 3);
    }
}

#[test]
fn queues_share_one_server() {
    for kind in ModelKind::ALL {
        let bench = bench(kind, 2);
        let ids = [0, 1].map(|queue| bench.queues[queue].start(read(0, 1 << 20)));
        let mut model = Model::new(kind, SIZE);
        model.submit(Nanos(0), ModelOp::read(0, 1 << 20));
        model.submit(Nanos(0), ModelOp::read(0, 1 << 20));
        let mut done = Vec::new();
        model.advance(Nanos(u64::MAX), &mut done);
        assert_eq!(done.len(), 2);
        let transfer = done[1].at.0 - done[0].at.0;
        assert!(transfer > 500_000, "{kind}: the second waited only {transfer} ns");
        // The second lane polls first and at another time; the first misses nothing.
        bench.drive_at(1, done[0].at);
        assert!(bench.poll(1, ids[1]).is_none());
        assert_eq!(bench.queues[0].next_event(), Some(done[0].at));
        bench.drive_at(1, done[1].at);
        assert!(bench.poll(1, ids[1]).is_some());
        assert!(bench.poll(0, ids[0]).is_none(), "not driven yet");
        bench.drive_at(0, done[1].at);
        assert!(bench.poll(0, ids[0]).is_some());
    }
}

/// Drives three lanes with random arrivals against a single model with the same arrivals. A lane
/// that follows `next_event` sees every completion exactly on time. A lane that is late sees all
/// due completions, and delays none of the later ones.
#[test]
fn lanes_see_what_the_model_says_however_late_they_look() {
    const LANES: usize = 3;
    for kind in ModelKind::ALL {
        let pause = if kind == ModelKind::Hdd7200 { 10_000_000 } else { 30_000 };
        for late in [false, true] {
            let mut random = Random(5);
            let mut arrivals = Vec::new();
            let mut now = 0;
            for _ in 0..600 {
                now += random.below(pause);
                let offset = random.below(SIZE / 4096) * 4096;
                arrivals.push((Nanos(now), random.below(LANES as u64) as usize, offset));
            }
            let mut model = Model::new(kind, SIZE);
            for (now, _, offset) in &arrivals {
                model.submit(*now, ModelOp::read(*offset, 4096));
            }
            let mut ends = Vec::new();
            model.advance(Nanos(u64::MAX), &mut ends);
            ends.sort_by_key(|completed| completed.id);

            let bench = bench(kind, LANES);
            let mut in_flight: Vec<(usize, usize, OpId)> = Vec::new();
            let mut next = 0;
            let mut last_look = Nanos(0);
            while next < arrivals.len() || !in_flight.is_empty() {
                let event = bench.queues.iter().filter_map(|queue| queue.next_event()).min();
                let arrival = arrivals.get(next).map(|(now, ..)| *now);
                let mut look = [event, arrival].into_iter().flatten().min().expect("more to do");
                if late && Some(look) != arrival {
                    let limit = arrival.map_or(pause, |arrival| arrival.0 - look.0);
                    look.0 += random.below(limit.min(pause));
                }
                look = look.max(last_look);
                bench.clock.advance_to(look);
                bench.queues.iter().for_each(|queue| queue.drive());
                in_flight.retain(|(index, lane, id)| {
                    let due = ends[*index].at <= look;
                    let done = bench.poll(*lane, *id);
                    assert_eq!(done.is_some(), due, "{kind}: operation {index} at {look}");
                    let seen_in_time = late || ends[*index].at == look;
                    assert!(!due || seen_in_time, "{kind}: operation {index} was overlooked");
                    !due
                });
                last_look = look;
                while let Some((now, lane, offset)) = arrivals.get(next).filter(|a| a.0 <= look) {
                    assert_eq!(*now, look);
                    in_flight.push((next, *lane, bench.queues[*lane].start(read(*offset, 4096))));
                    next += 1;
                }
            }
        }
    }
}
