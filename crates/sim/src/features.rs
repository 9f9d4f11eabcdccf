//! Features that only some worlds have. Each is drawn independently of the choices that every world
//! makes, so that a seed without features takes the same steps as before features were introduced.

use forebay_store::PlantedBug;

use crate::profile::FaultProfile;
use crate::trace::mix;

/// A feature that only some worlds have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feature {
    /// Shifted block grids, other block and segment sizes, logical blocks of 4 KiB, origins that
    /// end within a block.
    Shape,
    /// Several index shards.
    Shards,
    /// In a crash, each device independently loses or keeps its power.
    OwnPower,
    /// Volumes are stopped for a while, deleted, and recreated.
    Absence,
    /// Origins hang for a long time. Nothing else is slow, so that time limits can be judged: for
    /// the data that a crash may lose, and for the waiting of other requests.
    Hang,
    /// Superblocks, volume tables and checkpoints rot, one at a time, and reads fail during
    /// recovery.
    Decay,
    /// The cache is old: segment generations are about to need their upper half, and volume numbers
    /// are about to wrap around.
    Aged,
    /// The log rots while the system is down: headers and payloads, one or a few pages at a time.
    Rot,
    /// Origins grow, and volumes adopt the new size when they are started with room for it.
    Grown,
    /// The daemon records dirty ranges outside of the cache, and sometimes loses these notes with
    /// its state.
    Ledger,
    /// Volumes have a RAM tier, which operators resize.
    Ram,
    /// Volumes have a RAM tier that defers writes.
    Deferred,
    /// Operators pause, freeze and resume volumes, and drop cached data.
    Caching,
    /// Volumes have a RAM tier that defers writes and ignores flushes.
    IgnoreFlush,
    /// The system stops in order more often, and loads the index slowly while requests are served.
    Loading,
    /// Clients demand that writes survive the daemon, and more crashes end only the process.
    Written,
    /// Origins are on other machines: connections are lost, and requests time out.
    Remote,
    /// Volumes have least and largest shares of the cache.
    Shares,
    /// Origins refuse writes for a while.
    Protected,
    /// Origins have bad sectors, some of them adjacent, until the disk is repaired.
    Sectors,
    /// The paths of devices lead elsewhere for a while.
    Displaced,
}

impl Feature {
    /// All features.
    pub const ALL: [Feature; 21] = [
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
        Feature::Ram,
        Feature::Deferred,
        Feature::Caching,
        Feature::IgnoreFlush,
        Feature::Loading,
        Feature::Written,
        Feature::Remote,
        Feature::Shares,
        Feature::Protected,
        Feature::Sectors,
        Feature::Displaced,
    ];

