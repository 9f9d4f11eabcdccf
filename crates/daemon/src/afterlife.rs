//! Retries for devices and addresses that a process which has just died still holds.

use forebay_threads::Instant;
use std::time::Duration;

/// Time for which a device may appear in use after its user has died: the kernel tears a ring down,
/// with everything it holds, in the background.
const AFTERLIFE: Duration = Duration::from_millis(800);

/// Retries `attempt` for a moment while its error says that something is in use.
pub(crate) fn outlasting<T, E>(
    mut attempt: impl FnMut() -> Result<T, E>,
    in_use: impl Fn(&E) -> bool,
) -> Result<T, E> {
    let end = Instant::now() + AFTERLIFE;
    loop {
        match attempt() {
            Err(error) if in_use(&error) && Instant::now() < end => {
                forebay_threads::sleep(Duration::from_millis(20));
            }
            result => return result,
        }
    }
}
