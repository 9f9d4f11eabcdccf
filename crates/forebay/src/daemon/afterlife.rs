//! Devices and addresses that a process still holds which has just died.

use std::time::{Duration, Instant};

/// How long something may look as if it were in use after its user has died: the kernel takes a
/// ring with what it holds down in its own time.
const AFTERLIFE: Duration = Duration::from_millis(800);

/// Tries something again for a moment while it is in use.
pub(crate) fn outlasting<T, E>(
    mut attempt: impl FnMut() -> Result<T, E>,
    in_use: impl Fn(&E) -> bool,
) -> Result<T, E> {
    let end = Instant::now() + AFTERLIFE;
    loop {
        match attempt() {
            Err(error) if in_use(&error) && Instant::now() < end => {
                std::thread::sleep(Duration::from_millis(20));
            }
            result => return result,
        }
    }
}
