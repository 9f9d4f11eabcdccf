//! Choices an operator makes for a volume.

use std::fmt;
use std::str::FromStr;

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The value is none of the allowed words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{given}' is not a {what}; choose one of {choices}")]
pub struct ChoiceError {
    given: String,
    what: &'static str,
    choices: String,
}

impl ChoiceError {
    /// `given` is not a `what`; `words` are the allowed ones.
    pub fn new(given: &str, what: &'static str, words: &[&str]) -> Self {
        let choices = words.join(", ");
        ChoiceError { given: given.chars().take(40).collect(), what, choices }
    }
}

/// Declares a setting that is one of several words: for each value its code in the volume table,
/// which never changes, its name and its aliases. Parsing, help, JSON and the volume table derive
/// from it.
macro_rules! choice {
    (
        $(#[doc = $doc:literal])*
        $type:ident, $what:literal, default $default:ident: {
            $(
                $(#[doc = $help:literal])*
                $variant:ident = $code:literal, $name:literal $(or $first:literal $(or $alias:literal)*)?;
            )*
        }
        $(withdrawn { $($old_code:literal, $old_name:literal, now $successor:ident;)* })?
    ) => {
        $(#[doc = $doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $type {
            $($(#[doc = $help])* $variant,)*
        }

        impl $type {
            /// Every value, in the order in which help prints them.
            pub const ALL: &'static [$type] = &[$($type::$variant),*];

            /// The names, each with its aliases in parentheses.
            pub const WORDS: &'static [&'static str] =
                &[$(concat!($name $(, " (", $first $(, ", ", $alias)*, ")")?)),*];

            /// Returns the word for this value.
            pub fn name(self) -> &'static str {
                match self { $($type::$variant => $name),* }
            }

            /// Returns the number of this value in the volume table.
            pub fn code(self) -> u8 {
                match self { $($type::$variant => $code),* }
            }

            /// Values that earlier versions had: number, name, and the value that took their place.
            pub const WITHDRAWN: &'static [(u8, &'static str, $type)] =
                &[$($(($old_code, $old_name, $type::$successor)),*)?];

            /// Returns the name of the withdrawn value that had this number in the volume table.
            pub fn withdrawn_name(code: u8) -> Option<&'static str> {
                let found = Self::WITHDRAWN.iter().find(|(old, ..)| *old == code);
                found.map(|(_, name, _)| *name)
            }

            /// Returns the value with this number in the volume table; for the number of a
            /// withdrawn value its successor.
            pub fn from_code(code: u8) -> Option<Self> {
                let withdrawn = Self::WITHDRAWN.iter().map(|(old, _, successor)| (*old, *successor));
                let values = Self::ALL.iter().map(|value| (value.code(), *value)).chain(withdrawn);
                values.into_iter().find(|(known, _)| *known == code).map(|(_, value)| value)
            }
        }

        impl Default for $type {
            fn default() -> Self {
                $type::$default
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
                    $($name $(| $first $(| $alias)*)? => Ok($type::$variant),)*
                    _ => Err(ChoiceError::new(text, $what, Self::WORDS)),
                }
            }
        }

        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.name())
            }
        }

        impl<'de> Deserialize<'de> for $type {
            /// Reads the word for a value, or for a withdrawn one, which another version may have
            /// written. Words of operators are parsed.
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let word = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
                let withdrawn = Self::WITHDRAWN.iter().find(|(_, name, _)| *name == word);
                withdrawn.map_or_else(
                    || word.parse().map_err(D::Error::custom),
                    |(_, _, successor)| Ok(*successor),
                )
            }
        }
    };
}

choice! {
    /// Handling of reads and writes by the cache.
    Mode, "mode", default Writeback: {
        /// Reads are cached; writes go to the cache and later to the origin.
        Writeback = 1, "writeback" or "wb";
        /// Reads are cached; writes go to both and are acknowledged when the origin has them.
        Writethrough = 2, "writethrough" or "wt";
        /// Reads are cached; writes go to the origin and invalidate a cached copy.
        Writearound = 3, "writearound" or "wa" or "readonly" or "ro";
        /// Writes as in writeback; reads never fill.
        Writeonly = 4, "writeonly" or "wo";
        /// Reads and writes go to the origin; cached copies are invalidated.
        Passthrough = 5, "passthrough" or "pt";
    }
}

choice! {
    /// Whether a volume caches, whatever its mode.
    Caching, "state of caching", default On: {
        /// Requests are handled as the mode says.
        On = 1, "on";
        /// Cached blocks are served and updated; no others enter.
        Frozen = 2, "frozen";
        /// Requests are handled like in mode passthrough, without copies in RAM.
        Paused = 3, "paused";
    }
}

