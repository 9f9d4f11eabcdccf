//! The lanes that recover a cache together.
//!
//! One lane opens a cache. Most of the time before requests can be served goes into reading the
//! first pages of all segments and the headers of the log, and other lanes take part in that. Each
//! lane has its own queue to the device and its own result, and takes as much of the work as it can
//! do: recovery does not wait for a lane that cannot take part, or that is busy until the others
//! are done.

use std::fmt::{self, Debug, Formatter};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use forebay_device::{Device, Queue, QueueContext};
use forebay_lane::{Lane, LaneRemote, Notify};
use parking_lot::Mutex;

use crate::error::StoreError;

/// Opens a device for a lane; called on that lane.
type Open = dyn Fn(&Rc<Lane>, &Arc<dyn Device>) -> Option<Queue> + Send + Sync;

/// Another lane, which takes part in a recovery.
#[derive(Clone)]
pub struct Helper {
    remote: LaneRemote,
    open: Arc<Open>,
}

impl Debug for Helper {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Helper").finish_non_exhaustive()
    }
}

impl Helper {
    /// Creates a helper of a lane and a function that opens devices there. If the cache device
    /// cannot be opened there, the other lanes do all of the work.
    pub fn new(
        remote: LaneRemote,
        open: impl Fn(&Rc<Lane>, &Arc<dyn Device>) -> Option<Queue> + Send + Sync + 'static,
    ) -> Self {
        Helper { remote, open: Arc::new(open) }
    }

    /// Makes a helper of a lane that opens devices which need no ring.
    pub fn without_ring(remote: LaneRemote) -> Self {
        Self::new(remote, |lane, device| {
            let context = QueueContext { clock: lane.clock().clone(), ring: None, tasks: None };
            device.open_queue(&context).ok().map(Queue::new)
        })
    }
}

/// Maximum number of helping lanes: more would wait for the device or for the machine's memory.
const MOST_HELPERS: usize = 7;

/// The lane that opens a cache, and those that help it.
pub(crate) struct Team {
    lane: Rc<Lane>,
    queue: Queue,
    device: Arc<dyn Device>,
    helpers: Vec<Helper>,
}

impl Team {
    pub(crate) fn new(
        lane: &Rc<Lane>,
        queue: &Queue,
        device: &Arc<dyn Device>,
        helpers: Vec<Helper>,
    ) -> Self {
        Team { lane: lane.clone(), queue: queue.clone(), device: device.clone(), helpers }
    }

    /// Returns the lane that opens the cache.
    pub(crate) fn lane(&self) -> &Rc<Lane> {
        &self.lane
    }

    /// Returns the queue of the lane that opens the cache.
    pub(crate) fn queue(&self) -> &Queue {
        &self.queue
    }

    /// Returns the logical block of the cache device, in bytes.
    pub(crate) fn logical_block(&self) -> usize {
        self.device.logical_block() as usize
    }

    /// Returns the highest number of lanes that may take part.
    pub(crate) fn lanes(&self) -> usize {
        1 + self.helpers.len().min(MOST_HELPERS)
    }

    /// Runs `part` on every lane at once, and returns the results of the lanes that had begun
    /// before the opening lane was done.
    ///
    /// # Panics
    /// `part` panicked on a lane, or a lane ended. Without an error its share of the work would
    /// count as done.
    pub(crate) async fn run<T, F>(
        &self,
        part: impl Fn(Rc<Lane>, Queue) -> F + Clone + Send + 'static,
    ) -> Vec<T>
    where
        T: Send + 'static,
        F: Future<Output = T> + 'static,
    {
        let helped = Arc::new(Helped::default());
        for Helper { remote, open } in self.helpers.iter().take(MOST_HELPERS) {
            let (helped, part) = (helped.clone(), part.clone());
            let (open, device) = (open.clone(), self.device.clone());
            let meter = self.queue.meter().cloned();
            remote.run(move |lane| {
                let Some(share) = Share::begin(&helped) else { return };
                let Some(mut queue) = open(lane, &device) else { return share.leave() };
                if let Some(meter) = meter {
                    queue = queue.metered(meter, usize::from(lane.id().0), lane.clock().clone());
                }
                let work = part(lane.clone(), queue);
                lane.spawn(async move { share.end(work.await) });
            });
        }
        let own = part(self.lane.clone(), self.queue.clone()).await;
        let mut results = helped.results().await;
        results.push(own);
        results
    }
}

