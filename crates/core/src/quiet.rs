//! Quiet hours: a part of the day, in the notation of operators.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

const MINUTES: u16 = 24 * 60;

/// A part of every day, in local time. It spans midnight if the end is before the start; start and
/// end differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QuietHours {
    /// Minutes since midnight.
    start: u16,
    end: u16,
}

/// The text is not a part of a day.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{given}' is not a part of the day; write HH:MM-HH:MM, like 22:00-06:00, or off")]
pub struct QuietHoursError {
    given: String,
}

impl QuietHours {
    /// Builds the span from `start` to `end`, in minutes since midnight. Returns `None` if they are
    /// equal, or not below 1,440.
    pub fn new(start: u16, end: u16) -> Option<Self> {
        (start != end && start < MINUTES && end < MINUTES).then_some(QuietHours { start, end })
    }

    /// Whether the span contains `time`, the time since midnight.
    pub fn contains(&self, time: Duration) -> bool {
        let minute = (time.as_secs() / 60 % u64::from(MINUTES)) as u16;
        if self.start < self.end {
            (self.start..self.end).contains(&minute)
        } else {
            minute >= self.start || minute < self.end
        }
    }

    /// Encodes the span as one number, never 0.
    pub fn to_number(self) -> u64 {
        1 + u64::from(self.start) * u64::from(MINUTES) + u64::from(self.end)
    }

    /// Decodes a number from [`QuietHours::to_number`]; `None` for any other number.
    pub fn from_number(number: u64) -> Option<Self> {
        let both = number.checked_sub(1)?;
        let minutes = u64::from(MINUTES);
        Self::new(u16::try_from(both / minutes).ok()?, (both % minutes) as u16)
    }
}

/// Parses `HH:MM` into minutes since midnight.
fn minutes(text: &str) -> Option<u16> {
    let (hours, minutes) = text.split_once(':')?;
    let number = |text: &str, below: u16| {
        let digits = text.len() == 2 && text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse::<u16>().ok().filter(|number| digits && *number < below)
    };
    Some(number(hours, 24)? * 60 + number(minutes, 60)?)
}

impl FromStr for QuietHours {
    type Err = QuietHoursError;

    fn from_str(text: &str) -> Result<Self, QuietHoursError> {
        let parsed = text
            .split_once('-')
            .and_then(|(start, end)| QuietHours::new(minutes(start)?, minutes(end)?));
        parsed.ok_or_else(|| QuietHoursError { given: text.escape_debug().take(40).collect() })
    }
}

impl fmt::Display for QuietHours {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let QuietHours { start, end } = self;
        write!(f, "{:02}:{:02}-{:02}:{:02}", start / 60, start % 60, end / 60, end % 60)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(hours: u64, minutes: u64) -> Duration {
        Duration::from_secs((hours * 60 + minutes) * 60 + 59)
    }

    #[test]
    fn every_pair_of_minutes_covers_what_lies_between() {
        let times = [0, 1, 359, 360, 720, 1319, 1320, 1439];
        for start in times {
            for end in times {
                let Some(hours) = QuietHours::new(start, end) else {
                    assert_eq!(start, end);
                    continue;
                };
                let mut minute = start;
                let mut inside = 0;
                while minute != end {
                    assert!(hours.contains(at(0, u64::from(minute))), "{hours} {minute}");
                    minute = (minute + 1) % MINUTES;
                    inside += 1;
                }
                let all = (0..MINUTES).filter(|minute| hours.contains(at(0, u64::from(*minute))));
                assert_eq!(all.count(), inside, "{hours}");
                assert_eq!(hours.to_string().parse(), Ok(hours));
                assert_eq!(QuietHours::from_number(hours.to_number()), Some(hours));
            }
        }
        let night: QuietHours = "22:00-06:00".parse().expect("a night");
        assert!(night.contains(at(24 + 23, 0)) && !night.contains(at(24 + 6, 0)));
    }

    #[test]
    fn everything_else_is_refused() {
        for bad in [
            "",
            "-",
            "22-06",
            "22:00",
            "22:00-",
            "22:00-22:00",
            "24:00-06:00",
            "22:60-06:00",
            "2:00-06:00",
            "+2:00-06:00",
            "22:00 - 06:00",
            "22:00-06:00-07:00",
            "22:00–06:00",
            "night",
        ] {
            assert!(bad.parse::<QuietHours>().is_err(), "{bad:?} was read");
        }
        for number in [0, 1, 1 + 24 * 60 * 24 * 60, u64::MAX] {
            assert_eq!(QuietHours::from_number(number), None, "{number}");
        }
    }
}
