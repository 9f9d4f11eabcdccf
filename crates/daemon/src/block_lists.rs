//! Lists of blocks of volumes in the state directory, one file per volume and kind: below
//! `prefetch` the blocks that RAM tiers held at the last orderly stop, below `pins` the pinned
//! blocks. A list has only addresses; the data comes from the volume.
//!
//! A file consists of a tag, a line of JSON, two numbers for each run of blocks (the distance from
//! the end of the previous run, and the length minus one), with 7 bits per byte, and the CRC-32C of
//! all preceding bytes.

use std::fs;
use std::io::ErrorKind as Io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use forebay_admin::ApiError;
use forebay_format::Uuid;
use forebay_format::checksum::crc32c;
use serde::{Deserialize, Serialize};

use super::host_api::Definition;
use super::private;
use super::replace::replace;
use crate::paths::io_error;

/// The first bytes of a file.
const TAG: &[u8] = b"forebay prefetch 1\n";

/// Largest file that is read, in bytes: enough for the list of a tier of 1 TiB with runs of 64 KiB.
const MOST: u64 = 256 << 20;

/// The volume that a list belongs to.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Owner {
    volume: String,
    uuid: Option<Uuid>,
    origin: String,
    /// Bytes of a block.
    block: u64,
}

impl Owner {
    fn of(volume: &Definition, block: u64) -> Self {
        let (name, origin) = (volume.name.to_string(), volume.origin.clone());
        Owner { volume: name, uuid: volume.uuid, origin, block }
    }
}

/// A list of blocks.
pub(crate) struct BlockList {
    /// Bytes of a block.
    pub(crate) block: u64,
    encoded: Vec<u8>,
}

impl BlockList {
    /// Returns the runs of blocks, in order.
    pub(crate) fn runs(&self) -> impl Iterator<Item = Range<u64>> + use<'_> {
        let (mut encoded, mut end) = (self.encoded.as_slice(), 0u64);
        std::iter::from_fn(move || {
            let start = end.checked_add(take(&mut encoded)?)?;
            end = start.checked_add(take(&mut encoded)?)?.checked_add(1)?;
            Some(start..end)
        })
    }

    /// Returns the ranges in bytes, in order.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = Range<u64>> + use<'_> {
        let block = self.block;
        let in_bytes =
            move |run: Range<u64>| Some(run.start.checked_mul(block)?..run.end.checked_mul(block)?);
        self.runs().map_while(in_bytes)
    }
}

