use std::sync::atomic::AtomicUsize;
use std::sync::mpsc;
use std::task::{Context, Poll, Waker};

use forebay_device::Access;
use forebay_device::{DeviceDone, DeviceOp, FileDevice, IoBuf, OpId, RamDevice};

use super::*;
use crate::executor::{Watched, yield_now};
use crate::notify::Notify;
use crate::off_lane;

fn spawn<T: 'static>(setup: impl FnOnce(&LaneLoop) -> T + Send + 'static) -> LaneThread {
    let clock = Arc::new(MonotonicClock::new());
    LaneThread::spawn("test lane", LaneId(3), clock, LaneOptions::default(), setup).expect("lane")
}

#[test]
fn the_clock_never_goes_backwards() {
    let clock = MonotonicClock::new();
    let mut last = Nanos(0);
    for _ in 0..1000 {
        let now = clock.now();
        assert!(now >= last);
        last = now;
    }
}

#[test]
fn set_up_and_jobs_run_on_the_lane() {
    let (tell, hear) = mpsc::channel();
    let first = tell.clone();
    let lane = spawn(move |this| {
        let name = std::thread::current().name().map(str::to_owned);
        first.send((this.lane().id(), name)).expect("heard");
    });
    assert_eq!(hear.recv(), Ok((LaneId(3), Some("test lane".to_owned()))));
    for spin in 0..20 {
        // The pauses are long enough for the lane to fall asleep in some of them.
        std::thread::sleep(Duration::from_micros(spin * 50));
        let tell = tell.clone();
        lane.remote().run(move |lane| tell.send((lane.id(), None)).expect("heard"));
        assert_eq!(hear.recv(), Ok((LaneId(3), None)));
    }
    lane.stop();
    lane.join().expect("a clean end");
}

#[test]
fn tasks_sleep_and_use_devices() {
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("file");
    let (tell, hear) = mpsc::channel();
    for spin in [Duration::ZERO, Duration::from_micros(100)] {
        let (path, tell) = (path.clone(), tell.clone());
        let clock = Arc::new(MonotonicClock::new());
        let setup = move |this: &LaneLoop| {
            let file = FileDevice::open(&path, Access::Exclusive, Some(1 << 20)).expect("file");
            let ram = RamDevice::new("ram", 1 << 20).expect("memory");
            let queues = [this.open(&*file).expect("queue"), this.open(&*ram).expect("queue")];
            let (this, lane) = (this.clone(), this.lane().clone());
            this.clone().lane().spawn(async move {
                let before = lane.now();
                lane.sleep(Duration::from_millis(2)).await;
                assert!(lane.now() - before >= Duration::from_millis(2));
                for queue in &queues {
                    let mut buf = IoBuf::zeroed(4096);
                    buf.fill(7);
                    let mut buf = queue.write(8192, buf).await.expect("written");
                    queue.sync().await.expect("synced");
                    buf.fill(0);
                    let buf = queue.read(8192, buf).await.expect("read");
                    tell.send(buf.iter().all(|&byte| byte == 7)).expect("heard");
                }
                this.stop();
            });
        };
        let lane = LaneThread::spawn(
            "io",
            LaneId(0),
            clock,
            LaneOptions { spin, wide_ring: false },
            setup,
        );
        lane.expect("lane").join().expect("ends by itself");
        assert_eq!(hear.try_iter().collect::<Vec<_>>(), [true, true]);
    }
}

/// A queue that ends operations, when it is driven, some time after their start.
struct Slow {
    clock: Arc<dyn Clock>,
    due: Cell<Option<Nanos>>,
    waker: RefCell<Option<Waker>>,
}

impl DeviceQueue for Slow {
    fn start(&self, _op: DeviceOp) -> OpId {
        self.due.set(Some(self.clock.now() + Duration::from_millis(3)));
        OpId(0)
    }

    fn poll_op(&self, _id: OpId, context: &mut Context<'_>) -> Poll<DeviceDone> {
        if self.due.get().is_none() {
            return Poll::Ready(DeviceDone { result: Ok(()), buf: None });
        }
        self.waker.replace(Some(context.waker().clone()));
        Poll::Pending
    }

    fn forget(&self, _id: OpId) {}

    fn drive(&self) {
        if self.due.get().is_some_and(|due| due <= self.clock.now()) {
            self.due.set(None);
            if let Some(waker) = self.waker.take() {
                waker.wake();
            }
        }
    }

    fn next_event(&self) -> Option<Nanos> {
        self.due.get()
    }
}

