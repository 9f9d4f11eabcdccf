//! Work on a lane that is watched from the thread of an operation: progress flows one way, a
//! request to give up the other.

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

/// How often the two sides look.
const STEP: Duration = Duration::from_millis(25);

/// Blocks that are left to do, told from a lane.
#[derive(Clone, Default)]
pub(super) struct Left(Arc<AtomicU64>);

impl Left {
    /// Says how many there are.
    pub(super) fn set(&self, blocks: u64) {
        // One more, so that 0 can mean that nothing has been said yet.
        self.0.store(blocks.saturating_add(1), Ordering::Relaxed);
    }

    fn get(&self) -> Option<u64> {
        self.0.load(Ordering::Relaxed).checked_sub(1)
    }
}

impl Lanes {
    /// Has `job` done on the first lane, and waits for its end. The job tells how many blocks of
    /// `block_bytes` are left, and is dropped where it waits when the work is cancelled.
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
                let message = "given up; the volume is served as before";
                return Poll::Ready(Err(ApiError::new(ErrorKind::Cancelled, message)));
            }
            next.set(lane.sleep(STEP));
        }
        Poll::Pending
    })
    .await
}
