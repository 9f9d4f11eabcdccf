//! A RAM tier in front of the volume, as the settings describe it.

use std::rc::Rc;
use std::sync::Arc;

use forebay_core::{Clock, Durability, Op};
use forebay_engine::{BlockService, LaneVolume, Settings};
use forebay_lane::Lane;
use forebay_ram::{Deferral, RamBlock, RamVolume, Tier, TierCounts, TierOptions, write_down};

use crate::error::LabResult;

use super::World;

/// Makes the tier that the settings name, if any.
///
/// # Errors
/// The system has not enough memory.
pub(super) fn tier(
    settings: &Settings,
    clock: &Arc<impl Clock + 'static>,
) -> LabResult<Option<Arc<Tier>>> {
    if settings.ram == 0 {
        return Ok(None);
    }
    let options = TierOptions {
        bytes: settings.ram,
        block: RamBlock::new(settings.ram_block).unwrap_or_default(),
        policy: settings.ram_policy,
        strategy: settings.ram_strategy,
        locked: false,
        seed: 0,
    };
    let tier = Tier::new(options, clock.clone())?;
    tier.defer_writes((settings.durability == Durability::Deferred).then_some(Deferral {
        within: settings.defer,
        mode: settings.write_down,
        share: settings.ram_write_share,
        ignore_flush: settings.ignore_flush,
    }));
    Ok(Some(Arc::new(tier)))
}

/// Puts the tier, if there is one, in front of the volume, and has its deferred writes written down.
pub(super) fn top(
    tier: Option<&Arc<Tier>>,
    volume: &Rc<LaneVolume>,
    lane: &Rc<Lane>,
) -> Rc<dyn BlockService> {
    let Some(tier) = tier else { return volume.clone() };
    if tier.deferral().is_some() {
        lane.spawn(write_down::keep(tier.clone(), volume.clone(), lane.clone()));
    }
    RamVolume::new(tier.clone(), volume.clone(), lane.clone())
}

impl World {
    /// Bytes that only the RAM tier has.
    pub(super) fn deferred_bytes(&self) -> u64 {
        self.ram_counts().map_or(0, |counts| counts.deferred_bytes)
    }

    /// What the RAM tier has counted, if there is one.
    pub(crate) fn ram_counts(&self) -> Option<TierCounts> {
        self.tier.as_ref().map(|tier| tier.counts())
    }

    /// Writes down what is deferred, and makes everything durable.
    pub(crate) fn flush(&mut self) -> LabResult<()> {
        self.plain(Op::Flush, 0, 0)
    }
}
