//! The recommendation in words.

use forebay_admin::curve::{CurveReport, CurveRow, Hits};
use forebay_core::units::format_size;

use super::Advice;
use crate::output::table::{Column, Table};
use crate::output::volume::grouped;

/// Least gain in hit ratio per doubling that makes a larger cache worth it.
const WORTH: f64 = 0.03;

/// A cache with a lower hit ratio helps little.
const LITTLE: f64 = 0.05;

/// Returns the gain in hit ratio from `from` to `to`, per doubling of the size.
fn gain(from: &CurveRow, to: &CurveRow) -> f64 {
    let doublings = (to.bytes as f64 / from.bytes.max(1) as f64).log2();
    if doublings > 0.0 { (to.hits().share - from.hits().share) / doublings } else { 0.0 }
}

/// Returns the smallest size in bytes that helps and that no larger size improves enough.
pub(super) fn take(rows: &[CurveRow]) -> Option<u64> {
    let enough = |(at, row): &(usize, &CurveRow)| {
        let mut larger = rows.iter().skip(at + 1);
        row.hits().share >= LITTLE && larger.all(|more| gain(row, more) < WORTH)
    };
    rows.iter().enumerate().find(enough).map(|(_, row)| row.bytes)
}

/// Formats a share as `42 %`.
pub(super) fn percent(hits: Hits) -> String {
    format!("{:.0} %", hits.share * 100.0)
}

/// Returns the end of a recommendation: whether a larger size than `taken` would pay.
pub(super) fn beyond(taken: u64, sizes: impl Iterator<Item = u64>, footprint: u64) -> String {
    if taken >= footprint {
        "all that was touched fits".to_owned()
    } else if sizes.max() <= Some(taken) {
        "no larger size was compared".to_owned()
    } else {
        format!("beyond that, each doubling adds less than {:.0} %", WORTH * 100.0)
    }
}

/// Input shared by the texts about a trace and about a volume.
struct Curve<'a> {
    rows: &'a [CurveRow],
    reads: u64,
    accesses: u64,
    one_of: u64,
    sampled_blocks: u64,
    /// Bytes that were touched, about.
    footprint: u64,
    /// The text for the case that nothing was read or written.
    nothing: &'a str,
}

/// Returns the full text for a trace.
pub(super) fn of_trace(advice: &Advice) -> String {
    let head = format!(
        "{}: {} requests, {} blocks read and {} written; about {} touched",
        advice.trace,
        grouped(advice.requests),
        grouped(advice.reads),
        grouped(advice.accesses.saturating_sub(advice.reads)),
        format_size(advice.footprint),
    );
    let curve = Curve {
        rows: &advice.rows,
        reads: advice.reads,
        accesses: advice.accesses,
        one_of: advice.one_of,
        sampled_blocks: advice.sampled_blocks as u64,
        footprint: advice.footprint,
        nothing: "The trace reads and writes nothing.",
    };
    format!("{head}\n\n{}", text(&curve))
}

/// Returns the full text for a volume.
pub(super) fn of_volume(report: &CurveReport) -> String {
    let head = format!(
        "{}: {} blocks of {} read and {} written since it was started; about {} touched",
        report.volume,
        grouped(report.reads),
        format_size(report.block_size),
        grouped(report.accesses.saturating_sub(report.reads)),
        format_size(report.footprint),
    );
    let curve = Curve {
        rows: &report.rows,
        reads: report.reads,
        accesses: report.accesses,
        one_of: report.one_of,
        sampled_blocks: report.sampled_blocks,
        footprint: report.footprint,
        nothing: "Nothing was read or written yet.",
    };
    let mut text = format!("{head}\n\n{}", text(&curve));
    if report.present.bytes > 0 && report.accesses > 0 {
        text += &format!(
            "A cache of the present size, {}, for this volume alone: {} of {}{}.\n",
            format_size(report.present.bytes),
            percent(report.present.hits()),
            of(report.reads),
            if report.ram.is_some() { ", those from RAM included" } else { "" },
        );
    }
    if let Some(rotational) = report.rotational.filter(|_| report.accesses > 0) {
        text += match rotational {
            true => {
                "The origin is rotational: a miss costs it a seek, and others wait meanwhile.\n"
            }
            false => {
                "The origin is not rotational: a miss costs its latency, and many are served at a time.\n"
            }
        };
    }
    text
}

/// Returns the whole that the shares refer to, if `reads` blocks were read.
pub(super) fn of(reads: u64) -> &'static str {
    if reads > 0 { "reads" } else { "accesses" }
}

fn text(curve: &Curve<'_>) -> String {
    if curve.accesses == 0 {
        return format!("{}\n", curve.nothing);
    }
    let of = of(curve.reads);
    let mut table = Table::new(&[
        Column::right("SIZE"),
        Column::right("READS HIT"),
        Column::right("±"),
        Column::right("ALL HIT"),
        Column::right("±"),
        Column::right("PER DOUBLING"),
    ]);
    let cells = |hits: Option<Hits>| match hits {
        Some(hits) => {
            [format!("{:.1} %", hits.share * 100.0), format!("{:.1}", hits.error * 100.0)]
        }
        None => ["-".to_owned(), "-".to_owned()],
    };
    let mut before = None;
    for row in curve.rows {
        let size = [format_size(row.bytes)].into_iter();
        let gain = before.replace(row).map(|before| format!("{:+.1} %", gain(before, row) * 100.0));
        let gain = gain.unwrap_or_else(|| "-".to_owned());
        table.row(size.chain(cells(row.reads)).chain(cells(Some(row.all))).chain([gain]));
    }
    let mut text = table.render() + "\n";
    let taken = take(curve.rows).and_then(|bytes| curve.rows.iter().find(|row| row.bytes == bytes));
    text += &match taken {
        Some(row) => format!(
            "Take {}: it hits {} of {of}; {}.\n",
            format_size(row.bytes),
            percent(row.hits()),
            beyond(row.bytes, curve.rows.iter().map(|row| row.bytes), curve.footprint)
        ),
        None => "A cache helps little here: hardly any block is used twice.\n".to_owned(),
    };
    text += &match curve.one_of {
        1 => "Exact: all blocks were sampled.\n".to_owned(),
        one_of => format!(
            "From a sample of {} blocks, one of {one_of}; ± is the difference between eight parts of it.\n",
            grouped(curve.sampled_blocks)
        ),
    };
    text
}

