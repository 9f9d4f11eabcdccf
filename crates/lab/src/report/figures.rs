//! The figures of a report: latencies of Forebay's configurations, and how runs went over time.

use serde::Serialize;

use crate::error::LabResult;
use crate::plot::{Axis, Chart, svg};
use crate::virtual_time::tally::Sample;

use super::rows::{Detail, Row, Rows};

/// The most charts in a figure. Reports with more experiments show some of them.
const MOST: usize = 12;

/// Latencies are shown up to this share of the requests.
const LAST_SHARE: f64 = 0.99999;

/// A figure in a file of its own.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Figure {
    pub(super) file: String,
    pub(super) svg: String,
    caption: String,
}

/// Panel and place of an experiment of a report that has many.
pub(super) fn place(experiment: &str) -> (String, String) {
    let words: Vec<&str> = experiment.split(' ').collect();
    if let [before, place, after] = words.as_slice() {
        return (format!("{before} {after}"), (*place).to_owned());
    }
    match experiment.split_once('/') {
        Some((panel, place)) => (panel.to_owned(), place.to_owned()),
        None => (String::new(), experiment.to_owned()),
    }
}

/// The number of nines of a share: 1 for 0.9, 2 for 0.99.
fn nines(share: f64) -> f64 {
    -(1.0 - share).log10()
}

/// Latency in milliseconds by the nines of the share of requests that are faster, from buckets with
/// their lower ends in microseconds.
fn percentiles(buckets: &[(f64, u64)]) -> Vec<(f64, f64)> {
    let all: u64 = buckets.iter().map(|(_, count)| count).sum();
    let mut slower = all;
    let mut points = Vec::new();
    for (microseconds, count) in buckets {
        let share = 1.0 - slower as f64 / all.max(1) as f64;
        if share > LAST_SHARE {
            break;
        }
        points.push((nines(share), microseconds / 1000.0));
        slower -= count;
    }
    points
}

/// A line of a run.
type Points = fn(&Detail) -> Vec<(f64, f64)>;

/// A chart: its title, the axes, and the points of a run.
struct About {
    title: &'static str,
    x: (&'static str, bool),
    y: (&'static str, bool),
    points: Points,
}

fn series(detail: &Detail, of: fn(&Sample) -> f64) -> Vec<(f64, f64)> {
    detail.series.iter().map(|sample| (sample.second, of(sample))).collect()
}

const LATENCIES: [About; 2] = [
    About {
        title: "reads",
        x: ("nines of the requests", false),
        y: ("latency, ms", true),
        points: |detail| percentiles(&detail.read_latencies),
    },
    About {
        title: "writes",
        x: ("nines of the requests", false),
        y: ("latency, ms", true),
        points: |detail| percentiles(&detail.write_latencies),
    },
];

const OVER_TIME: [About; 3] = [
    About {
        title: "hit ratio",
        x: ("s", false),
        y: ("hits / requests", false),
        points: |detail| series(detail, |sample| sample.hit_ratio),
    },
    About {
        title: "dirty data",
        x: ("s", false),
        y: ("MiB", false),
        points: |detail| series(detail, |sample| sample.dirty_bytes as f64 / 1_048_576.0),
    },
    About {
        title: "disk busy",
        x: ("s", false),
        y: ("share of the time", false),
        points: |detail| series(detail, |sample| sample.disk_busy),
    },
];

/// The experiments that have charts: the first of each kind.
fn experiments<'a>(rows: &[&'a Row]) -> Vec<&'a str> {
    let mut all: Vec<&str> = Vec::new();
    for row in rows {
        let kind = |experiment: &str| match place(experiment) {
            (panel, _) if panel.contains(' ') => panel,
            _ => experiment.to_owned(),
        };
        if !all.iter().any(|known| kind(known) == kind(&row.experiment)) {
            all.push(&row.experiment);
        }
    }
    all
}

fn charts(rows: &[&Row], abouts: &[About]) -> Vec<Chart> {
    let mut charts = Vec::new();
    for experiment in experiments(rows) {
        for about in abouts {
            let mut lines: Vec<(String, Vec<(f64, f64)>)> = Vec::new();
            for row in rows.iter().filter(|row| row.experiment == experiment) {
                let points = row.detail.as_ref().map(about.points).unwrap_or_default();
                if points.len() > 1 && !lines.iter().any(|(name, _)| *name == row.config) {
                    lines.push((row.config.clone(), points));
                }
            }
            let axis = |(title, log)| Axis { title, log };
            let title = format!("{experiment}: {}", about.title);
            if !lines.is_empty() {
                charts.push(Chart { title, x: axis(about.x), y: axis(about.y), lines });
            }
        }
    }
    charts.truncate(MOST);
    charts
}

/// The figures of one report.
pub(super) fn figures(input: &Rows, report: &str) -> LabResult<Vec<Figure>> {
    let rows = input.rows.iter().filter(|row| row.report == report && row.is_forebay());
    let rows: Vec<&Row> = rows.collect();
    let kinds = [
        ("latency", "latencies of Forebay's configurations", LATENCIES.as_slice()),
        ("time", "hit ratio, dirty data and the disk's busy time over time", &OVER_TIME),
    ];
    let mut figures = Vec::new();
    for (name, caption, abouts) in kinds {
        let charts = charts(&rows, abouts);
        if !charts.is_empty() {
            figures.push(Figure {
                file: format!("{report}-{name}.svg"),
                svg: svg(&charts)?,
                caption: format!("{report}: {caption}."),
            });
        }
    }
    Ok(figures)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_climb_in_nines() {
        let points = percentiles(&[(100.0, 90), (1000.0, 9), (5000.0, 1)]);
        let expected = [(0.0, 0.1), (1.0, 1.0), (2.0, 5.0)];
        for ((nines, ms), (expected_nines, expected_ms)) in points.iter().zip(expected) {
            assert!((nines - expected_nines).abs() < 1e-9 && *ms == expected_ms, "{points:?}");
        }
        assert_eq!(points.len(), 3);
    }
}
