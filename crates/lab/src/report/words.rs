//! Numbers and names as they are printed, and text that is safe in Markdown.

/// Formats three to four digits; thousands in groups. `-` for a value that is no number.
pub(super) fn number(value: Option<f64>) -> String {
    let value = value.unwrap_or(f64::NAN);
    match value.abs() {
        absolute if !absolute.is_finite() => "-".into(),
        1000.0.. => grouped(value.round() as i64),
        100.0.. => format!("{value:.1}"),
        1.0.. => format!("{value:.2}"),
        0.1.. => format!("{value:.3}"),
        0.01.. => format!("{value:.4}"),
        0.000_000_5.. => format!("{value:.5}"),
        _ => "0".into(),
    }
}

/// Formats like [`number`]; without a value the text is empty.
pub(super) fn blank(value: Option<f64>) -> String {
    value.map_or_else(String::new, |value| number(Some(value)))
}

/// A share as percent, with its sign.
pub(super) fn percent(share: f64) -> String {
    format!("{:+.1} %", share * 100.0)
}

/// Text in one line.
pub(super) fn flat(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn grouped(value: i64) -> String {
    let digits = value.unsigned_abs().to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    if value < 0 { format!("-{text}") } else { text }
}

/// Returns the printed name of a metric of the rows, with its unit.
pub(super) fn metric(name: &str) -> &str {
    match name {
        "iops" => "requests/s",
        "mb_per_s" => "MB/s",
        "mib_per_s" => "MiB/s",
        "kib_per_s" => "KiB/s",
        "read_mib_per_s" => "reads, MiB/s",
        "write_mib_per_s" => "writes, MiB/s",
        "read_mean_ms" => "mean read, ms",
        "write_mean_ms" => "mean write, ms",
        other => other,
    }
}

/// Splits a text at pairs of backticks; `true`: the part is between two of them.
fn parts(text: &str) -> impl Iterator<Item = (bool, &str)> {
    let pairs = text.matches('`').count() / 2 * 2;
    text.splitn(pairs + 1, '`').enumerate().map(|(place, part)| (place % 2 == 1, part))
}

/// Escapes text for Markdown, in a table too; text between backticks stays code.
pub(super) fn markdown(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for (code, part) in parts(text) {
        let mark = if code { "`" } else { "" };
        out.push_str(mark);
        for letter in part.chars() {
            match letter {
                '\n' | '\r' => out.push(' '),
                '|' => out.push_str("\\|"),
                '&' if !code => out.push_str("&amp;"),
                '<' if !code => out.push_str("&lt;"),
                '*' | '_' | '[' | ']' | '`' | '\\' | '#' if !code => {
                    out.extend(['\\', letter]);
                }
                other => out.push(other),
            }
        }
        out.push_str(mark);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short_and_never_nan() {
        let cases = [
            (1_234_567.8, "1,234,568"),
            (-1000.0, "-1,000"),
            (999.94, "999.9"),
            (1.0, "1.00"),
            (0.1234, "0.123"),
            (0.012_34, "0.0123"),
            (-0.002_57, "-0.00257"),
            (0.0, "0"),
            (f64::NAN, "-"),
            (f64::INFINITY, "-"),
        ];
        for (value, text) in cases {
            assert_eq!(number(Some(value)), text);
        }
    }

    #[test]
    fn text_is_escaped() {
        assert_eq!(markdown("a|b_c <d> `e_f`\ng"), "a\\|b\\_c &lt;d> `e_f` g");
    }
}
