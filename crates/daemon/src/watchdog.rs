//! Tells the service manager that the daemon is alive, as long as its lanes and its table of
//! volumes answer.
//!
//! Neither waits for a device: a device that hangs blocks only its own requests, and nothing that
//! is checked here. A restart would not repair it either.

use std::sync::Arc;
use std::time::Duration;

use forebay_threads::Instant;

use forebay_admin::ApiError;

use super::host_api::Count;
use super::notify::{ServiceManager, ShutdownProgress};
use super::signals::StopRequest;
use super::volumes::Volumes;

/// Number of reports in the time within which the manager expects one.
const REPORTS: u32 = 4;

/// Time after its last progress for which an orderly stop or a hand-over counts as alive. It has
/// ended by then, see `docs/operations.md`.
const STOPPING: Duration = Duration::from_secs(100);

/// Reports until the process ends, on a separate thread. Does nothing without a manager that
/// expects reports.
///
/// # Errors
/// The system has no threads left.
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
        // Data in RAM is written down as long as the devices accept it.
        let asked = Instant::now();
        while ending.last().unwrap_or(asked).max(asked).elapsed() < STOPPING {
            manager.alive();
            std::thread::sleep(pause);
        }
    });
    spawned.map(drop).map_err(|error| ApiError::failed(format!("no thread: {error}")))
}

/// Reports if everything answers within the limit. A thread that never gets here reports nothing,
/// like one that finds a lane that does not answer.
fn report(manager: &ServiceManager, volumes: &Volumes, limit: Duration) {
    volumes.list(Count::Known);
    match volumes.pulse(limit / REPORTS) {
        Ok(()) => manager.alive(),
        Err(error) => {
            tracing::error!("the service manager is not told that the daemon is alive: {error}")
        }
    }
}
