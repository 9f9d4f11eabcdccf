//! Bars of Forebay beside published ones: what is shown of each experiment, in which order, and in
//! which colours.

use super::axis::{Axis, SMALL, width_of};
use super::colours::{Colour, Family, INK, bar, line};
use super::rows::Row;
use super::svg::{HIGHEST, Key, Panel, Shape, row_height};
use super::verdict::{Group, is_cache};
use super::words::{metric, number};

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

/// In order of first appearance, each once.
pub(super) fn once(names: impl Iterator<Item = String>) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    for name in names {
        if !all.contains(&name) {
            all.push(name);
        }
    }
    all
}

/// The rows of a report by experiment and metric, and whose colours are which.
pub(super) struct Compared<'a> {
    pub(super) groups: &'a [Group<'a>],
    /// Configurations of ours: our own settings before those of others.
    pub(super) configs: Vec<String>,
    /// Published caches, in order of their names.
    pub(super) caches: Vec<String>,
}

/// A bar: who, in which colour, and how much.
struct Shown {
    name: String,
    family: Family,
    value: f64,
    /// Standard deviation.
    sd: Option<f64>,
}

impl Shown {
    /// The colour of a bar that has its name beside it: own settings, `strict`, others.
    fn colour(&self) -> Colour {
        bar(match (self.family, self.name.as_str()) {
            (Family::Forebay(_), name) if name.starts_with("forebay as") => Family::Forebay(3),
            (Family::Forebay(_), name) if name.ends_with("strict") => Family::Forebay(1),
            (Family::Forebay(_), name) if name.contains(' ') => Family::Forebay(2),
            (Family::Forebay(_), _) => Family::Forebay(0),
            (family, _) => family,
        })
    }
}

/// Whether anything was measured.
fn is_run(group: &&Group<'_>) -> bool {
    group.rows.iter().any(|row| row.value.is_some())
}

