//! Tells the service manager about the daemon's state.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// The service manager's socket, if there is one.
pub(crate) struct ServiceManager(Option<SocketAddr>);

impl ServiceManager {
    /// Connects to the manager named by `NOTIFY_SOCKET`. An unusable name is logged and ignored:
    /// serving matters more than reporting.
    pub(crate) fn from_env() -> Self {
        let Some(name) = std::env::var_os("NOTIFY_SOCKET").filter(|name| !name.is_empty()) else {
            return ServiceManager(None);
        };
        let address = match name.as_bytes() {
            [b'@', rest @ ..] => SocketAddr::from_abstract_name(rest),
            _ => SocketAddr::from_pathname(&name),
        };
        match address {
            Ok(address) => ServiceManager(Some(address)),
            Err(error) => {
                tracing::warn!(%error, "NOTIFY_SOCKET cannot be used");
                ServiceManager(None)
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

    fn send(&self, message: &str) {
        let Some(address) = &self.0 else { return };
        // A manager that reads nothing does not hold up the daemon.
        let sent = UnixDatagram::unbound().and_then(|socket| {
            socket.set_nonblocking(true)?;
            socket.send_to_addr(message.as_bytes(), address)
        });
        if let Err(error) = sent {
            tracing::warn!(%error, "cannot notify the service manager");
        }
    }
}
