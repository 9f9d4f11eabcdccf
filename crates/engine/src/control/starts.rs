//! The starts of an origin's partitions, and of the volumes and filesystems inside of them.
//!
//! Filesystems write to their start at every mount, and a partitioned disk has these starts at
//! places that samples miss. They are read at an orderly stop and at the next start, and must be
//! equal (invariant 12).

use std::collections::BTreeSet;

use forebay_device::{DeviceError, IoBuf, partitions};
use forebay_format::Digest;

/// Bytes that are read at each start. They include the superblocks of ext4, XFS and Btrfs, the
/// labels of LVM, both headers of LUKS2, the uberblocks of ZFS, and a GPT.
const HEAD: u64 = 256 << 10;
/// Maximum number of starts.
const MOST: usize = 64;
/// Maximum depth of nesting.
const DEPTH: u32 = 5;
/// Maximum number of bytes of LVM's metadata.
const METADATA: u64 = 128 << 10;
/// Alignment that every device can read.
const ALIGN: u64 = 4096;
const SECTOR: u64 = 512;

/// The kind of content at a start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum StartKind {
    /// A disk, a partition, or a volume.
    Anything,
    /// A link of the chain of logical partitions, in an extended partition that starts there.
    Link { extended: u64 },
}

/// Returns a digest of all starts on an origin of `size` bytes; `None` if one cannot be read.
pub(crate) async fn digest(
    size: u64,
    read: &impl AsyncFn(u64, IoBuf) -> Result<IoBuf, DeviceError>,
) -> Option<u128> {
    let reader = SectorReader { size, read };
    let mut sums = Digest::new();
    let mut seen = BTreeSet::from([0]);
    let mut wanted = vec![(0, StartKind::Anything, 0)];
    let mut next = 0;
    while let Some(&(start, kind, depth)) = wanted.get(next) {
        next += 1;
        let head = reader.read(start, HEAD).await?;
        sums.add_word(start);
        sums.add(&head);
        if depth == DEPTH {
            continue;
        }
        let found = match kind {
            StartKind::Anything => inside(&reader, start, &head, &mut sums).await,
            StartKind::Link { extended } => logical(&head, start, extended),
        };
        for (start, kind) in found {
            if start < size && wanted.len() < MOST && seen.insert(start) {
                wanted.push((start, kind, depth + 1));
            }
        }
    }
    Some(sums.value())
}

/// Reads an origin at any sector.
struct SectorReader<'a, R> {
    size: u64,
    read: &'a R,
}

impl<R: AsyncFn(u64, IoBuf) -> Result<IoBuf, DeviceError>> SectorReader<'_, R> {
    /// Returns up to `len` bytes from `start`.
    async fn read(&self, start: u64, len: u64) -> Option<Vec<u8>> {
        let from = start / ALIGN * ALIGN;
        let end = start.checked_add(len)?.next_multiple_of(ALIGN).min(self.size);
        let buf = IoBuf::for_overwrite(usize::try_from(end.checked_sub(from)?).ok()?);
        let bytes = (self.read)(from, buf).await.ok()?;
        let bytes = bytes.get((start - from) as usize..)?;
        Some(bytes[..bytes.len().min(len as usize)].to_vec())
    }
}

/// Returns the starts inside of a disk, partition or volume that begins at `start` with this head.
async fn inside<R: AsyncFn(u64, IoBuf) -> Result<IoBuf, DeviceError>>(
    reader: &SectorReader<'_, R>,
    start: u64,
    head: &[u8],
    sums: &mut Digest,
) -> Vec<(u64, StartKind)> {
    let mut found = Vec::new();
    let anything =
        |offset: u64| start.checked_add(offset).map(|start| (start, StartKind::Anything));
    if head.starts_with(b"LUKS\xba\xbe") {
        found.extend(luks(head).into_iter().filter_map(anything));
    } else if let Some((at, len)) = lvm_metadata(head) {
        let at = start.checked_add(at);
        let text = match at {
            Some(at) => reader.read(at, len.min(METADATA)).await.unwrap_or_default(),
            None => Vec::new(),
        };
        sums.add(&text);
        found.extend(lvm(head, &text).into_iter().filter_map(anything));
    } else {
        let extended: Vec<u64> = mbr(head)
            .filter(|(kind, _)| matches!(kind, 0x05 | 0x0f | 0x85))
            .filter_map(|(_, offset)| start.checked_add(offset))
            .collect();
        found.extend(extended.iter().map(|at| (*at, StartKind::Link { extended: *at })));
        found.extend(partitions::starts(head).into_iter().filter_map(|(_, at)| anything(at)));
    }
    found
}

