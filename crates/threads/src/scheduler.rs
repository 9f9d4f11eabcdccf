//! The scheduler of a simulation. Every simulated thread is a thread of the operating system that
//! sleeps until its turn.

use std::cell::RefCell;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use forebay_core::{Clock, Nanos};
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::failure::{Failure, WaitPoint};
use crate::schedule::{Chooser, DecisionOptions, Plan, ThreadState};
use crate::unwind;

/// Maximum number of steps in which a thread may unwind after a crash. A thread that needs more is
/// stuck; it is not run again, and the run reports it.
const LAST_TURNS: u32 = 100_000;

/// Number of yields without a wait in between after which a thread counts as spinning.
const SPINS: u32 = 8;

/// The event that a thread waits for. Addresses are only compared, so they may differ between runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitKey {
    /// The lock at this address.
    Lock(usize),
    /// The [`LockEvent`](crate::sync::LockEvent) at this address.
    Event(usize),
    /// The end of a thread.
    End(usize),
    /// Time.
    Time,
    /// The end of all threads that are being ended.
    Crash,
}

/// The reason why a thread continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Woken {
    Notified,
    TimedOut,
    /// The thread is being ended and must not wait.
    Crashed,
}

#[derive(Clone, Copy)]
enum Standing {
    Ready(Woken),
    Waits {
        key: WaitKey,
        deadline: Option<Nanos>,
    },
    Ended,
    /// The thread did not end after a crash.
    Lost,
}

struct Thread {
    name: String,
    standing: Standing,
    /// The source position of the thread's last call into this crate.
    at: &'static Location<'static>,
    /// Steps that are left to unwind. `None` while the thread runs normally.
    last_turns: Option<u32>,
    /// Virtual time of the waits that the thread skipped while it was being ended.
    skipped: Duration,
    /// Number of yields since the thread last waited or virtual time last advanced.
    spins: u32,
    turn: Arc<Condvar>,
}

impl Thread {
    fn is_ready(&self) -> bool {
        matches!(self.standing, Standing::Ready(_))
    }

    fn waits_for(&self, wanted: WaitKey) -> bool {
        matches!(self.standing, Standing::Waits { key, .. } if key == wanted)
    }

    fn is_gone(&self) -> bool {
        matches!(self.standing, Standing::Ended | Standing::Lost)
    }

    /// Returns whether the thread is being ended and still runs.
    fn is_ending(&self) -> bool {
        self.last_turns.is_some() && !self.is_gone()
    }
}

pub(crate) struct State {
    threads: Vec<Thread>,
    running: Option<usize>,
    now: Nanos,
    chooser: Chooser,
    draws: fastrand::Rng,
    pub(crate) steps: u64,
    trace: DefaultHasher,
    pub(crate) failures: Vec<Failure>,
    /// Whether the run is over and every thread is being ended.
    over: bool,
    pub(crate) finished: bool,
    pub(crate) handles: Vec<std::thread::JoinHandle<()>>,
}

/// A simulation.
pub(crate) struct Core {
    pub(crate) state: Mutex<State>,
    pub(crate) finished: Condvar,
    now: AtomicU64,
    every_lock: bool,
    early: bool,
    most_steps: u64,
    most_time: Nanos,
}

impl Clock for Core {
    fn now(&self) -> Nanos {
        Nanos(self.now.load(Ordering::SeqCst))
    }
}

impl State {
    /// Returns the threads that have not ended, with the events that they wait for.
    pub(crate) fn waiting(&self) -> Vec<WaitPoint> {
        let describe = |thread: &Thread| {
            let what = match thread.standing {
                Standing::Ended => return None,
                Standing::Lost => "its end",
                Standing::Ready(_) => "its turn",
                Standing::Waits { key: WaitKey::Lock(_), .. } => "a lock",
                Standing::Waits { key: WaitKey::Event(_), deadline: None } => "an event",
                Standing::Waits { key: WaitKey::Event(_), deadline: Some(_) } => "an event or time",
                Standing::Waits { key: WaitKey::End(_), .. } => "the end of a thread",
                Standing::Waits { key: WaitKey::Time, .. } => "time",
                Standing::Waits { key: WaitKey::Crash, .. } => "the crash",
            };
            Some(WaitPoint { thread: thread.name.clone(), what, at: thread.at })
        };
        self.threads.iter().filter_map(describe).collect()
    }

    /// Returns the decisions, the hash of the trace, and the virtual time.
    pub(crate) fn end(&self) -> (crate::Decisions, u64, Duration) {
        (self.chooser.made().clone(), self.trace.finish(), self.now.since(Nanos(0)))
    }

