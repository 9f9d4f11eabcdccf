//! Operations on volumes, step by step; implements [`Serving`].

use std::sync::Arc;

use forebay_admin::{ApiError, ErrorKind, EventKind, Moved, StartRequest, VolumeName, VolumeState};
use forebay_core::{Caching, Cancelled};
use forebay_device::{Device, DeviceSpec};
use forebay_engine::displaced::BeforeStop;
use forebay_engine::{Settings, Volume};

use super::caches::CacheSlot;
use super::report::ServedVolume;
use super::{EngineHost, How, faults, settings};
use crate::devices::NO_CACHE;
use crate::events::NewEvent;
use crate::host_api::{Copied, Definition, Remains, Serving, StartError};
use crate::work::{Effect, Work};

/// The cache device of a volume without one: RAM that is never written, because the mode is
/// passthrough. Untouched pages cost nothing.
const EMPTY_CACHE: &str = "ram:32M";

/// Parses the device that an operator named in `field`.
pub(super) fn spec(field: &str, text: &str) -> Result<DeviceSpec, ApiError> {
    let text = if text == NO_CACHE { EMPTY_CACHE } else { text };
    text.parse().map_err(|error| ApiError::invalid(field, error))
}

/// Parses like [`spec`], for a device that must exist already.
pub(super) fn made(field: &str, text: &str) -> Result<DeviceSpec, ApiError> {
    spec(field, text).map(|spec| spec.made())
}

/// Returns the number of blocks of the volume.
pub(super) fn blocks_of(volume: &Definition, origin: &Arc<dyn Device>) -> u64 {
    origin.size().saturating_add(volume.alignment).div_ceil(volume.block_size.max(1))
}

impl Serving for Arc<EngineHost> {
    fn start(
        &self,
        volume: &Definition,
        how: StartRequest,
        work: &Arc<Work>,
    ) -> Result<Copied, StartError> {
        self.served.begin(volume)?;
        let own = volume.clone();
        let how = How { force: how.force, verify: how.verify, work: work.clone() };
        self.attended(&volume.name, work, move |host, _| {
            let result = host.bring_up(&own, &how);
            if result.is_err() {
                host.served.remove(&own.name);
            }
            result
        })
    }

    fn show(&self, name: &VolumeName) {
        self.served.show(name);
    }

    fn check_origin_path(&self, name: &VolumeName, work: &Arc<Work>) -> Result<(), ApiError> {
        let own = name.clone();
        let check = move |host: &Self, _: &Arc<Work>| {
            let running = host.served.get(&own)?;
            host.before_stop(&own, &running, false).map(|_| ())
        };
        self.attended(name, work, check)
    }

    fn share(&self, name: &VolumeName, work: &Arc<Work>) -> Result<(), ApiError> {
        let own = name.clone();
        self.attended(name, work, move |host, work| {
            let running = host.served.get(&own)?;
            let cache = host.served.definition(&own).map_or_else(String::new, |it| it.cache);
            let _wait = host.served.wait_for(&own, &cache);
            let (number, name, work) = (running.place.number, own.to_string(), work.clone());
            let (newest, named) = (host.newest.clone(), own.clone());
            let next = move |mut present: Settings| {
                if let Some(newest) = newest.settings(&named) {
                    present.share(&newest);
                }
                present
            };
            host.lanes.run(0, move |state| async move {
                let commit = || work.commit().map(drop);
                let changed = state.engine(number)?.change(&name, next, commit).await;
                changed.map_err(faults::engine)
            })?
        })
    }

    fn set(&self, volume: &Definition, work: &Arc<Work>) -> Result<(), ApiError> {
        let own = volume.clone();
        self.attended(&volume.name, work, move |host, work| host.set_now(&own, work))
    }

    fn stop(&self, volume: &Definition, abandon: bool, work: &Arc<Work>) -> Result<(), ApiError> {
        let (name, version) = (volume.name.clone(), volume.version);
        self.attended(&volume.name, work, move |host, work| {
            host.stop_now(&name, Some(version), abandon, work)
        })
    }

    fn holds(&self, volume: &Definition, work: &Arc<Work>) -> Result<bool, ApiError> {
        self.served.begin(volume)?;
        let own = volume.clone();
        self.attended(&volume.name, work, move |host, work| {
            let holds = host.holds_now(&own, work);
            host.served.remove(&own.name);
            holds
        })
    }

    fn delete(
        &self,
        volume: &Definition,
        discard_dirty: bool,
        work: &Arc<Work>,
    ) -> Result<Remains, ApiError> {
        let own = volume.clone();
        let deleted = self.attended(&volume.name, work, move |host, work| {
            host.delete_now(&own, discard_dirty, work)
        });
        if deleted.is_ok() || discard_dirty {
            self.lists.hints.forget(volume.name.as_str());
            self.lists.pins.forget(volume.name.as_str());
        }
        let deleted = deleted?;
        self.caches.notes.forget(volume.name.as_str());
        Ok(deleted)
    }
}

