//! Time limits for opening an image, and the cause to report when one is exceeded.
#![allow(clippy::disallowed_methods, reason = "the simulator has no clusters")]

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Additional time to wait for a lock: the cluster detects a dead owner after 30 s, unless
/// configured otherwise.
const DEAD_OWNER: Duration = Duration::from_secs(60);

/// The component or event that the opening of an image waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The monitors of the cluster.
    Connecting,
    /// The objects of the image.
    Opening,
    /// The release of another client's lock.
    Locking,
}

impl Stage {
    /// Returns the time that this step may take beyond the image's time limit.
    fn extra(self) -> Duration {
        match self {
            Stage::Connecting | Stage::Opening => Duration::ZERO,
            Stage::Locking => DEAD_OWNER,
        }
    }

    fn silent(self) -> &'static str {
        match self {
            Stage::Connecting => "the cluster's monitors do not answer",
            Stage::Opening => "the cluster's object stores do not answer",
            Stage::Locking => {
                "the image's lock has an owner that does not answer, and is not given up yet"
            }
        }
    }
}

/// Waits for the result of opening until `end`, or longer while another client has the lock.
///
/// # Errors
/// A description of the component that did not answer in time.
pub(crate) fn wait<T>(
    hear: &Receiver<T>,
    stage: &Mutex<Stage>,
    end: Instant,
) -> Result<T, &'static str> {
    let mut opened = hear.recv_timeout(end.saturating_duration_since(Instant::now()));
    if matches!(opened, Err(RecvTimeoutError::Timeout)) {
        let extra = stage.lock().extra();
        opened = hear.recv_timeout(extra);
    }
    opened.map_err(|error| match error {
        RecvTimeoutError::Disconnected => "its thread has ended",
        RecvTimeoutError::Timeout => stage.lock().silent(),
    })
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::sync_channel;

    use super::*;

    #[test]
    fn only_another_owner_is_waited_for_longer() {
        let (tell, hear) = sync_channel(1);
        for (stage, silent) in [(Stage::Connecting, "monitors"), (Stage::Opening, "object stores")]
        {
            assert_eq!(stage.extra(), Duration::ZERO);
            let error = wait(&hear, &Mutex::new(stage), Instant::now()).unwrap_err();
            assert!(error.contains(silent), "{error}");
        }
        let teller = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(50));
            tell.send(1).unwrap();
        });
        assert_eq!(wait(&hear, &Mutex::new(Stage::Locking), Instant::now()), Ok(1));
        teller.join().unwrap();
        // The sender is dropped, so the call does not wait.
        let error = wait(&hear, &Mutex::new(Stage::Locking), Instant::now()).unwrap_err();
        assert!(error.contains("thread"), "{error}");
    }
}
