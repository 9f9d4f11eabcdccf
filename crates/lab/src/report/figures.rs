//! Which figures a report gets, from its rows and what is beside them.
//!
//! A report with few experiments gets a small chart for each. One with many (13 tests at four
//! record sizes) has names of two parts, `1M/write` or `whole/random 4K x32`: one part becomes a
//! panel, the other a place in it.

use serde::Serialize;

use crate::virtual_time::tally::Sample;

use super::axis::{Axis, LAST_SHARE, nine};
use super::bars::{self, Compared, Grouped, grouped, once, place};
use super::colours::line;
use super::rows::{Detail, Row, Rows};
use super::svg::{HIGHEST, Key, Panel, Shape, figure};
use super::verdict::{Group, groups};
use super::words::metric;

/// More experiments than this are put into panels together.
const FEW: usize = 20;

/// A figure in a file of its own.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Figure {
    pub(super) file: String,
    pub(super) svg: String,
    caption: String,
}

/// A line; which one it is decides on colour and mark.
pub(super) struct Line {
    which: usize,
    points: Vec<(f64, f64)>,
}

/// Panels of lines.
pub(super) fn line_panel(title: String, x: Axis, y: Axis, height: i32, lines: &[Line]) -> Panel {
    // The first one is the most important, so it is drawn last, over the others.
    let lines = lines.iter().rev();
    let shape = |l: &Line| Shape::Line(l.points.clone(), line(l.which), 2, Some(l.which));
    Panel { title, x, y, left: 62, height, shapes: lines.map(shape).collect() }
}

impl Line {
    pub(super) fn new(which: usize, points: Vec<(f64, f64)>) -> Self {
        Line { which, points }
    }
}

/// The names of the lines that are drawn, with their keys.
pub(super) fn line_legend(names: &[String], panels: &[Panel]) -> Vec<(String, Key)> {
    let drawn = |which| {
        let mut shapes = panels.iter().flat_map(|panel| &panel.shapes);
        shapes.any(|shape| matches!(shape, Shape::Line(.., Some(one)) if *one == which))
    };
    let names = names.iter().enumerate().filter(|(which, _)| drawn(*which));
    names.map(|(which, name)| (name.clone(), Key::Line(line(which), which))).collect()
}

/// A run of ours.
struct Run<'a> {
    experiment: &'a str,
    config: &'a str,
    /// Each sample is of one repetition.
    repetitions: bool,
    detail: &'a Detail,
}

/// Runs of ours, each once, without those that are another's under a second name.
fn runs<'a>(input: &'a Rows, report: &str) -> Vec<Run<'a>> {
    let rows = input.rows.iter().filter(|row| row.report == report && row.is_forebay());
    let mut rows: Vec<&Row> = rows.collect();
    rows.sort_by_key(|row| !row.config.starts_with("forebay/"));
    let mut runs: Vec<Run<'_>> = Vec::new();
    for row in rows {
        let Some(detail) = &row.detail else { continue };
        let (experiment, config) = (&*row.experiment, &*row.config);
        let same = |known: &Run<'_>| known.config == config || known.detail == detail;
        if !runs.iter().any(|known| known.experiment == experiment && same(known)) {
            runs.push(Run { experiment, config, repetitions: row.repetitions > 1, detail });
        }
    }
    runs
}

/// What is shown over time.
struct Watched {
    name: &'static str,
    unit: &'static str,
    of: fn(&Sample) -> f64,
    /// It ends at 1.
    share: bool,
}

const WATCHED: [Watched; 3] = [
    Watched { name: "hit ratio", unit: "hits / requests", of: |s| s.hit_ratio, share: true },
    Watched {
        name: "dirty data",
        unit: "dirty, MiB",
        of: |s| s.dirty_bytes as f64 * (1.0 / 1_048_576.0),
        share: false,
    },
    Watched { name: "disk busy", unit: "share of time", of: |s| s.disk_busy, share: true },
];

impl Watched {
    fn panel(&self, place: &str, x: Axis, height: i32, lines: &[Line]) -> Panel {
        let values = lines.iter().flat_map(|line| &line.points).map(|(_, value)| *value);
        let most = if self.share { 1.0 } else { values.fold(0.0, f64::max) * 1.05 };
        let title = format!("{place}: {}", self.name);
        line_panel(title, x, Axis::linear(self.unit, most), height, lines)
    }
}

/// The figures of one report, numbered where one would not fit on a page.
struct Figures<'a> {
    report: &'a str,
    compared: &'a Compared<'a>,
    runs: Vec<Run<'a>>,
    figures: Vec<Figure>,
}

