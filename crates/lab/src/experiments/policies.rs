//! `forebay-lab policies`: miss ratios of replacement policies on a trace.
//!
//! Each policy drives a plain cache that is empty at first: it has room for a share of the blocks
//! that the trace ever touches, every block of a request is one access, reads and writes alike, and
//! a missed block enters unless the policy refuses it. Blocks that are discarded leave. `belady`
//! knows the future and is the bound for policies that admit every block: one that may refuse a
//! block can be better, as it need not make room for a block that is used once. The engine's
//! policies can also be run through the engine itself, where blocks lie in a log and leave with
//! their segments.
//!
//! - `accesses`: a trace in memory, as blocks
//! - `plain`: the cache around a policy; `belady`: the bound for those that admit all
//! - `work`: all policies and sizes on all processors

mod accesses;
mod belady;
mod plain;
mod work;

use std::path::{Path, PathBuf};

use clap::ValueEnum;
use forebay_core::{Admission, Mode, ReplacementKind};
use serde::Serialize;

use crate::error::{LabResult, other, usage};
use crate::experiments::replay::{Grid, Loaded, Misses, Rules};
use crate::experiments::source::Source;
use crate::output::{Table, print_json, try_file};
use crate::plot::{Axis, Chart, svg};

use accesses::Accesses;
use plain::Counts;
use work::Found;

/// Arguments of `forebay-lab policies`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    source: Source,
    /// Sizes of the cache, as shares of the blocks in the trace
    #[arg(long, value_delimiter = ',', default_value = "0.01,0.05,0.1,0.2", value_name = "SHARES")]
    sizes: Vec<f64>,
    /// Policies; belady is the bound for those that admit all
    #[arg(long, value_delimiter = ',', value_name = "POLICIES")]
    policies: Vec<Policy>,
    /// plain: blocks have no places; log: in the engine's log, for the policies that it has
    #[arg(long, value_delimiter = ',', default_value = "plain", value_name = "LAYOUTS")]
    layout: Vec<Layout>,
    /// Rule of admission for missed blocks: always, second-hit, ghost:1 to ghost:16. In the log it
    /// applies to writes only with --mode writethrough: in other modes written blocks have to enter
    #[arg(long, default_value_t, value_name = "RULE")]
    admission: Admission,
    /// Mode of the log: writeback, writethrough, writearound, writeonly
    #[arg(long, default_value = "writeback", value_name = "MODE")]
    mode: Mode,
    /// Seed of the policies' random choices
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Threads; all processors by default
    #[arg(long, value_name = "NUMBER")]
    threads: Option<usize>,
    /// Draw miss ratios by size to this file
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
}

/// Layout of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Layout {
    Plain,
    Log,
}

/// One policy at one size.
#[derive(Clone, Copy, Debug)]
struct Job {
    policy: Policy,
    /// Share of the trace's blocks, and the same in blocks.
    size: f64,
    capacity: u32,
    /// The engine's policy, for a run in its log.
    on_log: Option<ReplacementKind>,
    rules: Rules,
}

/// A replacement policy, or the bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Policy {
    Online(ReplacementKind),
    /// Evicts the block whose next use is latest, as it knows the future.
    Belady,
}

impl Policy {
    /// The engine's policy of this name.
    fn on_log(self) -> Option<ReplacementKind> {
        self.name().parse().ok()
    }

    fn name(self) -> &'static str {
        match self {
            Policy::Online(kind) => kind.name(),
            Policy::Belady => "belady",
        }
    }

    fn all() -> Vec<Policy> {
        let online = ReplacementKind::ALL.iter().map(|kind| Policy::Online(*kind));
        online.chain([Policy::Belady]).collect()
    }
}

impl std::str::FromStr for Policy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "belady" => Ok(Policy::Belady),
            text => text
                .parse()
                .map(Policy::Online)
                .map_err(|error: forebay_core::ChoiceError| format!("{error}, belady")),
        }
    }
}

