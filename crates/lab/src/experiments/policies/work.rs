//! All policies and sizes on all processors.

use crate::error::LabResult;
use crate::experiments::replay::{self, Loaded, Misses};
use crate::pool;
use crate::progress::Progress;

use super::accesses::Accesses;
use super::plain::{Counts, Steps};
use super::{Job, Policy, belady, plain};

/// Result of one job.
#[derive(Clone, Debug)]
pub(super) enum Found {
    Plain(Counts),
    Log(Misses),
}

/// Runs each policy at its size, `threads` at a time; the results are in the order of the jobs.
/// `log` is the trace for policies in a log.
pub(super) fn run(
    jobs: &[Job],
    accesses: &Accesses,
    log: Option<&Loaded>,
    seed: u64,
    threads: Option<usize>,
) -> LabResult<Vec<Found>> {
    let steps = accesses.accesses() * jobs.len() as u64;
    let progress = Progress::late(steps, "running policies");
    let order: Vec<usize> = (0..jobs.len()).collect();
    pool::run(jobs, &order, pool::threads(threads, jobs.len()), |job| {
        run_one(job, accesses, log, seed, &mut Steps::shown(&progress))
    })
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
