//! vhost-user as one of the daemon's front ends.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, Weak};
use std::time::Duration;

use forebay_device::ring::{Ring, RingOp};
use forebay_engine::{Exports, FrontEnd, HandedOver, LaneFrontEnd};
use forebay_lane::{Lane, MemoryBudget, either};
use parking_lot::Mutex;

use crate::control::Control;
use crate::lane_queues::{LaneHandle, LaneQueues, Lanes};
use crate::listener::{ListenError, Listener};
use crate::session::Session;
use crate::wire::Wire;

/// Pause of an accept loop after an error, such as too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How often it is checked whether something has ended.
const STEP: Duration = Duration::from_millis(5);
/// How long a client waits for a volume that is not served yet, as after a restart of the daemon.
const VOLUME_PATIENCE: Duration = Duration::from_secs(10);

/// A volume and the socket at which it is served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Export {
    /// Name of the volume.
    pub volume: String,
    /// Path of the unix socket.
    pub path: PathBuf,
}

/// vhost-user-blk on any number of sockets, one volume and one client at a time on each.
pub struct VhostUserFrontEnd {
    exports: Vec<(Export, Mutex<Option<Arc<Listener>>>)>,
    lanes: Arc<Lanes>,
    drain: Duration,
    memory: Arc<MemoryBudget>,
}

impl VhostUserFrontEnd {
    /// Starts to listen. Clients wait until lanes serve them; what they need comes from `memory`.
    /// `drain`: time limit for requests in progress when the daemon ends.
    ///
    /// # Errors
    /// One of the sockets cannot be used; nothing has changed then.
    pub fn claim(
        exports: &[Export],
        drain: Duration,
        memory: Arc<MemoryBudget>,
    ) -> Result<Self, ListenError> {
        let listen = |export: &Export| {
            let listener = Arc::new(Listener::bind(&export.path)?);
            Ok((export.clone(), Mutex::new(Some(listener))))
        };
        let exports = exports.iter().map(listen).collect::<Result<_, _>>()?;
        Ok(VhostUserFrontEnd { exports, lanes: Arc::default(), drain, memory })
    }
}

impl FrontEnd for VhostUserFrontEnd {
    /// Returns nothing: a socket belongs to one volume, and is reported with it.
    fn addresses(&self) -> Vec<String> {
        Vec::new()
    }

    fn describe(&self, volume: &str) -> Vec<String> {
        let own = self.exports.iter().filter(|(export, _)| export.volume == volume);
        own.map(|(export, _)| format!("vhost-user:{}", export.path.display())).collect()
    }

    fn serve(
        &self,
        lane: &Rc<Lane>,
        ring: &Rc<Ring>,
        exports: Rc<dyn Exports>,
    ) -> Box<dyn LaneFrontEnd> {
        let handle = Arc::new(LaneHandle::default());
        let queues = LaneQueues::new(lane, ring, exports.clone(), self.memory.clone());
        lane.spawn(queues.clone().follow(handle.clone()));
        let first = self.lanes.add(handle);
        let server = Rc::new(LaneServer {
            lane: lane.clone(),
            ring: ring.clone(),
            exports,
            lanes: self.lanes.clone(),
            queues,
            drain: self.drain,
            stopping: Cell::new(false),
            accepting: Cell::new(0),
            clients: Cell::new(0),
            listeners: RefCell::default(),
            sessions: RefCell::default(),
        });
        // Control messages are rare: one lane follows those of all clients.
        if first {
            for (export, listener) in &self.exports {
                if let Some(listener) = &*listener.lock() {
                    server.listeners.borrow_mut().push(listener.clone());
                    server.accepting.set(server.accepting.get() + 1);
                    lane.spawn(accept(server.clone(), export.clone(), listener.clone()));
                }
            }
        }
        Box::new(VhostLane(server))
    }

    fn release(&self) {
        self.exports.iter().for_each(|(_, listener)| drop(listener.lock().take()));
    }
}

