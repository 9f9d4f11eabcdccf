//! Running code in a simulation, and the outcome.

use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

use forebay_core::Clock;

use crate::failure::Failure;
use crate::schedule::{Decisions, Plan};
use crate::scheduler::{Core, Here};
use crate::thread;

/// Real time without a step after which a thread counts as blocked by something that is not
/// simulated.
const STUCK: Duration = Duration::from_secs(60);

/// The outcome of a run.
#[derive(Clone, Debug)]
pub struct RunOutcome<T> {
    /// The result of the first thread. `None` if it did not return.
    pub result: Option<T>,
    /// All failures; empty if the run was good.
    pub failures: Vec<Failure>,
    /// The decisions that [repeat](Plan::repeat) the run.
    pub decisions: Decisions,
    /// Hash of the order and the times of all steps; equal runs have equal hashes.
    pub trace: u64,
    /// The number of steps.
    pub steps: u64,
    /// The virtual time that the run took.
    pub time: Duration,
}

impl<T> RunOutcome<T> {
    /// Returns the result.
    ///
    /// # Panics
    /// The run failed. The message contains the decisions that repeat it.
    #[track_caller]
    pub fn unwrap(self) -> T {
        let failures: Vec<String> = self.failures.iter().map(ToString::to_string).collect();
        match self.result {
            Some(result) if failures.is_empty() => result,
            _ => panic!("{}\ndecisions: {}", failures.join("\n"), self.decisions),
        }
    }
}

/// A running simulation, as its threads use it.
#[derive(Clone)]
pub struct Simulation(Here);

impl Simulation {
    /// Runs `first` as the first thread of a simulation. When it returns, the other threads unwind
    /// one after the other, each at its next step, just as all threads of a process end with
    /// `main`. Returns when all have ended.
    ///
    /// A thread that blocks on anything outside this crate blocks the whole simulation.
    #[track_caller]
    pub fn run<T: Send + 'static>(
        plan: impl Into<Plan>,
        first: impl FnOnce() -> T + Send + 'static,
    ) -> RunOutcome<T> {
        let core = Arc::new(Core::new(&plan.into()));
        let thread = thread::start(&core, "first", None, Location::caller(), first);
        let begun = thread.is_ok();
        if begun {
            core.begin();
        }
        let mut failures = Vec::new();
        let mut state = core.state.lock();
        while begun && !state.finished {
            let steps = state.steps;
            let waited = core.finished.wait_for(&mut state, STUCK);
            if waited.timed_out() && state.steps == steps {
                failures.extend(state.running().map(Failure::Stuck));
                break;
            }
        }
        if state.finished {
            let waiting = state.waiting();
            if waiting.is_empty() {
                let handles = std::mem::take(&mut state.handles);
                parking_lot::MutexGuard::unlocked(&mut state, || {
                    handles.into_iter().for_each(|handle| drop(handle.join()));
                });
            } else {
                failures.push(Failure::Left(waiting));
            }
        }
        failures.splice(0..0, std::mem::take(&mut state.failures));
        let (decisions, trace, time) = state.end();
        let steps = state.steps;
        drop(state);
        let result = match thread.map(|thread| thread.join()) {
            Ok(result) => result.ok(),
            Err(error) => {
                failures.push(Failure::Panic {
                    thread: "first".to_owned(),
                    message: error.to_string(),
                });
                None
            }
        };
        RunOutcome { result, failures, decisions, trace, steps, time }
    }

    /// Returns the simulation of the calling thread.
    pub fn current() -> Option<Simulation> {
        Here::get().map(Simulation)
    }

    /// Returns the simulation's clock.
    pub fn clock(&self) -> Arc<dyn Clock> {
        self.0.core.clone()
    }

    /// Returns a pseudo-random number that is unique within the run. Runs with the same order of
    /// threads draw the same numbers.
    pub fn draw(&self) -> u128 {
        self.0.core.state.lock().draw()
    }

    /// Ends all other threads as if the process were killed, except that they unwind one after the
    /// other, each at its next step. While a thread unwinds, its waits return immediately as timed
    /// out. Returns when the threads have ended; a thread that waits for a lock of the caller ends
    /// once that is released.
    #[track_caller]
    pub fn crash(&self) {
        self.0.crash(Location::caller());
    }

    /// Returns whether the calling thread is being ended by a crash or by the end of the
    /// simulation. Effects of its destructors must then be suppressed: a killed process runs none.
    pub fn is_ending(&self) -> bool {
        self.0.is_ending()
    }
}