/// The state of the helpers' shares.
struct Helped<T> {
    state: Mutex<State<T>>,
    ended: Notify,
}

struct State<T> {
    /// Whether no share may begin any more.
    closed: bool,
    /// Number of shares that have begun and not ended.
    running: usize,
    results: Vec<T>,
    /// Whether a share ended without a result.
    failed: bool,
}

impl<T> Default for Helped<T> {
    fn default() -> Self {
        let state = State { closed: false, running: 0, results: Vec::new(), failed: false };
        Helped { state: Mutex::new(state), ended: Notify::default() }
    }
}

impl<T> Helped<T> {
    /// Waits for all shares that have begun.
    async fn results(&self) -> Vec<T> {
        loop {
            let ended = self.ended.listen();
            {
                let mut state = self.state.lock();
                state.closed = true;
                if state.running == 0 {
                    assert!(!state.failed, "a lane that took part has panicked or ended");
                    return std::mem::take(&mut state.results);
                }
            }
            ended.await;
        }
    }
}

/// The share of one helper. Dropping it reports its end.
struct Share<T> {
    helped: Arc<Helped<T>>,
    failed: bool,
}

impl<T> Share<T> {
    /// Begins a share. Returns `None` if it is too late.
    fn begin(helped: &Arc<Helped<T>>) -> Option<Self> {
        let mut state = helped.state.lock();
        if state.closed {
            return None;
        }
        state.running += 1;
        Some(Share { helped: helped.clone(), failed: true })
    }

    fn end(self, result: T) {
        self.helped.state.lock().results.push(result);
        self.leave();
    }

    /// Leaves without taking part.
    fn leave(mut self) {
        self.failed = false;
    }
}

impl<T> Drop for Share<T> {
    fn drop(&mut self) {
        {
            let mut state = self.helped.state.lock();
            state.running -= 1;
            state.failed |= self.failed;
        }
        self.helped.ended.notify_all();
    }
}

/// Items that a lane takes from a list at a time.
const RUN: usize = 16;

/// A list of work that lanes share: each item goes to one of them.
pub(crate) struct WorkList<W> {
    items: Arc<[W]>,
    next: Arc<AtomicUsize>,
    /// Items that this lane has taken.
    taken: std::ops::Range<usize>,
}

impl<W> WorkList<W> {
    pub(crate) fn new(items: impl Into<Arc<[W]>>) -> Self {
        WorkList { items: items.into(), next: Arc::default(), taken: 0..0 }
    }

    /// Drops the items that no lane has taken yet, because a lane has failed.
    pub(crate) fn cancel(&self) {
        self.next.fetch_max(self.items.len(), Ordering::Relaxed);
    }
}

impl<W> Clone for WorkList<W> {
    /// The clone starts without the items that this lane has taken.
    fn clone(&self) -> Self {
        WorkList { items: self.items.clone(), next: self.next.clone(), taken: 0..0 }
    }
}

impl<W: Copy> Iterator for WorkList<W> {
    type Item = W;

    fn next(&mut self) -> Option<W> {
        if self.taken.is_empty() {
            let first = self.next.fetch_add(RUN, Ordering::Relaxed).min(self.items.len());
            self.taken = first..(first + RUN).min(self.items.len());
        }
        self.items.get(self.taken.next()?).copied()
    }
}

