//! A lane without a thread and without a ring, which the test runs in virtual time.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use forebay_core::{ManualClock, Nanos};
use forebay_device::{Device, Queue, QueueContext};
use forebay_lane::{Lane, LaneId};

use crate::faults::Faults;
use crate::faulty::faulty;

/// Number of steps after which a test counts as hung.
const STEPS: usize = 1_000_000;

/// Step of the clock when no timer is set.
const IDLE: Duration = Duration::from_millis(1);

/// A lane, its clock, and methods that run futures on it.
pub struct LaneWorld {
    /// The virtual time. It advances when no task is ready, and when a test sets it.
    pub clock: Arc<ManualClock>,
    /// The lane.
    pub lane: Rc<Lane>,
    /// The context for opening queues.
    pub queues: Rc<QueueContext>,
    steps: usize,
    /// Faults of the devices made by [`LaneWorld::faulty`].
    faults: RefCell<Vec<Arc<Faults>>>,
}

impl LaneWorld {
    /// Creates a lane without tasks.
    pub fn new() -> Self {
        Self::with_steps(STEPS)
    }

    /// Creates a lane on which every run ends after at most `steps` steps.
    pub fn with_steps(steps: usize) -> Self {
        let clock = Arc::new(ManualClock::at(Nanos(1)));
        let lane = Lane::new(LaneId(0), clock.clone(), || ());
        let queues = Rc::new(QueueContext { clock: clock.clone(), ring: None, tasks: None });
        LaneWorld { clock, lane, queues, steps, faults: RefCell::default() }
    }

    /// Runs the lane until `done` returns a value. The clock advances when no task is ready.
    ///
    /// # Panics
    /// After too many steps. The message lists the pending operations.
    pub fn run<T>(&self, mut done: impl FnMut() -> Option<T>) -> T {
        for _ in 0..self.steps {
            if let Some(result) = done() {
                return result;
            }
            if !self.lane.run_ready() {
                let idle = || self.lane.now() + IDLE;
                self.clock.advance_to(self.lane.next_deadline().unwrap_or_else(idle));
            }
        }
        panic!("no end after {} steps: {}", self.steps, self.pending());
    }

    /// Runs `future` to completion.
    ///
    /// # Panics
    /// If `future` panics, or after too many steps.
    pub fn block_on<T: 'static>(&self, future: impl Future<Output = T> + 'static) -> T {
        let result = Rc::new(RefCell::new(None));
        let inner = result.clone();
        self.lane.spawn(async move {
            let output = future.await;
            *inner.borrow_mut() = Some(output);
        });
        self.run(|| {
            let output = result.borrow_mut().take();
            assert!(output.is_some() || Rc::strong_count(&result) > 1, "the future has panicked");
            output
        })
    }

    /// Runs the lane for `time`.
    pub fn advance(&self, time: Duration) {
        let end = self.lane.now() + time;
        self.run(|| (self.lane.now() >= end).then_some(()));
    }

    /// Opens a device on the lane.
    ///
    /// # Panics
    /// If the queue cannot be opened.
    pub fn queue(&self, device: &Arc<dyn Device>) -> Queue {
        device.open_queue(&self.queues).map(Queue::new).expect("a queue")
    }

    /// Wraps `inner`; see [`faulty`]. If a test hangs, its message lists the operations of this
    /// device that hang.
    pub fn faulty(&self, inner: Arc<dyn Device>) -> (Arc<dyn Device>, Arc<Faults>) {
        let (device, faults) = faulty(inner);
        self.faults.borrow_mut().push(faults.clone());
        (device, faults)
    }

    /// Describes the pending operations.
    fn pending(&self) -> String {
        let (now, tasks) = (self.lane.now(), self.lane.live_tasks());
        let timer = self.lane.next_deadline().map_or("none".to_owned(), |at| at.to_string());
        let hung: Vec<_> = self.faults.borrow().iter().flat_map(|faults| faults.hung()).collect();
        format!("{tasks} tasks wait at {now}, the next timer is {timer}, these hang: {hung:?}")
    }
}

impl Default for LaneWorld {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for LaneWorld {
    fn drop(&mut self) {
        // The tasks and the lane refer to each other. In a failing test they are leaked: a second
        // panic would abort the process.
        if !std::thread::panicking() {
            self.lane.abandon();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::ram;
    use crate::faults::OpKind;

    #[test]
    fn sleepers_wake_in_time_and_nobody_waits_for_it() {
        let world = LaneWorld::new();
        let (lane, before) = (world.lane.clone(), world.lane.now());
        world.block_on(async move { lane.sleep(Duration::from_secs(3600)).await });
        assert_eq!(world.lane.now() - before, Duration::from_secs(3600));
        world.advance(Duration::from_micros(10));
        assert!(world.lane.now() - before > Duration::from_secs(3600));
    }

    #[test]
    #[should_panic(expected = "hang: [\"write of 0..512\"]")]
    fn a_hang_says_what_waits() {
        let world = LaneWorld::with_steps(1000);
        let (device, faults) = world.faulty(ram(1));
        faults.hang(&[OpKind::Write]);
        let queue = world.queue(&device);
        let write = async move { queue.write(0, forebay_device::IoBuf::zeroed(512)).await };
        let _ = world.block_on(write);
    }

    #[test]
    #[should_panic(expected = "the future has panicked")]
    fn a_panic_is_no_hang() {
        LaneWorld::new().block_on(async { panic!("on purpose") });
    }
}
