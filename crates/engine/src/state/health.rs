//! Whether a device answers, as all lanes see it.
//!
//! A request that has not ended after [`HUNG_AFTER`] makes a device count as hung. That is reported,
//! and whatever can do without the device does. Nothing is given up: when it answers again, requests
//! end and all is as before.

use std::fmt::Display;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use forebay_core::Nanos;
use forebay_lane::Notify;
use parking_lot::Mutex;

/// After so long without an end a request counts as hung. The kernel gives a SCSI or NVMe command
/// 30 s and then begins to reset; disks for RAID sets answer within 7 s, errors or not. Clients
/// should not wait for all of that where there is another way, and invariant 15 gives them 5 s.
pub const HUNG_AFTER: Duration = Duration::from_secs(5);

/// How often lanes look.
pub(crate) const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The last error of a device, until it works again.
#[derive(Default)]
pub(crate) struct LastError {
    any: AtomicBool,
    text: Mutex<Option<String>>,
}

impl LastError {
    pub(crate) fn set(&self, error: &impl Display) {
        *self.text.lock() = Some(error.to_string());
        self.any.store(true, Ordering::Relaxed);
    }

    /// It works.
    #[inline]
    pub(crate) fn clear(&self) {
        if self.any.load(Ordering::Relaxed) {
            self.any.store(false, Ordering::Relaxed);
            *self.text.lock() = None;
        }
    }

    pub(crate) fn get(&self) -> Option<String> {
        self.text.lock().clone()
    }
}

/// See the module.
pub struct DeviceHealth {
    /// When the oldest request of each lane began; 0: there is none.
    oldest: Box<[AtomicU64]>,
    /// When the oldest request began of a device that is hung; 0: it is not.
    hung_since: AtomicU64,
    /// When a lane looked last.
    looked: AtomicU64,
    /// A request that tells whether the device answers again is under way.
    probing: AtomicBool,
    /// It hangs, or does no longer.
    pub(crate) changed: Notify,
}

impl DeviceHealth {
    pub(crate) fn new(lanes: usize) -> Self {
        DeviceHealth {
            oldest: (0..lanes.max(1)).map(|_| AtomicU64::new(0)).collect(),
            hung_since: AtomicU64::new(0),
            looked: AtomicU64::new(0),
            probing: AtomicBool::new(false),
            changed: Notify::default(),
        }
    }

    /// Whether a request has not ended for [`HUNG_AFTER`].
    #[inline]
    pub fn is_hung(&self) -> bool {
        self.hung_since.load(Ordering::Relaxed) != 0
    }

    /// For how long the device has not answered, if it is hung.
    pub fn hung_for(&self) -> Option<Duration> {
        let since = self.hung_since.load(Ordering::Relaxed);
        let looked = Nanos(self.looked.load(Ordering::Relaxed));
        (since != 0).then(|| looked.since(Nanos(since)))
    }

    /// A lane has looked at its requests, of which the oldest began then. `true`: a probe is wanted,
    /// a small request whose end [`DeviceHealth::probed`] is told. Requests that nobody waits for any
    /// more are not looked at, so that without one an idle device would seem well.
    pub(crate) fn look(
        &self,
        device: &str,
        lane: usize,
        oldest: Option<Nanos>,
        now: Nanos,
    ) -> bool {
        let place = &self.oldest[lane % self.oldest.len()];
        place.store(oldest.map_or(0, |began| began.0.max(1)), Ordering::Relaxed);
        self.looked.store(now.0, Ordering::Relaxed);
        let began = self.oldest.iter().map(|began| began.load(Ordering::Relaxed));
        let oldest = began.filter(|began| *began > 0).min();
        match oldest.filter(|began| now.since(Nanos(*began)) >= HUNG_AFTER) {
            Some(began) if !self.is_hung() => {
                self.hung_since.store(began, Ordering::Relaxed);
                let seconds = now.since(Nanos(began)).as_secs();
                tracing::error!(device, seconds, "the device does not answer");
                self.changed.notify_all();
                !self.probing.swap(true, Ordering::Relaxed)
            }
            None if self.is_hung() && !self.probing.load(Ordering::Relaxed) => {
                let seconds = self.hung_for().unwrap_or_default().as_secs();
                self.hung_since.store(0, Ordering::Relaxed);
                tracing::warn!(device, seconds, "the device answers again");
                self.changed.notify_all();
                false
            }
            _ => false,
        }
    }

    /// The probe has ended, well or not: the device answers.
    pub(crate) fn probed(&self) {
        self.probing.store(false, Ordering::Relaxed);
    }
}
