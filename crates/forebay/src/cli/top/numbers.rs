//! Numbers in at most five characters, as narrow columns need them.

use forebay_core::units::format_size;

/// Formats a number with three digits and a unit of powers of 1000: `950`, `12.3k`.
pub(super) fn count(number: f64) -> String {
    short(number, 1000.0, &["", "k", "M", "G", "T"])
}

/// Formats bytes in units of 1024: `12.3M`.
pub(super) fn bytes(bytes: u64) -> String {
    // A whole number of a unit has no decimals, as elsewhere.
    let whole = format_size(bytes);
    if whole.contains('.') || whole.len() > 5 {
        short(bytes as f64, 1024.0, &["", "K", "M", "G", "T", "P"])
    } else {
        whole
    }
}

/// Formats bytes per second in millions: `48.1`.
pub(super) fn megabytes(per_second: f64) -> String {
    count(per_second / 1e6)
}

/// Formats a latency with two digits, which is how exact the ranges are; a dash if there is none.
pub(super) fn time(micros: Option<f64>) -> String {
    let Some(micros) = micros else { return "-".to_owned() };
    let (number, unit) = match micros {
        ..999.5 => (micros, "µs"),
        ..999_500.0 => (micros / 1e3, "ms"),
        _ => (micros / 1e6, "s"),
    };
    if number < 9.95 { format!("{number:.1}{unit}") } else { format!("{number:.0}{unit}") }
}

/// Formats a share as `98.2%`; a dash if there is none.
pub(super) fn percent(share: Option<f64>) -> String {
    match share {
        None => "-".to_owned(),
        Some(share) if share >= 0.9995 => "100%".to_owned(),
        Some(share) => format!("{:.1}%", share * 100.0),
    }
}

fn short(mut number: f64, base: f64, units: &[&str]) -> String {
    let mut rest = units.iter();
    let mut unit = rest.next().copied().unwrap_or_default();
    // Numbers that would be rounded up to `base` get the next unit.
    while number >= base - 0.5 {
        let Some(next) = rest.next() else { break };
        (number, unit) = (number / base, next);
    }
    match number {
        0.0 => "0".to_owned(),
        _ if number < 0.095 && unit.is_empty() => format!("{number:.2}"),
        _ if number < 9.995 && !unit.is_empty() => format!("{number:.2}{unit}"),
        _ if number < 99.95 => format!("{number:.1}{unit}"),
        _ => format!("{number:.0}{unit}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short_whatever_they_are() {
        for (number, text) in [
            (0.0, "0"),
            (0.05, "0.05"),
            (0.5, "0.5"),
            (12.34, "12.3"),
            (99.96, "100"),
            (950.0, "950"),
            (999.7, "1.00k"),
            (12_345.0, "12.3k"),
            (999_900.0, "1.00M"),
            (1.5e9, "1.50G"),
        ] {
            assert_eq!(count(number), text);
        }
        for (size, text) in [
            (0, "0"),
            (512, "512"),
            (4096, "4K"),
            (1023 << 20, "1023M"),
            ((1 << 30) - 1, "1.00G"),
            (1_300_000_000, "1.21G"),
            (123 << 30, "123G"),
            (u64::MAX, "16384P"),
        ] {
            assert_eq!(bytes(size), text);
        }
        for (micros, text) in [
            (0.4, "0.4µs"),
            (9.96, "10µs"),
            (150.0, "150µs"),
            (999.6, "1.0ms"),
            (1_234.0, "1.2ms"),
            (56_000.0, "56ms"),
            (999_600.0, "1.0s"),
            (1e7, "10s"),
        ] {
            assert_eq!(time(Some(micros)), text);
        }
        assert_eq!(
            (percent(Some(0.9821)), percent(Some(1.0)), percent(None)),
            ("98.2%".into(), "100%".into(), "-".into())
        );
        assert_eq!((megabytes(48_123_456.0), time(None)), ("48.1".to_owned(), "-".to_owned()));
    }
}
