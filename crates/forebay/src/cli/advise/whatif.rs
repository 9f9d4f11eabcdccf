//! Advice about other settings.

use forebay_admin::curve::{CurveReport, WhatIf, WhatIfRow};
use forebay_core::units::format_size;

use super::words::of;
use crate::output::table::{Column, Table};
use crate::output::volume::grouped;

/// The smallest changes, of a hit ratio and of the bytes written, that the advice mentions.
const NOTABLE: (f64, f64) = (0.01, 0.1);

/// Number of accesses below which other settings are not predicted.
const FEWEST: u64 = 10_000;

/// Returns the text for a volume; empty if nothing was read or written, or nothing is cached.
pub(super) fn text(report: &CurveReport) -> String {
    let Some(what_if) = report.what_if.as_ref().filter(|what_if| what_if.accesses > 0) else {
        return String::new();
    };
    let of = of(what_if.reads);
    let count = grouped(what_if.accesses);
    if what_if.accesses < FEWEST {
        return format!(
            "\nThe present settings have seen {count} blocks, too few to compare others with them.\n"
        );
    }
    let mut table = Table::new(&[
        Column::left("SETTING"),
        Column::right(if what_if.reads > 0 { "READS HIT" } else { "ALL HIT" }),
        Column::right("GAIN"),
        Column::right("±"),
        Column::right("WRITTEN TO CACHE"),
        Column::right("CHANGE"),
    ]);
    for row in &what_if.rows {
        let points = |value: f64| format!("{:.1}", value * 100.0);
        let other = row.setting.is_some();
        let or_none = |text: String| if other { text } else { "-".to_owned() };
        let change = row.written_change.map(|change| format!("{:+.0} %", change * 100.0));
        table.row([
            row.setting.clone().unwrap_or_else(|| "now".to_owned()),
            format!("{} %", points(row.hits.share)),
            or_none(format!("{:+.1}", row.gain.share * 100.0)),
            or_none(points(row.gain.error)),
            format_size(row.written_bytes),
            or_none(change.unwrap_or_else(|| "-".to_owned())),
        ]);
    }
    format!(
        "\nOther settings, for the {count} blocks since the present ones are in force:\n\n{}\n{}",
        table.render(),
        verdict(what_if, of)
    )
}

/// Names the row that hits most, and of those that hit hardly less the one that writes least.
fn verdict(what_if: &WhatIf, of: &str) -> String {
    let (hits, writes) = NOTABLE;
    let best = |wanted: &dyn Fn(&WhatIfRow) -> bool, value: &dyn Fn(&WhatIfRow) -> f64| {
        let rows = what_if.rows.iter().filter(|row| row.setting.is_some() && wanted(row));
        rows.max_by(|a, b| value(a).total_cmp(&value(b)))
    };
    let gains = |row: &WhatIfRow| row.gain.share >= hits && row.gain.share > row.gain.error;
    let spares = |row: &WhatIfRow| {
        row.written_change.is_some_and(|change| change <= -writes) && row.gain.share > -hits
    };
    let hits_most = best(&gains, &|row| row.gain.share);
    let writes_least = best(&spares, &|row| -row.written_change.unwrap_or(0.0));
    let mut text = String::new();
    let same = |row: &&WhatIfRow| hits_most.is_none_or(|other| other.setting != row.setting);
    for row in hits_most.into_iter().chain(writes_least.filter(same)) {
        text += &sentence(row, of);
    }
    if text.is_empty() {
        text = "None of them is clearly better.\n".to_owned();
    }
    text
}

fn sentence(row: &WhatIfRow, of: &str) -> String {
    let setting = row.setting.as_deref().unwrap_or("now");
    let written = match row.written_change {
        Some(change) if change.abs() >= 0.005 => {
            let word = if change < 0.0 { "less" } else { "more" };
            format!("write {:.0} % {word} to the cache device", change.abs() * 100.0)
        }
        _ => "write as much to the cache device".to_owned(),
    };
    let points = row.gain.share * 100.0;
    let missed = match points {
        _ if points.abs() < 0.05 => format!("miss as many of the {of}"),
        _ if points < 0.0 => format!("miss {:.1} points more of the {of}", -points),
        _ => format!("miss {points:.1} points less of the {of}"),
    };
    format!("{setting} would {written} and {missed}.\n")
}

#[cfg(test)]
mod tests {
    use forebay_admin::curve::Hits;

    use super::*;

    fn row(setting: Option<&str>, gain: f64, change: Option<f64>) -> WhatIfRow {
        let hits = |share| Hits { share, error: 0.002 };
        let written_bytes = 1 << 30;
        let setting = setting.map(str::to_owned);
        WhatIfRow {
            setting,
            hits: hits(0.5 + gain),
            ram: 0.0,
            gain: hits(gain),
            written_bytes,
            written_change: change,
        }
    }

    fn verdict_of(rows: Vec<WhatIfRow>) -> String {
        verdict(&WhatIf { accesses: 1 << 20, reads: 1, rows }, "reads")
    }

    #[test]
    fn the_best_for_hits_and_the_best_for_the_device_are_named() {
        let rows = vec![
            row(None, 0.0, Some(0.0)),
            row(Some("admission=second-hit"), -0.004, Some(-0.61)),
            row(Some("admission=ghost:2"), -0.02, Some(-0.7)),
            row(Some("policy=arc"), 0.03, Some(0.2)),
            row(Some("policy=lru"), 0.02, Some(-0.05)),
        ];
        let expected = "policy=arc would write 20 % more to the cache device and miss 3.0 points less of the reads.\n\
                        admission=second-hit would write 61 % less to the cache device and miss 0.4 points more of the reads.\n";
        assert_eq!(verdict_of(rows), expected);
    }

    #[test]
    fn small_differences_recommend_nothing() {
        let rows = vec![
            row(None, 0.0, None),
            row(Some("policy=arc"), 0.009, None),
            row(Some("ram=1G"), 0.001, Some(-0.05)),
        ];
        assert_eq!(verdict_of(rows), "None of them is clearly better.\n");
        let both = vec![row(Some("policy=arc"), 0.05, Some(-0.5))];
        assert_eq!(verdict_of(both).lines().count(), 1);
    }
}
