//! Speed of several lanes as a multiple of one lane's, beside threads that only copy.

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use crate::bench::engine::Case;
use crate::bench::engine::distance::{self, Distance};
use crate::bench::engine::shared::SharedBlocks;
use crate::bench::engine::worker::{Crew, Work};
use crate::bench::measure::Rates;
use crate::error::LabResult;
use crate::output::{Goal, Row};
use crate::progress::Progress;
use crate::statistics::{Estimate, median_of};

/// Gain by more lanes in one case.
#[derive(Serialize)]
pub(super) struct Gain {
    case: String,
    lanes: usize,
    one_lane_per_second: f64,
    all_lanes_per_second: f64,
    factor: Estimate,
    factor_by_cpu: Estimate,
    /// Gain by more threads that only copy the same blocks, by CPU time.
    copy_factor_by_cpu: Estimate,
    /// Time that a cache line took between the first two lanes' CPUs.
    line_ns: f64,
    /// The pairs during which these CPUs were near each other, and far from each other.
    near: Option<Apart>,
    far: Option<Apart>,
    goal: Option<Goal>,
}

impl Row for Gain {
    const COLUMNS: &'static str = "SCALING=case | LANES=lanes | ONE LANE/s=one_lane_per_second:rate | \
        ALL LANES/s=all_lanes_per_second:rate | FACTOR (wall)=factor | \
        FACTOR (cpu)=factor_by_cpu | GOAL=goal:>=1 | COPYING (cpu)=copy_factor_by_cpu | \
        LINE ns=line_ns:0 | NEAR=near.factor_by_cpu.median:2 | PAIRS=near.pairs | \
        COPYING=near.copy_factor_by_cpu.median:2 | FAR=far.factor_by_cpu.median:2 | \
        PAIRS=far.pairs | COPYING=far.copy_factor_by_cpu.median:2";
}

/// The pairs with one distance between the CPUs.
#[derive(Serialize)]
struct Apart {
    pairs: usize,
    factor_by_cpu: Estimate,
    copy_factor_by_cpu: Estimate,
}

/// Results that were measured together.
struct Pair {
    one: Rates,
    all: Rates,
    copy_one: Rates,
    copy_all: Rates,
    line_ns: f64,
    distance: Option<Distance>,
}

/// One lane against all of them, in the same cache.
pub(super) fn measure(
    crew: &Crew,
    case: Case,
    pairs: usize,
    time: Duration,
    progress: &Progress,
) -> LabResult<Gain> {
    let lanes = crew.lanes();
    let apart = crew.sizes().disjoint || case.once();
    let copy = if apart { Work::Copy } else { Work::CopyShared };
    if !apart {
        let blocks = Arc::new(SharedBlocks::new(crew.sizes().cache_bytes));
        for lane in 0..lanes {
            let blocks = blocks.clone();
            crew.on(lane, move |worker| worker.share(Some(blocks)))?;
        }
    }
    let mut found = Vec::new();
    for pair in 0..=pairs {
        let order = if pair % 2 == 0 { [1, lanes] } else { [lanes, 1] };
        let before = distance::line_ns(crew)?;
        let mut rates = [Vec::new(), Vec::new()];
        for (work, rates) in [Work::Engine, copy].into_iter().zip(&mut rates) {
            for count in order {
                if work == Work::Engine {
                    crew.before_sample(case)?;
                }
                rates.push(Rates::of(&crew.sample(case, work, time, count)?));
            }
            if order[0] != 1 {
                rates.reverse();
            }
        }
        let after = distance::line_ns(crew)?;
        // The first pair finds cold caches.
        if pair > 0 {
            let [engine, copies] = rates;
            found.push(Pair {
                one: engine[0],
                all: engine[1],
                copy_one: copies[0],
                copy_all: copies[1],
                line_ns: (before + after) / 2.0,
                distance: Distance::of(before, after),
            });
            progress.advance(1);
        }
    }
    for lane in 0..lanes {
        crew.on(lane, |worker| worker.share(None))?;
    }
    Ok(row(case, lanes, &found))
}

fn row(case: Case, lanes: usize, pairs: &[Pair]) -> Gain {
    let all: Vec<&Pair> = pairs.iter().collect();
    let at = |distance| {
        let some: Vec<&Pair> =
            all.iter().filter(|pair| pair.distance == Some(distance)).copied().collect();
        (!some.is_empty()).then(|| Apart {
            pairs: some.len(),
            factor_by_cpu: by_cpu(&some),
            copy_factor_by_cpu: copy_by_cpu(&some),
        })
    };
    let (near, far) = (at(Distance::Near), at(Distance::Far));
    let factor_by_cpu = by_cpu(&all);
    Gain {
        case: case.name(),
        lanes,
        one_lane_per_second: median_of(pairs, |pair| pair.one.per_second),
        all_lanes_per_second: median_of(pairs, |pair| pair.all.per_second),
        factor: Estimate::of_ratios(
            pairs.iter().map(|pair| (pair.all.per_second, pair.one.per_second)),
        ),
        factor_by_cpu,
        copy_factor_by_cpu: copy_by_cpu(&all),
        line_ns: median_of(pairs, |pair| pair.line_ns),
        near,
        far,
        goal: (lanes == 2).then(|| Goal::at_least(1.9, factor_by_cpu.median)),
    }
}

fn by_cpu(pairs: &[&Pair]) -> Estimate {
    Estimate::of_ratios(pairs.iter().map(|pair| (pair.all.per_cpu_second, pair.one.per_cpu_second)))
}

fn copy_by_cpu(pairs: &[&Pair]) -> Estimate {
    Estimate::of_ratios(
        pairs.iter().map(|pair| (pair.copy_all.per_cpu_second, pair.copy_one.per_cpu_second)),
    )
}
