//! A volume's admission settings, as atomics that all lanes read.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use forebay_core::{Admission, Nanos, RamStrategy};
use forebay_policy::WriteBudget;
use parking_lot::Mutex;

use forebay_settings::Settings;

/// The admission settings of a volume.
#[derive(Default)]
pub(crate) struct AdmissionRules {
    /// See [`Admission::times`].
    admission: AtomicU8,
    /// Whether a RAM tier keeps read data.
    below_ram: AtomicBool,
    budget_bytes: AtomicU64,
    congested_read: AtomicU64,
    congested_write: AtomicU64,
    promote: AtomicU64,
    /// Locked only if there is a budget, when a block may enter. On the heap, so that writes to it
    /// do not affect the cache lines that every request reads.
    budget: Box<Mutex<WriteBudget>>,
}

impl AdmissionRules {
    pub(crate) fn set(&self, settings: &Settings) {
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.admission.store(settings.admission.times(), Ordering::Relaxed);
        let below_ram = settings.ram > 0 && settings.ram_strategy != RamStrategy::WriteOnly;
        self.below_ram.store(below_ram, Ordering::Relaxed);
        self.budget_bytes.store(settings.write_budget, Ordering::Relaxed);
        self.congested_read.store(nanos(settings.congested_read_threshold), Ordering::Relaxed);
        self.congested_write.store(nanos(settings.congested_write_threshold), Ordering::Relaxed);
        self.promote.store(settings.promote, Ordering::Relaxed);
        if settings.write_budget == 0 {
            *self.budget.lock() = WriteBudget::default();
        }
    }

    /// Returns the admission rule for read data. Below a RAM tier a read alone admits nothing: the
    /// RAM tier has the data, and offers blocks that are used there.
    pub(crate) fn rule_of_reads(&self) -> Admission {
        match self.rule() {
            Admission::Always if self.below_ram.load(Ordering::Relaxed) => Admission::Ghost(1),
            rule => rule,
        }
    }

    /// Returns the admission rule for data that is written.
    pub(crate) fn rule(&self) -> Admission {
        Admission::from_times(self.admission.load(Ordering::Relaxed).into()).unwrap_or_default()
    }

    /// Returns whether the write budget is spent. `written`: the bytes written for the volume so
    /// far.
    pub(crate) fn is_over_budget(&self, now: Nanos, written: impl FnOnce() -> u64) -> bool {
        let limit = self.budget_bytes.load(Ordering::Relaxed);
        limit > 0 && !self.budget.lock().allows(limit, now, written())
    }

    /// Returns the number of bytes that an admitted miss fills; 0 for only the requested blocks.
    pub(crate) fn promote(&self) -> u64 {
        self.promote.load(Ordering::Relaxed)
    }

    pub(crate) fn thresholds(&self) -> [Duration; 2] {
        [&self.congested_read, &self.congested_write]
            .map(|nanos| Duration::from_nanos(nanos.load(Ordering::Relaxed)))
    }

    /// Returns whether the latency of the cache device has to be measured.
    pub(crate) fn measures(&self) -> bool {
        self.thresholds().iter().any(|threshold| !threshold.is_zero())
    }
}