    /// Returns the thread whose turn it is, and the position of its last call.
    pub(crate) fn running(&self) -> Option<WaitPoint> {
        let thread = self.threads.get(self.running?)?;
        Some(WaitPoint { thread: thread.name.clone(), what: "something real", at: thread.at })
    }

    pub(crate) fn draw(&mut self) -> u128 {
        self.draws.u128(..)
    }

    pub(crate) fn is_gone(&self, id: usize) -> bool {
        self.threads[id].is_gone()
    }

    fn wake(&mut self, id: usize, woken: Woken) {
        self.threads[id].standing = Standing::Ready(woken);
    }

    fn waiters(&self, key: WaitKey) -> Vec<usize> {
        (0..self.threads.len()).filter(|&id| self.threads[id].waits_for(key)).collect()
    }

    pub(crate) fn wake_all(&mut self, key: WaitKey) {
        for id in self.waiters(key) {
            self.wake(id, Woken::Notified);
        }
    }

    pub(crate) fn wake_one(&mut self, key: WaitKey) {
        let waiters = self.waiters(key);
        let choice =
            DecisionOptions { threads: &waiters, running: ThreadState::Waits, time: false };
        if let Some(&id) = waiters.get(self.chooser.choose(&choice)) {
            self.wake(id, Woken::Notified);
        }
    }

    /// Begins to end every thread except `spared`.
    fn doom(&mut self, spared: Option<usize>) {
        for id in 0..self.threads.len() {
            let thread = &mut self.threads[id];
            if Some(id) != spared && !thread.is_gone() && thread.last_turns.is_none() {
                thread.last_turns = Some(LAST_TURNS);
                if !thread.is_ready() {
                    self.wake(id, Woken::Crashed);
                }
            }
        }
    }

    fn fail(&mut self, failure: Failure) {
        self.failures.push(failure);
        self.over = true;
        self.doom(None);
    }

    /// Returns the ready threads for which `is` returns true, in round-robin order after `after`.
    fn ready(&self, after: Option<usize>, is: impl Fn(&Thread) -> bool) -> Vec<usize> {
        let (len, after) = (self.threads.len(), after.unwrap_or(0));
        let turns = (1..=len).map(|step| (after + step) % len);
        turns.filter(|&id| self.threads[id].is_ready() && is(&self.threads[id])).collect()
    }

    fn next_deadline(&self) -> Option<Nanos> {
        let deadline = |thread: &Thread| match thread.standing {
            Standing::Waits { deadline, .. } => deadline,
            Standing::Ready(_) | Standing::Ended | Standing::Lost => None,
        };
        self.threads.iter().filter_map(deadline).min()
    }

    /// Advances the time to `to`.
    fn pass(&mut self, to: Nanos) {
        self.now = self.now.max(to);
        self.threads.iter_mut().for_each(|thread| thread.spins = 0);
        for id in 0..self.threads.len() {
            if let Standing::Waits { deadline: Some(deadline), .. } = self.threads[id].standing
                && deadline <= self.now
            {
                self.wake(id, Woken::TimedOut);
            }
        }
    }
}

impl Core {
    pub(crate) fn new(plan: &Plan) -> Self {
        Core {
            state: Mutex::new(State {
                threads: Vec::new(),
                running: None,
                now: Nanos(0),
                chooser: plan.chooser(),
                // The seed does not depend on the plan: a run that is repeated from its decisions
                // must draw the same numbers.
                draws: fastrand::Rng::with_seed(0),
                steps: 0,
                trace: DefaultHasher::new(),
                failures: Vec::new(),
                over: false,
                finished: false,
                handles: Vec::new(),
            }),
            finished: Condvar::new(),
            now: AtomicU64::new(0),
            every_lock: plan.every_lock,
            early: plan.early,
            most_steps: plan.most_steps,
            most_time: Nanos(0) + plan.most_time,
        }
    }

    /// Adds a ready thread and calls `start` for it. A child of a thread that is being ended is
    /// ended too.
    pub(crate) fn add(
        self: &Arc<Self>,
        name: &str,
        parent: Option<usize>,
        at: &'static Location<'static>,
        start: impl FnOnce(Here) -> io::Result<std::thread::JoinHandle<()>>,
    ) -> io::Result<usize> {
        let mut state = self.state.lock();
        let me = state.threads.len();
        let last_turns = parent.and_then(|parent| state.threads[parent].last_turns);
        state.threads.push(Thread {
            name: name.to_owned(),
            standing: Standing::Ready(Woken::Notified),
            at,
            last_turns,
            skipped: Duration::ZERO,
            spins: 0,
            turn: Arc::default(),
        });
        let started = start(Here { core: self.clone(), me });
        match started {
            Ok(handle) => {
                state.handles.push(handle);
                Ok(me)
            }
            Err(error) => {
                state.threads.pop();
                Err(error)
            }
        }
    }

