//! Choices an operator makes for a volume.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The value is none of the allowed words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{given}' is not a {what}; choose one of {choices}")]
pub struct ChoiceError {
    given: String,
    what: &'static str,
    choices: &'static str,
}

impl ChoiceError {
    /// `given` is not a `what`; `choices` lists the allowed words.
    pub fn new(given: &str, what: &'static str, choices: &'static str) -> Self {
        ChoiceError { given: given.chars().take(40).collect(), what, choices }
    }
}

macro_rules! choice {
    ($type:ident, $what:literal, $choices:literal, { $($variant:ident => $name:literal $(| $alias:literal)*),* $(,)? }) => {
        impl $type {
            /// Every value, in the order in which help prints them.
            pub const ALL: &'static [$type] = &[$($type::$variant),*];

            /// The word for this value.
            pub fn name(self) -> &'static str {
                match self { $($type::$variant => $name),* }
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.name())
            }
        }

        impl FromStr for $type {
            type Err = ChoiceError;

            fn from_str(text: &str) -> Result<Self, ChoiceError> {
                match text {
                    $($name $(| $alias)* => Ok($type::$variant),)*
                    _ => Err(ChoiceError::new(text, $what, $choices)),
                }
            }
        }
    };
}

/// How the cache handles reads and writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Reads are cached; writes go to the cache and later to the origin.
    #[default]
    Writeback,
    /// Reads are cached; writes go to both and are acknowledged when the origin has them.
    Writethrough,
    /// Reads are cached; writes go to the origin and invalidate a cached copy.
    Writearound,
    /// Writes as in writeback; reads never fill.
    Writeonly,
    /// Reads and writes go to the origin; cached copies are invalidated.
    Passthrough,
}

choice!(Mode, "mode", "writeback (wb), writethrough (wt), writearound (wa, readonly, ro), writeonly (wo), passthrough (pt)", {
    Writeback => "writeback" | "wb",
    Writethrough => "writethrough" | "wt",
    Writearound => "writearound" | "wa" | "readonly" | "ro",
    Writeonly => "writeonly" | "wo",
    Passthrough => "passthrough" | "pt",
});

/// When a write is acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Durability {
    /// When data and record are on stable media of the cache device.
    Strict,
    /// When the data is in the log buffer in RAM; flush and FUA are honoured exactly.
    #[default]
    Flush,
}

choice!(Durability, "durability", "strict, flush", {
    Strict => "strict",
    Flush => "flush",
});

/// How the policy chooses blocks to evict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ReplacementKind {
    /// Least recently used.
    Lru,
    /// First in, first out.
    Fifo,
    /// A random block.
    Random,
    /// Least frequently used.
    Lfu,
    /// Least frequently used, with frequencies that decay.
    #[serde(rename = "lfu-r")]
    LfuR,
    /// Stochastic multi-queue with a hotspot queue.
    Smq,
    /// Second chance.
    Clock,
    /// Two queues.
    #[serde(rename = "2q")]
    TwoQ,
    /// Adaptive replacement cache.
    Arc,
    /// Low inter-reference recency set.
    Lirs,
    /// SIEVE.
    Sieve,
    /// A small queue for new blocks, a main queue for those used again, and ghosts.
    #[default]
    #[serde(rename = "s3-fifo")]
    S3Fifo,
    /// Tiny LFU behind a window.
    #[serde(rename = "w-tinylfu")]
    WTinyLfu,
}

choice!(ReplacementKind, "replacement policy", "lru, fifo, random (rand), lfu, lfu-r, smq, clock, 2q, arc, lirs, sieve, s3-fifo (s3fifo), w-tinylfu (wtinylfu)", {
    Lru => "lru",
    Fifo => "fifo",
    Random => "random" | "rand",
    Lfu => "lfu",
    LfuR => "lfu-r",
    Smq => "smq",
    Clock => "clock",
    TwoQ => "2q",
    Arc => "arc",
    Lirs => "lirs",
    Sieve => "sieve",
    S3Fifo => "s3-fifo" | "s3fifo",
    WTinyLfu => "w-tinylfu" | "wtinylfu",
});

