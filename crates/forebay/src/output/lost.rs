//! The lost ranges of a volume, for people.

use forebay_admin::lost::LostReport;
use forebay_core::units::format_size;

use super::table::{Column, Table};

/// Returns one line that tells whether the ranges are exact, then offset and length of each in
/// bytes.
pub(crate) fn render(report: &LostReport) -> String {
    let name = &report.volume;
    if !report.known {
        return format!("it is unknown which blocks of '{name}' were dirty\n");
    }
    let bytes = format_size(report.bytes);
    let mut text = match (report.exact, report.ranges.len()) {
        (true, 0) => return format!("nothing of '{name}' is lost\n"),
        (true, count) => format!("exactly {bytes} of '{name}' in {count} ranges\n"),
        (false, count) => format!("at most {bytes} of '{name}' in {count} ranges\n"),
    };
    let mut table = Table::new(&[Column::right("OFFSET"), Column::right("LENGTH")]);
    for range in &report.ranges {
        table.row([range.offset.to_string(), range.len.to_string()]);
    }
    text.push_str(&table.render());
    text
}

#[cfg(test)]
mod tests {
    use forebay_admin::ranges::ByteRange;

    use super::*;

    #[test]
    fn the_first_line_tells_whether_ranges_are_exact() {
        let ranges = vec![ByteRange { offset: 4096, len: 8192 }];
        let volume = "v".parse().expect("valid");
        let mut report = LostReport { volume, known: true, exact: true, bytes: 8192, ranges };
        let text = render(&report);
        assert!(text.starts_with("exactly 8K ") && text.contains("4096"), "{text}");
        report.exact = false;
        assert!(render(&report).starts_with("at most"));
        report.known = false;
        assert!(render(&report).starts_with("it is unknown"));
    }
}
