//! Shuts down the data path. Every step has a time limit: a device that does not answer is reported
//! and abandoned, and everything else ends in order.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use forebay_admin::{ApiError, VolumeName};
use forebay_engine::{FrontEnd, HandedOver};
use forebay_threads::{Instant, JoinHandle, Receiver};

use super::caches::CacheSlot;
use super::report::ServedVolume;
use super::{CLOSE_PATIENCE, DISMISSAL, EngineHost, faults};
use crate::hand_over::Items;
use crate::host_api::{Closing, Definition};

/// Time for which a stopped volume, or an abandoned operation, may still use its cache; after that
/// the cache is left open. Also the time that closing a cache may take beyond its limit.
const GRACE: Duration = Duration::from_secs(2);

/// The result of stopping everything.
struct ShutdownResult {
    /// Volumes that may lose acknowledged writes, or did not stop in order.
    failed: BTreeSet<VolumeName>,
    /// Numbers of the slots of volumes that did not stop in order.
    places: BTreeSet<u64>,
    /// The first error.
    result: Result<(), ApiError>,
}

impl Default for ShutdownResult {
    fn default() -> Self {
        ShutdownResult { failed: BTreeSet::new(), places: BTreeSet::new(), result: Ok(()) }
    }
}

impl ShutdownResult {
    fn note(&mut self, error: ApiError) {
        if self.result.is_ok() {
            self.result = Err(error);
        }
    }

    fn fail(&mut self, name: &VolumeName, error: ApiError) {
        self.failed.insert(name.clone());
        self.note(error);
    }
}

/// Removes clients and exports of volumes that did not end in order from the parts of a hand-over,
/// and ends them. Their users must see an end as after a crash, because acknowledged data may be
/// missing.
fn cut_off(failed: &BTreeSet<VolumeName>, front_end: &dyn FrontEnd, items: &mut Vec<HandedOver>) {
    for name in failed {
        let (own, others): (Vec<_>, _) = std::mem::take(items)
            .into_iter()
            .partition(|item| front_end.user_of(item) == Some(name.as_str()));
        *items = others;
        if own.is_empty() {
            continue;
        }
        tracing::error!(volume = %name, "its clients are cut off, because it did not end in order");
        drop(own);
        if let Err(error) = front_end.withdraw(name.as_str(), true) {
            tracing::error!(volume = %name, "its export is left behind: {error}");
        }
    }
}

/// Records the volume of each part of a hand-over, because another volume may have its name when
/// the part is taken over. Inherited parts already have this record.
fn identify(
    identities: &BTreeMap<String, String>,
    front_end: &dyn FrontEnd,
    items: &mut [HandedOver],
) {
    for item in items.iter_mut().filter(|item| item.identity.is_none()) {
        item.identity = front_end.user_of(item).and_then(|user| identities.get(user)).cloned();
    }
}

/// Waits for a result until `end`.
fn until<T>(end: Instant, result: &Receiver<T>) -> Option<T> {
    result.recv_timeout(end.saturating_duration_since(Instant::now())).ok()
}

impl Closing for Arc<EngineHost> {
    /// Dismisses clients, drains caches in RAM as long as that makes progress, then stops all
    /// volumes and closes all caches, each within [`CLOSE_PATIENCE`].
    fn shut_down(&self) -> Result<(), ApiError> {
        self.lanes.stop_serving();
        let ended = self.close_everything();
        self.front_ends.iter().for_each(|front_end| front_end.release());
        ended.result
    }

