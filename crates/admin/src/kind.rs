//! Kinds of knobs: how their values are read, checked, written and explained.

use std::time::Duration;

use forebay_core::units::format_size;
use forebay_core::{Admission, Durability, Mode, QuietHours, ReplacementKind, parse_size};
use serde::Serialize;
use serde_json::Value;

use crate::duration::{format_duration, parse_duration};

/// What values a knob takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum KnobKind {
    /// One of some words.
    Choice {
        /// The words, with their short forms.
        words: &'static [&'static str],
    },
    /// One of some words, or another one with a number behind a colon.
    CountedChoice {
        /// The words.
        words: &'static [&'static str],
        /// The word with a number.
        counted: &'static str,
        /// The smallest number.
        min: u64,
        /// The largest number.
        max: u64,
    },
    /// A number of bytes.
    Bytes {
        /// The smallest.
        min: u64,
        /// The largest.
        max: u64,
    },
    /// A number of bytes that is a power of two; 0 switches the knob off.
    PowerOfTwo {
        /// The smallest other than 0.
        min: u64,
        /// The largest.
        max: u64,
    },
    /// A whole number of percent.
    Percent {
        /// The smallest.
        min: u64,
        /// The largest.
        max: u64,
    },
    /// A time, in milliseconds; 0 switches the knob off if that is below `min_ms`.
    Duration {
        /// The shortest other than 0.
        min_ms: u64,
        /// The longest.
        max_ms: u64,
        /// Whether 0 is allowed, and means off.
        zero_is_off: bool,
    },
    /// `on` or `off`.
    Switch,
    /// A part of every day, as `HH:MM-HH:MM`, or `off`.
    Hours,
    /// A plain number.
    Count {
        /// The smallest.
        min: u64,
        /// The largest.
        max: u64,
    },
}

impl KnobKind {
    /// The allowed values in words, for help and error messages.
    pub fn range(&self) -> String {
        match *self {
            KnobKind::Choice { words } => words.join(", "),
            KnobKind::CountedChoice { words, counted, min, max } => {
                format!("{}, {counted}:{min} to {counted}:{max}", words.join(", "))
            }
            KnobKind::Bytes { min, max } => format!("{} to {}", format_size(min), format_size(max)),
            KnobKind::PowerOfTwo { min, max } => {
                let (min, max) = (format_size(min), format_size(max));
                format!("0 (off), or a power of two from {min} to {max}")
            }
            KnobKind::Percent { min, max } | KnobKind::Count { min, max } => {
                format!("{min} to {max}")
            }
            KnobKind::Duration { min_ms, max_ms, zero_is_off } => {
                let text = |ms| format_duration(Duration::from_millis(ms));
                let off = if zero_is_off { "0 (off), or " } else { "" };
                format!("{off}{} to {}", text(min_ms), text(max_ms))
            }
            KnobKind::Switch => "on, off".to_owned(),
            KnobKind::Hours => "off, or HH:MM-HH:MM".to_owned(),
        }
    }

    /// The values that can be listed one by one, without short forms; empty for numbers.
    pub fn listed(&self) -> Vec<&'static str> {
        match *self {
            KnobKind::Choice { words } | KnobKind::CountedChoice { words, .. } => {
                words.iter().filter_map(|word| word.split(' ').next()).collect()
            }
            KnobKind::Switch => vec!["on", "off"],
            KnobKind::Hours => vec!["off"],
            KnobKind::Bytes { .. }
            | KnobKind::PowerOfTwo { .. }
            | KnobKind::Percent { .. }
            | KnobKind::Duration { .. }
            | KnobKind::Count { .. } => Vec::new(),
        }
    }

    /// What kind of value this is, in one word.
    pub fn word(&self) -> &'static str {
        match self {
            KnobKind::Choice { .. } | KnobKind::CountedChoice { .. } => "choice",
            KnobKind::Bytes { .. } | KnobKind::PowerOfTwo { .. } => "bytes",
            KnobKind::Percent { .. } => "percent",
            KnobKind::Duration { .. } => "duration",
            KnobKind::Switch => "switch",
            KnobKind::Hours => "hours",
            KnobKind::Count { .. } => "count",
        }
    }

    fn number(&self, number: u64) -> Result<u64, String> {
        let (min, max) = match *self {
            KnobKind::Bytes { min, max }
            | KnobKind::Percent { min, max }
            | KnobKind::Count { min, max } => (min, max),
            KnobKind::Duration { zero_is_off: true, .. } if number == 0 => return Ok(0),
            KnobKind::Duration { min_ms, max_ms, .. } => (min_ms, max_ms),
            KnobKind::PowerOfTwo { .. } if number == 0 => return Ok(0),
            // A range that nothing is in.
            KnobKind::PowerOfTwo { .. } if !number.is_power_of_two() => (1, 0),
            KnobKind::PowerOfTwo { min, max } => (min, max),
            KnobKind::Choice { .. }
            | KnobKind::CountedChoice { .. }
            | KnobKind::Switch
            | KnobKind::Hours => (0, u64::MAX),
        };
        if (min..=max).contains(&number) {
            Ok(number)
        } else {
            Err(format!("outside the range; choose {}", self.range()))
        }
    }
}

