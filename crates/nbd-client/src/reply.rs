//! The destination of an operation's result.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use forebay_device::{DeviceDone, DeviceExtent};
use parking_lot::{Condvar, Mutex};

/// A result.
pub(crate) struct OpResult {
    pub(crate) done: DeviceDone,
    /// The extent that a query returned.
    pub(crate) extent: Option<DeviceExtent>,
}

/// The receiver of a result.
pub(crate) enum To {
    /// The operation was abandoned.
    Nobody,
    /// A task of the same lane.
    Own { done: Option<OpResult>, waker: Option<Waker> },
    /// Another lane or thread.
    Other(Arc<Reply>),
    /// The comparison of a sample, by number.
    Sample(usize),
}

impl To {
    /// Returns whether the result was abandoned. The requests of an abandoned operation must not be
    /// sent any more, because another operation may use the range by now.
    pub(crate) fn is_abandoned(&self) -> bool {
        match self {
            To::Nobody => true,
            To::Other(reply) => Arc::strong_count(reply) == 1,
            To::Own { .. } | To::Sample(_) => false,
        }
    }
}

#[derive(Default)]
struct State {
    answer: Option<OpResult>,
    waker: Option<Waker>,
}

/// Receives the result of an operation that another lane executes.
#[derive(Default)]
pub(crate) struct Reply {
    state: Mutex<State>,
    there: Condvar,
}

impl Reply {
    pub(crate) fn give(&self, answer: OpResult) {
        let mut state = self.state.lock();
        state.answer = Some(answer);
        let waker = state.waker.take();
        drop(state);
        self.there.notify_all();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    pub(crate) fn poll(&self, context: &Context<'_>) -> Poll<OpResult> {
        let mut state = self.state.lock();
        match state.answer.take() {
            Some(answer) => Poll::Ready(answer),
            None => {
                state.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }

    /// Blocks the calling thread, which must not be a lane.
    pub(crate) fn wait(&self, most: Duration) -> Option<OpResult> {
        let mut state = self.state.lock();
        if state.answer.is_none() {
            self.there.wait_for(&mut state, most);
        }
        state.answer.take()
    }
}
