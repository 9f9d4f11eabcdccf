//! Tasks and their wake-ups.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use forebay_core::sync::Mutex;
use forebay_core::sync::atomic::{AtomicBool, Ordering};
use forebay_core::{Clock, Nanos};
use forebay_threads::unwind::message;

use crate::timer::Timers;

/// Number of a lane within one engine, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LaneId(pub u16);

type Job = Box<dyn FnOnce(&Rc<Lane>) + Send>;

/// The part of a lane that other threads may access: pending wake-ups and jobs.
struct Mailbox {
    ready: Mutex<Vec<u32>>,
    jobs: Mutex<Vec<Job>>,
    /// Set when something arrives, cleared when the lane checks. This flag and `asleep` are only
    /// exchanged and never stored to, so a thread that changes one sees everything before the last
    /// change.
    pending: AtomicBool,
    /// Wakes a lane that sleeps in the kernel.
    rouse: Box<dyn Fn() + Send + Sync>,
    /// Whether the lane sleeps or is about to.
    asleep: AtomicBool,
}

impl Mailbox {
    fn announce(&self) {
        self.pending.swap(true, Ordering::SeqCst);
        if self.asleep.swap(false, Ordering::SeqCst) {
            (self.rouse)();
        }
    }
}

struct TaskWaker {
    task: u32,
    queued: AtomicBool,
    mailbox: Arc<Mailbox>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.queued.swap(true, Ordering::AcqRel) {
            self.mailbox.ready.lock().push(self.task);
            self.mailbox.announce();
        }
    }
}

/// The body of a task.
pub(crate) trait TaskBody {
    /// Polls the body; returns `true` when it has ended.
    fn poll(&mut self, context: &mut Context<'_>) -> bool;

    /// Drops a body that has ended, or takes it back for reuse.
    fn end(self: Box<Self>) {}
}

struct Boxed(Pin<Box<dyn Future<Output = ()>>>);

impl TaskBody for Boxed {
    fn poll(&mut self, context: &mut Context<'_>) -> bool {
        self.0.as_mut().poll(context).is_ready()
    }
}

struct LaneTask {
    body: Option<Box<dyn TaskBody>>,
    waker: Arc<TaskWaker>,
    std_waker: Waker,
}

/// Work that others leave in memory for a lane, such as requests in a guest's queue. A lane that is
/// awake looks for it by itself; only a lane that is about to sleep asks to be woken.
pub trait Watched {
    /// Checks for work. Returns whether there is any, and then wakes the task that waits for it.
    fn look(&self) -> bool;

    /// Asks the others to wake this lane through its ring when there is work. Returns whether there
    /// is work already.
    fn ask(&self) -> bool;
}

/// One thread's executor, timers and clock.
pub struct Lane {
    id: LaneId,
    clock: Arc<dyn Clock>,
    mailbox: Arc<Mailbox>,
    tasks: RefCell<Vec<LaneTask>>,
    free: RefCell<Vec<u32>>,
    live: Cell<usize>,
    timers: RefCell<Timers>,
    batch: RefCell<Vec<u32>>,
    watched: RefCell<Vec<Weak<dyn Watched>>>,
    panics: Cell<usize>,
}

impl Lane {
    /// Creates a lane on `clock`. Any thread calls `rouse` when it leaves something for the lane
    /// while the lane is asleep (see [`Lane::may_sleep`]).
    pub fn new(
        id: LaneId,
        clock: Arc<dyn Clock>,
        rouse: impl Fn() + Send + Sync + 'static,
    ) -> Rc<Self> {
        Rc::new(Lane {
            id,
            clock,
            mailbox: Arc::new(Mailbox {
                ready: Mutex::default(),
                jobs: Mutex::default(),
                pending: AtomicBool::new(false),
                rouse: Box::new(rouse),
                asleep: AtomicBool::new(false),
            }),
            tasks: RefCell::default(),
            free: RefCell::default(),
            live: Cell::new(0),
            timers: RefCell::default(),
            batch: RefCell::default(),
            watched: RefCell::default(),
            panics: Cell::new(0),
        })
    }

    /// Returns this lane's number.
    pub fn id(&self) -> LaneId {
        self.id
    }

    /// Returns the current time on this lane's clock.
    pub fn now(&self) -> Nanos {
        self.clock.now()
    }

    /// Returns this lane's clock.
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    /// Returns the number of tasks and jobs that have ended with a panic.
    pub fn panics(&self) -> usize {
        self.panics.get()
    }

    /// Returns a handle with which other threads reach this lane.
    pub fn remote(&self) -> LaneRemote {
        LaneRemote { mailbox: self.mailbox.clone() }
    }

    /// Returns the number of tasks that have started and not ended.
    pub fn live_tasks(&self) -> usize {
        self.live.get()
    }

