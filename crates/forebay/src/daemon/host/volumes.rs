//! The life of a volume, step by step: what [`super::super::host_api::Host`] promises.

use std::sync::Arc;

use forebay_admin::{ApiError, ErrorKind, Settings, VolumeName, VolumeState};
use forebay_device::{Device, DeviceSpec};
use forebay_engine::{Cache, Volume};
use forebay_store::Roots;

use super::caches::{self, Place};
use super::inspect::{self, Content};
use super::{CLOSE_PATIENCE, EngineHost, claim, faults, settings};
use crate::daemon::host_api::Definition;
use crate::daemon::operations::Work;

/// Reads a device that an operator named in `field`.
pub(super) fn spec(field: &str, text: &str) -> Result<DeviceSpec, ApiError> {
    text.parse().map_err(|error| ApiError::invalid(field, error))
}

/// As [`spec`], of a device that is there already.
pub(super) fn made(field: &str, text: &str) -> Result<DeviceSpec, ApiError> {
    spec(field, text).map(|spec| spec.made())
}

/// Blocks that the volume will have.
pub(super) fn blocks_of(volume: &Definition, origin: &Arc<dyn Device>) -> u64 {
    origin.size().saturating_add(volume.alignment).div_ceil(volume.block_size.max(1))
}

impl EngineHost {
    /// See [`super::super::host_api::Host::start`].
    pub(super) fn start_volume(
        &self,
        volume: &Definition,
        force: bool,
        _work: &Work,
    ) -> Result<(), ApiError> {
        let (cache_spec, origin_spec) =
            (made("cache", &volume.cache)?, made("origin", &volume.origin)?);
        // What was there yesterday and is missing today must not be made anew, empty.
        for (field, spec) in [("cache", &cache_spec), ("origin", &origin_spec)] {
            spec.identity().map_err(|error| faults::open(field, &error))?;
        }
        self.served.begin(volume);
        let result = (|| {
            let origin = claim("origin", &origin_spec)?;
            let place = self.caches.place(&cache_spec, &volume.name)?;
            let mut cache = place.lock();
            let result = self.start_at(volume, force, &cache_spec, origin, &place, &mut cache);
            if result.is_err() {
                self.close_unused(&place, &mut cache)?;
            }
            result
        })();
        if result.is_err() {
            self.served.remove(&volume.name);
        }
        result
    }

    fn start_at(
        &self,
        volume: &Definition,
        force: bool,
        cache_spec: &DeviceSpec,
        origin: Arc<dyn Device>,
        place: &Arc<Place>,
        cache: &mut Option<Arc<Cache>>,
    ) -> Result<(), ApiError> {
        if place.volatile {
            // RAM comes back empty, and was drained before it went.
            let device = claim("cache", cache_spec)?;
            self.format(volume, &device)?;
            let room = blocks_of(volume, &origin);
            let opened = caches::open(&self.lanes, place, device, room, Vec::new())?;
            let opened = cache.insert(opened).clone();
            return self.create_in(volume, origin, place, &opened);
        }
        let open = match cache {
            Some(open) => open.clone(),
            None => {
                let device = claim("cache", cache_spec)?;
                let roots = self.check_pair(volume, &device, &origin, force)?;
                let grown = inspect::grown(&roots, &volume.name, origin.size());
                let opened = caches::open(&self.lanes, place, device, 0, grown)?;
                cache.insert(opened).clone()
            }
        };
        let (number, name) = (place.number, volume.name.to_string());
        let attached = self.lanes.run(0, move |state| async move {
            state.engine(number)?.attach(&name, origin, force).await.map_err(faults::engine)
        })??;
        let wanted = settings::for_engine(&volume.settings);
        if attached.settings() != wanted {
            self.apply(place, &volume.name, wanted)?;
        }
        self.served.running(volume, place, &open, &attached);
        Ok(())
    }

    fn check_pair(
        &self,
        volume: &Definition,
        device: &Arc<dyn Device>,
        origin: &Arc<dyn Device>,
        force: bool,
    ) -> Result<Roots, ApiError> {
        let (device, origin, name) = (device.clone(), origin.clone(), volume.name.clone());
        self.lanes.run(0, move |state| async move {
            let context = &state.context;
            let refused = |what: &str| {
                let message = format!("the cache device {} {what}", device.name());
                Err(ApiError::new(ErrorKind::Refused, message))
            };
            match inspect::content(context, &device).await? {
                Content::Nothing => refused("is no Forebay cache; name the device that is"),
                Content::Unusable(why) => refused(&format!("cannot be used: {why}")),
                Content::Cache(roots) => {
                    inspect::check_pair(context, &device, &roots, &name, &origin, force).await?;
                    Ok(*roots)
                }
            }
        })?
    }

    fn apply(
        &self,
        place: &Place,
        name: &VolumeName,
        wanted: forebay_engine::VolumeSettings,
    ) -> Result<(), ApiError> {
        let (number, name) = (place.number, name.to_string());
        self.lanes.run(0, move |state| async move {
            state.engine(number)?.set(&name, wanted).await.map_err(faults::engine)
        })?
    }

    /// Closes a cache that no volume uses.
    pub(super) fn close_unused(
        &self,
        place: &Place,
        cache: &mut Option<Arc<Cache>>,
    ) -> Result<(), ApiError> {
        match cache {
            Some(open) if open.volumes().is_empty() => {
                caches::close(&self.lanes, place.number, cache, CLOSE_PATIENCE)
            }
            _ => Ok(()),
        }
    }

