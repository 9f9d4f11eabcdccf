//! Retries for devices and addresses that a process still holds shortly after its death.

use forebay_threads::Instant;
use std::time::Duration;

/// Time for which a device may appear in use after its user has died, because the kernel tears a
/// ring down in the background, with everything that the ring holds.
const AFTERLIFE: Duration = Duration::from_millis(800);

/// Retries `attempt` for a moment while its error says that the device or address is in use.
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
