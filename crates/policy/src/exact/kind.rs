//! The names of the policies that decide on blocks.

use std::fmt;
use std::str::FromStr;

use forebay_core::ChoiceError;

/// How blocks are chosen to make room, one by one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum PolicyKind {
    /// Least recently used.
    #[default]
    Lru,
    /// First in, first out.
    Fifo,
    /// Any block.
    Random,
    /// Least frequently used.
    Lfu,
    /// Least frequently used; frequencies fade.
    LfuR,
    /// Stochastic multi-queue with a hotspot queue.
    Smq,
    /// Second chance.
    Clock,
    /// Two queues.
    TwoQ,
    /// Adaptive replacement cache.
    Arc,
    /// Low inter-reference recency set.
    Lirs,
    /// SIEVE.
    Sieve,
    /// Three FIFO queues.
    S3Fifo,
    /// Tiny LFU behind a window.
    WTinyLfu,
}

/// As help prints them, in the order of [`PolicyKind::ALL`].
const CHOICES: &str = "lru, fifo, random (rand), lfu, lfu-r, smq, clock, 2q, arc, lirs, sieve, s3-fifo (s3fifo), w-tinylfu (wtinylfu)";

impl PolicyKind {
    /// Every policy, in the order in which help prints them.
    pub const ALL: &'static [PolicyKind] = &[
        PolicyKind::Lru,
        PolicyKind::Fifo,
        PolicyKind::Random,
        PolicyKind::Lfu,
        PolicyKind::LfuR,
        PolicyKind::Smq,
        PolicyKind::Clock,
        PolicyKind::TwoQ,
        PolicyKind::Arc,
        PolicyKind::Lirs,
        PolicyKind::Sieve,
        PolicyKind::S3Fifo,
        PolicyKind::WTinyLfu,
    ];

    /// The word for it.
    pub fn name(self) -> &'static str {
        match self {
            PolicyKind::Lru => "lru",
            PolicyKind::Fifo => "fifo",
            PolicyKind::Random => "random",
            PolicyKind::Lfu => "lfu",
            PolicyKind::LfuR => "lfu-r",
            PolicyKind::Smq => "smq",
            PolicyKind::Clock => "clock",
            PolicyKind::TwoQ => "2q",
            PolicyKind::Arc => "arc",
            PolicyKind::Lirs => "lirs",
            PolicyKind::Sieve => "sieve",
            PolicyKind::S3Fifo => "s3-fifo",
            PolicyKind::WTinyLfu => "w-tinylfu",
        }
    }

    /// Another word that is understood.
    fn alias(self) -> Option<&'static str> {
        match self {
            PolicyKind::Random => Some("rand"),
            PolicyKind::S3Fifo => Some("s3fifo"),
            PolicyKind::WTinyLfu => Some("wtinylfu"),
            _ => None,
        }
    }
}

impl fmt::Display for PolicyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for PolicyKind {
    type Err = ChoiceError;

    fn from_str(text: &str) -> Result<Self, ChoiceError> {
        let named = |kind: &&PolicyKind| kind.name() == text || kind.alias() == Some(text);
        let found = PolicyKind::ALL.iter().find(named).copied();
        found.ok_or_else(|| ChoiceError::new(text, "replacement policy", CHOICES))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_aliases_are_read_and_listed() {
        for kind in PolicyKind::ALL {
            assert_eq!(kind.name().parse(), Ok(*kind));
            assert!(CHOICES.split(", ").any(|choice| {
                choice == kind.name()
                    || kind.alias().is_some_and(|a| choice == format!("{kind} ({a})"))
            }));
            if let Some(alias) = kind.alias() {
                assert_eq!(alias.parse(), Ok(*kind));
            }
        }
        assert_eq!(CHOICES.split(", ").count(), PolicyKind::ALL.len());
        let error = "LRU".parse::<PolicyKind>().unwrap_err().to_string();
        assert!(error.contains("'LRU'") && error.contains("s3-fifo"), "{error}");
    }
}
