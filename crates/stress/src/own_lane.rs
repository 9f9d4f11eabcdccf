//! A lane that the calling thread runs.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use forebay_core::Clock;
use forebay_device::QueueContext;
use forebay_engine::LaneContext;
use forebay_lane::{Lane, LaneId};

/// The name of the volume.
pub(crate) const VOLUME: &str = "data";
/// Against a hang.
pub(crate) const PATIENCE: Duration = Duration::from_secs(90);

/// A lane of this thread.
pub(crate) struct OwnLane {
    pub(crate) context: LaneContext,
}

impl OwnLane {
    pub(crate) fn new(number: u16, clock: Arc<dyn Clock>) -> Self {
        let lane = Lane::new(LaneId(number), clock.clone(), || ());
        let queues = Rc::new(QueueContext { clock, ring: None, tasks: None });
        OwnLane { context: LaneContext { lane, queues, register: Rc::new(|_| ()) } }
    }

    /// Runs a future to completion. Returns `None` if it does not complete in time.
    pub(crate) fn block_on<T: 'static>(
        &self,
        future: impl Future<Output = T> + 'static,
    ) -> Option<T> {
        let result = Rc::new(RefCell::new(None));
        let into = result.clone();
        self.context.lane.spawn(async move {
            let done = future.await;
            *into.borrow_mut() = Some(done);
        });
        let began = Instant::now();
        while began.elapsed() < PATIENCE {
            if let Some(done) = result.borrow_mut().take() {
                return Some(done);
            }
            if !self.context.lane.run_ready() {
                thread::yield_now();
            }
        }
        None
    }
}
