//! Places of connections: an unused connection gives way to a new one.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::task::AbortHandle;

/// The event or party for which a connection waits. Connections give way to others in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ConnectionPhase {
    /// The end of its request.
    Idle,
    /// The client, which has an answer to read.
    Answered,
    /// The daemon; streams count as this.
    Busy,
}

#[derive(Debug)]
struct ConnectionEntry {
    peer: IpAddr,
    phase: ConnectionPhase,
    task: Option<AbortHandle>,
}

/// The places of a listener.
#[derive(Debug)]
pub(super) struct Places {
    most: usize,
    /// Connections by number; lower ones are older.
    taken: Mutex<(u64, BTreeMap<u64, ConnectionEntry>)>,
}

/// The place of a connection, until this is dropped.
#[derive(Debug)]
pub(super) struct ConnectionPermit {
    places: Arc<Places>,
    number: u64,
}

impl Places {
    /// Makes `most` places.
    pub(super) fn new(most: usize) -> Arc<Self> {
        Arc::new(Places { most, taken: Mutex::default() })
    }

    fn taken(&self) -> MutexGuard<'_, (u64, BTreeMap<u64, ConnectionEntry>)> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a place for a client. If all are taken, aborts the task of another connection: of the
    /// address with the most connections, the least used one, and among those the oldest. Returns
    /// `None` if no connection can give way.
    pub(super) fn take(self: &Arc<Self>, peer: IpAddr) -> Option<ConnectionPermit> {
        let mut guard = self.taken();
        let (next, taken) = &mut *guard;
        if taken.len() >= self.most {
            let of = |peer| taken.values().filter(|other| other.peer == peer).count();
            let leaves = taken
                .iter()
                .filter(|(_, other)| other.phase != ConnectionPhase::Busy)
                .max_by_key(|(number, other)| {
                    (of(other.peer), std::cmp::Reverse((other.phase, **number)))
                })
                .map(|(number, _)| *number)?;
            if let Some(task) = taken.remove(&leaves).and_then(|gone| gone.task) {
                task.abort();
            }
        }
        let number = *next;
        *next += 1;
        taken.insert(number, ConnectionEntry { peer, phase: ConnectionPhase::Idle, task: None });
        Some(ConnectionPermit { places: self.clone(), number })
    }

    /// Sets the task that ends when the place `number` is needed.
    pub(super) fn ends_with(&self, number: u64, task: AbortHandle) {
        if let Some(taken) = self.taken().1.get_mut(&number) {
            taken.task = Some(task);
        }
    }
}

impl ConnectionPermit {
    /// Returns the number of the place.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// Notes the phase of the connection.
    pub(super) fn enter(&self, phase: ConnectionPhase) {
        if let Some(taken) = self.places.taken().1.get_mut(&self.number) {
            taken.phase = phase;
        }
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.places.taken().1.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCRAPER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));
    const OTHER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 9));

    fn numbers(places: &Places) -> Vec<u64> {
        places.taken().1.keys().copied().collect()
    }

    #[test]
    fn the_oldest_idle_connection_of_the_busiest_address_makes_room() {
        let places = Places::new(4);
        let _kept: Vec<_> = [SCRAPER, OTHER, OTHER, OTHER]
            .map(|peer| places.take(peer).expect("free"))
            .into_iter()
            .collect();
        let new = places.take(SCRAPER).expect("an idle one goes");
        assert_eq!(numbers(&places), [0, 2, 3, 4]);
        drop(new);
        assert_eq!(numbers(&places), [0, 2, 3]);
    }

    #[test]
    fn idle_connections_make_room_before_answered_and_busy_never() {
        let places = Places::new(3);
        let kept: Vec<_> = (0..3).map(|_| places.take(OTHER).expect("free")).collect();
        kept[0].enter(ConnectionPhase::Answered);
        kept[1].enter(ConnectionPhase::Busy);
        let second = places.take(OTHER).expect("the idle one goes");
        assert_eq!(numbers(&places), [0, 1, 3]);
        second.enter(ConnectionPhase::Busy);
        let third = places.take(OTHER).expect("the answered one goes");
        assert_eq!(numbers(&places), [1, 3, 4]);
        third.enter(ConnectionPhase::Busy);
        assert!(places.take(SCRAPER).is_none());
        drop(second);
        assert!(places.take(SCRAPER).is_some());
    }
}
