//! The choices that a seed makes for a world: size, clients and faults.

use forebay_core::{BlockSize, Durability, Mode, ReplacementKind};
use forebay_format::layout::smallest_segment;

use crate::clients::Mix;
use crate::engine::may_be_ordered;
use crate::features::{Feature, Features};
use crate::stamp::SECTOR;
use crate::system::Setup;
use crate::world::RunOptions;

/// The kind of faults in a run. The kinds are separate because each excuses other errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultProfile {
    /// Only crashes: no request may fail and nothing may be lost.
    Crashes,
    /// Crashes, and origins that fail for a while: nothing may be lost.
    OriginErrors,
    /// A cache device that fails: data may become unreadable, never wrong.
    CacheErrors,
    /// Bit rot, lost and misdirected writes on the cache device, without crashes: only damaged data
    /// may become unreadable.
    Damage,
}

impl FaultProfile {
    /// All profiles.
    pub const ALL: [FaultProfile; 4] = [
        FaultProfile::Crashes,
        FaultProfile::OriginErrors,
        FaultProfile::CacheErrors,
        FaultProfile::Damage,
    ];

    /// Returns a short name for lists.
    pub fn name(self) -> &'static str {
        match self {
            FaultProfile::Crashes => "crashes",
            FaultProfile::OriginErrors => "origin-errors",
            FaultProfile::CacheErrors => "cache-errors",
            FaultProfile::Damage => "damage",
        }
    }
}

/// All choices made before a run starts.
#[derive(Clone, Debug)]
pub struct Profile {
    /// The kind of faults.
    pub fault_profile: FaultProfile,
    /// The features of this world.
    pub features: Features,
    /// Lanes, 1 to 3.
    pub lanes: usize,
    /// Size of the cache device in bytes.
    pub cache_size: u64,
    /// Sizes of the origins in bytes.
    pub origin_sizes: Vec<u64>,
    /// Setup of the cache.
    pub setup: Setup,
    /// The mix of operations.
    pub mix: Mix,
    /// Clients of each volume on each lane.
    pub clients: u32,
    /// Number of times that the system is opened.
    pub rounds: u32,
    /// Requests in each round.
    pub requests: u64,
    /// Whether operators act during the run.
    pub admin: bool,
    /// Whether the initial content of the origins has sectors of zeroes.
    pub zeroes: bool,
}

fn pick<T: Copy>(rng: &mut fastrand::Rng, from: &[T]) -> Option<T> {
    (!from.is_empty()).then(|| from[rng.usize(0..from.len())])
}

impl Profile {
    /// Draws a profile from `rng`; `options` may override its fault profile and its features.
    pub fn choose(rng: &mut fastrand::Rng, options: &RunOptions) -> Self {
        let chosen = match rng.u32(0..20) {
            0..13 => FaultProfile::Crashes,
            13..16 => FaultProfile::OriginErrors,
            16..18 => FaultProfile::CacheErrors,
            _ => FaultProfile::Damage,
        };
        let fault_profile = options.fault_profile.unwrap_or(chosen);
        let lanes = rng.usize(1..=3);
        let block =
            if rng.u32(0..3) > 0 { 4096 } else { pick(rng, &[2048, 8192, 16384]).unwrap_or(4096) };
        let segment_size = 256 << 10;
        let volumes = rng.usize(2..=3);
        let modes = |rng: &mut fastrand::Rng| {
            let mode = if rng.u32(0..5) < 3 { Some(Mode::Writeback) } else { pick(rng, Mode::ALL) };
            let durability =
                if rng.u32(0..4) == 0 { Durability::Strict } else { Durability::Flush };
            (mode.unwrap_or_default(), durability)
        };
        let zeroes = fault_profile != FaultProfile::Damage;
        let mut profile = Profile {
            fault_profile,
            features: Features::default(),
            lanes,
            cache_size: rng.u64(20..=40) * (256 << 10),
            origin_sizes: (0..volumes).map(|_| Self::origin_size(rng)).collect(),
            setup: Setup {
                block_size: BlockSize::new(block).unwrap_or_default(),
                segment_size,
                logical_blocks: vec![SECTOR as u64; volumes + 1],
                alignments: vec![0; volumes],
                room_for_blocks: 0,
                shards: None,
                loads_slowly: false,
                shares: false,
                replacement: pick(rng, ReplacementKind::ALL).unwrap_or_default(),
                volumes: (0..volumes).map(|_| modes(rng)).collect(),
                ordered: Vec::new(),
                aged: false,
                grows: false,
                ram: false,
                deferred: false,
                ignores_flush: false,
                seed: rng.u64(..),
                insists: fault_profile == FaultProfile::CacheErrors,
                rots: false,
            },
            mix: Mix::choose(rng, zeroes),
            clients: rng.u32(1..=2),
            rounds: rng.u32(2..=5),
            requests: match rng.u32(0..8) {
                0..2 => rng.u64(20..100),
                2..7 => rng.u64(100..800),
                _ => rng.u64(800..3_000),
            },
            admin: rng.u32(0..3) > 0,
            zeroes,
        };
        let setup = &mut profile.setup;
        let mut own = fastrand::Rng::with_seed(setup.seed ^ 0x0d3e);
        let ordered = |(mode, _): &(Mode, Durability)| own.bool() && may_be_ordered(*mode);
        setup.ordered = setup.volumes.iter().map(ordered).collect();
        let mut own = fastrand::Rng::with_seed(setup.seed ^ 0xfea7);
        profile.features =
            Features::choose(&mut own, setup.seed, fault_profile, options.with, options.without);
        profile.take_features(&mut own);
        profile
    }

