//! Which figures a report gets, from its rows and what is beside them.
//!
//! A report with few experiments gets a small chart for each. One with many (13 tests at four
//! record sizes) has names of two parts, `1M/write` or `whole/random 4K x32`: one part becomes a
//! panel, the other a place in it.

use crate::error::LabResult;

use super::bars::{self, GroupPanel, grouped, named_bars};
use super::canvas::Axis;
use super::compare::{caches, configs, named, once, panels, place, spans, values};
use super::doc::Block;
use super::input::{Detail, Input, Row, Sample};
use super::lines::{Line, LinePanel, lines, nines, percentiles, thinned};
use super::style::HIGHEST;
use super::verdict::{Group, groups};

/// More experiments than this are put into panels together.
const FEW: usize = 20;

/// A run of ours.
struct Run<'a> {
    experiment: &'a str,
    config: &'a str,
    /// Each sample is of one repetition.
    repetitions: bool,
    detail: &'a Detail,
}

/// Runs of ours, each once, without those that are another's under a second name.
fn runs<'a>(input: &'a Input, report: &str) -> Vec<Run<'a>> {
    let mut rows: Vec<&Row> =
        input.rows.iter().filter(|row| row.report == report && row.is_forebay()).collect();
    rows.sort_by_key(|row| !row.config.starts_with("forebay/"));
    let mut runs: Vec<Run<'_>> = Vec::new();
    for row in rows {
        let Some(detail) = &row.detail else { continue };
        let known = runs.iter().any(|known| {
            known.experiment == row.experiment
                && (known.config == row.config || known.detail == detail)
        });
        if !known {
            runs.push(Run {
                experiment: &row.experiment,
                config: &row.config,
                repetitions: row.repetitions > 1,
                detail,
            });
        }
    }
    runs
}

fn latency_panels(groups: &[Group<'_>], runs: &[Run<'_>], configs: &[String]) -> Vec<LinePanel> {
    type Of = fn(&Detail) -> &Vec<(f64, u64)>;
    let directions: [(&str, Of); 2] =
        [("reads", |d| &d.read_latencies), ("writes", |d| &d.write_latencies)];
    let mut all = Vec::new();
    for experiment in once(groups.iter().map(|group| group.experiment.to_owned())) {
        for (direction, of) in directions {
            let here =
                runs.iter().filter(|r| r.experiment == experiment && !of(r.detail).is_empty());
            let lines: Vec<Line> = here
                .filter_map(|run| {
                    let which = configs.iter().position(|config| config == run.config)?;
                    Some(Line { which, points: percentiles(of(run.detail)) })
                })
                .collect();
            let values = lines.iter().flat_map(|line| &line.points).map(|(_, value)| *value);
            let (least, most) = values.fold((f64::MAX, 0.0f64), |(l, m), v| (l.min(v), m.max(v)));
            if lines.is_empty() {
                continue;
            }
            all.push(LinePanel {
                title: format!("{experiment}, {direction}"),
                x: nines(),
                y: Axis::logarithmic("latency, ms (log.)", least / 1.5, most * 2.0),
                lines,
            });
        }
    }
    all
}

/// What is shown over time: name, unit, values, and what they are multiplied by.
type Watched = (&'static str, &'static str, fn(&Sample) -> f64, f64);

const WATCHED: [Watched; 3] = [
    ("hit ratio", "hits / requests", |sample| sample.hit_ratio, 1.0),
    ("dirty data", "dirty, MiB", |sample| sample.dirty_bytes, 1.0 / 1_048_576.0),
    ("disk busy", "share of time", |sample| sample.disk_busy, 1.0),
];

/// A panel of something that is watched; shares end at 1.
fn watched(title: String, x: Axis, (_, unit, _, factor): Watched, lines: Vec<Line>) -> LinePanel {
    let values = lines.iter().flat_map(|line| &line.points).map(|(_, value)| *value);
    let most = if factor == 1.0 { 1.0 } else { values.fold(0.0, f64::max) * 1.05 };
    LinePanel { title, x, y: Axis::linear(unit, most), lines }
}

fn over_time(experiments: &[String], runs: &[Run<'_>], configs: &[String]) -> Vec<LinePanel> {
    let mut all = Vec::new();
    for experiment in experiments {
        let here: Vec<&Run<'_>> = runs
            .iter()
            .filter(|run| run.experiment == experiment && run.detail.series.len() > 1)
            .collect();
        if here.is_empty() {
            continue;
        }
        let ends = here.iter().filter_map(|run| run.detail.series.last());
        let end = ends.fold(0.0f64, |end, sample| end.max(sample.second));
        for what in WATCHED {
            let (name, _, of, factor) = what;
            let line = |run: &&Run<'_>| {
                let which = configs.iter().position(|config| config == run.config)?;
                let point = |sample: &Sample| (sample.second, of(sample) * factor);
                let points: Vec<_> = run.detail.series.iter().map(point).collect();
                Some(Line { which, points: thinned(&points) })
            };
            let lines: Vec<Line> = here.iter().filter_map(line).collect();
            let x = Axis::linear("s", end);
            all.push(watched(format!("{experiment}: {name}"), x, what, lines));
        }
    }
    all
}

