//! Making volumes, and the caches that they need.

use std::path::PathBuf;
use std::sync::Arc;

use forebay_admin::{ApiError, ErrorKind};
use forebay_core::BlockSize;
use forebay_device::{Device, DeviceSpec};
use forebay_engine::{Cache, VolumeSettings, VolumeSpec};
use forebay_format::Uuid;
use forebay_store::{FormatOptions, format};

use super::caches::{self, Place};
use super::inspect::{self, Content};
use super::volumes::{blocks_of, made, spec};
use super::{EngineHost, claim, faults, settings};
use crate::daemon::host_api::{Definition, Existing};
use crate::daemon::operations::Work;

/// A file that was not there before; goes again unless it is kept.
struct Made(Option<PathBuf>);

impl Made {
    /// Makes the file of a specification with a size, if it is missing.
    fn new(field: &str, spec: &DeviceSpec) -> Result<Self, ApiError> {
        let missing = spec.path().filter(|path| matches!(path.try_exists(), Ok(false)));
        let Some(path) = missing.map(|path| path.to_owned()) else { return Ok(Made(None)) };
        drop(claim(field, spec)?);
        Ok(Made(Some(path)))
    }

    fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        if let Some(path) = self.0.take() {
            let _ = std::fs::remove_file(path);
        }
    }
}

impl EngineHost {
    /// See [`super::super::host_api::Host::create`].
    pub(super) fn create_volume(
        &self,
        volume: &Definition,
        existing: Existing,
        _work: &Work,
    ) -> Result<(), ApiError> {
        let (cache_spec, origin_spec) =
            (spec("cache", &volume.cache)?, spec("origin", &volume.origin)?);
        let made = [Made::new("cache", &cache_spec)?, Made::new("origin", &origin_spec)?];
        let same = |a: &DeviceSpec, b: &DeviceSpec| matches!((a.identity(), b.identity()), (Ok(Some(a)), Ok(Some(b))) if a == b);
        if same(&cache_spec, &origin_spec) {
            return Err(ApiError::invalid("origin", "it is the cache device itself; name two"));
        }
        let origin = claim("origin", &origin_spec)?;
        let place = self.caches.place(&cache_spec, &volume.name)?;
        let mut cache = place.lock();
        let result = self.create_at(volume, existing, &cache_spec, origin, &place, &mut cache);
        match result {
            Ok(()) => made.into_iter().for_each(Made::keep),
            Err(_) => {
                self.served.remove(&volume.name);
                self.close_unused(&place, &mut cache)?;
            }
        }
        result
    }

    fn create_at(
        &self,
        volume: &Definition,
        existing: Existing,
        cache_spec: &DeviceSpec,
        origin: Arc<dyn Device>,
        place: &Arc<Place>,
        cache: &mut Option<Arc<Cache>>,
    ) -> Result<(), ApiError> {
        self.served.begin(volume);
        let open = match cache {
            Some(open) => {
                check_block_size(volume, open.store.block_size())?;
                open.clone()
            }
            None => {
                let device = match existing {
                    Existing::Join => claim("cache", &cache_spec.made())?,
                    Existing::Spare | Existing::Overwrite => claim("cache", cache_spec)?,
                };
                self.prepare(volume, existing, &device)?;
                let room = blocks_of(volume, &origin);
                let opened = caches::open(&self.lanes, place, device, room, Vec::new())?;
                cache.insert(opened).clone()
            }
        };
        self.create_in(volume, origin, place, &open)
    }

    /// See [`super::super::host_api::Host::adopt`].
    pub(super) fn adopt_volume(
        &self,
        volume: &mut Definition,
        force: bool,
        work: &Work,
    ) -> Result<(), ApiError> {
        let cache_spec = made("cache", &volume.cache)?;
        if cache_spec.is_volatile() {
            return Err(ApiError::invalid("cache", "RAM holds no volume that could be adopted"));
        }
        // What is missing must not be made anew, empty.
        cache_spec.identity().map_err(|error| faults::open("cache", &error))?;
        let place = self.caches.place(&cache_spec, &volume.name)?;
        let (block, records) = match &*place.lock() {
            Some(open) => (open.store.block_size(), open.store.volumes()),
            None => {
                let device = claim("cache", &cache_spec)?;
                let content = self.lanes.run(0, move |state| async move {
                    inspect::content(&state.context, &device).await
                })??;
                match content {
                    Content::Cache(roots) => (roots.superblock.geometry.block, roots.volumes),
                    Content::Nothing => {
                        return Err(ApiError::invalid("cache", "it is no Forebay cache"));
                    }
                    Content::Unusable(why) => {
                        let message = format!("cache: {} cannot be used: {why}", volume.cache);
                        return Err(ApiError::new(ErrorKind::Refused, message).about("cache"));
                    }
                }
            }
        };
        let Some(record) = records.iter().find(|record| record.name == volume.name.as_str()) else {
            let names: Vec<&str> = records.iter().map(|record| record.name.as_str()).collect();
            let message = format!(
                "name: {} holds no volume '{}', but {}",
                volume.cache,
                volume.name,
                if names.is_empty() { "none at all".to_owned() } else { names.join(", ") }
            );
            return Err(ApiError::new(ErrorKind::Refused, message).about("name"));
        };
        volume.block_size = block.bytes();
        volume.alignment = record.alignment.into();
        volume.settings = settings::for_operator(&VolumeSettings::of(record));
        self.start_volume(volume, force, work)
    }

