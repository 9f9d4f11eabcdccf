//! The front ends through which a volume is exported.

use std::fmt;
use std::str::FromStr;

/// A kind of front end. A new one gets its word in [`FrontEndKind::ALL`] and its bit in the volume
/// table, which never changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FrontEndKind {
    /// NBD, at the daemon's addresses.
    Nbd,
    /// A file of the daemon, with a loop device on top.
    Fuse,
    /// A block device of the kernel that the daemon serves.
    Ublk,
}

impl FrontEndKind {
    /// Every kind, in the order in which they are printed.
    pub const ALL: &'static [FrontEndKind] =
        &[FrontEndKind::Nbd, FrontEndKind::Fuse, FrontEndKind::Ublk];

    /// The words of [`FrontEndKind::ALL`].
    pub const WORDS: &'static [&'static str] = &["nbd", "fuse", "ublk"];

    /// Returns its word.
    pub fn name(self) -> &'static str {
        match self {
            FrontEndKind::Nbd => "nbd",
            FrontEndKind::Fuse => "fuse",
            FrontEndKind::Ublk => "ublk",
        }
    }

    fn bit(self) -> u64 {
        match self {
            FrontEndKind::Nbd => 1,
            FrontEndKind::Fuse => 2,
            FrontEndKind::Ublk => 4,
        }
    }
}

impl fmt::Display for FrontEndKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The front ends of one volume. NBD is always among them: it costs nothing, and its addresses belong
/// to the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ExportSet(u64);

/// A text is not a list of front ends.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{given}' is not a front end; list some of {}, separated by commas", FrontEndKind::WORDS.join(", "))]
pub struct ExportSetError {
    given: String,
}

impl Default for ExportSet {
    fn default() -> Self {
        ExportSet(FrontEndKind::Nbd.bit())
    }
}

impl ExportSet {
    /// No front end: the exports of a volume that is not served.
    pub const NONE: ExportSet = ExportSet(0);

    /// Returns this set with one more front end.
    pub fn with(self, kind: FrontEndKind) -> Self {
        ExportSet(self.0 | kind.bit())
    }

    /// Returns the front ends of this set that `other` does not have.
    pub fn without(self, other: ExportSet) -> Self {
        ExportSet(self.0 & !other.0)
    }

    /// Returns whether a front end is in the set.
    pub fn has(self, kind: FrontEndKind) -> bool {
        self.0 & kind.bit() != 0
    }

    /// Returns the front ends in the set.
    pub fn iter(self) -> impl Iterator<Item = FrontEndKind> {
        FrontEndKind::ALL.iter().copied().filter(move |kind| self.has(*kind))
    }

    /// Returns the number for the volume table.
    pub fn to_number(self) -> u64 {
        self.0
    }

    /// Decodes [`ExportSet::to_number`]. Front ends that only a later version knows are left out.
    pub fn from_number(number: u64) -> Self {
        let kinds = FrontEndKind::ALL.iter().filter(|kind| number & kind.bit() != 0);
        kinds.fold(Self::default(), |set, kind| set.with(*kind))
    }
}

impl FromStr for ExportSet {
    type Err = ExportSetError;

    fn from_str(text: &str) -> Result<Self, ExportSetError> {
        let mut set = ExportSet::default();
        for word in text.split(',') {
            let found = FrontEndKind::ALL.iter().find(|kind| kind.name() == word);
            let kind = found
                .ok_or_else(|| ExportSetError { given: word.escape_debug().take(40).collect() })?;
            set = set.with(*kind);
        }
        Ok(set)
    }
}

impl fmt::Display for ExportSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.iter().map(FrontEndKind::name).collect();
        f.write_str(&names.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_list_reads_back_and_has_nbd() {
        let both = ExportSet::default().with(FrontEndKind::Fuse);
        let all = both.with(FrontEndKind::Ublk);
        for (text, set, printed) in [
            ("ublk", ExportSet::default().with(FrontEndKind::Ublk), "nbd,ublk"),
            ("ublk,fuse", all, "nbd,fuse,ublk"),
            ("nbd", ExportSet::default(), "nbd"),
            ("fuse", both, "nbd,fuse"),
            ("fuse,nbd", both, "nbd,fuse"),
            ("nbd,fuse,fuse", both, "nbd,fuse"),
        ] {
            assert_eq!(text.parse(), Ok(set), "{text}");
            assert_eq!(set.to_string(), printed);
            assert_eq!(ExportSet::from_number(set.to_number()), set);
        }
        assert_eq!(FrontEndKind::WORDS.len(), FrontEndKind::ALL.len());
        for (kind, word) in FrontEndKind::ALL.iter().zip(FrontEndKind::WORDS) {
            assert_eq!(kind.name(), *word);
        }
    }

    #[test]
    fn other_words_are_refused_and_later_front_ends_left_out() {
        for bad in ["", ",", "nbd,", "NBD", "nbd, fuse", "ublk2", "auto", "nbd;fuse"] {
            assert!(bad.parse::<ExportSet>().is_err(), "{bad:?} was read");
        }
        assert_eq!(ExportSet::from_number(0), ExportSet::default());
        let all = FrontEndKind::ALL.iter().fold(ExportSet::default(), |set, kind| set.with(*kind));
        assert_eq!(ExportSet::from_number(u64::MAX), all);
    }
}