    fn hand_over(&self, goes_on: &dyn Fn() -> bool) -> (Option<Items>, Result<(), ApiError>) {
        let identities: BTreeMap<_, _> = self
            .served
            .all()
            .into_iter()
            .filter_map(|(volume, _)| {
                Some((volume.name.to_string(), self.served.told_apart(&volume.name)?.text))
            })
            .collect();
        let mut leaving = self.lanes.hand_over();
        leaving.wait(DISMISSAL * 3);
        let (ended, in_order) = self.close_caches();
        // A lane that was late may have answered its clients by now; once the lanes end, it is too
        // late.
        leaving.wait(GRACE);
        self.end_lanes(in_order);
        if let Err(error) = &ended.result {
            tracing::error!("not everything stopped in order before the hand-over: {error}");
        }
        if !goes_on() {
            return (None, ended.result);
        }
        let mut items = Items::new();
        let (from_lanes, silent) = leaving.end(self.front_ends.len());
        for lane in silent {
            let volumes: Vec<_> = identities.keys().map(String::as_str).collect();
            tracing::error!(
                lane,
                "it does not answer: its clients, of any of the volumes {}, are disconnected",
                volumes.join(", ")
            );
        }
        for (front_end, mut left) in self.front_ends.iter().zip(from_lanes) {
            cut_off(&ended.failed, &**front_end, &mut left);
            left.extend(front_end.hand_over());
            cut_off(&ended.failed, &**front_end, &mut left);
            identify(&identities, &**front_end, &mut left);
            if let Some(kind) = front_end.kind() {
                items.entry(kind.to_string()).or_default().extend(left);
            }
        }
        (Some(items), ended.result)
    }

    fn prepare_hand_over(
        &self,
        goes_on: &dyn Fn() -> bool,
        begin: &dyn Fn() -> Result<(), ApiError>,
    ) -> Result<(), ApiError> {
        self.prepare_all(goes_on, begin)
    }
}

impl EngineHost {
    /// Drains caches in RAM, stops all volumes, closes all caches and ends the lanes.
    fn close_everything(self: &Arc<Self>) -> ShutdownResult {
        let (ended, in_order) = self.close_caches();
        self.end_lanes(in_order);
        ended
    }

    /// Drains caches in RAM, stops all volumes and closes all caches. Returns whether everything
    /// went in order as well.
    fn close_caches(self: &Arc<Self>) -> (ShutdownResult, bool) {
        let mut ended = ShutdownResult::default();
        // Dirty data on a cache device without a path is written back first.
        self.note_lost_origins(&mut ended);
        for (name, error) in self.drain_ram() {
            ended.fail(&name, error);
        }
        // The time limit starts again for the stop and the steps after it.
        self.ending.advances();
        let mut in_order = self.stop_all(&mut ended);
        // Check again while the devices are open, for those that have lost their paths meanwhile.
        self.note_lost_origins(&mut ended);
        self.forget_tiers(&mut ended);
        in_order &= self.close_all(&mut ended);
        (ended, in_order)
    }

    /// Ends the lanes, and releases everything that only they used. Waits for them if everything
    /// went `in_order`.
    fn end_lanes(&self, in_order: bool) {
        self.lanes.end(in_order);
        // The next program finds the locks of images released.
        self.served.let_go();
        if !forebay_rbd::wait_closed(CLOSE_PATIENCE) {
            tracing::warn!("the cluster of an image does not answer: its lock is left to expire");
        }
    }

    /// Checks where all paths lead. A file that was removed is lost when the shutdown closes it.
    fn note_lost_origins(&self, ended: &mut ShutdownResult) {
        self.look_at_paths();
        for (volume, running) in self.served.all() {
            if !ended.failed.contains(&volume.name)
                && let Some(error) = running.loses_origin()
            {
                tracing::error!(volume = %volume.name, "{error}");
                ended.fail(&volume.name, error);
            }
        }
    }

    /// Removes the RAM tiers of stopped volumes, which no client can write to any more.
    fn forget_tiers(&self, ended: &mut ShutdownResult) {
        for (volume, _) in self.served.all() {
            let name = &volume.name;
            if !ended.failed.contains(name) && self.has_only_in_ram(name) {
                let message = format!("writes to '{name}' came while it was stopped");
                tracing::error!(volume = %name, "dirty blocks in RAM are lost: {message}");
                ended.fail(name, ApiError::failed(message));
            }
            self.note_contents(&volume);
            self.served.ram.remove(name.as_str());
        }
    }

