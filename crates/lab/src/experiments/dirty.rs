//! Caches with dirty blocks that are all written back at once.

use std::ops::Range;

use forebay_engine::Settings;

use crate::error::LabResult;
use crate::rig::{BLOCK, no_writeback};
use crate::virtual_time::world::World;

/// Settings of a volume without background writeback.
pub(crate) fn settings() -> Settings {
    Settings { sequential_cutoff: 0, writeback_running: false, ..no_writeback() }
}

/// Blocks that are to be dirty, ascending, and the random choices after theirs.
pub(crate) struct Dirty {
    blocks: Vec<u64>,
    rng: fastrand::Rng,
}

impl Dirty {
    /// Chooses `count` blocks from the start of the disk on, each with the probability `share`.
    pub(crate) fn choose(share: f64, count: u64, seed: u64) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut blocks = Vec::with_capacity(count as usize);
        let mut block = 0;
        while (blocks.len() as u64) < count {
            if rng.f64() < share {
                blocks.push(block);
            }
            block += 1;
        }
        Dirty { blocks, rng }
    }

    /// Returns the bytes up to the end of the last block.
    pub(crate) fn range(&self) -> Range<u64> {
        0..self.blocks.last().map_or(0, |last| last + 1) * BLOCK
    }

    /// Writes the blocks in random order; with `neighbours`, the whole range is cached before.
    pub(crate) fn write(mut self, world: &mut World, neighbours: bool) -> LabResult<()> {
        if neighbours {
            world.warm(self.range())?;
        }
        self.rng.shuffle(&mut self.blocks);
        self.blocks.iter().try_for_each(|block| world.write(block * BLOCK, BLOCK))
    }
}