    /// Returns a short name for the command line and for lists.
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
            Feature::Ram => "ram",
            Feature::Deferred => "deferred",
            Feature::Caching => "caching",
            Feature::IgnoreFlush => "ignore-flush",
            Feature::Loading => "loading",
            Feature::Written => "written",
            Feature::Remote => "remote",
            Feature::Shares => "shares",
            Feature::Protected => "protected",
            Feature::Sectors => "sectors",
            Feature::Displaced => "displaced",
        }
    }

    /// Returns n if one in n worlds has the feature.
    fn one_of(self) -> u32 {
        match self {
            Feature::Shape | Feature::Shards | Feature::OwnPower | Feature::Shares => 4,
            Feature::Absence | Feature::Hang | Feature::Decay | Feature::Aged => 6,
            Feature::Rot | Feature::Grown | Feature::Ledger | Feature::Ram => 6,
            Feature::Deferred | Feature::Caching | Feature::Loading | Feature::Written => 6,
            Feature::IgnoreFlush => 24,
            Feature::Protected | Feature::Displaced => 3,
            Feature::Remote | Feature::Sectors => 2,
        }
    }

    /// Returns the salt of the feature's own random draw. `None` if it is drawn from the generator
    /// that older features use, so that worlds with these features stay the same.
    fn own_chance(self) -> Option<u64> {
        match self {
            Feature::Rot => Some(0x5074),
            Feature::Grown => Some(0x6709),
            Feature::Ledger => Some(0x1ed9),
            Feature::Ram => Some(0x4a3d),
            Feature::Deferred => Some(0xdefe),
            Feature::Caching => Some(0xcac4),
            Feature::IgnoreFlush => Some(0x19f1),
            Feature::Loading => Some(0x10ad),
            Feature::Written => Some(0x3717),
            Feature::Remote => Some(0x4e07),
            Feature::Shares => Some(0x5a2e),
            Feature::Protected => Some(0x3e00),
            Feature::Sectors => Some(0x5ec7),
            Feature::Displaced => Some(0xd15b),
            _ => None,
        }
    }

    /// Returns the feature without which the simulator never or rarely finds a bug.
    pub fn that_shows(bug: PlantedBug) -> Option<Feature> {
        match bug {
            PlantedBug::EdgeIgnored => Some(Feature::Shape),
            PlantedBug::CheckpointForgetsShard | PlantedBug::CheckpointBeforeRecords => {
                Some(Feature::Shards)
            }
            PlantedBug::NotLoadedIsAbsent
            | PlantedBug::LoadedDirtyNotTold
            | PlantedBug::LoadedWithoutLog
            | PlantedBug::AcceptedNotNoted => Some(Feature::Loading),
            PlantedBug::RunNotSplit | PlantedBug::RefusedCleans | PlantedBug::RefusalForgotten => {
                Some(Feature::Sectors)
            }
            PlantedBug::WriteOutDoesNotWait => Some(Feature::Written),
            PlantedBug::OneRootOnly | PlantedBug::RootsOnce => Some(Feature::Decay),
            PlantedBug::NoTimedCommit => Some(Feature::Hang),
            PlantedBug::GenerationsWrap => Some(Feature::Aged),
            PlantedBug::DeletesUndrained | PlantedBug::AddressesNotPurged => Some(Feature::Absence),
            PlantedBug::GapsNotSeen => Some(Feature::Rot),
            PlantedBug::OldEndStays => Some(Feature::Grown),
            PlantedBug::NotesForgotten => Some(Feature::Ledger),
            PlantedBug::ProtectionIgnored | PlantedBug::ProtectedWriteDone => {
                Some(Feature::Protected)
            }
            PlantedBug::DisplacedDrained
            | PlantedBug::DisplacedStopped
            | PlantedBug::DisplacedCacheKept
            | PlantedBug::DisplacedMeanwhile => Some(Feature::Displaced),
            PlantedBug::FillsOvertaken
            | PlantedBug::RacedCopyKept
            | PlantedBug::OldCopyServed
            | PlantedBug::StaleOffer => Some(Feature::Ram),
            PlantedBug::LostWriteDown
            | PlantedBug::RewriteForgotten
            | PlantedBug::FlushOvertakesWriteDown
            | PlantedBug::DeferredNotRead
            | PlantedBug::WriteDownOvertaken => Some(Feature::Deferred),
            _ => None,
        }
    }

    /// Returns the features that keep most requests from the engine, which has the bug, or most
    /// blocks from the cache.
    pub fn that_hide(bug: PlantedBug) -> Features {
        let hiding = [
            Feature::Ram,
            Feature::Deferred,
            Feature::Caching,
            Feature::IgnoreFlush,
            Feature::Shares,
        ];
        match Feature::that_shows(bug) {
            Some(feature) if hiding.contains(&feature) => Features::default(),
            _ => Features::of(hiding),
        }
    }

    /// Returns whether the feature makes sense with this fault profile.
    pub fn fits(self, fault_profile: FaultProfile) -> bool {
        match self {
            Feature::Shape | Feature::Shards | Feature::Aged | Feature::Grown => true,
            Feature::Loading | Feature::Written | Feature::Shares => true,
            Feature::Ram | Feature::Deferred | Feature::Caching | Feature::IgnoreFlush => true,
            Feature::OwnPower | Feature::Absence => fault_profile != FaultProfile::Damage,
            Feature::Hang => fault_profile == FaultProfile::Crashes,
            Feature::Remote | Feature::Sectors => fault_profile == FaultProfile::OriginErrors,
            Feature::Protected => {
                matches!(fault_profile, FaultProfile::OriginErrors | FaultProfile::CacheErrors)
            }
            Feature::Ledger => fault_profile != FaultProfile::Damage,
            Feature::Decay | Feature::Rot | Feature::Displaced => {
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
    /// Returns the set with one more feature.
    #[must_use]
    pub fn and(self, feature: Feature) -> Self {
        Features(self.0 | feature.bit())
    }

    /// Returns whether the set contains a feature.
    pub fn has(self, feature: Feature) -> bool {
        self.0 & feature.bit() != 0
    }

    /// Returns the set of this feature, or the empty set.
    pub fn of(features: impl IntoIterator<Item = Feature>) -> Self {
        features.into_iter().fold(Features::default(), Features::and)
    }

    /// Returns the set of all features.
    pub fn all() -> Self {
        Features::of(Feature::ALL)
    }

    /// Returns the union of both sets.
    #[must_use]
    pub fn union(self, other: Features) -> Self {
        Features(self.0 | other.0)
    }

    /// Returns the features in the set.
    pub fn each(self) -> impl Iterator<Item = Feature> {
        Feature::ALL.into_iter().filter(move |feature| self.has(*feature))
    }

    /// Draws the features of the world of `seed` with this fault profile: all of `with`, none of
    /// `without`.
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