    /// Starts a task.
    pub fn spawn(&self, future: impl Future<Output = ()> + 'static) {
        self.spawn_body(Box::new(Boxed(Box::pin(future))));
    }

    pub(crate) fn spawn_body(&self, body: Box<dyn TaskBody>) {
        self.live.set(self.live.get() + 1);
        let mut tasks = self.tasks.borrow_mut();
        let index = match self.free.borrow_mut().pop() {
            Some(index) => {
                tasks[index as usize].body = Some(body);
                index
            }
            None => {
                let index = tasks.len() as u32;
                let waker = Arc::new(TaskWaker {
                    task: index,
                    queued: AtomicBool::new(false),
                    mailbox: self.mailbox.clone(),
                });
                let std_waker = Waker::from(waker.clone());
                tasks.push(LaneTask { body: Some(body), waker, std_waker });
                index
            }
        };
        let waker = tasks[index as usize].waker.clone();
        drop(tasks);
        waker.wake();
    }

    /// Runs jobs and ready tasks, each at most once. Returns whether there was anything to run.
    pub fn run_ready(self: &Rc<Self>) -> bool {
        if self.timers.borrow().next().is_some() {
            self.timers.borrow_mut().fire(self.clock.now());
        }
        if !self.mailbox.pending.swap(false, Ordering::SeqCst) {
            return false;
        }
        let jobs = std::mem::take(&mut *self.mailbox.jobs.lock());
        for job in jobs {
            self.unless_it_panics("a job panicked", || job(self));
        }
        let mut batch = self.batch.take();
        std::mem::swap(&mut batch, &mut *self.mailbox.ready.lock());
        for &index in &batch {
            self.run_task(index);
        }
        batch.clear();
        self.batch.replace(batch);
        true
    }

    fn run_task(&self, index: u32) {
        let taken = {
            let mut tasks = self.tasks.borrow_mut();
            let task = &mut tasks[index as usize];
            // An exchange, not a store: a thread that found the task queued has woken it before
            // this, and the exchange makes everything before that wake-up visible to the body.
            task.waker.queued.swap(false, Ordering::AcqRel);
            let waker = &mut task.std_waker;
            // Lent and not cloned, to avoid the reference count.
            task.body.take().map(|body| (body, std::mem::replace(waker, Waker::noop().clone())))
        };
        let Some((mut body, waker)) = taken else { return };
        // A panic of one request must not end the others.
        let poll = || body.poll(&mut Context::from_waker(&waker));
        let ended = self.unless_it_panics("a task panicked", poll);
        if let Some(task) = self.tasks.borrow_mut().get_mut(index as usize) {
            task.std_waker = waker;
        }
        match ended {
            Some(false) => {
                self.tasks.borrow_mut()[index as usize].body = Some(body);
                return;
            }
            Some(true) => body.end(),
            // A future that has panicked is not polled again.
            None => drop(body),
        }
        self.live.set(self.live.get() - 1);
        self.free.borrow_mut().push(index);
    }

    /// Returns the result of `run`, or `None` if it has panicked. A panic is logged and counted.
    fn unless_it_panics<T>(&self, title: &str, run: impl FnOnce() -> T) -> Option<T> {
        let result = forebay_threads::catch(run);
        let report = |payload: Box<dyn Any + Send>| {
            tracing::error!(lane = self.id.0, what = message(&*payload), "{title}");
            self.panics.set(self.panics.get() + 1);
        };
        result.map_err(report).ok()
    }

    /// Declares that the lane is about to sleep in the kernel. `false`: something has arrived
    /// since, so the lane must check again. After every `true` the lane must call [`Lane::woke`].
    pub fn may_sleep(&self) -> bool {
        self.mailbox.asleep.swap(true, Ordering::SeqCst);
        if self.mailbox.pending.load(Ordering::SeqCst) {
            self.mailbox.asleep.swap(false, Ordering::SeqCst);
            return false;
        }
        true
    }

    /// Declares that the lane is awake again.
    pub fn woke(&self) {
        self.mailbox.asleep.swap(false, Ordering::SeqCst);
    }

    /// Checks `watched` for work between rounds, for as long as a reference to it exists.
    pub fn watch(&self, watched: &Rc<dyn Watched>) {
        let mut all = self.watched.borrow_mut();
        all.retain(|watched| watched.strong_count() > 0);
        all.push(Rc::downgrade(watched));
    }

    /// Checks everything that is watched. Returns whether there was any work.
    pub fn look(&self) -> bool {
        self.of_watched(|watched| watched.look())
    }

    /// Asks everything that is watched to wake the lane. Returns whether there is work already.
    pub fn ask(&self) -> bool {
        self.of_watched(|watched| watched.ask())
    }

