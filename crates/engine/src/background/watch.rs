//! Checks periodically whether the cache device answers. Each lane checks its own requests; the
//! lane that opened the cache also keeps the notes about its volumes up to date and has bad and
//! refused blocks tried again. For origins see `state::origin`.

use std::rc::Weak;
use std::time::Duration;

use forebay_core::Nanos;
use forebay_device::IoBuf;
use forebay_lane::either;

use crate::error::{EngineError, EngineErrorKind};
use crate::io::notes::NoteKeeper;
use crate::lane::engine::EngineLane;
use crate::state::cache::Cache;
use crate::state::health::{DeviceHealth, LOOK_EVERY};

/// Time after which unreadable dirty blocks are tried again, unless a client or operator causes an
/// earlier attempt.
const TRY_BAD_AFTER: Duration = Duration::from_secs(60);

/// Bytes that a probe reads.
const PROBE_BYTES: usize = 4096;

/// Runs until the lane leaves the cache, or the cache stops. `first`: the lane that opened the
/// cache.
pub(crate) async fn run(engine: Weak<EngineLane>, first: bool) {
    let mut tried = Nanos(0);
    loop {
        let Some(this) = engine.upgrade() else { return };
        let (cache, lane) = (this.cache.clone(), this.lane.clone());
        drop(this);
        let _guard = cache.store.fail_on_panic("the task that watches the devices");
        let stop = cache.background_changed.listen();
        if cache.is_stopping() {
            return;
        }
        either(stop, lane.sleep(LOOK_EVERY)).await;
        let Some(this) = engine.upgrade() else { return };
        this.look();
        if first {
            let now = lane.now();
            let again = now.since(tried) >= TRY_BAD_AFTER;
            if again {
                tried = now;
            }
            for volume in cache.volumes() {
                volume.look_at_origin();
                volume.try_refused_in_time(now);
                if again {
                    volume.try_unreadable_again();
                }
                if let Some(view) = this.lane_volume(volume.id) {
                    // A separate task, so that a slow ledger does not delay the other volumes.
                    lane.spawn(async move { NoteKeeper(&view).write_down().await });
                }
            }
        }
    }
}

impl EngineLane {
    fn look(&self) {
        let (now, lane) = (self.lane.now(), usize::from(self.lane.id().0));
        let (cache, queue) = (&self.cache, self.store.queue());
        let oldest = queue.under_way().look(now);
        if cache.health.look(cache.store.device().name(), lane, oldest, now) {
            // The probe: when it ends, the device answers.
            let (cache, queue) = (cache.clone(), queue.clone());
            self.lane.spawn(async move {
                let _ = queue.read(0, IoBuf::for_overwrite(PROBE_BYTES)).await;
                cache.health.probed();
            });
        }
    }
}

impl Cache {
    /// Returns the health of the cache device.
    pub fn health(&self) -> &DeviceHealth {
        &self.health
    }

    /// Returns an error if the cache device does not answer.
    pub(crate) fn hung(&self) -> Option<EngineError> {
        let (seconds, device) = (self.health.hung_for()?.as_secs(), self.store.device().name());
        let message = format!("the cache device {device} has not answered for {seconds} s");
        Some(EngineError::new(EngineErrorKind::Failed, message))
    }
}
