//! Numbers and names as they are printed, and text that is safe in HTML and in Markdown.

/// Three to four digits; thousands in groups. `-` for what is no number.
pub(super) fn number(value: f64) -> String {
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

/// The same, or a dash.
pub(super) fn maybe(value: Option<f64>) -> String {
    value.map_or_else(|| "-".into(), number)
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

/// What a metric of the rows is called, with its unit.
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

/// Text for HTML; what is between backticks becomes code.
pub(super) fn html(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut code = false;
    let marks = text.matches('`').count() / 2 * 2;
    let mut seen = 0;
    for letter in text.chars() {
        match letter {
            '`' if seen < marks => {
                seen += 1;
                code = !code;
                out.push_str(if code { "<code>" } else { "</code>" });
            }
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            other => out.push(other),
        }
    }
    out
}

/// Text for Markdown, in a table too; what is between backticks stays code.
pub(super) fn markdown(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut code = false;
    let marks = text.matches('`').count() / 2 * 2;
    let mut seen = 0;
    for letter in text.chars() {
        match letter {
            '`' if seen < marks => {
                seen += 1;
                code = !code;
                out.push('`');
            }
            '\n' | '\r' => out.push(' '),
            '|' => out.push_str("\\|"),
            '&' if !code => out.push_str("&amp;"),
            '<' if !code => out.push_str("&lt;"),
            '*' | '_' | '[' | ']' | '`' | '\\' | '#' if !code => {
                out.push('\\');
                out.push(letter);
            }
            other => out.push(other),
        }
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
            assert_eq!(number(value), text);
        }
    }

    #[test]
    fn text_is_escaped() {
        assert_eq!(html("a<b> & \"c\""), "a&lt;b&gt; &amp; &quot;c&quot;");
        assert_eq!(html("`x<y` and `"), "<code>x&lt;y</code> and `");
        assert_eq!(markdown("a|b_c <d> `e_f`\ng"), "a\\|b\\_c &lt;d> `e_f` g");
    }
}