impl EngineHost {
    /// Stops a volume that a delete had started and that is not deleted, without storing a
    /// fingerprint: the origin may have been restored or exchanged since, so the next start must
    /// check it again.
    fn stop_unwanted(self: &Arc<Self>, name: &VolumeName) {
        if let Ok(running) = self.served.get(name) {
            running.volume.leave_no_print();
        }
        if let Err(error) = self.stop_now(name, None, true, &Arc::default()) {
            tracing::error!(volume = %name, "cannot stop the volume of an abandoned operation: {error}");
        }
    }

    /// Changes the settings of a volume: `next` derives them from the present ones, and is called
    /// without another change of its cache in between.
    pub(super) fn apply(
        &self,
        place: &CacheSlot,
        name: &VolumeName,
        next: impl FnOnce(Settings) -> Settings + Send + 'static,
        _: &Effect,
    ) -> Result<(), ApiError> {
        let (number, name) = (place.number, name.to_string());
        self.lanes.run(0, move |state| async move {
            let changed = state.engine(number)?.change(&name, next, || Ok(())).await;
            changed.map_err(faults::engine)
        })?
    }

    /// Returns the changes that turn the present settings of a volume into `wanted`. Settings that
    /// volumes of its cache share are not taken from `wanted` but from the state at the time of the
    /// change, because commands for other volumes may have changed them since.
    pub(super) fn with_newest(
        &self,
        name: &VolumeName,
        wanted: Settings,
    ) -> impl Fn(Settings) -> Settings + Send + use<> {
        let (newest, name) = (self.newest.clone(), name.clone());
        move |present| {
            let mut next = wanted.clone();
            next.share(&newest.settings(&name).unwrap_or(present));
            next
        }
    }

    /// Stops a volume. `version`: the volume's version, if it must be recorded on the cache device.
    fn stop_now(
        self: &Arc<Self>,
        name: &VolumeName,
        version: Option<u64>,
        abandon: bool,
        work: &Arc<Work>,
    ) -> Result<(), ApiError> {
        let running = self.served.get(name)?;
        let place = &running.place.clone();
        let before = running.volume.settings();
        let before_stop = self.before_stop(name, &running, abandon)?;
        running.note_displaced_origin();
        self.end_deferring(name, work)?;
        if (place.volatile || before_stop == BeforeStop::Drain)
            && let Err(error) = self.drain_now(name, work)
        {
            self.defer_again(name, &before);
            return Err(error);
        }
        let Ok(effect) = work.commit() else {
            self.defer_again(name, &before);
            return Err(faults::given_up());
        };
        self.served.phase(name, VolumeState::Stopping);
        let definition = self.served.definition(name);
        let (cache, origin) =
            definition.clone().map_or_else(Default::default, |it| (it.cache, it.origin));
        let settled = {
            let _wait = self.served.wait_for(name, &cache);
            if let Some(version) = version {
                let next = move |present| Settings { version, ..present };
                if let Err(error) = self.apply(place, name, next, &effect) {
                    tracing::debug!(volume = %name, "cannot record its version on the cache device: {error}");
                }
            }
            // From here on every acknowledged write is durable, even if the origin fails.
            let number = place.number;
            self.lanes.run(0, move |state| async move {
                state.engine(number)?.settle().await.map_err(faults::engine)
            })
        };
        if let Some(definition) = definition.filter(|_| version.is_some()) {
            self.note_contents(&definition);
        }
        let _wait = self.served.wait_for(name, &origin);
        // `running` is dropped before the cache is closed, which waits until nothing refers to the
        // volume.
        let left = self.using(place, move || {
            let stopped = self.take_out(&running.place, &running.volume);
            // Check while the devices are still open, so that their paths can be compared.
            let safe = if abandon { Ok(()) } else { running.check_left() };
            self.served.remove(name);
            stopped.and(safe)
        });
        settled.and_then(|settled| settled).and(left)
    }

    /// Stops a served volume; it is no longer served afterwards, even after an error.
    fn take_away(&self, name: &VolumeName, running: ServedVolume) -> Result<(), ApiError> {
        let stopped = self.take_out(&running.place, &running.volume);
        self.served.remove(name);
        stopped
    }

