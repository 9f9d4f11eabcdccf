//! Memory accounting for the connections of one lane.

use std::cell::Cell;
use std::sync::Arc;

use forebay_lane::{Gate, MemoryBudget, MemoryUse};

/// Bytes that a lane takes from the budget at a time, so that most requests touch no shared state.
const CHUNK: u64 = 1 << 20;

/// One lane's part of the budget for requests.
pub(crate) struct LaneMemory {
    budget: Arc<MemoryBudget>,
    /// Bytes taken from the budget but not used by a request.
    spare: Cell<u64>,
    /// Queue of connections waiting for memory; the first one is inside.
    turn: Gate,
}

impl LaneMemory {
    pub(crate) fn new(budget: Arc<MemoryBudget>) -> Self {
        LaneMemory { budget, spare: Cell::new(0), turn: Gate::default() }
    }

    pub(crate) fn budget(&self) -> &Arc<MemoryBudget> {
        &self.budget
    }

    /// Takes `bytes` for a request of a connection that already has `own` bytes. Returns `false` if
    /// there is not enough.
    #[inline]
    pub(crate) fn take(&self, bytes: u64, own: u64) -> bool {
        let spare = self.spare.get();
        if bytes <= spare && own + bytes <= CHUNK {
            self.spare.set(spare - bytes);
            return true;
        }
        self.take_more(bytes, own)
    }

    fn take_more(&self, bytes: u64, own: u64) -> bool {
        // Takes the whole amount from the budget: bytes in `spare` do not count against what others
        // leave.
        let chunk = bytes.max(CHUNK);
        let taken =
            [chunk, bytes].into_iter().find(|size| self.budget.take_for_request(*size, own));
        if let Some(taken) = taken {
            self.give(taken - bytes);
        }
        taken.is_some()
    }

    /// Waits for `bytes`. Connections take turns, so that large requests are not starved.
    pub(crate) async fn wait(&self, bytes: u64) {
        let _turn = self.turn.enter().await;
        loop {
            let waiting = self.budget.listen();
            self.return_spare(0);
            if self.take(bytes, 0) {
                return;
            }
            waiting.freed().await;
        }
    }

    /// Gives back the bytes of a request.
    #[inline]
    pub(crate) fn give(&self, bytes: u64) {
        self.spare.set(self.spare.get() + bytes);
        if self.spare.get() > 2 * CHUNK || self.budget.has_waiters() {
            self.return_spare(if self.budget.has_waiters() { 0 } else { CHUNK });
        }
    }

    /// Gives spare bytes back to the budget, except `keep`.
    pub(crate) fn return_spare(&self, keep: u64) {
        let more = self.spare.get().saturating_sub(keep);
        if more > 0 {
            self.spare.set(self.spare.get() - more);
            self.budget.give(MemoryUse::Requests, more);
        }
    }
}

impl Drop for LaneMemory {
    fn drop(&mut self) {
        self.return_spare(0);
    }
}

/// The memory of a connection itself; returned on drop.
pub(crate) struct ConnectionMemory {
    budget: Arc<MemoryBudget>,
    bytes: Cell<u64>,
}

impl ConnectionMemory {
    /// Takes `bytes`. Returns `None` if connections have used up their share.
    pub(crate) fn take(budget: &Arc<MemoryBudget>, bytes: u64) -> Option<Self> {
        budget
            .take_for_connection(bytes, false)
            .then(|| ConnectionMemory { budget: budget.clone(), bytes: Cell::new(bytes) })
    }

    /// Takes more for larger buffers, if memory is plentiful. Returns whether it did.
    pub(crate) fn grow(&self, bytes: u64) -> bool {
        let grown = self.budget.take_for_connection(bytes, true);
        if grown {
            self.bytes.set(self.bytes.get() + bytes);
        }
        grown
    }
}

impl Drop for ConnectionMemory {
    fn drop(&mut self) {
        self.budget.give(MemoryUse::Connections, self.bytes.get());
    }
}
