//! Kinds of settings: how their values are parsed, checked, formatted and described.

use std::time::Duration;

use forebay_core::units::format_size;
use forebay_core::{
    Admission, Caching, Durability, ExportSet, Laziness, Mode, NbdReach, QuietHours, RamStrategy,
    ReplacementKind, Rotational, SectorSize, WriteDown, parse_size,
};
use serde::Serialize;
use serde_json::Value;

use crate::duration::{format_duration, parse_duration};

/// The values that a setting accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum SettingKind {
    /// One of some words.
    Choice {
        /// The words, with their short forms.
        words: &'static [&'static str],
    },
    /// One of some words, or a further word with a number after a colon.
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
    /// Some words, separated by commas.
    List {
        /// The words.
        words: &'static [&'static str],
    },
    /// A number of bytes.
    Bytes {
        /// The smallest.
        min: u64,
        /// The largest.
        max: u64,
    },
    /// A number of bytes that is a power of two.
    PowerOfTwo {
        /// The smallest other than 0.
        min: u64,
        /// The largest.
        max: u64,
        /// Whether 0 is allowed, and means off.
        zero_is_off: bool,
    },
    /// A whole number of percent.
    Percent {
        /// The smallest.
        min: u64,
        /// The largest.
        max: u64,
    },
    /// A time, in milliseconds; 0 switches the setting off if that is below `min_ms`.
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

impl SettingKind {
    /// Returns the allowed values in words, for help and error messages.
    pub fn range(&self) -> String {
        match *self {
            SettingKind::Choice { words } => words.join(", "),
            SettingKind::List { words } => format!("a list of {}", words.join(", ")),
            SettingKind::CountedChoice { words, counted, min, max } => {
                format!("{}, {counted}:{min} to {counted}:{max}", words.join(", "))
            }
            SettingKind::Bytes { min, max } => {
                format!("{} to {}", format_size(min), format_size(max))
            }
            SettingKind::PowerOfTwo { min, max, zero_is_off } => {
                let (min, max) = (format_size(min), format_size(max));
                let off = if zero_is_off { "0 (off), or " } else { "" };
                format!("{off}a power of two from {min} to {max}")
            }
            SettingKind::Percent { min, max } | SettingKind::Count { min, max } => {
                format!("{min} to {max}")
            }
            SettingKind::Duration { min_ms, max_ms, zero_is_off } => {
                let text = |ms| format_duration(Duration::from_millis(ms));
                let off = if zero_is_off { "0 (off), or " } else { "" };
                format!("{off}{} to {}", text(min_ms), text(max_ms))
            }
            SettingKind::Switch => "on, off".to_owned(),
            SettingKind::Hours => "off, or HH:MM-HH:MM".to_owned(),
        }
    }

    /// Returns the values that can be listed, without short forms; empty for numbers.
    pub fn listed(&self) -> Vec<&'static str> {
        match *self {
            SettingKind::Choice { words }
            | SettingKind::List { words }
            | SettingKind::CountedChoice { words, .. } => {
                words.iter().filter_map(|word| word.split(' ').next()).collect()
            }
            SettingKind::Switch => vec!["on", "off"],
            SettingKind::Hours => vec!["off"],
            SettingKind::Bytes { .. }
            | SettingKind::PowerOfTwo { .. }
            | SettingKind::Percent { .. }
            | SettingKind::Duration { .. }
            | SettingKind::Count { .. } => Vec::new(),
        }
    }

    /// Returns the kind in one word.
    pub fn word(&self) -> &'static str {
        match self {
            SettingKind::Choice { .. } | SettingKind::CountedChoice { .. } => "choice",
            SettingKind::List { .. } => "list",
            SettingKind::Bytes { .. } | SettingKind::PowerOfTwo { .. } => "bytes",
            SettingKind::Percent { .. } => "percent",
            SettingKind::Duration { .. } => "duration",
            SettingKind::Switch => "switch",
            SettingKind::Hours => "hours",
            SettingKind::Count { .. } => "count",
        }
    }

    fn number(&self, number: u64) -> Result<u64, String> {
        let (min, max) = match *self {
            SettingKind::Bytes { min, max }
            | SettingKind::Percent { min, max }
            | SettingKind::Count { min, max } => (min, max),
            SettingKind::Duration { zero_is_off: true, .. } if number == 0 => return Ok(0),
            SettingKind::Duration { min_ms, max_ms, .. } => (min_ms, max_ms),
            SettingKind::PowerOfTwo { zero_is_off: true, .. } if number == 0 => return Ok(0),
            // An empty range, so that the check below fails.
            SettingKind::PowerOfTwo { .. } if !number.is_power_of_two() => (1, 0),
            SettingKind::PowerOfTwo { min, max, .. } => (min, max),
            SettingKind::Choice { .. }
            | SettingKind::List { .. }
            | SettingKind::CountedChoice { .. }
            | SettingKind::Switch
            | SettingKind::Hours => (0, u64::MAX),
        };
        if (min..=max).contains(&number) {
            Ok(number)
        } else {
            Err(format!("outside the range; choose {}", self.range()))
        }
    }
}

