//! What the pages say: the first page with its table of what is beaten, then each report.

use crate::error::LabResult;

use super::compare::place;
use super::doc::{Block, Cell, Line, Table, Tone};
use super::figures::figures;
use super::input::{Input, ReportText, Row};
use super::verdict::{Counts, Outcome, Verdict, compared, groups, is_cache, reports, verdicts};
use super::words::{maybe, metric, number};

pub(super) const TITLE: &str = "Five published cache benchmarks, and Forebay";

const HOW_TO_READ: [&str; 7] = [
    "Every experiment of a report runs again with the real engine, in virtual time, on models of \
     the report's disk and SSD at their full sizes.",
    "`x SSD` is a value as a share of the bare SSD: of the published one for published systems, of \
     the modelled one for Forebay. Systems are compared by these shares, so that a model that is \
     a little off does not decide anything.",
    "`Ratio` is Forebay's share by the best published cache's; of latencies the other way round, \
     so above 1 is always better. Beaten means above 1, by however little.",
    "`forebay/...` are our own settings with durability `flush`: acknowledged writes survive a \
     crash of the machine once a flush was answered. `strict`: each write is on the SSD before it \
     is acknowledged. `forebay as ...` has the settings of a published system.",
    "`Hits` is the share of requests answered from the cache, `SSD B/B` bytes written to the SSD \
     for each byte of the clients, `disk busy` a share of the time. p50 and p99 are of the \
     direction that the metric is about, otherwise of all requests.",
    "`sd` is the standard deviation of the repetitions, where there are some. Of ours it comes \
     from placement alone.",
    "Raised numbers refer to the notes at the end of each report, bounds among them.",
];

const MODELS: [&str; 4] = [
    "A model can say what the order, the size and the number of requests that reach the devices \
     are worth, as it is the real engine that issues them, and how much of a device is left for \
     clients.",
    "It cannot say how fast a given SSD is today. The models meet the published bare devices (see \
     the baselines of each report), and know no garbage collection, no thermal limits and no \
     interference. Where a report names no device, its baseline is all that is known of it.",
    "Software is not free in virtual time: each request takes the CPU time that was measured of \
     the engine and its front end. What is limited by software is better measured in real time.",
    "The published caches are not modelled. Their numbers are those of their reports, on their \
     hosts, with their kernels.",
];

/// Footnotes of the document: numbered on, each text once in a report.
#[derive(Default)]
struct Notes(Vec<(String, String)>);

impl Notes {
    /// The number of a note of a report.
    fn number(&mut self, report: &str, text: &str) -> usize {
        let known = self.0.iter().position(|(r, t)| r == report && t == text);
        known.unwrap_or_else(|| {
            self.0.push((report.to_owned(), text.to_owned()));
            self.0.len() - 1
        }) + 1
    }

    fn of(&self, report: &str) -> Vec<(usize, String)> {
        let all = self.0.iter().enumerate();
        let own = all.filter(|(_, (of, _))| of == report);
        own.map(|(index, (_, text))| (index + 1, text.clone())).collect()
    }
}

fn text_of<'a>(input: &'a Input, report: &str) -> Option<&'a ReportText> {
    input.about.reports.iter().find(|text| text.number == report)
}

fn heading_of(input: &Input, report: &str) -> String {
    match text_of(input, report) {
        Some(text) => format!("{report}: {}", text.title),
        None => report.to_owned(),
    }
}

fn goal(row: &Row) -> Option<Cell> {
    let goal = row.goal?;
    let sign = if row.less_is_better() { "≤" } else { "≥" };
    let (word, tone) = if goal.met { ("met", Tone::Good) } else { ("missed", Tone::Bad) };
    Some(Cell::new(format!("{sign} {} {word}", number(goal.at_least))).tone(tone))
}

fn percent(value: f64) -> String {
    format!("{:+.1} %", value * 100.0)
}