/// Whether a missed block may enter the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Admission {
    /// Every missed block.
    #[default]
    Always,
    /// Blocks missed before and still remembered. Ghosts remember as many blocks as the cache has
    /// slots, times this number, 1 to [`Admission::MOST`].
    Ghost(u8),
}

impl Admission {
    /// Largest multiple of the cache's slots that ghosts remember.
    pub const MOST: u8 = 16;

    const CHOICES: &'static str = "always, second-hit, ghost:1 to ghost:16";

    /// Returns how many blocks ghosts remember, as a multiple of the cache's slots; 0 for
    /// [`Admission::Always`].
    pub fn times(self) -> u8 {
        match self {
            Admission::Always => 0,
            Admission::Ghost(times) => times,
        }
    }

    /// Returns the rule with this multiple; `None` above [`Admission::MOST`].
    pub fn from_times(times: u64) -> Option<Self> {
        let times = u8::try_from(times).ok().filter(|times| *times <= Admission::MOST)?;
        Some(if times == 0 { Admission::Always } else { Admission::Ghost(times) })
    }
}

impl fmt::Display for Admission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Admission::Always => f.pad("always"),
            Admission::Ghost(1) => f.pad("second-hit"),
            Admission::Ghost(times) => write!(f, "ghost:{times}"),
        }
    }
}

impl FromStr for Admission {
    type Err = ChoiceError;

    fn from_str(text: &str) -> Result<Self, ChoiceError> {
        let counted = |times: &str| {
            // Digits only: `parse` would take a sign.
            let digits = times.bytes().all(|byte| byte.is_ascii_digit());
            let times = times.parse().ok().filter(|times| digits && *times > 0)?;
            Admission::from_times(times)
        };
        let found = match text {
            "always" => Some(Admission::Always),
            "second-hit" => Some(Admission::Ghost(1)),
            _ => text.strip_prefix("ghost:").and_then(counted),
        };
        found.ok_or_else(|| ChoiceError {
            given: text.chars().take(40).collect(),
            what: "rule of admission",
            choices: Admission::CHOICES,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_of_admission_are_read_and_written() {
        for times in 0..=u64::from(Admission::MOST) {
            let rule = Admission::from_times(times).expect("in range");
            assert_eq!((rule.to_string().parse(), u64::from(rule.times())), (Ok(rule), times));
        }
        assert_eq!("ghost:1".parse(), Ok(Admission::Ghost(1)));
        assert_eq!(Admission::Ghost(1).to_string(), "second-hit");
        for bad in [
            "",
            "Always",
            "ghost",
            "ghost:",
            "ghost:0",
            "ghost:17",
            "ghost:+2",
            "ghost:-1",
            "ghost:1.5",
            "ghost: 2",
            "second hit",
            "ghost:99999999999999999999",
        ] {
            assert!(bad.parse::<Admission>().is_err(), "{bad} was read");
        }
        assert_eq!(Admission::from_times(17), None);
    }

    #[test]
    fn names_and_aliases_are_read() {
        for mode in Mode::ALL {
            assert_eq!(mode.name().parse(), Ok(*mode));
        }
        for (alias, mode) in [
            ("wb", Mode::Writeback),
            ("ro", Mode::Writearound),
            ("readonly", Mode::Writearound),
            ("wo", Mode::Writeonly),
            ("pt", Mode::Passthrough),
        ] {
            assert_eq!(alias.parse(), Ok(mode));
        }
        assert!("WB".parse::<Mode>().is_err());
        assert!("".parse::<Durability>().is_err());
        assert!("mru".parse::<ReplacementKind>().unwrap_err().to_string().contains("lru"));
    }
}