/// The error for work that has not ended although all shares were awaited.
pub(crate) fn still_running() -> StoreError {
    StoreError::Refused("recovery is still running".into())
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use std::cell::Cell;

    use forebay_device::RamDevice;
    use forebay_testkit::LaneWorld;

    use super::*;

    fn helper(world: &LaneWorld) -> Helper {
        Helper::without_ring(world.lane.remote())
    }

    fn no_queue(world: &LaneWorld) -> Helper {
        Helper::new(world.lane.remote(), |_, _| None)
    }

    /// Runs a part on a lane and on its helpers.
    fn run<T, F>(
        world: &LaneWorld,
        helpers: Vec<Helper>,
        part: impl Fn(Rc<Lane>, Queue) -> F + Clone + Send + 'static,
    ) -> Vec<T>
    where
        T: Send + 'static,
        F: Future<Output = T> + 'static,
    {
        let device: Arc<dyn Device> = RamDevice::new("ram", 1 << 20).expect("memory");
        let team = Team::new(&world.lane, &world.queue(&device), &device, helpers);
        world.block_on(async move { team.run(part).await })
    }

    #[test]
    fn each_item_goes_to_one_lane_for_any_number_of_lanes() {
        let world = LaneWorld::new();
        let cases = [
            (vec![], 1),
            (vec![helper(&world); 2], 3),
            (vec![no_queue(&world), helper(&world)], 2),
            (vec![no_queue(&world)], 1),
            (vec![helper(&world); 20], 1 + MOST_HELPERS),
        ];
        for (helpers, lanes) in cases {
            for count in [0, 1, RUN, 10 * RUN + 1] {
                let items = WorkList::new((0..count).collect::<Vec<_>>());
                let parts = run(&world, helpers.clone(), move |_, _| {
                    let items = items.clone();
                    async move {
                        // The helpers begin during this yield.
                        forebay_lane::yield_now().await;
                        let mut own = Vec::new();
                        for item in items {
                            own.push(item);
                            forebay_lane::yield_now().await;
                        }
                        own
                    }
                });
                assert_eq!(parts.len(), lanes);
                let shared = lanes.min(count.div_ceil(RUN));
                assert_eq!(parts.iter().filter(|own| !own.is_empty()).count(), shared);
                let mut all: Vec<usize> = parts.into_iter().flatten().collect();
                all.sort_unstable();
                assert!(all.into_iter().eq(0..count), "{count} items, {lanes} lanes");
            }
        }
    }

    #[test]
    #[should_panic(expected = "the future has panicked")]
    fn work_begun_and_not_ended_by_a_lane_is_not_taken_for_done() {
        thread_local!(static TURN: Cell<u32> = const { Cell::new(0) });
        let world = LaneWorld::new();
        run(&world, vec![helper(&world); 2], |_, _| async {
            // The lane that opens the cache comes first, and lets the helpers begin.
            let turn = TURN.replace(TURN.get() + 1);
            forebay_lane::yield_now().await;
            assert_ne!(turn, 1, "as this test wants it");
        });
    }

    #[test]
    fn a_lane_that_comes_too_late_is_not_waited_for() {
        let (world, busy) = (LaneWorld::new(), LaneWorld::new());
        let helpers = vec![Helper::without_ring(busy.lane.remote())];
        assert_eq!(run(&world, helpers, |lane, _| async move { lane.live_tasks() }), [1]);
        assert!(
            busy.lane.run_ready() && busy.lane.live_tasks() == 0,
            "the job finds that it is late"
        );
    }

    #[test]
    fn a_list_can_be_cancelled_with_items_left() {
        let mut items = WorkList::new((0..3 * RUN).collect::<Vec<_>>());
        let other = items.clone();
        assert_eq!(items.next(), Some(0));
        other.cancel();
        assert_eq!(items.count(), RUN - 1, "those that were taken");
        assert_eq!(other.count(), 0);
    }
}
