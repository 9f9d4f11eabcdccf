//! The NBD server of a lane: accepts and dismisses clients.

mod agree;

use std::cell::{Cell, RefCell};
use std::fmt::Display;
use std::future::Future;
use std::os::fd::OwnedFd;
use std::pin::{Pin, pin};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use forebay_core::Nanos;
use forebay_device::ring::{Ring, RingDone, RingOp};
use forebay_engine::{Exports, HandedOver};
use forebay_lane::{Lane, LaneMemory, Notify, Signal, either};

use crate::address::ListenAddress;
use crate::connection::Connection;
use crate::hand_over::{self, Inherited, LeftClient};
use crate::handshake::{OPTION_DATA_MAX, Start};
use crate::inbox::{self, Inbox};
use crate::limits::{ConnectionCount, Handshaking, Limits, Place};
use crate::listener::{Listener, is_remote, socket_buffers};
use crate::outbox;
use crate::receive::{Ended, receive_requests};
use crate::send::send_replies;
use crate::sessions::{InSession, Open, Peer};
use crate::transmission::Session;
use crate::wire::records;
use crate::wire::socket::Socket;

/// Pause of an accept loop after an error, such as too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Time limit for clients to end their handshakes before a hand-over.
const HANDSHAKE_GRACE: Duration = Duration::from_millis(300);
/// Minimum interval between two log messages of a lane about refused clients.
const REFUSALS_LOGGED_EVERY: Duration = Duration::from_secs(10);

/// Returns the memory of a client in its handshake: a small receive buffer, the handshake's own,
/// its tasks' state, and the kernel's socket buffers.
fn handshake_bytes(socket_buffer: usize, tls: bool) -> u64 {
    const TASKS: usize = 16 << 10;
    let own = inbox::SMALL + OPTION_DATA_MAX + TASKS;
    (own + socket_buffer + if tls { records::BYTES } else { 0 }) as u64
}

/// Returns the least memory of a client with an export open: as in the handshake, and two small
/// batches.
fn connection_bytes(socket_buffer: usize, tls: bool) -> u64 {
    handshake_bytes(socket_buffer, tls) + 2 * outbox::SMALL as u64
}

/// A client, from its acceptance to the end of its connection.
struct Client {
    socket: Rc<Socket>,
    phase: RefCell<ClientPhase>,
}

/// Phase of a client.
enum ClientPhase {
    /// The client has not chosen an export.
    Handshake,
    /// The client holds this export; the last replies of the handshake are being sent.
    Agreed(String),
    /// The client uses this export.
    Session(String, Rc<Connection>),
    /// The client is leaving.
    Over,
}

impl Client {
    /// Dismisses the client after its requests in flight are answered.
    fn dismiss(&self) {
        match &*self.phase.borrow() {
            ClientPhase::Session(_, connection) => {
                connection.drain();
                self.socket.stop_receiving();
            }
            ClientPhase::Handshake | ClientPhase::Agreed(_) | ClientPhase::Over => {
                self.socket.close()
            }
        }
    }

    /// Hands the client's connection over if it has an export open. A TLS connection is closed
    /// instead, because its state cannot be handed over.
    fn hand_over(&self) {
        match &*self.phase.borrow() {
            ClientPhase::Session(_, connection) if !self.socket.is_encrypted() => {
                connection.hand_over()
            }
            ClientPhase::Session(_, connection) => {
                connection.drain();
                self.socket.stop_receiving();
            }
            ClientPhase::Handshake | ClientPhase::Agreed(_) | ClientPhase::Over => {}
        }
    }

    fn in_handshake(&self) -> bool {
        matches!(&*self.phase.borrow(), ClientPhase::Handshake)
    }

    fn holds(&self, export: &str) -> bool {
        match &*self.phase.borrow() {
            ClientPhase::Agreed(name) | ClientPhase::Session(name, _) => name == export,
            ClientPhase::Handshake | ClientPhase::Over => false,
        }
    }
}

/// Calls a function on drop, also when a task panics.
struct AtEnd<F: FnMut()>(F);

