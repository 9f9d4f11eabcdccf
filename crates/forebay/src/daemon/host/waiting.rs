//! Work on a lane that is watched from an operation's thread: the lane reports progress, the
//! operation may cancel.

use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::RecvTimeoutError;
use std::task::Poll;
use std::time::Duration;

use forebay_admin::{ApiError, ErrorKind, Unit};
use forebay_lane::Lane;

use super::lanes::{Flag, LaneState, Lanes, unfinished};
use crate::daemon::operations::Work;

/// How often both sides poll.
const STEP: Duration = Duration::from_millis(25);

/// Number of blocks left to do, reported by a lane.
#[derive(Clone, Default)]
pub(super) struct Left(Arc<AtomicU64>);

impl Left {
    /// Reports the number.
    pub(super) fn set(&self, blocks: u64) {
        // Stored plus one, so that 0 means that nothing has been reported yet.
        self.0.store(blocks.saturating_add(1), Ordering::Relaxed);
    }

    fn get(&self) -> Option<u64> {
        self.0.load(Ordering::Relaxed).checked_sub(1)
    }
}

impl Lanes {
    /// Runs `job` on the first lane, and waits for its end. The job reports how many blocks of
    /// `block_bytes` are left, and is dropped at its next await when the work is cancelled.
    ///
    /// # Errors
    /// The job's own, or [`ErrorKind::Cancelled`].
    pub(super) fn watch<F>(
        &self,
        work: &Work,
        block_bytes: u64,
        job: impl FnOnce(Rc<LaneState>, Left) -> F + Send + 'static,
    ) -> Result<(), ApiError>
    where
        F: Future<Output = Result<(), ApiError>> + 'static,
    {
        let (left, cancel) = (Left::default(), Flag::default());
        let (told, asked) = (left.clone(), cancel.clone());
        let ended = self.begin(0, move |state| {
            let lane = state.context.lane.clone();
            or_cancelled(lane, job(state, told), asked)
        });
        let mut total = 0;
        loop {
            let result = ended.recv_timeout(STEP);
            if let Some(left) = left.get() {
                total = total.max(left);
                let bytes = |blocks: u64| blocks.saturating_mul(block_bytes);
                work.report(bytes(total - left), bytes(total), Unit::Bytes);
            }
            match result {
                Ok(result) => return result,
                Err(RecvTimeoutError::Disconnected) => return Err(unfinished()),
                Err(RecvTimeoutError::Timeout) if work.is_cancelled() => cancel.raise(),
                Err(RecvTimeoutError::Timeout) => (),
            }
        }
    }
}

async fn or_cancelled(
    lane: Rc<Lane>,
    job: impl Future<Output = Result<(), ApiError>>,
    cancel: Flag,
) -> Result<(), ApiError> {
    let mut job = pin!(job);
    let mut next = pin!(lane.sleep(STEP));
    std::future::poll_fn(|context| {
        if let Poll::Ready(result) = job.as_mut().poll(context) {
            return Poll::Ready(result);
        }
        while next.as_mut().poll(context).is_ready() {
            if cancel.is_raised() {
                let message = "cancelled; the volume is served as before";
                return Poll::Ready(Err(ApiError::new(ErrorKind::Cancelled, message)));
            }
            next.set(lane.sleep(STEP));
        }
        Poll::Pending
    })
    .await
}
