//! Least frequently used: `lfu`, and `lfu-r`, whose frequencies decay.
//!
//! Each frequency has a list; the oldest block of the lowest non-empty list is evicted (Shah, Mitra
//! and Matani, "An O(1) algorithm for implementing the LFU cache eviction scheme", 2010). A new
//! block has frequency 1.
//!
//! `lfu` counts to 4,095 and never forgets: a block that was used often long ago stays for ever.
//! `lfu-r` counts to 255 and halves all frequencies after every [`ACCESSES_PER_EPOCH`] accesses per
//! block of capacity, like Robinson and Devarakonda ("Data cache management using frequency-based
//! replacement", SIGMETRICS 1990). Halving merges the lists in pairs, so it takes the same time for
//! any number of blocks: a block stores its last written frequency with the epoch of that write,
//! and reads as halved once per epoch since. FancyCache has not published the exact definition of
//! its `LFU-R`; this is frequency with ageing.
//!
//! 10 bytes per block, and 80 KiB (`lfu-r`: 5 KiB) for the lists.

use super::list::Lists;
use forebay_core::ReplacementKind;

use super::{BlockPolicy, Key, Node, StateBytes};

/// Accesses per block of capacity after which `lfu-r` halves all frequencies.
pub const ACCESSES_PER_EPOCH: u64 = 10;

/// Number of distinguishable epochs.
const EPOCHS: u16 = 16;

/// A frequency, and the epoch in which it was written.
#[derive(Clone, Copy, Debug, Default)]
struct FrequencyStamp(u16);

impl FrequencyStamp {
    fn new(frequency: usize, epoch: u16) -> Self {
        FrequencyStamp(((frequency as u16) << 4) | (epoch % EPOCHS))
    }

    /// Returns the frequency, halved once per epoch since it was written.
    fn frequency(self, epoch: u16) -> usize {
        let since = (epoch % EPOCHS + EPOCHS - self.0 % EPOCHS) % EPOCHS;
        usize::from(self.0 >> 4) >> since
    }
}

/// See the module.
#[derive(Debug)]
pub struct Lfu {
    kind: ReplacementKind,
    capacity: u32,
    resident: u32,
    lists: Lists,
    stamps: Vec<FrequencyStamp>,
    /// One bit per list: whether it is non-empty.
    occupied: Vec<u64>,
    highest: usize,
    epoch: u16,
    /// Accesses until the next epoch.
    left: u64,
    per_epoch: u64,
    /// The node whose stamp is refreshed next, before the stamp's epoch wraps around.
    refresh: u32,
    refreshed_per_access: u32,
}

impl Lfu {
    pub(super) fn plain(capacity: u32, nodes: u32) -> Self {
        Self::new(ReplacementKind::Lfu, capacity, nodes, 4096, u64::MAX)
    }

    pub(super) fn ageing(capacity: u32, nodes: u32) -> Self {
        let per_epoch = u64::from(capacity) * ACCESSES_PER_EPOCH;
        Self::new(ReplacementKind::LfuR, capacity, nodes, 256, per_epoch)
    }

    fn new(kind: ReplacementKind, capacity: u32, nodes: u32, levels: u32, per_epoch: u64) -> Self {
        Lfu {
            kind,
            capacity,
            resident: 0,
            lists: Lists::new(nodes, levels),
            stamps: vec![FrequencyStamp::default(); nodes as usize],
            occupied: vec![0; levels as usize / 64],
            highest: levels as usize - 1,
            epoch: 0,
            left: per_epoch,
            per_epoch,
            refresh: 0,
            // Refreshes all nodes within half of the distinguishable epochs.
            refreshed_per_access: (u64::from(nodes) * 2 / u64::from(EPOCHS)).div_ceil(per_epoch)
                as u32,
        }
    }

    fn frequency(&self, node: u32) -> usize {
        self.stamps[node as usize].frequency(self.epoch)
    }