#[test]
fn queues_that_model_time_are_driven_when_they_are_due() {
    let lane = spawn(|this| {
        let clock = this.lane().clock().clone();
        let queue =
            Queue::new(Rc::new(Slow { clock, due: Cell::default(), waker: RefCell::default() }));
        this.register(&queue);
        this.register(&queue);
        assert_eq!(this.queues.borrow().len(), 1);
        let inner = this.clone();
        this.lane().spawn(async move {
            let before = inner.lane().now();
            for _ in 0..3 {
                queue.sync().await.expect("done");
            }
            assert!(inner.lane().now() - before >= Duration::from_millis(9));
            drop(queue);
            assert_eq!(inner.drive_queues(), None);
            assert!(inner.queues.borrow().is_empty());
            inner.stop();
        });
    });
    lane.join().expect("ends by itself");
}

#[test]
fn a_task_that_panics_does_not_take_the_lane_with_it() {
    let lane = spawn(|this| this.lane().spawn(async { panic!("on purpose") }));
    let (tell, hear) = mpsc::channel();
    lane.remote().run(move |lane| {
        let inner = lane.clone();
        lane.spawn(async move {
            inner.sleep(Duration::from_millis(1)).await;
            tell.send(()).expect("heard");
        });
    });
    assert_eq!(hear.recv(), Ok(()));
    lane.stop();
    lane.join().expect("the panic stayed in its task");
}

#[test]
fn a_set_up_that_panics_is_reported() {
    let clock = Arc::new(MonotonicClock::new());
    let setup = |_: &LaneLoop| panic!("on purpose");
    let refused = LaneThread::spawn("bad", LaneId(0), clock, LaneOptions::default(), setup);
    assert!(refused.is_err_and(|error| error.to_string().contains("bad")));
}

#[test]
fn stopping_drops_tasks_and_state() {
    struct Flag(Arc<AtomicBool>);
    impl Drop for Flag {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }
    let [in_task, in_state] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
    let flags = (Flag(in_task.clone()), Flag(in_state.clone()));
    let lane = spawn(move |this| {
        let (flag, state) = flags;
        let lane = this.lane().clone();
        this.lane().spawn(async move {
            lane.sleep(Duration::from_secs(3600)).await;
            drop(flag);
        });
        state
    });
    assert!(!in_task.load(Ordering::SeqCst) && !in_state.load(Ordering::SeqCst));
    drop(lane);
    assert!(in_task.load(Ordering::SeqCst) && in_state.load(Ordering::SeqCst));
}

#[test]
fn looking_for_work_stops_when_it_is_in_vain() {
    let most = Duration::from_micros(16);
    let spin = Spin::new(most);
    assert!(spin.goes_on(Nanos(0)) && spin.goes_on(Nanos(15_999)) && !spin.goes_on(Nanos(16_000)));
    for _ in 0..10 {
        spin.slept(Duration::from_secs(1));
    }
    assert!(!spin.goes_on(Nanos(0)), "not at all any more");
    spin.slept(Duration::from_micros(1));
    assert!(spin.goes_on(Nanos(0)) && !spin.goes_on(Nanos(2000)));
    for _ in 0..10 {
        spin.slept(Duration::from_micros(1));
    }
    assert_eq!(spin.now.get(), most);
    assert!(!Spin::new(Duration::ZERO).goes_on(Nanos(0)));
}

/// Letters that other threads leave without a notification, unless they were asked for one.
struct Letters {
    dropped: Arc<AtomicUsize>,
    ring: Arc<AtomicBool>,
    found: Cell<usize>,
    tell: mpsc::Sender<usize>,
}

impl Watched for Letters {
    fn look(&self) -> bool {
        let dropped = self.dropped.load(Ordering::SeqCst);
        let found = self.found.replace(dropped);
        (found..dropped).for_each(|letter| self.tell.send(letter).expect("heard"));
        dropped > found
    }

    fn ask(&self) -> bool {
        self.ring.store(true, Ordering::SeqCst);
        self.look()
    }
}

#[test]
fn watched_events_are_noticed_awake_and_asleep() {
    let (dropped, ring) = (Arc::<AtomicUsize>::default(), Arc::<AtomicBool>::default());
    let (tell, hear) = mpsc::channel();
    let (inner, asked) = (dropped.clone(), ring.clone());
    let lane = spawn(move |this| {
        let letters = Letters { dropped: inner, ring: asked, found: Cell::new(0), tell };
        let letters: Rc<dyn Watched> = Rc::new(letters);
        this.lane().watch(&letters);
        letters
    });
    for letter in 0..200 {
        std::thread::sleep(Duration::from_micros(letter as u64 % 20 * 20));
        dropped.fetch_add(1, Ordering::SeqCst);
        if ring.swap(false, Ordering::SeqCst) {
            lane.remote().run(|_| ());
        }
        assert_eq!(hear.recv(), Ok(letter));
    }
}

