//! What a check has found.

use forebay_core::OriginBlock;
use forebay_format::{CheckpointHeader, Superblock, VolumeRecord};

use crate::damage::Damage;

/// The most bad blocks that are listed one by one; the rest is counted.
pub const MAX_LISTED: usize = 10_000;

/// A block that would not be served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadBlock {
    /// The name of its volume.
    pub volume: String,
    /// Its number.
    pub block: OriginBlock,
    /// First byte of the origin that it stands for.
    pub offset: u64,
    /// How many bytes of the origin it stands for.
    pub len: u64,
    /// Whether the origin has an older version: the newer one is lost.
    pub dirty: bool,
    /// What is wrong.
    pub what: String,
}

/// What a check has found.
#[derive(Clone, Debug, Default)]
pub struct CheckReport {
    /// The content of blocks was not read.
    pub quick: bool,
    /// The superblock that counts, if there is one.
    pub superblock: Option<Superblock>,
    /// The volume table.
    pub volumes: Vec<VolumeRecord>,
    /// The checkpoint that counts, if there is one and it is intact.
    pub checkpoint: Option<CheckpointHeader>,
    /// The last user stopped in order.
    pub clean: bool,
    /// Blocks that are cached.
    pub blocks: u64,
    /// Those of them that are dirty.
    pub dirty: u64,
    /// The device could be recovered, so all that follows is known.
    pub recovered: bool,
    /// Records that had been durable and are lost, with all that was in them. The daemon refuses the
    /// volumes that they may have been about until it is told to go on without them.
    pub lost_records: u64,
    /// Records after the checkpoint.
    pub replayed: u64,
    /// Records that a crash had torn.
    pub torn: u64,
    /// Segments that were read.
    pub segments: u64,
    /// Records that were found in them.
    pub records: u64,
    /// Blocks that were verified.
    pub verified: u64,
    /// Bytes of content that were verified.
    pub bytes: u64,
    /// Blocks whose record header is damaged although the checkpoint knows them and their content is
    /// good: the daemon serves them and writes them back.
    pub without_header: u64,
    /// Those of them that are dirty.
    pub without_header_dirty: u64,
    /// What is unusual and harmless.
    pub notes: Vec<String>,
    /// What is wrong with the structures of the device.
    pub problems: Vec<String>,
    /// Bad blocks, at most [`MAX_LISTED`].
    pub bad: Vec<BadBlock>,
    /// How many bad blocks there are.
    pub bad_count: u64,
    /// How many of them are dirty.
    pub bad_dirty: u64,
}

impl CheckReport {
    /// Whether nothing is wrong.
    pub fn is_sound(&self) -> bool {
        self.problems.is_empty() && self.bad_count == 0 && self.superblock.is_some()
    }

    /// Makes a problem of what volumes have lost and nobody has acknowledged.
    pub(super) fn tell_damaged(&mut self) {
        let damaged = self.volumes.iter().filter_map(|it| Some((&it.name, Damage::of(it)?)));
        let told = damaged.map(|(name, damage)| {
            format!("the volume '{name}' does not start before its operator says so: {damage}")
        });
        self.problems.extend(told.collect::<Vec<_>>());
    }

    /// Makes a problem of damaged headers if there are any; no block is lost by them.
    pub(super) fn tell_without_header(&mut self) {
        let (blocks, dirty) = (self.without_header, self.without_header_dirty);
        if blocks > 0 {
            self.problems.push(format!(
                "record headers are damaged; the checkpoint knows their {blocks} blocks, {dirty} of \
                 them dirty, and the content of these is good"
            ));
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
