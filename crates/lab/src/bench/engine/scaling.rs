//! How much faster several lanes are than one, beside threads that only copy.

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use crate::bench::engine::distance::{self, Distance};
use crate::bench::engine::shared::SharedBlocks;
use crate::bench::engine::worker::{Crew, Work};
use crate::bench::engine::{Case, goal};
use crate::bench::measure::Rates;
use crate::error::LabResult;
use crate::output::{Goal, Table, rate};
use crate::progress::Progress;
use crate::statistics::{Estimate, median_of};

/// What lanes gain in one case.
#[derive(Serialize)]
pub(super) struct Row {
    case: String,
    lanes: usize,
    one_lane_per_second: f64,
    all_lanes_per_second: f64,
    factor: Estimate,
    factor_by_cpu: Estimate,
    /// What threads gain that copy the same blocks, by CPU time.
    copy_factor_by_cpu: Estimate,
    /// Time that a cache line took between the first two lanes' CPUs.
    line_ns: f64,
    /// The pairs during which these CPUs were near each other, and far from each other.
    near: Option<Apart>,
    far: Option<Apart>,
    goal: Option<Goal>,
}

/// The pairs with one distance between the CPUs.
#[derive(Serialize)]
struct Apart {
    pairs: usize,
    factor_by_cpu: Estimate,
    copy_factor_by_cpu: Estimate,
}

/// What was measured together.
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
) -> LabResult<Row> {
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

fn row(case: Case, lanes: usize, pairs: &[Pair]) -> Row {
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
    Row {
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

pub(super) fn print(rows: &[Row]) {
    let mut table = Table::new(
        "SCALING | LANES | ONE LANE/s | ALL LANES/s | FACTOR (wall) | FACTOR (cpu) | \
        GOAL | COPYING (cpu) | LINE ns | NEAR | COPYING | FAR | COPYING",
    );
    let part = |apart: &Option<Apart>, of: fn(&Apart) -> String| {
        apart.as_ref().map_or_else(|| "-".to_owned(), of)
    };
    for row in rows {
        let factor = |apart: &Apart| format!("{:.2} ({})", apart.factor_by_cpu.median, apart.pairs);
        let copy = |apart: &Apart| format!("{:.2}", apart.copy_factor_by_cpu.median);
        table.row([
            row.case.clone(),
            row.lanes.to_string(),
            rate(row.one_lane_per_second),
            rate(row.all_lanes_per_second),
            row.factor.to_string(),
            row.factor_by_cpu.to_string(),
            goal(row.goal.as_ref(), ">=", 1),
            row.copy_factor_by_cpu.to_string(),
            format!("{:.0}", row.line_ns),
            part(&row.near, factor),
            part(&row.near, copy),
            part(&row.far, factor),
            part(&row.far, copy),
        ]);
    }
    println!("{}", table.render());
}
