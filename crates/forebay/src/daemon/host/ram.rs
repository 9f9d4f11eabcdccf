//! RAM tiers of served volumes.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forebay_admin::report::RamReport;
use forebay_admin::{ApiError, VolumeName};
use forebay_engine::Settings;
use forebay_lane::{MemoryBudget, MemoryHold, MemoryUse};
use forebay_ram::{RamBlock, Tier, TierOptions};

use super::faults;

/// The purpose of the memory, as in messages.
const WHAT: &str = "the RAM tier";

/// The RAM tiers of all volumes that are served or about to be.
#[derive(Default)]
pub(super) struct RamTiers(Mutex<BTreeMap<VolumeName, Arc<RamTier>>>);

/// A volume's RAM tier, with the memory that it may use.
pub(super) struct RamTier {
    tier: Arc<Tier>,
    hold: Mutex<MemoryHold>,
}

impl RamTiers {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<VolumeName, Arc<RamTier>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the tier of a volume that is about to come up, so that no client reaches the volume
    /// without it.
    ///
    /// # Errors
    /// The daemon's memory limit does not allow it.
    pub(super) fn make(
        &self,
        name: &VolumeName,
        settings: &Settings,
        memory: &Arc<MemoryBudget>,
    ) -> Result<(), ApiError> {
        self.remove(name);
        if let Some(tier) = RamTier::new(settings, memory)? {
            self.lock().insert(name.clone(), Arc::new(tier));
        }
        Ok(())
    }

    /// Returns the tier of a volume.
    pub(super) fn get(&self, name: &VolumeName) -> Option<Arc<RamTier>> {
        self.lock().get(name).cloned()
    }

    /// Returns the tier of a volume that a client names.
    pub(super) fn of(&self, name: &str) -> Option<Arc<Tier>> {
        let all = self.lock();
        all.iter().find(|(known, _)| known.as_str() == name).map(|(_, own)| own.tier.clone())
    }

    /// Removes the tier of a volume that is no longer served. A client that is still connected gets
    /// nothing from it any more.
    pub(super) fn remove(&self, name: &VolumeName) {
        if let Some(own) = self.lock().remove(name) {
            own.tier.close();
        }
    }
}

fn options(settings: &Settings) -> TierOptions {
    TierOptions {
        bytes: settings.ram,
        block: RamBlock::new(settings.ram_block).unwrap_or_default(),
        policy: settings.ram_policy,
        seed: 0,
    }
}

fn no_memory(error: std::io::Error) -> ApiError {
    ApiError::failed(format!("{WHAT}: {error}"))
}

impl RamTier {
    /// Makes the tier that the settings name, if any.
    ///
    /// # Errors
    /// The daemon's memory limit does not allow it.
    fn new(settings: &Settings, memory: &Arc<MemoryBudget>) -> Result<Option<Self>, ApiError> {
        if settings.ram == 0 {
            return Ok(None);
        }
        let options = options(settings);
        let needed = options.memory();
        let hold = memory.hold(MemoryUse::RamTiers, needed, WHAT).map_err(faults::memory)?;
        let tier = Arc::new(Tier::new(options).map_err(no_memory)?);
        Ok(Some(RamTier { tier, hold: Mutex::new(hold) }))
    }

    /// Takes another size and policy, and forgets all blocks if one of them changes. The block size
    /// stays.
    ///
    /// # Errors
    /// The daemon's memory limit does not allow it; nothing has changed then.
    pub(super) fn change(&self, settings: &Settings) -> Result<(), ApiError> {
        let wanted = TierOptions { block: self.tier.block(), ..options(settings) };
        if wanted == self.tier.options() {
            return Ok(());
        }
        let mut hold = self.hold.lock().unwrap_or_else(PoisonError::into_inner);
        let (before, needed) = (hold.bytes(), self.tier.memory_after(&wanted));
        hold.grow(needed.saturating_sub(before), WHAT).map_err(faults::memory)?;
        let changed = self.tier.change(wanted).map_err(no_memory);
        let kept = if changed.is_ok() { needed } else { before };
        let spare = hold.bytes().saturating_sub(kept);
        hold.shrink(spare);
        changed
    }

    pub(super) fn report(&self) -> RamReport {
        let (options, counts) = (self.tier.options(), self.tier.counts());
        RamReport {
            size: options.bytes,
            used: counts.cached * options.block.bytes(),
            block_size: options.block.bytes(),
            overhead_bytes: counts.overhead_bytes,
            hits: counts.hits,
            misses: counts.misses,
            fills: counts.fills,
            evictions: counts.evictions,
        }
    }
}
