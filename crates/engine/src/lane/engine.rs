//! One cache on one lane.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::{Rc, Weak};
use std::sync::Arc;

use forebay_core::VolumeId;
use forebay_device::{Device, Meter, Queue, QueueContext};
use forebay_lane::Lane;
use forebay_store::StoreLane;

use crate::api::{BlockService, Exports};
use crate::error::EngineError;
use crate::lane::{LaneVolume, Start};
use crate::state::cache::Cache;
use crate::state::volume::VolumeState;

/// Registers the queues that a lane opens, so that the lane drives them.
pub(crate) type Register = Rc<dyn Fn(&Queue)>;

/// The resources with which a lane opens devices.
#[derive(Clone)]
pub struct LaneContext {
    /// The lane's executor.
    pub lane: Rc<Lane>,
    /// The context in which queues are opened.
    pub queues: Rc<QueueContext>,
    /// Called with every queue that is opened.
    pub register: Register,
}

impl LaneContext {
    /// Opens a device for this lane.
    ///
    /// # Errors
    /// The device cannot be opened.
    pub fn open(&self, device: &Arc<dyn Device>) -> Result<Queue, EngineError> {
        let queue = Queue::new(device.open_queue(&self.queues)?);
        (self.register)(&queue);
        Ok(queue)
    }

    /// Like [`LaneContext::open`]; the operations are counted.
    pub(crate) fn open_metered(
        &self,
        device: &Arc<dyn Device>,
        meter: &Arc<Meter>,
    ) -> Result<Queue, EngineError> {
        let (lane, clock) = (usize::from(self.lane.id().0), self.lane.clock().clone());
        Ok(self.open(device)?.metered(meter.clone(), lane, clock))
    }
}

/// One lane's view of a cache, and of its volumes.
pub struct EngineLane {
    /// The cache.
    pub cache: Arc<Cache>,
    pub(crate) lane: Rc<Lane>,
    pub(crate) context: LaneContext,
    pub(crate) store: Rc<StoreLane>,
    volumes: RefCell<HashMap<VolumeId, Rc<LaneVolume>>>,
    requests: Rc<dyn Start>,
}

impl EngineLane {
    pub(crate) fn with_store(
        cache: Arc<Cache>,
        context: LaneContext,
        store: Rc<StoreLane>,
        requests: Rc<dyn Start>,
    ) -> Rc<Self> {
        Rc::new(EngineLane {
            cache,
            lane: context.lane.clone(),
            context,
            store,
            volumes: RefCell::default(),
            requests,
        })
    }

    /// Returns the lane's executor.
    pub fn lane(&self) -> &Rc<Lane> {
        &self.lane
    }

    /// Returns this lane's view of a volume. `None`: the volume does not exist, or its origin
    /// cannot be opened.
    pub fn lane_volume(&self, id: VolumeId) -> Option<Rc<LaneVolume>> {
        let volume = self.cache.volumes().into_iter().find(|volume| volume.id == id)?;
        if let Some(known) = self.volumes.borrow().get(&id)
            && Arc::ptr_eq(known.volume(), &volume)
        {
            return Some(known.clone());
        }
        let origin = match self.context.open_metered(&volume.origin, &volume.meter) {
            Ok(origin) => origin,
            Err(error) => {
                tracing::error!(%error, volume = volume.name, "the origin cannot be opened on this lane");
                return None;
            }
        };
        let view = LaneVolume::new(
            self.cache.clone(),
            volume,
            self.store.clone(),
            origin,
            self.requests.clone(),
        );
        self.volumes.borrow_mut().insert(id, view.clone());
        Some(view)
    }

    /// Drops this lane's view of a volume that has left the cache. The view ends with its last
    /// user, and then closes the origin on this lane; the returned reference shows when that has
    /// happened.
    pub fn drop_view(&self, id: VolumeId) -> Option<Weak<LaneVolume>> {
        self.volumes.borrow_mut().remove(&id).map(|view| Rc::downgrade(&view))
    }

    /// Lifts the limits of all volumes until their settings are next set, so that no request waits
    /// for a limit while the front ends end.
    pub fn lift_limits(&self) {
        self.cache.volumes().iter().for_each(|volume| volume.limits.set(0, 0));
    }

    /// Returns a running volume, for a front end on this lane.
    pub fn target(&self, name: &str) -> Option<Rc<LaneVolume>> {
        let volume = self.cache.volume(name)?;
        if volume.state() != VolumeState::Running {
            return None;
        }
        self.lane_volume(volume.id)
    }
}

impl Exports for EngineLane {
    fn names(&self) -> Vec<String> {
        let volumes = self.cache.volumes();
        let running = volumes.iter().filter(|volume| volume.state() == VolumeState::Running);
        running.map(|volume| volume.name.clone()).collect()
    }

    fn open(&self, name: &str) -> Option<Rc<dyn BlockService>> {
        let target: Rc<dyn BlockService> = self.target(name)?;
        Some(target)
    }
}
