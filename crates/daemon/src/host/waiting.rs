//! Work on a lane that is watched from an operation's thread: the lane reports progress, the
//! operation may cancel.

use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

use forebay_admin::{ApiError, ErrorKind, Unit};
use forebay_core::Cancelled;
use forebay_threads::Instant;

use super::attended::GIVING_UP;
use super::faults;
use super::lanes::{LaneState, Lanes, unfinished};
use crate::work::Work;

/// Interval at which the operation polls.
const STEP: Duration = Duration::from_millis(25);

#[derive(Default)]
struct WaitState {
    /// Number of remaining blocks plus one; 0 if nothing has been reported yet.
    left: AtomicU64,
    cancelled: AtomicBool,
}

/// Number of blocks left to do, reported by a lane.
#[derive(Clone, Default)]
pub(super) struct RemainingBlocks(Arc<WaitState>);

impl RemainingBlocks {
    /// Reports the number.
    ///
    /// # Errors
    /// The work was cancelled; the job returns.
    pub(super) fn set(&self, blocks: u64) -> Result<(), Cancelled> {
        self.0.left.store(blocks.saturating_add(1), Ordering::Relaxed);
        match self.0.cancelled.load(Ordering::Relaxed) {
            true => Err(Cancelled),
            false => Ok(()),
        }
    }

    fn get(&self) -> Option<u64> {
        self.0.left.load(Ordering::Relaxed).checked_sub(1)
    }
}

impl Lanes {
    /// Runs `job` on the first lane and waits for it. Each time the job reports how many blocks of
    /// `block_bytes` are left, it learns whether the work was cancelled. The job is never dropped,
    /// because other requests may wait for a commit or a sync that it has started. If a cancelled
    /// job waits for a device, this function returns and the job completes by itself.
    ///
    /// # Errors
    /// The error of the job, or [`ErrorKind::Cancelled`].
    pub(super) fn watch<F>(
        &self,
        work: &Work,
        block_bytes: u64,
        job: impl FnOnce(Rc<LaneState>, RemainingBlocks) -> F + Send + 'static,
    ) -> Result<(), ApiError>
    where
        F: Future<Output = Result<(), ApiError>> + 'static,
    {
        let left = RemainingBlocks::default();
        let told = left.clone();
        let ended = self.begin(0, move |state| job(state, told));
        let (mut total, mut cancelled) = (0, None::<Instant>);
        loop {
            let result = ended.recv_timeout(STEP);
            if let Some(left) = left.get() {
                total = total.max(left);
                let bytes = |blocks: u64| blocks.saturating_mul(block_bytes);
                work.report(bytes(total - left), bytes(total), Unit::Bytes);
            }
            match result {
                Ok(Err(error)) if error.kind == ErrorKind::Cancelled => {
                    return Err(faults::cancelled());
                }
                Ok(result) => return result,
                Err(RecvTimeoutError::Disconnected) => return Err(unfinished()),
                Err(RecvTimeoutError::Timeout) if work.is_cancelled() => {
                    left.0.cancelled.store(true, Ordering::Relaxed);
                    // This gives up before the operation does, so that the caller can still undo
                    // its changes.
                    if cancelled.get_or_insert_with(Instant::now).elapsed() >= GIVING_UP / 2 {
                        return Err(faults::cancelled());
                    }
                }
                Err(RecvTimeoutError::Timeout) => (),
            }
        }
    }
}
