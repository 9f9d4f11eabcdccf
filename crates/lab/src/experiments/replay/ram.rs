//! A RAM tier in front of the cache, and the cache that the same money would buy without it.

use std::time::Duration;

use forebay_core::{Durability, ReplacementKind};
use forebay_settings::{Setting, Settings};
use serde::Serialize;

use crate::error::LabResult;
use crate::virtual_time::world::UNIT;

use super::cache::Outcome;
use super::size::Wanted;
use super::usage;

/// Arguments of the RAM tier.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "RAM tier")]
pub(super) struct RamArgs {
    /// A RAM tier in front of the cache: bytes, like 64M, or a share of the trace's blocks, like
    /// 5%. Beside it runs a larger cache without RAM that costs as much
    #[arg(long, value_name = "SIZE|PERCENT%")]
    ram: Option<Wanted>,
    /// Its replacement policies, a row for each; `all`: each that there is
    #[arg(long, default_value = "s3-fifo", value_name = "POLICIES", requires = "ram")]
    ram_policy: String,
    /// Its unit of caching
    #[arg(long, default_value = "4K", value_name = "SIZE", requires = "ram")]
    ram_block: String,
    /// Writes are acknowledged in RAM and written down within so long; without it they are written
    /// through RAM
    #[arg(long, value_name = "SECONDS", requires = "ram",
          value_parser = clap::value_parser!(u32).range(1..=86_400))]
    defer: Option<u32>,
    /// Price of a byte of RAM in bytes of the cache device
    #[arg(long, default_value_t = 20.0, value_name = "RATIO", requires = "ram")]
    price: f64,
}

/// The tiers to try, and the bytes of cache device that one of them costs.
pub(super) struct Tiers {
    pub(super) settings: Vec<Settings>,
    pub(super) same_money: u64,
}

impl RamArgs {
    fn policies(&self) -> LabResult<Vec<ReplacementKind>> {
        if self.ram_policy == "all" {
            return Ok(ReplacementKind::ALL.to_vec());
        }
        self.ram_policy.split(',').map(|name| name.parse().map_err(usage)).collect()
    }

    /// The tiers that are wanted, on a volume of these settings; `None`: no RAM.
    pub(super) fn tiers(&self, settings: &Settings, blocks: u64) -> LabResult<Option<Tiers>> {
        let Some(wanted) = self.ram else { return Ok(None) };
        if !(self.price > 0.0 && self.price <= 1e6) {
            return Err(usage("--price is above 0, and at most 1000000"));
        }
        let bytes = wanted.bytes(blocks, UNIT);
        let mut settings = Settings { ram: bytes, ..settings.clone() };
        let block = Setting::find("ram_block").map_err(usage)?;
        block.read(&mut settings, &self.ram_block).map_err(usage)?;
        if let Some(seconds) = self.defer {
            settings.durability = Durability::Deferred;
            settings.defer = Duration::from_secs(seconds.into());
        }
        settings.validate().map_err(usage)?;
        let of = |ram_policy| Settings { ram_policy, ..settings.clone() };
        Ok(Some(Tiers {
            settings: self.policies()?.into_iter().map(of).collect(),
            same_money: (bytes as f64 * self.price) as u64,
        }))
    }
}

/// A row's RAM tier.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct RamRow {
    pub(super) bytes: u64,
    block_bytes: u64,
    pub(super) policy: &'static str,
    /// Share of the accesses to blocks of 4 KiB of which every requested byte was in RAM.
    pub(super) block_hit_ratio: f64,
    /// Writes were acknowledged in RAM; 0: they were not.
    pub(super) deferred_seconds: f64,
}

impl RamRow {
    /// Returns `None` if these settings name no RAM.
    pub(super) fn new(settings: &Settings, outcome: &Outcome) -> Option<Self> {
        let deferred = settings.durability == Durability::Deferred;
        let looked = outcome.played.looked;
        (settings.ram > 0).then(|| RamRow {
            bytes: settings.ram,
            block_bytes: settings.ram_block,
            policy: settings.ram_policy.name(),
            block_hit_ratio: looked.in_ram as f64 / looked.blocks.max(1) as f64,
            deferred_seconds: if deferred { settings.defer.as_secs_f64() } else { 0.0 },
        })
    }
}