    /// Creates the volume in a cache that is open.
    pub(super) fn create_in(
        &self,
        volume: &Definition,
        origin: Arc<dyn Device>,
        place: &Arc<Place>,
        cache: &Arc<Cache>,
    ) -> Result<(), ApiError> {
        let known = |cache: &Cache| {
            cache.store.volumes().iter().any(|record| record.name == volume.name.as_str())
        };
        if known(cache) {
            let message = format!(
                "name: the cache device {} holds a volume '{}' already; choose another name",
                volume.cache, volume.name
            );
            return Err(ApiError::new(ErrorKind::Refused, message).about("name"));
        }
        let wanted = VolumeSpec {
            name: volume.name.to_string(),
            origin: volume.origin.clone(),
            uuid: Uuid::new_v4(),
            alignment: volume.alignment,
            settings: settings::for_engine(&volume.settings),
        };
        let number = place.number;
        let created = self.lanes.run(0, move |state| async move {
            state.engine(number)?.create(wanted, origin).await.map_err(faults::engine)
        });
        match created.and_then(|created| created) {
            Ok(created) => {
                self.served.running(volume, place, cache, &created);
                Ok(())
            }
            Err(error) => {
                if known(cache) {
                    let name = volume.name.to_string();
                    let undone = self.lanes.run(0, move |state| async move {
                        let engine = state.engine(number)?;
                        engine.delete_stopped(&name, true).await.map_err(faults::engine)
                    });
                    if let Err(error) = undone.and_then(|undone| undone) {
                        tracing::error!(volume = %volume.name, "half made and still there: {error}");
                    }
                }
                Err(error)
            }
        }
    }

    /// Makes a cache of the device, unless it is one that is to be kept.
    fn prepare(
        &self,
        volume: &Definition,
        existing: Existing,
        device: &Arc<dyn Device>,
    ) -> Result<(), ApiError> {
        let at_risk = |what: String| {
            let message = format!("cache: {} {what}; use --force to overwrite it", device.name());
            Err(ApiError::new(ErrorKind::DataAtRisk, message).about("cache"))
        };
        let own = device.clone();
        let content = self
            .lanes
            .run(0, move |state| async move { inspect::content(&state.context, &own).await })??;
        match (existing, content) {
            (Existing::Join, Content::Cache(roots)) => {
                return check_block_size(volume, roots.superblock.geometry.block);
            }
            (Existing::Join, _) => {
                let message = format!(
                    "cache: {} is the cache device of other volumes, but there is no usable cache on it; see 'forebay check'",
                    device.name()
                );
                return Err(ApiError::new(ErrorKind::Refused, message).about("cache"));
            }
            (Existing::Spare, Content::Unusable(why)) => {
                return at_risk(format!("holds a Forebay cache that cannot be used ({why})"));
            }
            (Existing::Spare, Content::Cache(roots)) if !roots.volumes.is_empty() => {
                let names: Vec<&str> =
                    roots.volumes.iter().map(|record| record.name.as_str()).collect();
                let names = names.join(", ");
                let message = format!(
                    "cache: {} holds a Forebay cache with the volumes {names}; --adopt takes over the one of this name with its dirty blocks, --force overwrites it and loses them",
                    device.name()
                );
                return Err(ApiError::new(ErrorKind::DataAtRisk, message).about("cache"));
            }
            (Existing::Spare | Existing::Overwrite, _) => {}
        }
        self.format(volume, device)
    }

    pub(super) fn format(
        &self,
        volume: &Definition,
        device: &Arc<dyn Device>,
    ) -> Result<(), ApiError> {
        let block = BlockSize::new(volume.block_size).unwrap_or_default();
        let options = FormatOptions { block, segment_bytes: None, uuid: Uuid::new_v4() };
        let device = device.clone();
        self.lanes.run(0, move |state| async move {
            let queue = state.context.open(&device).map_err(faults::engine)?;
            format(&device, &queue, &options)
                .await
                .map_err(|error| faults::store(error).about("cache"))
        })?
    }
}

fn check_block_size(volume: &Definition, there: BlockSize) -> Result<(), ApiError> {
    if there.bytes() == volume.block_size {
        return Ok(());
    }
    let reason = format!(
        "the cache device has blocks of {there}, and all of its volumes share them; give --block-size {there}"
    );
    Err(ApiError::invalid("block_size", reason))
}
