//! Whether a device answers, across all lanes.
//!
//! A device counts as hung while a request has been in progress for [`HUNG_AFTER`]. This is
//! reported, and work that can do without the device does. No request is abandoned: when the device
//! answers again, requests end as usual.

use std::fmt::Display;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use forebay_core::Nanos;
use forebay_lane::Notify;
use parking_lot::Mutex;

/// Time after which a request in progress counts as hung. The kernel gives a SCSI or NVMe command
/// 30 s before it begins to reset; disks for RAID sets answer within 7 s, with errors or not.
/// Clients should not wait that long if there is another way, and invariant 15 gives them 5 s.
pub const HUNG_AFTER: Duration = Duration::from_secs(5);

/// The interval of the lanes' checks.
pub(crate) const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The last error of a device; cleared when it works again.
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

    /// Clears the error: the device works.
    #[inline]
    pub(crate) fn clear(&self) {
        if self.any.load(Ordering::Relaxed) {
            self.any.store(false, Ordering::Relaxed);
            *self.text.lock() = None;
        }
    }

    /// Returns whether there is an error.
    #[inline]
    pub(crate) fn is_set(&self) -> bool {
        self.any.load(Ordering::Relaxed)
    }

    pub(crate) fn get(&self) -> Option<String> {
        self.text.lock().clone()
    }
}

/// The health of one device.
pub struct DeviceHealth {
    /// The time at which the oldest request of each lane began; 0 if none is in progress.
    oldest: Box<[AtomicU64]>,
    /// The time at which the oldest request began if the device is hung; 0 if it is not.
    hung_since: AtomicU64,
    /// When a lane last checked.
    looked: AtomicU64,
    /// A probe request is in progress.
    probing: AtomicBool,
    /// Notified when the device hangs or answers again.
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

    /// Returns whether the device is hung.
    #[inline]
    pub fn is_hung(&self) -> bool {
        self.hung_since.load(Ordering::Relaxed) != 0
    }

    /// Returns the time for which the device has not answered, if it is hung.
    pub fn hung_for(&self) -> Option<Duration> {
        let since = self.hung_since.load(Ordering::Relaxed);
        let looked = Nanos(self.looked.load(Ordering::Relaxed));
        (since != 0).then(|| looked.since(Nanos(since)))
    }

    /// Records when the oldest request of a lane began. Returns `true` if the caller must send a
    /// probe, a small request, and call [`DeviceHealth::probed`] when it ends. Abandoned requests
    /// are not tracked, so without a probe an idle device would appear healthy.
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

    /// Records that the probe has ended, successfully or not: the device answers.
    pub(crate) fn probed(&self) {
        self.probing.store(false, Ordering::Relaxed);
    }
}