impl<F: FnMut()> Drop for AtEnd<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// Refused clients of a lane, for the log.
#[derive(Default)]
struct Refusals {
    logged: Cell<Option<Nanos>>,
    unlogged: Cell<u64>,
}

impl Refusals {
    fn add(&self, address: &ListenAddress, reason: &dyn Display, now: Nanos) {
        if self.logged.get().is_some_and(|then| now.since(then) < REFUSALS_LOGGED_EVERY) {
            return self.unlogged.set(self.unlogged.get() + 1);
        }
        self.logged.set(Some(now));
        let others = self.unlogged.take();
        tracing::warn!(%address, others, "a client is turned away: {reason}");
    }
}

struct ServerState {
    lane: Rc<Lane>,
    ring: Rc<Ring>,
    /// All served exports; a client sees those that [`ServerState::open_to`] returns.
    exports: Rc<dyn Exports>,
    limits: Limits,
    count: ConnectionCount,
    memory: Rc<LaneMemory>,
    stopping: Cell<bool>,
    handing_over: Cell<bool>,
    /// Tells the accepting tasks that the server is handing over.
    leaving: Notify,
    /// Clients for the next program.
    left: RefCell<Vec<HandedOver>>,
    accepting: Cell<usize>,
    clients: RefCell<Vec<Weak<Client>>>,
    live: Cell<usize>,
    ended: Signal,
    refusals: Refusals,
}

/// The NBD server of one lane.
pub struct Server {
    shared: Rc<ServerState>,
    listeners: Vec<Arc<Listener>>,
}

impl Server {
    /// Accepts clients from `listeners` on this lane. All lanes may share the same listeners;
    /// servers that share the limit of connections share `count`.
    pub fn serve(
        lane: &Rc<Lane>,
        ring: &Rc<Ring>,
        listeners: &[Arc<Listener>],
        exports: Rc<dyn Exports>,
        limits: Limits,
        count: ConnectionCount,
    ) -> Self {
        Self::serve_on(lane, ring, listeners, exports, limits, count, &Arc::default())
    }

    /// Serves as [`Server::serve`] does, and takes over the clients of the previous program.
    pub(crate) fn serve_on(
        lane: &Rc<Lane>,
        ring: &Rc<Ring>,
        listeners: &[Arc<Listener>],
        exports: Rc<dyn Exports>,
        limits: Limits,
        count: ConnectionCount,
        inherited: &Arc<Inherited>,
    ) -> Self {
        let shared = Rc::new(ServerState {
            lane: lane.clone(),
            ring: ring.clone(),
            exports,
            limits: Limits { requests: limits.requests.max(1), ..limits },
            memory: Rc::new(LaneMemory::new(count.memory().clone())),
            count,
            stopping: Cell::new(false),
            handing_over: Cell::new(false),
            leaving: Notify::default(),
            left: RefCell::default(),
            accepting: Cell::new(listeners.len()),
            clients: RefCell::default(),
            live: Cell::new(0),
            ended: Signal::default(),
            refusals: Refusals::default(),
        });
        for listener in listeners {
            lane.spawn(accept_clients(shared.clone(), listener.clone(), inherited.clone()));
        }
        lane.spawn(resume_clients(shared.clone(), inherited.clone()));
        lane.spawn(drop_stalled(Rc::downgrade(&shared)));
        Server { shared, listeners: listeners.to_vec() }
    }

    /// Returns the number of clients of this lane, in any phase.
    pub fn clients(&self) -> usize {
        self.shared.live.get()
    }

    /// Dismisses the clients of one export after their requests in flight are answered.
    pub fn dismiss(&self, export: &str) {
        for client in self.shared.clients.borrow().iter().filter_map(Weak::upgrade) {
            if client.holds(export) {
                client.dismiss();
            }
        }
    }

