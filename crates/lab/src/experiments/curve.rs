//! `forebay-lab curve`: the exact curve of an LRU cache on a trace beside the estimate from a
//! sample.

use std::time::{Duration, Instant};

use forebay_core::{Nanos, Op, OriginBlock, VolumeId};
use forebay_policy::curve::{Access, Estimator, Live, LiveCurve, Which};
use forebay_policy::exact::Key;
use serde::Serialize;
use serde_json::json;

use crate::error::{LabResult, usage};
use crate::experiments::source::Source;
use crate::output::{Goal, Row, show};
use crate::progress::Progress;
use crate::trace::Request;

/// Promised error of the estimate.
const GOAL: f64 = 0.02;

/// Arguments of `forebay-lab curve`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    source: Source,
    /// Share of the blocks that are sampled
    #[arg(long, default_value_t = 0.01, value_name = "SHARE")]
    rate: f64,
    /// Samples that are drawn, each with a seed of its own
    #[arg(long, default_value_t = 20, value_name = "NUMBER")]
    samples: u32,
    /// Sizes of the cache, as shares of the blocks in the trace
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "0.01,0.05,0.1,0.2,0.4,0.8",
        value_name = "SHARES"
    )]
    sizes: Vec<f64>,
    /// Estimate as a running volume does, which chooses the rate itself, a request each millisecond
    #[arg(long, conflicts_with = "rate")]
    live: bool,
}

/// One size.
#[derive(Debug, Serialize)]
struct Compared {
    which: &'static str,
    /// Share of the trace's blocks.
    size: f64,
    capacity_blocks: u64,
    /// Block miss ratio of an LRU cache.
    exact: f64,
    /// Block miss ratio that the first sample estimates.
    estimate: f64,
    /// First sample: estimate less exact.
    difference: f64,
    /// First sample: its own estimate of its error.
    error: f64,
    /// The largest difference of all samples, without its sign.
    worst: f64,
    /// Root of the mean square of the differences.
    rms: f64,
    /// Share of the samples of which the difference is within the error that they say.
    within: f64,
}

impl Row for Compared {
    const COLUMNS: &'static str = "BLOCKS=which | CACHE=size:1% | EXACT MISSES=exact:4 | ESTIMATE=estimate:4 | \
        DIFFERENCE=difference:+4 | SAYS ±=error:4 | WORST SEED=worst:4 | RMS=rms:4 | \
        WITHIN ±=within:0%";
}

/// One estimate.
enum Estimate {
    OfTrace(Estimator),
    OfVolume(LiveCurve),
}

impl Estimate {
    fn of_trace(requests: &[Request], group: u32, seed: u64) -> LabResult<(Self, Duration)> {
        let mut estimator = Estimator::new(group, usize::MAX, seed);
        let begin = Instant::now();
        for request in requests {
            estimator.request(request.op, VolumeId(request.device as u16), request.blocks()?);
        }
        Ok((Estimate::OfTrace(estimator), begin.elapsed()))
    }

    /// As the engine does it for each request.
    fn of_volume(requests: &[Request], seed: u64) -> LabResult<(Self, Duration)> {
        let (mut live, mut reads, mut writes) = (Live::new(seed), 0, 0);
        let first = Live::first_sample(seed);
        let begin = Instant::now();
        for (at, request) in requests.iter().enumerate() {
            let blocks = request.blocks()?;
            let now = Nanos(at as u64 * 1_000_000);
            let key = |block| Key::new(VolumeId(request.device as u16), OriginBlock(block));
            let (number, keys) = (blocks.end - blocks.start, key(blocks.start)..key(blocks.end));
            let access = match request.op {
                Op::Read => Access::Read,
                Op::Write => Access::Write,
                Op::Discard => {
                    live.discard(keys);
                    continue;
                }
                _ => continue,
            };
            match access {
                Access::Read => reads += number,
                Access::Write => writes += number,
            }
            if first.touches(keys.clone())
                && live.sample().touches(keys.clone())
                && live.access(access, keys)
            {
                live.settle(now);
            }
        }
        let time = begin.elapsed();
        Ok((Estimate::OfVolume(live.into_curve(reads, writes)), time))
    }
}

/// Evaluates a call of either kind of estimate.
macro_rules! either {
    ($estimate:expr, $one:ident => $value:expr) => {
        match $estimate {
            Estimate::OfTrace($one) => $value,
            Estimate::OfVolume($one) => $value,
        }
    };
}

fn row(
    which: Which,
    size: f64,
    exact: &Estimate,
    samples: &[(Estimate, Duration)],
) -> Option<Compared> {
    let blocks = (either!(exact, one => one.footprint()) as f64 * size) as u64;
    let truth = 1.0 - either!(exact, one => one.hits(which, blocks)).share;
    let hits = |sample: &Estimate| either!(sample, one => one.hits(which, blocks));
    let shares: Vec<_> = samples.iter().map(|(sample, _)| hits(sample)).collect();
    let differences: Vec<f64> = shares.iter().map(|share| 1.0 - share.share - truth).collect();
    let first = shares.first()?;
    let number = shares.len() as f64;
    let pairs = differences.iter().zip(&shares);
    let within = pairs.filter(|(difference, share)| difference.abs() <= share.error).count();
    Some(Compared {
        which: if which == Which::All { "all" } else { "reads" },
        size,
        capacity_blocks: blocks,
        exact: truth,
        estimate: 1.0 - first.share,
        difference: *differences.first()?,
        error: first.error,
        worst: differences.iter().fold(0.0, |worst, one| worst.max(one.abs())),
        rms: (differences.iter().map(|one| one * one).sum::<f64>() / number).sqrt(),
        within: within as f64 / number,
    })
}