    /// Stops all volumes concurrently. Returns whether everything went in order.
    fn stop_all(&self, ended: &mut ShutdownResult) -> bool {
        let end = Instant::now() + CLOSE_PATIENCE;
        // From here on every acknowledged write is durable, even if origins fail.
        let places = self.open_caches();
        let settled: Vec<_> = places.iter().map(|place| self.settle(place)).collect();
        let volumes = self.served.all();
        volumes.iter().for_each(|(_, running)| running.note_displaced_origin());
        let stops: Vec<_> = volumes.iter().map(|(_, running)| self.stop(running)).collect();
        let mut in_order = true;
        for (place, settled) in places.iter().zip(settled) {
            let settled = until(end, &settled).unwrap_or_else(|| {
                tracing::error!("a cache device does not answer");
                Err(ApiError::failed("a cache device does not answer"))
            });
            let Err(error) = settled else { continue };
            in_order = false;
            let is_here = |running: &ServedVolume| Arc::ptr_eq(&running.place, place);
            for (volume, _) in volumes.iter().filter(|(_, running)| is_here(running)) {
                ended.fail(&volume.name, error.clone());
            }
            ended.note(error);
        }
        for ((volume, running), stopped) in volumes.iter().zip(stops) {
            let stopped = until(end, &stopped).unwrap_or_else(|| Err(left_behind(volume)));
            let Err(error) = stopped else { continue };
            in_order = false;
            if running.volume.origin_waits().is_some() {
                running.place.note_left(&running.volume);
            }
            tracing::error!(volume = %volume.name, "did not stop cleanly: {error}");
            ended.places.insert(running.place.number);
            ended.fail(&volume.name, error);
        }
        in_order
    }

    fn settle(&self, place: &CacheSlot) -> Receiver<Result<(), ApiError>> {
        let number = place.number;
        self.lanes.begin(0, move |state| async move {
            state.engine(number)?.settle().await.map_err(faults::engine)
        })
    }

    /// Stops a volume in the engine. The daemon starts it again by itself next time.
    fn stop(&self, running: &ServedVolume) -> Receiver<Result<(), ApiError>> {
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

    fn open_caches(&self) -> Vec<Arc<CacheSlot>> {
        let places = self.caches.places();
        let open = |place: &Arc<CacheSlot>| place.try_lock().is_some_and(|cache| cache.is_some());
        places.into_iter().filter(open).collect()
    }

    /// Closes all caches concurrently. Returns whether all closed in order. A cache is left open if
    /// it has a volume that did not stop, if something still waits for the origin of a volume, or
    /// if an abandoned operation may still change it. Flushed writes are durable on such a cache,
    /// and the next start recovers it.
    fn close_all(self: &Arc<Self>, ended: &mut ShutdownResult) -> bool {
        let end = Instant::now() + CLOSE_PATIENCE;
        let closing: Vec<_> = self
            .caches
            .places()
            .into_iter()
            .map(|place| {
                let (host, reported) = (self.clone(), ended.places.contains(&place.number));
                forebay_threads::spawn("close", move || host.close_place(&place, reported))
            })
            .collect();
        let mut in_order = true;
        for closing in closing {
            in_order &= end_of_closing(closing, end + GRACE).unwrap_or_else(|error| {
                tracing::error!("a cache did not close cleanly: {error}");
                ended.note(error);
                false
            });
        }
        in_order
    }

    /// Closes the cache in a slot, if it is open and nothing uses it any more. Returns whether it
    /// is closed. `reported`: a volume on it is known not to have stopped.
    ///
    /// # Errors
    /// The cache is left open because of a volume, or not all of it could be made durable.
    fn close_place(&self, place: &Arc<CacheSlot>, reported: bool) -> Result<bool, ApiError> {
        let Some(mut cache) = place.lock_within(CLOSE_PATIENCE) else {
            return Err(ApiError::failed("a cache device does not answer"));
        };
        let Some(open) = cache.clone() else { return Ok(true) };
        let end = Instant::now() + GRACE;
        let has_volume = || !open.volumes().is_empty() || place.is_lingering();
        while (has_volume() || place.is_used()) && !reported && Instant::now() < end {
            forebay_threads::sleep(Duration::from_millis(5));
        }
        let device = open.store.device().name();
        if has_volume() && !reported {
            return Err(ApiError::failed(format!(
                "the cache on {device} was left open, because a volume on it still waits for its origin; the next start recovers it"
            )));
        }
        if has_volume() || place.is_used() {
            // Only work like a start can still use it, and no client was told that such work
            // succeeded.
            tracing::warn!(
                "the cache on {device} was left open, because something that was given up still uses it; the next start recovers it"
            );
            return Ok(false);
        }
        drop(open);
        match cache.take() {
            Some(open) => self.close(place, &open, CLOSE_PATIENCE).map(|()| true),
            None => Ok(true),
        }
    }
}

/// Returns the result of closing a cache on a separate thread, for which this waits until `end`.
///
/// # Errors
/// The errors of the thread; or it could not be started, has panicked, or has not ended.
fn end_of_closing(
    closing: std::io::Result<JoinHandle<Result<bool, ApiError>>>,
    end: Instant,
) -> Result<bool, ApiError> {
    let recovered = "the next start recovers it";
    let closing = closing.map_err(|error| {
        let message = format!("there is no thread to close it: {error}; {recovered}");
        ApiError::failed(message)
    })?;
    while !closing.is_finished() {
        if Instant::now() >= end {
            return Err(ApiError::failed(format!("it was not closed in time; {recovered}")));
        }
        forebay_threads::sleep(Duration::from_millis(5));
    }
    let unexpected =
        |_| Err(ApiError::failed(format!("closing it ended unexpectedly; {recovered}")));
    closing.join().unwrap_or_else(unexpected)
}

fn left_behind(volume: &Definition) -> ApiError {
    ApiError::failed(format!(
        "'{}' waits for its origin {} or its cache device {}, which have not answered for {} s; it is abandoned: flushed writes are safe, later ones may be lost",
        volume.name,
        volume.origin,
        volume.cache,
        CLOSE_PATIENCE.as_secs()
    ))
}

#[cfg(test)]
mod tests {
    use forebay_admin::Settings;
    use forebay_core::FrontEndKind;

