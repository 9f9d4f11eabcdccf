//! A lane on its own thread, with the system clock and a ring. In a simulation of threads it runs
//! on a simulated thread and clock, and parks instead of waiting in the ring.

use std::cell::{Cell, RefCell};
use std::io;
use std::num::NonZeroU64;
use std::rc::{Rc, Weak};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use forebay_core::{Clock, Nanos};
use forebay_device::{
    BoxedTask, Device, DeviceError, DeviceQueue, Queue, QueueContext, Ring, Tasks,
};
use forebay_threads::channel::RecvError;
use forebay_threads::{JoinHandle, Parker, Simulation, sync_channel};
use tz::TimeZone;

use crate::executor::{Lane, LaneId, LaneRemote};

/// Rounds of tasks before devices are polled again. Otherwise tasks that wake each other could
/// starve the devices.
const ROUNDS: usize = 16;

/// Time after which no further round begins. Otherwise long work in many steps would delay a client
/// whose request has arrived.
const ROUNDS_FOR: Duration = Duration::from_micros(500);

/// The system's monotonic clock; it starts at 0 when the value is made.
#[derive(Clone, Copy, Debug)]
pub struct MonotonicClock {
    start: u64,
}

/// Returns the system's monotonic time in nanoseconds. Requests read it several times, and
/// `Instant` is slower.
fn monotonic() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    (now.tv_sec as u64) * 1_000_000_000 + now.tv_nsec as u64
}

impl MonotonicClock {
    /// Creates a clock that starts now.
    #[expect(clippy::new_without_default, reason = "the moment it is made matters")]
    pub fn new() -> Self {
        MonotonicClock { start: monotonic() }
    }
}

impl Clock for MonotonicClock {
    fn now(&self) -> Nanos {
        Nanos(monotonic().saturating_sub(self.start))
    }

    #[expect(clippy::disallowed_methods, reason = "this is where the time comes from")]
    fn time_of_day(&self) -> Duration {
        /// The time zone from `TZ` or `/etc/localtime` at the first call; UTC if there is none.
        static ZONE: OnceLock<TimeZone> = OnceLock::new();
        let zone = ZONE.get_or_init(|| TimeZone::local().unwrap_or_else(|_| TimeZone::utc()));
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let seconds = i64::try_from(since.as_secs()).unwrap_or(0);
        let offset = zone.find_local_time_type(seconds).map_or(0, |kind| kind.ut_offset());
        let local = (seconds + i64::from(offset)).rem_euclid(24 * 3600);
        Duration::from_secs(local as u64)
    }
}

/// Options of a lane thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneOptions {
    /// Longest time for which an idle lane polls for work before it sleeps in the kernel; other
    /// threads may take its CPU meanwhile. The lane polls for less, or not at all, while polling
    /// finds nothing. 0: it always sleeps at once.
    pub spin: Duration,
    /// Whether the ring takes [`RingOp::ServeEntry`](forebay_device::ring::RingOp::ServeEntry).
    pub wide_ring: bool,
}

impl Default for LaneOptions {
    fn default() -> Self {
        // A client that waits for each answer takes up to 50 us to wake up and send the next
        // request. Falling asleep and being woken costs both sides about as much CPU time as
        // polling for that long.
        LaneOptions { spin: Duration::from_micros(60), wide_ring: false }
    }
}

/// The state of a lane thread: its lane, its ring and the queues that it drives. Stays on that
/// thread; clones share it.
#[derive(Clone)]
pub struct LaneLoop {
    lane: Rc<Lane>,
    ring: Rc<Ring>,
    queues: Rc<RefCell<Vec<Weak<dyn DeviceQueue>>>>,
    stop: Arc<AtomicBool>,
    /// Takes the place of waiting in the ring, in a simulation.
    parker: Option<Rc<Parker>>,
}

impl LaneLoop {
    /// Creates the loop of the calling thread.
    fn new(
        id: LaneId,
        clock: Arc<dyn Clock>,
        options: LaneOptions,
        stop: Arc<AtomicBool>,
    ) -> io::Result<Self> {
        let ring = if options.wide_ring { Ring::wide() } else { Ring::new() }?;
        let (lane, parker) = match Simulation::current() {
            None => {
                // Sleeps end on time instead of up to 50 us late. Without permission for this, they
                // are less precise.
                let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
                (Lane::new(id, clock, ring.rouser()), None)
            }
            Some(simulation) => {
                let parker = Parker::new();
                let unparker = parker.unparker();
                let lane = Lane::new(id, simulation.clock(), move || unparker.unpark());
                (lane, Some(Rc::new(parker)))
            }
        };
        Ok(LaneLoop { lane, ring, queues: Rc::default(), stop, parker })
    }

