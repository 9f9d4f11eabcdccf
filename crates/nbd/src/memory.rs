//! Memory of connections themselves.

use std::cell::Cell;
use std::sync::Arc;

use forebay_lane::{MemoryBudget, MemoryUse};

/// The memory of a connection itself; returned on drop.
pub(crate) struct ConnectionMemory {
    budget: Arc<MemoryBudget>,
    bytes: Cell<u64>,
}

impl ConnectionMemory {
    /// Takes `bytes`. Returns `None` if connections have used up their share or, with `remote`, the
    /// part of the share for clients of other machines.
    pub(crate) fn take(budget: &Arc<MemoryBudget>, bytes: u64, remote: bool) -> Option<Self> {
        let taken = match remote {
            true => budget.take_for_remote_connection(bytes),
            false => budget.take_for_connection(bytes, false),
        };
        taken.then(|| ConnectionMemory { budget: budget.clone(), bytes: Cell::new(bytes) })
    }

    /// Takes `bytes` more for larger buffers if memory is plentiful. Returns whether it was taken.
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
