//! Tells the service manager about the daemon's state.

use forebay_threads::{Instant, Mutex};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// The service manager, if there is one.
#[derive(Clone, Default)]
pub(crate) struct ServiceManager {
    socket: Option<SocketAddr>,
    watchdog: Option<Duration>,
}

impl ServiceManager {
    /// Connects to the manager named by `NOTIFY_SOCKET`. An unusable name is logged and ignored:
    /// serving matters more than reporting.
    pub(crate) fn from_env() -> Self {
        let Some(name) = std::env::var_os("NOTIFY_SOCKET").filter(|name| !name.is_empty()) else {
            return ServiceManager::default();
        };
        let watchdog = watchdog(|name| std::env::var(name).ok());
        let address = match name.as_bytes() {
            [b'@', rest @ ..] => SocketAddr::from_abstract_name(rest),
            _ => SocketAddr::from_pathname(&name),
        };
        match address {
            Ok(address) => ServiceManager { socket: Some(address), watchdog },
            Err(error) => {
                tracing::warn!(%error, "NOTIFY_SOCKET cannot be used");
                ServiceManager::default()
            }
        }
    }

    /// Reports that every volume is served again.
    pub(crate) fn ready(&self, status: &str) {
        self.send(&format!("READY=1\nSTATUS={status}"));
    }

    /// Reports that the orderly stop has begun.
    pub(crate) fn stopping(&self) {
        self.send("STOPPING=1\nSTATUS=Stopping");
    }

    /// Reports the daemon's activity, for `systemctl status`.
    pub(crate) fn status(&self, status: &str) {
        self.send(&format!("STATUS={status}"));
    }

    /// Returns the interval within which the manager expects repeated reports that the daemon is
    /// alive; `None` if it expects none.
    pub(crate) fn watchdog(&self) -> Option<Duration> {
        self.watchdog
    }

    /// Requests this much more time, in a state in which time is limited.
    fn extend(&self, time: Duration) {
        self.send(&format!("EXTEND_TIMEOUT_USEC={}", time.as_micros()));
    }

    /// Reports that the daemon is alive.
    pub(crate) fn alive(&self) {
        self.send("WATCHDOG=1");
    }

    fn send(&self, message: &str) {
        let Some(address) = &self.socket else { return };
        // A manager that reads nothing must not block the daemon.
        let sent = UnixDatagram::unbound().and_then(|socket| {
            socket.set_nonblocking(true)?;
            socket.send_to_addr(message.as_bytes(), address)
        });
        if let Err(error) = sent {
            tracing::warn!(%error, "cannot notify the service manager");
        }
    }
}

/// The progress of an end that takes long: data in RAM is written down as long as the devices
/// accept it.
#[derive(Default)]
pub(crate) struct ShutdownProgress {
    manager: ServiceManager,
    last: Mutex<Option<Instant>>,
}

impl ShutdownProgress {
    /// Time that the service manager waits after each sign of progress.
    const MORE: Duration = Duration::from_secs(60);
    /// Least time between two reports of progress.
    const PAUSE: Duration = Duration::from_secs(1);

    /// Starts without progress.
    pub(crate) fn new(manager: &ServiceManager) -> Self {
        ShutdownProgress { manager: manager.clone(), last: Mutex::default() }
    }

    /// Notes progress, and asks the service manager for more time.
    pub(crate) fn advances(&self) {
        let mut last = self.last.lock();
        if last.is_none_or(|last| last.elapsed() >= Self::PAUSE) {
            *last = Some(Instant::now());
            self.manager.extend(Self::MORE);
        }
    }

    /// Returns the time of the last progress; `None` if there was none.
    pub(crate) fn last(&self) -> Option<Instant> {
        *self.last.lock()
    }
}

/// Returns the time of the watchdog according to the environment.
fn watchdog(variable: impl Fn(&str) -> Option<String>) -> Option<Duration> {
    // The variable is that of another process, from which the environment was inherited.
    if variable("WATCHDOG_PID").is_some_and(|pid| pid != std::process::id().to_string()) {
        return None;
    }
    let micros: u64 = variable("WATCHDOG_USEC")?.parse().ok()?;
    (micros > 0).then(|| Duration::from_micros(micros))
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_testkit::TempDir;

    #[test]
    fn more_time_is_asked_for_at_progress_once_a_second() {
        let dir = TempDir::new("notify");
        let path = dir.path().join("socket");
        let socket = UnixDatagram::bind(&path).expect("free");
        socket.set_nonblocking(true).expect("possible");
        let address = SocketAddr::from_pathname(&path).expect("short");
        let manager = ServiceManager { socket: Some(address), watchdog: None };
        let ending = ShutdownProgress::new(&manager);
        assert_eq!(ending.last(), None);
        (0..100).for_each(|_| ending.advances());
        assert!(ending.last().is_some());
        let mut message = [0; 64];
        let len = socket.recv(&mut message).expect("sent");
        assert_eq!(&message[..len], b"EXTEND_TIMEOUT_USEC=60000000");
        socket.recv(&mut message).expect_err("only once");
    }

    #[test]
    fn the_watchdog_is_that_of_this_process() {
        let of = |usec: Option<&str>, pid: Option<String>| {
            watchdog(|name| match name {
                "WATCHDOG_USEC" => usec.map(str::to_owned),
                _ => pid.clone(),
            })
        };
        let own = || Some(std::process::id().to_string());
        assert_eq!(of(Some("3000000"), own()), Some(Duration::from_secs(3)));
        assert_eq!(of(Some("3000000"), None), Some(Duration::from_secs(3)));
        assert_eq!(of(Some("3000000"), Some("1".to_owned())), None);
        for bad in [None, Some("0"), Some("-1"), Some("x"), Some("")] {
            assert_eq!(of(bad, own()), None);
        }
    }
}