pub(crate) fn run(args: &Args, json: bool) -> LabResult<()> {
    if !(args.rate >= 1e-6 && args.rate <= 1.0) {
        let rate = args.rate;
        return Err(usage(format!("--rate is a share of the blocks, 0.000001 to 1; not {rate}")));
    }
    if args.samples == 0 || args.sizes.iter().any(|size| !(*size > 0.0 && *size <= 1.0)) {
        return Err(usage("--samples is at least 1, and --sizes are shares, above 0, up to 1"));
    }
    let one_of = (1.0 / args.rate).round() as u32;
    let requests: Vec<Request> = args.source.open()?.collect::<Result<_, _>>()?;
    let progress = Progress::new(u64::from(args.samples) + 1, "curves");
    let (exact, _) = Estimate::of_trace(&requests, 1, 0)?;
    let mut samples = Vec::new();
    for seed in 0..args.samples {
        progress.advance(1);
        samples.push(match args.live {
            true => Estimate::of_volume(&requests, seed.into())?,
            false => Estimate::of_trace(&requests, one_of, seed.into())?,
        });
    }
    drop(progress);
    let rows: Vec<Compared> = [Which::All, Which::Reads]
        .into_iter()
        .filter(|which| either!(&exact, one => one.accesses(*which)) > 0)
        .flat_map(|which| args.sizes.iter().map(move |size| (which, *size)))
        .filter_map(|(which, size)| row(which, size, &exact, &samples))
        .collect();
    let difference = rows
        .iter()
        .filter(|row| row.which == "all")
        .fold(0.0f64, |most, row| most.max(row.difference.abs()));
    let accesses = either!(&exact, one => one.accesses(Which::All));
    let footprint = either!(&exact, one => one.footprint());
    let first = samples.first();
    let (one_of, sampled_blocks, state_bytes) =
        first.map_or((1, 0, 0), |(sample, _)| {
            either!(sample, one => (one.sample().stands_for(), one.sampled_blocks(), one.bytes()))
        });
    let trace = args.source.name();
    let ns_per_access =
        first.map_or(0.0, |(_, time)| time.as_nanos() as f64 / accesses.max(1) as f64);
    let goal = Goal::at_most(GOAL, difference);
    let common = json!({
        "trace": trace,
        "accesses": accesses,
        "blocks": footprint,
        "align": args.source.reading.align,
        "one_of": one_of,
        "samples": args.samples,
        "sampled_blocks": sampled_blocks,
        "state_bytes": state_bytes,
        "ns_per_access": ns_per_access,
        "difference": difference,
        "goal": goal,
    });
    show(json, common, &rows, |table| {
        format!(
            "{trace}: {accesses} accesses to {} blocks of 4K; one of {one_of} is sampled, \
             {sampled_blocks} of them, {state_bytes} bytes, {ns_per_access:.1} ns per access\n{table}\
             largest difference {difference:.4}, {}",
            footprint,
            goal.show("<=", 2),
        )
    })
}

#[cfg(test)]
mod tests {
    use forebay_core::Op;

    use super::*;

    #[test]
    fn differences_are_those_of_misses() {
        let request = |block: u64| Request {
            time: None,
            op: Op::Read,
            offset: block * 4096,
            len: 4096,
            device: 0,
        };
        // Two rounds over a range: only a cache with room for all blocks hits.
        let requests: Vec<Request> = (0..2000).map(|at| request(at % 1000)).collect();
        let (exact_estimate, _) = Estimate::of_trace(&requests, 1, 0).expect("reads");
        let samples = [Estimate::of_trace(&requests, 10, 0).expect("reads")];
        let ratios = |size| {
            let row = row(Which::Reads, size, &exact_estimate, &samples).expect("a sample");
            (row.exact, row.estimate, row.difference, row.within)
        };
        assert_eq!(ratios(0.5), (1.0, 1.0, 0.0, 1.0));
        let (exact, estimate, difference, _) = ratios(1.0);
        assert_eq!(exact, 0.5);
        assert!((estimate - 0.5).abs() < 0.01 && (estimate - exact - difference).abs() < 1e-9);
        // A volume samples one block in 64, which would be too few of a thousand.
        let requests: Vec<Request> = (0..100_000).map(|at| request(at % 50_000)).collect();
        let (exact_estimate, _) = Estimate::of_trace(&requests, 1, 0).expect("reads");
        let live = [Estimate::of_volume(&requests, 0).expect("reads")];
        assert_eq!(either!(&live[0].0, one => one.accesses(Which::All)), 100_000);
        let row = row(Which::Reads, 1.0, &exact_estimate, &live).expect("a sample");
        assert!((row.estimate - 0.5).abs() < 0.05, "{}", row.estimate);
    }
}