impl Figures<'_> {
    /// A figure for each part.
    fn add<T>(
        &mut self,
        name: &str,
        caption: &str,
        parts: Vec<&[T]>,
        draw: impl Fn(&str, &[T]) -> String,
    ) {
        let (count, report) = (parts.len(), self.report);
        for (part, panels) in (1..).zip(parts) {
            let (file, of) = match count {
                1 => (String::new(), String::new()),
                _ => (format!("-{part}"), format!(" ({part} of {count})")),
            };
            let caption = format!("{report}{of}: {caption}");
            let svg = draw(&caption, panels);
            self.figures.push(Figure { file: format!("{report}-{name}{file}.svg"), svg, caption });
        }
    }

    /// Panels of lines: so many in a row.
    fn lines(&mut self, name: &str, caption: &str, panels: &[Panel], columns: usize) {
        let height = panels.first().map_or(1, |panel| panel.height);
        let rows = ((HIGHEST - 40) / height.max(1)).max(1) as usize;
        let configs = self.compared.configs.clone();
        self.add(name, caption, panels.chunks(rows * columns).collect(), |alt, panels| {
            figure(alt, &line_legend(&configs, panels), panels, columns)
        });
    }

    fn grouped(&mut self, name: &str, caption: &str, groups: &[Grouped], unit: &str) {
        let wide = self.compared.panels(|_| true).iter().map(|(_, members)| members.len()).max();
        let systems = self.compared.caches.len() + self.compared.configs.len() + 4;
        let columns = if wide.unwrap_or(0) * systems > 100 { 1 } else { 2 };
        self.add(name, caption, groups.chunks(4 * columns).collect(), |alt, groups| {
            let (legend, panels) = grouped(groups, unit, columns);
            figure(alt, &legend, &panels, columns)
        });
    }

    /// A line for each run that has its points.
    fn of_runs(
        &self,
        runs: &[&Run<'_>],
        points: impl Fn(&Run<'_>) -> Option<Vec<(f64, f64)>>,
    ) -> Vec<Line> {
        let line =
            |run: &&Run<'_>| Some(Line::new(self.compared.config(run.config)?, points(run)?));
        runs.iter().filter_map(line).collect()
    }

    fn latencies(&self) -> Vec<Panel> {
        type Of = fn(&Detail) -> &Vec<(f64, u64)>;
        let directions: [(&str, Of); 2] =
            [("reads", |d| &d.read_latencies), ("writes", |d| &d.write_latencies)];
        let mut all = Vec::new();
        for experiment in once(self.compared.groups.iter().map(|g| g.experiment.to_owned())) {
            for (direction, of) in directions {
                let here = self.runs.iter().filter(|run| run.experiment == experiment);
                let here: Vec<_> = here.filter(|run| !of(run.detail).is_empty()).collect();
                let lines = self.of_runs(&here, |run| Some(percentiles(of(run.detail))));
                let values = lines.iter().flat_map(|line| &line.points).map(|(_, value)| *value);
                let (least, most) =
                    values.fold((f64::MAX, 0.0f64), |(l, m), v| (l.min(v), m.max(v)));
                if !lines.is_empty() {
                    let y = Axis::logarithmic("latency, ms (log.)", least / 1.5, most * 2.0);
                    let title = format!("{experiment}, {direction}");
                    all.push(line_panel(title, Axis::nines(), y, 250, &lines));
                }
            }
        }
        all
    }

    fn over_time(&self, experiments: &[String]) -> Vec<Panel> {
        let mut all = Vec::new();
        for experiment in experiments {
            let here = self.runs.iter().filter(|run| run.experiment == experiment);
            let here: Vec<_> = here.filter(|run| run.detail.series.len() > 1).collect();
            let ends = here.iter().filter_map(|run| run.detail.series.last());
            let end = ends.fold(0.0f64, |end, sample| end.max(sample.second));
            for what in WATCHED.iter().filter(|_| !here.is_empty()) {
                let point = |sample: &Sample| (sample.second, (what.of)(sample));
                let lines = self.of_runs(&here, |run| {
                    Some(thinned(&run.detail.series.iter().map(point).collect::<Vec<_>>()))
                });
                all.push(what.panel(experiment, Axis::linear("s", end), 200, &lines));
            }
        }
        all
    }

    /// A point for each repetition of each test; the rows do not say in which order the tests ran, so
    /// lines end with the test.
    fn each_test(&self, panel: &str) -> Vec<Panel> {
        let here = self.runs.iter().filter(|run| run.repetitions);
        let here: Vec<_> = here.filter(|run| place(run.experiment).0 == panel).collect();
        let tests = once(here.iter().map(|run| place(run.experiment).1));
        let panel_of = |what: &Watched| {
            let lines = self.of_runs(&here, |run| {
                let test = place(run.experiment).1;
                let start = tests.iter().position(|known| *known == test)? as f64;
                let count = run.detail.series.len().max(1) as f64;
                let point = |(at, sample): (usize, &Sample)| {
                    (start + 0.1 + 0.8 * (at as f64 + 0.5) / count, (what.of)(sample))
                };
                Some(run.detail.series.iter().enumerate().map(point).collect())
            });
            what.panel(panel, Axis::names(&tests), 185, &lines)
        };
        WATCHED.iter().filter(|_| !tests.is_empty()).map(panel_of).collect()
    }

    /// Of a report with few experiments.
    fn few(&mut self) {
        let caption = "grey the bare devices as published and as modelled, orange the caches as \
                       published, blue Forebay.";
        let panels = self.compared.named_bars();
        self.add("bars", caption, bars::parts(&panels), |alt, panels| figure(alt, &[], panels, 2));
        let caption = "latencies of Forebay's configurations. Each further nine takes as much \
                       room, so that the slowest requests can be seen.";
        self.lines("latency", caption, &self.latencies(), 2);
        let caption = "hit ratio, dirty data and the disk's busy time while the experiment runs.";
        let experiments = once(self.compared.groups.iter().map(|g| g.experiment.to_owned()));
        self.lines("time", caption, &self.over_time(&experiments), 3);
    }

    /// Of one with many.
    fn many(&mut self) {
        let compared = self.compared;
        let values = compared.values();
        let unit = compared.groups.first().map_or("", |group| metric(group.metric));
        let caption = "grey the bare devices as published and as modelled, orange the caches as \
                       published, blue Forebay; thin lines are standard deviations.";
        self.grouped("bars", caption, &values, unit);
        let caption = "latencies; marks are medians, lines end at the 99th percentile.";
        self.grouped("latency", caption, &compared.latencies(), "latency, ms");
        if self.runs.iter().any(|run| run.repetitions) {
            let ends = [values.first(), values.last().filter(|_| values.len() > 1)];
            let ends = ends.into_iter().flatten();
            let panels: Vec<Panel> = ends.flat_map(|panel| self.each_test(&panel.title)).collect();
            let caption = "for each test its repetitions from left to right; the smallest and the \
                           largest record size. All tests of a record size share one cache.";
            return self.lines("time", caption, &panels, 1);
        }
        // One place of each panel: all of them would be a hundred figures.
        let one = |(_, members): &(String, Vec<&Group<'_>>)| {
            members.get(members.len() / 3).map(|group| group.experiment.to_owned())
        };
        let chosen: Vec<String> = compared.panels(|_| true).iter().filter_map(one).collect();
        let caption = "hit ratio, dirty data and the disk's busy time over warm-up and run, for one \
                       request size of each kind.";
        self.lines("time", caption, &self.over_time(&chosen), 3);
    }
}

/// The figures of one report.
pub(super) fn figures(input: &Rows, report: &str) -> Vec<Figure> {
    let groups = groups(input, report);
    let (compared, runs) = (Compared::new(&groups), runs(input, report));
    let mut all = Figures { report, compared: &compared, runs, figures: Vec::new() };
    if groups.len() <= FEW {
        all.few()
    } else {
        all.many()
    }
    all.figures
}

/// At most so many points, each the mean of its neighbours.
fn thinned(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    const MOST: usize = 64;
    let mean = |some: &[(f64, f64)]| {
        let count = some.len().max(1) as f64;
        let sum = some.iter().fold((0.0, 0.0), |sum, at| (sum.0 + at.0, sum.1 + at.1));
        (sum.0 / count, sum.1 / count)
    };
    points.chunks(points.len().div_ceil(MOST).max(1)).map(mean).collect()
}

/// Latency in milliseconds by share of requests, from buckets with their lower ends in
/// microseconds.
fn percentiles(buckets: &[(f64, u64)]) -> Vec<(f64, f64)> {
    /// Width of a bucket, as the histograms of the runs have it.
    const BUCKET: f64 = 1.0 + 1.0 / 32.0;
    let all: u64 = buckets.iter().map(|(_, count)| count).sum();
    // The slowest request stands for the last half of its share, so that there is an end.
    let most = (all as f64 - 0.5).max(0.5);
    let place = |sum: u64| nine((sum as f64).min(most) / all.max(1) as f64);
    let mut sum = 0;
    let mut points = Vec::new();
    for (microseconds, count) in buckets {
        let value = (microseconds / 1000.0).max(1e-4);
        if place(sum) > nine(LAST_SHARE) {
            break;
        }
        points.push((place(sum), value));
        sum += count;
        // Latencies are spread over the bucket.
        points.push((place(sum).min(nine(LAST_SHARE)), value * BUCKET));
    }
    points
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_climb() {
        let points = percentiles(&[(100.0, 90), (1000.0, 9), (5000.0, 1)]);
        assert_eq!(points[0], (0.0, 0.1));
        assert!((points[1].0 - 1.0).abs() < 1e-9 && points[0].1 == 0.1 && points[1].1 < 0.11);
        assert!((points[3].0 - 2.0).abs() < 1e-9 && points[2].1 == 1.0);
        // The slowest of a hundred ends at 99.5 %, and is not lost.
        assert!((points[5].0 - nine(0.995)).abs() < 1e-9 && points[4].1 == 5.0);
        assert_eq!(percentiles(&[(80.0, 1_000_000)]).len(), 2);
        assert!(points.windows(2).all(|pair| pair[0].0 <= pair[1].0 && pair[0].1 <= pair[1].1));
    }
}
