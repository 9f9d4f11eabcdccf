//! A RAM tier in front of a volume, as its settings describe it.

use std::rc::Rc;
use std::sync::Arc;

use forebay_core::{Clock, Durability};
use forebay_engine::{BlockService, Settings};
use forebay_lane::Lane;
use forebay_ram::{Deferral, RamBlock, Tier, TierOptions, write_down};

use crate::error::LabResult;

/// Makes the tier that the settings name, if any.
///
/// # Errors
/// The system has not enough memory.
pub(crate) fn tier(settings: &Settings, clock: Arc<dyn Clock>) -> LabResult<Option<Arc<Tier>>> {
    if settings.ram == 0 {
        return Ok(None);
    }
    let options = TierOptions {
        bytes: settings.ram,
        block: RamBlock::new(settings.ram_block).unwrap_or_default(),
        policy: settings.ram_policy,
        strategy: settings.ram_strategy,
        locked: settings.ram_lock,
        seed: 0,
    };
    let tier = Tier::new(options, clock)?;
    tier.defer_writes((settings.durability == Durability::Deferred).then_some(Deferral {
        within: settings.defer,
        mode: settings.write_down,
        share: settings.ram_write_share,
        ignore_flush: settings.ignore_flush,
    }));
    Ok(Some(Arc::new(tier)))
}

/// Has the tier's deferred writes written down to the volume, by this lane alone.
pub(crate) fn keep(tier: &Arc<Tier>, volume: Rc<dyn BlockService>, lane: &Rc<Lane>) {
    if tier.deferral().is_some() {
        lane.spawn(write_down::keep(tier.clone(), volume, lane.clone()));
    }
}