/// All rows of a report, by experiment.
fn rows(input: &Input, report: &str, notes: &mut Notes) -> Table {
    let heading = vec![
        "Configuration",
        "Value",
        "sd",
        "x SSD",
        "Published x SSD",
        "Goal or baseline",
        "Hits",
        "SSD B/B",
        "Disk busy",
        "p50 us",
        "p99 us",
        "s",
    ];
    let mut lines = Vec::new();
    for group in groups(input, report) {
        let published = group.rows.first().map(|row| &row.published);
        let mut values: Vec<_> = published.into_iter().flatten().collect();
        values.sort_by_key(|(name, _)| (is_cache(name), name.as_str()));
        let values: Vec<String> =
            values.iter().map(|(name, value)| format!("{name} {}", number(**value))).collect();
        let mut over = format!("{}, {}", group.experiment, metric(group.metric));
        if !values.is_empty() {
            over.push_str(&format!(" (published: {})", values.join(", ")));
        }
        lines.push(Line::Over(Cell::new(over)));
        for row in &group.rows {
            let mark = row.note.as_ref().map(|note| notes.number(report, note));
            let judged = match (goal(row), row.baseline) {
                (Some(goal), _) => goal,
                (None, Some(baseline)) => {
                    let tone = if baseline.good { Tone::Plain } else { Tone::Bad };
                    let off = if baseline.good { "" } else { " off" };
                    Cell::new(format!("{}{off}", percent(baseline.error))).tone(tone)
                }
                (None, None) => Cell::default(),
            };
            let theirs = row.published_share.map_or_else(String::new, |share| {
                format!("{} {}", row.published_system.as_deref().unwrap_or(""), number(share))
            });
            let blank = |value: Option<f64>| value.map_or_else(String::new, number);
            lines.push(Line::Cells(vec![
                Cell::new(&row.config).notes(mark.into_iter().collect()),
                Cell::new(maybe(row.value)),
                Cell::new(blank(row.sd)),
                Cell::new(blank(row.share_of_ssd)),
                Cell::new(theirs),
                judged,
                Cell::new(blank(row.hit_ratio)),
                Cell::new(blank(row.ssd_bytes_per_user_byte)),
                Cell::new(blank(row.disk_busy)),
                Cell::new(blank(row.p50_us)),
                Cell::new(blank(row.p99_us)),
                Cell::new(blank(row.seconds)),
            ]));
        }
    }
    Table { heading, left: 1, lines }
}

fn judged(outcome: Outcome) -> Cell {
    match outcome {
        Outcome::Beaten => Cell::new("yes").tone(Tone::Good),
        Outcome::NotBeaten => Cell::new("NO").tone(Tone::Bad),
        Outcome::NotRun => Cell::new("not run"),
        Outcome::NoFigure => Cell::new("no figure"),
    }
}

fn verdict_line(verdict: &Verdict<'_>, notes: &mut Notes) -> Line {
    let marks = verdict.notes.iter().map(|note| notes.number(verdict.report, note)).collect();
    let best = verdict.best.as_ref();
    let strict = verdict.strict.map_or_else(Cell::default, |row| {
        let ratio = compared(verdict, row);
        let share = row.share_of_ssd.map_or_else(|| maybe(row.value), number);
        let word = match ratio {
            Some(ratio) if ratio > 1.0 => ", yes",
            Some(_) => ", NO",
            None => "",
        };
        let goal = goal(row).map_or_else(String::new, |goal| format!(" (goal {})", goal.text));
        Cell::new(format!("{share}{word}{goal}"))
    });
    Line::Cells(vec![
        Cell::new(verdict.experiment).notes(marks),
        Cell::new(metric(verdict.metric)),
        Cell::new(best.map_or("-", |best| best.system.as_str())),
        Cell::new(maybe(best.map(|best| best.value))),
        Cell::new(maybe(best.and_then(|best| best.share))),
        Cell::new(maybe(verdict.ours.and_then(|row| row.value))),
        Cell::new(maybe(verdict.ours.and_then(|row| row.share_of_ssd))),
        Cell::new(maybe(verdict.ratio)),
        judged(verdict.outcome),
        verdict.ours.and_then(goal).unwrap_or_default(),
        strict,
    ])
}

/// Experiments of one kind of which the report gives no figures.
struct Kind<'a> {
    name: String,
    config: &'a str,
    metric: &'a str,
    shares: Vec<f64>,
    notes: Vec<usize>,
}

