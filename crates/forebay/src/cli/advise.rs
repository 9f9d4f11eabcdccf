//! `forebay advise`: recommends sizes of the cache and of a RAM tier in front of it, from a trace
//! (without a daemon) or from a daemon's curve of a running volume.
//!
//! - `words`: the tables and the recommendation; `ram`: those about RAM
//! - `whatif`: predictions for other settings
//! - `plot`: the curve as SVG

mod plot;
mod ram;
mod whatif;
mod words;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::{Args, ValueHint};
use forebay_admin::curve::{CurveReport, CurveRow, RamRow};
use forebay_admin::{ApiError, ErrorKind, Progress, Unit, VolumeName, api};
use forebay_core::{Op, VolumeId};
use forebay_policy::curve::{Estimator, Which};
use forebay_trace::{Alignment, BLOCK, Format, Requests, Suggestion, TraceError};
use serde::Serialize;

use super::progress::Display;
use crate::client::{DaemonClient, parse};
use crate::exit::VerbResult;
use crate::output::{json, note, print_text};
use crate::values::{WordParser, cache_size, rate, size};
use forebay_daemon::curve::{hits, points, ram_rows, rows};

/// Arguments of `advise`.
#[derive(Debug, Args)]
pub(crate) struct AdviseArgs {
    /// The trace, a file that may be compressed with zstd
    #[arg(value_hint = ValueHint::FilePath, required_unless_present = "live")]
    pub(crate) trace: Option<PathBuf>,

    /// A volume, instead of a trace: use its requests since it was started
    #[arg(long, value_name = "NAME", conflicts_with_all = ["trace", "format", "rate", "align"])]
    pub(crate) live: Option<VolumeName>,

    /// Format of the trace, if the content does not show it: csv, lis, msr, blkparse, iolog, vscsi
    #[arg(long, value_name = "FORMAT", value_parser = WordParser(Format::ALL), hide_possible_values = true)]
    pub(crate) format: Option<Format>,

    /// Share of the blocks to sample, 0.000001 to 1 [default: as many as fit into a few MB, all of
    /// them in a short trace]
    #[arg(long, value_name = "SHARE", value_parser = rate, allow_hyphen_values = true)]
    pub(crate) rate: Option<f64>,

    /// Cache sizes to compare, like 64G,128G [default: powers of two, up to the bytes touched]
    #[arg(long, value_name = "BYTES", value_delimiter = ',', value_parser = cache_size, allow_hyphen_values = true)]
    pub(crate) sizes: Vec<u64>,

    /// Sizes of a RAM tier to compare, like 1G,4G, in front of the present cache; for a trace in
    /// front of the recommended one. An estimate for two LRU caches, the larger of which holds
    /// everything that the smaller does [default: 64M, 256M, 1G and so on, up to the bytes touched]
    #[arg(long, value_name = "BYTES", value_delimiter = ',', value_parser = cache_size, allow_hyphen_values = true)]
    pub(crate) ram: Vec<u64>,

    /// Bytes to add to every offset, so that requests start on block boundaries
    #[arg(long, value_name = "BYTES", value_parser = size, default_value = "0", allow_hyphen_values = true)]
    pub(crate) align: u64,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,

    /// Draw the curve to this file
    #[arg(long, value_name = "FILE.svg", value_hint = ValueHint::FilePath)]
    pub(crate) plot: Option<PathBuf>,
}

/// Most blocks in the sample if no rate is given: a short trace is sampled completely, a long one
/// with about this many blocks.
const SAMPLED: usize = 32 << 10;

/// A progress bar appears after this time.
const PATIENCE: Duration = Duration::from_secs(2);

/// The advice for a trace.
#[derive(Debug, Serialize)]
struct Advice {
    trace: String,
    format: &'static str,
    requests: u64,
    /// Blocks read and written, counted on every access.
    accesses: u64,
    reads: u64,
    /// Estimated bytes that the trace touches.
    footprint: u64,
    align: u64,
    /// Sampling ratio: one block in this many is sampled.
    one_of: u64,
    sampled_blocks: usize,
    /// RAM used by the estimate, in bytes.
    state_bytes: usize,
    rows: Vec<CurveRow>,
    /// The recommended size in bytes, beyond which little is gained; `None` if no size helps much.
    take: Option<u64>,
    /// The size of the cache behind `ram_rows`: the recommended one, or else the largest of `rows`.
    ram_before: u64,
    /// Shares that RAM tiers of some sizes would serve.
    ram_rows: Vec<RamRow>,
    /// The recommended size of RAM in bytes; `None` if no size helps much.
    take_ram: Option<u64>,
}

/// The advice for a running volume: its curve, and the recommended sizes.
#[derive(Debug, Serialize)]
struct LiveAdvice<'a> {
    #[serde(flatten)]
    report: &'a CurveReport,
    take: Option<u64>,
    take_ram: Option<u64>,
}

/// Prints the advice.
///
/// # Errors
/// The trace cannot be read, the daemon refuses, or the plot cannot be written.
pub(crate) fn run(
    client: impl FnOnce() -> Result<DaemonClient, ApiError>,
    args: &AdviseArgs,
) -> VerbResult {
    match (&args.live, &args.trace) {
        (Some(name), _) => from_daemon(&client()?, name, args),
        (None, Some(trace)) => from_trace(trace, args),
        (None, None) => Err(ApiError::invalid("TRACE", "name a trace, or a volume with --live")),
    }
}

