//! The content of the page for the templates: `document.j2` has its outline, `markdown.j2` the
//! form of its parts.

use std::collections::BTreeMap;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{AutoEscape, Environment, UndefinedBehavior, Value};
use serde::Serialize;

use crate::error::{LabResult, other};

use super::figures::{Figure, figures, place};
use super::rows::{About, ReportText, Row, Rows};
use super::verdict::{Counts, Group, Verdict, groups, is_cache, reports, verdicts};
use super::words::{blank, flat, markdown, metric, number, percent};

const TITLE: &str = "Five published cache benchmarks, and Forebay";

/// Footnotes of the document: numbered on, each text once in a report.
#[derive(Default)]
struct Notes {
    count: usize,
}

impl Notes {
    /// The notes of a report, with their numbers.
    fn of(&mut self, groups: &[Group<'_>]) -> Vec<(usize, String)> {
        let mut notes: Vec<(usize, String)> = Vec::new();
        for note in groups.iter().flat_map(|group| &group.rows).filter_map(|row| row.note.as_ref())
        {
            if !notes.iter().any(|(_, known)| known == note) {
                self.count += 1;
                notes.push((self.count, note.clone()));
            }
        }
        notes
    }
}

/// One report.
#[derive(Serialize)]
struct Report<'a> {
    number: &'a str,
    heading: String,
    text: Option<&'a ReportText>,
    counts: Counts,
    verdicts: Vec<Verdict<'a>>,
    without_figures: Vec<Kind<'a>>,
    figures: Vec<Figure>,
    groups: Vec<Shown<'a>>,
    notes: Vec<(usize, String)>,
    /// The same by their texts.
    numbers: BTreeMap<String, usize>,
}

/// The rows of one experiment and metric.
#[derive(Serialize)]
struct Shown<'a> {
    experiment: &'a str,
    metric: &'a str,
    published: String,
    less: bool,
    rows: Vec<Row>,
}

impl<'a> Shown<'a> {
    fn new(group: &Group<'a>) -> Self {
        let published = group.rows.first().map(|row| &row.published);
        let mut values: Vec<_> = published.into_iter().flatten().collect();
        values.sort_by_key(|(name, _)| (is_cache(name), name.as_str()));
        let values: Vec<String> = values
            .iter()
            .map(|(name, value)| format!("{name} {}", number(Some(value.0))))
            .collect();
        Shown {
            experiment: group.experiment,
            metric: group.metric,
            published: match values.as_slice() {
                [] => String::new(),
                values => format!(" (published: {})", values.join(", ")),
            },
            less: group.less_is_better(),
            // Details are in the figures only.
            rows: group.rows.iter().map(|row| Row { detail: None, ..(*row).clone() }).collect(),
        }
    }
}

/// Experiments of one kind of which the report gives no figures, against the bare SSD.
#[derive(Serialize)]
struct Kind<'a> {
    name: String,
    config: &'a str,
    metric: &'a str,
    above: usize,
    count: usize,
    least: f64,
    most: f64,
    notes: Vec<&'a str>,
}

fn without_figures<'a>(groups: &[Group<'a>]) -> Vec<Kind<'a>> {
    let mut kinds: Vec<Kind<'_>> = Vec::new();
    for group in groups {
        if group.rows.first().is_none_or(|row| row.published.keys().any(|name| is_cache(name))) {
            continue;
        }
        for row in group.rows.iter().filter(|row| row.is_forebay()) {
            let Some(share) = row.share_of_ssd else { continue };
            let ((name, _), metric) = (place(group.experiment), group.metric);
            let config = row.config.trim_start_matches("forebay/");
            let known = kinds.iter().position(|kind| kind.name == name && kind.config == config);
            let index = known.unwrap_or_else(|| {
                let (least, most, notes) = (f64::INFINITY, 0.0, Vec::new());
                kinds.push(Kind { name, config, metric, above: 0, count: 0, least, most, notes });
                kinds.len() - 1
            });
            let kind = &mut kinds[index];
            kind.above += usize::from(share.0 > 1.0);
            kind.count += 1;
            (kind.least, kind.most) = (kind.least.min(share.0), kind.most.max(share.0));
            kind.notes.extend(row.note.as_deref().filter(|note| !kind.notes.contains(note)));
        }
    }
    kinds
}