/// A type that a setting can have.
pub(crate) trait SettingValue: Sized {
    /// Parses and checks a value; the error names the problem and a valid alternative.
    fn read(text: &str, kind: &SettingKind) -> Result<Self, String>;
    /// Formats the value as [`SettingValue::read`] accepts it.
    fn text(&self, kind: &SettingKind) -> String;
    /// Encodes the value for the volume table: durations in milliseconds.
    fn to_number(&self) -> u64;
    /// Decodes a value from the volume table; `None` if it is not valid for the type.
    fn from_number(number: u64, kind: &SettingKind) -> Option<Self>;
    /// Formats the value as JSON: words and durations as strings, other numbers as numbers.
    fn json(&self, kind: &SettingKind) -> Value {
        Value::String(self.text(kind))
    }
}

macro_rules! word_values {
    ($($type:ty),*) => {$(
        impl SettingValue for $type {
            fn read(text: &str, _: &SettingKind) -> Result<Self, String> {
                text.parse().map_err(|error: forebay_core::settings::ChoiceError| error.to_string())
            }

            fn text(&self, _: &SettingKind) -> String {
                self.name().to_owned()
            }

            // These have fields of their own in the volume table.
            fn to_number(&self) -> u64 {
                self.code().into()
            }

            fn from_number(number: u64, _: &SettingKind) -> Option<Self> {
                u8::try_from(number).ok().and_then(Self::from_code)
            }
        }
    )*};
}

word_values!(
    Mode,
    Caching,
    ReplacementKind,
    Durability,
    Laziness,
    NbdReach,
    RamStrategy,
    Rotational,
    SectorSize,
    WriteDown
);

impl SettingValue for Admission {
    fn read(text: &str, _: &SettingKind) -> Result<Self, String> {
        text.parse().map_err(|error: forebay_core::settings::ChoiceError| error.to_string())
    }

    fn text(&self, _: &SettingKind) -> String {
        self.to_string()
    }

    fn to_number(&self) -> u64 {
        self.times().into()
    }

    fn from_number(number: u64, _: &SettingKind) -> Option<Self> {
        Admission::from_times(number)
    }
}

impl SettingValue for ExportSet {
    fn read(text: &str, _: &SettingKind) -> Result<Self, String> {
        text.parse().map_err(|error: forebay_core::ExportSetError| error.to_string())
    }

    fn text(&self, _: &SettingKind) -> String {
        self.to_string()
    }

    fn to_number(&self) -> u64 {
        ExportSet::to_number(self)
    }

    fn from_number(number: u64, _: &SettingKind) -> Option<Self> {
        Some(ExportSet::from_number(number))
    }
}

impl SettingValue for u64 {
    fn read(text: &str, kind: &SettingKind) -> Result<Self, String> {
        let number = match kind {
            SettingKind::Bytes { .. } | SettingKind::PowerOfTwo { .. } => {
                parse_size(text).map_err(|error| error.to_string())?
            }
            _ => whole_number(text, kind)?,
        };
        kind.number(number).map_err(|reason| format!("'{text}' is {reason}"))
    }

    fn text(&self, kind: &SettingKind) -> String {
        match kind {
            // `format_size` would round a size that is not a whole number of a unit.
            SettingKind::Bytes { .. } | SettingKind::PowerOfTwo { .. } => {
                let pretty = format_size(*self);
                if parse_size(&pretty) == Ok(*self) { pretty } else { self.to_string() }
            }
            _ => self.to_string(),
        }
    }

