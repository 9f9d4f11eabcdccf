//! Shuts down the data path. Every step has a time limit: a device that does not answer is reported
//! and abandoned, and everything else ends in order.

use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use forebay_admin::{ApiError, VolumeName};
use forebay_engine::Cache;

use super::caches::Place;
use super::report::Running;
use super::{CLOSE_PATIENCE, EngineHost, faults};
use crate::daemon::hand_over::Items;
use crate::daemon::host_api::Definition;
use crate::daemon::operations::Work;

/// How often the progress of a drain is checked.
const STEP: Duration = Duration::from_millis(100);

/// Waits for a result until `end`.
fn until<T>(end: Instant, result: &Receiver<T>) -> Option<T> {
    result.recv_timeout(end.saturating_duration_since(Instant::now())).ok()
}

impl EngineHost {
    /// See [`crate::daemon::host_api::Host::shut_down`]. Dismisses clients, drains caches in RAM
    /// while that makes progress, then stops all volumes and closes all caches, each within
    /// [`CLOSE_PATIENCE`].
    pub(super) fn shut_down_all(self: &Arc<Self>) -> Result<(), ApiError> {
        self.lanes.stop_serving();
        let closed = self.close_everything();
        self.front_ends.iter().for_each(|front_end| front_end.release());
        closed
    }

    /// See [`crate::daemon::host_api::Host::hand_over`].
    pub(super) fn hand_over_all(self: &Arc<Self>) -> Items {
        let mut from_lanes = self.lanes.hand_over();
        if let Err(error) = self.close_everything() {
            tracing::error!("not everything stopped in order before the hand-over: {error}");
        }
        let mut items = Items::new();
        // Also of those of which no lane has said anything.
        from_lanes.resize_with(self.front_ends.len(), Vec::new);
        for (front_end, left) in self.front_ends.iter().zip(from_lanes) {
            let all = left.into_iter().chain(front_end.hand_over());
            if let Some(kind) = front_end.kind() {
                items.entry(kind.to_string()).or_default().extend(all);
            }
        }
        items
    }

    /// Drains caches in RAM, stops all volumes, closes all caches and ends the lanes.
    fn close_everything(self: &Arc<Self>) -> Result<(), ApiError> {
        let drained = self.drain_ram();
        let stopped = self.stop_all();
        let closed = self.close_all();
        self.lanes.end(stopped.is_ok() && closed.is_ok());
        // The next program finds the locks of images released.
        self.served.let_go();
        if !forebay_rbd::wait_closed(CLOSE_PATIENCE) {
            tracing::warn!("the cluster of an image does not answer: its lock is left to expire");
        }
        drained.and(stopped).and(closed)
    }

    /// Writes down deferred writes and drains caches in RAM, which are lost with the process. There is
    /// no limit of time; a volume that has taken nothing for [`CLOSE_PATIENCE`] is abandoned.
    fn drain_ram(self: &Arc<Self>) -> Result<(), ApiError> {
        let waiting = |name: &VolumeName| {
            self.served.ram.get(name).map_or(0, |ram| ram.tier().deferred_bytes())
        };
        let in_ram = |(volume, running): &(Definition, Running)| {
            let ram = self.served.ram.get(&volume.name);
            running.place.volatile || ram.is_some_and(|ram| ram.tier().has_deferred())
        };
        let drains: Vec<_> = self
            .served
            .all()
            .into_iter()
            .filter(in_ram)
            .map(|(volume, running)| {
                let (host, name, work) =
                    (self.clone(), volume.name.clone(), Arc::new(Work::default()));
                let (own, volatile) = (work.clone(), running.place.volatile);
                let drain = std::thread::spawn(move || {
                    host.write_down_patiently(&name, &own)?;
                    if volatile { host.drain_now(&name, &own) } else { Ok(()) }
                });
                (volume, running, work, drain)
            })
            .collect();
        let mut result = Ok(());
        for (volume, running, work, drain) in drains {
            let left = || {
                let dirty = if running.place.volatile { running.volume.dirty_blocks() } else { 0 };
                dirty * running.block_bytes() + waiting(&volume.name)
            };
            let (mut least, mut since) = (u64::MAX, Instant::now());
            while !drain.is_finished() {
                if left() < least {
                    (least, since) = (left(), Instant::now());
                }
                if since.elapsed() >= CLOSE_PATIENCE {
                    work.cancel();
                    if since.elapsed() >= CLOSE_PATIENCE + STEP * 10 {
                        break;
                    }
                }
                std::thread::sleep(STEP);
            }
            let bytes = left();
            let drained = match drain.is_finished().then(|| drain.join()) {
                Some(Ok(drained)) if !work.is_cancelled() => drained,
                _ => Err(ApiError::failed(format!(
                    "the origin {} of '{}' or its cache device has taken nothing for {} s",
                    volume.origin,
                    volume.name,
                    CLOSE_PATIENCE.as_secs()
                ))),
            };
            if let Err(error) = drained {
                tracing::error!(volume = %volume.name, bytes, "dirty blocks in RAM are lost: {error}");
                result = Err(error);
            }
        }
        for (volume, _) in self.served.all() {
            self.note_contents(&volume);
            self.served.ram.remove(volume.name.as_str());
        }
        result
    }

