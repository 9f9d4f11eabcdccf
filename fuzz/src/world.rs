//! One lane without a thread and without a ring, driven by hand in virtual time.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use forebay_core::{Clock, Nanos};
use forebay_device::{Device, Queue, QueueContext};
use forebay_engine::LaneContext;
use forebay_lane::{Lane, LaneId};
use parking_lot::Mutex;

struct Manual(Mutex<u64>);

impl Clock for Manual {
    fn now(&self) -> Nanos {
        Nanos(*self.0.lock())
    }
}

/// A lane and its clock.
pub(crate) struct World {
    clock: Arc<Manual>,
    /// The lane.
    pub(crate) lane: Rc<Lane>,
    /// What opens devices on it.
    pub(crate) context: LaneContext,
}

impl World {
    /// A lane on which nothing runs.
    pub(crate) fn new() -> Self {
        let clock = Arc::new(Manual(Mutex::new(1)));
        let lane = Lane::new(LaneId(0), clock.clone(), || ());
        let queues = Rc::new(QueueContext { clock: clock.clone(), ring: None });
        let context = LaneContext { lane: lane.clone(), queues, register: Rc::new(|_: &Queue| ()) };
        World { clock, lane, context }
    }

    /// A queue to `device`.
    pub(crate) fn queue(&self, device: &Arc<dyn Device>) -> Queue {
        self.context.open(device).expect("memory has no limits of queues")
    }

    /// Runs until `done` gives something. Time goes on when nothing else is to be done.
    ///
    /// # Panics
    /// After `rounds` rounds.
    pub(crate) fn run<T>(&self, rounds: usize, mut done: impl FnMut() -> Option<T>) -> T {
        for _ in 0..rounds {
            if let Some(result) = done() {
                return result;
            }
            if !self.lane.run_ready() {
                let mut now = self.clock.0.lock();
                *now = self.lane.next_deadline().map_or(*now + 1_000_000, |at| at.0.max(*now));
            }
        }
        panic!("no end after {rounds} rounds");
    }

    /// Runs `future` to its end.
    ///
    /// # Panics
    /// After `rounds` rounds.
    pub(crate) fn block_on<T: 'static>(
        &self,
        rounds: usize,
        future: impl Future<Output = T> + 'static,
    ) -> T {
        let result = Rc::new(RefCell::new(None));
        let inner = result.clone();
        self.lane.spawn(async move {
            let output = future.await;
            *inner.borrow_mut() = Some(output);
        });
        self.run(rounds, || result.borrow_mut().take())
    }
}

impl Default for World {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // Tasks hold the lane and the lane holds the tasks.
        self.lane.abandon();
    }
}
