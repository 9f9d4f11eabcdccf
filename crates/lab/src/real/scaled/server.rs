//! An engine and the NBD front end in this process, on a lane of their own, with one volume.

use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use forebay_device::Device;
use forebay_engine::Cache;
use forebay_engine::stats::CounterTotals;
use forebay_lane::LaneThread;
use forebay_nbd::ListenAddress;

use crate::bench::nbd::server::serve;
use crate::error::{LabResult, other};
use crate::process::{LOOK, Stop};
use crate::rig::{Plan, VOLUME};

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
    /// Errors: There is not enough memory, or the engine says no; `Interrupted`.
    pub(crate) fn start(
        plan: Plan,
        memory: Vec<Arc<dyn Device>>,
        socket: &Path,
        stop: &Stop,
    ) -> LabResult<Self> {
        let (tell, hear) = mpsc::channel();
        let thread = serve(plan, memory, ListenAddress::Unix(socket.to_owned()), move |served| {
            let task = rustix::thread::gettid().as_raw_nonzero().get();
            let _ = tell.send(served.map(|served| (served.cache, task)));
        })?;
        let (cache, task) = loop {
            stop.check()?;
            match hear.recv_timeout(LOOK) {
                Ok(served) => break served?,
                Err(mpsc::RecvTimeoutError::Timeout) => (),
                Err(mpsc::RecvTimeoutError::Disconnected) => {
                    return Err(other("the server has ended"));
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
