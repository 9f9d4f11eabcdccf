//! Tells the service manager that the daemon is alive, as long as its lanes and its table of
//! volumes answer.
//!
//! Neither waits for a device: a device that hangs keeps its own requests waiting, and nothing that
//! is asked here. A restart would not mend it either.

use std::sync::Arc;
use std::time::Duration;

use forebay_threads::Instant;

use forebay_admin::ApiError;

use super::host_api::Count;
use super::notify::{ServiceManager, ShutdownProgress};
use super::signals::StopRequest;
use super::volumes::Volumes;

/// Reports in the time that the manager waits for one.
const REPORTS: u32 = 4;

/// Time after its last progress for which an orderly stop or a hand-over counts as alive; it is
/// over by then, see `docs/operations.md`.
const STOPPING: Duration = Duration::from_secs(100);

/// Reports until the process ends, on a thread of its own. Does nothing without a manager that asks
/// for it.
///
/// # Errors
/// There is no thread left.
pub(crate) fn start(
    manager: &ServiceManager,
    volumes: &Arc<Volumes>,
    stop: &Arc<StopRequest>,
    ending: &Arc<ShutdownProgress>,
) -> Result<(), ApiError> {
    let Some(limit) = manager.watchdog() else { return Ok(()) };
    let (manager, volumes, stop) = (manager.clone(), volumes.clone(), stop.clone());
    let ending = ending.clone();
    let thread = std::thread::Builder::new().name("watchdog".to_owned());
    let spawned = thread.spawn(move || {
        let pause = limit / REPORTS;
        while stop.wait_for(pause).is_none() {
            report(&manager, &volumes, limit);
        }
        // Data in RAM is written down for as long as the devices take any.
        let asked = Instant::now();
        while ending.last().unwrap_or(asked).max(asked).elapsed() < STOPPING {
            manager.alive();
            std::thread::sleep(pause);
        }
    });
    spawned.map(drop).map_err(|error| ApiError::failed(format!("no thread: {error}")))
}

/// Reports if everything answers within the limit. A thread that never gets here is as silent as
/// one that finds a lane silent.
fn report(manager: &ServiceManager, volumes: &Volumes, limit: Duration) {
    volumes.list(Count::Known);
    match volumes.pulse(limit / REPORTS) {
        Ok(()) => manager.alive(),
        Err(error) => {
            tracing::error!("the service manager is not told that the daemon is alive: {error}")
        }
    }
}
