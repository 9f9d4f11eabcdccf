//! The exports that accept clients, and the clients that have them open, over all lanes.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;

use forebay_core::NbdReach;
use forebay_device::peer_process;
use forebay_engine::{BlockService, Client, Exports};
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, getpeername, sockopt};

/// The exports and their sessions.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sessions(Arc<Mutex<All>>);

#[derive(Debug, Default)]
struct All {
    /// The exports that accept clients, and the reach of each. `None`: every export accepts all
    /// clients.
    open: Option<BTreeMap<String, NbdReach>>,
    /// Sessions in the order in which they began: export and socket.
    sessions: BTreeMap<u64, (String, Arc<OwnedFd>)>,
    begun: u64,
}

impl All {
    /// Returns which clients an export accepts; `None`: none at all.
    fn reach(&self, export: &str) -> Option<NbdReach> {
        match &self.open {
            None => Some(NbdReach::All),
            Some(open) => open.get(export).copied(),
        }
    }

    fn takes(&self, export: &str, peer: Peer) -> bool {
        self.reach(export).is_some_and(|reach| peer.is_in(reach))
    }

    /// Returns the sockets of an export's clients, without connections of this process and those
    /// that have hung up or are being disconnected.
    fn clients(&self, export: &str) -> Vec<Arc<OwnedFd>> {
        let own = self.sessions.values().filter(|(opened, _)| opened == export);
        let sockets = own.map(|(_, socket)| socket);
        let counts = |socket: &&Arc<OwnedFd>| is_connected(socket) && Peer::of(socket) != Peer::Own;
        sockets.filter(counts).cloned().collect()
    }
}

impl Sessions {
    /// Starts without exports; an export accepts clients from [`Sessions::open`] on.
    pub(crate) fn closed() -> Self {
        Sessions(Arc::new(Mutex::new(All { open: Some(BTreeMap::new()), ..All::default() })))
    }

    /// Makes an export accept clients of this reach.
    pub(crate) fn open(&self, export: &str, reach: NbdReach) {
        if let Some(open) = &mut self.0.lock().open {
            open.insert(export.to_owned(), reach);
        }
    }

    /// Narrows the reach of an export that accepts clients, unless it has clients outside the new
    /// one.
    ///
    /// # Errors
    /// Returns the clients outside the new reach; nothing has changed then.
    pub(crate) fn narrow(&self, export: &str, next: NbdReach) -> Result<(), Vec<Client>> {
        let mut all = self.0.lock();
        let mut clients = all.clients(export);
        clients.retain(|socket| !Peer::of(socket).is_in(next));
        if !clients.is_empty() {
            return Err(clients.iter().map(client).collect());
        }
        if let Some(reach) = all.open.as_mut().and_then(|open| open.get_mut(export)) {
            *reach = narrower(*reach, next);
        }
        Ok(())
    }

    /// Makes an export accept no more clients, if it has none or with `force`. Existing clients
    /// stay connected.
    ///
    /// # Errors
    /// Returns the clients of the export; nothing has changed then.
    pub(crate) fn close(&self, export: &str, force: bool) -> Result<(), Vec<Client>> {
        let mut all = self.0.lock();
        let clients = if force { Vec::new() } else { all.clients(export) };
        if !clients.is_empty() {
            return Err(clients.iter().map(client).collect());
        }
        if let Some(open) = &mut all.open {
            open.remove(export);
        }
        Ok(())
    }

    /// Returns the clients of an export.
    pub(crate) fn clients(&self, export: &str) -> Vec<Client> {
        let sockets = self.0.lock().clients(export);
        sockets.iter().map(client).collect()
    }

    /// Counts a client, new or of the previous program, unless its export does not accept it.
    pub(crate) fn enter(&self, export: &str, socket: &Arc<OwnedFd>) -> Option<InSession> {
        let peer = Peer::of(socket);
        let mut all = self.0.lock();
        if !all.takes(export, peer) {
            return None;
        }
        all.begun += 1;
        let number = all.begun;
        all.sessions.insert(number, (export.to_owned(), socket.clone()));
        Some(InSession { all: self.clone(), number })
    }
}

fn narrower(one: NbdReach, other: NbdReach) -> NbdReach {
    match (one, other) {
        (NbdReach::Off, _) | (_, NbdReach::Off) => NbdReach::Off,
        (NbdReach::Local, _) | (_, NbdReach::Local) => NbdReach::Local,
        (NbdReach::All, NbdReach::All) => NbdReach::All,
    }
}