choice! {
    /// NBD clients that find a volume. The daemon's own connections, by which it makes block
    /// devices, always do.
    NbdReach, "reach of NBD", default Local: {
        /// Clients at unix sockets and at TCP addresses.
        All = 1, "all";
        /// Clients at unix sockets.
        Local = 2, "local";
        /// No clients.
        Off = 3, "off";
    }
}

choice! {
    /// When a write is acknowledged.
    Durability, "durability", default Flush: {
        /// When data and record are on stable media of the cache device.
        Strict = 1, "strict";
        /// When the data is in the log buffer in RAM; flush and FUA are honoured exactly.
        Flush = 2, "flush";
        /// When the data is in the RAM tier, from where it is written down later; flush and FUA are
        /// honoured exactly, unless the operator has them ignored. Below the tier as `flush`.
        Deferred = 3, "deferred";
    }
}

choice! {
    /// Requests that the RAM tier caches.
    RamStrategy, "strategy", default ReadWrite: {
        /// Reads and writes.
        ReadWrite = 1, "read-write" or "rw";
        /// Reads only; a write invalidates the copy.
        ReadOnly = 2, "read-only" or "ro";
        /// Writes only; reads of other data fill nothing.
        WriteOnly = 3, "write-only" or "wo";
    }
}

choice! {
    /// When the RAM tier writes deferred data down to the tier below.
    WriteDown, "write-down mode", default Interval: {
        /// All of it, shortly before the oldest reaches its age limit.
        Interval = 1, "interval";
        /// In equal parts, spread over the time of the age limit.
        Average = 2, "average";
        /// While the tier below is idle, and at the age limit at the latest.
        Idle = 3, "idle";
        /// At once.
        Buffer = 4, "buffer";
        /// On demand, when space runs short, and when the volume stops.
        Infinite = 5, "infinite";
    }
}

choice! {
    /// Whether background writeback lets the origin's disk sleep.
    Laziness, "kind of writeback", default Eager: {
        /// Dirty blocks are written back after a time, and when clients are idle.
        Eager = 1, "eager";
        /// Dirty blocks are kept until there are many, the quiet hours begin, or a client has woken
        /// the disk.
        Lazy = 2, "lazy";
    }
}

choice! {
    /// Whether distance costs time on an origin.
    Rotational, "answer", default Auto: {
        /// As the origin says; if it says nothing, yes.
        Auto = 1, "auto";
        /// A disk whose head has to move.
        Yes = 2, "yes";
        /// An SSD, or storage behind a network.
        No = 3, "no";
    }
}

choice! {
    /// Logical sectors that clients see.
    SectorSize, "size of sectors", default Auto: {
        /// The origin's sectors.
        Auto = 1, "auto";
        /// 512 bytes.
        Small = 2, "512";
        /// 4096 bytes.
        Large = 3, "4096" or "4K" or "4k";
    }
}

impl SectorSize {
    /// Returns the size in bytes; `None`: the origin decides.
    pub fn bytes(self) -> Option<u32> {
        match self {
            SectorSize::Auto => None,
            SectorSize::Small => Some(512),
            SectorSize::Large => Some(4096),
        }
    }
}

impl Rotational {
    /// Returns the answer for an origin that says `told`.
    pub fn of(self, told: Option<bool>) -> bool {
        match self {
            Rotational::Auto => told.unwrap_or(true),
            Rotational::Yes => true,
            Rotational::No => false,
        }
    }
}

choice! {
    /// The policy that chooses blocks to evict.
    ReplacementKind, "replacement policy", default S3Fifo: {
        /// Least recently used.
        Lru = 1, "lru";
        /// First in, first out.
        Fifo = 2, "fifo";
        /// A random block.
        Random = 3, "random" or "rand";
        /// Least frequently used.
        Lfu = 5, "lfu";
        /// Least frequently used, with frequencies that decay.
        LfuR = 6, "lfu-r";
        /// Stochastic multi-queue with a hotspot queue.
        Smq = 7, "smq";
        /// Second chance.
        Clock = 8, "clock";
        /// Two queues.
        TwoQ = 9, "2q";
        /// Adaptive replacement cache.
        Arc = 10, "arc";
        /// Low inter-reference recency set.
        Lirs = 11, "lirs";
        /// SIEVE.
        Sieve = 12, "sieve";
        /// A small queue for new blocks, a main queue for those used again, and ghosts.
        S3Fifo = 4, "s3-fifo" or "s3fifo";
        /// Tiny LFU behind a window.
        WTinyLfu = 13, "w-tinylfu" or "wtinylfu";
    }
    withdrawn {
        14, "auto", now S3Fifo;
    }
}

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

    const WORDS: &[&str] = &["always", "second-hit", "ghost:1 to ghost:16"];

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
        found.ok_or_else(|| ChoiceError::new(text, "rule of admission", Admission::WORDS))
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
