//! Limits on the resources of clients, and their current use.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use forebay_lane::MemoryBudget;

use crate::holes::HoleFinder;
use crate::memory::ConnectionMemory;
use crate::outliving::{Outliving, Present};
use crate::sessions::Sessions;

/// Limits on the resources of clients.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Most connections, over all lanes that share a [`ConnectionCount`].
    pub connections: usize,
    /// Most unanswered requests of one connection, at least 1.
    pub requests: usize,
    /// Bytes of memory for these requests. A single request is accepted even if it needs more.
    pub bytes: u64,
    /// Time limit for a handshake.
    pub handshake: Duration,
    /// Time limit for a departing or dismissed client to take its last replies.
    pub drain: Duration,
    /// Time limit for a client to take or send a MiB while others wait for the memory of its
    /// requests.
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

/// Counts the connections of all lanes of a server, and holds what they share: the memory budget of the
/// daemon, the threads that look for holes, which devices are connected, and who has which export open.
#[derive(Clone, Debug, Default)]
pub struct ConnectionCount {
    count: Arc<AtomicUsize>,
    memory: Arc<MemoryBudget>,
    finder: HoleFinder,
    outliving: Outliving,
    sessions: Sessions,
}

/// Why a client is turned away.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Full {
    #[error("the limit of {0} connections is reached")]
    Connections(usize),
    #[error("connections have used up their share of the memory; raise --memory-limit")]
    Memory,
}

impl ConnectionCount {
    /// Starts at no connections, within `memory`.
    pub fn within(memory: Arc<MemoryBudget>) -> Self {
        ConnectionCount { memory, ..ConnectionCount::default() }
    }

    /// Takes clients for these exports alone, and for those that are opened later. Otherwise all exports take clients.
    pub(crate) fn for_exports(self, exports: &[String]) -> Self {
        ConnectionCount { sessions: Sessions::of(exports), ..self }
    }

    /// Returns the current number of connections.
    pub fn get(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Returns the memory budget shared with the rest of the daemon.
    pub(crate) fn memory(&self) -> &Arc<MemoryBudget> {
        &self.memory
    }

    /// Returns the finder of holes, whose threads are limited for all lanes together.
    pub(crate) fn finder(&self) -> &HoleFinder {
        &self.finder
    }

    /// Returns the devices that are connected.
    pub(crate) fn outliving(&self) -> &Outliving {
        &self.outliving
    }

    /// Returns which exports take clients, and which clients they have.
    pub(crate) fn sessions(&self) -> &Sessions {
        &self.sessions
    }

    pub(crate) fn take(&self, limit: usize, bytes: u64) -> Result<Place, Full> {
        let taken = self.count.fetch_add(1, Ordering::Relaxed);
        let counted = Counted(self.count.clone());
        if taken >= limit {
            return Err(Full::Connections(limit));
        }
        let memory = ConnectionMemory::take(&self.memory, bytes).ok_or(Full::Memory)?;
        Ok(Place { memory, present: None, _counted: counted })
    }
}

struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A connection's entry in the count, with its memory.
pub(crate) struct Place {
    pub(crate) memory: ConnectionMemory,
    /// Counts it among the devices, if it is one.
    pub(crate) present: Option<Present>,
    _counted: Counted,
}
