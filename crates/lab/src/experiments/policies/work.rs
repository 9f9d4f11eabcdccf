//! All policies and sizes on all processors.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc;

use crate::error::{LabResult, other};
use crate::experiments::replay::{self, Loaded, Misses};
use crate::progress::LateProgress;

use super::accesses::Accesses;
use super::plain::{Counts, Steps};
use super::{Job, Policy, belady, plain};

/// What one job found.
#[derive(Clone, Debug)]
pub(super) enum Found {
    Plain(Counts),
    Log(Misses),
}

/// Runs each policy at its size, so many at a time; what they found is in the order of the jobs.
/// `log` is the trace for those on a log.
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
                    let mut steps = Steps::counted(done);
                    let found = run_one(job, accesses, log, seed, &mut steps);
                    if sender.send((place, found)).is_err() {
                        return;
                    }
                }
            });
        }
        drop(sender);
        let steps = accesses.accesses() * jobs.len() as u64;
        let mut progress = LateProgress::new(steps, "running policies");
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
            progress.reach(done.load(Ordering::Relaxed));
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