    /// Returns the lane.
    pub fn lane(&self) -> &Rc<Lane> {
        &self.lane
    }

    /// Returns the lane's ring. In a simulation nothing drives the ring.
    pub fn ring(&self) -> &Rc<Ring> {
        &self.ring
    }

    /// Returns the context with which queues are opened on this lane.
    pub fn context(&self) -> QueueContext {
        QueueContext {
            clock: self.lane.clock().clone(),
            ring: self.parker.is_none().then(|| self.ring.clone()),
            tasks: Some(Rc::new(LaneTasks(self.lane.clone()))),
        }
    }

    /// Opens `device` on this lane and registers its queue, see [`LaneLoop::register`].
    ///
    /// # Errors
    /// See [`Device::open_queue`].
    pub fn open(&self, device: &dyn Device) -> Result<Queue, DeviceError> {
        let queue = Queue::new(device.open_queue(&self.context())?);
        self.register(&queue);
        Ok(queue)
    }

    /// Drives `queue` between rounds of tasks for as long as a reference to it exists.
    pub fn register(&self, queue: &Queue) {
        let added = Rc::downgrade(queue.inner());
        let mut queues = self.queues.borrow_mut();
        if !queues.iter().any(|known| Weak::ptr_eq(known, &added)) {
            queues.push(added);
        }
    }

    /// Ends the loop after the current round. Tasks that have not ended are dropped.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
    }

    /// Runs jobs and tasks for a bounded number of rounds. Returns whether any of them ran.
    fn run_tasks(&self) -> bool {
        let mut since = None;
        for round in 0..ROUNDS {
            if !self.lane.run_ready() {
                return round > 0;
            }
            if self.parker.is_some() {
                forebay_threads::step();
            }
            let now = self.lane.now();
            if now.since(*since.get_or_insert(now)) >= ROUNDS_FOR {
                break;
            }
        }
        if self.parker.is_some() {
            // The tasks may wait for another lane in a way that the simulation does not see.
            forebay_threads::yield_now();
        }
        true
    }

    /// Drives the queues; returns the earliest time at which one needs to be driven again.
    fn drive_queues(&self) -> Option<Nanos> {
        let mut earliest = None;
        let mut gone = false;
        let mut index = 0;
        loop {
            // The list is not borrowed while a queue is driven, because tasks that it wakes may
            // open or drop queues.
            let Some(queue) = self.queues.borrow().get(index).map(Weak::upgrade) else { break };
            index += 1;
            match queue {
                Some(queue) => {
                    queue.drive();
                    earliest = earlier(earliest, queue.next_event());
                }
                None => gone = true,
            }
        }
        if gone {
            self.queues.borrow_mut().retain(|queue| queue.strong_count() > 0);
        }
        earliest
    }

    fn run(&self, options: LaneOptions) {
        let spin = Spin::new(options.spin);
        while !self.stop.load(Ordering::SeqCst) {
            let ran = self.run_tasks();
            let event = self.drive_queues();
            let noticed = self.parker.is_none() && self.ring.drive() > 0;
            let seen = self.lane.look();
            if ran || noticed || seen {
                spin.found_work();
                continue;
            }
            if self.parker.is_none() && spin.goes_on(self.lane.now()) {
                // A client on the same CPU must not wait until the scheduler preempts this thread.
                std::thread::yield_now();
                continue;
            }
            // `ask` precedes the last check for work of tasks and other threads.
            if self.lane.ask() || !self.lane.may_sleep() {
                continue;
            }
            let now = self.lane.now();
            let timeout = earlier(event, self.lane.next_deadline()).map(|next| next.since(now));
            // `stop` wakes the ring after it has set the flag, so checking the flag here suffices.
            if timeout != Some(Duration::ZERO) && !self.stop.load(Ordering::SeqCst) {
                match &self.parker {
                    None => self.ring.wait_then(timeout, || self.lane.woke()),
                    Some(parker) => parker.park(timeout),
                }
                spin.slept(self.lane.now().since(now));
            }
            self.lane.woke();
        }
    }
}

fn earlier(one: Option<Nanos>, other: Option<Nanos>) -> Option<Nanos> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

/// The lane, in the interface that devices use.
struct LaneTasks(Rc<Lane>);

impl Tasks for LaneTasks {
    fn spawn(&self, task: BoxedTask) {
        self.0.spawn(task);
    }

    fn sleep(&self, time: Duration) -> BoxedTask {
        Box::pin(self.0.sleep(time))
    }
}

