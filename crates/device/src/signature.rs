//! Existing content of a device, recognised by marks of other systems near its start.

use std::io::Read;

/// Bytes from the start of a device that are searched for marks.
pub const HEAD_LEN: usize = 68 << 10;

/// A mark: its system, its offset, and its bytes.
type Mark = (&'static str, usize, &'static [u8]);

/// Marks from specific to general: a partition table's two bytes are also in many boot sectors.
const MARKS: &[Mark] = &[
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
    fn an_empty_or_blank_device_shows_nothing() {
        assert_eq!(identify(&[]), None);
        assert_eq!(identify(&[0; 511]), None);
        assert_eq!(identify(&vec![0; HEAD_LEN]), None);
        let head = read_head(std::io::repeat(7)).expect("endless");
        assert_eq!((head.len(), identify(&head)), (HEAD_LEN, None));
    }
}
