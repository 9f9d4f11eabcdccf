//! Signals between tasks of one lane.

use std::cell::{Cell, RefCell};
use std::task::{Context, Poll, Waker};

/// A flag with at most one waiter. Raising it twice before it is seen counts once.
#[derive(Default)]
pub struct Signal {
    raised: Cell<bool>,
    waiter: RefCell<Option<Waker>>,
}

impl Signal {
    /// Raises the flag and wakes the waiter.
    pub fn raise(&self) {
        self.raised.set(true);
        if let Some(waker) = self.waiter.take() {
            waker.wake();
        }
    }

    /// Waits until the flag is raised, and clears it.
    pub async fn wait(&self) {
        std::future::poll_fn(|context| self.poll(context)).await;
    }

    /// Clears the flag, or stores the waker if the flag is not raised: the form of [`Signal::wait`]
    /// for a task that also polls other events.
    pub fn poll(&self, context: &Context<'_>) -> Poll<()> {
        if self.raised.replace(false) {
            return Poll::Ready(());
        }
        self.waiter.replace(Some(context.waker().clone()));
        Poll::Pending
    }
}
