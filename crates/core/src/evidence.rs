//! A system's evidence of writes to a device: times of a file, counters of the kernel.
//!
//! Evidence is taken when a volume stops and compared when it starts. It proves that nothing was
//! written to the origin in between, or that something was. Otherwise the contents are compared.

use std::fmt;
use std::str::FromStr;

/// The longest text of evidence, in bytes.
pub const MAX_EVIDENCE_TEXT: usize = 255;

/// A time of a file: nanoseconds since 1970.
pub type FileTime = i128;

/// Facts about a file, or about the file behind a loop device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileEvidence {
    /// The device is only a part of the file.
    pub part: bool,
    /// Inode of the file.
    pub inode: u64,
    /// Size of the file in bytes.
    pub size: u64,
    /// When its content was modified.
    pub modified: FileTime,
    /// When its content, times or other attributes were changed.
    pub changed: FileTime,
}

/// The kernel's counters of a block device, which start when the device appears.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CountedEvidence {
    /// Identifies the time since the machine was started.
    pub boot: String,
    /// Identifies the counted disks; differs if one of them was removed and attached again.
    pub disks: u64,
    /// Sectors written to the device itself, and discarded.
    pub own: u64,
    /// Sectors written to, and discarded on, all disks that the device consists of.
    pub all: u64,
}

/// The source of evidence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EvidenceKind {
    /// A file.
    File(FileEvidence),
    /// A block device.
    Counted(CountedEvidence),
}

/// The system's evidence of writes to a device at one time. Its text is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Evidence {
    /// The source.
    pub kind: EvidenceKind,
    /// True if every later write changes this evidence. Otherwise the evidence can prove that
    /// something was written, but not that nothing was.
    pub exact: bool,
}

/// The result of a comparison with earlier evidence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Since {
    /// Nothing was written.
    Unwritten,
    /// Something was written, for this reason.
    Written(&'static str),
    /// It is unknown whether something was written, for this reason.
    Unknown(&'static str),
}

impl Evidence {
    /// Returns what happened to the device since `before` was taken.
    pub fn since(&self, before: &Evidence) -> Since {
        let differs = match (&before.kind, &self.kind) {
            (EvidenceKind::File(was), EvidenceKind::File(now)) => file_since(was, now),
            (EvidenceKind::Counted(was), EvidenceKind::Counted(now)) => counted_since(was, now),
            _ => Some(Since::Unknown("it is a device of another kind")),
        };
        differs.unwrap_or(match self.exact && before.exact {
            true => Since::Unwritten,
            false => Since::Unknown("its system does not tell of every write"),
        })
    }
}

fn file_since(was: &FileEvidence, now: &FileEvidence) -> Option<Since> {
    if was.inode != now.inode {
        Some(Since::Unknown("it is another file"))
    } else if now.size > was.size {
        // Growing a file sets its modification time too.
        Some(Since::Unknown("its file has grown"))
    } else if was.size != now.size || was.modified != now.modified {
        Some(match now.part {
            true => Since::Unknown("the file that it is a part of was modified"),
            false => Since::Written("its file was modified"),
        })
    } else if was.changed != now.changed {
        // A restored backup has its old modification time; a rename changes the change time as
        // well. So neither is proof of a write.
        Some(Since::Unknown("attributes of its file were changed"))
    } else {
        None
    }
}

fn counted_since(was: &CountedEvidence, now: &CountedEvidence) -> Option<Since> {
    if was.boot != now.boot {
        Some(Since::Unknown("the machine was restarted"))
    } else if was.disks != now.disks || now.own < was.own || now.all < was.all {
        Some(Since::Unknown("the device was attached anew"))
    } else if now.own > was.own {
        Some(Since::Written("the kernel has counted writes to it"))
    } else if now.all > was.all {
        Some(Since::Unknown("its disk was written to"))
    } else {
        None
    }
}

impl fmt::Display for Evidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let exact = u8::from(self.exact);
        match &self.kind {
            EvidenceKind::File(FileEvidence { part, inode, size, modified, changed }) => {
                let kind = if *part { "part" } else { "file" };
                write!(f, "{kind} {exact} {inode} {size} {modified} {changed}")
            }
            EvidenceKind::Counted(CountedEvidence { boot, disks, own, all }) => {
                write!(f, "counted {exact} {boot} {disks:x} {own} {all}")
            }
        }
    }
}

/// The text is not evidence in a format that this program knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownEvidence;

impl FromStr for Evidence {
    type Err = UnknownEvidence;

