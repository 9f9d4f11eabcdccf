//! Runs many seeds on a few threads and collects the results.
#![allow(
    clippy::disallowed_methods,
    reason = "threads and wall-clock time of the runner itself, outside every world"
)]

use std::cell::RefCell;
use std::io::{IsTerminal, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::oracle::plain;
use crate::report::{RunCounts, SeedResult};
use crate::run::run_seed;
use crate::system::SystemUnderTest;
use crate::world::RunOptions;

thread_local! {
    static PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Makes panics of worlds part of the report and suppresses their output.
pub fn catch_panics() {
    std::panic::set_hook(Box::new(|info| {
        PANIC.with(|panic| panic.borrow_mut().replace(info.to_string()));
    }));
}

/// Runs one seed; a panic counts as a broken promise.
pub fn run_caught(seed: u64, system: &dyn SystemUnderTest, options: RunOptions) -> SeedResult {
    match catch_unwind(AssertUnwindSafe(|| run_seed(seed, system, options))) {
        Ok(outcome) => outcome,
        Err(_) => {
            let message = PANIC.with(|panic| panic.borrow_mut().take()).unwrap_or_default();
            let message = message.replace('\n', " ");
            let violation = Some(plain(25, format!("the system panicked: {message}")));
            SeedResult {
                seed,
                hash: 0,
                counts: RunCounts { seeds: 1, ..RunCounts::default() },
                violation,
            }
        }
    }
}

/// The seeds to run, and limits.
#[derive(Clone, Copy, Debug)]
pub struct RunPlan {
    /// The first seed.
    pub start: u64,
    /// Maximum number of seeds.
    pub seeds: u64,
    /// Time after which no further seed is started.
    pub time: Option<Duration>,
    /// Threads.
    pub jobs: usize,
    /// Number of failed seeds after which no further seed is started.
    pub max_failures: usize,
    /// Options for each seed.
    pub options: RunOptions,
    /// Whether to print a progress line.
    pub progress: bool,
}

/// The results of all seeds.
#[derive(Debug, Default)]
pub struct Summary {
    /// The sum of all counters.
    pub counts: RunCounts,
    /// Runs that broke a promise, by seed.
    pub failures: Vec<SeedResult>,
    /// Wall-clock time.
    pub time: Duration,
}

/// Runs the seeds of `plan` on the systems that `system` makes, one per thread.
pub fn run_many<S: SystemUnderTest>(plan: RunPlan, system: impl Fn() -> S + Sync) -> Summary {
    let began = Instant::now();
    let next = AtomicU64::new(0);
    let enough = AtomicBool::new(false);
    let summary = Mutex::new(Summary::default());
    let late = || plan.time.is_some_and(|time| began.elapsed() >= time);
    std::thread::scope(|scope| {
        for _ in 0..plan.jobs.max(1) {
            scope.spawn(|| {
                let system = system();
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    if index >= plan.seeds || enough.load(Ordering::Relaxed) || late() {
                        break;
                    }
                    let outcome = run_caught(plan.start.wrapping_add(index), &system, plan.options);
                    let mut summary = summary.lock();
                    summary.counts.add(&outcome.counts);
                    if outcome.violation.is_some() {
                        summary.failures.push(outcome);
                        enough.fetch_or(
                            summary.failures.len() >= plan.max_failures,
                            Ordering::Relaxed,
                        );
                    }
                    if plan.progress && summary.counts.seeds.is_multiple_of(16) {
                        progress(&summary, plan.seeds, began.elapsed());
                    }
                }
            });
        }
    });
    if plan.progress && std::io::stderr().is_terminal() {
        eprintln!();
    }
    let mut summary = summary.into_inner();
    summary.failures.sort_by_key(|outcome| outcome.seed);
    summary.time = began.elapsed();
    summary
}

fn progress(summary: &Summary, seeds: u64, elapsed: Duration) {
    let end = if std::io::stderr().is_terminal() { '\r' } else { '\n' };
    let line = format!(
        "{} of {seeds} seeds, {} crash points, {} requests, {} failures, {:.0} s",
        summary.counts.seeds,
        summary.counts.crashes,
        summary.counts.requests,
        summary.failures.len(),
        elapsed.as_secs_f64(),
    );
    // A failure to print the progress is ignored.
    let _ = write!(std::io::stderr(), "{line}   {end}");
}
