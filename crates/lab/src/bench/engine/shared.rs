//! Memory that all lanes copy from and to: how much a second lane gains on the same blocks without
//! any cache, which no cache can exceed.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::bench::driver::stamp;
use crate::bench::pattern::Step;
use crate::rig::BLOCK;

/// Words of a block.
const WORDS: usize = BLOCK as usize / size_of::<u64>();

/// Blocks that several threads may copy at the same time; a read then returns a mixture.
pub(super) struct SharedBlocks(Box<[AtomicU64]>);

impl SharedBlocks {
    /// Makes `bytes` of blocks, with their memory.
    pub(super) fn new(bytes: u64) -> Self {
        let words = bytes / BLOCK * WORDS as u64;
        SharedBlocks((0..words).map(AtomicU64::new).collect())
    }

    /// Copies a block to `small`, or from it, after changing it.
    pub(super) fn copy(&self, step: Step, small: &mut [u8]) {
        let blocks = self.0.len() / WORDS;
        let first = step.block() as usize % blocks * WORDS;
        let words = &self.0[first..first + WORDS];
        if step.write() {
            stamp(small);
        }
        for (word, bytes) in words.iter().zip(small.as_chunks_mut::<8>().0) {
            if step.write() {
                word.store(u64::from_ne_bytes(*bytes), Ordering::Relaxed);
            } else {
                *bytes = word.load(Ordering::Relaxed).to_ne_bytes();
            }
        }
    }
}