/// Returns types and offsets of the entries in an MBR or in a link of a chain.
fn mbr(head: &[u8]) -> impl Iterator<Item = (u8, u64)> + '_ {
    let table = head.get(446..510).filter(|_| head.get(510..512) == Some(b"\x55\xaa"));
    table.into_iter().flat_map(|table| table.chunks_exact(16)).filter_map(|entry| {
        let start = u64::from(u32::from_le_bytes(*entry.get(8..)?.first_chunk()?)) * SECTOR;
        (entry[4] != 0 && start > 0).then_some((entry[4], start))
    })
}

/// Returns the logical partition in a link at `start`, and the next link.
fn logical(head: &[u8], start: u64, extended: u64) -> Vec<(u64, StartKind)> {
    let entries = mbr(head).filter_map(|(kind, offset)| match kind {
        0x05 | 0x0f | 0x85 => Some((extended.checked_add(offset)?, StartKind::Link { extended })),
        _ => Some((start.checked_add(offset)?, StartKind::Anything)),
    });
    entries.collect()
}

/// Returns the offsets at which the encrypted data of LUKS may start. Other offsets in the header
/// belong to its keys.
fn luks(head: &[u8]) -> Vec<u64> {
    let number = |at: usize, len: usize| {
        let bytes = head.get(at..at + len)?;
        Some(bytes.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte)))
    };
    match number(6, 2) {
        Some(1) => number(104, 4).into_iter().map(|sectors| sectors * SECTOR).collect(),
        _ => numbers_after(head, b"\"offset\":\"").collect(),
    }
}

/// Returns offset and length of the current metadata of an LVM physical volume.
fn lvm_metadata(head: &[u8]) -> Option<(u64, u64)> {
    let word = |at: u64| {
        let bytes = head.get(usize::try_from(at).ok()?..)?.first_chunk()?;
        Some(u64::from_le_bytes(*bytes))
    };
    let label = (0..4)
        .map(|sector| sector * SECTOR as usize)
        .find(|at| head.get(*at..).is_some_and(|rest| rest.starts_with(b"LABELONE")))?;
    let header = u32::from_le_bytes(*head.get(label + 20..)?.first_chunk()?);
    // After the UUID and the size: locations of data, a zero, locations of metadata, a zero.
    let mut at = (label as u64).checked_add(u64::from(header))?.checked_add(40)?;
    while word(at)? != 0 {
        at += 16;
    }
    let area = word(at + 16)?;
    // The header of the area: checksum, magic, version, start and size, then the current location.
    let (offset, len) = (word(area.checked_add(40)?)?, word(area.checked_add(48)?)?);
    Some((area.checked_add(offset)?, len))
}

/// Returns the offsets at which logical volumes of LVM start, from its metadata.
fn lvm(head: &[u8], text: &[u8]) -> Vec<u64> {
    let extent = numbers_after(text, b"extent_size = ").next().unwrap_or(0) * SECTOR;
    let first = numbers_after(text, b"pe_start = ").next().unwrap_or(0) * SECTOR;
    if extent == 0 || head.is_empty() {
        return Vec::new();
    }
    // Physical volumes are called pv0, pv1 and so on; the number of an extent follows each.
    let text = String::from_utf8_lossy(text);
    let places = text.split("\"pv").skip(1).filter_map(|rest| {
        let number = rest.split_once("\", ")?.1;
        let digits: String = number.chars().take_while(char::is_ascii_digit).collect();
        let extents: u64 = digits.parse().ok()?;
        extents.checked_mul(extent)?.checked_add(first)
    });
    places.collect()
}

