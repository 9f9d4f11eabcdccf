//! The configurations that are run concurrently.

use std::time::Duration;

use forebay_core::{Durability, Mode, ReplacementKind};
use forebay_engine::Settings;

use crate::disk::Nature;

/// The RAM tier in front of the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RamTier {
    None,
    /// Copies, of this many bytes.
    Copies(u64),
    /// Also deferred writes, of this many bytes together with the copies.
    Deferred(u64),
}

/// Rates of failing operations, which apply from some point of a life on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Failing {
    /// Failures per million reads, writes and syncs of the cache device.
    pub(crate) cache: [u32; 3],
    /// Failures per million of the origin.
    pub(crate) origin: [u32; 3],
}

/// One configuration.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) name: &'static str,
    pub(crate) settings: Settings,
    pub(crate) cache_bytes: u64,
    /// Blocks of the volume.
    pub(crate) blocks: u64,
    /// Number of blocks at the beginning of the volume that get three quarters of the requests.
    pub(crate) hot: u64,
    /// Whether each lane writes to a part of every block. Otherwise, each lane writes to separate
    /// blocks.
    pub(crate) shares_blocks: bool,
    pub(crate) cache: Nature,
    pub(crate) origin: Nature,
    pub(crate) shards: Option<u32>,
    pub(crate) ram: RamTier,
    /// Whether the mode changes all the time.
    pub(crate) changes_mode: bool,
    pub(crate) failing: Failing,
    /// Lifetime of the devices, after which they are replaced by new ones.
    pub(crate) life: Duration,
}

const MIB: u64 = 1 << 20;

fn base(name: &'static str) -> Plan {
    Plan {
        name,
        settings: Settings { dirty_high: 30, dirty_low: 20, ..Settings::default() },
        cache_bytes: 24 * MIB,
        blocks: 8192,
        hot: 2048,
        shares_blocks: false,
        cache: Nature { writes_durably: false, reads_at_once: true, turns: 5 },
        origin: Nature { writes_durably: false, reads_at_once: false, turns: 10 },
        shards: None,
        ram: RamTier::None,
        changes_mode: false,
        failing: Failing::default(),
        life: Duration::from_secs(10),
    }
}

/// Returns a configuration whose devices fail at these rates, with a short life.
fn failing(name: &'static str, cache: [u32; 3], origin: [u32; 3]) -> Plan {
    let life = Duration::from_secs(2);
    Plan { failing: Failing { cache, origin }, life, ..base(name) }
}

impl Plan {
    fn with(self, change: impl FnOnce(&mut Self)) -> Self {
        let mut plan = self;
        change(&mut plan);
        plan
    }

    fn durable(self) -> Self {
        self.with(|plan| plan.cache.writes_durably = true)
    }

    fn through(self) -> Self {
        self.with(|plan| plan.settings.mode = Mode::Writethrough)
    }

    fn shared(self, hot: u64) -> Self {
        self.with(|plan| (plan.shares_blocks, plan.hot) = (true, hot))
    }

    fn ram(self, ram: RamTier) -> Self {
        self.with(|plan| plan.ram = ram)
    }

    fn changing(self) -> Self {
        self.with(|plan| plan.changes_mode = true)
    }

    /// Returns whether a change of mode ends with all data on the origin, so that the origin can be
    /// compared.
    pub(crate) fn compares_origin(&self) -> bool {
        !matches!(self.ram, RamTier::Deferred(_)) && self.failing == Failing::default()
    }

    pub(crate) fn all() -> Vec<Plan> {
        let (copies, deferred) = (RamTier::Copies(6 * MIB), RamTier::Deferred(6 * MIB));
        vec![
            base("synced"),
            base("durable").durable(),
            base("shards").with(|plan| (plan.shards, plan.cache.turns) = (Some(16), 0)),
            base("waiting").with(|plan| plan.cache.reads_at_once = false),
            base("strict").durable().with(|plan| plan.settings.durability = Durability::Strict),
            base("through").through(),
            base("modes").durable().changing(),
            base("lru").with(|plan| plan.settings.policy = ReplacementKind::Lru),
            base("ram").ram(copies),
            base("ram-modes").ram(copies).changing(),
            base("deferred").ram(deferred),
            base("deferred-modes").ram(deferred).changing(),
            base("tiny").with(|plan| (plan.cache_bytes, plan.hot) = (12 * MIB, 4096)),
            base("hot").durable().with(|plan| (plan.hot, plan.cache.turns) = (128, 0)),
            base("ordered").with(|plan| plan.settings.ordered = true),
            base("halves").shared(1024),
            base("halves-hot").durable().shared(48).with(|plan| plan.cache.turns = 2),
            base("halves-ram").shared(1024).ram(RamTier::Copies(3 * MIB)),
            base("halves-deferred").shared(1024).ram(deferred),
            base("halves-through").shared(256).through(),
            base("halves-modes").shared(256).changing(),
            failing("bad-cache-reads", [3000, 0, 0], [0; 3]),
            failing("bad-cache-writes", [0, 300, 0], [0; 3]),
            failing("bad-cache-syncs", [0, 0, 20_000], [0; 3]),
            failing("bad-cache-through", [1000, 100, 3000], [0; 3]).through(),
            failing("bad-origin-reads", [0; 3], [3000, 0, 0]),
            failing("bad-origin-writes", [0; 3], [0, 3000, 0]),
            failing("bad-origin-syncs", [0; 3], [0, 0, 50_000]),
            failing("bad-origin-through", [0; 3], [1000, 3000, 50_000]).through(),
            failing("bad-both", [1000, 50, 500], [1000, 1000, 20_000]).changing(),
            failing("bad-both-ram", [1000, 50, 500], [1000, 1000, 20_000]).ram(copies),
            failing("bad-both-deferred", [1000, 50, 500], [1000, 1000, 20_000]).ram(deferred),
        ]
    }
}
