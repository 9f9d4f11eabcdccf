//! Existing content of a device, recognised by marks of other systems. [`crate::blkid`] finds all
//! known ones. Without libblkid the table here names the common ones; other content is unnamed, but
//! still counts as content.

use std::fmt;
use std::io::Read;

/// The device's use according to a mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Usage {
    /// A filesystem.
    Filesystem,
    /// A part of something larger: RAID, a volume manager, another cache.
    Member,
    /// Encrypted data.
    Encrypted,
    /// A table of partitions.
    PartitionTable,
    /// Anything else, such as swap space.
    Other,
    /// A system that [`identify`] names.
    Named,
}

impl Usage {
    /// Returns the use with this name in libblkid.
    pub fn of(name: &str) -> Self {
        let known = [Usage::Filesystem, Usage::Member, Usage::Encrypted, Usage::PartitionTable];
        known.into_iter().find(|usage| usage.name() == name).unwrap_or(Usage::Other)
    }

    /// Returns the name of the use.
    pub fn name(self) -> &'static str {
        match self {
            Usage::Filesystem => "filesystem",
            Usage::Member => "raid",
            Usage::Encrypted => "crypto",
            Usage::PartitionTable => "partitions",
            Usage::Other | Usage::Named => "other",
        }
    }
}

/// The mark of a system on a device.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Signature {
    /// The device's use.
    pub usage: Usage,
    /// The system, by its name in libblkid: `ext4`, `crypto_LUKS`, `gpt`.
    pub kind: String,
    /// The label that its owner gave to the content.
    pub label: Option<String>,
    /// UUID of the device as the system writes it.
    pub uuid: Option<String>,
    /// Offset of the mark on the device, in bytes.
    pub offset: u64,
}

impl fmt::Display for Signature {
    /// Writes the content with an article, its label and its UUID. Label and UUID come from the
    /// device unchecked.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind.as_str() {
            "dos" => "MBR",
            "gpt" => "GPT",
            kind => kind,
        };
        let article = match kind.as_bytes() {
            [b'a' | b'e' | b'i' | b'o' | b'u' | b'A' | b'E' | b'I' | b'O' | b'M', ..] => "an",
            [b'x' | b'f' | b'h' | b'n' | b'l', second, ..] if !b"aeiou".contains(second) => "an",
            _ => "a",
        };
        match self.usage {
            _ if kind.ends_with("_member") || kind.ends_with("_array") => {
                write!(f, "{article} {kind}")?;
            }
            Usage::Filesystem => write!(f, "{article} {kind} filesystem")?,
            Usage::PartitionTable => write!(f, "{article} {kind} partition table")?,
            Usage::Member => write!(f, "{article} {kind} member")?,
            Usage::Encrypted => write!(f, "encrypted data ({kind})")?,
            Usage::Other => write!(f, "{article} {kind} mark")?,
            Usage::Named => f.write_str(kind)?,
        }
        match (&self.label, &self.uuid) {
            (Some(label), _) => write!(f, " labelled '{label}'"),
            (None, Some(uuid)) => write!(f, " with UUID {uuid}"),
            (None, None) => Ok(()),
        }
    }
}

/// Bytes from the start of a device that are searched for marks.
pub const HEAD_LEN: usize = 68 << 10;

/// An entry of the table: a system, the offset of its mark, and the mark's bytes.
type SignatureRow = (&'static str, usize, &'static [u8]);

