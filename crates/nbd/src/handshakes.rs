//! Connections in their handshake. Their number is limited, and sources of clients share it fairly.
//!
//! A silent client occupies one of these places until its time limit, and none of the places of
//! clients that have an export open. A new client that finds no free place replaces the oldest
//! handshake, of its own source or of the source with the most handshakes. It is turned away if
//! that handshake has just begun, unless the other source has at least two handshakes more than the
//! source of the new client.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use forebay_core::Nanos;
use forebay_device::peer_user;
use parking_lot::Mutex;
use rustix::net::{Shutdown, getpeername, shutdown};

/// Age from which a handshake may be ended in favour of a new client. Most handshakes take a few
/// round trips.
const JUST_BEGUN: Duration = Duration::from_secs(1);

/// The source of a client, as far as one client can be distinguished from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Source {
    /// A user of this machine, by a unix socket.
    User(Option<u32>),
    /// A machine, or an IPv6 network that may belong to one machine, by TCP.
    Network(Option<IpAddr>),
}

impl Source {
    /// Returns the source of a client by unix socket.
    pub(crate) fn local(socket: impl AsFd) -> Self {
        Source::User(peer_user(socket))
    }

    /// Returns the source of a client by TCP.
    pub(crate) fn remote(socket: impl AsFd) -> Self {
        let peer = getpeername(socket).ok().flatten();
        let address = peer.and_then(|peer| SocketAddr::try_from(peer).ok());
        Source::Network(address.map(|address| network(address.ip().to_canonical())))
    }
}

/// Returns an address of IPv4, or the first 64 bits of one of IPv6.
fn network(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(v6) => IpAddr::V6((u128::from(v6) >> 64 << 64).into()),
    }
}

/// Most handshakes at a time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Most {
    /// Limit for all sources together.
    pub(crate) all: usize,
    /// Limit for one source.
    pub(crate) each: usize,
}

/// The handshakes in progress, over all lanes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Handshakes(Arc<Mutex<All>>);

#[derive(Debug, Default)]
struct All {
    /// Handshakes in the order in which they began.
    handshakes: BTreeMap<u64, Handshake>,
    begun: u64,
}

#[derive(Debug)]
struct Handshake {
    source: Source,
    since: Nanos,
    socket: Arc<OwnedFd>,
}

impl All {
    fn count(&self, source: Source) -> usize {
        self.handshakes.values().filter(|it| it.source == source).count()
    }

    /// Returns the source with the most handshakes, and their number.
    fn largest(&self) -> Option<(Source, usize)> {
        let mut counts: BTreeMap<Source, usize> = BTreeMap::new();
        self.handshakes.values().for_each(|it| *counts.entry(it.source).or_default() += 1);
        counts.into_iter().max_by_key(|(_, count)| *count)
    }

    /// Returns the handshake to end in favour of a new one from `source`; `None` if a place is
    /// free. `Err`: no place is free and no handshake can be ended.
    fn victim(&self, source: Source, now: Nanos, most: Most) -> Result<Option<u64>, ()> {
        let own = self.count(source);
        let (from, at_once) = if own >= most.each {
            (source, false)
        } else if self.handshakes.len() >= most.all {
            let (largest, count) = self.largest().ok_or(())?;
            (largest, count > own + 1)
        } else {
            return Ok(None);
        };
        let mut those = self.handshakes.iter().filter(|(_, it)| it.source == from);
        let (number, oldest) = those.next().ok_or(())?;
        let gives_way = at_once || now.since(oldest.since) >= JUST_BEGUN;
        if gives_way { Ok(Some(*number)) } else { Err(()) }
    }
}

impl Handshakes {
    /// Returns their number.
    pub(crate) fn len(&self) -> usize {
        self.0.lock().handshakes.len()
    }

    /// Begins a handshake, and ends another one if its place is needed. `None`: no place is free.
    pub(crate) fn begin(
        &self,
        source: Source,
        socket: &Arc<OwnedFd>,
        now: Nanos,
        most: Most,
    ) -> Option<InHandshake> {
        let mut all = self.0.lock();
        if let Some(victim) = all.victim(source, now, most).ok()?
            && let Some(ended) = all.handshakes.remove(&victim)
        {
            // The lane of the ended handshake sees the end of the stream. `shutdown` fails only if
            // the connection has ended.
            let _ = shutdown(&*ended.socket, Shutdown::Both);
        }
        all.begun += 1;
        let number = all.begun;
        all.handshakes.insert(number, Handshake { source, since: now, socket: socket.clone() });
        Some(InHandshake { all: self.clone(), number })
    }
}

