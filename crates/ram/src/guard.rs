//! Guards: which copies of the lower tier's data are certain to be current.
//!
//! While a write to the lower tier is in flight, a read of it may return old or new data, and the
//! order in which two writes take effect there is not known. A copy made then could be older than
//! the lower tier's data, so it is not kept.

use crate::block::RamBlockNumber;

/// Guards of a shard. Blocks that share one disturb each other's fills, no more.
const GUARDS: usize = 64;

/// What a request remembers of a block from its start until the lower tier has answered.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Token {
    epoch: u32,
    /// No write to the block was in flight.
    undisturbed: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Guard {
    /// Advances when a write starts and when it ends.
    epoch: u32,
    /// Writes to the lower tier in flight.
    writers: u32,
}

/// The guards of a shard's blocks. See the module.
#[derive(Clone, Copy)]
pub(crate) struct Guards([Guard; GUARDS]);

impl Default for Guards {
    fn default() -> Self {
        Guards([Guard::default(); GUARDS])
    }
}

impl Guards {
    fn of(&mut self, block: RamBlockNumber) -> &mut Guard {
        &mut self.0[Self::number(block)]
    }

    fn number(block: RamBlockNumber) -> usize {
        (block.hash() >> 40) as usize % GUARDS
    }

    /// Begins a read of the lower tier.
    pub(crate) fn begin_read(&mut self, block: RamBlockNumber) -> Token {
        let Guard { epoch, writers } = *self.of(block);
        Token { epoch, undisturbed: writers == 0 }
    }

    /// Ends a read. `true`: the data is still current.
    pub(crate) fn end_read(&mut self, block: RamBlockNumber, token: Token) -> bool {
        token.undisturbed && self.of(block).epoch == token.epoch
    }

    /// Begins a write to the lower tier.
    pub(crate) fn begin_write(&mut self, block: RamBlockNumber) -> Token {
        let guard = self.of(block);
        let undisturbed = guard.writers == 0;
        guard.epoch = guard.epoch.wrapping_add(1);
        guard.writers += 1;
        Token { epoch: guard.epoch, undisturbed }
    }

    /// Ends a write. `true`: the lower tier has its data now, and not that of another write.
    pub(crate) fn end_write(&mut self, block: RamBlockNumber, token: Token) -> bool {
        let guard = self.of(block);
        let alone = token.undisturbed && guard.epoch == token.epoch;
        guard.epoch = guard.epoch.wrapping_add(1);
        guard.writers -= 1;
        alone
    }

    /// Ends a write that changed nothing.
    pub(crate) fn cancel_write(&mut self, block: RamBlockNumber) {
        self.of(block).writers -= 1;
    }

    /// Returns whether a write to the lower tier may be in flight: one to this block or to another
    /// that has the same guard.
    pub(crate) fn is_written(&self, block: RamBlockNumber) -> bool {
        self.0[Self::number(block)].writers > 0
    }

    /// Notes a write that only RAM has for now: what reads of the lower tier return is not current.
    pub(crate) fn deferred(&mut self, block: RamBlockNumber) {
        let guard = self.of(block);
        guard.epoch = guard.epoch.wrapping_add(1);
    }

    /// Disturbs everything in flight.
    pub(crate) fn disturb_all(&mut self) {
        self.0.iter_mut().for_each(|guard| guard.epoch = guard.epoch.wrapping_add(1));
    }
}