    use super::*;
    use crate::testing::FakeDevices;

    #[test]
    fn a_cache_that_does_not_close_is_reported_with_the_reason() {
        fn closing(
            run: impl FnOnce() -> Result<bool, ApiError> + Send + 'static,
        ) -> std::io::Result<JoinHandle<Result<bool, ApiError>>> {
            forebay_threads::spawn("close", run)
        }
        let soon = Instant::now() + Duration::from_secs(60);
        let (go, wait) = forebay_threads::channel::<()>();
        let hangs = closing(move || wait.recv().map(|()| true).map_err(|_| faults::given_up()));
        for (thread, end, said) in [
            (Err(std::io::Error::other("no room")), soon, "no thread to close it: no room"),
            (closing(|| panic!("on purpose")), soon, "ended unexpectedly"),
            (closing(|| Err(ApiError::failed("a bad block"))), soon, "a bad block"),
            (hangs, Instant::now(), "not closed in time"),
        ] {
            let error = end_of_closing(thread, end).expect_err(said);
            assert!(error.message.contains(said), "{error}");
        }
        drop(go);
        assert_eq!(end_of_closing(closing(|| Ok(false)), soon), Ok(false));
    }

    #[test]
    fn only_clients_of_volumes_that_failed_to_close_are_cut_off() {
        let devices = FakeDevices::new(FrontEndKind::Fuse);
        for volume in ["a", "b"] {
            devices.publish(volume, &Settings::default()).expect("free");
        }
        let item = |words: &[&str]| {
            let label = words.iter().map(|word| (*word).to_owned()).collect();
            HandedOver { label, ..HandedOver::default() }
        };
        let all = [["client", "a"], ["client", "b"], ["listener", "a"]];
        let mut items: Vec<_> = all.iter().map(|words| item(words)).collect();
        let failed = BTreeSet::from(["a".parse().expect("valid"), "c".parse().expect("valid")]);
        cut_off(&failed, &devices, &mut items);
        let left: Vec<_> = items.iter().map(|item| item.label.join(" ")).collect();
        assert_eq!(left, ["client b", "listener a"]);
        assert!(!devices.has("a") && devices.has("b"));
    }
}