#[cfg(test)]
mod tests {
    use forebay_admin::curve::RamRow;

    use super::*;

    fn rows(shares: &[(u64, f64)]) -> Vec<CurveRow> {
        let row = |(gigabytes, share): &(u64, f64)| {
            let hits = Hits { share: *share, error: 0.01 };
            CurveRow { bytes: gigabytes << 30, reads: Some(hits), all: hits }
        };
        shares.iter().map(row).collect()
    }

    fn advice(shares: &[(u64, f64)]) -> Advice {
        let rows = rows(shares);
        Advice {
            trace: "t".to_owned(),
            format: "csv",
            requests: 2000,
            accesses: 4000,
            reads: 3000,
            footprint: 1 << 40,
            align: 0,
            one_of: 100,
            sampled_blocks: 1234,
            state_bytes: 0,
            take: take(&rows),
            rows,
            ram_before: 0,
            ram_rows: Vec::new(),
            take_ram: None,
        }
    }

    #[test]
    fn a_useless_cache_is_called_useless() {
        let text = of_trace(&advice(&[(32, 0.4), (64, 0.71), (128, 0.73)]));
        let take =
            "Take 64G: it hits 71 % of reads; beyond that, each doubling adds less than 3 %.";
        assert!(text.contains(take), "{text}");
        assert!(text.contains("From a sample of 1,234 blocks, one of 100"), "{text}");
        assert!(text.lines().any(|line| {
            line.split_whitespace()
                .eq(["64G", "71.0", "%", "1.0", "71.0", "%", "1.0", "+31.0", "%"])
        }));
    }

    #[test]
    fn the_largest_size_is_no_promise_about_larger_ones() {
        let text = of_trace(&advice(&[(32, 0.4), (64, 0.71)]));
        assert!(text.contains("71 % of reads; no larger size was compared.\n"), "{text}");
        let text = of_trace(&advice(&[(32, 0.4), (1024, 0.71)]));
        assert!(text.contains("71 % of reads; all that was touched fits.\n"), "{text}");
    }

    #[test]
    fn a_volume_is_told_what_its_present_size_does() {
        let rows = rows(&[(32, 0.4), (64, 0.71)]);
        let mut report = CurveReport {
            volume: "data".parse().expect("a name"),
            block_size: 4096,
            accesses: 4000,
            reads: 3000,
            footprint: 1 << 40,
            one_of: 1024,
            sampled_blocks: 77,
            state_bytes: 0,
            present: rows[0],
            rotational: Some(true),
            what_if: None,
            ram: None,
            ram_rows: Vec::new(),
            curve: Vec::new(),
            rows,
        };
        let text = of_volume(&report);
        assert!(
            text.starts_with("data: 3,000 blocks of 4K read and 1,000 written since"),
            "{text}"
        );
        assert!(
            text.contains("Take 64G") && text.contains("From a sample of 77 blocks, one of 1024"),
            "{text}"
        );
        assert!(text.contains("of the present size, 32G, for this volume alone: 40 % of reads.\n"));
        assert!(text.ends_with("a miss costs it a seek, and others wait meanwhile.\n"), "{text}");
        report.rotational = Some(false);
        assert!(
            of_volume(&report).contains("The origin is not rotational: a miss costs its latency")
        );
        let hits = |share| Hits { share, error: 0.0 };
        let row = RamRow { bytes: 1 << 30, ram: hits(0.3), cache: 0.1, origin: hits(0.6) };
        report.ram = Some(row);
        let with = of_volume(&report);
        assert!(with.contains("alone: 40 % of reads, those from RAM included.\n"), "{with}");
        report.present.bytes = 0;
        assert!(!of_volume(&report).contains("A cache of the present size"));
        (report.accesses, report.reads, report.rows) = (0, 0, Vec::new());
        assert!(of_volume(&report).ends_with("touched\n\nNothing was read or written yet.\n"));
    }

    #[test]
    fn a_step_that_pays_only_later_is_seen() {
        let take = |shares: &[(u64, f64)]| take(&rows(shares)).map(|bytes| bytes >> 30);
        assert_eq!(take(&[(1, 0.1), (2, 0.11), (4, 0.11), (8, 0.7)]), Some(8));
        assert_eq!(take(&[(1, 0.5), (2, 0.51), (4, 0.52)]), Some(1));
        assert_eq!(take(&[(1, 0.5), (4, 0.55)]), Some(1), "two doublings");
        assert_eq!(take(&[(1, 0.0), (4, 0.055), (8, 0.06)]), Some(4), "none is nothing");
        assert_eq!(take(&[(1, 0.01), (2, 0.02)]), None);
        assert_eq!(take(&[]), None);
        assert!(of_trace(&advice(&[(1, 0.01)])).contains("helps little"));
    }
}