    /// Closes the listeners (for every lane that shares them), answers requests in flight, and
    /// returns when the last client is gone, after [`Limits::drain`] at the latest.
    pub async fn stop(self) {
        self.shared.stopping.set(true);
        for listener in &self.listeners {
            listener.close();
        }
        for client in self.shared.clients.borrow().iter().filter_map(Weak::upgrade) {
            client.dismiss();
        }
        while self.shared.live.get() + self.shared.accepting.get() > 0 {
            self.shared.ended.wait().await;
        }
    }
}

impl Server {
    /// Stops accepting, executes what has been received, and returns the clients, connected, for
    /// the next program. Ends when the last one is idle, after [`Limits::drain`] at the latest.
    pub(crate) async fn leave(self) -> Vec<HandedOver> {
        let shared = self.shared;
        shared.handing_over.set(true);
        shared.leaving.notify_all();
        let clients = || {
            let clients: Vec<_> =
                shared.clients.borrow().iter().filter_map(Weak::upgrade).collect();
            clients
        };
        clients().iter().for_each(|client| client.hand_over());
        let all_left = async || {
            while shared.live.get() + shared.accepting.get() > 0 {
                shared.ended.wait().await;
            }
        };
        either(all_left(), shared.lane.sleep(HANDSHAKE_GRACE)).await;
        clients().iter().filter(|client| client.in_handshake()).for_each(|it| it.dismiss());
        either(all_left(), shared.lane.sleep(shared.limits.drain)).await;
        shared.stopping.set(true);
        clients().iter().for_each(|client| client.dismiss());
        let mut left = shared.left.take();
        left.push(hand_over::exports(shared.open_to(Peer::Own).names()));
        left
    }
}

/// Waits for a client. A hand-over ends the wait; clients that have not been accepted are left to
/// the next program.
async fn accept(shared: &ServerState, fd: Arc<OwnedFd>) -> RingDone {
    let mut leaving = pin!(shared.leaving.listen());
    let mut accepting = shared.ring.begin(RingOp::Accept { fd });
    let mut cancelled = false;
    std::future::poll_fn(|context| {
        if !cancelled && (shared.handing_over.get() || leaving.as_mut().poll(context).is_ready()) {
            cancelled = true;
            accepting.cancel();
        }
        Pin::new(&mut accepting).poll(context)
    })
    .await
}

