//! Catching panics, without catching the end of a simulated thread.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// The payload that ends a simulated thread after a crash. It is not a panic: no message is
/// printed.
pub(crate) struct Crash;

/// Ends the calling thread as a crash of its simulation does.
pub(crate) fn crash() -> ! {
    resume_unwind(payload())
}

/// Returns the payload that ends a thread in this way.
pub(crate) fn payload() -> Box<dyn Any + Send> {
    Box::new(Crash)
}

/// Returns whether `payload` is the one that ends a simulated thread after a crash.
pub fn is_crash(payload: &(dyn Any + Send)) -> bool {
    payload.is::<Crash>()
}

/// Calls `run`; catches panics and ends alike.
pub(crate) fn catch_all<T>(run: impl FnOnce() -> T) -> std::thread::Result<T> {
    catch_unwind(AssertUnwindSafe(run))
}

/// Calls `run` and returns its result, or the payload of its panic. Simulated code must use this
/// instead of [`catch_unwind`]: it does not catch the end of a simulated thread.
///
/// # Errors
/// `run` panicked.
pub fn catch<T>(run: impl FnOnce() -> T) -> std::thread::Result<T> {
    match catch_all(run) {
        Err(payload) if is_crash(&*payload) => resume_unwind(payload),
        result => result,
    }
}

/// Returns the message of a panic.
pub fn message(payload: &(dyn Any + Send)) -> &str {
    payload
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
}