/// Result of one policy at one size.
#[derive(Clone, Debug, Default, Serialize)]
struct Row {
    policy: &'static str,
    /// Share of the trace's blocks.
    size: f64,
    /// The same in blocks; in a log, the number of blocks that may be live.
    capacity_blocks: u64,
    /// Share of accesses to blocks, reads and writes, that missed.
    block_miss_ratio: f64,
    /// Share of requests, reads and writes, of which at least one block was missed.
    request_miss_ratio: f64,
    /// Share of read requests of which at least one block was missed; none without reads.
    read_request_miss_ratio: Option<f64>,
    /// Blocks that entered and blocks that were overwritten, for each that was accessed.
    ssd_bytes_per_byte: f64,
    /// State of the policy, in bytes for each block of capacity; none for the bound.
    state_bytes_per_block: Option<f64>,
    /// Time of the machine for one access to a block, the cache around the policy included.
    ns_per_access: Option<f64>,
    /// `plain`: blocks have no places; `log`: they are in the engine's log.
    layout: &'static str,
    /// In a log: the maximum number of live blocks, and the size of a segment.
    #[serde(skip_serializing_if = "Option::is_none")]
    most_live_blocks: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    segment_bytes: Option<u64>,
    /// Shares of the bytes written to the log: blocks that reclaim reinserted as they are worth
    /// keeping, and others that it reinserted because they were newer than the origin.
    #[serde(skip_serializing_if = "Option::is_none")]
    carried_kept_share: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    carried_dirty_share: Option<f64>,
}

impl Row {
    fn label(&self) -> String {
        let plain = self.layout == "plain";
        if plain { self.policy.to_owned() } else { format!("{} ({})", self.policy, self.layout) }
    }
}

#[derive(Debug, Serialize)]
struct Report {
    trace: String,
    format: &'static str,
    requests: u64,
    accesses: u64,
    blocks: u32,
    align: u64,
    admission: String,
    mode: &'static str,
    rows: Vec<Row>,
}

fn ratio(part: u64, whole: u64) -> f64 {
    part as f64 / whole.max(1) as f64
}

fn row(policy: Policy, size: f64, capacity: u32, counts: &Counts) -> Row {
    let reads = counts.read_requests;
    Row {
        policy: policy.name(),
        size,
        capacity_blocks: capacity.into(),
        block_miss_ratio: ratio(counts.misses, counts.accesses),
        request_miss_ratio: ratio(counts.missed_requests, counts.requests),
        read_request_miss_ratio: (reads > 0).then(|| ratio(counts.missed_read_requests, reads)),
        ssd_bytes_per_byte: ratio(counts.insertions + counts.write_hits, counts.accesses),
        state_bytes_per_block: counts.state_bytes.map(|bytes| bytes as f64 / f64::from(capacity)),
        ns_per_access: Some(counts.nanos as f64 / counts.accesses.max(1) as f64),
        layout: "plain",
        ..Row::default()
    }
}

fn log_row(size: f64, misses: &Misses) -> Row {
    Row {
        policy: misses.policy,
        size,
        capacity_blocks: misses.capacity_blocks,
        block_miss_ratio: misses.block_miss_ratio,
        request_miss_ratio: misses.request_miss_ratio,
        read_request_miss_ratio: misses.read_request_miss_ratio,
        ssd_bytes_per_byte: misses.ssd_bytes_per_byte,
        layout: misses.layout,
        most_live_blocks: Some(misses.most_live_blocks),
        segment_bytes: Some(misses.segment_bytes),
        carried_kept_share: Some(misses.carried_kept_share),
        carried_dirty_share: Some(misses.carried_dirty_share),
        ..Row::default()
    }
}

/// Returns the simulations: every policy with every size and layout.
fn jobs(
    args: &Args,
    policies: &[Policy],
    accesses: &Accesses,
    rules: Rules,
) -> LabResult<Vec<Job>> {
    let mut jobs = Vec::new();
    let layouts = policies.iter().flat_map(|policy| {
        let plain = args.layout.contains(&Layout::Plain).then_some((*policy, None));
        let on_log = policy.on_log().filter(|_| args.layout.contains(&Layout::Log));
        plain.into_iter().chain(on_log.map(|on_log| (*policy, Some(on_log))))
    });
    for (policy, on_log) in layouts {
        for size in &args.sizes {
            // As libCacheSim rounds.
            let capacity = (f64::from(accesses.blocks()) * size) as u32;
            if capacity == 0 {
                let (blocks, name) = (accesses.blocks(), args.source.name());
                let what = format!("a share of {size} of the {blocks} blocks in {name} is none");
                return Err(usage(what));
            }
            jobs.push(Job { policy, size: *size, capacity, on_log, rules });
        }
    }
    if jobs.is_empty() {
        return Err(usage(
            "belady knows the future, which the engine does not; choose another policy for the log",
        ));
    }
    Ok(jobs)
}

