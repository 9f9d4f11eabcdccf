//! Tasks that others wait for, and what becomes of these if one panics.

use crate::store::Store;

/// Held by a task while others wait for what only it can do. If it panics, the device counts as failed:
/// whoever waits is woken, and goes on without.
#[must_use = "nothing is guarded once this is dropped"]
pub struct PanicGuard<'a> {
    store: &'a Store,
    task: &'static str,
}

impl Store {
    /// The cache device fails if `task` panics before the result is dropped.
    pub fn fail_on_panic(&self, task: &'static str) -> PanicGuard<'_> {
        PanicGuard { store: self, task }
    }

    /// For who drops something of `task`: the cache device fails if that is because of a panic.
    pub fn fail_if_panicking(&self, task: &str) {
        if std::thread::panicking() {
            self.fail(&format_args!("{task} panicked"));
        }
    }
}

impl Drop for PanicGuard<'_> {
    fn drop(&mut self) {
        self.store.fail_if_panicking(self.task);
    }
}
