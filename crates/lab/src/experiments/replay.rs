//! `forebay-lab replay`: the engine, as it is, under the requests of a trace: in virtual time, on
//! modelled devices.
//!
//! - `load`: a trace in memory; `size`: a log for so many blocks
//! - `player`: requests at their times; `cache`: one cache under them
//! - `ram`: a RAM tier in front of it; `tuning`: settings of the cache that matter most
//! - `row`: the result of one replay; `report`: the printed table

mod cache;
mod load;
mod player;
mod ram;
mod report;
mod row;
mod size;
mod tuning;

use std::time::Duration;

use clap::ValueEnum;
use forebay_core::{Admission, BlockSize, Durability, Mode, ReplacementKind, parse_size};
use forebay_device::model::ModelKind;
use forebay_engine::Settings;
use forebay_policy::whatif::Prediction;

use crate::error::{LabError, LabResult};
use crate::experiments::source::Source;
use crate::output::{name_of, print_json};
use crate::virtual_time::cpu::CpuCosts;
use crate::virtual_time::world::UNIT;

use cache::Setup;
use player::Pace;
use ram::RamArgs;
use size::{LogSize, Wanted};
use tuning::Tuning;

pub(crate) use load::{Grid, Loaded};
pub(crate) use row::Misses;

/// Requests of a trace that are under way together, unless it is said otherwise.
const DEPTH: usize = 32;

/// Arguments of `forebay-lab replay`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    source: Source,
    /// Blocks that may live in the cache: bytes, like 512M, or a share of the trace's blocks, like
    /// 20%
    #[arg(long, value_name = "SIZE|PERCENT%")]
    cache_size: Wanted,
    /// Replacement policy, as in `forebay create`
    #[arg(long, default_value = "s3-fifo", value_name = "POLICY")]
    policy: ReplacementKind,
    /// writeback, writethrough, writearound, writeonly, passthrough
    #[arg(long, default_value = "writeback", value_name = "MODE")]
    mode: Mode,
    /// flush, strict
    #[arg(long, default_value = "flush", value_name = "DURABILITY")]
    durability: Durability,
    /// Block size of the cache; misses are counted in blocks of 4K all the same
    #[arg(long, default_value = "4K", value_name = "SIZE", value_parser = parse_size)]
    block_size: u64,
    /// Segment size of the cache; as large as the store chooses by default
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    segment_size: Option<u64>,
    /// The model of the origin
    #[arg(long, default_value = "hdd7200", value_name = "MODEL")]
    origin: Origin,
    /// The model of the cache device
    #[arg(long, default_value = "sata-ssd", value_name = "MODEL")]
    cache_device: CacheDevice,
    /// At the trace's times, or as fast as answers come; the first if it has times
    #[arg(long, value_name = "TIMING")]
    timing: Option<TimingChoice>,
    /// Requests that are under way together, at most; by default 32, and 1 with --timing closed
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u16).range(1..=4096))]
    depth: Option<u16>,
    /// Streams longer than this go round the cache; 0: none does, for miss ratios to be comparable
    #[arg(long, default_value = "0", value_name = "SIZE", value_parser = parse_size)]
    sequential_cutoff: u64,
    /// The origin gets what was written in the order of flushes
    #[arg(long)]
    ordered: bool,
    /// A flush after so many writes; traces have none of their own
    #[arg(long, value_name = "WRITES", value_parser = clap::value_parser!(u64).range(1..))]
    flush_every: Option<u64>,
    /// Seed of all random choices
    #[arg(long, default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    costs: CpuCosts,
    #[command(flatten)]
    tuning: Tuning,
    #[command(flatten)]
    ram: RamArgs,
}

/// Models of origins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Origin {
    Hdd7200,
    SataSsd,
}

/// Models of cache devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum CacheDevice {
    SataSsd,
    PcieSsd,
}

/// When requests come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum TimingChoice {
    Trace,
    Closed,
}

fn usage(error: impl std::fmt::Display) -> LabError {
    LabError::Usage(error.to_string())
}

pub(crate) fn run(args: &Args, json: bool) -> LabResult<()> {
    let report = replay(args)?;
    if json {
        return print_json(&report);
    }
    report.print()
}