/// Configurations that were run with a limit for streams, in reports that have rows without one.
fn limited(input: &Rows, without: &[&str]) -> Vec<String> {
    let mut limited: Vec<String> = Vec::new();
    for row in input.rows.iter().filter(|row| without.contains(&&*row.report)) {
        let name = format!("`{}` of {}", row.config, row.report);
        if row.sequential_cutoff.is_some_and(|bytes| bytes > 0) && !limited.contains(&name) {
            limited.push(name);
        }
    }
    limited
}

/// Values for `document.j2`.
#[derive(Serialize)]
struct Document<'a> {
    title: &'a str,
    seed: u64,
    scale: f64,
    about: &'a About,
    all: Counts,
    /// Names and headings to go to.
    contents: Vec<(String, &'a str)>,
    reports: &'a [Report<'a>],
    /// Reports with rows that are beaten and were run without a limit for streams.
    without_cutoff: &'a [&'a str],
    limited: Vec<String>,
}

/// The pages and their figures, by file name.
pub(super) fn render(input: &Rows) -> LabResult<Vec<(String, String)>> {
    let about = input.about.clone().unwrap_or_default();
    let mut notes = Notes::default();
    let report = |number| {
        let groups = groups(input, number);
        let text = about.reports.iter().find(|text| text.number == number);
        let notes = notes.of(&groups);
        Ok(Report {
            number,
            heading: text.map_or(number.to_owned(), |text| format!("{number}: {}", text.title)),
            text,
            counts: Counts::of(input, &[number]),
            verdicts: verdicts(input, number),
            without_figures: without_figures(&groups),
            figures: figures(input, number)?,
            groups: groups.iter().map(Shown::new).collect(),
            numbers: notes.iter().map(|(number, text)| (text.clone(), *number)).collect(),
            notes,
        })
    };
    let reports: Vec<Report<'_>> =
        reports(input).into_iter().map(report).collect::<LabResult<_>>()?;
    let all: Vec<&str> = reports.iter().map(|report| report.number).collect();
    let without = reports.iter().filter(|report| report.counts.without_cutoff > 0);
    let without: Vec<&str> = without.map(|report| report.number).collect();
    let context = Value::from(Serde(Document {
        title: TITLE,
        seed: input.seed,
        scale: input.scale,
        about: &about,
        all: Counts::of(input, &all),
        contents: reports.iter().map(|r| (format!("report-{}", r.number), &*r.heading)).collect(),
        reports: &reports,
        limited: limited(input, &without),
        without_cutoff: &without,
    }));
    let failed = |error: minijinja::Error| other(format!("the pages cannot be made: {error:#}"));
    let environment = environment().map_err(failed)?;
    let template = environment.get_template("document.j2").map_err(failed)?;
    let markdown = template.render(context).map_err(failed)?;
    let mut files = vec![("README.md".to_owned(), format!("{}\n", markdown.trim_end()))];
    files.extend(reports.into_iter().flat_map(|r| r.figures).map(|f| (f.file, f.svg)));
    Ok(files)
}

fn environment() -> Result<Environment<'static>, minijinja::Error> {
    let mut environment = Environment::new();
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_undefined_behavior(UndefinedBehavior::Chainable);
    environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    environment.add_template("document.j2", include_str!("../../templates/document.j2"))?;
    environment.add_template("markdown.j2", include_str!("../../templates/markdown.j2"))?;
    environment.add_filter("markdown", |text: String| markdown(&text));
    environment.add_filter("flat", |text: String| flat(&text));
    let short = |text: String| text.split(": ").next().unwrap_or_default().to_owned();
    environment.add_filter("short", short);
    environment.add_filter("metric", |name: String| metric(&name).to_owned());
    environment.add_filter("number", number);
    environment.add_filter("blank", blank);
    environment.add_filter("percent", percent);
    environment.add_filter("note", |text: Value, numbers: Value| numbers.get_item(&text));
    Ok(environment)
}
