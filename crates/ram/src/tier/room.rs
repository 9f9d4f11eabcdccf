//! Memory that a tier returns to the system while memory is short.

use super::Tier;
use crate::shard::Shard;

/// Maximum number of blocks of a shard that are returned or taken under its lock at a time.
const STEP: u32 = 256;

impl Tier {
    /// Returns the bytes of data that the tier may hold at present: its size, or less after
    /// [`Tier::set_room`].
    pub fn room(&self) -> u64 {
        let blocks: u64 = self.shards.iter().map(|shard| u64::from(shard.0.lock().room())).sum();
        blocks * self.block.bytes()
    }

    /// Returns the bytes of data that the tier may hold while memory is not short.
    pub fn full_room(&self) -> u64 {
        let blocks = self.shards.iter().map(|shard| u64::from(shard.0.lock().capacity()));
        blocks.sum::<u64>() * self.block.bytes()
    }

    /// Limits the tier to about this many bytes of data, up to its size, and returns the remaining
    /// memory to the system. Evicts the least used blocks; deferred data stays, and is written down
    /// early. Returns the bytes that the tier may hold now.
    pub fn set_room(&self, bytes: u64) -> u64 {
        // Rounded up, so that a small growth step still is one block.
        let most = (bytes / self.block.bytes()).div_ceil(self.shards.len() as u64);
        let wanted = |shard: &Shard| most.min(shard.capacity().into()) as u32;
        for shard in &self.shards {
            loop {
                let mut shard = shard.0.lock();
                let (wanted, room) = (wanted(&shard), shard.room());
                let changed = if wanted < room {
                    shard.shrink((room - wanted).min(STEP))
                } else {
                    shard.grow((wanted - room).min(STEP))
                };
                if changed == 0 {
                    break;
                }
            }
        }
        // Less space for deferred writes may make their write-down urgent, and more space may end
        // the wait of writes.
        self.deferring.work.notify_all();
        self.note_change_everywhere();
        self.room()
    }
}
