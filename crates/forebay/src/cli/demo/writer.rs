//! A client that writes and flushes until its server dies, and records what was acknowledged.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::thread::JoinHandle;

use forebay_admin::ApiError;
use forebay_format::crc32c;

use super::client::NbdClient;
use crate::paths::io_error;

const BLOCK: u64 = 4096;
/// Writes between two flushes, all in flight together.
const BATCH: u64 = 16;

/// Versions of one block.
#[derive(Clone, Copy, Default)]
struct Versions {
    /// The last version that a flush covers; 0: none.
    flushed: u64,
    /// The last version that was sent.
    sent: u64,
}

/// The record of acknowledged flushes.
pub(super) struct Journal {
    area: Range<u64>,
    blocks: HashMap<u64, Versions>,
    flushes: u64,
}

/// Returns the content of a version of a block: words derived from both, and their checksum.
fn content(block: u64, version: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(BLOCK as usize);
    bytes.extend(block.to_le_bytes());
    bytes.extend(version.to_le_bytes());
    let mut word = block.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ version;
    while bytes.len() < BLOCK as usize - 8 {
        word = word.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(version | 1);
        bytes.extend(word.to_le_bytes());
    }
    let sum = crc32c(&bytes);
    bytes.extend(u64::from(sum).to_le_bytes());
    bytes
}

/// Returns the version of `block` with this content; 0 if the bytes are all zero.
fn version(block: u64, bytes: &[u8]) -> Option<u64> {
    if bytes.iter().all(|byte| *byte == 0) {
        return Some(0);
    }
    let version = u64::from_le_bytes(bytes.get(8..16)?.try_into().ok()?);
    (content(block, version) == bytes).then_some(version)
}

impl Journal {
    /// Checks that every flushed write is in the file: each block has the last flushed version, or
    /// a later one that was sent. Returns the number of blocks and of flushes.
    pub(super) fn verify(&self, file: &Path) -> Result<(u64, u64), String> {
        let file = File::open(file).map_err(|error| error.to_string())?;
        let mut bytes = vec![0; BLOCK as usize];
        if self.flushes == 0 {
            return Err("nothing was flushed before the daemon died".to_owned());
        }
        for (&block, versions) in &self.blocks {
            let offset = self.area.start + block * BLOCK;
            file.read_exact_at(&mut bytes, offset).map_err(|error| error.to_string())?;
            let found = version(block, &bytes).ok_or_else(|| {
                format!("the block at byte {offset} has data that was never written")
            })?;
            if !(versions.flushed..=versions.sent).contains(&found) {
                return Err(format!(
                    "the block at byte {offset} has version {found}, but version {} was flushed",
                    versions.flushed
                ));
            }
        }
        let flushed = self.blocks.values().filter(|versions| versions.flushed > 0).count();
        Ok((flushed as u64, self.flushes))
    }

    /// Writes a batch of random blocks and flushes it.
    fn round(
        &mut self,
        client: &mut NbdClient,
        random: &mut u64,
        number: &mut u64,
    ) -> io::Result<()> {
        let count = (self.area.end - self.area.start) / BLOCK;
        let mut batch = Vec::new();
        while (batch.len() as u64) < BATCH {
            *random ^= *random << 13;
            *random ^= *random >> 7;
            *random ^= *random << 17;
            let block = *random % count;
            // Two versions of one block in flight together could take effect in either order.
            if batch.iter().all(|(known, _)| *known != block) {
                *number += 1;
                batch.push((block, *number));
            }
        }
        for &(block, version) in &batch {
            self.blocks.entry(block).or_default().sent = version;
            client.write(self.area.start + block * BLOCK, &content(block, version))?;
        }
        client.acknowledged(batch.len())?;
        client.flush()?;
        client.acknowledged(1)?;
        self.flushes += 1;
        for (block, version) in batch {
            self.blocks.entry(block).or_default().flushed = version;
        }
        Ok(())
    }
}

/// A running writer.
pub(super) struct WriterThread(Option<JoinHandle<Journal>>);

impl WriterThread {
    /// Writes to `area` of an export, in whole blocks, until the server is gone.
    pub(super) fn start(socket: &Path, export: &str, area: Range<u64>) -> Result<Self, ApiError> {
        let mut client = NbdClient::connect(socket, export)
            .map_err(|error| io_error("cannot write through", socket, &error))?;
        let thread = std::thread::Builder::new().name("writer".to_owned()).spawn(move || {
            let mut journal = Journal { area, blocks: HashMap::new(), flushes: 0 };
            let (mut random, mut number) = (0x2545_f491_4f6c_dd1d, 0);
            while journal.round(&mut client, &mut random, &mut number).is_ok() {}
            journal
        });
        let thread = thread.map_err(|error| ApiError::failed(format!("no thread: {error}")))?;
        Ok(WriterThread(Some(thread)))
    }

    /// Waits for the end, which comes when the server is gone.
    pub(super) fn finish(&mut self) -> Result<Journal, ApiError> {
        let thread = self.0.take().ok_or_else(|| ApiError::failed("the writer has ended"))?;
        thread.join().map_err(|_| ApiError::failed("the writer failed"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_journal_tells_lost_and_foreign_data_from_what_may_be_there() {
        let path = std::env::temp_dir().join(format!("forebay-journal-{}", std::process::id()));
        let versions = Versions { flushed: 3, sent: 5 };
        let journal =
            Journal { area: 0..2 * BLOCK, blocks: HashMap::from([(1, versions)]), flushes: 1 };
        let verify = |bytes: Vec<u8>| {
            let zeroes = vec![0; BLOCK as usize];
            std::fs::write(&path, [zeroes, bytes].concat()).expect("writable");
            journal.verify(&path)
        };
        for good in [3, 4, 5] {
            assert_eq!(verify(content(1, good)), Ok((1, 1)));
        }
        for bad in [content(1, 2), content(1, 6), content(0, 3), vec![0; 4096], vec![7; 4096]] {
            assert!(verify(bad).is_err());
        }
        let mut torn = content(1, 4);
        torn[512..1024].copy_from_slice(&content(1, 3)[512..1024]);
        assert!(verify(torn).is_err());
        std::fs::remove_file(&path).expect("it is there");
    }
}