    /// Gives the first turn to the first thread.
    pub(crate) fn begin(&self) {
        let mut state = self.state.lock();
        self.pass_on(&mut state, None, ThreadState::Waits);
    }

    /// Chooses the next thread to run. `me` is the running thread.
    fn pass_on(&self, state: &mut State, me: Option<usize>, running: ThreadState) {
        state.steps += 1;
        if !state.over && (state.steps > self.most_steps || state.now > self.most_time) {
            let waiting = state.waiting();
            state.fail(Failure::Endless(waiting));
        }
        state.running = self.next(state, me, running);
        self.now.store(state.now.0, Ordering::SeqCst);
        match state.running {
            Some(next) => {
                if let Some(left) = &mut state.threads[next].last_turns {
                    *left = left.saturating_sub(1);
                }
                (next, state.now).hash(&mut state.trace);
                state.threads[next].turn.notify_one();
            }
            None => {
                state.finished = true;
                self.finished.notify_all();
            }
        }
    }

    fn next(&self, state: &mut State, me: Option<usize>, running: ThreadState) -> Option<usize> {
        loop {
            // Threads that are being ended run first, round-robin: their order is not a decision.
            for id in state.ready(me, |thread| thread.last_turns == Some(0)) {
                state.threads[id].standing = Standing::Lost;
            }
            if let Some(&id) = state.ready(me, Thread::is_ending).first() {
                return Some(id);
            }
            state.wake_all(WaitKey::Crash);
            let mut ready = state.ready(me, |_| true);
            // All ready threads spin, so virtual time advances to the next deadline.
            if ready.iter().all(|&id| state.threads[id].spins >= SPINS)
                && let Some(deadline) = state.next_deadline()
            {
                state.pass(deadline);
                continue;
            }
            if !ready.is_empty() {
                // The running thread is the last in round-robin order.
                if running == ThreadState::Stays {
                    ready.rotate_right(1);
                }
                let time = if self.early { state.next_deadline() } else { None };
                let chosen = state.chooser.choose(&DecisionOptions {
                    threads: &ready,
                    running,
                    time: time.is_some(),
                });
                match (ready.get(chosen), time) {
                    (Some(&id), _) => return Some(id),
                    (None, Some(time)) => state.pass(time),
                    (None, None) => {}
                }
            } else if !state.over {
                if state.threads.iter().all(Thread::is_gone) {
                    return None;
                }
                let waiting = state.waiting();
                state.fail(Failure::Deadlock(waiting));
            } else if !self.give_up_joining(state) {
                for thread in state.threads.iter_mut().filter(|thread| !thread.is_gone()) {
                    thread.standing = Standing::Lost;
                }
                return None;
            }
        }
    }

    /// Wakes the threads that wait for another thread to end. Returns whether there were any.
    fn give_up_joining(&self, state: &mut State) -> bool {
        let joins = |thread: &Thread| {
            matches!(thread.standing, Standing::Waits { key: WaitKey::End(_), .. })
        };
        let joining: Vec<usize> =
            (0..state.threads.len()).filter(|&id| joins(&state.threads[id])).collect();
        for &id in &joining {
            state.wake(id, Woken::Crashed);
        }
        !joining.is_empty()
    }
}

thread_local! {
    static HERE: RefCell<Option<Here>> = const { RefCell::new(None) };
}

/// A simulated thread, as seen by itself.
#[derive(Clone)]
pub(crate) struct Here {
    pub(crate) core: Arc<Core>,
    pub(crate) me: usize,
}

impl Here {
    /// Returns the calling thread, if it belongs to a simulation.
    pub(crate) fn get() -> Option<Here> {
        HERE.try_with(|here| here.borrow().clone()).ok().flatten()
    }

    /// Returns the time as this thread perceives it.
    pub(crate) fn now(&self) -> Duration {
        let skipped = if std::thread::panicking() {
            self.core.state.lock().threads[self.me].skipped
        } else {
            Duration::ZERO
        };
        self.core.now().since(Nanos(0)) + skipped
    }