/// The other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Peer {
    /// This process: the front end that hands the connection to the kernel for a block device.
    Own,
    /// At a unix socket.
    Local,
    /// The client of a TCP address, even if it is on this machine.
    Remote,
}

impl Peer {
    /// Returns the peer of a connected socket.
    pub(crate) fn of(socket: impl AsFd) -> Self {
        Peer::from(client(socket))
    }

    /// Returns whether an export of this reach accepts the peer.
    fn is_in(self, reach: NbdReach) -> bool {
        match self {
            Peer::Own => true,
            Peer::Local => reach != NbdReach::Off,
            Peer::Remote => reach == NbdReach::All,
        }
    }
}

/// A client that has an export open, as long as this exists.
#[derive(Debug)]
pub(crate) struct InSession {
    all: Sessions,
    number: u64,
}

impl Drop for InSession {
    fn drop(&mut self) {
        self.all.0.lock().sessions.remove(&self.number);
    }
}

impl From<Client> for Peer {
    fn from(client: Client) -> Self {
        match client {
            Client::Local { pid: Some(pid) } if pid.get() == std::process::id() => Peer::Own,
            Client::Local { .. } => Peer::Local,
            Client::Remote { .. } => Peer::Remote,
        }
    }
}

/// The exports that accept a client.
pub(crate) struct Open {
    pub(crate) exports: Rc<dyn Exports>,
    pub(crate) sessions: Sessions,
    pub(crate) peer: Peer,
}

impl Exports for Open {
    fn names(&self) -> Vec<String> {
        let mut names = self.exports.names();
        let all = self.sessions.0.lock();
        names.retain(|name| all.takes(name, self.peer));
        names
    }

    fn open(&self, name: &str) -> Option<Rc<dyn BlockService>> {
        let takes = self.sessions.0.lock().takes(name, self.peer);
        if takes { self.exports.open(name) } else { None }
    }
}

/// Returns whether neither side has ended the connection.
fn is_connected(socket: &OwnedFd) -> bool {
    let mut asked = [PollFd::new(socket, PollFlags::RDHUP)];
    // A socket whose state is unknown counts as connected.
    let _ = poll(&mut asked, Some(&Timespec::default()));
    !asked[0].revents().intersects(PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR)
}

/// Returns the client at the other end of a socket.
fn client(socket: impl AsFd) -> Client {
    if sockopt::socket_domain(&socket) == Ok(AddressFamily::UNIX) {
        return Client::Local { pid: peer_process(&socket) };
    }
    let peer = getpeername(&socket).ok().flatten();
    Client::Remote { address: peer.and_then(|peer| SocketAddr::try_from(peer).ok()) }
}

#[cfg(test)]
mod tests {
    use std::net::{Shutdown, TcpListener, TcpStream};
    use std::num::NonZeroU32;
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::null::{ExportList, NullTarget};

