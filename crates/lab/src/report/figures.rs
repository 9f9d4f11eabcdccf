//! Which figures a report gets, from its rows and what is beside them.
//!
//! A report with few experiments gets a small chart for each. One with many (13 tests at four
//! record sizes) has names of two parts, `1M/write` or `whole/random 4K x32`: one part becomes a
//! panel, the other a place in it.

use crate::error::LabResult;

use super::bars::{Bar, BarPanel, GroupPanel, Mark, Series, grouped, named_bars};
use super::canvas::Axis;
use super::doc::Block;
use super::input::{Detail, Input, Row};
use super::lines::{Line, LinePanel, lines, nines, percentiles};
use super::style::{Family, bar};
use super::verdict::{Group, groups, is_cache};
use super::words::metric;

/// More experiments than this are put into panels together.
const FEW: usize = 20;

/// Panels and places of a report with many experiments.
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

/// In order of first appearance, each once.
fn once(names: impl Iterator<Item = String>) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    for name in names {
        if !all.contains(&name) {
            all.push(name);
        }
    }
    all
}

/// Configurations of ours in a report, in order.
fn configs(groups: &[Group<'_>]) -> Vec<String> {
    let ours = groups.iter().flat_map(|group| &group.rows).filter(|row| row.is_forebay());
    let mut all = once(ours.map(|row| row.config.clone()));
    // Our own settings before those of others.
    all.sort_by_key(|name| !name.starts_with("forebay/"));
    all
}

/// Published caches of a report, in order of their names.
fn caches(groups: &[Group<'_>]) -> Vec<String> {
    let names = groups.iter().filter_map(|group| group.rows.first());
    let names = names.flat_map(|row| row.published.keys().filter(|name| is_cache(name)).cloned());
    let mut all = once(names);
    all.sort();
    all
}

/// A bar of a group: who, in which colour, and how much.
struct Shown {
    name: String,
    family: Family,
    value: f64,
    sd: Option<f64>,
}

fn shown(group: &Group<'_>, caches: &[String], configs: &[String]) -> Vec<Shown> {
    let Some(first) = group.rows.first() else { return Vec::new() };
    let mut all = Vec::new();
    let mut published = |name: &str, label: String, family| {
        if let Some(value) = first.published.get(name) {
            let sd = first.published_sd.get(name).copied();
            all.push(Shown { name: label, family, value: *value, sd });
        }
    };
    published("disk", "disk".into(), Family::Disk);
    published("ssd", "SSD".into(), Family::Ssd);
    published("ssd maximum", "SSD, maximum".into(), Family::Ssd);
    published("ram", "RAM".into(), Family::Ssd);
    for (index, name) in caches.iter().enumerate() {
        published(name, name.clone(), Family::Published(index));
    }
    let mut ours = Vec::new();
    for row in group.rows.iter() {
        let Some(value) = row.value else { continue };
        let config = configs.iter().position(|config| *config == row.config);
        let (name, family) = match (row.config.as_str(), config) {
            ("model/hdd", _) => ("disk, model".to_owned(), Family::ModelDisk),
            ("model/ssd", _) => ("SSD, model".to_owned(), Family::ModelSsd),
            (name, index) => (name.to_owned(), Family::Forebay(index.unwrap_or(0))),
        };
        ours.push(Shown { name, family, value, sd: row.sd });
    }
    let order = |shown: &Shown| match shown.family {
        Family::Disk => (0, 0),
        Family::ModelDisk => (1, 0),
        Family::Ssd => (2, 0),
        Family::ModelSsd => (3, 0),
        Family::Published(index) => (4, index),
        Family::Forebay(index) => (5, index),
    };
    all.extend(ours);
    all.sort_by_key(order);
    all
}

fn named(groups: &[Group<'_>], caches: &[String], configs: &[String]) -> Vec<BarPanel> {
    let panel = |group: &Group<'_>| BarPanel {
        title: group.experiment.to_owned(),
        unit: metric(group.metric).to_owned(),
        bars: shown(group, caches, configs)
            .into_iter()
            .map(|shown| Bar {
                name: shown.name,
                colour: bar(shown.family),
                value: shown.value,
                sd: shown.sd,
            })
            .collect(),
    };
    groups.iter().map(panel).filter(|panel| !panel.bars.is_empty()).collect()
}

/// Groups by panel; `wanted` says which have something to show.
fn panels<'a, 'b>(
    groups: &'b [Group<'a>],
    wanted: impl Fn(&Group<'a>) -> bool,
) -> Vec<(String, Vec<&'b Group<'a>>)> {
    let mut panels: Vec<(String, Vec<&Group<'_>>)> = Vec::new();
    for group in groups.iter().filter(|group| wanted(group)) {
        let (name, _) = place(group.experiment);
        match panels.iter_mut().find(|(known, _)| *known == name) {
            Some((_, members)) => members.push(group),
            None => panels.push((name, vec![group])),
        }
    }
    panels
}

/// Many groups as panels; what each group shows is up to `marks`.
fn group_panels(
    groups: &[Group<'_>],
    unit: &str,
    marks: impl Fn(&Group<'_>) -> Vec<(String, Family, Mark)>,
) -> Vec<GroupPanel> {
    let run = |group: &Group<'_>| group.rows.iter().any(|row| row.value.is_some());
    let mut all = Vec::new();
    for (title, members) in panels(groups, run) {
        let mut series: Vec<(Family, Series)> = Vec::new();
        for (at, group) in members.iter().enumerate() {
            for (name, family, mark) in marks(group) {
                let known = series.iter().position(|(_, known)| known.name == name);
                let index = known.unwrap_or_else(|| {
                    let marks = vec![None; members.len()];
                    series.push((family, Series { name, colour: bar(family), marks }));
                    series.len() - 1
                });
                if let Some(slot) = series.get_mut(index).and_then(|(_, s)| s.marks.get_mut(at)) {
                    *slot = Some(mark);
                }
            }
        }
        all.push(GroupPanel {
            title,
            unit: unit.to_owned(),
            below: String::new(),
            places: members.iter().map(|group| place(group.experiment).1).collect(),
            series: series.into_iter().map(|(_, series)| series).collect(),
        });
    }
    all
}

fn values(groups: &[Group<'_>], caches: &[String], configs: &[String]) -> Vec<GroupPanel> {
    let unit = groups.first().map_or("", |group| metric(group.metric));
    group_panels(groups, unit, |group| {
        let shown = shown(group, caches, configs).into_iter();
        shown.map(|s| (s.name, s.family, Mark::Bar(s.value, s.sd))).collect()
    })
}

fn spans(groups: &[Group<'_>], configs: &[String]) -> Vec<GroupPanel> {
    group_panels(groups, "latency, ms", |group| {
        let mark = |row: &&Row| {
            let family = match row.config.as_str() {
                "model/ssd" => Family::ModelSsd,
                config => Family::Forebay(configs.iter().position(|known| known == config)?),
            };
            let name = if family == Family::ModelSsd { "SSD, model" } else { &row.config };
            Some((name.to_owned(), family, Mark::Span(row.p50_us? / 1e3, row.p99_us? / 1e3)))
        };
        group.rows.iter().filter_map(mark).collect()
    })
}

/// Details of ours, without those that are another's under a second name.
fn own_details<'a>(input: &'a Input, report: &str) -> Vec<&'a Detail> {
    let mut all: Vec<&Detail> = Vec::new();
    let ours = |detail: &&Detail| detail.report == report && detail.config.starts_with("forebay");
    let mut sorted: Vec<&Detail> = input.details.iter().filter(ours).collect();
    sorted.sort_by_key(|detail| !detail.config.starts_with("forebay/"));
    for detail in sorted {
        let same = |known: &&Detail| {
            known.experiment == detail.experiment
                && known.dirty_bytes == detail.dirty_bytes
                && known.read_latencies == detail.read_latencies
                && known.write_latencies == detail.write_latencies
        };
        if !all.iter().any(same) {
            all.push(detail);
        }
    }
    all
}

fn latency_panels(groups: &[Group<'_>], details: &[&Detail], configs: &[String]) -> Vec<LinePanel> {
    type Of = fn(&Detail) -> &Vec<(f64, u64)>;
    let directions: [(&str, Of); 2] =
        [("reads", |d| &d.read_latencies), ("writes", |d| &d.write_latencies)];
    let mut all = Vec::new();
    for experiment in once(groups.iter().map(|group| group.experiment.to_owned())) {
        for (direction, of) in directions {
            let here = details.iter().filter(|d| d.experiment == experiment && !of(d).is_empty());
            let lines: Vec<Line> = here
                .filter_map(|detail| {
                    let which = configs.iter().position(|config| *config == detail.config)?;
                    Some(Line { which, points: percentiles(of(detail)) })
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
                y: Axis::logarithmic("latency, ms (log.)", least / 1.2, most * 1.2),
                lines,
            });
        }
    }
    all
}

/// What is shown over time: name, unit, values, and what they are multiplied by.
type Watched = (&'static str, &'static str, fn(&Detail) -> &Vec<f64>, f64);

const WATCHED: [Watched; 3] = [
    ("hit ratio", "hits / requests", |detail| &detail.hit_ratio, 1.0),
    ("dirty data", "dirty, MiB", |detail| &detail.dirty_bytes, 1.0 / 1_048_576.0),
    ("disk busy", "share of time", |detail| &detail.disk_busy, 1.0),
];

fn over_time(experiments: &[String], details: &[&Detail], configs: &[String]) -> Vec<LinePanel> {
    let mut all = Vec::new();
    for experiment in experiments {
        let here: Vec<&&Detail> = details
            .iter()
            .filter(|detail| detail.experiment == *experiment && detail.second.len() > 1)
            .collect();
        if here.is_empty() {
            continue;
        }
        let end = here.iter().filter_map(|d| d.second.last()).fold(0.0f64, |end, s| end.max(*s));
        for (name, unit, of, factor) in WATCHED {
            let line = |detail: &&&Detail| {
                let which = configs.iter().position(|config| *config == detail.config)?;
                let values = of(detail).iter().map(|value| value * factor);
                Some(Line { which, points: detail.second.iter().copied().zip(values).collect() })
            };
            let lines: Vec<Line> = here.iter().filter_map(line).collect();
            let most = lines.iter().flat_map(|line| &line.points).map(|(_, value)| *value);
            let most = if factor == 1.0 { 1.0 } else { most.fold(0.0, f64::max) * 1.05 };
            all.push(LinePanel {
                title: format!("{experiment}: {name}"),
                x: Axis::linear("s", end),
                y: Axis::linear(unit, most),
                lines,
            });
        }
    }
    all
}

/// Tests that ran one after the other on one cache, a point for each repetition.
fn in_order(panel: &str, details: &[&Detail], configs: &[String]) -> Vec<LinePanel> {
    let here: Vec<&&Detail> =
        details.iter().filter(|d| d.repetitions && place(&d.experiment).0 == panel).collect();
    let order = here.first().map(|first| first.config.clone()).unwrap_or_default();
    let tests: Vec<String> = here
        .iter()
        .filter(|detail| detail.config == order)
        .map(|detail| place(&detail.experiment).1)
        .collect();
    let panel_of = |(name, unit, of, factor): Watched| {
        let line = |(which, config): (usize, &String)| {
            let mut points = Vec::new();
            for detail in here.iter().filter(|detail| detail.config == *config) {
                let test = place(&detail.experiment).1;
                let Some(start) = tests.iter().position(|known| *known == test) else { continue };
                let count = of(detail).len().max(1) as f64;
                for (at, value) in of(detail).iter().enumerate() {
                    let x = start as f64 + 0.05 + 0.9 * (at as f64 + 0.5) / count;
                    points.push((x, value * factor));
                }
            }
            points.sort_by(|one: &(f64, f64), other| one.0.total_cmp(&other.0));
            (!points.is_empty()).then_some(Line { which, points })
        };
        let lines: Vec<Line> = configs.iter().enumerate().filter_map(line).collect();
        let most = lines.iter().flat_map(|line| &line.points).map(|(_, value)| *value);
        let most = if factor == 1.0 { 1.0 } else { most.fold(0.0, f64::max) * 1.05 };
        LinePanel {
            title: format!("{panel}: {name}"),
            x: Axis::names(&tests),
            y: Axis::linear(unit, most),
            lines,
        }
    };
    if tests.is_empty() { Vec::new() } else { WATCHED.map(panel_of).into() }
}

/// The figures of one report.
///
/// # Errors
/// One cannot be drawn.
pub(super) fn figures(input: &Input, report: &str) -> LabResult<Vec<Block>> {
    let groups = groups(input, report);
    let (caches, configs) = (caches(&groups), configs(&groups));
    let details = own_details(input, report);
    let mut figures = Vec::new();
    let mut add = |name: &str, caption: String, svg: String| {
        figures.push(Block::Figure(format!("{report}-{name}.svg"), svg, caption));
    };
    if groups.len() <= FEW {
        let panels = named(&groups, &caches, &configs);
        if !panels.is_empty() {
            let caption = format!(
                "{report}: grey the bare devices as published and as modelled, orange the caches \
                 as published, blue Forebay."
            );
            add("bars", caption.clone(), named_bars(&caption, &panels)?);
        }
        let panels = latency_panels(&groups, &details, &configs);
        if !panels.is_empty() {
            let caption = format!(
                "{report}: latencies of Forebay's configurations. Each further nine takes as much \
                 room, so that the slowest requests can be seen."
            );
            add("latency", caption.clone(), lines(&caption, &configs, &panels, (2, 250))?);
        }
        let experiments = once(groups.iter().map(|group| group.experiment.to_owned()));
        let panels = over_time(&experiments, &details, &configs);
        if !panels.is_empty() {
            let caption = format!(
                "{report}: hit ratio, dirty data and the disk's busy time while the experiment runs."
            );
            add("time", caption.clone(), lines(&caption, &configs, &panels, (3, 200))?);
        }
        return Ok(figures);
    }
    let wide = panels(&groups, |_| true).iter().map(|(_, members)| members.len()).max();
    let wide = wide.unwrap_or(0) * (caches.len() + configs.len() + 4);
    let columns = if wide > 100 { 1 } else { 2 };
    let bars = values(&groups, &caches, &configs);
    if !bars.is_empty() {
        let caption = format!(
            "{report}: grey the bare devices as published and as modelled, orange the caches as \
             published, blue Forebay; thin lines are standard deviations."
        );
        add("bars", caption.clone(), grouped(&caption, &bars, columns)?);
    }
    let latencies = spans(&groups, &configs);
    if !latencies.is_empty() {
        let caption =
            format!("{report}: latencies; marks are medians, lines end at the 99th percentile.");
        add("latency", caption.clone(), grouped(&caption, &latencies, columns)?);
    }
    let names: Vec<String> = bars.iter().map(|panel| panel.title.clone()).collect();
    if details.iter().any(|detail| detail.repetitions) {
        let ends = [names.first(), names.last().filter(|_| names.len() > 1)];
        let panels: Vec<LinePanel> = ends
            .into_iter()
            .flatten()
            .flat_map(|name| in_order(name, &details, &configs))
            .collect();
        let caption = format!(
            "{report}: the tests in the order in which they run on one cache, a point for each \
             repetition; the smallest and the largest record size."
        );
        add("time", caption.clone(), lines(&caption, &configs, &panels, (1, 190))?);
    } else if !details.is_empty() {
        // One place of each panel, in the middle: all of them would be a hundred figures.
        let middle = |(_, members): &(String, Vec<&Group<'_>>)| {
            members.get(members.len() / 3).map(|group| group.experiment.to_owned())
        };
        let chosen: Vec<String> = panels(&groups, |_| true).iter().filter_map(middle).collect();
        let time = over_time(&chosen, &details, &configs);
        if !time.is_empty() {
            let caption = format!(
                "{report}: hit ratio, dirty data and the disk's busy time over warm-up and run, \
                 for one request size of each kind."
            );
            add("time", caption.clone(), lines(&caption, &configs, &time, (3, 200))?);
        }
    }
    Ok(figures)
}