    /// Stops a volume in its cache, and dismisses its clients.
    pub(super) fn take_out(&self, place: &CacheSlot, volume: &Arc<Volume>) -> Result<(), ApiError> {
        let (number, own) = (place.number, volume.name.clone());
        let stopped = self.lanes.run(0, move |state| async move {
            state.engine(number)?.stop_volume(&own, true).await.map_err(faults::engine)
        });
        self.dismiss(place, volume);
        stopped.and_then(|stopped| stopped)
    }

    /// Dismisses the clients of a volume that has left its cache, and its RAM tier.
    fn dismiss(&self, place: &CacheSlot, volume: &Arc<Volume>) {
        // Do this first: dismissing waits for clients with unanswered requests, and a shutdown
        // during that time must know that the volume is still there.
        place.note_left(volume);
        self.served.ram.remove(&volume.name);
        let (number, id) = (place.number, volume.id);
        let dismissed: Vec<_> = self
            .lanes
            .all()
            .map(|lane| {
                let name = volume.name.clone();
                self.lanes.begin(lane, move |state| async move {
                    state.dismiss(number, id, &name).await;
                })
            })
            .collect();
        for dismissed in dismissed {
            let _ = dismissed.recv();
        }
    }

    fn set_now(&self, volume: &Definition, work: &Arc<Work>) -> Result<(), ApiError> {
        let name = &volume.name;
        let running = self.served.get(name)?;
        let before = running.volume.settings();
        let wanted = settings::of(volume);
        let ram = self.served.ram.get(name);
        if ram.is_none() && super::ram::deferral(&wanted).is_some() {
            let reason = "the volume has no RAM tier until it is started again; set ram, stop and start it, and then set durability=deferred";
            return Err(ApiError::invalid("durability", reason));
        }
        if wanted.caching == Caching::Paused && before.caching != Caching::Paused {
            self.note_contents(volume);
        }
        if let Some(ram) = &ram
            && let Err(error) = self.change_tier(name, ram, &wanted, work)
        {
            self.defer_again(name, &before);
            return Err(error);
        }
        let drains = before.keeps_dirty() && !wanted.keeps_dirty();
        let stored = {
            let _wait = self.served.wait_for(name, &volume.cache);
            let (number, own, work) = (running.place.number, name.to_string(), work.clone());
            let next = self.with_newest(name, wanted.clone());
            self.lanes.run(0, move |state| async move {
                let commit = || work.commit().map(drop);
                let set = state.engine(number)?.change(&own, next, commit).await;
                set.map_err(faults::engine)
            })
        };
        let set = stored.and_then(|stored| stored).and_then(|()| match () {
            () if work.is_cancelled() => Err(faults::cancelled()),
            () if drains => self.drain_now(name, work),
            () => Ok(()),
        });
        if set.is_err() {
            if let Some(Err(error)) = ram.map(|ram| ram.change(&before)) {
                tracing::warn!(volume = %name, "cannot restore the old size of the RAM tier: {error}");
            }
            let _wait = self.served.wait_for(name, &volume.cache);
            // Nothing was stored before the commit point. Restoring it then could undo a later
            // command.
            let old = self.with_newest(name, before.clone());
            if let Some(effect) = work.committed()
                && let Err(error) = self.apply(&running.place, name, old, &effect)
            {
                tracing::warn!(volume = %name, "cannot restore the old settings on the cache device: {error}");
            }
        }
        self.defer_again(name, if set.is_ok() { &wanted } else { &before });
        set
    }

    /// Drains a volume that is to be deleted; afterwards it defers no writes, unless that failed.
    fn drain_for_good(
        &self,
        name: &VolumeName,
        before: &Settings,
        work: &Arc<Work>,
    ) -> Result<(), ApiError> {
        let drained = self.end_deferring(name, work).and_then(|()| self.drain_now(name, work));
        if drained.is_err() {
            self.defer_again(name, before);
        }
        drained
    }

    pub(super) fn drain_now(&self, name: &VolumeName, work: &Arc<Work>) -> Result<(), ApiError> {
        let running = self.served.get(name)?;
        self.served.phase(name, VolumeState::Draining);
        let (number, own) = (running.place.number, name.to_string());
        let block = running.block_bytes();
        if let Err(error) = self.write_down(name, work) {
            self.served.phase(name, VolumeState::Running);
            return Err(error);
        }
        let dirty = running.volume.dirty_blocks() * block;
        let written = || running.volume.stats.totals().written_back_blocks;
        let before = written();
        let drained = self.lanes.watch(work, block, move |state, left| async move {
            let engine = state.engine(number)?;
            engine.drain(&own, |blocks| left.set(blocks)).await.map_err(faults::engine)
        });
        let drained = drained.and_then(|()| self.check_drained(name, &running));
        let written_back = written().saturating_sub(before) * block;
        work.add(Moved { written_back, discarded: 0 });
        self.served.phase(name, VolumeState::Running);
        if drained.is_ok() && dirty > 0 {
            let said = format!("the dirty blocks of volume '{name}' were written to its origin");
            let event = NewEvent::new(EventKind::Drained, said).volume(name);
            self.events.record(event.with("bytes", dirty));
        }
        drained
    }

