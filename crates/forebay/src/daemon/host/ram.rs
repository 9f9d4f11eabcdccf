//! RAM tiers of served volumes.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forebay_admin::report::RamReport;
use forebay_admin::{ApiError, VolumeName};
use forebay_core::{Clock, Durability};
use forebay_engine::Settings;
use forebay_lane::{MemoryBudget, MemoryHold, MemoryUse};
use forebay_ram::{Deferral, RamBlock, Tier, TierOptions, write_down};

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
        clock: &Arc<dyn Clock>,
    ) -> Result<(), ApiError> {
        self.remove(name.as_str());
        if let Some(tier) = RamTier::new(settings, memory, clock)? {
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
    pub(super) fn remove(&self, name: &str) {
        let mut all = self.lock();
        all.retain(|known, own| {
            let stays = known.as_str() != name;
            if !stays {
                own.tier.close();
            }
            stays
        });
    }
}

fn options(settings: &Settings) -> TierOptions {
    TierOptions {
        bytes: settings.ram,
        block: RamBlock::new(settings.ram_block).unwrap_or_default(),
        policy: settings.ram_policy,
        strategy: settings.ram_strategy,
        seed: 0,
    }
}

/// Returns how the settings have writes deferred; `None`: they do not.
pub(super) fn deferral(settings: &Settings) -> Option<Deferral> {
    (settings.durability == Durability::Deferred).then_some(Deferral {
        within: settings.defer,
        mode: settings.write_down,
        share: settings.ram_write_share,
        ignore_flush: settings.ignore_flush,
    })
}

/// Returns the most memory that data takes while it is written down.
fn on_its_way(settings: &Settings) -> u64 {
    deferral(settings).map_or(0, |_| write_down::memory(settings.ram))
}

fn no_memory(error: std::io::Error) -> ApiError {
    ApiError::failed(format!("{WHAT}: {error}"))
}

impl RamTier {
    /// Makes the tier that the settings name, if any.
    ///
    /// # Errors
    /// The daemon's memory limit does not allow it.
    fn new(
        settings: &Settings,
        memory: &Arc<MemoryBudget>,
        clock: &Arc<dyn Clock>,
    ) -> Result<Option<Self>, ApiError> {
        if settings.ram == 0 {
            return Ok(None);
        }
        let options = options(settings);
        let needed = options.memory() + on_its_way(settings);
        let hold = memory.hold(MemoryUse::RamTiers, needed, WHAT).map_err(faults::memory)?;
        let tier = Arc::new(Tier::new(options, clock.clone()).map_err(no_memory)?);
        Ok(Some(RamTier { tier, hold: Mutex::new(hold) }))
    }

    pub(super) fn tier(&self) -> &Arc<Tier> {
        &self.tier
    }

    /// Returns whether a change to these settings forgets all blocks.
    pub(super) fn is_replaced_by(&self, settings: &Settings) -> bool {
        TierOptions { block: self.tier.block(), ..options(settings) } != self.tier.options()
    }

    /// Takes another size, policy and strategy, and forgets all blocks if one of them changes. The block
    /// size stays.
    ///
    /// # Errors
    /// The daemon's memory limit does not allow it, or writes are deferred; nothing has changed then.
    pub(super) fn change(&self, settings: &Settings) -> Result<(), ApiError> {
        let wanted = TierOptions { block: self.tier.block(), ..options(settings) };
        let mut hold = self.hold.lock().unwrap_or_else(PoisonError::into_inner);
        let before = hold.bytes();
        let needed = self.tier.memory_after(&wanted) + on_its_way(settings);
        hold.grow(needed.saturating_sub(before), WHAT).map_err(faults::memory)?;
        let changed = match wanted == self.tier.options() {
            true => Ok(()),
            false => self.tier.change(wanted).map_err(no_memory),
        };
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
            deferred: counts.deferred_bytes,
            deferred_written: counts.deferred_written_bytes,
            coalesced: counts.coalesced_bytes,
            superseded: counts.superseded_bytes,
            written_down: counts.written_down_bytes,
            urgent: counts.urgent_bytes,
            write_downs: counts.write_downs,
            late_write_downs: counts.late_write_downs,
            failed_write_downs: counts.failed_write_downs,
            waits: counts.waits,
        }
    }
}