/// Rows of which the report gives no figures, those of one kind together: against the bare SSD.
fn without_figures(input: &Input, report: &str, notes: &mut Notes) -> Vec<Line> {
    let mut kinds: Vec<Kind<'_>> = Vec::new();
    for group in groups(input, report) {
        if group.rows.first().is_none_or(|row| row.published.keys().any(|name| is_cache(name))) {
            continue;
        }
        for row in group.rows.iter().filter(|row| row.is_forebay()) {
            let Some(share) = row.share_of_ssd else { continue };
            let (name, _) = place(group.experiment);
            let mark = row.note.as_ref().map(|note| notes.number(report, note));
            let known = kinds.iter().position(|k| k.name == name && k.config == row.config);
            let index = known.unwrap_or_else(|| {
                let (config, metric) = (row.config.as_str(), group.metric);
                let (shares, notes) = (Vec::new(), Vec::new());
                kinds.push(Kind { name, config, metric, shares, notes });
                kinds.len() - 1
            });
            if let Some(kind) = kinds.get_mut(index) {
                kind.shares.push(share);
                kind.notes.extend(mark.filter(|mark| !kind.notes.contains(mark)));
            }
        }
    }
    let line = |kind: Kind<'_>| {
        let shares = &kind.shares;
        let above = shares.iter().filter(|share| **share > 1.0).count();
        let least = shares.iter().copied().fold(f64::INFINITY, f64::min);
        let most = shares.iter().copied().fold(0.0, f64::max);
        let config = kind.config.trim_start_matches("forebay/");
        Line::Cells(vec![
            Cell::new(format!("{}, {config}", kind.name)).notes(kind.notes.clone()),
            Cell::new(metric(kind.metric)),
            Cell::new("no figures"),
            Cell::new("-"),
            Cell::new("-"),
            Cell::new(format!("{above} of {} above the SSD", shares.len())),
            Cell::new(format!("{} to {}", number(least), number(most))),
            Cell::new("-"),
            judged(Outcome::NoFigure),
            Cell::default(),
            Cell::default(),
        ])
    };
    kinds.into_iter().map(line).collect()
}

fn verdict_table(input: &Input, notes: &mut Notes) -> Table {
    let heading = vec![
        "Experiment",
        "Metric",
        "Best published",
        "Value",
        "x SSD",
        "Forebay",
        "x SSD",
        "Ratio",
        "Beaten",
        "Goal",
        "strict x SSD, beaten",
    ];
    let mut lines = Vec::new();
    for report in reports(input) {
        lines.push(Line::Over(Cell::new(heading_of(input, report))));
        for verdict in verdicts(input, report) {
            if verdict.outcome != Outcome::NoFigure {
                lines.push(verdict_line(&verdict, notes));
            }
        }
        lines.extend(without_figures(input, report, notes));
    }
    Table { heading, left: 3, lines }
}

fn counts_table(input: &Input) -> (Table, Counts) {
    let mut all = Counts::default();
    let line = |name: String, counts: &Counts| {
        Line::Cells(vec![
            Cell::new(name),
            Cell::new(counts.beaten.to_string()),
            Cell::new(counts.not_beaten.to_string()),
            Cell::new(counts.not_run.to_string()),
            Cell::new(counts.no_figure.to_string()),
            Cell::new(format!("{} of {}", counts.goals_met, counts.goals)),
            Cell::new(format!("{} of {}", counts.baselines_good, counts.baselines)),
        ])
    };
    let mut lines = Vec::new();
    for report in reports(input) {
        let counts = Counts::of(input, report);
        lines.push(line(heading_of(input, report), &counts));
        all.add(&counts);
    }
    lines.push(line("all".into(), &all));
    let heading = vec![
        "Report",
        "Beaten",
        "Not beaten",
        "Not run",
        "No figure",
        "Goals met",
        "Baselines within 3 %",
    ];
    (Table { heading, left: 1, lines }, all)
}

fn summary(all: &Counts) -> String {
    let run = all.beaten + all.not_beaten;
    let mut text = format!(
        "Of {run} published figures of caches that were run again, Forebay beats {} with its own \
         settings and does not beat {}.",
        all.beaten, all.not_beaten
    );
    if all.not_run > 0 {
        text.push_str(&format!(
            " {} more were not run, as virtual time can say nothing about them.",
            all.not_run
        ));
    }
    if all.no_figure > 0 {
        text.push_str(&format!(
            " For {} experiments only claims were published; in {} of them Forebay is above the \
             modelled SSD.",
            all.no_figure, all.above_ssd
        ));
    }
    text.push_str(&format!(
        " {} of {} goals are met. {} of {} baselines of the models are within 3 % of the published \
         bare devices.",
        all.goals_met, all.goals, all.baselines_good, all.baselines
    ));
    text
}