/// A type that a knob can have.
pub(crate) trait KnobType: Sized {
    /// Reads and checks a value; the error says what is wrong with it and what would be right.
    fn read(text: &str, kind: &KnobKind) -> Result<Self, String>;
    /// Writes the value as [`KnobType::read`] takes it.
    fn text(&self, kind: &KnobKind) -> String;
    /// Writes the value as JSON: words and durations as strings, other numbers as numbers.
    fn json(&self, kind: &KnobKind) -> Value {
        Value::String(self.text(kind))
    }
}

macro_rules! word_knobs {
    ($($type:ty),*) => {$(
        impl KnobType for $type {
            fn read(text: &str, _: &KnobKind) -> Result<Self, String> {
                text.parse().map_err(|error: forebay_core::settings::ChoiceError| error.to_string())
            }

            fn text(&self, _: &KnobKind) -> String {
                self.name().to_owned()
            }
        }
    )*};
}

word_knobs!(Mode, ReplacementKind, Durability);

impl KnobType for Admission {
    fn read(text: &str, _: &KnobKind) -> Result<Self, String> {
        text.parse().map_err(|error: forebay_core::settings::ChoiceError| error.to_string())
    }

    fn text(&self, _: &KnobKind) -> String {
        self.to_string()
    }
}

impl KnobType for u64 {
    fn read(text: &str, kind: &KnobKind) -> Result<Self, String> {
        let number = match kind {
            KnobKind::Bytes { .. } | KnobKind::PowerOfTwo { .. } => {
                parse_size(text).map_err(|error| error.to_string())?
            }
            _ => whole_number(text, kind)?,
        };
        kind.number(number).map_err(|reason| format!("'{text}' is {reason}"))
    }

    fn text(&self, kind: &KnobKind) -> String {
        match kind {
            // A size that is no whole number of a unit would be rounded by `format_size`.
            KnobKind::Bytes { .. } | KnobKind::PowerOfTwo { .. } => {
                let pretty = format_size(*self);
                if parse_size(&pretty) == Ok(*self) { pretty } else { self.to_string() }
            }
            _ => self.to_string(),
        }
    }

    fn json(&self, _: &KnobKind) -> Value {
        Value::from(*self)
    }
}

macro_rules! narrow_knobs {
    ($($type:ty),*) => {$(
        impl KnobType for $type {
            fn read(text: &str, kind: &KnobKind) -> Result<Self, String> {
                let wide = u64::read(text, kind)?;
                wide.try_into().map_err(|_| format!("'{text}' is outside the range"))
            }

            fn text(&self, kind: &KnobKind) -> String {
                u64::from(*self).text(kind)
            }

            fn json(&self, kind: &KnobKind) -> Value {
                u64::from(*self).json(kind)
            }
        }
    )*};
}

narrow_knobs!(u8, u32);

fn whole_number(text: &str, kind: &KnobKind) -> Result<u64, String> {
    let digits = match kind {
        KnobKind::Percent { .. } => text.strip_suffix('%').unwrap_or(text),
        _ => text,
    };
    let plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    digits.parse().ok().filter(|_| plain).ok_or_else(|| {
        let given: String = text.escape_debug().take(40).collect();
        format!("'{given}' is not a number; choose {}", kind.range())
    })
}

impl KnobType for Duration {
    fn read(text: &str, kind: &KnobKind) -> Result<Self, String> {
        let text = if text == "off" { "0" } else { text };
        let duration = parse_duration(text).map_err(|error| error.to_string())?;
        let millis = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        kind.number(millis).map_err(|reason| format!("'{text}' is {reason}"))?;
        Ok(duration)
    }

    fn text(&self, _: &KnobKind) -> String {
        format_duration(*self)
    }
}

impl KnobType for bool {
    fn read(text: &str, _: &KnobKind) -> Result<Self, String> {
        match text {
            "on" | "true" => Ok(true),
            "off" | "false" => Ok(false),
            _ => {
                let given: String = text.escape_debug().take(40).collect();
                Err(format!("'{given}' is neither on nor off"))
            }
        }
    }

    fn text(&self, _: &KnobKind) -> String {
        if *self { "on" } else { "off" }.to_owned()
    }

    fn json(&self, _: &KnobKind) -> Value {
        Value::Bool(*self)
    }
}

impl KnobType for Option<QuietHours> {
    fn read(text: &str, _: &KnobKind) -> Result<Self, String> {
        match text {
            "off" | "0" => Ok(None),
            _ => text
                .parse()
                .map(Some)
                .map_err(|error: forebay_core::quiet::QuietHoursError| error.to_string()),
        }
    }

    fn text(&self, _: &KnobKind) -> String {
        self.map_or_else(|| "off".to_owned(), |hours| hours.to_string())
    }
}
