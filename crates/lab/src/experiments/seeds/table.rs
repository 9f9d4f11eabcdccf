//! Rows as aligned tables.

use std::collections::BTreeMap;

use crate::output::Table;
use crate::report::rows::{Number, Row};

use super::published::{DISK, Report, SSD};

fn number(value: f64) -> String {
    match value.abs() {
        1000.0.. => format!("{value:.0}"),
        100.0.. => format!("{value:.1}"),
        1.0.. => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

fn cell(value: Option<Number>) -> String {
    value.map_or_else(|| "-".into(), |value| number(value.0))
}

fn published(values: &BTreeMap<String, Number>) -> String {
    let order = |name: &str| match name {
        DISK => 0,
        SSD => 1,
        _ => 2,
    };
    let mut values: Vec<_> = values.iter().collect();
    values.sort_by_key(|(name, _)| order(name));
    let parts = values.iter().map(|(name, value)| format!("{name} {}", number(value.0)));
    parts.collect::<Vec<_>>().join(", ")
}

const HEADING: &str = "EXPERIMENT | METRIC | CONFIG | VALUE | sd | x SSD | PUBLISHED | GOAL | \
    HITS | SSD B/B | DISK | p50 us | p99 us | s | NOTE";

/// Whether a row meets its goal; or how far a model's baseline is off.
fn goal(row: &Row) -> String {
    match (&row.goal, &row.baseline) {
        (Some(goal), _) => {
            let met = if goal.met { "met" } else { "MISSED" };
            format!("{} {met}", number(goal.at_least.0))
        }
        (None, Some(baseline)) => {
            let off = if baseline.good { "" } else { " OFF" };
            format!("{:+.1} %{off}", baseline.error.0 * 100.0)
        }
        (None, None) => String::new(),
    }
}

/// A report's rows: what was published over each group, then ours.
pub(crate) fn print(report: &Report, rows: &[Row]) {
    println!("\n{} {}", report.text.number, report.text.title);
    for caution in &report.text.cautions {
        println!("  - {caution}");
    }
    let mut notes: Vec<String> = Vec::new();
    let mut bad = Vec::new();
    let mut table = Table::new(HEADING);
    let mut last = (String::new(), String::new());
    for row in rows {
        let group = (row.experiment.clone(), row.metric.clone());
        if group != last {
            let values = format!("published: {}", published(&row.published));
            table.row([row.experiment.clone(), row.metric.clone(), values]);
            last = group;
        }
        if row.config == "published only" && row.note.is_none() {
            continue;
        }
        let note = row.note.as_ref().map_or_else(String::new, |note| {
            let known = notes.iter().position(|known| known == note);
            let index = known.unwrap_or_else(|| {
                notes.push(note.clone());
                notes.len() - 1
            });
            format!("[{}]", index + 1)
        });
        if let (None, Some(baseline)) = (&row.goal, &row.baseline)
            && !baseline.good
        {
            let name = format!("{} {} {}", row.experiment, row.config, row.metric);
            bad.push(format!("{name}: {:+.1} %", baseline.error.0 * 100.0));
        }
        let system = row.published_system.as_deref().unwrap_or("");
        let theirs = row
            .published_share
            .map_or_else(String::new, |share| format!("{} {system}", number(share.0)));
        table.row([
            String::new(),
            String::new(),
            row.config.clone(),
            cell(row.value),
            cell(row.sd),
            cell(row.share_of_ssd),
            theirs,
            goal(row),
            cell(row.hit_ratio),
            cell(row.ssd_bytes_per_user_byte),
            cell(row.disk_busy),
            cell(row.p50_us),
            cell(row.p99_us),
            cell(row.seconds),
            note,
        ]);
    }
    print!("{}", table.render());
    for (index, note) in notes.iter().enumerate() {
        println!("[{}] {note}", index + 1);
    }
    if !bad.is_empty() {
        println!("Baselines of the models that are off by more than 3 %:");
        for line in bad {
            println!("  {line}");
        }
    }
}
