//! RAM tiers of the volumes of a simulated system.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use forebay_core::{Caching, Clock, RamStrategy, ReplacementKind, WriteDown};
use forebay_engine::{
    BlockService, EngineError, EngineErrorKind, EngineLane, LaneVolume, LimitedVolume, Volume,
};
use forebay_ram::{Deferral, RamBlock, RamVolume, Tier, TierOptions, write_down};

use crate::system::{Machine, name};
use crate::trace::mix;

/// The tiers of the running volumes.
#[derive(Default)]
pub(crate) struct Tiers(RefCell<BTreeMap<u16, TierOf>>);

/// A RAM tier, and the running volume to which it belongs.
struct TierOf {
    volume: Arc<Volume>,
    tier: Arc<Tier>,
}

fn choose_deferral(rng: &mut fastrand::Rng, ignore_flush: bool) -> Deferral {
    let within = Duration::from_millis(rng.u64(1..5_000));
    let mode = WriteDown::ALL[rng.usize(0..WriteDown::ALL.len())];
    let share = if rng.bool() { 100 } else { rng.u8(1..=100) };
    Deferral { within, mode, share, ignore_flush }
}

fn set_caching(tier: &Tier, caching: Caching) {
    tier.freeze(caching == Caching::Frozen);
    if caching == Caching::Paused {
        // A tier with deferred data refuses this, and is emptied at another time.
        let _ = tier.change(TierOptions { bytes: 0, ..tier.options() });
    }
}

impl Tiers {
    /// Returns the top of a volume's stack on one lane.
    pub(crate) fn target(
        &self,
        machine: &Machine,
        lanes: &[Rc<EngineLane>],
        lane: usize,
        number: u16,
    ) -> Option<Rc<dyn BlockService>> {
        let target = lanes.get(lane)?.target(&name(number))?;
        if !machine.setup.ram && !machine.setup.deferred {
            return Some(LimitedVolume::new(target.clone(), target));
        }
        let first = || lanes.first()?.target(&name(number));
        let tier = self.tier(machine, number, target.volume(), first)?;
        let top = RamVolume::new(tier, target.clone(), machine.lanes[lane].clone());
        Some(LimitedVolume::new(target, top))
    }

    /// Returns the RAM tier of a volume, which lives as long as the volume runs. Occasionally
    /// resizes it, or changes how it defers writes.
    fn tier(
        &self,
        machine: &Machine,
        number: u16,
        volume: &Arc<Volume>,
        first: impl FnOnce() -> Option<Rc<LaneVolume>>,
    ) -> Option<Arc<Tier>> {
        let seed = mix(machine.setup.seed, machine.shared.clock.now().0);
        let mut rng = fastrand::Rng::with_seed(seed);
        let bytes = rng.u64(0..48) * (rng.u64(1..32) << 10);
        let ignores = machine.setup.ignores_flush;
        let mut tiers = self.0.borrow_mut();
        if let Some(TierOf { volume: of, tier }) = tiers.get(&number)
            && Arc::ptr_eq(of, volume)
        {
            if rng.u32(0..400) == 0 && volume.settings().caching == Caching::On {
                let busy = tier.deferral().is_some() || tier.has_deferred();
                if !busy {
                    tier.change(TierOptions { bytes, ..tier.options() }).ok()?;
                }
                if machine.setup.deferred {
                    tier.defer_writes(
                        (!busy || rng.bool()).then(|| choose_deferral(&mut rng, ignores)),
                    );
                }
            }
            if rng.u32(0..400) == 0 {
                // Memory becomes short, or available again.
                tier.set_room(rng.u64(0..=2 * tier.options().bytes));
            }
            return Some(tier.clone());
        }
        let block = RamBlock::new(512 << rng.u32(0..8)).unwrap_or_default();
        let policy = ReplacementKind::ALL[rng.usize(0..ReplacementKind::ALL.len())];
        let strategy = match rng.u32(0..8) {
            0 => RamStrategy::ReadOnly,
            1 => RamStrategy::WriteOnly,
            _ => RamStrategy::ReadWrite,
        };
        let options = TierOptions { bytes, block, policy, strategy, locked: false, seed };
        let lane = machine.lanes.first()?.clone();
        let tier = Arc::new(Tier::new(options, lane.clock().clone()).ok()?);
        let settings = volume.settings();
        set_caching(&tier, settings.caching);
        if machine.setup.deferred {
            if settings.caching == Caching::On {
                tier.defer_writes(Some(choose_deferral(&mut rng, ignores)));
            }
            lane.spawn(write_down::keep(tier.clone(), first()?, lane.clone()));
        }
        tiers.insert(number, TierOf { volume: volume.clone(), tier: tier.clone() });
        Some(tier)
    }

    /// Freezes, empties or resumes a volume's tier. An emptied tier gets a size when it is next
    /// resized.
    pub(crate) fn note_caching(&self, number: u16, caching: Caching) {
        if let Some(tier) = self.get(number) {
            set_caching(&tier, caching);
        }
    }

    /// Returns a volume's tier.
    pub(crate) fn get(&self, number: u16) -> Option<Arc<Tier>> {
        self.0.borrow().get(&number).map(|of| of.tier.clone())
    }

    /// Drops the tier of a volume that has stopped.
    pub(crate) fn remove(&self, number: u16) {
        if let Some(TierOf { tier, .. }) = self.0.borrow_mut().remove(&number) {
            tier.close();
        }
    }

    /// Writes down all deferred data of a volume. With `ends`, no more writes are deferred.
    pub(crate) async fn write_down(
        &self,
        lane: &EngineLane,
        number: u16,
        ends: bool,
    ) -> Result<(), EngineError> {
        let (Some(tier), Some(target)) = (self.get(number), lane.target(&name(number))) else {
            return Ok(());
        };
        let before = tier.deferral();
        if ends {
            tier.defer_writes(None);
        }
        let target: Rc<dyn BlockService> = target;
        let written = write_down::all(&tier, &target).await;
        if written.is_err() && ends {
            tier.defer_writes(before);
        }
        written.map_err(|error| EngineError::new(EngineErrorKind::Failed, error.to_string()))
    }
}
