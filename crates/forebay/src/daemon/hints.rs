//! Which blocks the RAM tiers held at the last orderly stop: one file per volume below `prefetch` in
//! the state directory. A list only says what to read again; the data comes from the volume.
//!
//! A file is a tag, a line of JSON, for each run of blocks its distance from the end of the one before
//! and its length less one, as numbers of 7 bits per byte, and the CRC-32C of all that.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{ErrorKind as Io, Write};
use std::ops::Range;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use forebay_admin::ApiError;
use forebay_format::Uuid;
use forebay_format::checksum::crc32c;
use serde::{Deserialize, Serialize};

use super::host_api::Definition;
use crate::paths::io_error;

/// The first bytes of a file.
const TAG: &[u8] = b"forebay prefetch 1\n";

/// Largest file that is read, in bytes: enough for the list of a tier of 1 TiB with runs of 64 KiB.
const MOST: u64 = 256 << 20;

/// To which volume a list belongs.
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
pub(crate) struct Hint {
    block: u64,
    runs: Vec<u8>,
}

impl Hint {
    /// Returns the ranges in bytes, in order.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = Range<u64>> + use<'_> {
        let (mut runs, mut end, block) = (self.runs.as_slice(), 0u64, self.block);
        std::iter::from_fn(move || {
            let start = end.checked_add(take(&mut runs)?)?;
            end = start.checked_add(take(&mut runs)?)?.checked_add(1)?;
            Some(start.checked_mul(block)?..end.checked_mul(block)?)
        })
    }
}

fn put(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

/// Takes a number from the front; `None`: there is none.
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

/// The lists of a state directory.
pub(crate) struct Hints {
    dir: PathBuf,
}

impl Hints {
    /// Opens the lists of a state directory.
    ///
    /// # Errors
    /// The directory cannot be created.
    pub(crate) fn open(state_dir: &Path) -> Result<Self, ApiError> {
        let dir = state_dir.join("prefetch");
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&dir)
            .map_err(|error| io_error("cannot make the directory", &dir, &error))?;
        Ok(Hints { dir })
    }

    /// Names of volumes are safe as file names.
    fn path_of(&self, volume: &str) -> PathBuf {
        self.dir.join(format!("{volume}.blocks"))
    }

    /// Stores the blocks, in order, of `block` bytes each, that a volume's RAM tier holds. If it holds
    /// none, the list from earlier stays. A failure is logged.
    pub(crate) fn store(&self, volume: &Definition, block: u64, blocks: &[u64]) {
        if blocks.is_empty() {
            return;
        }
        if let Err(error) = self.write(volume, block, blocks) {
            let path = self.path_of(volume.name.as_str());
            tracing::warn!(volume = %volume.name, path = %path.display(), "the list of the blocks in RAM cannot be stored: {error}");
        }
    }

    fn write(&self, volume: &Definition, block: u64, blocks: &[u64]) -> std::io::Result<()> {
        let mut bytes = TAG.to_vec();
        serde_json::to_writer(&mut bytes, &Owner::of(volume, block))?;
        bytes.push(b'\n');
        let mut end = 0;
        for run in blocks.chunk_by(|one, next| one + 1 == *next) {
            put(&mut bytes, run[0] - end);
            put(&mut bytes, run.len() as u64 - 1);
            end = run[0] + run.len() as u64;
        }
        let check = crc32c(&bytes);
        bytes.extend(check.to_le_bytes());
        let path = self.path_of(volume.name.as_str());
        let fresh = path.with_extension("new");
        let mut file =
            OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(&fresh)?;
        file.write_all(&bytes)?;
        file.sync_all()?;
        fs::rename(&fresh, &path)?;
        File::open(&self.dir)?.sync_all()
    }

    /// Returns the list of a volume. One that is damaged, or belongs to another volume of this name, is
    /// logged and ignored.
    pub(crate) fn of(&self, volume: &Definition) -> Option<Hint> {
        let path = self.path_of(volume.name.as_str());
        let ignored = |why: &str| {
            tracing::warn!(path = %path.display(), "the list of the blocks in RAM is ignored: {why}");
            None
        };
        match fs::metadata(&path) {
            Ok(data) if data.len() > MOST => return ignored("it is too large"),
            _ => {}
        }
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == Io::NotFound => return None,
            Err(error) => return ignored(&error.to_string()),
        };
        let Some((owner, runs)) = parts(&bytes) else { return ignored("it is damaged") };
        if owner != Owner::of(volume, owner.block) {
            return ignored("it belongs to another volume");
        }
        Some(Hint { block: owner.block, runs: runs.to_vec() })
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

/// Splits a file; `None`: it is damaged.
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
    use crate::daemon::testing::TempDir;

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
        }
    }

    fn ranges(hints: &Hints, volume: &Definition) -> Option<Vec<Range<u64>>> {
        hints.of(volume).map(|hint| hint.ranges().collect())
    }

    #[test]
    fn a_list_is_there_until_it_is_forgotten_and_for_its_volume_only() {
        let dir = TempDir::new("hints");
        let (hints, own) = (Hints::open(dir.path()).expect("writable"), volume(1));
        assert_eq!(ranges(&hints, &own), None);
        hints.store(&own, 4096, &[0, 1, 2, 200, 1 << 50, (1 << 50) + 1]);
        let far = 4096 << 50;
        let expected = vec![0..3 * 4096, 200 * 4096..201 * 4096, far..far + 8192];
        assert_eq!(ranges(&hints, &own), Some(expected.clone()));
        hints.store(&own, 4096, &[]);
        assert_eq!(ranges(&hints, &own), Some(expected), "nothing is no news");
        hints.store(&own, 512, &[7, 9]);
        let expected = vec![7 * 512..8 * 512, 9 * 512..10 * 512];
        assert_eq!(ranges(&hints, &own), Some(expected));
        assert_eq!(ranges(&hints, &volume(2)), None);
        assert_eq!(ranges(&hints, &Definition { origin: "/p".to_owned(), ..volume(1) }), None);
        hints.forget("v");
        hints.forget("v");
        assert_eq!(ranges(&hints, &own), None);
    }

    #[test]
    fn a_damaged_list_is_ignored() {
        let dir = TempDir::new("hints");
        let (hints, own) = (Hints::open(dir.path()).expect("writable"), volume(1));
        hints.store(&own, 4096, &[1, 5, 6]);
        let path = hints.path_of("v");
        let good = fs::read(&path).expect("there");
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1;
            fs::write(&path, &bad).expect("writable");
            assert_eq!(ranges(&hints, &own), None, "byte {at}");
            fs::write(&path, &good[..at]).expect("writable");
            assert_eq!(ranges(&hints, &own), None, "{at} bytes");
        }
    }

    #[test]
    fn numbers_that_overflow_end_a_list() {
        for runs in [
            vec![0xff; 30],
            vec![0x80],
            vec![1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1],
        ] {
            assert_eq!(Hint { block: 4096, runs }.ranges().count(), 0);
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