/// Time for which an idle lane keeps polling. Doubles when longer polling would have found work,
/// and halves when it would not have.
struct Spin {
    most: Duration,
    now: Cell<Duration>,
    since: Cell<Option<Nanos>>,
}

impl Spin {
    fn new(most: Duration) -> Self {
        Spin { most, now: Cell::new(most), since: Cell::new(None) }
    }

    fn found_work(&self) {
        self.since.set(None);
    }

    /// Returns whether to poll again instead of sleeping.
    fn goes_on(&self, now: Nanos) -> bool {
        let limit = self.now.get();
        if limit.is_zero() {
            return false;
        }
        let since = self.since.get().unwrap_or(now);
        self.since.set(Some(since));
        now.since(since) < limit
    }

    /// Records that the lane slept for `time` after polling had found nothing.
    fn slept(&self, time: Duration) {
        self.since.set(None);
        let limit = self.now.get();
        let next = if time < self.most { limit * 2 + self.most / 8 } else { limit / 2 };
        // A poll costs about as much as falling asleep, so a shorter time is not worthwhile.
        let next = if next < self.most / 16 { Duration::ZERO } else { next };
        self.now.set(next.min(self.most));
    }
}

/// Drops the tasks of a lane, however its thread ends. Tasks refer to their lane, so both would
/// keep each other alive.
struct Abandon(Rc<Lane>);

impl Drop for Abandon {
    fn drop(&mut self) {
        self.0.abandon();
    }
}

/// Handle to a running lane thread. Dropping it stops the thread and waits for it.
pub struct LaneThread {
    id: LaneId,
    remote: LaneRemote,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl LaneThread {
    /// Starts a thread called `name` with a ring and a lane on `clock`, and calls `setup` on it.
    /// The result of `setup` is kept on that thread until the lane has stopped. Returns once
    /// `setup` has returned. In a simulation the simulation's clock replaces `clock`.
    ///
    /// # Errors
    /// The thread or its ring cannot be made, or `setup` panicked.
    pub fn spawn<T: 'static>(
        name: &str,
        id: LaneId,
        clock: Arc<dyn Clock>,
        options: LaneOptions,
        setup: impl FnOnce(&LaneLoop) -> T + Send + 'static,
    ) -> io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let (tell, hear) = sync_channel(1);
        let inner = stop.clone();
        let thread = forebay_threads::spawn(name, move || {
            let this = match LaneLoop::new(id, clock, options, inner) {
                Ok(this) => this,
                Err(error) => {
                    let _ = tell.send(Err(error));
                    return;
                }
            };
            // The crash of a simulation may end this thread anywhere. In any case, tasks are
            // dropped before the state of `setup`.
            let _last = Abandon(this.lane.clone());
            let _state = setup(&this);
            let _first = Abandon(this.lane.clone());
            let _ = tell.send(Ok(this.lane.remote()));
            drop(tell);
            this.run(options);
        })?;
        match hear.recv() {
            Ok(Ok(remote)) => Ok(LaneThread { id, remote, stop, thread: Some(thread) }),
            Ok(Err(error)) => Err(error),
            Err(RecvError) => {
                let _ = thread.join();
                Err(io::Error::other(format!("the set-up of {name} panicked")))
            }
        }
    }

    /// Returns the lane's number.
    pub fn id(&self) -> LaneId {
        self.id
    }

    /// Returns a handle to run jobs on the lane. Jobs that arrive after the lane has stopped are
    /// dropped.
    pub fn remote(&self) -> &LaneRemote {
        &self.remote
    }

    /// Tells the lane to stop, without waiting for it. Tasks that have not ended are dropped;
    /// operations in progress on a disk are awaited.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
        // Wakes the lane.
        self.remote.run(|_| ());
    }

    /// Returns whether the thread has ended.
    pub fn is_finished(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Waits until the lane has been stopped by [`LaneThread::stop`] or [`LaneLoop::stop`].
    ///
    /// # Errors
    /// The thread panicked outside of a task.
    pub fn join(mut self) -> io::Result<()> {
        self.wait()
    }

    fn wait(&mut self) -> io::Result<()> {
        match self.thread.take().map(JoinHandle::join) {
            Some(Err(_)) => Err(io::Error::other(format!("lane {} panicked", self.id.0))),
            Some(Ok(())) | None => Ok(()),
        }
    }
}

impl Drop for LaneThread {
    fn drop(&mut self) {
        if self.thread.is_none() {
            return;
        }
        self.stop();
        if let Err(error) = self.wait() {
            tracing::error!(%error, "a lane ended badly");
        }
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "a lane is tried from another thread")]
mod tests;
