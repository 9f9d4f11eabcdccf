//! Answers from one lane to another.

use std::sync::Arc;

use forebay_lane::Notify;
use parking_lot::Mutex;

struct Slot<T> {
    /// The answer; the inner value is `None` if the other lane has ended without an answer.
    value: Mutex<Option<Option<T>>>,
    given: Notify,
}

/// Gives one answer to another lane; dropping it reports that there is no answer.
pub(crate) struct Reply<T>(Arc<Slot<T>>);

/// Waits for an answer.
pub(crate) struct Answer<T>(Arc<Slot<T>>);

/// Makes both ends of an answer.
pub(crate) fn answer<T>() -> (Reply<T>, Answer<T>) {
    let slot = Arc::new(Slot { value: Mutex::new(None), given: Notify::default() });
    (Reply(slot.clone()), Answer(slot))
}

impl<T> Reply<T> {
    pub(crate) fn give(self, value: T) {
        *self.0.value.lock() = Some(Some(value));
    }
}

impl<T> Drop for Reply<T> {
    fn drop(&mut self) {
        self.0.value.lock().get_or_insert(None);
        self.0.given.notify_all();
    }
}

impl<T> Answer<T> {
    /// Returns the answer. `None`: the other lane has ended without one.
    pub(crate) async fn wait(self) -> Option<T> {
        loop {
            let given = self.0.given.listen();
            if let Some(value) = self.0.value.lock().take() {
                return value;
            }
            given.await;
        }
    }
}
