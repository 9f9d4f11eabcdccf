//! Looks once in a while whether devices answer. Each lane looks at its own requests; the first one
//! also sees to it that what only a failed cache device has is written down elsewhere.

use std::rc::{Rc, Weak};
use std::time::Duration;

use forebay_core::Nanos;
use forebay_device::{IoBuf, Queue};

use crate::cache::Cache;
use crate::engine::EngineLane;
use crate::health::{DeviceHealth, LOOK_EVERY};
use crate::lane::LaneVolume;

/// Blocks that cannot be read are tried again after so long, if nobody asks for it earlier.
const TRY_BAD_AFTER: Duration = Duration::from_secs(60);

/// Bytes that are read to see whether a device answers.
const PROBE_BYTES: usize = 4096;

/// Which of the two devices of a volume.
#[derive(Clone, Copy)]
enum Which {
    Cache,
    Origin,
}

/// Runs until the lane leaves the cache, or the cache stops. `first`: the lane that opened the cache.
pub(crate) async fn run(engine: Weak<EngineLane>, first: bool) {
    let mut tried = Nanos(0);
    loop {
        let Some(this) = engine.upgrade() else { return };
        let (cache, lane) = (this.cache.clone(), this.lane.clone());
        drop(this);
        let stop = cache.stop_changed.listen();
        if cache.is_stopping() {
            return;
        }
        super::writeback::either(stop, lane.sleep(LOOK_EVERY)).await;
        let Some(this) = engine.upgrade() else { return };
        this.look();
        if first {
            let now = lane.now();
            let again = now.since(tried) >= TRY_BAD_AFTER;
            if again {
                tried = now;
            }
            for volume in cache.volumes() {
                if again {
                    volume.try_bad_again();
                }
                if let Some(view) = this.lane_volume(volume.id) {
                    // On its own: whatever a ledger waits for, others are looked after.
                    lane.spawn(async move { view.write_down().await });
                }
            }
        }
    }
}

impl EngineLane {
    fn look(self: &Rc<Self>) {
        let (now, lane) = (self.lane.now(), usize::from(self.lane.id().0));
        let cache = &self.cache;
        let queue = self.store.queue();
        let oldest = queue.under_way().look(now);
        if cache.health.look(cache.store.device().name(), lane, oldest, now) {
            self.probe(queue.clone(), Which::Cache, None);
        }
        for view in self.views() {
            let volume = &view.volume;
            let oldest = view.origin.under_way().look(now);
            if volume.origin_health.look(&volume.origin_name, lane, oldest, now) {
                self.probe(view.origin.clone(), Which::Origin, Some(view.clone()));
            }
        }
    }

    /// Sends a small request to a device; when it ends the device answers.
    fn probe(&self, queue: Queue, which: Which, view: Option<Rc<LaneVolume>>) {
        let cache = self.cache.clone();
        self.lane.spawn(async move {
            let _ = queue.read(0, IoBuf::for_overwrite(PROBE_BYTES)).await;
            match (which, &view) {
                (Which::Cache, _) => cache.health.probed(),
                (Which::Origin, Some(view)) => view.volume.origin_health.probed(),
                (Which::Origin, None) => {}
            }
        });
    }
}

impl Cache {
    /// Whether the cache device answers.
    pub fn health(&self) -> &DeviceHealth {
        &self.health
    }
}