/// A handshake in progress, as long as this exists.
#[derive(Debug)]
pub(crate) struct InHandshake {
    all: Handshakes,
    number: u64,
}

impl Drop for InHandshake {
    fn drop(&mut self) {
        self.all.0.lock().handshakes.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    use super::*;

    const MOST: Most = Most { all: 8, each: 4 };

    /// A limiter and the clients whose handshakes have begun.
    #[derive(Default)]
    struct World {
        all: Handshakes,
        clients: Vec<(UnixStream, Option<InHandshake>)>,
    }

    impl World {
        /// Begins a handshake at `seconds`; returns the client's number, or `None` if no place is
        /// free.
        fn begin(&mut self, source: Source, seconds: u64) -> Option<usize> {
            let (client, server) = UnixStream::pair().expect("sockets");
            let now = Nanos(seconds * 1_000_000_000);
            let begun = self.all.begin(source, &Arc::new(server.into()), now, MOST)?;
            client.set_nonblocking(true).expect("a socket");
            self.clients.push((client, Some(begun)));
            Some(self.clients.len() - 1)
        }

        /// Returns the numbers of the clients whose handshakes were ended.
        fn ended(&self) -> Vec<usize> {
            let ended = |client: &UnixStream| matches!((&mut &*client).read(&mut [0]), Ok(0));
            let all = self.clients.iter().enumerate();
            all.filter(|(_, (client, _))| ended(client)).map(|(number, _)| number).collect()
        }
    }

    fn user(number: u32) -> Source {
        Source::User(Some(number))
    }

    #[test]
    fn a_source_has_its_share_and_its_oldest_gives_way_in_time() {
        let mut world = World::default();
        for number in 0..MOST.each {
            assert_eq!(world.begin(user(1), 5), Some(number));
        }
        assert_eq!(world.begin(user(1), 5), None, "all have just begun");
        assert_eq!(world.begin(user(2), 5), Some(4), "another one has its own share");
        assert!(world.ended().is_empty());
        assert_eq!(world.begin(user(1), 6), Some(5));
        assert_eq!((world.ended(), world.all.len()), (vec![0], 5));
        world.clients[5].1 = None;
        assert_eq!(
            (world.all.len(), world.begin(user(1), 5)),
            (4, Some(6)),
            "a place that is free"
        );
    }

    #[test]
    fn a_newcomer_takes_the_place_of_a_source_that_has_more_at_once() {
        let mut world = World::default();
        for source in [1, 1, 1, 1, 2, 2, 2, 2] {
            world.begin(user(source), 5).expect("a place");
        }
        assert_eq!(world.begin(user(3), 5), Some(8));
        assert_eq!(world.begin(user(3), 5), Some(9));
        // Sources 1 and 2 have the most handshakes in turn, so each of them loses one.
        assert_eq!((world.ended().len(), world.all.len()), (2, MOST.all));
        let counts = [1, 2].map(|source| world.all.0.lock().count(user(source)));
        assert_eq!(counts, [3, 3]);
        assert_eq!(world.begin(user(3), 5), None, "as many as any other then: all have just begun");
        assert_eq!(world.begin(user(3), 6), Some(10));
    }

    #[test]
    fn networks_of_one_machine_are_one_source() {
        for (text, expected) in [
            ("192.0.2.1", "192.0.2.1"),
            ("::ffff:192.0.2.1", "192.0.2.1"),
            ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::"),
        ] {
            let address: IpAddr = text.parse().expect("an address");
            assert_eq!(network(address.to_canonical()), expected.parse::<IpAddr>().expect("one"));
        }
        let (socket, _other) = UnixStream::pair().expect("sockets");
        let own = Source::User(Some(rustix::process::getuid().as_raw()));
        assert_eq!((Source::local(&socket), Source::remote(&socket)), (own, Source::Network(None)));
    }
}
