//! Memory accounting for the requests of the clients of one lane.

use std::cell::Cell;
use std::sync::Arc;

use crate::gate::Gate;
use crate::memory::{MemoryBudget, MemoryUse};

/// Bytes that a lane takes from the budget at a time, so that most requests touch no shared state.
const CHUNK: u64 = 1 << 20;

/// One lane's part of the budget for requests.
pub struct LaneMemory {
    budget: Arc<MemoryBudget>,
    /// Bytes taken from the budget but not used by a request.
    spare: Cell<u64>,
    /// Clients that wait for memory queue here; the first one has entered.
    turn: Gate,
}

impl LaneMemory {
    /// Starts with nothing taken from `budget`.
    pub fn new(budget: Arc<MemoryBudget>) -> Self {
        LaneMemory { budget, spare: Cell::new(0), turn: Gate::default() }
    }

    /// Returns the budget that all lanes share.
    pub fn budget(&self) -> &Arc<MemoryBudget> {
        &self.budget
    }

    /// Takes `bytes` for a request of a client that already has `own` bytes. Returns `false` if
    /// there is not enough.
    #[inline]
    pub fn take(&self, bytes: u64, own: u64) -> bool {
        let spare = self.spare.get();
        if bytes <= spare && own + bytes <= CHUNK {
            self.spare.set(spare - bytes);
            return true;
        }
        self.take_more(bytes, own)
    }

    fn take_more(&self, bytes: u64, own: u64) -> bool {
        // The whole amount comes from the budget, because bytes in `spare` do not count towards the
        // part that is left to others.
        let chunk = bytes.max(CHUNK);
        let taken =
            [chunk, bytes].into_iter().find(|size| self.budget.take_for_request(*size, own));
        if let Some(taken) = taken {
            self.give(taken - bytes);
        }
        taken.is_some()
    }

    /// Waits for `bytes`. Clients take turns, so that large requests are not starved.
    pub async fn wait(&self, bytes: u64) {
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
    pub fn give(&self, bytes: u64) {
        self.spare.set(self.spare.get() + bytes);
        if self.spare.get() > 2 * CHUNK || self.budget.has_waiters() {
            self.return_spare(if self.budget.has_waiters() { 0 } else { CHUNK });
        }
    }

    /// Gives spare bytes back to the budget, except `keep`.
    pub fn return_spare(&self, keep: u64) {
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
