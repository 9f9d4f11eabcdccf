//! Caches with many blocks.

use forebay_core::Op;

use crate::bench::driver::Driver;
use crate::bench::pattern::{Step, permutation};
use crate::error::LabResult;
use crate::progress::Progress;
use crate::rig::BLOCK;

/// Bytes that are brought in together.
const CHUNK: u64 = 1 << 20;

/// Brings blocks of a range into the cache as they are on the origin.
pub(crate) fn clean(
    driver: &Driver,
    blocks: std::ops::Range<u64>,
    progress: &Progress,
) -> LabResult<()> {
    // Nothing is taken from an origin that might still lose what an earlier run wrote to it.
    driver.plain(Op::Flush, 0, 0)?;
    let end = blocks.end * BLOCK;
    let mut at = blocks.start * BLOCK;
    while at < end {
        let len = CHUNK.min(end - at);
        driver.plain(Op::Prefetch, at, len)?;
        driver.local.turn();
        progress.advance(len / BLOCK);
        at += len;
    }
    Ok(())
}

/// Writes every block below `blocks` once, in random order.
pub(crate) fn dirty(driver: &mut Driver, order: &[Step], progress: &Progress) -> LabResult<()> {
    for some in order.chunks(1 << 14) {
        driver.steps(some)?;
        progress.advance(some.len() as u64);
    }
    Ok(())
}

/// The order in which blocks are written: each once.
pub(crate) fn order(seed: u64, blocks: u64) -> Vec<Step> {
    permutation(seed, blocks as u32, true)
}