/// Sets a flag when it is dropped.
struct Dropped(Arc<AtomicBool>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Two lanes count in turn, with sleeps and off-lane work in between; returns the virtual time that
/// it took.
fn lanes_take_turns() -> Duration {
    let clock = Simulation::current().expect("simulated").clock();
    let begin = clock.now();
    let turn = Arc::new((AtomicUsize::new(0), Notify::default()));
    let lanes = [0, 1].map(|number| {
        let (turn, options) = (turn.clone(), LaneOptions::default());
        // The simulation replaces this clock.
        let system = Arc::new(MonotonicClock::new());
        let setup = move |this: &LaneLoop| {
            let lane = this.lane().clone();
            let this = this.clone();
            lane.clone().spawn(async move {
                for round in 0..10 {
                    loop {
                        let changed = turn.1.listen();
                        if turn.0.load(Ordering::SeqCst) == round * 2 + number {
                            break;
                        }
                        changed.await;
                    }
                    lane.sleep(Duration::from_secs(60)).await;
                    assert_eq!(off_lane::run("off", move || round).await, Some(round));
                    turn.0.fetch_add(1, Ordering::SeqCst);
                    turn.1.notify_all();
                    yield_now().await;
                }
                this.stop();
            });
        };
        LaneThread::spawn("lane", LaneId(number as u16), system, options, setup).expect("lane")
    });
    for lane in lanes {
        lane.join().expect("a clean end");
    }
    clock.now() - begin
}

#[test]
fn lanes_of_a_simulation_run_in_its_order_and_on_its_clock() {
    let mut traces = std::collections::BTreeSet::new();
    for seed in 0..10 {
        let [first, second] = [(); 2].map(|()| Simulation::run(seed, lanes_take_turns));
        assert_eq!(first.trace, second.trace);
        traces.insert(first.trace);
        assert_eq!(first.unwrap(), Duration::from_secs(20 * 60));
    }
    assert!(traces.len() > 5, "seeds differ");
}

#[test]
fn a_crash_ends_lanes_with_everything_that_they_hold() {
    for seed in 0..20 {
        let outcome = Simulation::run(seed, move || {
            let flags = [(); 4].map(|()| Arc::<AtomicBool>::default());
            let drops = flags.clone().map(Dropped);
            let clock = Arc::new(MonotonicClock::new());
            let setup = move |this: &LaneLoop| {
                let [sleeps, works, spins, state] = drops;
                let lane = this.lane().clone();
                this.lane().spawn(async move {
                    lane.sleep(Duration::from_secs(3600)).await;
                    drop(sleeps);
                });
                this.lane().spawn(async move {
                    off_lane::run("off", || forebay_threads::sleep(Duration::from_secs(3600)))
                        .await;
                    drop(works);
                });
                this.lane().spawn(async move {
                    let _spins = spins;
                    loop {
                        // The crash happens here or between rounds.
                        forebay_threads::step();
                        yield_now().await;
                    }
                });
                state
            };
            let options = LaneOptions::default();
            let lane = LaneThread::spawn("lane", LaneId(0), clock, options, setup).expect("lane");
            (0..seed * 10).for_each(|_| forebay_threads::step());
            Simulation::current().expect("simulated").crash();
            assert!(flags.iter().all(|flag| flag.load(Ordering::SeqCst)));
            assert!(lane.is_finished());
        });
        assert!(outcome.failures.is_empty(), "seed {seed}: {:?}", outcome.failures);
        assert_eq!(outcome.time, Duration::ZERO);
    }
}

#[test]
fn rounds_that_take_long_leave_the_ring_waiting_for_few_of_them() {
    use forebay_core::ManualClock;
    for (step, rounds) in [(Duration::ZERO, ROUNDS), (Duration::from_millis(1), 2)] {
        let clock = Arc::new(ManualClock::default());
        let own = clock.clone();
        let setup = move |this: &LaneLoop| {
            let turns = Rc::new(Cell::new(0));
            let counted = turns.clone();
            this.lane().spawn(async move {
                loop {
                    own.advance_to(own.now() + step);
                    counted.set(counted.get() + 1);
                    crate::executor::yield_now().await;
                }
            });
            assert!(this.run_tasks());
            assert_eq!(turns.get(), rounds);
            this.stop();
        };
        let lane = LaneThread::spawn("test lane", LaneId(0), clock, LaneOptions::default(), setup);
        lane.expect("rounds as many as wanted").join().expect("a clean end");
    }
}
