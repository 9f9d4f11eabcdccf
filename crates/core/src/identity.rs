//! Identifies a device by everything except its content: serial numbers and UUIDs; for a file, its
//! filesystem, inode number and birth time; for an image of Ceph, its id.
//!
//! A part may be known at one time and unknown at another. Two identities differ only in parts that
//! both contain.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

/// Longest text of one part, in bytes.
pub const MAX_IDENTITY_TEXT: usize = 255;
/// Maximum number of parts of one identity.
pub const MAX_IDENTITY_PARTS: usize = 16;

/// One kind of part. Each kind has one source, so that a device always reports the same text for
/// it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum IdentityPart {
    /// World-wide identifier of a disk, as the kernel reports it.
    Wwid = 1,
    /// Serial number of a disk, as the kernel reports it.
    Serial = 2,
    /// Serial number of a disk, as the system's device manager composes it.
    LongSerial = 3,
    /// UUID of a device-mapper device.
    DmUuid = 4,
    /// UUID of a RAID array.
    RaidUuid = 5,
    /// UUID of a partition.
    PartitionUuid = 6,
    /// First sector of a partition, or first byte of a part of a file.
    Start = 7,
    /// UUID of the filesystem that holds a file.
    Filesystem = 8,
    /// Inode number of a file on its filesystem.
    Inode = 9,
    /// When a file was created, in seconds since 1970 with nine decimals.
    Birth = 10,
    /// An image of a Ceph cluster: the cluster's id, the pool's number, and the image's id.
    RbdImage = 11,
}

impl IdentityPart {
    /// Every kind of part.
    pub const ALL: [IdentityPart; 11] = [
        IdentityPart::Wwid,
        IdentityPart::Serial,
        IdentityPart::LongSerial,
        IdentityPart::DmUuid,
        IdentityPart::RaidUuid,
        IdentityPart::PartitionUuid,
        IdentityPart::Start,
        IdentityPart::Filesystem,
        IdentityPart::Inode,
        IdentityPart::Birth,
        IdentityPart::RbdImage,
    ];

    /// Returns whether the part describes the location of the data, not the device. Such a part
    /// changes when a file or a partition is moved, or a mapping (whose UUID contains its name) is
    /// renamed.
    fn is_place(self) -> bool {
        use IdentityPart::{Birth, DmUuid, Filesystem, Inode, Start};
        matches!(self, DmUuid | Start | Filesystem | Inode | Birth)
    }

    fn name(self) -> &'static str {
        match self {
            IdentityPart::Wwid => "WWID",
            IdentityPart::Serial => "serial number",
            IdentityPart::LongSerial => "long serial number",
            IdentityPart::DmUuid => "device mapper UUID",
            IdentityPart::RaidUuid => "RAID UUID",
            IdentityPart::PartitionUuid => "partition UUID",
            IdentityPart::Start => "start",
            IdentityPart::Filesystem => "filesystem UUID",
            IdentityPart::Inode => "inode",
            IdentityPart::Birth => "time of birth",
            IdentityPart::RbdImage => "RBD image",
        }
    }
}

/// Returns the name of the part with this code; "unknown part" for a code of a later version.
pub fn identity_part_name(code: u8) -> &'static str {
    let known = IdentityPart::ALL.into_iter().find(|part| *part as u8 == code);
    known.map_or("unknown part", IdentityPart::name)
}

/// The parts that are known of a device, by code; at least one. See the module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<(u8, String)>", into = "Vec<(u8, String)>")]
pub struct Identity(BTreeMap<u8, String>);

impl TryFrom<Vec<(u8, String)>> for Identity {
    type Error = &'static str;

    fn try_from(parts: Vec<(u8, String)>) -> Result<Self, Self::Error> {
        Identity::from_parts(parts).ok_or("these are no parts of an identity")
    }
}

impl From<Identity> for Vec<(u8, String)> {
    fn from(identity: Identity) -> Self {
        identity.0.into_iter().collect()
    }
}

