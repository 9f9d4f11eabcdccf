//! Signals between the parts of a lane, and answers from one lane to another.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use forebay_lane::Notify;
use parking_lot::Mutex;

/// A flag with at most one waiter. Raising it twice before it is seen counts once.
#[derive(Default)]
pub(crate) struct Signal {
    raised: Cell<bool>,
    waiter: RefCell<Option<Waker>>,
}

impl Signal {
    /// Raises the flag and wakes the waiter.
    pub(crate) fn raise(&self) {
        self.raised.set(true);
        if let Some(waker) = self.waiter.take() {
            waker.wake();
        }
    }

    /// Clears the flag, or waits for it.
    pub(crate) fn poll(&self, context: &Context<'_>) -> Poll<()> {
        if self.raised.replace(false) {
            return Poll::Ready(());
        }
        self.waiter.replace(Some(context.waker().clone()));
        Poll::Pending
    }
}

struct Slot<T> {
    /// The answer; inside, `None` if the other lane has ended without one.
    value: Mutex<Option<Option<T>>>,
    given: Notify,
}

/// Gives one answer to another lane; dropping it tells that there is none.
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