struct LaneServer {
    lane: Rc<Lane>,
    ring: Rc<Ring>,
    exports: Rc<dyn Exports>,
    lanes: Arc<Lanes>,
    queues: Rc<LaneQueues>,
    drain: Duration,
    stopping: Cell<bool>,
    /// Number of accept loops.
    accepting: Cell<usize>,
    /// Number of clients so far.
    clients: Cell<u64>,
    listeners: RefCell<Vec<Arc<Listener>>>,
    sessions: RefCell<Vec<Weak<Session>>>,
}

struct VhostLane(Rc<LaneServer>);

impl LaneFrontEnd for VhostLane {
    fn dismiss(&self, volume: &str) {
        for session in self.0.sessions.borrow().iter().filter_map(Weak::upgrade) {
            if session.volume == volume {
                session.dismiss();
            }
        }
    }

    fn drain(self: Box<Self>) -> Pin<Box<dyn Future<Output = ()>>> {
        let server = self.0;
        Box::pin(async move {
            server.stopping.set(true);
            server.listeners.take().iter().for_each(|listener| listener.close());
            for session in server.sessions.borrow().iter().filter_map(Weak::upgrade) {
                session.dismiss();
            }
            let end = server.lane.now() + server.drain;
            while server.accepting.get() > 0 || !server.queues.is_empty() {
                if server.lane.now() >= end {
                    tracing::warn!("requests of vhost-user clients are not answered in time");
                    return;
                }
                server.lane.sleep(STEP).await;
            }
        })
    }

    /// Hands nothing over: a driver connects again by itself, and its record of requests in flight tells
    /// the next program where to go on.
    fn hand_over(self: Box<Self>) -> Pin<Box<dyn Future<Output = Vec<HandedOver>>>> {
        Box::pin(async move {
            self.drain().await;
            Vec::new()
        })
    }
}

/// Counts an accept loop down, also when it panics.
struct Ending(Rc<LaneServer>);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.accepting.set(self.0.accepting.get() - 1);
    }
}

/// Serves one client after the other.
async fn accept(server: Rc<LaneServer>, export: Export, listener: Arc<Listener>) {
    let _ending = Ending(server.clone());
    while !server.stopping.get() {
        let done = server.ring.run(RingOp::Accept { fd: listener.fd().clone() }).await;
        match (done.result, done.accepted) {
            (Ok(_), Some(_)) if server.stopping.get() => return,
            (Ok(_), Some(socket)) => {
                let socket = Arc::new(socket);
                let session = Session::new(export.volume.clone(), socket.clone());
                {
                    let mut sessions = server.sessions.borrow_mut();
                    sessions.retain(|session| session.strong_count() > 0);
                    sessions.push(Arc::downgrade(&session));
                }
                let wire = Wire::new(socket, server.ring.clone());
                serve(&server, wire, session).await;
            }
            (result, _) => {
                if server.stopping.get() {
                    return;
                }
                if let Err(error) = result {
                    tracing::warn!(%error, path = %export.path.display(), "accepting a client failed");
                }
                server.lane.sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Serves a client until it leaves or is dismissed, and until its requests in progress are answered.
async fn serve(server: &Rc<LaneServer>, wire: Wire, session: Arc<Session>) {
    let volume = session.volume.clone();
    let end = server.lane.now() + VOLUME_PATIENCE;
    while server.exports.open(&volume).is_none() {
        if server.stopping.get() || server.lane.now() >= end {
            tracing::warn!(
                volume,
                "a client of vhost-user is turned away: the volume is not served"
            );
            return;
        }
        server.lane.sleep(STEP).await;
    }
    let number = server.clients.get();
    server.clients.set(number + 1);
    tracing::debug!(volume, number, "a client of vhost-user starts");
    let (exports, lanes) = (server.exports.clone(), server.lanes.clone());
    let mut control = Control::new(number, wire, session.clone(), exports, lanes);
    let mut ended = Ok(());
    either(async { ended = control.follow().await }, session.dismissed()).await;
    if let Err(error) = ended {
        tracing::warn!(volume, "a client of vhost-user is dropped: {error}");
    }
    control.stop().await;
    tracing::debug!(volume, number, "a client of vhost-user has ended");
}