    /// Prepares the setup for the features.
    fn take_features(&mut self, rng: &mut fastrand::Rng) {
        let features = self.features;
        if features.has(Feature::Shape) {
            self.take_shape(rng);
        }
        let setup = &mut self.setup;
        setup.aged = features.has(Feature::Aged);
        setup.grows = features.has(Feature::Grown);
        setup.ram = features.has(Feature::Ram);
        setup.ignores_flush = features.has(Feature::IgnoreFlush);
        setup.deferred = features.has(Feature::Deferred) || setup.ignores_flush;
        if setup.ignores_flush {
            // The settings exclude each other.
            setup.ordered.fill(false);
        }
        if features.has(Feature::Absence) {
            setup.room_for_blocks = 1 << 18;
        }
        if features.has(Feature::Shards) {
            setup.shards = Some(1 << rng.u32(1..=4));
        }
        if features.has(Feature::Written) {
            self.mix.written_percent = rng.u32(20..80);
        }
        setup.shares = features.has(Feature::Shares);
        setup.loads_slowly = features.has(Feature::Loading);
        setup.rots = features.has(Feature::Rot);
        if setup.loads_slowly {
            // The index of a cache with ordered volumes is loaded at once.
            setup.ordered.fill(false);
            setup.shards = setup.shards.or(Some(8));
        }
    }

    /// Draws unusual sizes and alignments.
    fn take_shape(&mut self, rng: &mut fastrand::Rng) {
        let bytes = match rng.u32(0..40) {
            0 => 1 << 20,
            1..3 => 256 << 10,
            3..5 => 128 << 10,
            _ => pick(rng, &[512, 1024, 4096, 8192, 32 << 10, 64 << 10]).unwrap_or(4096),
        };
        let block = BlockSize::new(bytes).unwrap_or_default();
        let smallest = smallest_segment(block);
        let segment = if smallest < 1 << 20 { smallest << rng.u32(0..=2) } else { smallest };
        let setup = &mut self.setup;
        (setup.block_size, setup.segment_size) = (block, segment);
        self.cache_size = rng.u64(20..=40) * segment + (2 << 20);
        let logical = |rng: &mut fastrand::Rng| if rng.bool() { 4096 } else { SECTOR as u64 };
        for (number, logical_block) in setup.logical_blocks.iter_mut().enumerate() {
            // The cache device must be able to read and write one block alone.
            *logical_block = logical(rng).min(if number == 0 { block.granule() } else { 4096 });
        }
        for alignment in &mut setup.alignments {
            if rng.u32(0..3) > 0 {
                *alignment = rng.u64(0..block.bytes() / SECTOR as u64) * SECTOR as u64;
            }
        }
        for (size, logical) in self.origin_sizes.iter_mut().zip(setup.logical_blocks.iter().skip(1))
        {
            *size = (*size).max(block.bytes() * rng.u64(2..12));
            *size -= rng.u64(0..16) * logical;
        }
    }

    /// Returns whether data on the cache device is never lost to faults.
    pub fn keeps_cached_data(&self) -> bool {
        matches!(self.fault_profile, FaultProfile::Crashes | FaultProfile::OriginErrors)
    }

    /// Draws the size of an origin, which is mostly small, so that the same blocks are hit
    /// repeatedly.
    fn origin_size(rng: &mut fastrand::Rng) -> u64 {
        match rng.u32(0..10) {
            0..7 => rng.u64(8..=64) * (32 << 10),
            7..9 => rng.u64(1..=4) << 20,
            _ => rng.u64(4..=8) << 20,
        }
    }
}