pub(crate) fn run(args: &Args, json: bool) -> LabResult<()> {
    if let Some(size) = args.sizes.iter().find(|size| !(**size > 0.0 && **size <= 1.0)) {
        let what = "--sizes are shares of the trace's blocks, above 0, up to 1";
        return Err(usage(format!("{what}; not {size}")));
    }
    args.plot.as_deref().map_or(Ok(()), try_file)?;
    let requests = args.source.open()?;
    let format = requests.format().name();
    let accesses = Accesses::read(requests)?;
    let policies = if args.policies.is_empty() { Policy::all() } else { args.policies.clone() };
    let rules = Rules { admission: args.admission, mode: args.mode };
    let jobs = jobs(args, &policies, &accesses, rules)?;
    let log = if jobs.iter().any(|job| job.on_log.is_some()) {
        // As in the plain cache: whole blocks.
        Some(Loaded::read(args.source.open()?, Grid::Blocks)?)
    } else {
        None
    };
    let found = work::run(&jobs, &accesses, log.as_ref(), args.seed, args.threads)?;
    let pairs = jobs.iter().zip(&found);
    let result = Report {
        trace: args.source.name(),
        format,
        requests: accesses.requests(),
        accesses: accesses.accesses(),
        blocks: accesses.blocks(),
        align: args.source.reading.align,
        admission: args.admission.to_string(),
        mode: args.mode.name(),
        rows: pairs
            .map(|(job, found)| match found {
                Found::Plain(counts) => row(job.policy, job.size, job.capacity, counts),
                Found::Log(misses) => log_row(job.size, misses),
            })
            .collect(),
    };
    if let Some(path) = &args.plot {
        plot(&result, path)?;
    }
    args.source.suggest(&accesses.alignment);
    if json {
        return print_json(&result);
    }
    print(&result, &args.sizes);
    Ok(())
}

/// Note below the rows of `belady`.
const BOUND: &str = "belady evicts the block whose next use is latest: the bound for policies that admit all. One\n\
    that may refuse a block can be below it.";

/// A number of a row.
type Column = fn(&Row) -> Option<f64>;

fn print(result: &Report, sizes: &[f64]) {
    println!(
        "{}: {} requests, {} accesses to {} blocks of 4K",
        result.trace, result.requests, result.accesses, result.blocks
    );
    let share = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |v| format!("{v:.4}"));
    let tables: [(&str, Column); 4] = [
        ("BLOCKS MISSED", |row| Some(row.block_miss_ratio)),
        ("REQUESTS MISSED", |row| Some(row.request_miss_ratio)),
        ("READS MISSED", |row| row.read_request_miss_ratio),
        ("SSD BYTES/BYTE", |row| Some(row.ssd_bytes_per_byte)),
    ];
    let names: Vec<String> = sizes.iter().map(|size| format!("{} %", size * 100.0)).collect();
    for (title, value) in tables {
        println!();
        let mut table = Table::new(&format!("{title} | {}", names.join(" | ")));
        for rows in result.rows.chunks(sizes.len().max(1)) {
            let name = rows.first().map(Row::label);
            table.row(name.into_iter().chain(rows.iter().map(|row| share(value(row)))));
        }
        print!("{}", table.render());
    }
    if result.rows.iter().any(|row| row.policy == Policy::Belady.name()) {
        println!("\n{BOUND}");
    }
}

fn plot(result: &Report, path: &Path) -> LabResult<()> {
    let mut lines: Vec<(String, Vec<(f64, f64)>)> = Vec::new();
    for row in &result.rows {
        let point = (row.size * 100.0, row.block_miss_ratio);
        match lines.last_mut().filter(|(name, _)| *name == row.label()) {
            Some((_, points)) => points.push(point),
            None => lines.push((row.label(), vec![point])),
        }
    }
    for (_, points) in &mut lines {
        points.sort_by(|one, other| one.0.total_cmp(&other.0));
    }
    let log = {
        let sizes = || result.rows.iter().map(|row| row.size);
        sizes().fold(0.0, f64::max) > 4.0 * sizes().fold(f64::MAX, f64::min)
    };
    let chart = Chart {
        title: format!("Blocks missed, {}", result.trace),
        x: Axis { title: "cache, % of the trace's blocks", log },
        y: Axis { title: "miss ratio", log: false },
        lines,
    };
    std::fs::write(path, svg(&[chart])?)
        .map_err(|error| other(format!("{} cannot be written: {error}", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_are_named() {
        for policy in Policy::all() {
            assert_eq!(policy.name().parse(), Ok(policy));
        }
        let error = "mru".parse::<Policy>().unwrap_err();
        assert!(error.contains("belady") && error.contains("lru"), "{error}");
    }
}