    fn of_watched(&self, each: impl Fn(&dyn Watched) -> bool) -> bool {
        // The borrow is safe, because neither call runs tasks, which could add entries. All entries
        // are called even if an early one has work: otherwise a busy one would hide those behind
        // it.
        let watched = self.watched.borrow();
        watched.iter().filter_map(Weak::upgrade).filter(|watched| each(&**watched)).count() > 0
    }

    /// Returns the deadline of the next sleeper.
    pub fn next_deadline(&self) -> Option<Nanos> {
        self.timers.borrow().next()
    }

    pub(crate) fn timers(&self) -> &RefCell<Timers> {
        &self.timers
    }

    /// Drops every task, ended or not, with everything that it holds. Operations in flight are left
    /// to their queues.
    pub fn abandon(&self) {
        let tasks = std::mem::take(&mut *self.tasks.borrow_mut());
        self.free.borrow_mut().clear();
        self.live.set(0);
        drop(tasks);
    }
}

/// A handle to a lane for other threads.
#[derive(Clone)]
pub struct LaneRemote {
    mailbox: Arc<Mailbox>,
}

impl LaneRemote {
    /// Runs `job` on the lane, soon.
    pub fn run(&self, job: impl FnOnce(&Rc<Lane>) + Send + 'static) {
        self.mailbox.jobs.lock().push(Box::new(job));
        self.mailbox.announce();
    }
}

/// Yields to every other ready task of the lane.
pub async fn yield_now() {
    let mut yielded = false;
    std::future::poll_fn(|context| {
        if yielded {
            return Poll::Ready(());
        }
        yielded = true;
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use forebay_core::ManualClock;

    use super::*;

    fn lane() -> (Rc<Lane>, Arc<ManualClock>) {
        let clock = Arc::new(ManualClock::default());
        (Lane::new(LaneId(0), clock.clone(), || ()), clock)
    }

    #[test]
    fn tasks_run_to_their_end_and_slots_are_used_again() {
        let (lane, _) = lane();
        let count = Rc::new(Cell::new(0));
        for _ in 0..3 {
            for _ in 0..10 {
                let count = count.clone();
                lane.spawn(async move {
                    yield_now().await;
                    count.set(count.get() + 1);
                });
            }
            while lane.run_ready() {}
        }
        assert_eq!(count.get(), 30);
        assert_eq!(lane.live_tasks(), 0);
        assert_eq!(lane.tasks.borrow().len(), 10);
    }

    #[test]
    fn sleepers_wake_in_order_of_their_deadlines() {
        let (lane, clock) = lane();
        let order = Rc::new(RefCell::new(Vec::new()));
        for millis in [30, 10, 20] {
            let (order, inner) = (order.clone(), lane.clone());
            lane.spawn(async move {
                inner.sleep(Duration::from_millis(millis)).await;
                order.borrow_mut().push(millis);
            });
        }
        while lane.run_ready() {}
        for now in [5, 15, 25, 35] {
            clock.advance_to(Nanos(now * 1_000_000));
            while lane.run_ready() {}
        }
        assert_eq!(*order.borrow(), [10, 20, 30]);
        assert_eq!(lane.next_deadline(), None);
    }

    #[test]
    fn a_panic_ends_one_task_only() {
        let (lane, _) = lane();
        let count = Rc::new(Cell::new(0));
        for number in 0..5 {
            let count = count.clone();
            lane.spawn(async move {
                assert!(number != 2, "this one fails");
                count.set(count.get() + 1);
            });
        }
        while lane.run_ready() {}
        assert_eq!((count.get(), lane.panics(), lane.live_tasks()), (4, 1, 0));
    }

    #[test]
    fn a_job_that_panics_keeps_nothing_else_from_running() {
        let (lane, _) = lane();
        let count = Rc::new(Cell::new(0));
        let (task, remote) = (count.clone(), lane.remote());
        lane.spawn(async move { task.set(task.get() + 1) });
        let (send, receive) = std::sync::mpsc::channel();
        remote.run(|_| panic!("on purpose"));
        remote.run(move |_| send.send(()).unwrap_or(()));
        while lane.run_ready() {}
        assert_eq!((count.get(), receive.try_recv(), lane.panics()), (1, Ok(()), 1));
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "what is tested comes from another thread")]
    fn jobs_come_from_other_threads() {
        let (lane, _) = lane();
        let remote = lane.remote();
        let (send, receive) = std::sync::mpsc::channel();
        assert!(lane.may_sleep());
        std::thread::scope(|scope| {
            scope.spawn(|| remote.run(move |lane| send.send(lane.id()).unwrap_or(())));
        });
        assert!(!lane.may_sleep());
        while lane.run_ready() {}
        assert_eq!(receive.try_recv(), Ok(LaneId(0)));
    }
}
