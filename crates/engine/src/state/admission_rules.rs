//! A volume's settings about what may enter the cache, as all lanes see them.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use forebay_core::Admission;
use forebay_policy::WriteBudget;
use parking_lot::Mutex;

use forebay_settings::Settings;

/// See the module.
#[derive(Default)]
pub(crate) struct AdmissionRules {
    /// See [`Admission::times`].
    admission: AtomicU8,
    pub(crate) budget_bytes: AtomicU64,
    congested_read: AtomicU64,
    congested_write: AtomicU64,
    promote: AtomicU64,
    /// Asked about misses only, and only if there is a budget. On the heap, so that what every request
    /// looks at stays in the caches of all CPUs.
    pub(crate) budget: Box<Mutex<WriteBudget>>,
}

impl AdmissionRules {
    pub(crate) fn set(&self, settings: &Settings) {
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.admission.store(settings.admission.times(), Ordering::Relaxed);
        self.budget_bytes.store(settings.write_budget, Ordering::Relaxed);
        self.congested_read.store(nanos(settings.congested_read_threshold), Ordering::Relaxed);
        self.congested_write.store(nanos(settings.congested_write_threshold), Ordering::Relaxed);
        self.promote.store(settings.promote, Ordering::Relaxed);
        if settings.write_budget == 0 {
            *self.budget.lock() = WriteBudget::default();
        }
    }

    /// The rule of admission in force.
    pub(crate) fn rule(&self) -> Admission {
        Admission::from_times(self.admission.load(Ordering::Relaxed).into()).unwrap_or_default()
    }

    /// What an admitted miss fills, in bytes; 0: what was asked for.
    pub(crate) fn promote(&self) -> u64 {
        self.promote.load(Ordering::Relaxed)
    }

    pub(crate) fn thresholds(&self) -> [Duration; 2] {
        [&self.congested_read, &self.congested_write]
            .map(|nanos| Duration::from_nanos(nanos.load(Ordering::Relaxed)))
    }

    /// Whether the latency of the cache device counts.
    pub(crate) fn measures(&self) -> bool {
        self.thresholds().iter().any(|threshold| !threshold.is_zero())
    }
}