    fn json(&self, _: &SettingKind) -> Value {
        Value::from(*self)
    }

    fn to_number(&self) -> u64 {
        *self
    }

    fn from_number(number: u64, kind: &SettingKind) -> Option<Self> {
        match kind {
            SettingKind::PowerOfTwo { .. } => kind.number(number).ok(),
            SettingKind::Percent { max, .. } => (number <= *max).then_some(number),
            SettingKind::Count { min, .. } => Some(number.max(*min)),
            _ => Some(number),
        }
    }
}

macro_rules! narrow_values {
    ($($type:ty),*) => {$(
        impl SettingValue for $type {
            fn read(text: &str, kind: &SettingKind) -> Result<Self, String> {
                let wide = u64::read(text, kind)?;
                wide.try_into().map_err(|_| format!("'{text}' is outside the range"))
            }

            fn text(&self, kind: &SettingKind) -> String {
                u64::from(*self).text(kind)
            }

            fn json(&self, kind: &SettingKind) -> Value {
                u64::from(*self).json(kind)
            }

            fn to_number(&self) -> u64 {
                u64::from(*self)
            }

            fn from_number(number: u64, kind: &SettingKind) -> Option<Self> {
                u64::from_number(number, kind)?.try_into().ok()
            }
        }
    )*};
}

narrow_values!(u8, u32);

fn whole_number(text: &str, kind: &SettingKind) -> Result<u64, String> {
    let digits = match kind {
        SettingKind::Percent { .. } => text.strip_suffix('%').unwrap_or(text),
        _ => text,
    };
    let plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    digits.parse().ok().filter(|_| plain).ok_or_else(|| {
        let given: String = text.escape_debug().take(40).collect();
        format!("'{given}' is not a number; choose {}", kind.range())
    })
}

impl SettingValue for Duration {
    fn read(text: &str, kind: &SettingKind) -> Result<Self, String> {
        let text = if text == "off" { "0" } else { text };
        let duration = parse_duration(text).map_err(|error| error.to_string())?;
        let millis = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        kind.number(millis).map_err(|reason| format!("'{text}' is {reason}"))?;
        Ok(duration)
    }

    fn text(&self, _: &SettingKind) -> String {
        format_duration(*self)
    }

    fn to_number(&self) -> u64 {
        u64::try_from(self.as_millis()).unwrap_or(u64::MAX)
    }

    fn from_number(number: u64, kind: &SettingKind) -> Option<Self> {
        let zero_is_off = !matches!(kind, SettingKind::Duration { zero_is_off: false, .. });
        (number > 0 || zero_is_off).then(|| Duration::from_millis(number))
    }
}

impl SettingValue for bool {
    fn read(text: &str, _: &SettingKind) -> Result<Self, String> {
        match text {
            "on" | "true" => Ok(true),
            "off" | "false" => Ok(false),
            _ => {
                let given: String = text.escape_debug().take(40).collect();
                Err(format!("'{given}' is neither on nor off"))
            }
        }
    }

    fn text(&self, _: &SettingKind) -> String {
        if *self { "on" } else { "off" }.to_owned()
    }

    fn json(&self, _: &SettingKind) -> Value {
        Value::Bool(*self)
    }

    fn to_number(&self) -> u64 {
        u64::from(*self)
    }

    fn from_number(number: u64, _: &SettingKind) -> Option<Self> {
        Some(number != 0)
    }
}

impl SettingValue for Option<QuietHours> {
    fn read(text: &str, _: &SettingKind) -> Result<Self, String> {
        match text {
            "off" | "0" => Ok(None),
            _ => text
                .parse()
                .map(Some)
                .map_err(|error: forebay_core::quiet::QuietHoursError| error.to_string()),
        }
    }

    fn text(&self, _: &SettingKind) -> String {
        self.map_or_else(|| "off".to_owned(), |hours| hours.to_string())
    }

    fn to_number(&self) -> u64 {
        self.map_or(0, QuietHours::to_number)
    }

    fn from_number(number: u64, _: &SettingKind) -> Option<Self> {
        Some(QuietHours::from_number(number))
    }
}
