//! Bars of Forebay beside published ones: what is shown of each experiment, in which order, and in
//! which colours.

use super::bars::{Bar, BarPanel, GroupPanel, Mark, Series};
use super::input::Row;
use super::style::{Family, bar, line};
use super::verdict::{Group, is_cache};
use super::words::metric;

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
pub(super) fn once(names: impl Iterator<Item = String>) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    for name in names {
        if !all.contains(&name) {
            all.push(name);
        }
    }
    all
}

/// Configurations of ours in a report, in order.
pub(super) fn configs(groups: &[Group<'_>]) -> Vec<String> {
    let ours = groups.iter().flat_map(|group| &group.rows).filter(|row| row.is_forebay());
    let mut all = once(ours.map(|row| row.config.clone()));
    // Our own settings before those of others.
    all.sort_by_key(|name| !name.starts_with("forebay/"));
    all
}

/// Published caches of a report, in order of their names.
pub(super) fn caches(groups: &[Group<'_>]) -> Vec<String> {
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
    all.extend(ours);
    all.sort_by_key(|shown| rank(shown.family));
    all
}

/// The order of bars.
fn rank(family: Family) -> (u8, usize) {
    match family {
        Family::Disk => (0, 0),
        Family::ModelDisk => (1, 0),
        Family::Ssd => (2, 0),
        Family::ModelSsd => (3, 0),
        Family::Published(index) => (4, index),
        Family::Forebay(index) => (5, index),
    }
}

/// The colour of a bar that has its name beside it: own settings, `strict`, others.
fn kind(shown: &Shown) -> Family {
    match (shown.family, shown.name.as_str()) {
        (Family::Forebay(_), name) if name.starts_with("forebay as") => Family::Forebay(3),
        (Family::Forebay(_), name) if name.ends_with("strict") => Family::Forebay(1),
        (Family::Forebay(_), name) if name.contains(' ') => Family::Forebay(2),
        (Family::Forebay(_), _) => Family::Forebay(0),
        (family, _) => family,
    }
}

pub(super) fn named(groups: &[Group<'_>], caches: &[String], configs: &[String]) -> Vec<BarPanel> {
    let metrics = |group: &Group<'_>| {
        groups.iter().filter(|other| other.experiment == group.experiment).count()
    };
    let title = |group: &Group<'_>| match metrics(group) {
        1 => group.experiment.to_owned(),
        _ => format!("{}, {}", group.experiment, metric(group.metric)),
    };
    let panel = |group: &Group<'_>| BarPanel {
        title: title(group),
        unit: metric(group.metric).to_owned(),
        bars: shown(group, caches, configs)
            .into_iter()
            .map(|shown| Bar {
                colour: bar(kind(&shown)),
                name: shown.name,
                value: shown.value,
                sd: shown.sd,
            })
            .collect(),
    };
    let run = |group: &&Group<'_>| group.rows.iter().any(|row| row.value.is_some());
    groups.iter().filter(run).map(panel).collect()
}

/// Groups by panel; `wanted` says which have something to show.
pub(super) fn panels<'a, 'b>(
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

/// The line of bare devices: grey.
const BARE_LINE: usize = 7;

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
                    let which = match (mark, family) {
                        (Mark::Bar(..), _) => None,
                        (Mark::Span(..), Family::Forebay(index)) => Some(index),
                        (Mark::Span(..), _) => Some(BARE_LINE),
                    };
                    let colour = which.map_or_else(|| bar(family), line);
                    series.push((family, Series { name, colour, which, marks }));
                    series.len() - 1
                });
                if let Some(slot) = series.get_mut(index).and_then(|(_, s)| s.marks.get_mut(at)) {
                    *slot = Some(mark);
                }
            }
        }
        series.sort_by_key(|(family, _)| rank(*family));
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

pub(super) fn values(
    groups: &[Group<'_>],
    caches: &[String],
    configs: &[String],
) -> Vec<GroupPanel> {
    let unit = groups.first().map_or("", |group| metric(group.metric));
    group_panels(groups, unit, |group| {
        let shown = shown(group, caches, configs).into_iter();
        shown.map(|s| (s.name, s.family, Mark::Bar(s.value, s.sd))).collect()
    })
}

pub(super) fn spans(groups: &[Group<'_>], configs: &[String]) -> Vec<GroupPanel> {
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