#[expect(clippy::too_many_lines, reason = "arguments, one after the other")]
fn replay(args: &Args) -> LabResult<report::Report> {
    let block = args.block_size;
    let block = BlockSize::new(block)
        .ok_or_else(|| usage(format!("--block-size {block} is no power of two from 2K to 1M")))?;
    let segment = args.segment_size;
    let requests = args.source.open()?;
    let format = requests.format().name();
    let mut trace = Loaded::read(requests, Grid::Sectors)?;
    if let Some(writes) = args.flush_every {
        trace.flush_every(writes);
    }
    args.source.suggest(&trace.alignment);
    let timing = match args.timing {
        Some(TimingChoice::Trace) if !trace.timed => {
            return Err(usage("the trace has no times; choose --timing closed"));
        }
        Some(timing) => timing,
        None if trace.timed => TimingChoice::Trace,
        None => TimingChoice::Closed,
    };
    let depth = args.depth.map(usize::from);
    let pace = match timing {
        TimingChoice::Trace => Pace::Trace { depth: depth.unwrap_or(DEPTH) },
        TimingChoice::Closed => Pace::Closed { depth: depth.unwrap_or(1), pause: Duration::ZERO },
    };
    let bytes = args.cache_size.bytes(trace.blocks, UNIT);
    let mut setup = Setup {
        size: LogSize::new(bytes, block, segment)?,
        block,
        settings: Settings {
            mode: args.mode,
            durability: args.durability,
            policy: args.policy,
            sequential_cutoff: args.sequential_cutoff,
            ordered: args.ordered,
            ..Settings::default()
        },
        seed: args.seed,
    };
    args.tuning.apply(&mut setup.settings)?;
    setup.say_if_larger(bytes);
    let origin = match args.origin {
        Origin::Hdd7200 => ModelKind::Hdd7200,
        Origin::SataSsd => ModelKind::SataSsd,
    };
    let ssd = match args.cache_device {
        CacheDevice::SataSsd => ModelKind::SataSsd,
        CacheDevice::PcieSsd => ModelKind::PcieSsd,
    };
    let setups = match args.ram.tiers(&setup.settings, trace.blocks)? {
        None => vec![setup],
        Some(tiers) => {
            let larger = LogSize::new(bytes + tiers.same_money, block, segment)?;
            let with_ram = |settings| Setup { settings, ..setup.clone() };
            let all = tiers.settings.into_iter().map(with_ram);
            all.chain([Setup { size: larger, ..setup.clone() }]).collect()
        }
    };
    let bare = cache::bare(&trace, origin, pace)?;
    let (mut rows, mut accesses) = (Vec::new(), 0);
    for setup in &setups {
        let outcome = setup.timed(&trace, (ssd, origin), args.costs, pace)?;
        accesses = outcome.accesses();
        rows.push(row::Replayed::new(setup, &trace, &outcome, &bare, (name_of(timing), pace)));
    }
    Ok(report::Report {
        trace: args.source.name(),
        format,
        requests: trace.requests.len() as u64,
        accesses,
        blocks: trace.blocks,
        align: args.source.reading.align,
        rows,
    })
}

/// Rule of admission and mode of a log.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    pub(crate) admission: Admission,
    pub(crate) mode: Mode,
}

/// The policy in a log of about so many blocks, one request after the other, on devices that take
/// no time.
pub(crate) fn misses(
    trace: &Loaded,
    policy: ReplacementKind,
    rules: Rules,
    capacity: u32,
    seed: u64,
) -> LabResult<Misses> {
    let block = BlockSize::DEFAULT;
    let bytes = u64::from(capacity) * UNIT;
    let setup = Setup {
        size: LogSize::new(bytes, block, None)?,
        block,
        settings: Settings {
            policy,
            mode: rules.mode,
            admission: rules.admission,
            sequential_cutoff: 0,
            // Dirty blocks stay cached whatever the policy says; low marks write them back early,
            // so that the policy decides.
            dirty_high: 5,
            dirty_low: 1,
            cache_dirty_high: 5,
            cache_dirty_low: 1,
            ..Settings::default()
        },
        seed,
    };
    setup.say_if_larger(bytes);
    let outcome = setup.untimed(trace)?;
    Ok(Misses::new(&setup, &outcome))
}

/// Results of a cache under a trace, and its predictions for other settings.
#[derive(Clone, Debug)]
pub(crate) struct Ran {
    /// Blocks that may live in the log.
    pub(crate) capacity_blocks: u64,
    /// Share of the blocks read that were in RAM or in the cache.
    pub(crate) reads: f64,
    /// Bytes appended to the log for clients and fills.
    pub(crate) appended: u64,
    /// All bytes written to the cache device.
    pub(crate) ssd_written: u64,
    pub(crate) predictions: Vec<Prediction>,
}

/// Runs a cache of about so many blocks with these settings on models of a SATA SSD and a disk: at
/// the trace's times if it has any, otherwise one request after the other. The devices must take
/// time, because the time for writing back a block determines how long it stays dirty in the cache.
pub(crate) fn ran(trace: &Loaded, settings: Settings, blocks: u64) -> LabResult<Ran> {
    let block = BlockSize::DEFAULT;
    let setup = Setup { size: LogSize::new(blocks * UNIT, block, None)?, block, settings, seed: 1 };
    let pace = if trace.timed {
        Pace::Trace { depth: DEPTH }
    } else {
        Pace::Closed { depth: 1, pause: Duration::ZERO }
    };
    let devices = (ModelKind::SataSsd, ModelKind::Hdd7200);
    let outcome = setup.timed(trace, devices, CpuCosts::default(), pace)?;
    let reads = outcome.played.looked_at_reads;
    Ok(Ran {
        capacity_blocks: setup.size.capacity_blocks,
        reads: 1.0 - reads.missed as f64 / reads.blocks.max(1) as f64,
        appended: outcome.appended,
        ssd_written: outcome.ssd_written,
        predictions: outcome.predictions,
    })
}

#[cfg(test)]
mod tests;
