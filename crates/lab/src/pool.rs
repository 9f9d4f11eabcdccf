//! Jobs on several threads.

use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use crate::error::{LabResult, other};

/// Returns the wanted number of threads, by default one for each CPU, but not more than jobs.
pub(crate) fn threads(wanted: Option<usize>, jobs: usize) -> usize {
    let cpus = || std::thread::available_parallelism().map_or(1, usize::from);
    wanted.unwrap_or_else(cpus).clamp(1, jobs.max(1))
}

/// Does all jobs, begun in the order that `order` has of their places. Results are in the order of
/// the jobs.
pub(crate) fn run<J: Sync, T: Send>(
    jobs: &[J],
    order: &[usize],
    threads: usize,
    work: impl Fn(&J) -> LabResult<T> + Sync,
) -> LabResult<Vec<T>> {
    let next = AtomicUsize::new(0);
    let results: Vec<Mutex<Option<LabResult<T>>>> = jobs.iter().map(|_| Mutex::new(None)).collect();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(place) = order.get(next.fetch_add(1, Ordering::SeqCst)) {
                    let result = work(&jobs[*place]);
                    *results[*place].lock() = Some(result);
                }
            });
        }
    });
    let lost = || other("a job was lost");
    results.into_iter().map(|result| result.into_inner().ok_or_else(lost)?).collect()
}