/// Marks from specific to general: the two bytes of a partition table are also in many boot
/// sectors.
const MARKS: &[SignatureRow] = &[
    ("an ext2, ext3 or ext4 filesystem", 0x438, b"\x53\xef"),
    ("an XFS filesystem", 0, b"XFSB"),
    ("a btrfs filesystem", 0x10040, b"_BHRfS_M"),
    ("an F2FS filesystem", 1024, b"\x10\x20\xf5\xf2"),
    ("a JFS filesystem", 32768, b"JFS1"),
    ("a ReiserFS filesystem", 0x10034, b"ReIsEr"),
    ("a ZFS pool", 16384, b"\x01\x01\0\0\0\0\0\0\0\0\0\x01"),
    ("an ISO 9660 filesystem", 32769, b"CD001"),
    ("an LVM physical volume", 0, b"LABELONE"),
    ("an LVM physical volume", 512, b"LABELONE"),
    ("an LVM physical volume", 1024, b"LABELONE"),
    ("an LVM physical volume", 1536, b"LABELONE"),
    ("swap space", 4086, b"SWAPSPACE2"),
    ("swap space", 8182, b"SWAPSPACE2"),
    ("swap space", 16374, b"SWAPSPACE2"),
    ("swap space", 65526, b"SWAPSPACE2"),
    ("swap space", 4086, b"SWAP-SPACE"),
    ("a suspended system in swap space", 4086, b"S1SUSPEND"),
    ("a LUKS volume", 0, b"LUKS\xba\xbe"),
    ("a BitLocker volume", 3, b"-FVE-FS-"),
    ("an md RAID member", 0, b"\xfc\x4e\x2b\xa9"),
    ("an md RAID member", 4096, b"\xfc\x4e\x2b\xa9"),
    (
        "a bcache device",
        4096 + 24,
        b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81",
    ),
    (
        "a bcachefs filesystem",
        4096 + 24,
        b"\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef",
    ),
    ("a dm-cache metadata device", 32, b"\x03\xc4\x18\0\0\0\0\0"),
    ("a dm-writecache device", 0, b"\x21\x93\x48\x23"),
    ("a qcow2 image", 0, b"QFI\xfb"),
    ("a VMDK image", 0, b"KDMV"),
    ("a VHDX image", 0, b"vhdxfile"),
    ("an NTFS filesystem", 3, b"NTFS    "),
    ("an exFAT filesystem", 3, b"EXFAT   "),
    ("a FAT filesystem", 54, b"FAT1"),
    ("a FAT filesystem", 82, b"FAT32   "),
    ("a partition table", 512, b"EFI PART"),
    ("a partition table", 4096, b"EFI PART"),
    ("a partition table or boot sector", 510, b"\x55\xaa"),
];

/// Returns the content that the first bytes of a device indicate; `None` if it is unknown.
pub fn identify(head: &[u8]) -> Option<&'static str> {
    MARKS
        .iter()
        .find(|(_, offset, mark)| head.get(*offset..).is_some_and(|rest| rest.starts_with(mark)))
        .map(|(what, ..)| *what)
}

/// Like [`identify`], as a mark.
pub fn named(head: &[u8]) -> Option<Signature> {
    let kind = identify(head)?.to_owned();
    Some(Signature { usage: Usage::Named, kind, label: None, uuid: None, offset: 0 })
}

/// Reads the head of a device, or all of it if it is shorter.
///
/// # Errors
/// The device's error.
pub fn read_head(device: impl Read) -> std::io::Result<Vec<u8>> {
    let mut head = Vec::with_capacity(HEAD_LEN);
    device.take(HEAD_LEN as u64).read_to_end(&mut head)?;
    Ok(head)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mark_is_found_and_only_whole() {
        for (what, offset, mark) in MARKS {
            assert!(offset + mark.len() <= HEAD_LEN, "{what} is beyond the head");
            let mut head = vec![0u8; HEAD_LEN];
            head[*offset..offset + mark.len()].copy_from_slice(mark);
            assert_eq!(identify(&head), Some(*what));
            assert_eq!(identify(&head[..offset + mark.len() - 1]), None, "{what} cut short");
        }
    }

    #[test]
    fn a_mark_is_written_with_its_label() {
        let text = |usage, kind: &str, label: Option<&str>, uuid: Option<&str>| {
            let (label, uuid) = (label.map(str::to_owned), uuid.map(str::to_owned));
            Signature { usage, kind: kind.to_owned(), label, uuid, offset: 0 }.to_string()
        };
        let both = (Some("photos"), Some("1-2"));
        assert_eq!(
            text(Usage::Filesystem, "ext4", both.0, both.1),
            "an ext4 filesystem labelled 'photos'"
        );
        assert_eq!(text(Usage::Filesystem, "xfs", None, None), "an xfs filesystem");
        assert_eq!(
            text(Usage::Filesystem, "btrfs", None, both.1),
            "a btrfs filesystem with UUID 1-2"
        );
        assert_eq!(text(Usage::PartitionTable, "dos", None, None), "an MBR partition table");
        assert_eq!(text(Usage::PartitionTable, "gpt", None, None), "a GPT partition table");
        assert_eq!(text(Usage::Member, "linux_raid_member", None, None), "a linux_raid_member");
        assert_eq!(text(Usage::Filesystem, "zfs_member", None, None), "a zfs_member");
        assert_eq!(text(Usage::Other, "swap", None, None), "a swap mark");
        let swap = named(&[&[0; 4086][..], b"SWAPSPACE2"].concat()).expect("known");
        assert_eq!(swap.to_string(), "swap space");
    }

    #[test]
    fn an_empty_or_blank_device_shows_nothing() {
        assert_eq!(identify(&[]), None);
        assert_eq!(identify(&[0; 511]), None);
        assert_eq!(identify(&vec![0; HEAD_LEN]), None);
        let head = read_head(std::io::repeat(7)).expect("endless");
        assert_eq!((head.len(), identify(&head)), (HEAD_LEN, None));
    }
}
