//! State of a client that the lanes share.

use std::fmt::Display;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use forebay_lane::Notify;
use rustix::net::{Shutdown, shutdown};

/// One client, from its connection to its end.
pub(crate) struct Session {
    /// The volume that the client uses.
    pub(crate) volume: String,
    socket: Arc<OwnedFd>,
    /// Whether the guest relies on flushes for durability.
    write_cache: AtomicBool,
    dismissed: AtomicBool,
    changed: Notify,
}

impl Session {
    pub(crate) fn new(volume: String, socket: Arc<OwnedFd>) -> Arc<Self> {
        Arc::new(Session {
            volume,
            socket,
            write_cache: AtomicBool::new(true),
            dismissed: AtomicBool::new(false),
            changed: Notify::default(),
        })
    }

    /// Ends the connection because of a protocol error of the client on one of its queues.
    pub(crate) fn fail(&self, error: &dyn Display) {
        tracing::warn!(volume = self.volume, "a client of vhost-user is dropped: {error}");
        // Fails only if the connection has ended.
        let _ = shutdown(&*self.socket, Shutdown::Both);
    }

    /// Disconnects the client after its requests in progress are answered.
    pub(crate) fn dismiss(&self) {
        self.dismissed.store(true, Ordering::SeqCst);
        self.changed.notify_all();
    }

    /// Waits until the client is dismissed.
    pub(crate) async fn dismissed(&self) {
        loop {
            let changed = self.changed.listen();
            if self.dismissed.load(Ordering::SeqCst) {
                return;
            }
            changed.await;
        }
    }

    /// Returns the connection.
    pub(crate) fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    pub(crate) fn has_write_cache(&self) -> bool {
        self.write_cache.load(Ordering::Relaxed)
    }

    pub(crate) fn set_write_cache(&self, on: bool) {
        self.write_cache.store(on, Ordering::Relaxed);
    }
}