fn from_daemon(client: &DaemonClient, name: &VolumeName, args: &AdviseArgs) -> VerbResult {
    let asked = [("sizes", &args.sizes), ("ram", &args.ram)];
    let parts = asked.into_iter().filter(|(_, sizes)| !sizes.is_empty()).map(|(name, sizes)| {
        let sizes: Vec<String> = sizes.iter().map(u64::to_string).collect();
        format!("{name}={}", sizes.join(","))
    });
    let query = parts.collect::<Vec<_>>().join("&");
    let query = if query.is_empty() { query } else { format!("?{query}") };
    let path = api::CURVE.path(name) + &query;
    let report: CurveReport = parse(&client.get_raw(&path)?)?;
    if let Some(path) = &args.plot {
        draw(name.as_str(), report.reads > 0, &report.curve, path)?;
    }
    let take = words::take(&report.rows);
    if args.json {
        let take_ram = ram::take(&report.ram_rows);
        return json::print(&LiveAdvice { report: &report, take, take_ram });
    }
    print_text(&(words::of_volume(&report) + &ram::of_volume(&report) + &whatif::text(&report)))
}

fn from_trace(trace: &Path, args: &AdviseArgs) -> VerbResult {
    let requests = forebay_trace::open(trace, args.format, args.align).map_err(|e| failed(&e))?;
    let format = requests.format().name();
    let mut estimator = match args.rate {
        Some(rate) => Estimator::new((1.0 / rate).round() as u32, usize::MAX, 0),
        None => Estimator::new(1, SAMPLED, 0),
    };
    let (number, suggestion) = read(requests, &mut estimator)?;
    let footprint = estimator.footprint().saturating_mul(BLOCK);
    let reads = estimator.accesses(Which::Reads);
    let row = |bytes: u64| CurveRow {
        bytes,
        reads: (reads > 0).then(|| hits(estimator.hits(Which::Reads, bytes / BLOCK))),
        all: hits(estimator.hits(Which::All, bytes / BLOCK)),
    };
    let rows = rows(&args.sizes, footprint, BLOCK, &row);
    let take = words::take(&rows);
    let cache = take.or(rows.last().map(|row| row.bytes)).unwrap_or(0);
    let ram_rows = ram_rows(&args.ram, footprint, BLOCK, cache, &row);
    let advice = Advice {
        trace: trace.file_name().unwrap_or_default().to_string_lossy().into_owned(),
        format,
        requests: number,
        accesses: estimator.accesses(Which::All),
        reads,
        footprint,
        align: args.align,
        one_of: estimator.sample().stands_for(),
        sampled_blocks: estimator.sampled_blocks(),
        state_bytes: estimator.bytes(),
        take,
        rows,
        ram_before: cache,
        take_ram: ram::take(&ram_rows),
        ram_rows,
    };
    if let Some(path) = &args.plot {
        let curve = points(&advice.rows, footprint, BLOCK, &row);
        draw(&advice.trace, advice.reads > 0, &curve, path)?;
    }
    if let Some(better) = suggestion {
        note(&format!(
            "{} % of the requests start {} bytes into a block; --align {} would align them, and so \
             would 'forebay create --alignment'.",
            better.percent,
            BLOCK - better.shift,
            (args.align + better.shift) % BLOCK,
        ));
    }
    if args.json {
        json::print(&advice)
    } else {
        print_text(&(words::of_trace(&advice) + &ram::of_trace(&advice)))
    }
}

fn failed(error: &TraceError) -> ApiError {
    match error {
        TraceError::Usage(what) => ApiError::new(ErrorKind::Invalid, what.as_str()),
        TraceError::Unreadable(what) => ApiError::failed(what.as_str()),
    }
}

/// Feeds all requests to the estimator. Returns their number, and a shift that would align them.
fn read(
    mut requests: Requests,
    estimator: &mut Estimator,
) -> Result<(u64, Option<Suggestion>), ApiError> {
    let begin = Instant::now();
    let label = "reading the trace";
    let mut display: Option<Display> = None;
    let mut alignment = Alignment::default();
    let mut number = 0u64;
    while let Some(request) = requests.next() {
        let request = request.map_err(|error| failed(&error))?;
        let blocks = request.blocks().map_err(|error| failed(&error))?;
        if request.op != Op::Discard {
            alignment.add(&request);
        }
        estimator.request(request.op, VolumeId(request.device as u16), blocks);
        number += 1;
        if number.is_multiple_of(1 << 14) && begin.elapsed() > PATIENCE {
            let (done, total) = (requests.bytes_read(), requests.file_bytes());
            let progress = Progress { done, total, unit: Unit::Bytes };
            let shown = display.get_or_insert_with(|| Display::new(label));
            shown.show(label, progress, begin.elapsed());
        }
    }
    if let Some(display) = display {
        display.end();
    }
    Ok((number, alignment.suggestion()))
}

fn draw(title: &str, reads: bool, curve: &[CurveRow], path: &Path) -> VerbResult {
    let svg = plot::svg(title, reads, curve);
    std::fs::write(path, svg).map_err(|error| {
        ApiError::failed(format!("--plot: {} cannot be written: {error}", path.display()))
    })
}
