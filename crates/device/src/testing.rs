//! Helpers for the tests of several modules.

use std::future::Future;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

use crate::buffer::IoBuf;
use crate::ring::Ring;

/// Runs `future` on `ring` to its end.
pub(crate) fn block_on<T>(ring: &Ring, future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    loop {
        match poll(future.as_mut()) {
            Some(value) => return value,
            None => ring.wait(None),
        }
    }
}

/// Polls `future` once and returns its result, if it has ended.
pub(crate) fn poll<T>(future: Pin<&mut impl Future<Output = T>>) -> Option<T> {
    match future.poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => Some(value),
        Poll::Pending => None,
    }
}

/// Returns a buffer filled with `byte`.
pub(crate) fn filled(len: usize, byte: u8) -> IoBuf {
    let mut buf = IoBuf::for_overwrite(len);
    buf.fill(byte);
    buf
}
