//! How a store is opened.

use std::time::Duration;

use forebay_core::VolumeId;

/// Known bugs that a simulator must find; compiled in for tests only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PlantedBug {
    /// A commit does not sync the cache device.
    SkippedSync,
    /// Blocks are marked clean before the origin has been synced.
    CleanBeforeOriginSync,
    /// A fill replaces whatever was written meanwhile.
    FillWins,
    /// Checksums vouch for data, but not for its place.
    UnboundChecksum,
    /// A commit closes the record of its own lane only.
    FlushForgetsLane,
    /// A sample of the origin that the cache writes to stays untouched on the cache device.
    SampleStaysUntouched,
    /// Whatever is there counts as the volume's origin, unchanged.
    AnyOriginWillDo,
    /// On an ordered volume a flush does not end a group.
    FlushIsNoBoundary,
    /// How far the origin of an ordered volume is does not become durable.
    HorizonForgotten,
    /// What is written to the origin between dirty blocks is looked up before the range is locked.
    GapUnlocked,
}

impl PlantedBug {
    /// Every planted bug.
    pub const ALL: [PlantedBug; 10] = [
        PlantedBug::SkippedSync,
        PlantedBug::CleanBeforeOriginSync,
        PlantedBug::FillWins,
        PlantedBug::UnboundChecksum,
        PlantedBug::FlushForgetsLane,
        PlantedBug::SampleStaysUntouched,
        PlantedBug::AnyOriginWillDo,
        PlantedBug::FlushIsNoBoundary,
        PlantedBug::HorizonForgotten,
        PlantedBug::GapUnlocked,
    ];

    /// Its name on a command line.
    pub fn name(self) -> &'static str {
        match self {
            PlantedBug::SkippedSync => "skipped-sync",
            PlantedBug::CleanBeforeOriginSync => "clean-before-origin-sync",
            PlantedBug::FillWins => "fill-wins",
            PlantedBug::UnboundChecksum => "unbound-checksum",
            PlantedBug::FlushForgetsLane => "flush-forgets-lane",
            PlantedBug::SampleStaysUntouched => "sample-stays-untouched",
            PlantedBug::AnyOriginWillDo => "any-origin-will-do",
            PlantedBug::FlushIsNoBoundary => "flush-is-no-boundary",
            PlantedBug::HorizonForgotten => "horizon-forgotten",
            PlantedBug::GapUnlocked => "gap-unlocked",
        }
    }
}

/// How a store is opened.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// Lanes that will use it, at least 1.
    pub lanes: usize,
    /// Go on although records that had been durable are lost.
    pub accept_damage: bool,
    /// At the latest after this time, what was written is made durable.
    pub commit_interval: Duration,
    /// A checkpoint is written when this many bytes have been appended since the last one;
    /// `None`: half of the cache.
    pub checkpoint_bytes: Option<u64>,
    /// Blocks of volumes that are about to be created: the index gets room for them as well.
    pub room_for_blocks: u64,
    /// Volumes whose origins have more blocks by now than the volume table says: the index gets
    /// room for that many.
    pub grown: Vec<(VolumeId, u64)>,
    /// Seed of everything random.
    pub seed: u64,
    /// A bug to have, in builds with the feature `planted-bugs` only.
    pub bug: Option<PlantedBug>,
}

impl Default for StoreOptions {
    fn default() -> Self {
        StoreOptions {
            lanes: 1,
            accept_damage: false,
            commit_interval: Duration::from_secs(1),
            checkpoint_bytes: None,
            room_for_blocks: 0,
            grown: Vec::new(),
            seed: 0,
            bug: None,
        }
    }
}

impl StoreOptions {
    /// Whether `bug` is to be had. Constant `false` without the feature.
    pub fn has(&self, bug: PlantedBug) -> bool {
        cfg!(feature = "planted-bugs") && self.bug == Some(bug)
    }
}
