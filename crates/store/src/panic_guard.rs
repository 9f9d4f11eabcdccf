//! Guards for tasks that others wait for: a panic fails the cache device.

use crate::store::Store;

/// Held by a task while others wait for a result that only it can produce. If it panics, the cache
/// device counts as failed, so that the waiters wake up and continue without it.
#[must_use = "nothing is guarded once this is dropped"]
pub struct PanicGuard<'a> {
    store: &'a Store,
    task: &'static str,
}

impl Store {
    /// Returns a guard: the cache device fails if `task` panics while it exists.
    pub fn fail_on_panic(&self, task: &'static str) -> PanicGuard<'_> {
        PanicGuard { store: self, task }
    }

    /// Fails the cache device if the thread is panicking; for drop handlers in `task`.
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