    pub(super) fn delete_now(
        self: &Arc<Self>,
        volume: &Definition,
        discard_dirty: bool,
        work: &Arc<Work>,
    ) -> Result<Remains, ApiError> {
        let name = &volume.name;
        let was_served = self.served.get(name).is_ok();
        if !was_served
            && let Some(remains) = self.bring_up_to_delete(volume, discard_dirty, work)?
        {
            return Ok(remains);
        }
        let before = self.served.get(name)?.volume.settings();
        if !discard_dirty && let Err(error) = self.drain_for_good(name, &before, work) {
            if !was_served {
                self.stop_unwanted(name);
            }
            return Err(ways_out(volume, error));
        }
        let running = self.served.get(name)?;
        let place = &running.place.clone();
        self.served.phase(name, VolumeState::Stopping);
        let discarded = running.volume.dirty_blocks() * running.block_bytes();
        let _wait = self.served.wait_for(name, &volume.origin);
        let (number, own, own_work) = (place.number, name.to_string(), work.clone());
        let deleted = self.lanes.run(0, move |state| async move {
            let engine = state.engine(number)?;
            // With --discard-dirty the volume has already been removed from the state, so the
            // deletion is completed.
            let commit = || if discard_dirty { Ok(()) } else { own_work.commit().map(drop) };
            let progress = |_| match own_work.is_cancelled() && !discard_dirty {
                true => Err(Cancelled),
                false => Ok(()),
            };
            engine.delete(&own, discard_dirty, progress, commit).await.map_err(faults::engine)
        });
        let left = match deleted.and_then(|deleted| deleted) {
            Ok(recorded) => {
                work.add(Moved { written_back: 0, discarded });
                self.using(place, move || {
                    self.dismiss(&running.place, &running.volume);
                    self.served.remove(name);
                    Ok::<_, ApiError>(())
                })?;
                return Ok(recorded.into());
            }
            Err(error) => error,
        };
        let nothing_to_keep = running.store().health.failed()
            && running.volume.dirty_blocks() == 0
            && left.kind != ErrorKind::Cancelled;
        if !discard_dirty && !nothing_to_keep {
            self.defer_again(name, &before);
            self.served.phase(name, VolumeState::Running);
            if !was_served {
                drop(running);
                self.stop_unwanted(name);
            }
            return Err(ways_out(volume, left));
        }
        // The cache device cannot record it; the data is discarded when the device is next opened.
        tracing::warn!(volume = %name, "cannot record the deletion on its cache device: {left}");
        if let Err(error) = self.using(place, move || self.take_away(name, running)) {
            tracing::warn!(volume = %name, "it did not stop cleanly: {error}");
        }
        Ok(Remains::OnCacheDevice)
    }

    /// Starts a volume that is to be deleted, so that its dirty blocks can be written back. Returns
    /// the remains if this deletes the volume.
    fn bring_up_to_delete(
        self: &Arc<Self>,
        volume: &Definition,
        discard_dirty: bool,
        work: &Arc<Work>,
    ) -> Result<Option<Remains>, ApiError> {
        let name = &volume.name;
        if spec("cache", &volume.cache)?.is_volatile() {
            return Ok(Some(Remains::None));
        }
        self.served.begin(volume)?;
        if discard_dirty {
            let _wait = self.served.wait_for(name, &volume.cache);
            let forgotten = self.forget_stopped(volume);
            self.served.remove(name);
            let remains = forgotten.unwrap_or_else(|error| {
                tracing::warn!(volume = %name, "cannot record the deletion on its cache device: {error}");
                Remains::OnCacheDevice
            });
            return Ok(Some(remains));
        }
        match self.bring_up(volume, &How { work: work.clone(), ..How::default() }) {
            Ok(_) => Ok(None),
            Err(error) => {
                self.served.remove(name);
                match error {
                    // An earlier delete got this far.
                    StartError::Unknown(_) => Ok(Some(Remains::None)),
                    error => Err(ways_out(volume, error.into())),
                }
            }
        }
    }
}

/// Adds to the error of a delete the command that deletes the volume without its cache device.
fn ways_out(volume: &Definition, mut error: ApiError) -> ApiError {
    let way_out = format!("'forebay delete --discard-dirty {}'", volume.name);
    if !error.message.contains(&way_out) {
        error.message.push_str(&format!(
            "; {way_out} deletes it and discards blocks that exist only on its cache device"
        ));
    }
    error
}
