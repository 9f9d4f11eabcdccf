//! Which exports take clients, and which clients have them open, over all lanes.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;

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
    /// The exports that take clients; `None`: all do.
    open: Option<BTreeSet<String>>,
    /// In the order in which they began.
    sessions: BTreeMap<u64, (String, Arc<OwnedFd>)>,
    begun: u64,
}

impl All {
    fn takes(&self, export: &str) -> bool {
        self.open.as_ref().is_none_or(|open| open.contains(export))
    }

    fn add(&mut self, export: &str, socket: &Arc<OwnedFd>) -> u64 {
        self.begun += 1;
        self.sessions.insert(self.begun, (export.to_owned(), socket.clone()));
        self.begun
    }

    /// Returns the sockets of an export's clients, but for those of this process, which belong to devices of the kernel,
    /// and those that have hung up or are being disconnected.
    fn clients(&self, export: &str) -> Vec<Arc<OwnedFd>> {
        let own = self.sessions.values().filter(|(opened, _)| opened == export);
        let sockets = own.map(|(_, socket)| socket);
        sockets.filter(|socket| is_connected(socket) && !is_own(socket)).cloned().collect()
    }
}

impl Sessions {
    /// Starts with these exports; others take no clients until [`Sessions::open`].
    pub(crate) fn of(exports: &[String]) -> Self {
        let open = Some(exports.iter().cloned().collect());
        Sessions(Arc::new(Mutex::new(All { open, ..All::default() })))
    }

    /// Has an export take clients.
    pub(crate) fn open(&self, export: &str) {
        if let Some(open) = &mut self.0.lock().open {
            open.insert(export.to_owned());
        }
    }

    /// Has an export take no more clients, if it has none or with `force`; those that it has stay.
    ///
    /// # Errors
    /// The clients that it has; nothing has changed then.
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

    /// Counts a new client, unless its export takes no clients any more.
    pub(crate) fn enter(&self, export: &str, socket: &Arc<OwnedFd>) -> Option<InSession> {
        let mut all = self.0.lock();
        let number = all.takes(export).then(|| all.add(export, socket))?;
        Some(InSession { all: self.clone(), number })
    }

    /// Counts a client of the previous program.
    pub(crate) fn resume(&self, export: &str, socket: &Arc<OwnedFd>) -> InSession {
        let number = self.0.lock().add(export, socket);
        InSession { all: self.clone(), number }
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

/// The exports that take clients.
pub(crate) struct Open {
    pub(crate) exports: Rc<dyn Exports>,
    pub(crate) sessions: Sessions,
}

impl Exports for Open {
    fn names(&self) -> Vec<String> {
        let mut names = self.exports.names();
        let all = self.sessions.0.lock();
        names.retain(|name| all.takes(name));
        names
    }

    fn open(&self, name: &str) -> Option<Rc<dyn BlockService>> {
        let takes = self.sessions.0.lock().takes(name);
        if takes { self.exports.open(name) } else { None }
    }
}

/// Returns whether neither side has ended the connection.
fn is_connected(socket: &OwnedFd) -> bool {
    let mut asked = [PollFd::new(socket, PollFlags::RDHUP)];
    // What cannot be asked is taken for connected.
    let _ = poll(&mut asked, Some(&Timespec::default()));
    !asked[0].revents().intersects(PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR)
}

/// Returns whether the client is this process: the front end that hands the connection to the kernel.
fn is_own(socket: &OwnedFd) -> bool {
    matches!(client(socket), Client::Local { pid: Some(pid) } if pid.get() == std::process::id())
}

/// Returns who is at the other end.
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
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::null::{ExportList, NullTarget};

    /// Returns both ends of a connection by TCP: this process is at the other end of a unix socket.
    fn connection() -> (TcpStream, Arc<OwnedFd>) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("it listens");
        let client = TcpStream::connect(address).expect("it listens");
        (client, Arc::new(listener.accept().expect("it has connected").0.into()))
    }

    #[test]
    fn an_export_with_clients_is_not_closed_without_force() {
        let sessions = Sessions::of(&["a".to_owned(), "b".to_owned()]);
        let (client, socket) = connection();
        let entered = sessions.enter("a", &socket).expect("it takes clients");
        let expected = [Client::Remote { address: client.local_addr().ok() }];
        assert_eq!(sessions.close("a", false), Err(expected.to_vec()));
        assert_eq!(sessions.clients("a"), expected);
        assert!(sessions.enter("a", &socket).is_some(), "a refusal changes nothing");

        assert_eq!((sessions.clients("b"), sessions.close("b", false)), (Vec::new(), Ok(())));
        assert!(sessions.enter("b", &socket).is_none());
        sessions.open("b");
        assert!(sessions.enter("b", &socket).is_some());

        assert_eq!(sessions.close("a", true), Ok(()));
        assert!(sessions.enter("a", &socket).is_none());
        assert_eq!(sessions.clients("a"), expected, "it is disconnected with the volume");
        drop(entered);
        assert_eq!(sessions.clients("a"), []);
        assert!(sessions.0.lock().sessions.is_empty());
    }

    #[test]
    fn one_that_has_hung_up_or_is_the_kernels_client_does_not_count() {
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
            // The kernel tells the other end a moment later.
            while !sessions.clients("a").is_empty() {
                std::thread::yield_now();
            }
            drop(entered);
        }
        let (_kernel, socket) = UnixStream::pair().expect("sockets");
        let _entered = sessions.enter("a", &Arc::new(socket.into()));
        assert_eq!((sessions.clients("a"), sessions.close("a", false)), (Vec::new(), Ok(())));
    }

    #[test]
    fn only_exports_that_take_clients_are_listed_and_found() {
        let volume = || Rc::new(NullTarget::new(1 << 20, false)) as Rc<dyn BlockService>;
        let served = ["a", "b"].map(|name| (name.to_owned(), volume()));
        let exports = Rc::new(ExportList::new(served.to_vec()));
        let open = Open { exports, sessions: Sessions::of(&["c".to_owned()]) };
        assert_eq!((open.names(), open.open("b").is_none()), (Vec::new(), true));
        open.sessions.open("b");
        assert_eq!((open.names(), open.open("b").is_some()), (vec!["b".to_owned()], true));
        assert!(open.open("a").is_none() && open.open("c").is_none());
    }
}
