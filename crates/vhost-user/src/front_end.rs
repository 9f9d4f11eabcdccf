//! vhost-user as one of the daemon's front ends.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use forebay_core::{ExportSet, FrontEndKind, NbdReach};
use forebay_device::ring::{Ring, RingOp};
use forebay_engine::{Client, ExportError, Exports, FrontEnd, HandedOver, LaneFrontEnd, Settings};
use forebay_export::Board;
use forebay_export::errors::failed;
use forebay_lane::{Lane, MemoryBudget, either};
use parking_lot::Mutex;

use crate::control::Control;
use crate::export::SocketExport;
use crate::lane_queues::{LaneHandle, LaneQueues, Lanes};
use crate::session::Session;
use crate::wire::Wire;

/// Pause of an accept loop after an error, such as too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Interval at which a wait checks its condition.
const STEP: Duration = Duration::from_millis(5);
/// The lane that handles the rare control messages of all clients.
const CONTROLLING: usize = 0;

/// vhost-user-blk: a socket for each volume, with one client at a time.
pub struct VhostUserFrontEnd {
    /// Directory of sockets whose paths the operator has not chosen.
    dir: PathBuf,
    exports: Mutex<BTreeMap<String, Arc<SocketExport>>>,
    /// Sockets that are to be served.
    board: Arc<Board<Arc<SocketExport>>>,
    lanes: Arc<Lanes>,
    drain: Duration,
    memory: Arc<MemoryBudget>,
}

impl VhostUserFrontEnd {
    /// Starts without exports. Sockets are in `dir` unless an operator chooses other paths; clients
    /// take their memory from `memory`. `drain`: time limit for requests in progress when the
    /// daemon ends.
    pub fn new(dir: &Path, drain: Duration, memory: Arc<MemoryBudget>) -> Self {
        let (exports, board, lanes) = (Mutex::default(), Arc::default(), Arc::default());
        VhostUserFrontEnd { dir: dir.to_owned(), exports, board, lanes, drain, memory }
    }

    fn known(&self, volume: &str) -> Option<Arc<SocketExport>> {
        self.exports.lock().get(volume).cloned()
    }

    /// Returns where the socket of a volume is to be.
    ///
    /// # Errors
    /// The directory cannot be made.
    fn path(&self, volume: &str, set: &ExportSet) -> Result<PathBuf, ExportError> {
        if let Some(path) = set.socket() {
            return Ok(path.to_owned());
        }
        let made = std::fs::create_dir_all(&self.dir);
        made.map_err(|error| failed(self.dir.display(), error))?;
        Ok(self.dir.join(format!("{volume}.sock")))
    }
}

impl FrontEnd for VhostUserFrontEnd {
    fn kind(&self) -> Option<FrontEndKind> {
        Some(FrontEndKind::VhostUser)
    }

    fn describe(&self, volume: &str, _: NbdReach) -> Vec<String> {
        let export = self.known(volume).into_iter();
        export.map(|export| format!("vhost-user:{}", export.path().display())).collect()
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
        self.lanes.add(handle);
        let server = Rc::new(LaneServer {
            lane: lane.clone(),
            ring: ring.clone(),
            exports,
            lanes: self.lanes.clone(),
            queues,
            drain: self.drain,
            stopping: Cell::new(false),
            clients: Cell::new(0),
            served: RefCell::default(),
        });
        if self.board.join() == CONTROLLING {
            lane.spawn(take_sockets(server.clone(), self.board.clone()));
        }
        Box::new(VhostLane { server, board: self.board.clone() })
    }

    fn publish(&self, volume: &str, settings: &Settings) -> Result<(), ExportError> {
        let path = self.path(volume, &settings.export)?;
        if let Some(former) = self.known(volume) {
            if former.path() == path {
                return Ok(());
            }
            former.check_unused()?;
        }
        let export = SocketExport::begin(volume, &path)?;
        tracing::info!(volume, path = %path.display(), "exported to a virtual machine");
        self.board.post([(CONTROLLING, export.clone())]);
        if let Some(former) = self.exports.lock().insert(volume.to_owned(), export) {
            former.end();
        }
        Ok(())
    }