    /// Stops all volumes concurrently.
    fn stop_all(&self) -> Result<(), ApiError> {
        let end = Instant::now() + CLOSE_PATIENCE;
        // From here on every acknowledged write is durable, even if origins fail.
        let settled: Vec<_> = self.open_caches().iter().map(|place| self.settle(place)).collect();
        let volumes = self.served.all();
        let stops: Vec<_> = volumes.iter().map(|(_, running)| self.stop(running)).collect();
        let mut result = Ok(());
        for settled in settled {
            match until(end, &settled) {
                Some(settled) => result = result.and(settled),
                None => tracing::error!("a cache device does not answer"),
            }
        }
        for ((volume, running), stopped) in volumes.iter().zip(stops) {
            let stopped = until(end, &stopped).unwrap_or_else(|| Err(left_behind(volume)));
            if let Err(error) = &stopped {
                if running.volume.origin_waits().is_some() {
                    running.place.note_left(&running.volume);
                }
                tracing::error!(volume = %volume.name, "did not stop cleanly: {error}");
            }
            result = result.and(stopped);
        }
        result
    }

    fn settle(&self, place: &Place) -> Receiver<Result<(), ApiError>> {
        let number = place.number;
        self.lanes.begin(0, move |state| async move {
            state.engine(number)?.settle().await.map_err(faults::engine)
        })
    }

    /// Stops a volume in the engine. The daemon starts it again by itself next time.
    fn stop(&self, running: &Running) -> Receiver<Result<(), ApiError>> {
        let (number, name) = (running.place.number, running.volume.name.clone());
        self.lanes.begin(0, move |state| async move {
            let engine = state.engine(number)?;
            // Another operation may have stopped it already.
            if engine.cache.volume(&name).is_none() {
                return Ok(());
            }
            engine.stop_volume(&name, false).await.map_err(faults::engine)
        })
    }

    fn open_caches(&self) -> Vec<Arc<Place>> {
        let places = self.caches.places();
        let open = |place: &Arc<Place>| place.try_lock().is_some_and(|cache| cache.is_some());
        places.into_iter().filter(open).collect()
    }

    /// Closes all caches concurrently. A cache with a volume that did not stop, or whose origin
    /// something still waits for, is left open: all acknowledged writes are durable on it, and the
    /// next start recovers it.
    fn close_all(self: &Arc<Self>) -> Result<(), ApiError> {
        let end = Instant::now() + CLOSE_PATIENCE;
        let closing: Vec<_> = self
            .caches
            .places()
            .into_iter()
            .map(|place| {
                let host = self.clone();
                std::thread::spawn(move || {
                    let Some(mut cache) = place.lock_within(CLOSE_PATIENCE) else {
                        return Err(ApiError::failed("a cache device does not answer"));
                    };
                    let whole =
                        |open: &mut Arc<Cache>| open.volumes().is_empty() && !place.is_lingering();
                    match cache.take_if(whole) {
                        Some(open) => host.close(&place, &open, CLOSE_PATIENCE),
                        None => Ok(()),
                    }
                })
            })
            .collect();
        let mut result = Ok(());
        for closing in closing {
            while !closing.is_finished() && Instant::now() < end + STEP * 10 {
                std::thread::sleep(Duration::from_millis(5));
            }
            let closed = match closing.is_finished().then(|| closing.join()) {
                Some(Ok(closed)) => closed,
                _ => Err(ApiError::failed("a cache was not closed in time")),
            };
            if let Err(error) = &closed {
                tracing::error!("a cache did not close cleanly: {error}");
            }
            result = result.and(closed);
        }
        result
    }
}

fn left_behind(volume: &Definition) -> ApiError {
    ApiError::failed(format!(
        "'{}' waits for its origin {} or its cache device {}, which have not answered for {} s; it is abandoned, and all acknowledged writes are on the cache device",
        volume.name,
        volume.origin,
        volume.cache,
        CLOSE_PATIENCE.as_secs()
    ))
}
