//! Background work: images that are being opened or closed, and the threads at the end of the
//! process.
#![allow(clippy::disallowed_methods, reason = "the simulator has no clusters")]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use forebay_device::RbdName;
use parking_lot::{Condvar, Mutex};

use crate::handle;

/// Images that a background thread is opening or closing.
static UNATTENDED: Mutex<Vec<RbdName>> = Mutex::new(Vec::new());
static FEWER: Condvar = Condvar::new();

/// An entry in the list of unattended images.
pub(crate) struct Unattended(RbdName);

impl Unattended {
    pub(crate) fn enter(name: &RbdName) -> Self {
        UNATTENDED.lock().push(name.clone());
        Unattended(name.clone())
    }
}

impl Drop for Unattended {
    fn drop(&mut self) {
        let mut all = UNATTENDED.lock();
        if let Some(place) = all.iter().position(|name| *name == self.0) {
            all.swap_remove(place);
        }
        drop(all);
        FEWER.notify_all();
    }
}

/// Waits, at most until `end`, until no image that `which` selects is being opened or closed in the
/// background.
pub(crate) fn wait_for(which: impl Fn(&RbdName) -> bool, end: Instant) -> bool {
    let mut all = UNATTENDED.lock();
    while all.iter().any(&which) {
        if FEWER.wait_until(&mut all, end).timed_out() {
            return false;
        }
    }
    true
}

/// Waits until the unused images are closed and their locks released. If the process ends earlier,
/// an image stays locked until the cluster detects that the process is gone, half a minute later.
/// Returns whether all images are closed.
pub fn wait_closed(most: Duration) -> bool {
    wait_for(|_| true, Instant::now() + most)
}

/// Number of threads of images.
static ALIVE: AtomicUsize = AtomicUsize::new(0);

/// Counts a thread of an image while it runs.
pub(crate) struct Alive;

impl Alive {
    pub(crate) fn enter() -> Self {
        ALIVE.fetch_add(1, Ordering::SeqCst);
        Alive
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        ALIVE.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Ends the process. While a thread still waits for a cluster, destructors are skipped: the library
/// does not tolerate being torn down while it is in use.
pub fn exit(code: u8) -> ! {
    if ALIVE.load(Ordering::SeqCst) > 0 {
        handle::exit_at_once(code);
    }
    std::process::exit(i32::from(code));
}
