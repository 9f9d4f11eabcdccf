//! Guards: they show whether a copy of the lower tier's data is certain to be current.
//!
//! While a write to the lower tier is in flight, a read may return old or new data, and the order
//! in which two concurrent writes take effect is unknown. A copy made during that time could be
//! older than the lower tier's data, so it is not kept.

use crate::block::RamBlockNumber;

/// Number of guards of a shard. A collision of two blocks only prevents a copy from being kept.
const GUARDS: usize = 64;

/// State of a block's guard at the start of a request, until the lower tier has answered.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Token {
    epoch: u32,
    /// Whether no write to the block was in flight.
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
pub(crate) struct Guards {
    own: [Guard; GUARDS],
    /// The guard of all blocks, used by writes of zeroes to whole regions.
    all: Guard,
}

impl Default for Guards {
    fn default() -> Self {
        Guards { own: [Guard::default(); GUARDS], all: Guard::default() }
    }
}

impl Guards {
    fn of(&mut self, block: RamBlockNumber) -> &mut Guard {
        &mut self.own[Self::number(block)]
    }

    /// Returns the token for the start of a request. Both epochs only advance, so their sum is
    /// unchanged only if both are.
    fn token(&self, block: RamBlockNumber) -> Token {
        let (own, all) = (self.own[Self::number(block)], self.all);
        let epoch = own.epoch.wrapping_add(all.epoch);
        Token { epoch, undisturbed: own.writers == 0 && all.writers == 0 }
    }

    fn number(block: RamBlockNumber) -> usize {
        (block.hash() >> 40) as usize % GUARDS
    }

    /// Begins a read of the lower tier.
    pub(crate) fn begin_read(&mut self, block: RamBlockNumber) -> Token {
        self.token(block)
    }

    /// Ends a read. `true`: the data is still current.
    pub(crate) fn end_read(&mut self, block: RamBlockNumber, token: Token) -> bool {
        token.undisturbed && self.token(block).epoch == token.epoch
    }

    /// Begins a write to the lower tier.
    pub(crate) fn begin_write(&mut self, block: RamBlockNumber) -> Token {
        let undisturbed = self.token(block).undisturbed;
        let guard = self.of(block);
        guard.epoch = guard.epoch.wrapping_add(1);
        guard.writers += 1;
        Token { undisturbed, ..self.token(block) }
    }

    /// Ends a write. Returns `true` if no other write was in flight, so that the lower tier has the
    /// data of this one.
    pub(crate) fn end_write(&mut self, block: RamBlockNumber, token: Token) -> bool {
        let alone = token.undisturbed && self.token(block).epoch == token.epoch;
        let guard = self.of(block);
        guard.epoch = guard.epoch.wrapping_add(1);
        guard.writers -= 1;
        alone
    }

    /// Ends a write that changed nothing.
    pub(crate) fn cancel_write(&mut self, block: RamBlockNumber) {
        self.of(block).writers -= 1;
    }

    /// Begins a write to any number of blocks.
    pub(crate) fn begin_write_of_many(&mut self) {
        self.all.epoch = self.all.epoch.wrapping_add(1);
        self.all.writers += 1;
    }

    /// Ends a write of zeroes to whole regions, whether or not it changed anything.
    pub(crate) fn end_write_of_many(&mut self) {
        self.all.epoch = self.all.epoch.wrapping_add(1);
        self.all.writers -= 1;
    }

    /// Returns whether a write to the lower tier may be in flight, to this block or to another
    /// block with the same guard.
    pub(crate) fn is_written(&self, block: RamBlockNumber) -> bool {
        self.all.writers > 0 || self.own[Self::number(block)].writers > 0
    }

    /// Notes a deferred write: reads of the lower tier in flight do not return current data.
    pub(crate) fn deferred(&mut self, block: RamBlockNumber) {
        let guard = self.of(block);
        guard.epoch = guard.epoch.wrapping_add(1);
    }

    /// Prevents the data of all requests in flight from being kept.
    pub(crate) fn disturb_all(&mut self) {
        self.own.iter_mut().for_each(|guard| guard.epoch = guard.epoch.wrapping_add(1));
    }
}