async fn accept_clients(
    shared: Rc<ServerState>,
    listener: Arc<Listener>,
    inherited: Arc<Inherited>,
) {
    let _end = AtEnd(|| {
        shared.accepting.set(shared.accepting.get() - 1);
        shared.ended.raise();
    });
    // A server that stops meanwhile does not wait for volumes.
    let ends = || shared.stopping.get() || shared.handing_over.get();
    let open = shared.open_to(Peer::Own);
    inherited.exports_are_back(&shared.lane, &open, ends).await;
    while !shared.stopping.get() && !shared.handing_over.get() {
        let socket = listener.fd();
        let done = accept(&shared, socket.clone()).await;
        let fd = match (done.result, done.accepted) {
            // A client that is accepted during a stop would never be dismissed.
            (Ok(_), Some(_)) if shared.stopping.get() => break,
            (Ok(_), Some(fd)) => fd,
            (result, _) => {
                if shared.stopping.get() || shared.handing_over.get() {
                    break;
                }
                if !Arc::ptr_eq(&socket, &listener.fd()) {
                    continue;
                }
                if let Err(error) = result {
                    // Another lane has closed the listener.
                    if error.kind() == std::io::ErrorKind::InvalidInput {
                        break;
                    }
                    tracing::warn!(%error, address = %listener.address(), "accepting a client failed");
                }
                shared.lane.sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        if let Err(reason) = listener.admit(&fd) {
            shared.refusals.add(listener.address(), &reason, shared.lane.now());
            continue;
        }
        let bytes = handshake_bytes(listener.adopt(&fd), listener.tls().is_some());
        let (source, now) = (listener.source(&fd), shared.lane.now());
        let client = shared.add(fd, ClientPhase::Handshake);
        let socket = client.socket.descriptor();
        match shared.count.begin(&shared.limits, source, socket, bytes, now) {
            Ok(place) => {
                let served = serve_client(shared.clone(), client, place, listener.clone());
                shared.lane.spawn(served);
            }
            Err(full) => {
                shared.refusals.add(listener.address(), &full, now);
                shared.end(&client);
            }
        }
    }
}

impl ServerState {
    /// Returns the exports that accept a client.
    fn open_to(&self, peer: Peer) -> Open {
        Open { exports: self.exports.clone(), sessions: self.count.sessions().clone(), peer }
    }

    /// Leaves a client to the next program.
    fn leave(&self, socket: &Socket, export: String, session: Session, inbox: &Inbox) {
        match socket.duplicate() {
            Ok(descriptor) => {
                let received = inbox.unused().to_vec();
                let (identity, present) = (None, None);
                let left = LeftClient { descriptor, export, identity, session, received, present };
                self.left.borrow_mut().push(hand_over::client(left));
            }
            Err(error) => tracing::error!(export, %error, "a client cannot be handed over"),
        }
    }

    fn add(self: &Rc<Self>, fd: std::os::fd::OwnedFd, phase: ClientPhase) -> Rc<Client> {
        let socket = Rc::new(Socket::new(fd, self.ring.clone()));
        let client = Rc::new(Client { socket, phase: RefCell::new(phase) });
        let mut clients = self.clients.borrow_mut();
        clients.retain(|client| client.strong_count() > 0);
        clients.push(Rc::downgrade(&client));
        self.live.set(self.live.get() + 1);
        client
    }

    /// Removes a client that has ended.
    fn end(&self, client: &Client) {
        client.socket.close();
        if let ClientPhase::Session(_, connection) = client.phase.replace(ClientPhase::Over) {
            connection.kill();
        }
        self.live.set(self.live.get() - 1);
        self.ended.raise();
    }
}

/// Takes over the previous program's clients whose volumes are served, about as many as any other
/// lane.
async fn resume_clients(shared: Rc<ServerState>, inherited: Arc<Inherited>) {
    let ends = || shared.stopping.get() || shared.handing_over.get();
    // An export that accepts any clients accepts connections of this process, so this is the widest
    // set.
    let open = shared.open_to(Peer::Own);
    let next = async || inherited.next(&shared.lane, &open, ends).await;
    while let Some((client, target)) = next().await {
        let LeftClient { descriptor, export, identity: _, session, received, present } = client;
        let (remote, buffers) = (is_remote(&descriptor), socket_buffers(&descriptor));
        let bytes = connection_bytes(buffers, false);
        let place = match shared.count.take(&shared.limits, remote, bytes) {
            Ok(place) => place,
            Err(full) => {
                tracing::warn!(export, "a client of the previous program is dropped: {full}");
                continue;
            }
        };
        let client = shared.add(descriptor, ClientPhase::Agreed(export.clone()));
        let entered = shared.count.sessions().enter(&export, client.socket.descriptor());
        let Some(entered) = entered else {
            tracing::error!(
                export,
                "a client is disconnected: its volume takes it no more; see the setting nbd"
            );
            shared.end(&client);
            continue;
        };
        let (shared, start) = (shared.clone(), Start { export, target, session });
        shared.lane.clone().spawn(async move {
            let _end = AtEnd(|| shared.end(&client));
            let _present = present;
            if let Some(inbox) = Inbox::resume(&received) {
                transmit(&shared, &client, start, entered, inbox, place).await;
            }
        });
    }
}

/// Drops clients whose requests hold memory that others wait for, if they neither take their
/// replies nor finish sending a request.
async fn drop_stalled(shared: Weak<ServerState>) {
    loop {
        let Some((lane, pause)) =
            shared.upgrade().map(|shared| (shared.lane.clone(), shared.limits.stall / 5))
        else {
            return;
        };
        lane.sleep(pause).await;
        let Some(shared) = shared.upgrade().filter(|shared| !shared.stopping.get()) else { return };
        if !shared.memory.budget().has_waiters() {
            continue;
        }
        shared.memory.return_spare(0);
        let Some(then) = lane.now().0.checked_sub(shared.limits.stall.as_nanos() as u64) else {
            continue;
        };
        let clients: Vec<_> = shared.clients.borrow().iter().filter_map(Weak::upgrade).collect();
        for client in clients {
            if let ClientPhase::Session(export, connection) = &*client.phase.borrow()
                && connection.is_stalled_since(Nanos(then))
            {
                tracing::warn!(
                    export,
                    "a client is dropped: others wait for the memory of its requests, and it does not take its replies"
                );
                client.socket.keep(false);
                connection.kill();
            }
        }
    }
}

/// Serves a client that has just connected, until it leaves.
async fn serve_client(
    shared: Rc<ServerState>,
    client: Rc<Client>,
    place: Handshaking,
    listener: Arc<Listener>,
) {
    let _end = AtEnd(|| shared.end(&client));
    let mut inbox = Inbox::new();
    let agreed = {
        let agree = agree::agree(&client, &shared, &mut inbox, &listener);
        let late = || {
            tracing::debug!("a client is dropped: its handshake takes too long");
            client.socket.close();
        };
        with_deadline(&shared.lane, shared.limits.handshake, agree, late).await
    };
    drop(place);
    if let Some((start, entered, place)) = agreed
        && !shared.stopping.get()
    {
        transmit(&shared, &client, start, entered, inbox, place).await;
    }
}

async fn transmit(
    shared: &Rc<ServerState>,
    client: &Rc<Client>,
    start: Start,
    _entered: InSession,
    mut inbox: Inbox,
    mut place: Place,
) {
    let Start { export, target, session } = start;
    tracing::debug!(export, ?session, "a client starts");
    place.present = session.device.map(|device| shared.count.outliving().enter(device.mark));
    let connection = {
        let lane = (shared.lane.clone(), shared.memory.clone());
        let finder = shared.count.finder().clone();
        Connection::new(client.socket.clone(), session, target, shared.limits, lane, finder, place)
    };
    if inbox.is_large() {
        connection.grow();
    }
    client.phase.replace(ClientPhase::Session(export.clone(), connection.clone()));
    if shared.handing_over.get() {
        client.hand_over();
    }
    let sent = Rc::new(Signal::default());
    {
        let (connection, sent) = (connection.clone(), sent.clone());
        shared.lane.spawn(async move {
            let _end = AtEnd(|| {
                connection.kill();
                sent.raise();
            });
            send_replies(&connection).await;
        });
    }
    let received = receive_requests(&connection, &mut inbox).await;
    let left = matches!(received, Ok(Ended::BetweenRequests));
    match received {
        Ok(_) => {
            client.socket.keep(left);
            connection.drain();
        }
        Err(error) => {
            tracing::debug!(%error, "a client is dropped");
            connection.kill();
        }
    }
    let late = || {
        tracing::debug!(
            "a client is dropped: it does not take its replies, or a device does not answer"
        );
        client.socket.keep(false);
        connection.kill();
    };
    with_deadline(&shared.lane, shared.limits.drain, sent.wait(), late).await;
    client.phase.replace(ClientPhase::Over);
    if left && connection.is_idle() && client.socket.is_kept() {
        shared.leave(&client.socket, export, session, &inbox);
    }
}

/// Runs `future` to its end. If that takes longer than `limit`, calls `late`, which must make the
/// future end soon.
async fn with_deadline<F: Future>(
    lane: &Rc<Lane>,
    limit: Duration,
    future: F,
    late: impl FnOnce(),
) -> F::Output {
    let mut future = pin!(future);
    let mut sleep = pin!(lane.sleep(limit));
    let mut late = Some(late);
    std::future::poll_fn(|context| {
        if let Poll::Ready(output) = future.as_mut().poll(context) {
            return Poll::Ready(output);
        }
        if late.is_some()
            && sleep.as_mut().poll(context).is_ready()
            && let Some(late) = late.take()
        {
            late();
            return future.as_mut().poll(context);
        }
        Poll::Pending
    })
    .await
}
