//! RAM tiers of served volumes.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use forebay_admin::report::{RamReport, RamTraffic};
use forebay_admin::{ApiError, VolumeName};
use forebay_core::{Caching, Clock};
use forebay_engine::Settings;
use forebay_host::memory::System;
use forebay_lane::{MemoryBudget, MemoryHold, MemoryUse};
use forebay_ram::{Deferral, RamBlock, Tier, TierOptions, write_down};
use forebay_threads::{Mutex, MutexGuard};

use super::faults;
use crate::memory;
use crate::pressure::{self, Advice, Pressure};

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
        self.0.lock()
    }

    /// Makes the tier of a volume that is about to be started, so that no client reaches the volume
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

    /// Makes the tiers return memory while the system is short of it, on a thread that ends with
    /// them.
    ///
    /// # Errors
    /// The system has no thread left.
    pub(super) fn watch_memory(self: &Arc<Self>) -> io::Result<()> {
        let tiers = Arc::downgrade(self);
        let watch = move || {
            let mut pressure = Pressure::new(System::here());
            while let Some(tiers) = tiers.upgrade() {
                tiers.heed(pressure.look());
                drop(tiers);
                forebay_threads::sleep(pressure::INTERVAL);
            }
        };
        forebay_threads::spawn("pressure", watch).map(drop)
    }

    fn heed(&self, advice: Advice) {
        if advice == Advice::Stay {
            return;
        }
        let all = self.lock().clone();
        let sizes = || all.iter().filter(|(_, own)| !own.tier.options().locked);
        let whole = sizes().map(|(_, own)| own.tier.full_room()).sum();
        for (name, own) in sizes() {
            let (size, before) = (own.tier.full_room(), own.tier.room());
            let wanted = advice.room(size, before, whole);
            if wanted == before {
                continue;
            }
            let room = own.tier.set_room(wanted);
            if room < before {
                tracing::info!(volume = %name, "memory is short: the RAM tier shrinks to {room} of {size} bytes");
            } else if room >= size && before < size {
                tracing::info!(volume = %name, "the RAM tier has its full size again");
            }
        }
    }

    /// Removes the tier of a volume that is no longer served. A client that is still connected gets
    /// nothing from it any more.
    pub(super) fn remove(&self, name: &str) {
        let removed: Vec<_> = {
            let mut all = self.lock();
            all.extract_if(.., |known, _| known.as_str() == name).collect()
        };
        // Unmapping a large tier takes a while, and lanes use the map when a client connects, so
        // this is done without the lock.
        for (_, own) in removed {
            own.tier.close();
        }
    }
}

fn options(settings: &Settings) -> TierOptions {
    TierOptions {
        bytes: if settings.caching == Caching::Paused { 0 } else { settings.ram },
        block: RamBlock::new(settings.ram_block).unwrap_or_default(),
        policy: settings.ram_policy,
        strategy: settings.ram_strategy,
        locked: settings.ram_lock,
        seed: 0,
    }
}

/// Returns how writes are deferred according to the settings; `None` if they are not.
pub(super) fn deferral(settings: &Settings) -> Option<Deferral> {
    settings.defers_writes().then_some(Deferral {
        within: settings.defer,
        mode: settings.write_down,
        share: settings.ram_write_share,
        ignore_flush: settings.ignore_flush,
    })
}

/// Returns the most memory that data takes while it is being written down.
fn on_its_way(settings: &Settings) -> u64 {
    deferral(settings).map_or(0, |_| write_down::memory(settings.ram))
}

/// Refuses to lock `bytes` bytes if the machine cannot spare them.
fn check_lock(options: &TierOptions, bytes: u64) -> Result<(), ApiError> {
    if options.locked && options.bytes > 0 { memory::check_lock(bytes) } else { Ok(()) }
}

fn no_memory(options: &TierOptions, error: io::Error) -> ApiError {
    ApiError::failed(match options.locked {
        true => format!(
            "{WHAT} cannot be locked in memory: {error}; raise the limit of locked memory (ulimit -l, LimitMEMLOCK= in the unit) or use ram_lock=off"
        ),
        false => format!("{WHAT}: {error}"),
    })
}

impl RamTier {
    /// Creates the tier that the settings name, if any.
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
        let needed = options.memory_with_room(settings.ram) + on_its_way(settings);
        let hold = memory.hold(MemoryUse::RamTiers, needed, WHAT).map_err(faults::memory)?;
        check_lock(&options, needed)?;
        let tier = Tier::with_room(options, settings.ram, clock.clone())
            .map_err(|error| no_memory(&options, error))?;
        tier.freeze(settings.is_frozen());
        let tier = Arc::new(tier);
        Ok(Some(RamTier { tier, hold: Mutex::new(hold) }))
    }

    pub(super) fn tier(&self) -> &Arc<Tier> {
        &self.tier
    }

    /// Returns whether a change to these settings forgets all blocks.
    pub(super) fn is_replaced_by(&self, settings: &Settings) -> bool {
        TierOptions { block: self.tier.block(), ..options(settings) } != self.tier.options()
    }

    /// Changes size, policy and strategy, and forgets all blocks if one of them differs; freezes,
    /// empties or resumes the tier. The block size stays.
    ///
    /// # Errors
    /// The daemon's memory limit does not allow it, or writes are deferred; nothing has changed
    /// then.
    pub(super) fn change(&self, settings: &Settings) -> Result<(), ApiError> {
        let wanted = TierOptions { block: self.tier.block(), ..options(settings) };
        let mut hold = self.hold.lock();
        let before = hold.bytes();
        let needed = self.tier.memory_after(&wanted) + on_its_way(settings);
        // A locked tier has all of its memory at once, and the old tier keeps its memory until the
        // new one is complete.
        let replaced = wanted != self.tier.options();
        if replaced {
            check_lock(&wanted, needed)?;
        }
        let locked = replaced && (wanted.locked || self.tier.options().locked);
        let more = if locked { needed } else { needed.saturating_sub(before) };
        hold.grow(more, WHAT).map_err(faults::memory)?;
        let changed = match replaced {
            false => Ok(()),
            true => self.tier.change(wanted).map_err(|error| no_memory(&wanted, error)),
        };
        if changed.is_ok() {
            self.tier.freeze(settings.is_frozen());
        }
        let kept = if changed.is_ok() { needed } else { before };
        let spare = hold.bytes().saturating_sub(kept);
        hold.shrink(spare);
        changed
    }

    pub(super) fn traffic(&self) -> RamTraffic {
        let counted = self.tier.traffic();
        RamTraffic {
            reads: counted.ram_reads,
            read_bytes: counted.ram_read_bytes,
            writes: counted.ram_writes,
            written_bytes: counted.ram_written_bytes,
            passed_writes: counted.passed_writes,
            passed_bytes: counted.passed_written_bytes,
        }
    }

    pub(super) fn report(&self) -> RamReport {
        let (options, counts) = (self.tier.options(), self.tier.counts());
        RamReport {
            size: options.bytes,
            usable: self.tier.full_room(),
            room: self.tier.room(),
            used: counts.cached * options.block.bytes(),
            block_size: options.block.bytes(),
            overhead_bytes: counts.overhead_bytes,
            hits: counts.hits,
            misses: counts.misses,
            fills: counts.fills,
            evictions: counts.evictions,
            offers: counts.offers,
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
