//! What only some worlds have. Each feature comes by a chance of its own, which takes nothing from the
//! choices that every world makes: a seed without features takes the steps it always took.

use forebay_store::PlantedBug;

use crate::profile::FaultProfile;
use crate::trace::mix;

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feature {
    /// Block grids that are shifted, other block and segment sizes, logical blocks of 4 KiB, origins
    /// that end within a block.
    Shape,
    /// Several index shards.
    Shards,
    /// In a crash each device loses power, or keeps it, for itself.
    OwnPower,
    /// Volumes are stopped for a while, deleted, and made anew.
    Absence,
    /// Origins give no answer for a long time. Nothing else is slow, so that what is bounded in time
    /// can be judged: what a crash may take, and how long others wait.
    Hang,
    /// Superblocks, volume tables and checkpoints rot, one at a time, and reads fail during recovery.
    Decay,
    /// The cache is old: generations of segments are about to need their upper half, and numbers of
    /// volumes to begin again.
    Aged,
    /// The log rots while the system is down: headers and payloads, one page or a few.
    Rot,
    /// Origins become larger, and volumes take that over when they are started with room for it.
    Grown,
    /// The daemon notes what is dirty outside of the cache, and loses that with its state now and then.
    Ledger,
}

impl Feature {
    /// All of them.
    pub const ALL: [Feature; 10] = [
        Feature::Shape,
        Feature::Shards,
        Feature::OwnPower,
        Feature::Absence,
        Feature::Hang,
        Feature::Decay,
        Feature::Aged,
        Feature::Rot,
        Feature::Grown,
        Feature::Ledger,
    ];

    /// A short name for the command line and for lists.
    pub fn name(self) -> &'static str {
        match self {
            Feature::Shape => "shape",
            Feature::Shards => "shards",
            Feature::OwnPower => "own-power",
            Feature::Absence => "absence",
            Feature::Hang => "hang",
            Feature::Decay => "decay",
            Feature::Aged => "aged",
            Feature::Rot => "rot",
            Feature::Grown => "grown",
            Feature::Ledger => "ledger",
        }
    }

    /// One of so many worlds has it.
    fn one_of(self) -> u32 {
        match self {
            Feature::Shape | Feature::Shards | Feature::OwnPower => 4,
            Feature::Absence | Feature::Hang | Feature::Decay | Feature::Aged => 6,
            Feature::Rot | Feature::Grown | Feature::Ledger => 6,
        }
    }

    /// What tells its chance from the others'; `None`: it is drawn where worlds always drew, so that
    /// those with shapes and shards stay what they are.
    fn own_chance(self) -> Option<u64> {
        match self {
            Feature::Rot => Some(0x5074),
            Feature::Grown => Some(0x6709),
            Feature::Ledger => Some(0x1ed9),
            _ => None,
        }
    }

    /// The feature without which the simulator cannot find a bug.
    pub fn that_shows(bug: PlantedBug) -> Option<Feature> {
        match bug {
            PlantedBug::EdgeIgnored => Some(Feature::Shape),
            PlantedBug::CheckpointForgetsShard => Some(Feature::Shards),
            PlantedBug::OneRootOnly | PlantedBug::RootsOnce => Some(Feature::Decay),
            PlantedBug::NoTimedCommit => Some(Feature::Hang),
            PlantedBug::GenerationsWrap => Some(Feature::Aged),
            PlantedBug::DeletesUndrained => Some(Feature::Absence),
            PlantedBug::GapsNotSeen => Some(Feature::Rot),
            PlantedBug::OldEndStays => Some(Feature::Grown),
            PlantedBug::NotesForgotten => Some(Feature::Ledger),
            _ => None,
        }
    }

    /// Whether it makes sense in this kind of trouble.
    fn fits(self, fault_profile: FaultProfile) -> bool {
        match self {
            Feature::Shape | Feature::Shards | Feature::Aged | Feature::Grown => true,
            Feature::OwnPower | Feature::Absence => fault_profile != FaultProfile::Damage,
            Feature::Hang => fault_profile == FaultProfile::Crashes,
            Feature::Ledger => fault_profile != FaultProfile::Damage,
            Feature::Decay | Feature::Rot => {
                matches!(fault_profile, FaultProfile::Crashes | FaultProfile::OriginErrors)
            }
        }
    }

    fn bit(self) -> u32 {
        1 << self as u32
    }
}

/// A set of features.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features(u32);

impl Features {
    /// With one more.
    #[must_use]
    pub fn and(self, feature: Feature) -> Self {
        Features(self.0 | feature.bit())
    }

    /// Whether a feature is in it.
    pub fn has(self, feature: Feature) -> bool {
        self.0 & feature.bit() != 0
    }

    /// This one, or none.
    pub fn of(feature: Option<Feature>) -> Self {
        feature.map_or(Features::default(), |feature| Features::default().and(feature))
    }

    /// All of them.
    pub fn all() -> Self {
        Feature::ALL.into_iter().fold(Features::default(), Features::and)
    }

    /// Those in one of the two.
    #[must_use]
    pub fn union(self, other: Features) -> Self {
        Features(self.0 | other.0)
    }

    /// Those in it.
    pub fn each(self) -> impl Iterator<Item = Feature> {
        Feature::ALL.into_iter().filter(move |feature| self.has(*feature))
    }

    /// What chance gives to the world of `seed` in this kind of trouble: all of `with`, none of `without`.
    pub fn choose(
        rng: &mut fastrand::Rng,
        seed: u64,
        fault_profile: FaultProfile,
        with: Features,
        without: Features,
    ) -> Self {
        let mut chosen = Features::default();
        for feature in Feature::ALL {
            let drawn = match feature.own_chance() {
                Some(salt) => mix(seed, salt).is_multiple_of(u64::from(feature.one_of())),
                None => rng.u32(0..feature.one_of()) == 0,
            };
            let wanted = (drawn || with.has(feature)) && !without.has(feature);
            if wanted && feature.fits(fault_profile) {
                chosen = chosen.and(feature);
            }
        }
        chosen
    }
}