    /// Returns both ends of a TCP connection. With a unix socket this process would be its own
    /// peer.
    fn connection() -> (TcpStream, Arc<OwnedFd>) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("it listens");
        let client = TcpStream::connect(address).expect("it listens");
        (client, Arc::new(listener.accept().expect("it has connected").0.into()))
    }

    #[test]
    fn an_export_with_clients_is_not_closed_without_force() {
        let sessions = Sessions::closed();
        let (client, socket) = connection();
        assert!(sessions.enter("a", &socket).is_none(), "nothing is open");
        sessions.open("a", NbdReach::All);
        let entered = sessions.enter("a", &socket).expect("it takes clients");
        let expected = [Client::Remote { address: client.local_addr().ok() }];
        assert_eq!(sessions.close("a", false), Err(expected.to_vec()));
        assert_eq!(sessions.clients("a"), expected);
        assert!(sessions.enter("a", &socket).is_some(), "a refusal changes nothing");

        sessions.open("b", NbdReach::All);
        assert_eq!((sessions.clients("b"), sessions.close("b", false)), (Vec::new(), Ok(())));
        assert!(sessions.enter("b", &socket).is_none());

        assert_eq!(sessions.close("a", true), Ok(()));
        assert!(sessions.enter("a", &socket).is_none());
        assert_eq!(sessions.clients("a"), expected, "it is disconnected with the volume");
        drop(entered);
        assert_eq!(sessions.clients("a"), []);
        assert!(sessions.0.lock().sessions.is_empty());
    }

    #[test]
    fn an_export_is_open_and_listed_only_to_clients_in_its_reach() {
        let local = |pid| Peer::from(Client::Local { pid: NonZeroU32::new(pid) });
        let own = local(std::process::id());
        let peers = [Peer::from(Client::Remote { address: None }), local(0), local(1), own];
        assert_eq!(peers, [Peer::Remote, Peer::Local, Peer::Local, Peer::Own]);
        let target: Rc<dyn BlockService> = Rc::new(NullTarget::new(1 << 20, false));
        let served = Rc::new(ExportList::new(vec![("a".to_owned(), target)]));
        for (reach, expected) in [
            (None, [false, false, false, false]),
            (Some(NbdReach::Off), [false, false, false, true]),
            (Some(NbdReach::Local), [false, true, true, true]),
            (Some(NbdReach::All), [true, true, true, true]),
        ] {
            let sessions = Sessions::closed();
            if let Some(reach) = reach {
                sessions.open("a", reach);
            }
            for (peer, expected) in peers.into_iter().zip(expected) {
                let open = Open { exports: served.clone(), sessions: sessions.clone(), peer };
                assert_eq!(open.names().len(), usize::from(expected), "{reach:?} {peer:?}");
                assert_eq!(open.open("a").is_some(), expected, "{reach:?} {peer:?}");
                assert!(open.open("b").is_none());
            }
            let (_client, remote) = connection();
            assert_eq!(sessions.enter("a", &remote).is_some(), expected[0]);
            let (_kernel, own) = UnixStream::pair().expect("sockets");
            assert_eq!(sessions.enter("a", &Arc::new(own.into())).is_some(), expected[3]);
        }
    }

    #[test]
    fn an_export_is_not_narrowed_while_it_has_clients_outside() {
        let sessions = Sessions::closed();
        let (client, socket) = connection();
        sessions.open("a", NbdReach::All);
        let entered = sessions.enter("a", &socket).expect("it takes clients");
        let (_kernel, own) = UnixStream::pair().expect("sockets");
        let _device = sessions.enter("a", &Arc::new(own.into())).expect("it takes clients");
        let expected = vec![Client::Remote { address: client.local_addr().ok() }];
        for next in [NbdReach::Local, NbdReach::Off] {
            assert_eq!(sessions.narrow("a", next), Err(expected.clone()));
            assert!(sessions.enter("a", &socket).is_some(), "a refusal changes nothing");
        }
        assert_eq!(sessions.narrow("a", NbdReach::All), Ok(()));
        drop(entered);
        let reaches = [NbdReach::Local, NbdReach::Off, NbdReach::All, NbdReach::Local];
        for (next, then) in reaches.into_iter().zip([1, 2, 2, 2]) {
            assert_eq!(sessions.narrow("a", next), Ok(()));
            assert_eq!(sessions.0.lock().reach("a"), Some(reaches[then - 1]));
        }
        assert_eq!(sessions.narrow("b", NbdReach::All), Ok(()));
        assert_eq!(sessions.0.lock().reach("b"), None, "one that is closed stays so");
    }

    #[test]
    fn closed_clients_and_the_kernels_client_do_not_count() {
        let sessions = Sessions::default();
        for (end, by) in
            [("client", Shutdown::Write), ("client", Shutdown::Both), ("own", Shutdown::Both)]
        {
            let (client, socket) = connection();
            let entered = sessions.enter("a", &socket).expect("all exports take clients");
            assert_eq!(sessions.clients("a").len(), 1);
            match end {
                "client" => client.shutdown(by).expect("connected"),
                _ => {
                    rustix::net::shutdown(&socket, rustix::net::Shutdown::Both).expect("connected")
                }
            }
            // The kernel notifies the other end a moment later.
            while !sessions.clients("a").is_empty() {
                std::thread::yield_now();
            }
            drop(entered);
        }
        let (_kernel, socket) = UnixStream::pair().expect("sockets");
        let _entered = sessions.enter("a", &Arc::new(socket.into()));
        assert_eq!((sessions.clients("a"), sessions.close("a", false)), (Vec::new(), Ok(())));
    }
}