    fn withdraw(&self, volume: &str, force: bool) -> Result<(), ExportError> {
        let Some(export) = self.known(volume) else { return Ok(()) };
        if !force {
            export.check_unused()?;
        }
        export.end();
        self.exports.lock().remove(volume);
        Ok(())
    }

    fn holds(&self, volume: &str) -> bool {
        self.known(volume).is_some()
    }

    fn clients(&self, volume: &str) -> Vec<Client> {
        self.known(volume).and_then(|export| export.peer()).into_iter().collect()
    }

    fn restore_paths(&self) {
        let exports: Vec<_> = self.exports.lock().values().cloned().collect();
        exports.iter().for_each(|export| export.restore_path());
    }

    fn release(&self) {
        self.exports.lock().clear();
        // Fails unless the directory is empty.
        let _ = std::fs::remove_dir(&self.dir);
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
    /// Number of clients so far.
    clients: Cell<u64>,
    /// Sockets with accept loops.
    served: RefCell<Vec<Arc<SocketExport>>>,
}

struct VhostLane {
    server: Rc<LaneServer>,
    board: Arc<Board<Arc<SocketExport>>>,
}

impl LaneFrontEnd for VhostLane {
    fn dismiss(&self, volume: &str) {
        for export in self.server.served.borrow().iter().filter(|it| it.volume == volume) {
            if let Some(session) = export.client() {
                session.dismiss();
            }
        }
    }

    fn drain(self: Box<Self>) -> Pin<Box<dyn Future<Output = ()>>> {
        let VhostLane { server, board } = *self;
        Box::pin(async move {
            server.stopping.set(true);
            board.changed.notify_all();
            server.served.borrow().iter().for_each(|export| export.end());
            let end = server.lane.now() + server.drain;
            while !server.served.borrow().is_empty() || !server.queues.is_empty() {
                if server.lane.now() >= end {
                    tracing::warn!("requests of vhost-user clients are not answered in time");
                    return;
                }
                server.lane.sleep(STEP).await;
            }
        })
    }

    /// Hands nothing over: a driver reconnects by itself, and its record of requests in progress
    /// tells the next program where to continue.
    fn hand_over(self: Box<Self>) -> Pin<Box<dyn Future<Output = Vec<HandedOver>>>> {
        Box::pin(async move {
            self.drain().await;
            Vec::new()
        })
    }
}

/// Begins to serve sockets.
async fn take_sockets(server: Rc<LaneServer>, board: Arc<Board<Arc<SocketExport>>>) {
    loop {
        let changed = board.changed.listen();
        while let Some(export) = board.take(CONTROLLING) {
            server.served.borrow_mut().push(export.clone());
            server.lane.spawn(accept(Ending(server.clone(), export)));
        }
        if server.stopping.get() {
            return;
        }
        changed.await;
    }
}

/// Reports the end of an accept loop, also if it panics.
struct Ending(Rc<LaneServer>, Arc<SocketExport>);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.served.borrow_mut().retain(|export| !Arc::ptr_eq(export, &self.1));
    }
}

/// Serves one client after the other until the socket is closed.
async fn accept(ending: Ending) {
    let Ending(server, export) = &ending;
    while !server.stopping.get() {
        let socket = export.socket();
        let done = server.ring.run(RingOp::Accept { fd: socket.clone() }).await;
        match (done.result, done.accepted) {
            _ if server.stopping.get() || export.is_ended() => return,
            (Err(_), _) if !Arc::ptr_eq(&socket, &export.socket()) => {}
            (Ok(_), Some(socket)) => {
                let socket = Arc::new(socket);
                let session = export.admit(socket.clone());
                serve(server, Wire::new(socket, server.ring.clone()), session).await;
            }
            (result, _) => {
                if let Err(error) = result {
                    tracing::warn!(%error, path = %export.path().display(), "accepting a client failed");
                }
                server.lane.sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Serves a client until it leaves or is dismissed, and until its requests in progress are
/// answered.
async fn serve(server: &Rc<LaneServer>, wire: Wire, session: Arc<Session>) {
    let volume = session.volume.clone();
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