    fn from_str(text: &str) -> Result<Self, UnknownEvidence> {
        fn number<T: FromStr>(text: &str) -> Result<T, UnknownEvidence> {
            text.parse().map_err(|_| UnknownEvidence)
        }
        let words: Vec<&str> = text.split(' ').collect();
        let [kind, exact, first, second, third, fourth] = words[..] else {
            return Err(UnknownEvidence);
        };
        let kind = match kind {
            "file" | "part" => EvidenceKind::File(FileEvidence {
                part: kind == "part",
                inode: number(first)?,
                size: number(second)?,
                modified: number(third)?,
                changed: number(fourth)?,
            }),
            "counted" => EvidenceKind::Counted(CountedEvidence {
                boot: first.to_owned(),
                disks: u64::from_str_radix(second, 16).map_err(|_| UnknownEvidence)?,
                own: number(third)?,
                all: number(fourth)?,
            }),
            _ => return Err(UnknownEvidence),
        };
        let evidence = Evidence { kind, exact: exact == "1" };
        // A stored text is written back as it was read.
        if evidence.to_string() == text { Ok(evidence) } else { Err(UnknownEvidence) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(inode: u64, size: u64, modified: FileTime, changed: FileTime) -> Evidence {
        let part = false;
        let kind = EvidenceKind::File(FileEvidence { part, inode, size, modified, changed });
        Evidence { kind, exact: true }
    }

    fn part_of(mut evidence: Evidence) -> Evidence {
        if let EvidenceKind::File(file) = &mut evidence.kind {
            file.part = true;
        }
        evidence
    }

    fn counted(boot: &str, disks: u64, own: u64, all: u64) -> Evidence {
        let boot = boot.to_owned();
        let kind = EvidenceKind::Counted(CountedEvidence { boot, disks, own, all });
        Evidence { kind, exact: true }
    }

    #[test]
    fn a_file_is_unwritten_only_if_nothing_has_changed() {
        let was = file(7, 4096, 10, 11);
        assert_eq!(was.since(&was), Since::Unwritten);
        for (now, written) in [
            (file(7, 4096, 12, 12), true),
            // The clock may have been set back.
            (file(7, 4096, 9, 9), true),
            (file(7, 512, 10, 12), true),
            (file(7, 4096, 10, 12), false),
            (file(7, 8192, 12, 12), false),
            (file(8, 4096, 10, 11), false),
            (part_of(file(7, 4096, 12, 12)), false),
            (counted("b", 1, 2, 3), false),
        ] {
            let since = now.since(&was);
            let known = if written {
                matches!(since, Since::Written(_))
            } else {
                matches!(since, Since::Unknown(_))
            };
            assert!(known, "{now}: {since:?}");
        }
        for (exact, then) in [(false, true), (true, false), (false, false)] {
            let (now, was) =
                (Evidence { exact, ..was.clone() }, Evidence { exact: then, ..was.clone() });
            assert!(matches!(now.since(&was), Since::Unknown(_)));
            assert!(matches!(
                Evidence { exact, ..file(7, 4096, 12, 12) }.since(&was),
                Since::Written(_)
            ));
        }
    }

    #[test]
    fn counters_tell_only_within_a_boot_and_while_the_device_stays() {
        let was = counted("b", 1, 20, 30);
        assert_eq!(was.since(&was), Since::Unwritten);
        assert!(matches!(counted("b", 1, 21, 31).since(&was), Since::Written(_)));
        for now in [
            counted("c", 1, 20, 30),
            counted("c", 1, 21, 31),
            counted("b", 2, 21, 31),
            counted("b", 1, 20, 31),
            counted("b", 1, 19, 30),
            counted("b", 1, 20, 29),
        ] {
            assert!(matches!(now.since(&was), Since::Unknown(_)), "{now}");
        }
    }

    #[test]
    fn texts_survive_the_round_trip_and_others_are_unknown() {
        let longest = file(u64::MAX, u64::MAX, i64::MIN.into(), i64::MAX.into());
        let boot = "0fc63daf-8483-4772-8e79-3d69d8477de4";
        for evidence in
            [part_of(longest.clone()), longest, counted(boot, u64::MAX, u64::MAX, u64::MAX)]
        {
            for exact in [false, true] {
                let evidence = Evidence { exact, ..evidence.clone() };
                let text = evidence.to_string();
                assert!(text.len() <= MAX_EVIDENCE_TEXT, "{text}");
                assert_eq!(text.parse(), Ok(evidence));
            }
        }
        for text in ["", "file", "file 1 2 3 4 5 6", "disk 1 2 3 4 5", "file 1 02 3 4 5"] {
            assert_eq!(text.parse::<Evidence>(), Err(UnknownEvidence), "{text}");
        }
    }
}
