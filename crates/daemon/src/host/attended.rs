//! Attended work: jobs on devices that may never answer. A separate thread runs the job to its end;
//! the operation that waits for it may give up.

use std::sync::Arc;
use std::time::Duration;

use forebay_admin::{ApiError, ErrorKind, VolumeName};
use forebay_threads::{Condvar, Instant, Mutex, MutexGuard, sync_channel};

use super::EngineHost;
use super::lanes::unfinished;
use crate::planted::{self, PlantedBug};
use crate::work::Work;

/// Interval at which an operation checks whether to give up.
const STEP: Duration = Duration::from_millis(25);

/// Time limit for cancelled work to end by itself; after that it is abandoned.
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
        self.stage.lock()
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
    /// Runs `job` for a volume, and waits for its end. If the work is cancelled, or a device has
    /// not answered for as long as the work allows, the work is withdrawn: this function returns,
    /// and the job ends without an effect when the device answers. If the work has committed
    /// already, it is late, and this function continues to wait for it.
    ///
    /// # Errors
    /// The error of the job, [`ErrorKind::Cancelled`], or an error that names the device that does
    /// not answer.
    pub(super) fn attended<T, E>(
        self: &Arc<Self>,
        name: &VolumeName,
        work: &Arc<Work>,
        job: impl FnOnce(&Arc<Self>, &Arc<Work>) -> Result<T, E> + Send + 'static,
    ) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<ApiError> + Into<ApiError> + Send + 'static,
    {
        let meeting =
            Arc::new(Meeting { stage: Mutex::new(Stage::AtWork), changed: Condvar::new() });
        let (host, own, own_work, own_name) =
            (self.clone(), meeting.clone(), work.clone(), name.clone());
        let claim = work.claim().filter(|_| !planted::has(PlantedBug::ClaimEndsEarly));
        let spawned = forebay_threads::spawn("attended", move || {
            let result = forebay_threads::catch(|| job(&host, &own_work))
                .unwrap_or_else(|_| Err(unfinished().into()));
            drop((claim, own_work));
            match own.end(result).map(|result| result.map_err(Into::<ApiError>::into)) {
                None => {}
                Some(Ok(_)) => {
                    tracing::info!(volume = %own_name, "an abandoned operation has completed");
                }
                Some(Err(error)) => {
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
            let asked = work.is_cancelled()
                && cancelled.get_or_insert_with(Instant::now).elapsed() >= GIVING_UP;
            if let Some(error) = self.why_given_up(name, work, asked) {
                if work.withdraw() {
                    *stage = Stage::Left;
                    return Err(error.into());
                }
                let message = format!(
                    "the command has begun; it is completed or taken back when the device answers: {}",
                    error.message
                );
                if planted::has(PlantedBug::LateIsFailed) {
                    *stage = Stage::Left;
                    return Err(error.into());
                }
                work.is_late(ApiError::new(ErrorKind::UnderWay, message));
            }
            let waited = meeting.changed.wait_timeout(stage, STEP);
            stage = waited.0;
        }
    }

    /// Returns the reason to stop waiting for work, if there is one. `asked`: it was cancelled, and
    /// has not ended soon.
    fn why_given_up(&self, name: &VolumeName, work: &Work, asked: bool) -> Option<ApiError> {
        let wait = self.served.waits_for(name);
        if asked {
            let message = match wait {
                Some(wait) => format!("cancelled: {wait}"),
                None => "cancelled".to_owned(),
            };
            return Some(ApiError::new(ErrorKind::Cancelled, message));
        }
        let wait =
            wait.filter(|wait| work.patience().is_some_and(|it| wait.seconds >= it.as_secs()))?;
        let message = format!("{wait}; 'forebay show {name}' shows whether it still waits");
        Some(ApiError::failed(message))
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
    let spawned = forebay_threads::spawn("device", move || drop(tell.send(job())));
    move || {
        spawned.ok()?;
        hear.recv_timeout(end.saturating_duration_since(Instant::now())).ok()
    }
}
