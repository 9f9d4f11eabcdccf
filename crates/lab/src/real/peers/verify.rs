//! Verification of data: every block of a range carries a stamp with its number and the number of
//! times that it was written, and is compared byte for byte.
//!
//! The load writes data of fio. So the range is stamped before the load, and a part without load is
//! compared after it. Then the whole range is stamped again and overwritten, compared through the
//! front, and compared on the origin without the cache.

use std::path::PathBuf;

use fastrand::Rng;
use forebay_device::IoBuf;

use super::blocks::{Blocks, open};
use super::system::Front;
use crate::error::{LabResult, other};
use crate::process::Stop;

/// Unit of the stamps in bytes.
pub(crate) const BLOCK: u64 = 4096;

/// Bytes of one request where a range is written or read as a whole.
const PIECE: u64 = 1 << 20;

/// The most blocks of one random overwrite.
const LARGEST: u64 = 16;

/// The most random overwrites of one check: enough to leave dirty blocks everywhere, and few enough
/// that a disk without a cache is done in a minute.
const OVERWRITES: u64 = 4096;
/// Blocks of the range for each overwrite.
const SPARSE: u64 = 8;

/// Expected content of a range.
pub(crate) struct Stamps {
    seed: u64,
    /// Number of stamps that each block has had.
    generations: Vec<u32>,
}

impl Stamps {
    /// Stamps for the first `range` bytes; none is written yet.
    pub(crate) fn new(seed: u64, range: u64) -> Self {
        Stamps { seed, generations: vec![0; (range / BLOCK) as usize] }
    }

    /// Bytes that carry stamps.
    fn range(&self) -> u64 {
        self.generations.len() as u64 * BLOCK
    }

    /// Gives every block a new stamp, and flushes.
    pub(crate) fn write_all(&mut self, front: &Front, stop: &Stop) -> LabResult<()> {
        let mut blocks = open(front)?;
        for offset in (0..self.range()).step_by(PIECE as usize) {
            stop.check()?;
            self.write(&mut *blocks, offset, PIECE.min(self.range() - offset))?;
        }
        blocks.flush()
    }

    /// Gives random blocks new stamps in requests of different lengths, compares others meanwhile,
    /// and flushes.
    pub(crate) fn overwrite(&mut self, front: &Front, stop: &Stop) -> LabResult<()> {
        let mut blocks = open(front)?;
        let mut rng = Rng::with_seed(self.seed);
        let count = self.generations.len() as u64;
        for _ in 0..OVERWRITES.min(count / SPARSE) {
            stop.check()?;
            let first = rng.u64(0..count);
            let len = rng.u64(1..=LARGEST).min(count - first);
            self.write(&mut *blocks, first * BLOCK, len * BLOCK)?;
            // Near it, so that blocks that were just written are often among them.
            let first = (first + rng.u64(0..2 * LARGEST)).min(count - 1);
            let len = rng.u64(1..=LARGEST).min(count - first);
            self.compare(&mut *blocks, first * BLOCK, len * BLOCK, 0)?;
        }
        blocks.flush()
    }

    /// Compares everything from the byte `from` on; the first byte of the front is at `shift`.
    /// Returns the bytes that were compared.
    pub(crate) fn compare_from(
        &self,
        from: u64,
        front: &Front,
        shift: u64,
        stop: &Stop,
    ) -> LabResult<u64> {
        let mut blocks = open(front)?;
        let from = from / BLOCK * BLOCK;
        for offset in (from..self.range()).step_by(PIECE as usize) {
            stop.check()?;
            self.compare(&mut *blocks, offset, PIECE.min(self.range() - offset), shift)?;
        }
        Ok(self.range().saturating_sub(from))
    }

    fn write(&mut self, blocks: &mut dyn Blocks, offset: u64, len: u64) -> LabResult<()> {
        let mut bytes = IoBuf::zeroed(len as usize);
        let first = offset / BLOCK;
        for (block, bytes) in (first..).zip(bytes.chunks_exact_mut(BLOCK as usize)) {
            if let Some(generation) = self.generations.get_mut(block as usize) {
                *generation += 1;
                stamp(bytes, self.seed, block, *generation);
            }
        }
        blocks.write_at(&bytes, offset)
    }

