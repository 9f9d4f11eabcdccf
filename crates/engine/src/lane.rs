//! One volume as one lane sees it: where requests enter and leave.

pub(crate) mod engine;

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use forebay_core::why::MissReason;
use forebay_core::{IoError, Nanos};
use forebay_device::Queue;
use forebay_lane::{Lane, either};
use forebay_policy::SequentialCutoff;
use forebay_store::{StoreError, StoreLane};

use crate::api::{CompletionSink, Request};
use crate::state::cache::{Cache, Memory, STREAMS};
use crate::state::curve::Watch;
use crate::state::origin::Origin;
use crate::state::replacement::Replacement;
use crate::state::volume::{Volume, VolumeState};
use crate::stats::LaneStats;

/// A future that carries out one request, in memory that is used again.
pub(crate) trait Start {
    fn start(
        &self,
        lane: &Lane,
        volume: Rc<LaneVolume>,
        request: Request,
        sink: Rc<dyn CompletionSink>,
    );
}

/// See the module.
pub struct LaneVolume {
    pub(crate) cache: Arc<Cache>,
    pub(crate) volume: Arc<Volume>,
    pub(crate) store: Rc<StoreLane>,
    pub(crate) origin: Origin,
    cutoff: RefCell<SequentialCutoff>,
    /// The last request that was asked about, and the answer.
    last_verdict: Cell<((bool, u64, u64), bool)>,
    /// The replacement policy, unless there is another one by now.
    pub(crate) replacement: RefCell<(u64, Arc<Replacement>)>,
    pub(crate) watch: Watch,
    /// Bytes on their way from the origin that nobody has asked for.
    pub(crate) promoting: Cell<u64>,
    /// The cache's memory of absent blocks, unless there is another one by now.
    pub(crate) memory: RefCell<Memory>,
    /// Why the last block was missed of those that are remembered.
    pub(crate) last_miss: Cell<MissReason>,
    /// Blocks that have become dirty since the lane looked how many are.
    pub(crate) dirtied: Cell<u64>,
    /// After so many it looks.
    pub(crate) look_after: u64,
    pub(crate) requests: Rc<dyn Start>,
    /// Requests on their way keep the view alive.
    own: Weak<LaneVolume>,
}

impl LaneVolume {
    pub(crate) fn new(
        cache: Arc<Cache>,
        volume: Arc<Volume>,
        store: Rc<StoreLane>,
        origin: Queue,
        requests: Rc<dyn Start>,
    ) -> Rc<Self> {
        let memory = RefCell::new(cache.memory());
        let look_after = cache.look_after();
        let replacement = RefCell::new(cache.replacement());
        let origin = Origin::new(origin, volume.waits.clone(), store.lane().id());
        Rc::new_cyclic(|own| LaneVolume {
            cache,
            volume,
            store,
            origin,
            cutoff: RefCell::new(SequentialCutoff::new(STREAMS)),
            last_verdict: Cell::new(((false, u64::MAX, 0), false)),
            replacement,
            watch: Watch::new(),
            promoting: Cell::new(0),
            memory,
            last_miss: Cell::new(MissReason::Cold),
            dirtied: Cell::new(0),
            look_after,
            requests,
            own: own.clone(),
        })
    }

    /// The volume.
    pub fn volume(&self) -> &Arc<Volume> {
        &self.volume
    }

    /// This view, to be kept. `None`: it is on its way to be dropped.
    pub(crate) fn shared(&self) -> Option<Rc<Self>> {
        self.own.upgrade()
    }

    pub(crate) fn lane(&self) -> &Rc<Lane> {
        self.store.lane()
    }

    pub(crate) fn now(&self) -> Nanos {
        self.lane().now()
    }

    pub(crate) fn stats(&self) -> &LaneStats {
        self.volume.stats.lane(usize::from(self.lane().id().0))
    }

    /// Whether a request is part of a stream that goes round the cache.
    pub(crate) fn is_sequential(&self, write: bool, offset: u64, len: u64) -> bool {
        let threshold = self.volume.sequential_cutoff();
        if threshold == 0 {
            return false;
        }
        // A request that could not be answered at once is asked about again.
        let request = (write, offset, len);
        let (last, verdict) = self.last_verdict.get();
        if last == request {
            return verdict;
        }
        let verdict = self.cutoff.borrow_mut().observe(write, offset, len).bypass(threshold);
        self.last_verdict.set((request, verdict));
        verdict
    }

    /// Whether writes find no room in the log, and need not wait for any. Those of a volume in order do:
    /// nothing of it goes round the log (invariant 28).
    pub(crate) fn is_starved(&self) -> bool {
        self.cache.is_starved() && !self.volume.is_ordered()
    }

    /// Waits until there may be room in the log, or none is needed any more.
    ///
    /// # Errors
    /// The cache device has failed: there will be none.
    pub(crate) async fn wait_for_space(
        &self,
        listening: forebay_lane::Notified<'_>,
    ) -> Result<(), IoError> {
        let store = self.store.store();
        if store.health.failed() {
            return Err(IoError::Io);
        }
        if self.volume.state() != VolumeState::Running {
            return Err(IoError::ShuttingDown);
        }
        store.space_wanted.notify_all();
        if self.is_starved() {
            // Dirty copies turn clean, which nobody tells.
            self.volume.writeback_wanted.notify_all();
            either(listening, self.lane().sleep(Duration::from_millis(20))).await;
        } else {
            listening.await;
        }
        Ok(())
    }

    pub(crate) fn store_failed(&self, error: &StoreError) -> IoError {
        tracing::debug!(%error, volume = self.volume.name, "a request fails");
        IoError::Io
    }
}
