//! Attended work: jobs on devices that may never answer. A thread of its own runs the job to its
//! end; the operation that waits for it may give up.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use forebay_admin::{ApiError, ErrorKind, VolumeName};

use super::EngineHost;
use super::lanes::unfinished;
use crate::daemon::operations::Work;

/// How often an operation checks whether to give up.
const STEP: Duration = Duration::from_millis(25);

/// How long cancelled work may take to end by itself before it is abandoned.
pub(super) const GIVING_UP: Duration = Duration::from_secs(1);

/// State shared by a job and the operation that waits for it.
enum Stage<T> {
    AtWork,
    Ended(T),
    /// The operation has given up waiting.
    Left,
}

struct Meeting<T> {
    stage: Mutex<Stage<T>>,
    changed: Condvar,
}

impl<T> Meeting<T> {
    fn stage(&self) -> MutexGuard<'_, Stage<T>> {
        self.stage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Delivers the result; returns it if the operation has given up.
    fn end(&self, result: T) -> Option<T> {
        let mut stage = self.stage();
        if matches!(*stage, Stage::Left) {
            return Some(result);
        }
        *stage = Stage::Ended(result);
        self.changed.notify_all();
        None
    }
}

impl EngineHost {
    /// Runs `job` for a volume, and waits for its end. Gives up when the work is cancelled, or when
    /// a device that the volume waits for has not answered for as long as the work allows: the work counts as cancelled
    /// then, and `undo` reverts a late result.
    ///
    /// # Errors
    /// The job's own, [`ErrorKind::Cancelled`], or one that names the device that does not answer.
    pub(super) fn attended<T, E>(
        self: &Arc<Self>,
        name: &VolumeName,
        work: &Arc<Work>,
        job: impl FnOnce(&Arc<Self>, &Arc<Work>) -> Result<T, E> + Send + 'static,
        undo: impl FnOnce(&Arc<Self>, T) + Send + 'static,
    ) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<ApiError> + Into<ApiError> + Send + 'static,
    {
        let meeting =
            Arc::new(Meeting { stage: Mutex::new(Stage::AtWork), changed: Condvar::new() });
        let (host, own, own_work, own_name) =
            (self.clone(), meeting.clone(), work.clone(), name.clone());
        let thread = std::thread::Builder::new().name("attended".to_owned());
        let spawned = thread.spawn(move || {
            let result = catch_unwind(AssertUnwindSafe(|| job(&host, &own_work)))
                .unwrap_or_else(|_| Err(unfinished().into()));
            match own.end(result) {
                None => {}
                Some(Ok(result)) => {
                    tracing::info!(volume = %own_name, "an abandoned operation has completed");
                    undo(&host, result);
                }
                Some(Err(error)) => {
                    let error: ApiError = error.into();
                    tracing::info!(volume = %own_name, "an abandoned operation has failed: {error}");
                }
            }
        });
        spawned
            .map_err(|error| ApiError::failed(format!("no thread for the operation: {error}")))?;
        let mut cancelled: Option<Instant> = None;
        let mut stage = meeting.stage();
        loop {
            match std::mem::replace(&mut *stage, Stage::AtWork) {
                Stage::Ended(result) => return result,
                Stage::AtWork | Stage::Left => {}
            }
            if work.is_cancelled()
                && cancelled.get_or_insert_with(Instant::now).elapsed() >= GIVING_UP
            {
                *stage = Stage::Left;
                let message = match self.served.waits_for(name) {
                    Some(wait) => format!("cancelled: {wait}"),
                    None => "cancelled".to_owned(),
                };
                return Err(ApiError::new(ErrorKind::Cancelled, message).into());
            }
            if let Some(patience) = work.patience()
                && let Some(wait) = self.served.waits_for(name)
                && wait.seconds >= patience.as_secs()
            {
                *stage = Stage::Left;
                // Before the command reports the failure: from here on the job starts no further effect.
                work.cancel();
                let message = format!("{wait}; 'forebay show {name}' shows whether it still waits");
                return Err(ApiError::failed(message).into());
            }
            let waited = meeting.changed.wait_timeout(stage, STEP);
            stage = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// Starts `job` on a thread. The returned function waits for its result until `time` has passed;
/// after that the job continues unattended.
pub(super) fn within<T: Send + 'static>(
    time: Duration,
    job: impl FnOnce() -> T + Send + 'static,
) -> impl FnOnce() -> Option<T> {
    let end = Instant::now() + time;
    let (tell, hear) = sync_channel(1);
    let thread = std::thread::Builder::new().name("device".to_owned());
    let spawned = thread.spawn(move || drop(tell.send(job())));
    move || {
        spawned.ok()?;
        hear.recv_timeout(end.saturating_duration_since(Instant::now())).ok()
    }
}
