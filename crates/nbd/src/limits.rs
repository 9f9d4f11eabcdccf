//! Limits on the resources of clients, and their current use.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use forebay_core::Nanos;
use forebay_lane::MemoryBudget;

use crate::handshakes::{Handshakes, InHandshake, Most, Source};
use crate::holes::HoleFinder;
use crate::memory::ConnectionMemory;
use crate::outliving::{Outliving, Present};
use crate::sessions::Sessions;
use crate::tls_work::TlsWork;

/// One source of clients gets at most `1 / EACH` of the handshakes.
const EACH: usize = 4;

/// Limits on the resources of clients.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Most connections with an export open, over all lanes that share a [`ConnectionCount`]. The
    /// limit applies to unix sockets and to TCP separately.
    pub connections: usize,
    /// Most connections that have not chosen an export yet, at least 4. The limit applies to unix
    /// sockets and to TCP separately. One user of this machine, or one address, gets at most a
    /// quarter.
    pub handshakes: usize,
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
            handshakes: 512,
            requests: 256,
            bytes: 64 << 20,
            handshake: Duration::from_secs(30),
            drain: Duration::from_secs(10),
            stall: Duration::from_secs(5),
        }
    }
}

/// Counts the connections of all lanes of a server, and holds their shared state: the memory budget
/// of the daemon, the threads that look for holes, the connected devices, and the clients of each
/// export.
#[derive(Clone, Debug, Default)]
pub struct ConnectionCount {
    local: Counts,
    remote: Counts,
    memory: Arc<MemoryBudget>,
    finder: HoleFinder,
    outliving: Outliving,
    sessions: Sessions,
    tls_work: TlsWork,
}

/// The connections by one transport.
#[derive(Clone, Debug, Default)]
struct Counts {
    handshakes: Handshakes,
    sessions: Arc<AtomicUsize>,
}

/// Why a client is turned away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Full {
    #[error("the limit of {0} connections is reached")]
    Connections(usize),
    #[error("too many clients, or too many from there, have connected and not chosen an export")]
    Handshakes,
    #[error("connections have used up their share of the memory; raise --memory-limit")]
    Memory,
}

impl ConnectionCount {
    /// Starts at no connections, within `memory`.
    pub fn within(memory: Arc<MemoryBudget>) -> Self {
        ConnectionCount { memory, ..ConnectionCount::default() }
    }

    /// Accepts no clients for an export until the export is opened. By default every export accepts
    /// all clients.
    pub(crate) fn closed(self) -> Self {
        ConnectionCount { sessions: Sessions::closed(), ..self }
    }

    /// Returns the current number of connections.
    pub fn get(&self) -> usize {
        let count = |by: &Counts| by.handshakes.len() + by.sessions.load(Ordering::Relaxed);
        count(&self.local) + count(&self.remote)
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

    /// Returns where handshakes of TLS are done.
    pub(crate) fn tls_work(&self) -> &TlsWork {
        &self.tls_work
    }

    fn by(&self, remote: bool) -> &Counts {
        if remote { &self.remote } else { &self.local }
    }

    /// Takes a place for the handshake of a client that has just connected, and `bytes` of memory.
    pub(crate) fn begin(
        &self,
        limits: &Limits,
        source: Source,
        socket: &Arc<OwnedFd>,
        bytes: u64,
        now: Nanos,
    ) -> Result<Handshaking, Full> {
        let remote = matches!(source, Source::Network(_));
        let by = self.by(remote);
        if by.sessions.load(Ordering::Relaxed) >= limits.connections {
            return Err(Full::Connections(limits.connections));
        }
        let most = Most { all: limits.handshakes, each: limits.handshakes / EACH };
        let place = by.handshakes.begin(source, socket, now, most).ok_or(Full::Handshakes)?;
        let memory = ConnectionMemory::take(&self.memory, bytes, remote).ok_or(Full::Memory)?;
        Ok(Handshaking { _memory: memory, _place: place })
    }

    /// Takes a place for a client that has chosen an export, and `bytes` of memory.
    pub(crate) fn take(&self, limits: &Limits, remote: bool, bytes: u64) -> Result<Place, Full> {
        let sessions = &self.by(remote).sessions;
        let taken = sessions.fetch_add(1, Ordering::Relaxed);
        let counted = Counted(sessions.clone());
        if taken >= limits.connections {
            return Err(Full::Connections(limits.connections));
        }
        let memory = ConnectionMemory::take(&self.memory, bytes, remote).ok_or(Full::Memory)?;
        Ok(Place { memory, present: None, _counted: counted })
    }
}

struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A connection's place among the handshakes, with its memory.
pub(crate) struct Handshaking {
    _memory: ConnectionMemory,
    _place: InHandshake,
}

/// The place of a connection that has an export open, with its memory.
pub(crate) struct Place {
    pub(crate) memory: ConnectionMemory,
    /// Counts the client among the connected devices, if it is one.
    pub(crate) present: Option<Present>,
    _counted: Counted,
}
