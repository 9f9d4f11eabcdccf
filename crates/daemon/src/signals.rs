//! Requests to stop, by SIGTERM, SIGINT or a test, or to hand over to another program, by SIGHUP or
//! through the admin API. Signals are blocked in all threads and read by one. So none is lost, and
//! none ends the process while another program is executed.

use std::io::Read;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use forebay_admin::ApiError;
use forebay_core::units::format_size;
use forebay_threads::{Condvar, Mutex};
use nix::errno::Errno;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Resource, getrlimit, setrlimit};
use signal_hook::consts::SIGXFSZ;

/// The kind of end that was requested.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum EndRequest {
    /// The daemon ends, and no other program continues its work.
    Stop,
    /// A hand-over to another program, which continues to serve the clients.
    HandOver(PathBuf),
}

/// Whether the daemon has been asked to end.
#[derive(Default)]
pub(crate) struct StopRequest {
    asked: Mutex<Option<EndRequest>>,
    changed: Condvar,
}

impl StopRequest {
    /// Requests the end; returns false if one was requested before, which then stays in force. A
    /// stop replaces a hand-over that has not been completed.
    pub(crate) fn ask(&self, end: EndRequest) -> bool {
        let mut asked = self.asked.lock();
        let accepted = match (&*asked, &end) {
            (None, _) | (Some(EndRequest::HandOver(_)), EndRequest::Stop) => true,
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
        self.asked.lock().is_some()
    }

    /// Returns whether the daemon was asked to end, rather than to hand over to another program.
    pub(crate) fn is_stop(&self) -> bool {
        *self.asked.lock() == Some(EndRequest::Stop)
    }

    /// Waits for the request.
    pub(crate) fn wait(&self) -> EndRequest {
        loop {
            if let Some(end) = self.wait_for(Duration::MAX) {
                return end;
            }
        }
    }

    /// Waits for the request, for at most `time`; returns it if there is one.
    pub(crate) fn wait_for(&self, time: Duration) -> Option<EndRequest> {
        let asked = self.asked.lock();
        let waited = self.changed.wait_timeout_while(asked, time, |asked| asked.is_none());
        waited.0.clone()
    }
}

/// Raises this process's limit on the size of files as far as permitted, and warns if a limit
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

/// Fewer descriptors than this are few.
const FEW_DESCRIPTORS: u64 = 1024;

/// Raises the limit of open files of this process as far as that is allowed, and warns of a low one
/// that remains.
pub(crate) fn lift_limit_of_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    let raised = rustix::process::Rlimit { current: limit.maximum, ..limit };
    let _ = setrlimit(Resource::Nofile, raised);
    let remains = getrlimit(Resource::Nofile).current;
    if let Some(few) = remains.filter(|most| *most < FEW_DESCRIPTORS) {
        tracing::warn!(
            "this process may have only {few} files open, which is enough for a few volumes and clients: raise it with 'ulimit -n 65536', or LimitNOFILE=65536 in its unit"
        );
    }
}

/// Says how large files may be, and how to change that.
fn limit_of_files() -> String {
    let bytes = getrlimit(Resource::Fsize).current.unwrap_or(u64::MAX);
    format!(
        "this process may write files only up to {}: raise it with 'ulimit -f unlimited', or LimitFSIZE=infinity in its unit",
        format_size(bytes)
    )
}

/// The signals that the daemon reads. The first three have a meaning; the others have one for other
/// daemons, such as reopening the log, and would end this one.
const READ: [Signal; 9] = [
    Signal::SIGTERM,
    Signal::SIGINT,
    Signal::SIGHUP,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGALRM,
    Signal::SIGVTALRM,
    Signal::SIGPROF,
    Signal::SIGIO,
];

fn failed(errno: Errno) -> ApiError {
    ApiError::failed(format!("signals: {errno}"))
}

/// Blocks the signals that the daemon reads, for the calling thread and those that it starts. Must
/// be called before any other thread is started. A signal that arrives at any time, even while
/// another program is executed, waits until it is read.
///
/// # Errors
/// The system's.
pub fn block() -> Result<(), ApiError> {
    READ.into_iter().collect::<SigSet>().thread_block().map_err(failed)
}

/// Undoes [`block`] in a process that a daemon has started, where nothing reads signals.
pub fn unblock() {
    // If this fails, the process still works, but only SIGKILL can stop it early.
    let _ = READ.into_iter().collect::<SigSet>().thread_unblock();
}

