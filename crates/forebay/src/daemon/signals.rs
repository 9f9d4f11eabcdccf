//! Stop requests: SIGTERM, SIGINT, or a test.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use forebay_admin::ApiError;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// Whether the daemon has been asked to stop.
#[derive(Default)]
pub(crate) struct StopRequest {
    asked: Mutex<bool>,
    changed: Condvar,
}

impl StopRequest {
    /// Requests the stop; returns false if it was requested before.
    pub(crate) fn ask(&self) -> bool {
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        let first = !std::mem::replace(&mut *asked, true);
        self.changed.notify_all();
        first
    }

    /// Whether a stop was requested.
    pub(crate) fn is_asked(&self) -> bool {
        *self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the request, at most for `time`; returns whether it came.
    pub(crate) fn wait_for(&self, time: Duration) -> bool {
        let asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.changed.wait_timeout_while(asked, time, |asked| !*asked);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

/// Turns SIGTERM and SIGINT into stop requests, until the process ends; `first` runs once, on the
/// thread that waits for signals.
///
/// # Errors
/// The handlers or the thread cannot be set up.
pub(crate) fn listen(
    stop: Arc<StopRequest>,
    first: impl FnOnce() + Send + 'static,
) -> Result<(), ApiError> {
    let failed = |error: std::io::Error| ApiError::failed(format!("signals: {error}"));
    let mut signals = Signals::new([SIGTERM, SIGINT]).map_err(failed)?;
    let thread = std::thread::Builder::new().name("signals".to_owned());
    let spawned = thread.spawn(move || {
        let mut first = Some(first);
        for signal in signals.forever() {
            let name = if signal == SIGTERM { "SIGTERM" } else { "SIGINT" };
            if stop.ask() {
                tracing::info!("{name}: stopping");
            } else {
                tracing::info!("{name}: already stopping");
            }
            if let Some(first) = first.take() {
                first();
            }
        }
    });
    spawned.map(drop).map_err(failed)
}