/// A point for each repetition of each test; the rows do not say in which order the tests ran, so
/// lines end with the test.
fn each_test(panel: &str, runs: &[Run<'_>], configs: &[String]) -> Vec<LinePanel> {
    let here: Vec<&Run<'_>> =
        runs.iter().filter(|run| run.repetitions && place(run.experiment).0 == panel).collect();
    let tests = once(here.iter().map(|run| place(run.experiment).1));
    let panel_of = |what: Watched| {
        let (name, _, of, factor) = what;
        let line = |run: &&Run<'_>| {
            let which = configs.iter().position(|config| config == run.config)?;
            let test = place(run.experiment).1;
            let start = tests.iter().position(|known| *known == test)? as f64;
            let count = run.detail.series.len().max(1) as f64;
            let point = |(at, sample): (usize, &Sample)| {
                (start + 0.1 + 0.8 * (at as f64 + 0.5) / count, of(sample) * factor)
            };
            Some(Line { which, points: run.detail.series.iter().enumerate().map(point).collect() })
        };
        let lines: Vec<Line> = here.iter().filter_map(line).collect();
        watched(format!("{panel}: {name}"), Axis::names(&tests), what, lines)
    };
    if tests.is_empty() { Vec::new() } else { WATCHED.map(panel_of).into() }
}

/// Figures of a report, numbered where one would not fit on a page.
struct Figures<'a> {
    report: &'a str,
    blocks: Vec<Block>,
}

impl Figures<'_> {
    /// A figure for each part.
    fn add<T>(
        &mut self,
        name: &str,
        caption: &str,
        parts: Vec<&[T]>,
        draw: impl Fn(&str, &[T]) -> LabResult<String>,
    ) -> LabResult<()> {
        let count = parts.len();
        for (part, panels) in parts.into_iter().enumerate() {
            let (file, of) = match count {
                1 => (String::new(), String::new()),
                _ => (format!("-{}", part + 1), format!(" ({} of {count})", part + 1)),
            };
            let report = self.report;
            let caption = format!("{report}{of}: {caption}");
            let svg = draw(&caption, panels)?;
            self.blocks.push(Block::Figure(format!("{report}-{name}{file}.svg"), svg, caption));
        }
        Ok(())
    }

    /// Panels of lines: so many in a row, so high each.
    fn lines(
        &mut self,
        name: &str,
        caption: &str,
        configs: &[String],
        panels: &[LinePanel],
        (columns, height): (usize, i32),
    ) -> LabResult<()> {
        let rows = ((HIGHEST - 40) / height.max(1)).max(1) as usize;
        let parts = panels.chunks(rows * columns.max(1)).collect();
        let draw = |alt: &str, panels: &[LinePanel]| lines(alt, configs, panels, (columns, height));
        self.add(name, caption, parts, draw)
    }
}

/// The figures of one report.
///
/// # Errors
/// One cannot be drawn.
pub(super) fn figures(input: &Input, report: &str) -> LabResult<Vec<Block>> {
    let groups = groups(input, report);
    let (caches, configs) = (caches(&groups), configs(&groups));
    let runs = runs(input, report);
    let mut figures = Figures { report, blocks: Vec::new() };
    if groups.len() <= FEW {
        let panels = named(&groups, &caches, &configs);
        let caption = "grey the bare devices as published and as modelled, orange the caches as \
                       published, blue Forebay.";
        figures.add("bars", caption, bars::parts(&panels), named_bars)?;
        let panels = latency_panels(&groups, &runs, &configs);
        let caption = "latencies of Forebay's configurations. Each further nine takes as much \
                       room, so that the slowest requests can be seen.";
        figures.lines("latency", caption, &configs, &panels, (2, 250))?;
        let experiments = once(groups.iter().map(|group| group.experiment.to_owned()));
        let panels = over_time(&experiments, &runs, &configs);
        let caption = "hit ratio, dirty data and the disk's busy time while the experiment runs.";
        figures.lines("time", caption, &configs, &panels, (3, 200))?;
        return Ok(figures.blocks);
    }
    let wide = panels(&groups, |_| true).iter().map(|(_, members)| members.len()).max();
    let wide = wide.unwrap_or(0) * (caches.len() + configs.len() + 4);
    let columns = if wide > 100 { 1 } else { 2 };
    let values = values(&groups, &caches, &configs);
    let four_rows = 4 * columns;
    let caption = "grey the bare devices as published and as modelled, orange the caches as \
                   published, blue Forebay; thin lines are standard deviations.";
    let draw = |alt: &str, panels: &[GroupPanel]| grouped(alt, panels, columns);
    figures.add("bars", caption, values.chunks(four_rows).collect(), draw)?;
    let latencies = spans(&groups, &configs);
    let caption = "latencies; marks are medians, lines end at the 99th percentile.";
    figures.add("latency", caption, latencies.chunks(four_rows).collect(), draw)?;
    let names: Vec<String> = values.iter().map(|panel| panel.title.clone()).collect();
    if runs.iter().any(|run| run.repetitions) {
        let ends = [names.first(), names.last().filter(|_| names.len() > 1)];
        let panels: Vec<LinePanel> =
            ends.into_iter().flatten().flat_map(|name| each_test(name, &runs, &configs)).collect();
        let caption = "for each test its repetitions from left to right; the smallest and the \
                       largest record size. All tests of a record size share one cache.";
        figures.lines("time", caption, &configs, &panels, (1, 185))?;
        return Ok(figures.blocks);
    }
    // One place of each panel: all of them would be a hundred figures.
    let one = |(_, members): &(String, Vec<&Group<'_>>)| {
        members.get(members.len() / 3).map(|group| group.experiment.to_owned())
    };
    let chosen: Vec<String> = panels(&groups, |_| true).iter().filter_map(one).collect();
    let panels = over_time(&chosen, &runs, &configs);
    let caption = "hit ratio, dirty data and the disk's busy time over warm-up and run, for one \
                   request size of each kind.";
    figures.lines("time", caption, &configs, &panels, (3, 200))?;
    Ok(figures.blocks)
}