    fn push(&mut self, node: u32, frequency: usize) {
        self.stamps[node as usize] = FrequencyStamp::new(frequency, self.epoch);
        self.lists.push(frequency, node);
        self.occupied[frequency / 64] |= 1 << (frequency % 64);
        self.resident += 1;
    }

    fn take(&mut self, node: u32) -> usize {
        let frequency = self.frequency(node);
        self.lists.remove(frequency, node);
        if self.lists.len(frequency) == 0 {
            self.occupied[frequency / 64] &= !(1 << (frequency % 64));
        }
        self.resident -= 1;
        frequency
    }

    fn count_access(&mut self) {
        if self.per_epoch == u64::MAX {
            return;
        }
        for _ in 0..self.refreshed_per_access {
            let node = self.refresh;
            self.stamps[node as usize] = FrequencyStamp::new(self.frequency(node), self.epoch);
            self.refresh = if node as usize + 1 < self.stamps.len() { node + 1 } else { 0 };
        }
        self.left -= 1;
        if self.left == 0 {
            self.left = self.per_epoch;
            self.halve();
        }
    }

    fn halve(&mut self) {
        self.epoch = (self.epoch + 1) % EPOCHS;
        self.lists.append(1, 0);
        for half in 1..=self.highest / 2 {
            self.lists.append(2 * half, half);
            self.lists.append(2 * half + 1, half);
        }
        self.occupied.fill(0);
        for level in 0..=self.highest {
            if self.lists.len(level) > 0 {
                self.occupied[level / 64] |= 1 << (level % 64);
            }
        }
    }
}

impl BlockPolicy for Lfu {
    fn kind(&self) -> ReplacementKind {
        self.kind
    }

    fn resident(&self) -> u32 {
        self.resident
    }

    fn hit(&mut self, Node(node): Node) {
        if self.lists.holds(node) {
            let frequency = self.take(node);
            self.push(node, (frequency + 1).min(self.highest));
            self.count_access();
        }
    }

    fn insert(&mut self, Node(node): Node, _key: Key) -> Option<Node> {
        let leaves = if self.resident() >= self.capacity { self.evict() } else { None };
        self.push(node, 1);
        self.count_access();
        leaves
    }

    fn evict(&mut self) -> Option<Node> {
        let (word, bits) = self.occupied.iter().enumerate().find(|(_, bits)| **bits != 0)?;
        let node = self.lists.oldest(word * 64 + bits.trailing_zeros() as usize)?;
        self.take(node);
        Some(Node(node))
    }

    fn remove(&mut self, Node(node): Node) {
        if self.lists.holds(node) {
            self.take(node);
        }
    }

    fn moved(&mut self, Node(from): Node, Node(to): Node) {
        self.lists.replace(from, to);
        self.stamps[to as usize] = self.stamps[from as usize];
    }

    fn state_bytes(&self) -> StateBytes {
        let resident = self.lists.bytes()
            + self.stamps.capacity() * size_of::<FrequencyStamp>()
            + self.occupied.capacity() * size_of::<u64>();
        StateBytes { resident, ghosts: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::super::harness::{AccessOutcome, Cache};
    use super::*;

    /// A frequent block that then sleeps for more epochs than can be distinguished is evicted
    /// first.
    #[test]
    fn frequency_fades_and_stays_faded() {
        for epochs in [10, 17, 20, 40] {
            let mut cache = Cache::new(ReplacementKind::LfuR, 10, 1);
            for _ in 0..30 {
                cache.access(0);
            }
            for step in 0..epochs * 10 * ACCESSES_PER_EPOCH {
                cache.access(1 + step % 9);
            }
            assert_eq!(cache.access(100), AccessOutcome::Miss(Some(0)), "after {epochs} epochs");
        }
        let mut cache = Cache::new(ReplacementKind::Lfu, 10, 1);
        cache.access(0);
        for step in 0..10_000 {
            cache.access(step % 10);
        }
        cache.access(0);
        assert_eq!(cache.access(100), AccessOutcome::Miss(Some(1)));
    }
}
