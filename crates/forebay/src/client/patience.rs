//! Time limits for answers of the daemon, and the notices that are printed while a client waits.

use std::cell::Cell;
use std::io;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use forebay_admin::{ApiError, ErrorKind};
use tokio::net::UnixStream;
use tokio::time::{sleep, timeout};

use super::{DaemonClient, unreachable_daemon};
use crate::output::note;
use crate::process;

/// Time without an answer before a notice is printed. The daemon answers within milliseconds; long
/// operations are polled.
pub(super) const QUIET: Duration = Duration::from_secs(2);

/// Time limit for an answer unless `--timeout` gives another.
pub(super) const USUAL: Duration = Duration::from_secs(30);

/// Interval between attempts to connect while the queue of the socket is full.
const RETRY: Duration = Duration::from_millis(50);

/// The time limit and the notices of a client, shared by all of its requests.
#[derive(Clone)]
pub(super) struct Patience {
    /// Time limit for an answer.
    limit: Duration,
    /// Print nothing while waiting.
    silently: bool,
    /// Whether a notice was printed, and the daemon has not answered since.
    told: Arc<AtomicBool>,
}

impl Patience {
    pub(super) fn new(limit: Option<Duration>) -> Self {
        Patience { limit: limit.unwrap_or(USUAL), silently: false, told: Arc::default() }
    }

    /// Returns the same limit without notices, and at most `limit`.
    pub(super) fn silently(&self, limit: Duration) -> Self {
        let limit = limit.min(self.limit);
        Patience { limit, silently: true, told: self.told.clone() }
    }
}

/// Progress of one request.
pub(super) struct Asking {
    /// True if the request may take effect although its answer is late.
    pub(super) changes: bool,
    connected: Cell<bool>,
    daemon: Cell<Option<u32>>,
}

impl Asking {
    /// Begins a request; `changes`: it is a command.
    pub(super) fn new(changes: bool) -> Self {
        Asking { changes, connected: Cell::new(false), daemon: Cell::new(None) }
    }

    /// Returns words for the daemon that is asked.
    fn daemon(&self, socket: &Path) -> String {
        let daemon = self.daemon.get().or_else(|| process::listening_at(socket));
        daemon.map_or_else(|| "the daemon".to_owned(), |pid| format!("the daemon (pid {pid})"))
    }
}

impl DaemonClient {
    /// Connects, for as long as it takes: the kernel refuses a connection while as many wait as the
    /// socket has room for.
    ///
    /// # Errors
    /// There is no daemon, or it cannot be reached.
    pub(super) async fn connect(&self, asking: &Asking) -> Result<UnixStream, ApiError> {
        loop {
            match UnixStream::connect(&self.socket).await {
                Ok(stream) => {
                    asking.daemon.set(process::peer(&stream));
                    asking.connected.set(true);
                    return Ok(stream);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => sleep(RETRY).await,
                Err(error) => return Err(unreachable_daemon(&self.socket, &error)),
            }
        }
    }

    /// Waits for a part of an answer, which may take as long as `usual` in addition to the usual
    /// limits.
    ///
    /// # Errors
    /// [`ErrorKind::NoAnswer`] if it takes too long, or those of `part`.
    pub(super) async fn patiently<T>(
        &self,
        asking: &Asking,
        usual: Duration,
        part: impl Future<Output = Result<T, ApiError>>,
    ) -> Result<T, ApiError> {
        let Patience { limit, silently, told } = &self.patience;
        let mut part = pin!(part);
        let quiet = if *silently { *limit } else { QUIET.min(*limit) };
        if let Ok(result) = timeout(usual + quiet, &mut part).await {
            told.store(false, Ordering::Relaxed);
            return result;
        }
        let left = limit.saturating_sub(quiet);
        if !left.is_zero() {
            if !told.swap(true, Ordering::Relaxed) {
                note(&format!(
                    "forebay: {} has not answered for {} s; waiting up to {} s, which --timeout changes",
                    asking.daemon(&self.socket),
                    seconds(quiet),
                    seconds(*limit),
                ));
            }
            if let Ok(result) = timeout(left, part).await {
                told.store(false, Ordering::Relaxed);
                return result;
            }
        }
        Err(self.silent(asking))
    }

    /// Returns the error for a daemon that has not answered in time.
    fn silent(&self, asking: &Asking) -> ApiError {
        let (daemon, socket) = (asking.daemon(&self.socket), self.socket.display());
        let limit = seconds(self.patience.limit);
        let sent = match (asking.connected.get(), asking.changes) {
            (false, _) => "; its socket takes no more connections, and nothing was sent",
            (true, true) => {
                "; the command was sent and may still be carried out: 'forebay events' and 'forebay show' tell once \
                 it answers"
            }
            (true, false) => "",
        };
        let message = format!(
            "{daemon} at {socket} has not answered for {limit} s{sent}; 'forebay doctor' shows its state"
        );
        ApiError::new(ErrorKind::NoAnswer, message)
    }
}

/// Formats a time in seconds.
fn seconds(time: Duration) -> f64 {
    (time.as_secs_f64() * 1000.0).round() / 1000.0
}
