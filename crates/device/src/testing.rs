//! Helpers for the tests of several modules.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use crate::ring::Ring;

/// Runs `future` on `ring` to its end.
pub(crate) fn block_on<T>(ring: &Ring, future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let mut context = Context::from_waker(Waker::noop());
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(value) => return value,
            Poll::Pending => ring.wait(None),
        }
    }
}