impl<'a> Compared<'a> {
    pub(super) fn new(groups: &'a [Group<'a>]) -> Self {
        let ours = groups.iter().flat_map(|group| &group.rows).filter(|row| row.is_forebay());
        let mut configs = once(ours.map(|row| row.config.clone()));
        configs.sort_by_key(|name| !name.starts_with("forebay/"));
        let published = groups.iter().filter_map(|group| group.rows.first());
        let published =
            published.flat_map(|row| row.published.keys().filter(|name| is_cache(name)));
        let mut caches = once(published.cloned());
        caches.sort();
        Compared { groups, configs, caches }
    }

    /// Which configuration of ours this is.
    pub(super) fn config(&self, name: &str) -> Option<usize> {
        self.configs.iter().position(|config| config == name)
    }

    fn shown(&self, group: &Group<'_>) -> Vec<Shown> {
        let Some(first) = group.rows.first() else { return Vec::new() };
        let bare = [
            ("disk", "disk", Family::Disk),
            ("ssd", "SSD", Family::Ssd),
            ("ssd maximum", "SSD, maximum", Family::Ssd),
            ("ram", "RAM", Family::Ssd),
        ];
        let caches = self.caches.iter().enumerate();
        let caches = caches.map(|(index, name)| (&**name, &**name, Family::Published(index)));
        let published = bare.into_iter().chain(caches).filter_map(|(name, label, family)| {
            let value = first.published.get(name)?.0;
            let sd = first.published_sd.get(name).map(|sd| sd.0);
            Some(Shown { name: label.to_owned(), family, value, sd })
        });
        let ours = group.rows.iter().filter_map(|row| {
            let (name, family) = match row.config.as_str() {
                "model/hdd" => ("disk, model", Family::ModelDisk),
                "model/ssd" => ("SSD, model", Family::ModelSsd),
                name => (name, Family::Forebay(self.config(name).unwrap_or(0))),
            };
            let (value, sd) = (row.value?.0, row.sd.map(|sd| sd.0));
            Some(Shown { name: name.to_owned(), family, value, sd })
        });
        let mut all: Vec<Shown> = published.chain(ours).collect();
        all.sort_by_key(|shown| shown.family);
        all
    }

    /// A panel for each group, with a bar for each system and its name beside it.
    pub(super) fn named_bars(&self) -> Vec<Panel> {
        let panel = |group: &Group<'_>| {
            let same = self.groups.iter().filter(|other| other.experiment == group.experiment);
            let title = match same.count() {
                1 => group.experiment.to_owned(),
                _ => format!("{}, {}", group.experiment, metric(group.metric)),
            };
            named_bars(title, metric(group.metric), &self.shown(group))
        };
        self.groups.iter().filter(is_run).map(panel).collect()
    }

    /// Groups by panel.
    pub(super) fn panels<'b>(
        &'b self,
        wanted: impl Fn(&&Group<'a>) -> bool,
    ) -> Vec<(String, Vec<&'b Group<'a>>)> {
        let mut panels: Vec<(String, Vec<&Group<'_>>)> = Vec::new();
        for group in self.groups.iter().filter(wanted) {
            let (name, _) = place(group.experiment);
            match panels.iter_mut().find(|(known, _)| *known == name) {
                Some((_, members)) => members.push(group),
                None => panels.push((name, vec![group])),
            }
        }
        panels
    }

    /// Values of all systems, many groups in a panel.
    pub(super) fn values(&self) -> Vec<Grouped> {
        self.grouped(|group| {
            let shown = self.shown(group).into_iter();
            shown.map(|s| (s.name, s.family, Mark::Bar(s.value, s.sd))).collect()
        })
    }

    /// Medians and 99th percentiles of latencies.
    pub(super) fn latencies(&self) -> Vec<Grouped> {
        self.grouped(|group| {
            let mark = |row: &&Row| {
                let (name, family) = match row.config.as_str() {
                    "model/ssd" => ("SSD, model", Family::ModelSsd),
                    config => (config, Family::Forebay(self.config(config)?)),
                };
                let mark = Mark::Span(row.p50_us?.0 / 1e3, row.p99_us?.0 / 1e3);
                Some((name.to_owned(), family, mark))
            };
            group.rows.iter().filter_map(mark).collect()
        })
    }

    fn grouped(&self, marks: impl Fn(&Group<'_>) -> Vec<(String, Family, Mark)>) -> Vec<Grouped> {
        let panel = |(title, members): (String, Vec<&Group<'_>>)| {
            let mut series: Vec<Series> = Vec::new();
            for (at, group) in members.iter().enumerate() {
                for (name, family, mark) in marks(group) {
                    let known = series.iter().position(|known| known.name == name);
                    let index = known.unwrap_or_else(|| {
                        series.push(Series { name, family, marks: vec![None; members.len()] });
                        series.len() - 1
                    });
                    series[index].marks[at] = Some(mark);
                }
            }
            series.sort_by_key(|series| series.family);
            let places = members.iter().map(|group| place(group.experiment).1).collect();
            Grouped { title, places, series }
        };
        self.panels(is_run).into_iter().map(panel).collect()
    }
}

const COLUMNS: usize = 2;

fn named_bars(title: String, unit: &str, bars: &[Shown]) -> Panel {
    const HEIGHT: i32 = 18;
    let tops = bars.iter().map(|bar| bar.value + bar.sd.unwrap_or(0.0));
    let names: Vec<String> = bars.iter().rev().map(|bar| bar.name.clone()).collect();
    let mut shapes = Vec::new();
    for (place, bar) in bars.iter().enumerate() {
        let middle = bars.len() as f64 - place as f64 - 0.5;
        shapes.push(Shape::Bar([(0.0, middle - 0.36), (bar.value, middle + 0.36)], bar.colour()));
        let sd = bar.sd.filter(|sd| *sd > 0.0).unwrap_or(0.0);
        if sd > 0.0 {
            let [low, high] = [bar.value - sd, bar.value + sd];
            let line = |from, to| Shape::Line(vec![from, to], INK, 1, None);
            let cap = |value| line((value, middle - 0.2), (value, middle + 0.2));
            shapes.extend([line((low, middle), (high, middle)), cap(low), cap(high)]);
        }
        shapes.push(Shape::Label((bar.value + sd, middle), number(Some(bar.value))));
    }
    Panel {
        title,
        x: Axis::for_bars(unit, tops, 0.22),
        y: Axis::names(&names),
        left: names.iter().map(|name| width_of(name, SMALL)).max().unwrap_or(0).max(60) + 8,
        height: 26 + HEIGHT * bars.len() as i32 + 52,
        shapes,
    }
}

/// The same panels in parts that fit on a page each.
pub(super) fn parts(panels: &[Panel]) -> Vec<&[Panel]> {
    let mut parts = Vec::new();
    let (mut start, mut height) = (0, 0);
    for (row, members) in panels.chunks(COLUMNS).enumerate() {
        let here = row_height(members);
        if height > 0 && height + here > HIGHEST {
            parts.extend(panels.get(start..row * COLUMNS));
            (start, height) = (row * COLUMNS, 0);
        }
        height += here;
    }
    parts.extend(panels.get(start..).filter(|rest| !rest.is_empty()));
    parts
}

/// A value, or a range of them, of one series in one place.
#[derive(Clone, Copy, Debug)]
enum Mark {
    /// A bar, and its standard deviation.
    Bar(f64, Option<f64>),
    /// A median, and the 99th percentile.
    Span(f64, f64),
}

/// What has one colour in all places.
#[derive(Clone, Debug)]
struct Series {
    name: String,
    family: Family,
    /// One for each place of the panel.
    marks: Vec<Option<Mark>>,
}

impl Series {
    fn key(&self) -> Key {
        /// The line of bare devices: grey.
        const BARE: usize = 7;
        let spans = self.marks.iter().flatten().any(|mark| matches!(mark, Mark::Span(..)));
        match self.family {
            family if !spans => Key::Bar(bar(family)),
            Family::Forebay(index) => Key::Line(line(index), index),
            _ => Key::Line(line(BARE), BARE),
        }
    }
}

/// Places with a group of marks each.
#[derive(Clone, Debug)]
pub(super) struct Grouped {
    pub(super) title: String,
    places: Vec<String>,
    series: Vec<Series>,
}

/// Panels of grouped marks, all with the same vertical axis, and their legend.
pub(super) fn grouped(
    groups: &[Grouped],
    unit: &str,
    columns: usize,
) -> (Vec<(String, Key)>, Vec<Panel>) {
    let series = || groups.iter().flat_map(|group| &group.series);
    let mut legend: Vec<(String, Key)> = Vec::new();
    for series in series() {
        if !legend.iter().any(|(name, _)| *name == series.name) {
            legend.push((series.name.clone(), series.key()));
        }
    }
    let ends = series().flat_map(|series| &series.marks).flatten().flat_map(|mark| match *mark {
        Mark::Bar(value, sd) => [value, value + sd.unwrap_or(0.0)],
        Mark::Span(median, high) => [median, high],
    });
    let y = Axis::for_bars(unit, ends, 0.05);
    let panel = |group: &Grouped| Panel {
        title: group.title.clone(),
        x: Axis::names(&group.places),
        y: y.clone(),
        left: 62,
        height: if columns > 1 { 230 } else { 250 },
        shapes: group.shapes(),
    };
    (legend, groups.iter().map(panel).collect())
}

impl Grouped {
    fn shapes(&self) -> Vec<Shape> {
        let width = 0.84 / self.series.len().max(1) as f64;
        let (mut all, mut marks) = (Vec::new(), Vec::new());
        for (index, series) in self.series.iter().enumerate() {
            let (colour, which) = match series.key() {
                Key::Bar(colour) => (colour, index),
                Key::Line(colour, which) => (colour, which),
            };
            let mut lines = Vec::new();
            for (place, mark) in series.marks.iter().enumerate() {
                let Some(mark) = mark else { continue };
                let start = place as f64 + 0.08 + width * index as f64;
                let middle = start + width / 2.0;
                let mut line = |ends: [f64; 2], colour, width| {
                    let points = ends.map(|end| (middle, end)).to_vec();
                    lines.push(Shape::Line(points, colour, width, None));
                };
                match *mark {
                    Mark::Bar(value, sd) => {
                        all.push(Shape::Bar([(start, 0.0), (start + width, value)], colour));
                        if let Some(sd) = sd.filter(|sd| *sd > 0.0) {
                            line([value - sd, value + sd], INK, 1);
                        }
                    }
                    Mark::Span(median, high) => {
                        line([median, high], colour, 3);
                        marks.push(Shape::Mark((middle, median), which, colour));
                    }
                }
            }
            // One kind after the other, so that each is one path.
            all.append(&mut lines);
            all.append(&mut marks);
        }
        all
    }
}