/// The thread that reads signals.
pub(crate) struct Reading {
    is_over: Arc<Mutex<bool>>,
}

impl Reading {
    /// Leaves signals that arrive from now on to the next program.
    pub(crate) fn end(&self) {
        *self.is_over.lock() = true;
    }
}

/// Turns SIGTERM and SIGINT into requests to stop, until the process ends. `first` runs at the
/// first of them, and `reload` at each SIGHUP, on the thread that reads signals. SIGXFSZ, which
/// would end the process with all its clients, is handled, so that only the write beyond the limit
/// fails.
///
/// # Errors
/// The signals or the thread cannot be set up.
pub(crate) fn listen(
    stop: Arc<StopRequest>,
    first: impl FnOnce() + Send + 'static,
    reload: impl Fn() + Send + 'static,
) -> Result<Reading, ApiError> {
    let io_failed = |error: std::io::Error| ApiError::failed(format!("signals: {error}"));
    for signal in READ {
        // The kernel discards ignored signals even while they are blocked, and a parent may have
        // ignored this one. The handler replaces that disposition and never runs.
        signal_hook::flag::register(signal as i32, Arc::default()).map_err(io_failed)?;
    }
    let (too_large, handler) = UnixStream::pair().map_err(io_failed)?;
    too_large.set_nonblocking(true).map_err(io_failed)?;
    // The kernel sends SIGXFSZ to the thread that wrote, so the signal descriptor of another thread
    // never sees it. It needs a handler.
    signal_hook::low_level::pipe::register(SIGXFSZ, handler).map_err(io_failed)?;
    let flags = SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC;
    let signals = SignalFd::with_flags(&READ.into_iter().collect(), flags).map_err(failed)?;
    let is_over = Arc::new(Mutex::new(false));
    let reading = Reading { is_over: is_over.clone() };
    let thread = std::thread::Builder::new().name("signals".to_owned());
    let spawned = thread.spawn(move || {
        let mut first = Some(first);
        while let Some(signal) = next(&signals, &too_large, &is_over, &stop) {
            match signal {
                Signal::SIGHUP => reload(),
                Signal::SIGTERM | Signal::SIGINT => {
                    first.take().into_iter().for_each(|first| first());
                }
                other => {
                    tracing::warn!("signal {other} has no meaning here: SIGTERM ends the daemon, and SIGHUP has it execute its program again");
                }
            }
        }
    });
    spawned.map(|_| reading).map_err(io_failed)
}

/// Waits for a signal, and makes the corresponding request; `None` if the next program reads it.
fn next(
    signals: &SignalFd,
    mut too_large: &UnixStream,
    is_over: &Mutex<bool>,
    stop: &StopRequest,
) -> Option<Signal> {
    loop {
        let mut ready =
            [PollFd::new(signals, PollFlags::IN), PollFd::new(too_large, PollFlags::IN)];
        let _ = poll(&mut ready, None);
        if too_large.read(&mut [0; 64]).is_ok() {
            tracing::error!("SIGXFSZ: a write failed, because {}", limit_of_files());
        }
        // The lock is held until the request is recorded: `Reading::end` is followed by a check for
        // requests, which must see every signal that was read.
        let is_over = is_over.lock();
        if *is_over {
            return None;
        }
        let Ok(Some(info)) = signals.read_signal() else { continue };
        let signal = READ.into_iter().find(|known| *known as u32 == info.ssi_signo)?;
        if matches!(signal, Signal::SIGTERM | Signal::SIGINT) {
            match stop.ask(EndRequest::Stop) {
                true => tracing::info!("{signal}: stopping"),
                false => tracing::info!("{signal}: already stopping"),
            }
        }
        return Some(signal);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stop_replaces_a_hand_over_and_is_not_replaced() {
        let stop = StopRequest::default();
        let next = || EndRequest::HandOver("/usr/bin/forebay".into());
        assert_eq!(stop.wait_for(Duration::ZERO), None);
        assert!(stop.ask(next()) && !stop.ask(next()));
        assert_eq!(stop.wait_for(Duration::ZERO), Some(next()));
        assert!(stop.is_asked() && !stop.is_stop());
        assert!(stop.ask(EndRequest::Stop) && !stop.ask(EndRequest::Stop) && !stop.ask(next()));
        assert_eq!(stop.wait_for(Duration::ZERO), Some(EndRequest::Stop));
        assert!(stop.is_stop());
    }
}
