//! The result of a check.

use forebay_core::OriginBlock;
use forebay_format::{CheckpointHeader, Superblock, VolumeRecord};

use crate::damage::Damage;

/// Maximum numbers of bad blocks and of problems that are listed individually; further ones are
/// only counted.
pub const MAX_LISTED: usize = 10_000;

/// A block that the cache cannot serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadBlock {
    /// The name of its volume.
    pub volume: String,
    /// Number of the block.
    pub block: OriginBlock,
    /// Offset on the origin of the first byte that it caches.
    pub offset: u64,
    /// Number of bytes of the origin that it caches.
    pub len: u64,
    /// Whether it is dirty: the origin has an older version, and the newer one is lost.
    pub dirty: bool,
    /// The problem, as a sentence.
    pub what: String,
}

/// The result of a check.
#[derive(Clone, Debug, Default)]
pub struct CheckReport {
    /// Whether the content of blocks was left unread.
    pub quick: bool,
    /// The current superblock, if it is readable.
    pub superblock: Option<Superblock>,
    /// The volume table.
    pub volumes: Vec<VolumeRecord>,
    /// The current checkpoint, if there is one and it is intact.
    pub checkpoint: Option<CheckpointHeader>,
    /// Whether the last user stopped in order.
    pub clean: bool,
    /// Cached blocks.
    pub blocks: u64,
    /// Number of these blocks that are dirty.
    pub dirty: u64,
    /// Whether the device could be recovered; if not, the fields below are unknown.
    pub recovered: bool,
    /// Records that had been durable and are lost with their content. The daemon does not start the
    /// volumes that may have lost data until the operator acknowledges the loss.
    pub lost_records: u64,
    /// Records replayed after the checkpoint.
    pub replayed: u64,
    /// Records torn by a crash.
    pub torn: u64,
    /// Segments that were read.
    pub segments: u64,
    /// Records found in these segments.
    pub records: u64,
    /// Blocks that were verified.
    pub verified: u64,
    /// Bytes of content that were verified.
    pub bytes: u64,
    /// Blocks whose record header is damaged, but which the checkpoint knows and whose content is
    /// good: the daemon serves them and writes them back.
    pub without_header: u64,
    /// Number of these blocks that are dirty.
    pub without_header_dirty: u64,
    /// Unusual but harmless findings.
    pub notes: Vec<String>,
    /// Problems with the structures on the device, about [`MAX_LISTED`] at most.
    pub problems: Vec<String>,
    /// Number of problems that are not listed.
    pub more_problems: u64,
    /// Bad blocks, at most [`MAX_LISTED`].
    pub bad: Vec<BadBlock>,
    /// Number of bad blocks.
    pub bad_count: u64,
    /// Number of bad blocks that are dirty.
    pub bad_dirty: u64,
}

impl CheckReport {
    /// Returns whether no problem was found.
    pub fn is_sound(&self) -> bool {
        self.problems.is_empty() && self.bad_count == 0 && self.superblock.is_some()
    }

    /// Reports the unacknowledged damage of volumes as problems.
    pub(super) fn tell_damaged(&mut self) {
        let damaged = self.volumes.iter().filter_map(|it| Some((&it.name, Damage::of(it)?)));
        let told = damaged.map(|(name, damage)| {
            format!("the volume '{name}' does not start until its operator acknowledges the loss: {damage}")
        });
        self.problems.extend(told.collect::<Vec<_>>());
    }

    /// Reports damaged record headers as a problem. They cost no block.
    pub(super) fn tell_without_header(&mut self) {
        let (blocks, dirty) = (self.without_header, self.without_header_dirty);
        if blocks > 0 {
            self.problems.push(format!(
                "record headers are damaged; the checkpoint knows their {blocks} blocks, {dirty} of \
                 them dirty, and the content of these is good"
            ));
        }
    }

    pub(super) fn add_problem(&mut self, problem: String) {
        if self.problems.len() < MAX_LISTED {
            self.problems.push(problem);
        } else {
            self.more_problems += 1;
        }
    }

    pub(super) fn add_bad(&mut self, block: BadBlock) {
        self.bad_count += 1;
        self.bad_dirty += u64::from(block.dirty);
        if self.bad.len() < MAX_LISTED {
            self.bad.push(block);
        }
    }
}
