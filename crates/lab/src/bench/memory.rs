//! `forebay-lab memory`: RAM for each block of the cache device, all in.
//!
//! Two numbers: the bytes that `forebay show` reports as `memory.index_bytes` (index, segment
//! table, ghosts of the policy, of admission and of statistics), and the growth of the process, as
//! the kernel counts it. The devices have their memory before the first look, so that only the
//! engine grows. Ghosts take their memory as blocks leave the cache, so the growth does not include
//! those of the policy.

use std::process::{Command, Stdio};
use std::sync::Arc;

use clap::ValueEnum;
use forebay_core::units::format_size;
use forebay_lane::MonotonicClock;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::bench::device::SparseDevice;
use crate::bench::driver::{Driver, fill_clean, fill_dirty, random_order};
use crate::bench::pattern::MOST_BLOCKS;
use crate::error::{LabResult, other, usage};
use crate::output::{Goal, Row, name_of, show};
use crate::progress::Progress;
use crate::rig::{BLOCK, LocalLane, Plan, Rig, no_writeback};

/// Bytes that are promised for a block.
const GOAL: f64 = 8.9;

/// Arguments of `forebay-lab memory`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Blocks that are cached
    #[arg(long, default_value_t = 4_000_000)]
    blocks: u64,
    /// Share of the cache that these blocks fill, in percent
    #[arg(long, default_value_t = 96, value_parser = clap::value_parser!(u64).range(10..=97))]
    full: u64,
    /// States that are measured, each in a process of its own: memory that one gave back to the
    /// allocator would hide what the next one takes
    #[arg(long, value_delimiter = ',', default_value = "clean,dirty")]
    states: Vec<State>,
}

/// State of the cached blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum State {
    /// Brought in from the origin
    Clean,
    /// Written
    Dirty,
}

#[derive(Serialize, Deserialize)]
struct Used {
    state: String,
    blocks: u64,
    /// Index, segment table and ghosts, by the cache's own count.
    index_bytes: u64,
    /// For 4 KiB of the cache device.
    index_bytes_per_block: f64,
    /// The part of `index_bytes` that is the policy's ghosts.
    policy_ghost_bytes: u64,
    /// Memory of the log's buffers according to the store, which does not depend on the blocks.
    buffer_bytes: u64,
    /// Growth of the process since before the cache was opened, without these buffers.
    grown_bytes: u64,
    grown_bytes_per_block: f64,
    /// Memory of the pretended devices, which is not in the numbers above.
    devices_bytes: u64,
    goal: Goal,
}

/// Anonymous memory of this process that is in RAM, in bytes.
fn resident() -> LabResult<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"))
        .and_then(|rest| rest.trim().strip_suffix("kB"))
        .and_then(|number| number.trim().parse::<u64>().ok())
        .map(|kilobytes| kilobytes << 10)
        .ok_or_else(|| other("the kernel does not say how much memory this process has"))
}

impl Row for Used {
    const COLUMNS: &'static str = "STATE=state | BLOCKS=blocks | INDEX=index_bytes:bytes | \
        B/BLOCK=index_bytes_per_block:2 | PROCESS GREW=grown_bytes:bytes | \
        B/BLOCK=grown_bytes_per_block:2 | GOAL=goal:<=1 | BUFFERS BESIDE=buffer_bytes:bytes";
}

pub(crate) fn run(args: &Args, json: bool) -> LabResult<()> {
    if !(1 << 14..MOST_BLOCKS).contains(&args.blocks) {
        return Err(usage("choose 16384 blocks or more, below 2^31"));
    }
    let cache_bytes = cache_size(args.blocks, args.full);
    let rows = match args.states[..] {
        [state] => {
            let progress = Progress::new(args.blocks, "filling");
            vec![measure(args, cache_bytes, state == State::Dirty, &progress)?]
        }
        _ => args.states.iter().map(|state| apart(args, *state)).collect::<LabResult<_>>()?,
    };
    show(json, json!({ "cache_bytes": cache_bytes, "full_percent": args.full }), &rows, |table| {
        format!("cache of {}, {} % full\n{table}", format_size(cache_bytes), args.full)
    })
}

/// Measures one state in a process of its own.
fn apart(args: &Args, state: State) -> LabResult<Used> {
    let output = Command::new(std::env::current_exe()?)
        .args(["--json", "memory", "--states", &name_of(state)])
        .args([format!("--blocks={}", args.blocks), format!("--full={}", args.full)])
        .stderr(Stdio::inherit())
        .output()?;
    let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    let row = report.pointer("/rows/0").and_then(|row| Used::deserialize(row).ok());
    row.ok_or_else(|| other(format!("the process that measures has failed: {}", output.status)))
}

/// The size of a cache device that so many blocks fill to so many percent.
pub(crate) fn cache_size(blocks: u64, percent: u64) -> u64 {
    // One header for up to 126 blocks, and the tables in front.
    let payload = (blocks * BLOCK).div_ceil(126) * 127;
    (payload * 100 / percent + (32 << 20)).next_multiple_of(4 << 20)
}

fn measure(args: &Args, cache_bytes: u64, dirty: bool, progress: &Progress) -> LabResult<Used> {
    let cache = SparseDevice::new("cache", cache_bytes);
    // Headers, two checkpoints, tables.
    cache.reserve((args.blocks / 60 + 2 * args.blocks * 16 / BLOCK + 1024) as usize);
    let origin = SparseDevice::new("origin", args.blocks * BLOCK);
    let devices_bytes = cache.memory() + origin.memory();
    let order = random_order(1, args.blocks);
    let before = resident()?;
    let plan = Plan::new(cache.clone(), origin, no_writeback());
    let rig = Rig::create(LocalLane::new(0, Arc::new(MonotonicClock::new())), plan)?;
    let mut driver = Driver::new(rig.local.clone(), rig.target()?);
    driver.repeat_payload();
    if dirty {
        fill_dirty(&mut driver, &order, progress)?;
    } else {
        fill_clean(&driver, 0..args.blocks, progress)?;
    }
    rig.commit()?;
    rig.local.turn();
    let store = &rig.engine.cache.store;
    let blocks = store.index.len();
    if blocks < args.blocks / 100 * 99 {
        return Err(other(format!("only {blocks} of {} blocks are cached", args.blocks)));
    }
    let buffer_bytes = store.buffer_bytes();
    let grown_bytes = resident()?.saturating_sub(before).saturating_sub(buffer_bytes);
    let per_block = |bytes: u64| bytes as f64 / (cache_bytes / BLOCK) as f64;
    let (policy_bytes, policy_ghost_bytes) = rig.engine.cache.policy_bytes();
    let index_bytes =
        store.index_bytes() + rig.engine.cache.memory_bytes() + policy_bytes + policy_ghost_bytes;
    Ok(Used {
        state: if dirty { "dirty" } else { "clean" }.to_owned(),
        blocks,
        index_bytes,
        index_bytes_per_block: per_block(index_bytes),
        policy_ghost_bytes,
        buffer_bytes,
        grown_bytes,
        grown_bytes_per_block: per_block(grown_bytes),
        devices_bytes,
        goal: Goal::at_most(GOAL, per_block(index_bytes.max(grown_bytes))),
    })
}
