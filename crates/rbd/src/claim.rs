//! A volume's claim to an image, which a thread records.

use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;
use uuid::Uuid;

use crate::handle::CallError;

/// See the module.
pub(crate) struct Claim {
    /// The volume.
    pub(crate) volume: Uuid,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    result: Option<Result<(), CallError>>,
    waker: Option<Waker>,
}

impl Claim {
    pub(crate) fn new(volume: Uuid) -> Self {
        Claim { volume, state: Mutex::default() }
    }

    /// Has its caller go on.
    pub(crate) fn end(&self, result: Result<(), CallError>) {
        let mut state = self.state.lock();
        state.result = Some(result);
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Collects the result, or stores the waker.
    pub(crate) fn poll(&self, context: &Context<'_>) -> Poll<Result<(), CallError>> {
        let mut state = self.state.lock();
        match state.result.clone() {
            Some(result) => Poll::Ready(result),
            None => {
                state.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}