/// The first part in which two identities differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Name of the part.
    pub part: &'static str,
    /// Whether the part describes the location of the data, not the device: then the same data may
    /// have been moved.
    pub of_place: bool,
    /// The part's text in the earlier identity.
    pub was: String,
    /// The part's present text.
    pub is: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} instead of {}", self.part, self.is, self.was)
    }
}

impl Identity {
    /// Builds an identity from the parts that a system reports. Control characters and blanks at
    /// the ends are removed, parts that are empty then are skipped, and long texts are cut to
    /// [`MAX_IDENTITY_TEXT`] bytes. Returns `None` if no part is left.
    pub fn new(parts: impl IntoIterator<Item = (IdentityPart, String)>) -> Option<Self> {
        let tidy = |text: String| {
            let clean: String = text.chars().filter(|char| !char.is_control()).collect();
            let mut text = clean.trim().to_owned();
            text.truncate(text.floor_char_boundary(MAX_IDENTITY_TEXT));
            text
        };
        let parts = parts.into_iter().map(|(part, text)| (part as u8, tidy(text)));
        let parts: BTreeMap<u8, String> = parts.filter(|(_, text)| !text.is_empty()).collect();
        (!parts.is_empty()).then_some(Identity(parts))
    }

    /// Builds an identity from stored codes and texts. Returns `None` unless every text and the
    /// number of parts are within the limits and no code appears twice.
    pub fn from_parts(parts: Vec<(u8, String)>) -> Option<Self> {
        let count = parts.len();
        let good = |text: &String| {
            (1..=MAX_IDENTITY_TEXT).contains(&text.len()) && !text.chars().any(char::is_control)
        };
        let all: BTreeMap<u8, String> = parts.into_iter().filter(|part| good(&part.1)).collect();
        (all.len() == count && (1..=MAX_IDENTITY_PARTS).contains(&count)).then_some(Identity(all))
    }

    /// Returns codes and texts, in the order of the codes.
    pub fn parts(&self) -> impl ExactSizeIterator<Item = (u8, &str)> {
        self.0.iter().map(|(code, text)| (*code, text.as_str()))
    }

    /// Returns the first part that both identities contain and in which `now` differs; prefers
    /// parts that describe the device over those that describe a location.
    pub fn difference(&self, now: &Identity) -> Option<Difference> {
        let mut differences = self.differences(now);
        let first = differences.next()?;
        if !first.of_place {
            return Some(first);
        }
        Some(differences.find(|other| !other.of_place).unwrap_or(first))
    }

    fn differences(&self, now: &Identity) -> impl Iterator<Item = Difference> {
        self.0.iter().filter_map(|(code, was)| {
            let is = now.0.get(code).filter(|is| *is != was)?;
            let known = IdentityPart::ALL.into_iter().find(|part| *part as u8 == *code);
            Some(Difference {
                part: identity_part_name(*code),
                of_place: known.is_some_and(IdentityPart::is_place),
                was: was.clone(),
                is: is.clone(),
            })
        })
    }

    /// Returns the identity to store for a device that is in use from now on; `before` is its
    /// former identity. Parts of `before` that are unknown now are kept, unless it is another
    /// device.
    pub fn renew(before: Option<&Identity>, now: Option<Identity>) -> Option<Identity> {
        match (before, now) {
            (Some(before), Some(now)) if before.difference(&now).is_none() => {
                Some(now.completed_by(before))
            }
            (before, now) => now.or_else(|| before.cloned()),
        }
    }

