//! Durations, as operators write them.

use std::time::Duration;

/// Units from large to small, in milliseconds.
const UNITS: [(&str, u64); 5] =
    [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

/// The text is not a duration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{given}' is not a duration; write a whole number with a unit, like 500ms, 30s, 5m, 2h or 1d"
)]
pub struct DurationError {
    given: String,
}

/// Parses `500ms`, `30s`, `5m`, `2h`, `1d` or `0`.
///
/// # Errors
/// Anything else: signs, fractions, spaces, a number other than 0 without a unit, or more
/// milliseconds than fit into 64 bits.
pub fn parse_duration(text: &str) -> Result<Duration, DurationError> {
    let bad = || DurationError { given: text.escape_debug().take(40).collect() };
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let unit = text.trim_start_matches(|c: char| c.is_ascii_digit());
    let number = text.strip_suffix(unit).ok_or_else(bad)?;
    let (_, scale) = UNITS.into_iter().find(|(name, _)| *name == unit).ok_or_else(bad)?;
    let number: u64 = number.parse().map_err(|_| bad())?;
    number.checked_mul(scale).map(Duration::from_millis).ok_or_else(bad)
}

/// Formats a duration, in whole milliseconds, so that [`parse_duration`] reads it back.
pub fn format_duration(duration: Duration) -> String {
    let millis = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    if millis == 0 {
        return "0".to_owned();
    }
    UNITS
        .into_iter()
        .find(|(_, scale)| millis.is_multiple_of(*scale))
        .map_or_else(|| format!("{millis}ms"), |(unit, scale)| format!("{}{unit}", millis / scale))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_back_as_written() {
        for millis in [0, 1, 999, 1000, 1500, 30_000, 60_000, 90_000, 3_600_000, 86_400_000] {
            let duration = Duration::from_millis(millis);
            assert_eq!(parse_duration(&format_duration(duration)), Ok(duration));
        }
        assert_eq!(format_duration(Duration::from_secs(90)), "90s");
        assert_eq!(format_duration(Duration::from_secs(7200)), "2h");
    }

    #[test]
    fn everything_else_is_refused() {
        for bad in [
            "",
            "s",
            "30",
            "-1s",
            "+1s",
            "1.5s",
            "1 s",
            " 1s",
            "1e3s",
            "1S",
            "1min",
            "0s0",
            "18446744073709551616s",
            "18446744073709551615d",
            "ms",
            "é",
        ] {
            assert!(parse_duration(bad).is_err(), "{bad:?} was read");
        }
        assert_eq!(parse_duration("0s"), Ok(Duration::ZERO));
    }
}