fn put(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

/// Takes a number from the front; `None` if there is none.
fn take(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let (first, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= u64::from(first & 0x7f) << shift;
        if first & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

/// The lists of one kind in a state directory.
pub(crate) struct BlockLists {
    dir: PathBuf,
}

impl BlockLists {
    /// Opens the lists of a kind, which is the name of their directory.
    ///
    /// # Errors
    /// The directory cannot be created.
    pub(crate) fn open(state_dir: &Path, kind: &str) -> Result<Self, ApiError> {
        let dir = state_dir.join(kind);
        private::make_directory(&dir)?;
        Ok(BlockLists { dir })
    }

    /// Names of volumes are safe as file names.
    fn path_of(&self, volume: &str) -> PathBuf {
        self.dir.join(format!("{volume}.blocks"))
    }

    /// Stores a list of blocks of `block` bytes each: runs in order that do not touch.
    ///
    /// # Errors
    /// The file cannot be written; the list from before stays.
    pub(crate) fn store(
        &self,
        volume: &Definition,
        block: u64,
        runs: impl Iterator<Item = Range<u64>>,
    ) -> Result<(), ApiError> {
        self.write(volume, block, runs).map_err(|error| {
            let path = self.path_of(volume.name.as_str());
            io_error("cannot store a list of blocks in", &path, &error)
        })
    }

    fn write(
        &self,
        volume: &Definition,
        block: u64,
        runs: impl Iterator<Item = Range<u64>>,
    ) -> std::io::Result<()> {
        let mut bytes = TAG.to_vec();
        serde_json::to_writer(&mut bytes, &Owner::of(volume, block))?;
        bytes.push(b'\n');
        let mut end = 0;
        for run in runs.filter(|run| !run.is_empty()) {
            let out_of_order = || std::io::Error::other("its runs are not in order");
            put(&mut bytes, run.start.checked_sub(end).ok_or_else(out_of_order)?);
            put(&mut bytes, run.end - run.start - 1);
            end = run.end;
        }
        let check = crc32c(&bytes);
        bytes.extend(check.to_le_bytes());
        Ok(replace(&self.path_of(volume.name.as_str()), &bytes)?)
    }

    /// Returns the list of a volume. One that is damaged, or belongs to another volume of this
    /// name, is logged and ignored.
    pub(crate) fn of(&self, volume: &Definition) -> Option<BlockList> {
        let path = self.path_of(volume.name.as_str());
        let ignored = |why: &str| {
            tracing::warn!(path = %path.display(), "a list of blocks is ignored: {why}");
            None
        };
        let bytes = match private::read(&path, MOST) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == Io::NotFound => return None,
            Err(error) => return ignored(&error.to_string()),
        };
        let Some((owner, encoded)) = parts(&bytes) else { return ignored("it is damaged") };
        if owner != Owner::of(volume, owner.block) {
            return ignored("it belongs to another volume");
        }
        Some(BlockList { block: owner.block, encoded: encoded.to_vec() })
    }

    /// Removes the list of a deleted volume.
    pub(crate) fn forget(&self, volume: &str) {
        let path = self.path_of(volume);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != Io::NotFound => {
                tracing::warn!(path = %path.display(), "a list of blocks cannot be removed: {error}");
            }
            _ => {}
        }
    }
}

/// Splits a file; `None` if it is damaged.
fn parts(bytes: &[u8]) -> Option<(Owner, &[u8])> {
    let (content, check) = bytes.split_last_chunk::<4>()?;
    if crc32c(content) != u32::from_le_bytes(*check) {
        return None;
    }
    let content = content.strip_prefix(TAG)?;
    let line = content.iter().position(|byte| *byte == b'\n')?;
    let owner = serde_json::from_slice(&content[..line]).ok()?;
    Some((owner, &content[line + 1..]))
}

#[cfg(test)]
mod tests {
    use forebay_admin::Settings;

    use super::*;
    use forebay_testkit::TempDir;

    fn volume(uuid: u128) -> Definition {
        Definition {
            name: "v".parse().expect("valid"),
            cache: "none".to_owned(),
            origin: "/o".to_owned(),
            block_size: 4096,
            alignment: 0,
            settings: Settings::default(),
            version: 0,
            uuid: Some(Uuid::from_u128(uuid)),
            cache_uuid: None,
            origin_identity: None,
            stored_as: None,
        }
    }

    fn ranges(lists: &BlockLists, volume: &Definition) -> Option<Vec<Range<u64>>> {
        lists.of(volume).map(|list| list.ranges().collect())
    }

    fn store(lists: &BlockLists, volume: &Definition, block: u64, runs: &[Range<u64>]) {
        lists.store(volume, block, runs.iter().cloned()).expect("writable");
    }

    #[test]
    fn a_block_list_belongs_to_one_volume_until_it_is_forgotten() {
        let dir = TempDir::new("lists");
        let (lists, own) = (BlockLists::open(dir.path(), "pins").expect("writable"), volume(1));
        assert_eq!(ranges(&lists, &own), None);
        store(&lists, &own, 4096, &[0..3, 200..201, 1 << 50..(1 << 50) + 2]);
        let far = 4096 << 50;
        let expected = vec![0..3 * 4096, 200 * 4096..201 * 4096, far..far + 8192];
        assert_eq!(ranges(&lists, &own), Some(expected));
        store(&lists, &own, 4096, &[]);
        assert_eq!(ranges(&lists, &own), Some(Vec::new()));
        store(&lists, &own, 512, &[7..8, 9..10]);
        let expected = vec![7 * 512..8 * 512, 9 * 512..10 * 512];
        assert_eq!(ranges(&lists, &own), Some(expected));
        assert_eq!(ranges(&lists, &volume(2)), None);
        assert_eq!(ranges(&lists, &Definition { origin: "/p".to_owned(), ..volume(1) }), None);
        lists.forget("v");
        lists.forget("v");
        assert_eq!(ranges(&lists, &own), None);
    }

    #[test]
    fn a_damaged_list_is_ignored() {
        let dir = TempDir::new("lists");
        let (lists, own) = (BlockLists::open(dir.path(), "pins").expect("writable"), volume(1));
        store(&lists, &own, 4096, &[1..2, 5..7]);
        let path = lists.path_of("v");
        let good = fs::read(&path).expect("there");
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1;
            fs::write(&path, &bad).expect("writable");
            assert_eq!(ranges(&lists, &own), None, "byte {at}");
            fs::write(&path, &good[..at]).expect("writable");
            assert_eq!(ranges(&lists, &own), None, "{at} bytes");
        }
    }

    #[test]
    fn numbers_that_overflow_end_a_list() {
        for runs in [
            vec![0xff; 30],
            vec![0x80],
            vec![1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1],
        ] {
            assert_eq!(BlockList { block: 4096, encoded: runs }.ranges().count(), 0);
        }
        let mut all = Vec::new();
        for number in [0, 0x7f, 0x80, u64::MAX] {
            put(&mut all, number);
            let mut bytes = all.as_slice();
            while let Some(taken) = take(&mut bytes) {
                assert!([0, 0x7f, 0x80, u64::MAX].contains(&taken));
            }
            assert!(bytes.is_empty());
        }
    }
}
