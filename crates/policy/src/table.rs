//! The blocks that any of several shadow caches tracks, under dense numbers.

use std::collections::HashMap;
use std::ops::Range;

/// A block and its state in the shadows.
#[derive(Clone, Debug)]
pub(crate) struct TrackedBlock<P> {
    pub(crate) key: u64,
    /// Number of queues and other structures, over all shadows, that hold the block.
    pub(crate) holders: u32,
    /// State of the block in each shadow.
    pub(crate) places: P,
}

/// The blocks. The number of a block without holders is reused.
#[derive(Debug)]
pub(crate) struct BlockTable<P> {
    pub(crate) blocks: Vec<TrackedBlock<P>>,
    pub(crate) free: Vec<u32>,
    pub(crate) numbers: HashMap<u64, u32>,
}

impl<P> Default for BlockTable<P> {
    fn default() -> Self {
        BlockTable { blocks: Vec::new(), free: Vec::new(), numbers: HashMap::new() }
    }
}

impl<P: Default> BlockTable<P> {
    /// Returns the number of a block; assigns a new one if the table does not contain it.
    pub(crate) fn number(&mut self, key: u64) -> u32 {
        if let Some(number) = self.numbers.get(&key) {
            return *number;
        }
        let block = TrackedBlock { key, holders: 0, places: P::default() };
        let number = match self.free.pop() {
            Some(number) => {
                self.blocks[number as usize] = block;
                number
            }
            None => {
                self.blocks.push(block);
                (self.blocks.len() - 1) as u32
            }
        };
        self.numbers.insert(key, number);
        number
    }

    pub(crate) fn hold(&mut self, number: u32) {
        self.blocks[number as usize].holders += 1;
    }

    pub(crate) fn release(&mut self, number: u32) {
        let block = &mut self.blocks[number as usize];
        block.holders -= 1;
        if block.holders == 0 {
            self.numbers.remove(&block.key);
            self.free.push(number);
        }
    }

    /// Returns the numbers of the tracked blocks in a range of keys, in an order that does not
    /// depend on that of the hash table.
    pub(crate) fn inside(&self, range: Range<u64>) -> Vec<u32> {
        let few = range.end.saturating_sub(range.start) <= self.numbers.len() as u64;
        let mut found: Vec<u32> = if few {
            range.filter_map(|key| self.numbers.get(&key).copied()).collect()
        } else {
            let inside = self.numbers.iter().filter(|(key, _)| range.contains(key));
            inside.map(|(_, number)| *number).collect()
        };
        found.sort_unstable();
        found
    }

    /// Returns the bytes per block. A vector that grows may have twice the capacity that it needs.
    pub(crate) const fn bytes_of_block() -> usize {
        size_of::<TrackedBlock<P>>() + 2 * size_of::<(u64, u32)>() + size_of::<u32>()
    }

    /// Returns an estimate of the allocated bytes.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> usize {
        self.blocks.capacity() * size_of::<TrackedBlock<P>>()
            + self.free.capacity() * size_of::<u32>()
            + self.numbers.capacity() * size_of::<(u64, u32)>() * 8 / 7
    }
}
