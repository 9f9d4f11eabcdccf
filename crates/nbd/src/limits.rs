//! What clients may use up, and what they have.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use forebay_lane::MemoryBudget;

use crate::memory::ConnectionMemory;

/// What clients may use up.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections of all lanes that share a [`ConnectionCount`].
    pub connections: usize,
    /// Requests of one connection that are not answered yet, at least 1.
    pub requests: usize,
    /// Bytes of memory for these. One request is taken even if it needs more.
    pub bytes: u64,
    /// Time for a handshake.
    pub handshake: Duration,
    /// Time for a client that left, or is sent away, to take its last replies.
    pub drain: Duration,
    /// Time for a client to take or send a MiB that it is to, while others wait for the
    /// memory that its requests have.
    pub stall: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            connections: 1024,
            requests: 256,
            bytes: 64 << 20,
            handshake: Duration::from_secs(30),
            drain: Duration::from_secs(10),
            stall: Duration::from_secs(5),
        }
    }
}

/// Connections of all lanes of a server, and the memory that they share with the rest of the daemon.
#[derive(Clone, Debug, Default)]
pub struct ConnectionCount {
    count: Arc<AtomicUsize>,
    memory: Arc<MemoryBudget>,
}

/// Why a client is turned away.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Full {
    #[error("there are {0} connections, as many as there may be")]
    Connections(usize),
    #[error("connections have as much memory as they may; --memory-limit gives them more")]
    Memory,
}

impl ConnectionCount {
    /// No connections yet, within `memory`.
    pub fn within(memory: Arc<MemoryBudget>) -> Self {
        ConnectionCount { count: Arc::default(), memory }
    }

    /// Connections now.
    pub fn get(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// The memory that connections share with the rest of the daemon.
    pub(crate) fn memory(&self) -> &Arc<MemoryBudget> {
        &self.memory
    }

    pub(crate) fn take(&self, limit: usize, bytes: u64) -> Result<Place, Full> {
        let taken = self.count.fetch_add(1, Ordering::Relaxed);
        let counted = Counted(self.count.clone());
        if taken >= limit {
            return Err(Full::Connections(limit));
        }
        let memory = ConnectionMemory::take(&self.memory, bytes).ok_or(Full::Memory)?;
        Ok(Place { memory, _counted: counted })
    }
}

struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A place among the connections, with what it takes of the memory.
pub(crate) struct Place {
    pub(crate) memory: ConnectionMemory,
    _counted: Counted,
}
