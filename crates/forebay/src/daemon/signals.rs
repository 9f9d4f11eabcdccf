//! Requests to stop, by SIGTERM, SIGINT or a test, or to hand over to another program, by SIGHUP or through
//! the admin API.

use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use forebay_admin::ApiError;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::hand_over;

/// How the daemon is to end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// For good.
    Stop,
    /// Another program goes on with its clients.
    HandOver(PathBuf),
}

/// Whether the daemon has been asked to end.
#[derive(Default)]
pub(crate) struct StopRequest {
    asked: Mutex<Option<End>>,
    changed: Condvar,
}

impl StopRequest {
    /// Requests the end; returns false if one was requested before, which then stays as it is.
    pub(crate) fn ask(&self, end: End) -> bool {
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        let first = asked.is_none();
        asked.get_or_insert(end);
        self.changed.notify_all();
        first
    }

    /// Whether an end was requested.
    pub(crate) fn is_asked(&self) -> bool {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Waits for the request, at most for `time`; returns it if it came.
    pub(crate) fn wait_for(&self, time: Duration) -> Option<End> {
        let asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.changed.wait_timeout_while(asked, time, |asked| asked.is_none());
        waited.unwrap_or_else(PoisonError::into_inner).0.clone()
    }
}

/// Turns SIGTERM and SIGINT into requests to stop, and SIGHUP into one to hand over to the program at the
/// path of this one, until the process ends; `first` runs at the first request to stop, on the thread that
/// waits for signals.
///
/// # Errors
/// The handlers or the thread cannot be set up.
pub(crate) fn listen(
    stop: Arc<StopRequest>,
    first: impl FnOnce() + Send + 'static,
) -> Result<(), ApiError> {
    let failed = |error: std::io::Error| ApiError::failed(format!("signals: {error}"));
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP]).map_err(failed)?;
    let thread = std::thread::Builder::new().name("signals".to_owned());
    let spawned = thread.spawn(move || {
        let mut first = Some(first);
        for signal in signals.forever() {
            if signal == SIGHUP {
                reload(&stop);
                continue;
            }
            let name = if signal == SIGTERM { "SIGTERM" } else { "SIGINT" };
            if stop.ask(End::Stop) {
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

/// Asks for a hand-over to the program at the path of this one.
fn reload(stop: &StopRequest) {
    let program = hand_over::own_program().map_err(|error| ApiError::failed(error.to_string()));
    let checked = program.and_then(|program| hand_over::check(&program).map(|()| program));
    match checked {
        Ok(program) if stop.ask(End::HandOver(program.clone())) => {
            tracing::info!(program = %program.display(), "SIGHUP: handing over");
        }
        Ok(_) => tracing::info!("SIGHUP: already ending"),
        Err(error) => tracing::error!("SIGHUP: {error}"),
    }
}