/// With which `sequential_cutoff` the beaten rows were run, if they say it.
fn cutoffs(input: &Input, all: &Counts) -> Option<Block> {
    if all.without_cutoff == 0 {
        return None;
    }
    let of = |report: &&str| Counts::of(input, report).without_cutoff > 0;
    let of: Vec<&str> = reports(input).into_iter().filter(of).collect();
    let mut text = format!(
        "{} of the {} figures that are beaten were measured with `sequential_cutoff` off ({}), which \
         is not the default: by default a stream goes round the cache once it is 4 MiB long. That \
         spares the SSD, and leaves long streams as fast as the disk is. `forebay set NAME \
         sequential_cutoff=0` is what these rows have.",
        all.without_cutoff,
        all.beaten,
        of.join(", ")
    );
    let mut limited: Vec<String> = Vec::new();
    for row in &input.rows {
        let name = format!("`{}` of {}", row.config, row.report);
        let has_limit = row.sequential_cutoff.is_some_and(|bytes| bytes > 0);
        if has_limit && of.contains(&row.report.as_str()) && !limited.contains(&name) {
            limited.push(name);
        }
    }
    if !limited.is_empty() {
        text.push_str(&format!(" With the limit: {}.", limited.join(", ")));
    }
    Some(Block::Text(text))
}

fn how_it_was_made(input: &Input) -> Vec<Block> {
    let unknown = || "unknown".to_owned();
    let command = input.about.command.clone().unwrap_or_else(unknown);
    let revision = input.about.revision.clone().unwrap_or_else(unknown);
    let mut text = format!(
        "Revision {revision}, seed {}. The same seed gives the same rows on every machine.",
        input.seed
    );
    if input.scale < 1.0 {
        text.push_str(&format!(
            " Only {} of the reports' times were run: an impression, not a result.",
            number(input.scale)
        ));
    }
    vec![Block::Code(format!("{command} --report DIR")), Block::Text(text)]
}

fn list(items: &[&str]) -> Block {
    Block::List(items.iter().map(|item| (*item).to_owned()).collect())
}

fn heading(level: u8, name: impl Into<String>, text: impl Into<String>) -> Block {
    Block::Heading(level, name.into(), text.into())
}

/// The whole document.
///
/// # Errors
/// A figure cannot be drawn.
pub(super) fn document(input: &Input) -> LabResult<Vec<Block>> {
    let mut notes = Notes::default();
    let mut sections = Vec::new();
    let mut contents = Vec::new();
    for report in reports(input) {
        let name = format!("report-{report}");
        contents.push((name.clone(), heading_of(input, report)));
        sections.push(heading(2, name, heading_of(input, report)));
        if let Some(text) = text_of(input, report) {
            sections.push(Block::List(text.cautions.clone()));
        }
        sections.extend(figures(input, report)?);
        sections.push(heading(3, format!("rows-{report}"), format!("All rows of {report}")));
        sections.push(Block::Table(rows(input, report, &mut notes)));
        let own = notes.of(report);
        if !own.is_empty() {
            sections.push(heading(3, format!("notes-{report}"), format!("Notes on {report}")));
            sections.push(Block::Notes(own));
        }
    }
    let (counts, all) = counts_table(input);
    let mut blocks = vec![heading(1, "top", TITLE), Block::Text(summary(&all))];
    blocks.push(Block::Table(counts));
    blocks.extend(how_it_was_made(input));
    blocks.push(Block::Contents(contents));
    blocks.push(heading(2, "beaten", "What is beaten, and what is not"));
    blocks.extend(cutoffs(input, &all));
    blocks.push(Block::Table(verdict_table(input, &mut notes)));
    blocks.push(heading(2, "reading", "How to read this"));
    blocks.push(list(&HOW_TO_READ));
    blocks.push(heading(2, "models", "What a model can say, and what it cannot"));
    blocks.push(list(&MODELS));
    blocks.extend(sections);
    Ok(blocks)
}
