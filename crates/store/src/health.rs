//! Whether the cache device can still be trusted with new data.

use std::fmt::Display;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

/// Latches the first failed write or sync of the cache device. After that nothing is appended and
/// no later sync proves anything about earlier writes (invariant 19): reads and writeback continue
/// with the existing content and writes are refused, until an operator intervenes.
#[derive(Default)]
pub struct Health {
    failed: AtomicBool,
    cause: Mutex<Option<Arc<str>>>,
}

impl Health {
    /// Latches a failure.
    pub(crate) fn fail(&self, error: &dyn Display) {
        if !self.failed.swap(true, Ordering::SeqCst) {
            tracing::error!(%error, "the cache device failed; no new data goes there from now on");
            *self.cause.lock() = Some(error.to_string().into());
        }
    }

    /// Whether a write or sync of the cache device has failed.
    pub fn failed(&self) -> bool {
        self.failed.load(Ordering::SeqCst)
    }

    /// Returns the message of the first failure.
    pub fn cause(&self) -> Option<Arc<str>> {
        self.cause.lock().clone()
    }
}
