//! The settings of a volume, and the values of them that each request reads.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use forebay_core::{Durability, Mode};
use forebay_settings::Settings;

use crate::state::curve::simulated;
use crate::state::volume::Volume;

/// The values of the settings that the data path reads without a lock.
#[derive(Debug)]
pub(super) struct InForce {
    mode: AtomicU8,
    /// Whether no block may enter the cache.
    frozen: AtomicBool,
    /// Whether distance costs time on the origin.
    pub(super) rotational: AtomicBool,
    durability: AtomicU8,
    /// The dirty share of the cache, in percent, above which the volume writes back.
    dirty_limit: AtomicU8,
}

impl Default for InForce {
    fn default() -> Self {
        InForce {
            mode: AtomicU8::new(0),
            frozen: AtomicBool::new(false),
            rotational: AtomicBool::new(true),
            durability: AtomicU8::new(0),
            dirty_limit: AtomicU8::new(0),
        }
    }
}

impl Volume {
    /// Returns the settings.
    pub fn settings(&self) -> Settings {
        self.settings.lock().clone()
    }

    pub(crate) fn set_settings(&self, settings: Settings) {
        self.in_force.frozen.store(settings.is_frozen(), Ordering::SeqCst);
        let rotational = settings.rotational.of(self.origin.rotational());
        self.in_force.rotational.store(rotational, Ordering::SeqCst);
        self.in_force.mode.store(settings.effective_mode() as u8, Ordering::SeqCst);
        self.in_force.durability.store(settings.durability as u8, Ordering::SeqCst);
        self.streams.set(&settings);
        self.admission.set(&settings);
        self.limits.set(settings.limit_iops, settings.limit_bandwidth);
        self.share.set(settings.share_min, settings.share_max);
        if settings.wants_order() {
            self.set_ordered(true);
        }
        let limit = settings.cache_watermarks().1;
        self.in_force.dirty_limit.store(limit, Ordering::SeqCst);
        // A RAM tier sees all requests of clients, and simulates by itself.
        let setup = simulated(&settings, self.sizes, self.block.bytes());
        let setup = setup.filter(|setup| setup.now.ram == 0);
        self.watched.simulate(setup, self.stats.blocks(), &self.memory);
        *self.settings.lock() = settings;
        self.writeback.wanted.notify_all();
    }

    /// Returns the mode in force.
    #[inline]
    pub fn mode(&self) -> Mode {
        let number = self.in_force.mode.load(Ordering::Relaxed) as usize;
        Mode::ALL.get(number).copied().unwrap_or_default()
    }

    /// Returns whether no block may enter the cache.
    #[inline]
    pub(crate) fn is_frozen(&self) -> bool {
        self.in_force.frozen.load(Ordering::Relaxed)
    }

    /// Returns the durability in force.
    #[inline]
    pub fn durability(&self) -> Durability {
        let number = self.in_force.durability.load(Ordering::Relaxed) as usize;
        Durability::ALL.get(number).copied().unwrap_or_default()
    }

    /// Returns the dirty share of the cache, in percent, above which this volume writes back.
    pub(crate) fn dirty_limit(&self) -> u8 {
        self.in_force.dirty_limit.load(Ordering::Relaxed)
    }
}
