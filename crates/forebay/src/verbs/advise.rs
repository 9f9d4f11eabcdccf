//! `forebay advise`: which size of the cache device buys what, from a trace. Talks to no daemon.
//!
//! - `words`: the table, and what to make of it
//! - `plot`: the curve as SVG

mod plot;
mod words;

use std::path::Path;
use std::time::{Duration, Instant};

use forebay_admin::{ApiError, ErrorKind, Progress, Unit};
use forebay_core::{Op, VolumeId};
use forebay_policy::curve::{Estimator, Share, Which};
use forebay_trace::{Alignment, BLOCK, Requests, Suggestion, TraceError};
use serde::Serialize;

use crate::cli::AdviseArgs;
use crate::exit::Outcome;
use crate::output::progress::Display;
use crate::output::{json, print_text};

/// Blocks in the sample if no rate is asked for: then it is all of them in a short trace, and about
/// this many in a long one.
const SAMPLED: usize = 32 << 10;

/// A bar appears after this.
const PATIENCE: Duration = Duration::from_secs(2);

/// Rows of the table if no sizes are asked for.
const ROWS: u32 = 8;

/// A share of accesses with its error, both 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct Hits {
    share: f64,
    error: f64,
}

impl From<Share> for Hits {
    fn from(Share { share, error }: Share) -> Self {
        Hits { share, error }
    }
}

/// What one size would do.
#[derive(Clone, Copy, Debug, Serialize)]
struct Row {
    bytes: u64,
    /// Of the blocks read; none if nothing is read.
    reads: Option<Hits>,
    /// Of the blocks read and written.
    all: Hits,
}

impl Row {
    /// What is judged by: reads, if there are any.
    fn hits(&self) -> Hits {
        self.reads.unwrap_or(self.all)
    }
}

/// The answer.
#[derive(Debug, Serialize)]
struct Advice {
    trace: String,
    format: &'static str,
    requests: u64,
    /// Blocks read and written, each as often as it was.
    accesses: u64,
    reads: u64,
    /// About what the trace touches, in bytes.
    footprint: u64,
    align: u64,
    /// One block of so many is sampled.
    one_of: u64,
    sampled_blocks: usize,
    /// RAM that the estimate took, in bytes.
    state_bytes: usize,
    rows: Vec<Row>,
    /// The size beyond which little is gained, in bytes; none if no size does much.
    take: Option<u64>,
}

/// Does it.
///
/// # Errors
/// The trace cannot be read, or the plot not written.
pub(crate) fn run(args: &AdviseArgs) -> Outcome {
    let requests =
        forebay_trace::open(&args.trace, args.format, args.align).map_err(|e| failed(&e))?;
    let format = requests.format().name();
    let mut estimator = match args.rate {
        Some(rate) => Estimator::new((1.0 / rate).round() as u32, usize::MAX, 0),
        None => Estimator::new(1, SAMPLED, 0),
    };
    let (number, suggestion) = read(requests, &mut estimator)?;
    let footprint = estimator.footprint().saturating_mul(BLOCK);
    let reads = estimator.accesses(Which::Reads);
    let row = |bytes: u64| Row {
        bytes,
        reads: (reads > 0).then(|| estimator.hits(Which::Reads, bytes / BLOCK).into()),
        all: estimator.hits(Which::All, bytes / BLOCK).into(),
    };
    let mut sizes = if args.sizes.is_empty() { usual_sizes(footprint) } else { args.sizes.clone() };
    sizes.sort_unstable();
    sizes.dedup();
    let rows: Vec<Row> = sizes.into_iter().map(row).collect();
    let advice = Advice {
        trace: args.trace.file_name().unwrap_or_default().to_string_lossy().into_owned(),
        format,
        requests: number,
        accesses: estimator.accesses(Which::All),
        reads,
        footprint,
        align: args.align,
        one_of: estimator.sample().stands_for(),
        sampled_blocks: estimator.sampled_blocks(),
        state_bytes: estimator.bytes(),
        take: words::take(&rows),
        rows,
    };
    if let Some(path) = &args.plot {
        draw(&advice, footprint, path, row)?;
    }
    if let Some(better) = suggestion {
        eprintln!(
            "{} % of the requests start {} bytes into a block; --align {} would align them, and so \
             would 'forebay create --alignment'.",
            better.percent,
            BLOCK - better.shift,
            (args.align + better.shift) % BLOCK,
        );
    }
    if args.json { json::print(&advice) } else { print_text(&words::text(&advice)) }
}

fn failed(error: &TraceError) -> ApiError {
    match error {
        TraceError::Usage(what) => ApiError::new(ErrorKind::Invalid, what.as_str()),
        TraceError::Unreadable(what) => ApiError::failed(what.as_str()),
    }
}

/// Hands all requests to the estimator; says how many there were, and what would align them.
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

/// Powers of two up to the first that has room for all that is touched.
fn usual_sizes(footprint: u64) -> Vec<u64> {
    let last = footprint.max(BLOCK).checked_next_power_of_two().unwrap_or(1 << 63);
    (0..ROWS).rev().map(|row| last >> row).filter(|bytes| *bytes >= BLOCK).collect()
}

fn draw(advice: &Advice, footprint: u64, path: &Path, row: impl Fn(u64) -> Row) -> Outcome {
    let rows = &advice.rows;
    let ends = [rows.first(), rows.last()].map(|row| row.map_or(BLOCK, |row| row.bytes));
    let [first, last] = [ends[0].max(BLOCK), ends[1].max(footprint).max(2 * BLOCK)];
    // As many points as there are pixels in a few.
    let steps = 120;
    let ratio = (last as f64 / first as f64).powf(1.0 / f64::from(steps));
    let curve: Vec<Row> =
        (0..=steps).map(|step| row((first as f64 * ratio.powi(step)) as u64)).collect();
    let svg = plot::svg(&advice.trace, advice.reads > 0, &curve);
    std::fs::write(path, svg).map_err(|error| {
        ApiError::failed(format!("--plot: {} cannot be written: {error}", path.display()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_end_with_one_for_everything() {
        let sizes = usual_sizes(5 << 30);
        assert_eq!((sizes.len(), sizes[0], sizes[7]), (8, 64 << 20, 8 << 30));
        assert_eq!(usual_sizes(0), [BLOCK]);
        assert_eq!(usual_sizes(3 * BLOCK), [BLOCK, 2 * BLOCK, 4 * BLOCK]);
        assert!(usual_sizes(u64::MAX).iter().all(|bytes| *bytes >= BLOCK));
    }
}
