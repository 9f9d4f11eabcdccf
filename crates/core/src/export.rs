//! The front ends through which a volume is exported.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

/// Longest path of a unix socket, in bytes.
const LONGEST_SOCKET: usize = 107;

/// A kind of front end. A new kind gets its name in [`FrontEndKind::ALL`], and a bit in the volume
/// table that never changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FrontEndKind {
    /// NBD, at the daemon's addresses.
    Nbd,
    /// A file of the daemon, with a loop device on top.
    Fuse,
    /// A block device of the kernel that the daemon serves.
    Ublk,
    /// A unix socket, for a virtual machine.
    VhostUser,
    /// A block device of the kernel's NBD client.
    NbdKernel,
}

impl FrontEndKind {
    /// Every kind, in the order of output.
    pub const ALL: &'static [FrontEndKind] = &[
        FrontEndKind::Nbd,
        FrontEndKind::Fuse,
        FrontEndKind::Ublk,
        FrontEndKind::VhostUser,
        FrontEndKind::NbdKernel,
    ];

    /// Front ends for `auto`, cheapest first; the first that the host supports is used.
    pub const AUTOMATIC: &'static [FrontEndKind] =
        &[FrontEndKind::Ublk, FrontEndKind::Fuse, FrontEndKind::NbdKernel];

    /// Returns the name of the kind.
    pub fn name(self) -> &'static str {
        match self {
            FrontEndKind::Nbd => "nbd",
            FrontEndKind::Fuse => "fuse",
            FrontEndKind::Ublk => "ublk",
            FrontEndKind::VhostUser => "vhost-user",
            FrontEndKind::NbdKernel => "nbd-kernel",
        }
    }

    fn bit(self) -> u64 {
        match self {
            FrontEndKind::Nbd => 1,
            FrontEndKind::Fuse => 2,
            FrontEndKind::Ublk => 4,
            FrontEndKind::VhostUser => 8,
            FrontEndKind::NbdKernel => 16,
        }
    }
}

impl fmt::Display for FrontEndKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The front ends of one volume. NBD is always included: it costs nothing, and its addresses belong
/// to the daemon.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ExportSet {
    bits: u64,
    /// Path of the vhost-user socket, if the operator has chosen one. The path depends on the host,
    /// so the volume table does not have it.
    socket: Option<Box<Path>>,
}

/// A text is not a list of front ends.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExportSetError {
    /// A word is unknown.
    #[error("'{given}' is not a front end; list some of {}, separated by commas", ExportSet::WORDS.join(", "))]
    Unknown {
        /// The word.
        given: String,
    },
    /// The path of a socket is invalid.
    #[error(
        "'{given}' is no socket for vhost-user; write an absolute path of at most {LONGEST_SOCKET} bytes without commas"
    )]
    Socket {
        /// The path.
        given: String,
    },
}

impl Default for ExportSet {
    fn default() -> Self {
        ExportSet { bits: FrontEndKind::Nbd.bit(), socket: None }
    }
}

impl ExportSet {
    /// The empty set: the exports of a volume that is not served.
    pub const NONE: ExportSet = ExportSet { bits: 0, socket: None };

    /// Words for lists of operators: the names of [`FrontEndKind::ALL`], and `auto`.
    pub const WORDS: &'static [&'static str] =
        &["nbd", "fuse", "ublk", "vhost-user", "nbd-kernel", ExportSet::AUTO];

    /// The word of [`ExportSet::is_auto`].
    const AUTO: &'static str = "auto";
    /// Bit of `auto` in the volume table.
    const AUTO_BIT: u64 = 32;

    /// Returns this set with one more front end.
    #[must_use]
    pub fn with(mut self, kind: FrontEndKind) -> Self {
        self.bits |= kind.bit();
        self
    }

    /// Returns this set with a block device of any kind that the host supports.
    #[must_use]
    pub fn with_auto(mut self) -> Self {
        self.bits |= Self::AUTO_BIT;
        self
    }

    /// Returns the front ends of this set that `other` does not have.
    #[must_use]
    pub fn without(&self, other: &ExportSet) -> Self {
        let socket = if self.socket == other.socket { None } else { self.socket.clone() };
        ExportSet { bits: self.bits & !other.bits, socket }
    }

    /// Returns whether a front end is in the set.
    pub fn has(&self, kind: FrontEndKind) -> bool {
        self.bits & kind.bit() != 0
    }

    /// Returns whether the daemon adds the first of [`FrontEndKind::AUTOMATIC`] that the host
    /// supports.
    pub fn is_auto(&self) -> bool {
        self.bits & Self::AUTO_BIT != 0
    }

    /// Returns the path of the vhost-user socket, if the operator has chosen one.
    pub fn socket(&self) -> Option<&Path> {
        self.socket.as_deref()
    }

    /// Returns the front ends in the set.
    pub fn iter(&self) -> impl Iterator<Item = FrontEndKind> {
        FrontEndKind::ALL.iter().copied().filter(|kind| self.has(*kind))
    }

    /// Returns the number for the volume table.
    pub fn to_number(&self) -> u64 {
        self.bits
    }

    /// Decodes [`ExportSet::to_number`]. Omits front ends that only later versions know.
    pub fn from_number(number: u64) -> Self {
        let known = FrontEndKind::ALL.iter().fold(Self::AUTO_BIT, |bits, kind| bits | kind.bit());
        ExportSet { bits: FrontEndKind::Nbd.bit() | number & known, socket: None }
    }
}

