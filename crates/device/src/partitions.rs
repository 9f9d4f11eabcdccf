//! Starts of the partitions of a disk, from the tables near its start, and the partitions that the
//! kernel shows.

use std::io;
use std::os::fd::AsFd;

use forebay_host::sysfs;
use rustix::fs::FileType;
use rustix::ioctl::{NoArg, Opcode, ioctl};

use crate::signature::HEAD_LEN;

/// `BLKRRPART`.
const REREAD: Opcode = 0x125f;

/// Size of a sector in an MBR's table, and the logical block size with which a GPT is looked up
/// first.
const SECTOR: u64 = 512;

/// Offset of an MBR's table, its entries, and their size.
const MBR_TABLE: usize = 446;
const MBR_ENTRIES: usize = 4;
const MBR_ENTRY: usize = 16;

/// The type of an MBR's entry that only protects a GPT.
const PROTECTIVE: u8 = 0xee;

/// Maximum number of GPT entries that are examined, and the largest entry.
const GPT_ENTRIES: u32 = 256;
const GPT_ENTRY: u32 = 1024;

/// Returns the first byte of every partition that the head of a disk (see
/// [`crate::signature::read_head`]) lists, with its number from 1. Nothing is verified: a damaged
/// table lists nothing, or nonsense.
pub fn starts(head: &[u8]) -> Vec<(u32, u64)> {
    let head = head.get(..HEAD_LEN).unwrap_or(head);
    if head.get(510..512) != Some(b"\x55\xaa") {
        return Vec::new();
    }
    // The header of a GPT is at the second logical block, so its position shows the size of the
    // logical blocks.
    for block in [SECTOR, 8 * SECTOR] {
        if let Some(found) = gpt(head, block) {
            return found;
        }
    }
    let entries = (0..MBR_ENTRIES).filter_map(|index| {
        let entry = head.get(MBR_TABLE + index * MBR_ENTRY..)?.get(..MBR_ENTRY)?;
        let kind = entry[4];
        let start = u64::from(u32_at(entry, 8)?) * SECTOR;
        (kind != 0 && kind != PROTECTIVE && start > 0).then_some((index as u32 + 1, start))
    });
    entries.collect()
}

/// Makes the kernel read the partition table of a disk again, if it shows the disk's partitions.
///
/// # Errors
/// `ResourceBusy` if a partition is in use, or another error of the kernel.
pub(crate) fn reread_partitions(fd: impl AsFd) -> io::Result<()> {
    let stat = rustix::fs::fstat(&fd)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::BlockDevice {
        return Ok(());
    }
    if sysfs::partitions(&sysfs::of_number(stat.st_rdev)).is_empty() {
        return Ok(());
    }
    // SAFETY: the request takes no argument and returns nothing.
    unsafe { ioctl(&fd, NoArg::<REREAD>::new()) }?;
    Ok(())
}

/// Parses a GPT for this logical block size; `None` if there is none.
fn gpt(head: &[u8], block: u64) -> Option<Vec<(u32, u64)>> {
    let header = head.get(usize::try_from(block).ok()?..)?;
    if !header.starts_with(b"EFI PART") {
        return None;
    }
    let table = usize::try_from(u64_at(header, 72)?.checked_mul(block)?).ok()?;
    let (count, size) = (u32_at(header, 80)?.min(GPT_ENTRIES), u32_at(header, 84)?);
    if !(128..=GPT_ENTRY).contains(&size) {
        return None;
    }
    let entries = (0..count).filter_map(|index| {
        let at = table.checked_add(index as usize * size as usize)?;
        let entry = head.get(at..)?.get(..size as usize)?;
        let used = entry.get(..16)?.iter().any(|byte| *byte != 0);
        let start = u64_at(entry, 32)?.checked_mul(block)?;
        used.then_some((index + 1, start))
    });
    Some(entries.collect())
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..)?.first_chunk().copied()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..)?.first_chunk().copied()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mbr(entries: &[(u8, u32)]) -> Vec<u8> {
        let mut head = vec![0; HEAD_LEN];
        head[510..512].copy_from_slice(b"\x55\xaa");
        for (index, (kind, start)) in entries.iter().enumerate() {
            let at = MBR_TABLE + index * MBR_ENTRY;
            head[at + 4] = *kind;
            head[at + 8..at + 12].copy_from_slice(&start.to_le_bytes());
        }
        head
    }

    #[test]
    fn an_mbr_lists_partitions_by_sectors() {
        assert_eq!(starts(&mbr(&[(0x83, 63), (0, 5), (0x07, 2048)])), [(1, 32256), (3, 1 << 20)]);
        assert_eq!(starts(&mbr(&[(PROTECTIVE, 1)])), []);
        assert_eq!(starts(&[0; 512]), []);
        assert_eq!(starts(&[]), []);
        assert_eq!(starts(&mbr(&[(0x83, u32::MAX)])), [(1, u64::from(u32::MAX) * 512)]);
    }

    #[test]
    fn a_gpt_lists_partitions_by_logical_blocks() {
        for block in [512_usize, 4096] {
            let mut head = mbr(&[(PROTECTIVE, 1)]);
            head[block..block + 8].copy_from_slice(b"EFI PART");
            head[block + 72..block + 80].copy_from_slice(&2_u64.to_le_bytes());
            head[block + 80..block + 84].copy_from_slice(&128_u32.to_le_bytes());
            head[block + 84..block + 88].copy_from_slice(&128_u32.to_le_bytes());
            let entry = 2 * block + 128;
            head[entry] = 1;
            head[entry + 32..entry + 40].copy_from_slice(&34_u64.to_le_bytes());
            assert_eq!(starts(&head), [(2, 34 * block as u64)]);
            // Whatever these fields contain, nothing is read outside of the head.
            for (at, len) in [(72, 8), (80, 4), (84, 4)] {
                let mut bad = head.clone();
                bad[block + at..block + at + len].fill(0xff);
                assert!(starts(&bad).len() <= 256);
            }
            assert_eq!(starts(&head[..entry]), []);
        }
    }
}
