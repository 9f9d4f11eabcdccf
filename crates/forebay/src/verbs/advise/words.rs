//! What a curve means, in words.

use forebay_core::units::format_size;

use super::{Advice, Hits, Row};
use crate::output::table::{Column, Table};
use crate::output::volume::grouped;

/// What a cache of twice the size has to hit more to be worth it.
const WORTH: f64 = 0.03;

/// A cache that hits less does little.
const LITTLE: f64 = 0.05;

/// What `to` hits more than `from`, for each doubling of the size.
fn gain(from: &Row, to: &Row) -> f64 {
    let doublings = (to.bytes as f64 / from.bytes.max(1) as f64).log2();
    if doublings > 0.0 { (to.hits().share - from.hits().share) / doublings } else { 0.0 }
}

/// The smallest size that does something and of which no larger one is worth it, in bytes.
pub(super) fn take(rows: &[Row]) -> Option<u64> {
    let enough = |(at, row): &(usize, &Row)| {
        let mut larger = rows.iter().skip(at + 1);
        row.hits().share >= LITTLE && larger.all(|more| gain(row, more) < WORTH)
    };
    rows.iter().enumerate().find(enough).map(|(_, row)| row.bytes)
}

fn percent(hits: Hits) -> String {
    format!("{:.0} %", hits.share * 100.0)
}

/// Sizes one after the other, each with what it adds to the one before.
fn sentence(rows: &[Row], of: &str) -> String {
    let mut parts = Vec::new();
    for (at, row) in rows.iter().enumerate() {
        let before = at.checked_sub(1).and_then(|at| rows.get(at));
        let of = if at == 0 { format!(" of {of}") } else { String::new() };
        let verdict = match before.map(|before| gain(before, row)) {
            Some(gain) if gain < WORTH => ", hardly worth it",
            _ => "",
        };
        parts.push(format!("{}: {}{of}{verdict}", format_size(row.bytes), percent(row.hits())));
    }
    parts.join("; ")
}

/// The whole answer.
pub(super) fn text(advice: &Advice) -> String {
    let of = if advice.reads > 0 { "reads" } else { "accesses" };
    let mut text = format!(
        "{}: {} requests, {} blocks read and {} written; they touch about {}\n\n",
        advice.trace,
        grouped(advice.requests),
        grouped(advice.reads),
        grouped(advice.accesses.saturating_sub(advice.reads)),
        format_size(advice.footprint),
    );
    let mut table = Table::new(&[
        Column::right("SIZE"),
        Column::right("READS HIT"),
        Column::right("±"),
        Column::right("ALL HIT"),
        Column::right("±"),
    ]);
    let cells = |hits: Option<Hits>| match hits {
        Some(hits) => {
            [format!("{:.1} %", hits.share * 100.0), format!("{:.1}", hits.error * 100.0)]
        }
        None => ["-".to_owned(), "-".to_owned()],
    };
    for row in &advice.rows {
        let size = [format_size(row.bytes)].into_iter();
        table.row(size.chain(cells(row.reads)).chain(cells(Some(row.all))));
    }
    text += &table.render();
    text += &format!("\n{}.\n", sentence(&advice.rows, of));
    let taken = advice.take.and_then(|bytes| advice.rows.iter().find(|row| row.bytes == bytes));
    text += &match taken {
        Some(row) => format!(
            "Take {}: it has {} of {of}; of more, each doubling adds less than {:.0} %.\n",
            format_size(row.bytes),
            percent(row.hits()),
            WORTH * 100.0
        ),
        None if advice.accesses == 0 => "The trace reads and writes nothing.\n".to_owned(),
        None => "A cache does little for this: hardly anything is used twice.\n".to_owned(),
    };
    text += &match advice.one_of {
        1 => "Exact: all blocks were looked at.\n".to_owned(),
        one_of => format!(
            "From {} blocks, one of {one_of}; ± is what eight parts of them differ by.\n",
            grouped(advice.sampled_blocks as u64)
        ),
    };
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(shares: &[(u64, f64)]) -> Vec<Row> {
        let row = |(gigabytes, share): &(u64, f64)| {
            let hits = Hits { share: *share, error: 0.01 };
            Row { bytes: gigabytes << 30, reads: Some(hits), all: hits }
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
        }
    }

    #[test]
    fn what_is_hardly_worth_it_is_said() {
        let text = text(&advice(&[(32, 0.4), (64, 0.71), (128, 0.73)]));
        assert!(text.contains("32G: 40 % of reads; 64G: 71 %; 128G: 73 %, hardly worth it."));
        assert!(text.contains("Take 64G: it has 71 % of reads"), "{text}");
        assert!(text.contains("From 1,234 blocks, one of 100"), "{text}");
        assert!(text.lines().any(|line| {
            line.split_whitespace().eq(["64G", "71.0", "%", "1.0", "71.0", "%", "1.0"])
        }));
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
        assert!(text(&advice(&[(1, 0.01)])).contains("does little"));
    }
}