    /// Adds the parts of `before` that are unknown now, up to [`MAX_IDENTITY_PARTS`].
    #[must_use]
    pub fn completed_by(mut self, before: &Identity) -> Self {
        for (code, text) in &before.0 {
            if self.0.len() < MAX_IDENTITY_PARTS {
                self.0.entry(*code).or_insert_with(|| text.clone());
            }
        }
        self
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, (code, text)) in self.0.iter().enumerate() {
            let comma = if number == 0 { "" } else { ", " };
            write!(f, "{comma}{} {text}", identity_part_name(*code))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(parts: &[(IdentityPart, &str)]) -> Identity {
        let parts = parts.iter().map(|(part, text)| (*part, (*text).to_owned()));
        Identity::new(parts).expect("something is known")
    }

    #[test]
    fn only_what_both_know_tells_them_apart() {
        use IdentityPart::{Birth, Inode, Serial, Wwid};
        let disk = identity(&[(Wwid, "naa.5"), (Serial, "A1")]);
        assert_eq!(disk.difference(&disk), None);
        assert_eq!(disk.difference(&identity(&[(Serial, "A1")])), None);
        assert_eq!(disk.difference(&identity(&[(Inode, "7"), (Birth, "1.0")])), None);
        let other = identity(&[(Wwid, "naa.5"), (Serial, "B2"), (Inode, "7")]);
        let difference = disk.difference(&other).expect("another serial number");
        assert_eq!(difference.to_string(), "serial number B2 instead of A1");
        assert!(!difference.of_place);
        let file = |inode| identity(&[(Inode, inode), (Birth, "1.0")]);
        assert!(file("7").difference(&file("8")).expect("another inode").of_place);
        let partition = |name, uuid| {
            identity(&[(IdentityPart::DmUuid, name), (IdentityPart::PartitionUuid, uuid)])
        };
        assert!(partition("a", "1").difference(&partition("b", "1")).expect("a name").of_place);
        assert!(!partition("a", "1").difference(&partition("b", "2")).expect("another").of_place);
    }

    #[test]
    fn known_parts_are_kept_until_they_are_reported_again() {
        use IdentityPart::{Serial, Wwid};
        let before = identity(&[(Wwid, "naa.5"), (Serial, "A1")]);
        let now = identity(&[(Serial, "B2")]).completed_by(&before);
        assert_eq!(now, identity(&[(Wwid, "naa.5"), (Serial, "B2")]));
        assert_eq!(now.to_string(), "WWID naa.5, serial number B2");
        let part = |serial| identity(&[(Serial, serial)]);
        let renew = |now| Identity::renew(Some(&before), now);
        assert_eq!(renew(Some(part("A1"))), Some(before.clone()));
        assert_eq!(renew(Some(part("B2"))), Some(part("B2")), "another device");
        assert_eq!(renew(None), Some(before.clone()));
        assert_eq!(Identity::renew(None, Some(part("A1"))), Some(part("A1")));
    }

    #[test]
    fn texts_of_the_system_are_tidied_and_stored_ones_are_checked() {
        let tidy = identity(&[(IdentityPart::Serial, "  a\0b \n"), (IdentityPart::Wwid, " \n")]);
        assert_eq!(tidy, identity(&[(IdentityPart::Serial, "ab")]));
        assert_eq!(Identity::new([(IdentityPart::Serial, " ".into())]), None);
        let long = identity(&[(IdentityPart::Serial, &"\u{e4}".repeat(200))]);
        assert!(long.parts().all(|(_, text)| text.len() == 254));
        let stored = |parts: &[(u8, &str)]| {
            Identity::from_parts(parts.iter().map(|(code, text)| (*code, (*text).into())).collect())
        };
        assert!(stored(&[(1, "x"), (200, "of a later program")]).is_some());
        for bad in [&[][..], &[(1, "")], &[(1, "a\n")], &[(1, "a"), (1, "b")]] {
            assert_eq!(stored(bad), None, "{bad:?}");
        }
        let many: Vec<(u8, String)> = (0..17).map(|code| (code, "x".into())).collect();
        assert_eq!(Identity::from_parts(many), None);
        let codes: std::collections::BTreeSet<u8> =
            IdentityPart::ALL.into_iter().map(|part| part as u8).collect();
        assert_eq!(codes.len(), IdentityPart::ALL.len());
    }
}
