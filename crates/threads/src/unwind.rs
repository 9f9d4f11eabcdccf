//! Catching panics, without catching the end of a simulated thread.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// Ends a thread of a simulation that has crashed. Not a panic: no message is printed.
pub(crate) struct Crash;

/// Ends the calling thread as a crash of its simulation does.
pub(crate) fn crash() -> ! {
    resume_unwind(payload())
}

/// Returns the payload of such an end.
pub(crate) fn payload() -> Box<dyn Any + Send> {
    Box::new(Crash)
}

/// Returns whether `payload` is the end of a thread of a simulation that has crashed.
pub fn is_crash(payload: &(dyn Any + Send)) -> bool {
    payload.is::<Crash>()
}

/// Calls `run`; catches panics and ends alike.
pub(crate) fn catch_all<T>(run: impl FnOnce() -> T) -> std::thread::Result<T> {
    catch_unwind(AssertUnwindSafe(run))
}

/// Calls `run` and returns its result, or the payload of its panic. Use this instead of
/// [`catch_unwind`] in simulated code: it does not catch the end of a simulated thread.
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