/// Returns the decimal numbers behind each `key`.
fn numbers_after<'a>(bytes: &'a [u8], key: &'a [u8]) -> impl Iterator<Item = u64> + 'a {
    let places = bytes.windows(key.len()).enumerate().filter(move |(_, window)| *window == key);
    places.filter_map(move |(at, _)| {
        let digits = bytes.get(at + key.len()..)?.iter().take_while(|byte| byte.is_ascii_digit());
        digits
            .take(18)
            .try_fold((0, 0), |(sum, count), digit| {
                Some((sum * 10 + u64::from(digit - b'0'), count + 1))
            })
            .filter(|(_, count)| *count > 0)
            .map(|(sum, _)| sum)
    })
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    const SIZE: usize = 64 << 20;

    /// Returns the digest of a disk, and the offsets that were read for it.
    fn look(disk: &[u8]) -> (Option<u128>, BTreeSet<u64>) {
        let places = RefCell::new(BTreeSet::new());
        let read = async |at: u64, mut buf: IoBuf| {
            places.borrow_mut().insert(at);
            let from = at as usize;
            let len = buf.len();
            buf.copy_from_slice(&disk[from..from + len]);
            Ok(buf)
        };
        let digest = {
            let mut future = pin!(digest(disk.len() as u64, &read));
            match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(digest) => digest,
                Poll::Pending => panic!("reads end at once"),
            }
        };
        (digest, places.into_inner())
    }

    /// Asserts that one changed byte at each of these places changes the digest.
    fn covers(disk: &mut [u8], places: &[usize]) {
        let (before, _) = look(disk);
        assert!(before.is_some());
        for place in places {
            disk[*place] ^= 1;
            assert_ne!(look(disk).0, before, "{place}");
            disk[*place] ^= 1;
        }
        assert_eq!(look(disk).0, before);
    }

    fn entry(disk: &mut [u8], link: usize, number: usize, kind: u8, sectors: u32) {
        disk[link + 510..link + 512].copy_from_slice(b"\x55\xaa");
        let at = link + 446 + 16 * number;
        disk[at + 4] = kind;
        disk[at + 8..at + 12].copy_from_slice(&sectors.to_le_bytes());
    }

    fn gpt(disk: &mut [u8], block: usize, first: u64) {
        entry(disk, 0, 0, 0xee, 1);
        disk[block..block + 8].copy_from_slice(b"EFI PART");
        disk[block + 72..block + 80].copy_from_slice(&2_u64.to_le_bytes());
        disk[block + 80..block + 84].copy_from_slice(&128_u32.to_le_bytes());
        disk[block + 84..block + 88].copy_from_slice(&128_u32.to_le_bytes());
        disk[2 * block] = 1;
        disk[2 * block + 32..2 * block + 40].copy_from_slice(&first.to_le_bytes());
    }

    #[test]
    fn superblocks_in_partitions_of_every_table_are_covered() {
        let at = 5 << 20;
        let superblocks = [at, at + 1024, at + (64 << 10), at + (255 << 10)];
        let mut disk = vec![0; SIZE];
        covers(&mut disk, &[0, 1024, 64 << 10]);
        entry(&mut disk, 0, 2, 0x83, (at / 512) as u32);
        covers(&mut disk, &superblocks);
        for block in [512, 4096] {
            let mut disk = vec![0; SIZE];
            gpt(&mut disk, block, (at / block) as u64);
            covers(&mut disk, &superblocks);
        }
        // Logical partitions: links count from the extended partition, partitions from their link.
        let mut disk = vec![0; SIZE];
        let (extended, second) = (2 << 20, 20 << 20);
        entry(&mut disk, 0, 1, 0x0f, (extended / 512) as u32);
        entry(&mut disk, extended, 0, 0x83, 2048);
        entry(&mut disk, extended, 1, 0x05, ((second - extended) / 512) as u32);
        entry(&mut disk, second, 0, 0x83, 4096);
        covers(&mut disk, &[extended + (1 << 20) + 1024, second, second + (2 << 20) + 65536]);
        // A partition whose start is not page-aligned.
        let mut disk = vec![0; SIZE];
        entry(&mut disk, 0, 0, 0x83, 63);
        covers(&mut disk, &[63 * 512 + 1024, 63 * 512 + (64 << 10)]);
    }

    #[test]
    fn volumes_inside_of_partitions_are_covered() {
        let at = 1 << 20;
        let mut disk = vec![0; SIZE];
        gpt(&mut disk, 512, (at / 512) as u64);
        // LUKS1, and a filesystem that it has encrypted.
        disk[at..at + 8].copy_from_slice(b"LUKS\xba\xbe\0\x01");
        disk[at + 104..at + 108].copy_from_slice(&4096_u32.to_be_bytes());
        covers(&mut disk, &[at + 592, at + 4096 * 512 + 1024]);
        // LUKS2.
        disk[at + 7] = 2;
        let json = br#"{"segments":{"0":{"type":"crypt","offset":"16777216"}}}"#;
        disk[at + 4096..at + 4096 + json.len()].copy_from_slice(json);
        covers(&mut disk, &[at + 16384, at + (16 << 20) + 65536]);
        // LVM, with a complete disk in a logical volume.
        disk[at..at + 8192].fill(0);
        disk[at + 512..at + 520].copy_from_slice(b"LABELONE");
        disk[at + 532..at + 536].copy_from_slice(&32_u32.to_le_bytes());
        let words = [1_u64 << 20, 0, 0, 0, 4096, 1 << 20, 0, 0];
        for (number, word) in words.iter().enumerate() {
            let place = at + 512 + 32 + 40 + 8 * number;
            disk[place..place + 8].copy_from_slice(&word.to_le_bytes());
        }
        let text = b"extent_size = 8192\npe_start = 2048\nstripes = [\n\"pv0\", 0\n]\nstripes = [\n\"pv0\", 3\n]";
        let area = at + 4096;
        disk[area + 40..area + 48].copy_from_slice(&600_000_u64.to_le_bytes());
        disk[area + 48..area + 56].copy_from_slice(&(text.len() as u64).to_le_bytes());
        disk[area + 600_000..area + 600_000 + text.len()].copy_from_slice(text);
        let second = at + (1 << 20) + 3 * (4 << 20);
        entry(&mut disk, second, 0, 0x83, 2048);
        covers(
            &mut disk,
            &[area + 600_000, at + (1 << 20) + 1024, second + 1024, second + (1 << 20) + 1024],
        );
    }

    #[test]
    fn metadata_with_a_checksum_of_their_own_are_covered() {
        // Like the superblock of ext4: 1020 bytes, and their CRC32C.
        let superblock = |disk: &mut [u8], mounts: u8| {
            disk[1024 + 52] = mounts;
            let check = !forebay_format::crc32c(&disk[1024..2044]);
            disk[2044..2048].copy_from_slice(&check.to_le_bytes());
        };
        let mut disk = vec![0; 1 << 20];
        superblock(&mut disk, 1);
        let (before, check) = (look(&disk).0, forebay_format::crc32c(&disk));
        superblock(&mut disk, 2);
        assert_eq!(forebay_format::crc32c(&disk), check, "a CRC is blind to that");
        assert_ne!(look(&disk).0, before);
    }

    #[test]
    fn nonsense_costs_a_bounded_number_of_reads() {
        let mut random = fastrand::Rng::with_seed(1);
        for round in 0..50 {
            let mut disk = vec![0; 4 << 20];
            random.fill(&mut disk[..64 << 10]);
            entry(&mut disk, 0, 0, 0x05, 1);
            match round % 3 {
                0 => disk[..8].copy_from_slice(b"LUKS\xba\xbe\0\x02"),
                1 => disk[512..520].copy_from_slice(b"LABELONE"),
                _ => gpt(&mut disk, 512, 1),
            }
            assert!(look(&disk).1.len() <= 2 * MOST);
        }
        assert!(look(&[0; 512]).0.is_some());
    }
}