    /// See [`super::super::host_api::Host::stop`]. A volume whose cache is in RAM is drained first,
    /// and goes on if that fails.
    pub(super) fn stop_volume(&self, name: &VolumeName, work: &Work) -> Result<(), ApiError> {
        let running = self.served.get(name)?;
        if running.place.volatile {
            self.drain_volume(name, work)?;
        }
        self.served.phase(name, VolumeState::Stopping);
        let mut cache = running.place.lock();
        let (number, own) = (running.place.number, name.to_string());
        let stopped = self.lanes.run(0, move |state| async move {
            state.engine(number)?.stop_volume(&own, true).await.map_err(faults::engine)
        });
        self.leave(&running.place, &running.volume, &mut cache, stopped.and_then(|stopped| stopped))
    }

    /// The end of a volume that has left its cache.
    fn leave(
        &self,
        place: &Place,
        volume: &Arc<Volume>,
        cache: &mut Option<Arc<Cache>>,
        result: Result<(), ApiError>,
    ) -> Result<(), ApiError> {
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
        if let Ok(name) = volume.name.parse() {
            self.served.remove(&name);
        }
        result.and(self.close_unused(place, cache))
    }

    /// See [`super::super::host_api::Host::set`]. If draining fails or is given up, the volume is
    /// as it was.
    pub(super) fn set_volume(
        &self,
        name: &VolumeName,
        settings: &Settings,
        work: &Work,
    ) -> Result<(), ApiError> {
        let running = self.served.get(name)?;
        let before = running.volume.settings();
        let wanted = settings::for_engine(settings);
        let drains = settings::keeps_dirty(before.mode) && !settings::keeps_dirty(wanted.mode);
        self.apply(&running.place, name, wanted)?;
        if drains && let Err(error) = self.drain_volume(name, work) {
            self.apply(&running.place, name, before)?;
            return Err(error);
        }
        Ok(())
    }

    /// See [`super::super::host_api::Host::flush`].
    pub(super) fn drain_volume(&self, name: &VolumeName, work: &Work) -> Result<(), ApiError> {
        let running = self.served.get(name)?;
        self.served.phase(name, VolumeState::Draining);
        let (number, own) = (running.place.number, name.to_string());
        let block = running.block_bytes();
        let drained = self.lanes.watch(work, block, move |state, left| async move {
            let engine = state.engine(number)?;
            engine.drain(&own, |blocks| left.set(blocks)).await.map_err(faults::engine)
        });
        self.served.phase(name, VolumeState::Running);
        drained
    }

    /// See [`super::super::host_api::Host::delete`].
    pub(super) fn delete_volume(
        &self,
        volume: &Definition,
        discard_dirty: bool,
        work: &Work,
    ) -> Result<(), ApiError> {
        let name = &volume.name;
        let was_served = self.served.get(name).is_ok();
        if !was_served {
            if spec("cache", &volume.cache)?.is_volatile() {
                return Ok(());
            }
            if discard_dirty {
                return self.forget_stopped(volume);
            }
            self.start_volume(volume, false, work)?;
        }
        if !discard_dirty && let Err(error) = self.drain_volume(name, work) {
            if !was_served && let Err(error) = self.stop_volume(name, work) {
                tracing::error!(volume = %name, "stopping it again: {error}");
            }
            return Err(error);
        }
        let running = self.served.get(name)?;
        self.served.phase(name, VolumeState::Stopping);
        let mut cache = running.place.lock();
        let (number, own) = (running.place.number, name.to_string());
        let deleted = self.lanes.run(0, move |state| async move {
            let engine = state.engine(number)?;
            engine.delete(&own, discard_dirty, |_| ()).await.map_err(faults::engine)
        });
        match deleted.and_then(|deleted| deleted) {
            Ok(()) => self.leave(&running.place, &running.volume, &mut cache, Ok(())),
            Err(error) => {
                self.served.phase(name, VolumeState::Running);
                Err(error)
            }
        }
    }

    /// Takes a stopped volume out of its cache with all of its blocks; a cache that is gone has
    /// none.
    fn forget_stopped(&self, volume: &Definition) -> Result<(), ApiError> {
        let cache_spec = made("cache", &volume.cache)?;
        let Ok(place) = self.caches.place(&cache_spec, &volume.name) else { return Ok(()) };
        let mut cache = place.lock();
        if cache.is_none() {
            let device = claim("cache", &cache_spec)?;
            let own = device.clone();
            let content = self.lanes.run(0, move |state| async move {
                inspect::content(&state.context, &own).await
            })??;
            let Content::Cache(roots) = content else { return Ok(()) };
            if !roots.volumes.iter().any(|record| record.name == volume.name.as_str()) {
                return Ok(());
            }
            *cache = Some(caches::open(&self.lanes, &place, device, 0, Vec::new())?);
        }
        let (number, name) = (place.number, volume.name.to_string());
        let forgotten = self.lanes.run(0, move |state| async move {
            state.engine(number)?.delete_stopped(&name, true).await.map_err(faults::engine)
        });
        forgotten.and_then(|forgotten| forgotten).and(self.close_unused(&place, &mut cache))
    }
}