    /// Whether this thread is being ended.
    pub(crate) fn is_ending(&self) -> bool {
        self.core.state.lock().threads[self.me].is_ending()
    }

    pub(crate) fn every_lock(&self) -> bool {
        self.core.every_lock
    }

    /// Waits for the first turn, calls `run`, and records that the thread has ended. `run` returns
    /// the message of its panic, if any. If the thread is already being ended, `run` is dropped
    /// without a call.
    pub(crate) fn live(self, run: impl FnOnce() -> Option<String>) {
        self.wait_for_turn(&mut self.core.state.lock());
        HERE.with(|here| here.replace(Some(self.clone())));
        let result = unwind::catch_all(|| if self.is_ending() { None } else { run() });
        HERE.with(|here| here.take());
        let mut state = self.core.state.lock();
        let message = match result {
            Ok(message) => message,
            Err(payload) if unwind::is_crash(&*payload) => None,
            Err(payload) => Some(unwind::message(&*payload).to_owned()),
        };
        if let Some(message) = message {
            let thread = state.threads[self.me].name.clone();
            state.failures.push(Failure::Panic { thread, message });
        }
        state.threads[self.me].standing = Standing::Ended;
        state.wake_all(WaitKey::End(self.me));
        if self.me == 0 {
            state.over = true;
            state.doom(None);
        }
        self.core.pass_on(&mut state, Some(self.me), ThreadState::Waits);
    }

    fn wait_for_turn(&self, state: &mut MutexGuard<'_, State>) -> Woken {
        let turn = state.threads[self.me].turn.clone();
        while state.running != Some(self.me) {
            turn.wait(state);
        }
        match state.threads[self.me].standing {
            Standing::Ready(woken) => woken,
            Standing::Waits { .. } | Standing::Ended | Standing::Lost => Woken::Crashed,
        }
    }

    /// Passes the turn to the next thread, and returns when this one is chosen again. Unwinds if
    /// this thread is being ended.
    fn pause(
        &self,
        standing: Standing,
        running: ThreadState,
        at: &'static Location<'static>,
    ) -> Woken {
        let mut state = self.core.state.lock();
        (self.me, at.file(), at.line()).hash(&mut state.trace);
        let (now, thread) = (state.now, &mut state.threads[self.me]);
        thread.at = at;
        thread.spins = match (running, standing) {
            (ThreadState::Yields, _) => thread.spins.saturating_add(1),
            (_, Standing::Waits { .. }) => 0,
            _ => thread.spins,
        };
        let ends = thread.is_ending();
        if ends && !std::thread::panicking() {
            drop(state);
            unwind::crash();
        }
        thread.standing = match standing {
            // The holders unwind as well, so this wait ends.
            Standing::Waits { key: WaitKey::Lock(_) | WaitKey::End(_), .. } => standing,
            Standing::Waits { deadline, .. } if ends => {
                thread.skipped += deadline.unwrap_or(now).since(now);
                Standing::Ready(Woken::Crashed)
            }
            _ => standing,
        };
        self.core.pass_on(&mut state, Some(self.me), running);
        let woken = self.wait_for_turn(&mut state);
        let ends = state.threads[self.me].is_ending();
        drop(state);
        if ends && !std::thread::panicking() {
            unwind::crash();
        }
        woken
    }

    /// Lets another thread run, or continues this one.
    pub(crate) fn step(&self, at: &'static Location<'static>) {
        self.pause(Standing::Ready(Woken::Notified), ThreadState::Stays, at);
    }

    /// Lets other threads go first.
    pub(crate) fn give_way(&self, at: &'static Location<'static>) {
        self.pause(Standing::Ready(Woken::Notified), ThreadState::Yields, at);
    }

    /// Waits until `key` is woken, at most until `deadline`.
    pub(crate) fn wait(
        &self,
        key: WaitKey,
        deadline: Option<Nanos>,
        at: &'static Location<'static>,
    ) -> Woken {
        self.pause(Standing::Waits { key, deadline }, ThreadState::Waits, at)
    }

    /// Ends all other threads, and waits until they have ended.
    pub(crate) fn crash(&self, at: &'static Location<'static>) {
        self.core.state.lock().doom(Some(self.me));
        self.wait(WaitKey::Crash, None, at);
    }

    pub(crate) fn wake_all(&self, key: WaitKey) {
        self.core.state.lock().wake_all(key);
    }

    pub(crate) fn wake_one(&self, key: WaitKey) {
        self.core.state.lock().wake_one(key);
    }
}
