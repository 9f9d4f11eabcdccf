//! All policies and sizes on all processors.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Instant;

use crate::error::{LabResult, other};
use crate::progress::Progress;

use super::accesses::{Accesses, PATIENCE};
use super::plain::Counts;
use super::{Policy, belady, plain};

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

/// Runs each policy at its size, so many at a time; the counts are in the order of the jobs.
///
/// # Errors
/// A thread has died.
pub(super) fn run(
    jobs: &[(Policy, f64, u32)],
    accesses: &Accesses,
    seed: u64,
    threads: usize,
) -> LabResult<Vec<Counts>> {
    let done = AtomicU64::new(0);
    let next = AtomicUsize::new(0);
    let mut counts: Vec<Option<Counts>> = vec![None; jobs.len()];
    std::thread::scope(|scope| {
        let (sender, receiver) = mpsc::channel();
        for _ in 0..threads.clamp(1, jobs.len().max(1)) {
            let sender = sender.clone();
            let (done, next) = (&done, &next);
            scope.spawn(move || {
                while let Some((place, (policy, _, capacity))) = take(jobs, next) {
                    let mut steps = Steps { all: Some(done), own: 0 };
                    let counts = match policy {
                        Policy::Online(kind) => {
                            plain::run(*kind, *capacity, accesses, seed, &mut steps)
                        }
                        Policy::Belady => belady::run(*capacity, accesses, &mut steps),
                    };
                    if sender.send((place, counts)).is_err() {
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
                    if let Some(slot) = counts.get_mut(place) {
                        *slot = Some(found);
                    }
                }
                Err(mpsc::RecvTimeoutError::Disconnected) => break,
                Err(mpsc::RecvTimeoutError::Timeout) => {}
            }
            if progress.is_none() && begin.elapsed() > PATIENCE {
                let all = accesses.accesses() * jobs.len() as u64;
                progress = Some(Progress::new(all, "running policies"));
            }
            if let Some(progress) = &progress {
                progress.reach(done.load(Ordering::Relaxed));
            }
        }
    });
    let all: Option<Vec<Counts>> = counts.into_iter().collect();
    all.ok_or_else(|| other("a policy did not get through the trace"))
}

/// The next job that nobody has begun.
fn take<'a, T>(jobs: &'a [T], next: &AtomicUsize) -> Option<(usize, &'a T)> {
    let place = next.fetch_add(1, Ordering::Relaxed);
    Some((place, jobs.get(place)?))
}
