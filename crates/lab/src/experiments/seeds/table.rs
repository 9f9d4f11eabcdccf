//! Rows as aligned tables.

use crate::error::LabResult;
use crate::output::{self, table};
use crate::report::rows::{Number, Row};

use super::published::Report;

impl output::Row for Row {
    const COLUMNS: &'static str = "EXPERIMENT=experiment | METRIC=metric | CONFIG=config | \
        VALUE=value:~ | sd=sd:~ | x SSD=share_of_ssd:~ | PUBLISHED=published_share:~ | \
        BY=published_system | GOAL=goal.at_least:~ | MET=goal.met:MISSED/met | \
        OFF BY=baseline.error:1% | HITS=hit_ratio:~ | SSD B/B=ssd_bytes_per_user_byte:~ | \
        DISK=disk_busy:~ | p50 us=p50_us:~ | p99 us=p99_us:~ | s=seconds:~";
}

/// A published value, in the columns of the rows.
fn published((name, value): (&String, &Number), row: &Row) -> Row {
    Row {
        experiment: row.experiment.clone(),
        metric: row.metric.clone(),
        config: format!("published: {name}"),
        value: Some(*value),
        ..Row::default()
    }
}

/// Prints a report's rows: before each group of ours the published values.
pub(crate) fn print(report: &Report, rows: &[Row]) -> LabResult<()> {
    println!("\n{} {}", report.text.number, report.text.title);
    for caution in &report.text.cautions {
        println!("  - {caution}");
    }
    let mut lines: Vec<Row> = Vec::new();
    for row in rows {
        let same = |last: &Row| (&last.experiment, &last.metric) == (&row.experiment, &row.metric);
        if !lines.last().is_some_and(same) {
            lines.extend(row.published.iter().map(|value| published(value, row)));
        }
        if row.config != "published only" || row.note.is_some() {
            lines.push(Row { detail: None, ..row.clone() });
        }
    }
    print!("{}", table(&lines)?);
    let noted = rows.iter().filter_map(|row| Some((row, row.note.as_ref()?)));
    for (row, note) in noted {
        println!("{}, {}: {note}", row.experiment, row.config);
    }
    for row in rows.iter().filter(|row| row.goal.is_none()) {
        if let Some(baseline) = row.baseline.as_ref().filter(|baseline| !baseline.good) {
            let off = baseline.error.0 * 100.0;
            println!("{} {}: the model is off by {off:+.1} %", row.experiment, row.config);
        }
    }
    Ok(())
}
