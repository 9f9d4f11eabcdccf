//! One volume on one lane. This module only provides access; it has no logic.

pub(crate) mod engine;

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::{Rc, Weak};
use std::sync::Arc;

use forebay_core::why::MissReason;
use forebay_core::{Nanos, OriginBlock};
use forebay_device::Queue;
use forebay_lane::Lane;
use forebay_store::StoreLane;

use crate::api::{CompletionSink, Request};
use crate::state::cache::hang::CacheWork;
use crate::state::cache::{Cache, GhostMemory};
use crate::state::curve::Watch;
use crate::state::origin::Origin;
use crate::state::pins::LanePins;
use crate::state::replacement::Replacement;
use crate::state::streams::LaneStreams;
use crate::state::volume::Volume;
use crate::stats::LaneStats;

/// Starts the task of a request, in memory that is reused.
pub(crate) trait Start {
    fn start(
        &self,
        lane: &Lane,
        volume: Rc<LaneVolume>,
        request: Request,
        sink: Rc<dyn CompletionSink>,
    );
}

/// One lane's view of a volume: the front-end interface, and access for the types that borrow it.
pub struct LaneVolume {
    pub(crate) cache: Arc<Cache>,
    pub(crate) volume: Arc<Volume>,
    pub(crate) store: Rc<StoreLane>,
    pub(crate) origin: Origin,
    pub(crate) streams: LaneStreams,
    /// The replacement policy with its number, which may be outdated.
    pub(crate) replacement: RefCell<(u64, Arc<Replacement>)>,
    pub(crate) watch: Watch,
    pins: LanePins,
    /// Bytes being read from the origin that no client requested.
    pub(crate) promoting: Cell<u64>,
    /// The cache's ghosts; may be outdated.
    pub(crate) memory: RefCell<GhostMemory>,
    /// The miss reason of the last block that has a ghost entry.
    pub(crate) last_miss: Cell<MissReason>,
    /// Blocks that have become dirty since the lane last checked the throttle.
    pub(crate) dirtied: Cell<u64>,
    /// The lane checks after this many.
    pub(crate) look_after: u64,
    pub(crate) requests: Rc<dyn Start>,
    /// Upgraded by requests in flight, which keep the view alive.
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
        let (waits, rest) = (volume.waits.clone(), volume.stats.rest.clone());
        let origin = Origin::new(origin, waits, rest, store.lane().id());
        Rc::new_cyclic(|own| LaneVolume {
            cache,
            volume,
            store,
            origin,
            streams: LaneStreams::new(),
            replacement,
            watch: Watch::default(),
            pins: LanePins::default(),
            promoting: Cell::new(0),
            memory,
            last_miss: Cell::new(MissReason::Cold),
            dirtied: Cell::new(0),
            look_after,
            requests,
            own: own.clone(),
        })
    }

    /// Returns the volume.
    pub fn volume(&self) -> &Arc<Volume> {
        &self.volume
    }

    /// Returns a reference that keeps this view alive, or `None` if the view is being dropped.
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

    /// Returns whether a block is pinned.
    #[inline]
    pub(crate) fn is_pinned(&self, block: OriginBlock) -> bool {
        self.has_pinned(&(block.0..block.0.saturating_add(1)))
    }

    /// Returns whether a block of a range is pinned.
    #[inline]
    pub(crate) fn has_pinned(&self, blocks: &Range<u64>) -> bool {
        self.pins.overlap(&self.volume.pins, blocks)
    }

    /// Returns whether reads or writes must work without the cache device. A device that accepts no
    /// more writes can often still be read.
    #[inline]
    pub(crate) fn is_unavailable_to(&self, write: bool) -> bool {
        self.cache.health.is_hung() || (write && self.store.store().health.failed())
    }

    /// Runs work on the cache device. Returns `None` if the device hangs; the work then continues
    /// in the background.
    pub(crate) async fn unless_hung<T: 'static>(
        &self,
        work: impl Future<Output = T> + 'static,
    ) -> Option<T> {
        let mut work: CacheWork<T> = Box::pin(work);
        let end = self.cache.unless_it_can_be_noted(&mut work).await;
        if end.is_none() {
            self.lane().spawn(async move { drop(work.await) });
        }
        end
    }
}
