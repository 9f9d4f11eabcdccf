//! All policies and sizes on all processors.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Instant;

use crate::error::{LabResult, other};
use crate::progress::Progress;
use crate::replay::{self, Loaded, Misses};

use super::accesses::{Accesses, PATIENCE};
use super::plain::Counts;
use super::{Job, Policy, belady, plain};

/// What one thread reports of its way through the trace.
#[derive(Debug, Default)]
pub(super) struct Steps<'a> {
    /// What all threads did.
    all: Option<&'a AtomicU64>,
    /// What is not in there yet.
    own: u64,
}

/// Blocks that a thread does before it says so.
const SOME: u64 = 1 << 16;

impl Steps<'_> {
    /// So many blocks are done.
    pub(super) fn advance(&mut self, blocks: usize) {
        self.own += blocks as u64;
        if self.own >= SOME {
            let own = std::mem::take(&mut self.own);
            if let Some(all) = self.all {
                all.fetch_add(own, Ordering::Relaxed);
            }
        }
    }
}

/// What one job found.
#[derive(Clone, Debug)]
pub(super) enum Found {
    Plain(Counts),
    Log(Misses),
}

/// Runs each policy at its size, so many at a time; what they found is in the order of the jobs.
/// `log` is the trace for those on a log.
///
/// # Errors
/// The engine fails, or a thread has died.
pub(super) fn run(
    jobs: &[Job],
    accesses: &Accesses,
    log: Option<&Loaded>,
    seed: u64,
    threads: usize,
) -> LabResult<Vec<Found>> {
    let done = AtomicU64::new(0);
    let next = AtomicUsize::new(0);
    let mut all: Vec<Option<LabResult<Found>>> = jobs.iter().map(|_| None).collect();
    std::thread::scope(|scope| {
        let (sender, receiver) = mpsc::channel();
        for _ in 0..threads.clamp(1, jobs.len().max(1)) {
            let sender = sender.clone();
            let (done, next) = (&done, &next);
            scope.spawn(move || {
                while let Some((place, job)) = take(jobs, next) {
                    let mut steps = Steps { all: Some(done), own: 0 };
                    let found = run_one(job, accesses, log, seed, &mut steps);
                    if sender.send((place, found)).is_err() {
                        return;
                    }
                }
            });
        }
        drop(sender);
        let begin = Instant::now();
        let mut progress: Option<Progress> = None;
        loop {
            match receiver.recv_timeout(std::time::Duration::from_millis(200)) {
                Ok((place, found)) => {
                    if let Some(slot) = all.get_mut(place) {
                        *slot = Some(found);
                    }
                }
                Err(mpsc::RecvTimeoutError::Disconnected) => break,
                Err(mpsc::RecvTimeoutError::Timeout) => {}
            }
            if progress.is_none() && begin.elapsed() > PATIENCE {
                let steps = accesses.accesses() * jobs.len() as u64;
                progress = Some(Progress::new(steps, "running policies"));
            }
            if let Some(progress) = &progress {
                progress.reach(done.load(Ordering::Relaxed));
            }
        }
    });
    let lost = || other("a policy did not get through the trace");
    all.into_iter().map(|found| found.ok_or_else(lost)?).collect()
}

fn run_one(
    job: &Job,
    accesses: &Accesses,
    log: Option<&Loaded>,
    seed: u64,
    steps: &mut Steps<'_>,
) -> LabResult<Found> {
    let capacity = job.capacity;
    match (job.policy, job.on_log.zip(log)) {
        (_, Some((policy, trace))) => {
            let misses = replay::misses(trace, policy, job.rules, capacity, seed)?;
            steps.advance(accesses.accesses() as usize);
            Ok(Found::Log(misses))
        }
        (Policy::Online(kind), None) => {
            Ok(Found::Plain(plain::run(kind, capacity, job.rules.admission, accesses, seed, steps)))
        }
        (Policy::Belady, None) => Ok(Found::Plain(belady::run(capacity, accesses, steps))),
    }
}

/// The next job that nobody has begun.
fn take<'a, T>(jobs: &'a [T], next: &AtomicUsize) -> Option<(usize, &'a T)> {
    let place = next.fetch_add(1, Ordering::Relaxed);
    Some((place, jobs.get(place)?))
}
