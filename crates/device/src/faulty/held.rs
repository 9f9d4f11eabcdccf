//! The content of a volatile write cache: writes that have not been synced.
//!
//! Held writes hide the content of the inner device: reads are patched with them, and a sync moves
//! them to the device. Only one operation moves them at a time, see [`HeldBlocks::drain`].

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::buffer::IoBuf;

/// Maximum number of bytes that a drain combines into one write.
const RUN: usize = 1 << 20;

/// The content of a logical block, and the number of the write that it comes from.
struct HeldBlock {
    version: u64,
    bytes: Arc<[u8]>,
}

#[derive(Default)]
struct State {
    blocks: BTreeMap<u64, HeldBlock>,
    version: u64,
    draining: bool,
}

/// The held blocks.
pub(super) struct HeldBlocks {
    block: u64,
    state: Mutex<State>,
}

/// Bytes for an offset of a buffer.
pub(super) type Patch = (usize, Arc<[u8]>);

impl HeldBlocks {
    /// Creates an empty set; `block` is the logical block size in bytes.
    pub(super) fn new(block: u64) -> Self {
        HeldBlocks { block, state: Mutex::default() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.state.lock().blocks.is_empty()
    }

    /// Drops everything, as a power cut does.
    pub(super) fn forget(&self) {
        self.state.lock().blocks.clear();
    }

    /// Holds whole blocks from `offset` on.
    pub(super) fn put(&self, offset: u64, bytes: &[u8]) {
        let state = &mut *self.state.lock();
        state.version += 1;
        for (number, bytes) in (offset / self.block..).zip(bytes.chunks_exact(self.block as usize))
        {
            state.blocks.insert(number, HeldBlock { version: state.version, bytes: bytes.into() });
        }
    }

    /// Returns the held bytes of a range, relative to its start.
    pub(super) fn patches(&self, offset: u64, len: u64) -> Vec<Patch> {
        let first = offset / self.block;
        let state = self.state.lock();
        let found = state.blocks.range(first..(offset + len) / self.block);
        found
            .map(|(number, block)| (((number - first) * self.block) as usize, block.bytes.clone()))
            .collect()
    }

    /// Starts to move the held blocks of a range to the device. `None` if another operation is
    /// moving blocks. No block is dropped before [`Drain::settle`].
    pub(super) fn drain(self: &Arc<Self>, range: Range<u64>) -> Option<Drain> {
        let state = &mut *self.state.lock();
        if std::mem::replace(&mut state.draining, true) {
            return None;
        }
        let found = state.blocks.range(range.start / self.block..range.end / self.block);
        let taken = found.map(|(number, block)| (*number, block.version)).collect();
        Some(Drain { held: self.clone(), taken })
    }
}

/// Blocks that are being moved to the device.
pub(super) struct Drain {
    held: Arc<HeldBlocks>,
    taken: Vec<(u64, u64)>,
}

impl Drain {
    /// Returns the writes that move them.
    pub(super) fn writes(&self) -> Vec<(u64, IoBuf)> {
        let state = self.held.state.lock();
        let mut writes: Vec<(u64, Vec<u8>)> = Vec::new();
        for (number, _) in &self.taken {
            let Some(block) = state.blocks.get(number) else { continue };
            let offset = number * self.held.block;
            match writes.last_mut() {
                Some((start, run)) if *start + run.len() as u64 == offset && run.len() < RUN => {
                    run.extend_from_slice(&block.bytes);
                }
                _ => writes.push((offset, block.bytes.to_vec())),
            }
        }
        writes.into_iter().map(|(offset, run)| (offset, IoBuf::copy_from(&run))).collect()
    }

    /// Drops the blocks that were moved, except those written again meanwhile.
    pub(super) fn settle(&self) {
        let blocks = &mut self.held.state.lock().blocks;
        for (number, version) in &self.taken {
            if blocks.get(number).is_some_and(|block| block.version == *version) {
                blocks.remove(number);
            }
        }
    }
}

impl Drop for Drain {
    fn drop(&mut self) {
        self.held.state.lock().draining = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drains_run_one_at_a_time_and_newer_writes_stay() {
        let held = Arc::new(HeldBlocks::new(512));
        held.put(512, &[1; 1024]);
        held.put(2048, &[2; 512]);
        let drain = held.drain(0..u64::MAX).expect("nobody else");
        assert!(held.drain(0..u64::MAX).is_none());
        let writes = drain.writes();
        assert_eq!(
            writes.iter().map(|(at, run)| (*at, run.len())).collect::<Vec<_>>(),
            [(512, 1024), (2048, 512)]
        );
        held.put(1024, &[3; 512]);
        drain.settle();
        drop(drain);
        assert_eq!(held.patches(0, 4096), [(1024, Arc::from([3; 512]))]);
        let part = held.drain(0..1024).expect("nobody else");
        part.settle();
        assert!(!held.is_empty(), "what is beyond the range stays");
        held.forget();
        assert!(held.is_empty());
    }
}
