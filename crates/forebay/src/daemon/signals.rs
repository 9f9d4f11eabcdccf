//! Requests to stop, by SIGTERM, SIGINT or a test, or to hand over to another program, by SIGHUP or through
//! the admin API.

use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use forebay_admin::ApiError;
use forebay_core::units::format_size;
use rustix::process::{Resource, getrlimit, setrlimit};
use signal_hook::consts::{
    SIGALRM, SIGHUP, SIGINT, SIGIO, SIGPROF, SIGTERM, SIGUSR1, SIGUSR2, SIGVTALRM, SIGXFSZ,
};
use signal_hook::iterator::Signals;

/// Signals with a meaning for other daemons, such as opening the log again. Without a handler each would end this one.
const WITHOUT_MEANING: [i32; 6] = [SIGUSR1, SIGUSR2, SIGALRM, SIGVTALRM, SIGPROF, SIGIO];

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
    /// Requests the end; returns false if one was requested before, which then stays as it is. A stop takes
    /// the place of a hand-over that has not come to its end.
    pub(crate) fn ask(&self, end: End) -> bool {
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        let accepted = match (&*asked, &end) {
            (None, _) | (Some(End::HandOver(_)), End::Stop) => true,
            (Some(_), _) => false,
        };
        if accepted {
            *asked = Some(end);
        }
        self.changed.notify_all();
        accepted
    }

    /// Whether an end was requested.
    pub(crate) fn is_asked(&self) -> bool {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Whether the end is to be for good.
    pub(crate) fn is_stop(&self) -> bool {
        *self.asked.lock().unwrap_or_else(PoisonError::into_inner) == Some(End::Stop)
    }

    /// Waits for the request, at most for `time`; returns it if it came.
    pub(crate) fn wait_for(&self, time: Duration) -> Option<End> {
        let asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.changed.wait_timeout_while(asked, time, |asked| asked.is_none());
        waited.unwrap_or_else(PoisonError::into_inner).0.clone()
    }
}

/// Raises the limit of the sizes of files that this process may write as far as that is allowed, and warns of one that
/// remains.
pub(crate) fn lift_limit_of_files() {
    let limit = getrlimit(Resource::Fsize);
    let Some(maximum) = limit.maximum else {
        if limit.current.is_some() {
            let _ = setrlimit(
                Resource::Fsize,
                rustix::process::Rlimit { current: None, maximum: None },
            );
        }
        return;
    };
    let _ = setrlimit(Resource::Fsize, rustix::process::Rlimit { current: Some(maximum), ..limit });
    tracing::warn!("{}", limit_of_files());
}

/// Says how large files may be, and how to change that.
fn limit_of_files() -> String {
    let bytes = getrlimit(Resource::Fsize).current.unwrap_or(u64::MAX);
    format!(
        "this process may write files only up to {}: raise it with 'ulimit -f unlimited', or LimitFSIZE=infinity in its unit",
        format_size(bytes)
    )
}

/// Turns SIGTERM and SIGINT into requests to stop, until the process ends. `first` runs at the first of
/// them, and `reload` at each SIGHUP, on the thread that waits for signals. SIGXFSZ, which would end the process with
/// all its clients, is taken, so that the write behind the limit fails by itself, and so are those in [`WITHOUT_MEANING`].
///
/// # Errors
/// The handlers or the thread cannot be set up.
pub(crate) fn listen(
    stop: Arc<StopRequest>,
    first: impl FnOnce() + Send + 'static,
    reload: impl Fn() + Send + 'static,
) -> Result<(), ApiError> {
    let failed = |error: std::io::Error| ApiError::failed(format!("signals: {error}"));
    let mut signals =
        Signals::new([&[SIGTERM, SIGINT, SIGHUP, SIGXFSZ], &WITHOUT_MEANING[..]].concat())
            .map_err(failed)?;
    let thread = std::thread::Builder::new().name("signals".to_owned());
    let spawned = thread.spawn(move || {
        let mut first = Some(first);
        for signal in signals.forever() {
            match signal {
                SIGHUP => {
                    reload();
                    continue;
                }
                SIGXFSZ => {
                    tracing::error!("SIGXFSZ: a write failed, because {}", limit_of_files());
                    continue;
                }
                SIGTERM | SIGINT => {}
                other => {
                    tracing::warn!("signal {other} has no meaning here: SIGTERM ends the daemon, and SIGHUP has it execute its program again");
                    continue;
                }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stop_takes_the_place_of_a_hand_over_and_nothing_that_of_a_stop() {
        let stop = StopRequest::default();
        let next = || End::HandOver("/usr/bin/forebay".into());
        assert_eq!(stop.wait_for(Duration::ZERO), None);
        assert!(stop.ask(next()) && !stop.ask(next()));
        assert_eq!(stop.wait_for(Duration::ZERO), Some(next()));
        assert!(stop.is_asked() && !stop.is_stop());
        assert!(stop.ask(End::Stop) && !stop.ask(End::Stop) && !stop.ask(next()));
        assert_eq!(stop.wait_for(Duration::ZERO), Some(End::Stop));
        assert!(stop.is_stop());
    }
}