/// Returns whether a text is a valid path of a socket and can be part of a list.
fn is_socket(text: &str) -> bool {
    Path::new(text).is_absolute()
        && text.len() <= LONGEST_SOCKET
        && !text.ends_with('/')
        && !text.chars().any(|c| c == ',' || c.is_control())
}

impl FromStr for ExportSet {
    type Err = ExportSetError;

    fn from_str(text: &str) -> Result<Self, ExportSetError> {
        let shown = |word: &str| word.escape_debug().take(40).collect();
        let mut set = ExportSet::default();
        for word in text.split(',') {
            let (name, socket) = match word.split_once('=') {
                Some((name, socket)) => (name, Some(socket)),
                None => (word, None),
            };
            let kind = FrontEndKind::ALL.iter().copied().find(|kind| kind.name() == name);
            set = match (kind, socket) {
                (None, None) if name == Self::AUTO => set.with_auto(),
                (Some(kind), None) => set.with(kind),
                (Some(kind @ FrontEndKind::VhostUser), Some(path)) if is_socket(path) => {
                    ExportSet { socket: Some(Path::new(path).into()), ..set.with(kind) }
                }
                (Some(FrontEndKind::VhostUser), Some(path)) => {
                    return Err(ExportSetError::Socket { given: shown(path) });
                }
                _ => return Err(ExportSetError::Unknown { given: shown(word) }),
            };
        }
        Ok(set)
    }
}

impl fmt::Display for ExportSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut words: Vec<String> = self.iter().map(|kind| kind.to_string()).collect();
        if let Some(socket) = &self.socket {
            let named = words.iter_mut().find(|word| *word == FrontEndKind::VhostUser.name());
            if let Some(word) = named {
                *word = format!("{word}={}", socket.display());
            }
        }
        words.extend(self.is_auto().then(|| Self::AUTO.to_owned()));
        f.write_str(&words.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_list_reads_back_and_has_nbd() {
        let both = ExportSet::default().with(FrontEndKind::Fuse);
        let all = both.clone().with(FrontEndKind::Ublk);
        for (text, set, printed) in [
            ("ublk", ExportSet::default().with(FrontEndKind::Ublk), "nbd,ublk"),
            ("ublk,fuse", all, "nbd,fuse,ublk"),
            ("nbd", ExportSet::default(), "nbd"),
            ("fuse", both.clone(), "nbd,fuse"),
            ("fuse,nbd", both.clone(), "nbd,fuse"),
            ("nbd,fuse,fuse", both, "nbd,fuse"),
            ("auto", ExportSet::default().with_auto(), "nbd,auto"),
            ("vhost-user", ExportSet::default().with(FrontEndKind::VhostUser), "nbd,vhost-user"),
        ] {
            assert_eq!(text.parse().as_ref(), Ok(&set), "{text}");
            assert_eq!(set.to_string(), printed);
            assert_eq!(ExportSet::from_number(set.to_number()), set);
        }
        assert_eq!(ExportSet::WORDS.len(), FrontEndKind::ALL.len() + 1);
        for (kind, word) in FrontEndKind::ALL.iter().zip(ExportSet::WORDS) {
            assert_eq!(kind.name(), *word);
        }
    }

    #[test]
    fn a_socket_stays_with_the_host() {
        let text = "nbd,vhost-user=/run/a b=c.sock,nbd-kernel,auto";
        let set: ExportSet = text.parse().expect("a list");
        assert_eq!(set.socket(), Some(Path::new("/run/a b=c.sock")));
        assert_eq!(set.to_string(), text);
        let stored = ExportSet::from_number(set.to_number());
        assert_eq!(stored.to_string(), "nbd,vhost-user,nbd-kernel,auto");
        let last: ExportSet = "vhost-user=/a,vhost-user=/b".parse().expect("a list");
        assert_eq!(last.to_string(), "nbd,vhost-user=/b");
        let long = format!("vhost-user=/{}", "x".repeat(LONGEST_SOCKET));
        for bad in ["vhost-user=", "vhost-user=x", "vhost-user=/a/", "vhost-user=/\n", &*long] {
            let error = bad.parse::<ExportSet>().expect_err("no socket");
            assert!(matches!(error, ExportSetError::Socket { .. }), "{bad:?}");
        }
    }

    #[test]
    fn other_words_are_refused_and_later_front_ends_left_out() {
        for bad in
            ["", ",", "nbd,", "NBD", "nbd, fuse", "ublk2", "Auto", "nbd;fuse", "nbd=/x", "auto=/x"]
        {
            assert!(bad.parse::<ExportSet>().is_err(), "{bad:?} was read");
        }
        assert_eq!(ExportSet::from_number(0), ExportSet::default());
        let all = FrontEndKind::ALL.iter().fold(ExportSet::default(), |set, kind| set.with(*kind));
        assert_eq!(ExportSet::from_number(u64::MAX), all.with_auto());
    }

    #[test]
    fn only_added_front_ends_need_a_check() {
        let old: ExportSet = "fuse,vhost-user=/a".parse().expect("a list");
        let new: ExportSet = "fuse,ublk,vhost-user=/b".parse().expect("a list");
        let more = new.without(&old);
        assert_eq!(more.iter().collect::<Vec<_>>(), [FrontEndKind::Ublk]);
        assert_eq!(more.socket(), Some(Path::new("/b")));
        assert_eq!(new.without(&new), ExportSet::NONE);
    }
}
