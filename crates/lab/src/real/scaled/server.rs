//! An engine and the NBD front end in this process, on a lane of their own, with one volume.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use forebay_device::Device;
use forebay_engine::stats::CounterTotals;
use forebay_engine::{Cache, LaneContext};
use forebay_lane::{LaneId, LaneLoop, LaneOptions, LaneThread, MonotonicClock};
use forebay_nbd::{ConnectionCount, Limits, ListenAddress, Listener, Server as NbdServer};

use crate::bench::rig::{Plan, VOLUME, build, touch};
use crate::error::{LabError, LabResult, other};
use crate::interrupt::{Interrupt, STEP};

/// A server that runs until it is dropped.
pub(crate) struct Server {
    /// Dropping it stops the lane.
    #[expect(dead_code, reason = "held, not read")]
    thread: LaneThread,
    cache: Arc<Cache>,
    socket: PathBuf,
    task: i32,
}

/// What has been counted so far.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counted {
    pub(crate) totals: CounterTotals,
    /// CPU time of the lane.
    pub(crate) cpu: Duration,
}

impl Server {
    /// Makes a cache as planned and serves its volume. `memory` is written over first, so that the
    /// system has given it before any clock runs.
    ///
    /// # Errors
    /// There is not enough memory, or the engine says no; `Interrupted`.
    pub(crate) fn start(
        plan: Plan,
        memory: Vec<Arc<dyn Device>>,
        socket: &Path,
        interrupt: &Interrupt,
    ) -> LabResult<Self> {
        let address = ListenAddress::Unix(socket.to_owned());
        let (tell, hear) = mpsc::channel();
        let setup = move |lane: &LaneLoop| {
            // What is kept until the lane stops.
            let kept: Rc<RefCell<Option<NbdServer>>> = Rc::default();
            let (inner, lane_loop) = (kept.clone(), lane.clone());
            lane.lane().spawn(async move {
                let served = serve(&lane_loop, plan, memory, &address).await;
                let task = rustix::thread::gettid().as_raw_nonzero().get();
                let _ = tell.send(served.map(|(cache, server)| {
                    *inner.borrow_mut() = Some(server);
                    (cache, task)
                }));
            });
            kept
        };
        let clock = Arc::new(MonotonicClock::new());
        let thread = LaneThread::spawn("lane-0", LaneId(0), clock, LaneOptions::default(), setup)?;
        let (cache, task) = loop {
            interrupt.check()?;
            match hear.recv_timeout(STEP) {
                Ok(served) => break served?,
                Err(mpsc::RecvTimeoutError::Timeout) => (),
                Err(mpsc::RecvTimeoutError::Disconnected) => {
                    return Err(LabError::Other("the server has ended".to_owned()));
                }
            }
        };
        Ok(Server { thread, cache, socket: socket.to_owned(), task })
    }

    /// Where clients find the volume.
    pub(crate) fn uri(&self) -> String {
        format!("nbd+unix:///{VOLUME}?socket={}", self.socket.display())
    }

    /// What has been counted so far.
    pub(crate) fn counted(&self) -> LabResult<Counted> {
        let text = std::fs::read_to_string(format!("/proc/self/task/{}/schedstat", self.task))?;
        let nanos = text.split_whitespace().next().and_then(|word| word.parse().ok());
        let nanos = nanos.ok_or_else(|| other("this kernel does not tell the time of a thread"))?;
        let volume = self.cache.volume(VOLUME).ok_or_else(|| other("the volume is gone"))?;
        Ok(Counted { totals: volume.stats.totals(), cpu: Duration::from_nanos(nanos) })
    }
}

async fn serve(
    lane: &LaneLoop,
    plan: Plan,
    memory: Vec<Arc<dyn Device>>,
    address: &ListenAddress,
) -> LabResult<(Arc<Cache>, NbdServer)> {
    let driven = lane.clone();
    let context = LaneContext {
        lane: lane.lane().clone(),
        queues: Rc::new(lane.context()),
        register: Rc::new(move |queue| driven.register(queue)),
    };
    for device in &memory {
        touch(&context, device).await?;
    }
    let engine = build(context, plan).await?;
    let cache = engine.cache.clone();
    let listener = Listener::bind(address).map_err(|error| other(error.to_string()))?;
    let (limits, count) = (Limits::default(), ConnectionCount::default());
    let server = NbdServer::serve(lane.lane(), lane.ring(), &[listener], engine, limits, count);
    Ok((cache, server))
}
