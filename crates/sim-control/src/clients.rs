//! Clients of volumes, connected as a front end that needs no sockets.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use forebay_core::{IoError, Op, Survives};
use forebay_device::IoBuf;
use forebay_device::ring::Ring;
use forebay_engine::{
    BlockService, Completion, CompletionSink, Exports, FrontEnd, HandedOver, LaneFrontEnd, Request,
};
use forebay_lane::{Lane, LaneRemote};
use forebay_threads::{SyncSender, sync_channel};
use parking_lot::Mutex;

/// Interval at which a drain checks whether requests are in flight.
const LOOK: Duration = Duration::from_millis(1);

thread_local! {
    /// The lane of this thread, as the clients use it.
    static HERE: RefCell<Option<Here>> = const { RefCell::new(None) };
}

#[derive(Clone)]
struct Here {
    exports: Rc<dyn Exports>,
    in_flight: Rc<Cell<usize>>,
    closed: Rc<Cell<bool>>,
}

/// The reason why a request was not answered with success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failed {
    /// The volume is not served: the request had no effect.
    NotServed,
    /// An I/O error.
    Error(IoError),
    /// No answer arrived: the daemon has ended.
    Cut,
}

/// The clients of a daemon.
#[derive(Default)]
pub(crate) struct Clients {
    lanes: Mutex<Vec<LaneRemote>>,
}

impl Clients {
    /// Sends a request, and waits for its end. `data` is the data of a write, or a buffer as long
    /// as the data to be read.
    pub(crate) fn ask(
        &self,
        volume: &str,
        (op, offset, len): (Op, u64, u64),
        data: Option<&[u8]>,
        survives: Survives,
    ) -> Result<Option<Vec<u8>>, Failed> {
        let lanes = self.lanes.lock().clone();
        let lane = lanes.get(offset as usize / 4096 % lanes.len().max(1)).ok_or(Failed::Cut)?;
        let (tell, hear) = sync_channel(1);
        let (volume, data) = (volume.to_owned(), data.map(IoBuf::copy_from));
        lane.run(move |_| {
            let Some(here) = HERE.with(|here| here.borrow().clone()) else { return };
            let service = here.exports.open(&volume).filter(|_| !here.closed.get());
            let Some(service) = service else {
                let _ = tell.send(Err(Failed::NotServed));
                return;
            };
            here.in_flight.set(here.in_flight.get() + 1);
            let request =
                Request { tag: 1, op, offset, len, survives, fast: false, no_hole: false, data };
            let sink: Rc<dyn CompletionSink> = Rc::new(Sink {
                tell,
                in_flight: here.in_flight.clone(),
                _service: service.clone(),
            });
            service.submit(request, &sink);
        });
        hear.recv().unwrap_or(Err(Failed::Cut))
    }
}

struct Sink {
    tell: SyncSender<Result<Option<Vec<u8>>, Failed>>,
    in_flight: Rc<Cell<usize>>,
    _service: Rc<dyn BlockService>,
}

impl CompletionSink for Sink {
    fn complete(&self, completion: Completion) {
        self.in_flight.set(self.in_flight.get() - 1);
        let data = completion.data.map(|data| data.to_vec());
        let _ = self.tell.send(completion.result.map(|()| data).map_err(Failed::Error));
    }
}

impl FrontEnd for Clients {
    fn serve(
        &self,
        lane: &Rc<Lane>,
        _: &Rc<Ring>,
        exports: Rc<dyn Exports>,
    ) -> Box<dyn LaneFrontEnd> {
        let here = Here { exports, in_flight: Rc::default(), closed: Rc::default() };
        HERE.with(|own| own.replace(Some(here.clone())));
        self.lanes.lock().push(lane.remote());
        Box::new(OnLane { lane: lane.clone(), here })
    }

    fn release(&self) {
        self.lanes.lock().clear();
    }
}

struct OnLane {
    lane: Rc<Lane>,
    here: Here,
}

impl OnLane {
    async fn end(self) {
        self.here.closed.set(true);
        let end = self.lane.now() + Duration::from_secs(5);
        while self.here.in_flight.get() > 0 && self.lane.now() < end {
            self.lane.sleep(LOOK).await;
        }
    }
}

impl Drop for OnLane {
    fn drop(&mut self) {
        let _ = HERE.try_with(|here| here.take());
    }
}

impl LaneFrontEnd for OnLane {
    fn dismiss(&self, _: &str) {}

    fn drain(self: Box<Self>) -> Pin<Box<dyn Future<Output = ()>>> {
        Box::pin(self.end())
    }

    fn hand_over(self: Box<Self>) -> Pin<Box<dyn Future<Output = Vec<HandedOver>>>> {
        Box::pin(async move {
            self.end().await;
            Vec::new()
        })
    }
}

/// Creates the clients of one daemon.
pub(crate) fn clients() -> Arc<Clients> {
    Arc::default()
}