    fn compare(&self, blocks: &mut dyn Blocks, offset: u64, len: u64, shift: u64) -> LabResult<()> {
        let mut bytes = IoBuf::zeroed(len as usize);
        blocks.read_at(&mut bytes, offset + shift)?;
        let mut expected = vec![0; BLOCK as usize];
        let first = offset / BLOCK;
        for (block, found) in (first..).zip(bytes.chunks_exact(BLOCK as usize)) {
            let Some(&generation) = self.generations.get(block as usize) else { continue };
            stamp(&mut expected, self.seed, block, generation);
            if found != expected {
                return Err(other(format!(
                    "wrong data: block {block} should have stamp {generation}, and {}",
                    self.describe(found)
                )));
            }
        }
        Ok(())
    }

    /// Describes the content of a block that should have another stamp.
    fn describe(&self, found: &[u8]) -> String {
        let word = |index: usize| {
            let bytes = found.get(index * 8..)?.first_chunk()?;
            Some(u64::from_le_bytes(*bytes))
        };
        match (word(0), word(1), word(2)) {
            (Some(seed), Some(block), Some(generation)) if seed == self.seed => {
                let mut whole = vec![0; found.len()];
                stamp(&mut whole, seed, block, generation as u32);
                let torn = if found == whole { "" } else { " in part" };
                format!("has that of block {block}, stamp {generation}{torn}")
            }
            _ if found.iter().all(|&byte| byte == 0) => "is all zeroes".to_owned(),
            _ => "has none of this run".to_owned(),
        }
    }
}

/// Writes a stamp over a whole block: seed, block and generation, and then bytes that depend on
/// them.
fn stamp(block: &mut [u8], seed: u64, number: u64, generation: u32) {
    let mut mixed =
        seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (u64::from(generation) << 40);
    let words = [seed, number, u64::from(generation)];
    for (index, bytes) in block.chunks_exact_mut(8).enumerate() {
        mixed = (mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9).wrapping_add(1);
        let word = words.get(index).copied().unwrap_or(mixed);
        bytes.copy_from_slice(&word.to_le_bytes());
    }
}

/// A device as a front, to compare what is on it.
pub(crate) fn device(path: impl Into<PathBuf>) -> Front {
    Front::Block(path.into())
}

#[cfg(test)]
mod tests {
    use std::fs::{File, OpenOptions};
    use std::os::unix::fs::FileExt;

    use super::*;

    const RANGE: u64 = 3 << 20;

    #[test]
    fn right_data_is_right_and_every_kind_of_wrong_data_is_found() {
        let folder = tempfile::tempdir().expect("a directory");
        let path = folder.path().join("device");
        File::create(&path).and_then(|file| file.set_len(RANGE + 8192)).expect("writable");
        let (front, stop) = (device(&path), Stop::default());
        let mut stamps = Stamps::new(7, RANGE);
        stamps.write_all(&front, &stop).expect("writable");
        stamps.overwrite(&front, &stop).expect("as written");
        let check = |stamps: &Stamps| stamps.compare_from(0, &front, 0, &stop);
        assert_eq!(check(&stamps).ok(), Some(RANGE));
        assert_eq!(stamps.compare_from(RANGE - 5000, &front, 0, &stop).ok(), Some(8192));

        let file = OpenOptions::new().read(true).write(true).open(&path).expect("readable");
        let mut good = vec![0; BLOCK as usize];
        file.read_exact_at(&mut good, BLOCK).expect("readable");
        let mut other_block = vec![0; BLOCK as usize];
        file.read_exact_at(&mut other_block, 0).expect("readable");
        let mut stale = good.clone();
        stamp(&mut stale, 7, 1, 0);
        let mut torn = good.clone();
        torn[512..].copy_from_slice(&other_block[512..]);
        let mut foreign = good.clone();
        stamp(&mut foreign, 8, 1, 1);
        for (bad, words) in [
            (&other_block, "block 0"),
            (&stale, "stamp 0"),
            (&torn, "in part"),
            (&foreign, "none of this run"),
            (&vec![0; BLOCK as usize], "zeroes"),
        ] {
            file.write_all_at(bad, BLOCK).expect("writable");
            let error = check(&stamps).expect_err("it is wrong").to_string();
            assert!(error.contains("block 1 ") && error.contains(words), "{error}");
        }
        file.write_all_at(&good, BLOCK).expect("writable");
        assert!(check(&stamps).is_ok());
        assert!(stamps.compare_from(0, &front, 4096, &stop).is_err(), "one block further");
    }
}
