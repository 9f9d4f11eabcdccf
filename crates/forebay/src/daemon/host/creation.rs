//! Creates and adopts volumes, and formats caches for them.

use std::path::PathBuf;
use std::sync::Arc;

use forebay_admin::{ApiError, ErrorKind};
use forebay_core::BlockSize;
use forebay_device::{Device, DeviceSpec, IoBuf};
use forebay_engine::{Cache, VolumeSpec, settings_of};
use forebay_format::{PAGE, Superblock, Uuid};
use forebay_lane::MemoryBudget;
use forebay_store::Roots;
use forebay_store::{FormatOptions, Store, StoreOptions, format};

use super::caches::{self, Place};
use super::inspect::{self, Content};
use super::volumes::{blocks_of, made, spec};
use super::{EngineHost, access_of, claim, claim_for, faults, settings};
use crate::daemon::host_api::{Definition, Existing, StartError};
use crate::daemon::operations::Work;

/// A newly created file, deleted on drop unless it is kept.
struct Made(Option<PathBuf>);

impl Made {
    /// Creates the file of a specification with a size, if it is missing.
    fn new(memory: &Arc<MemoryBudget>, field: &str, spec: &DeviceSpec) -> Result<Self, ApiError> {
        let missing = spec.path().filter(|path| matches!(path.try_exists(), Ok(false)));
        let Some(path) = missing.map(|path| path.to_owned()) else { return Ok(Made(None)) };
        drop(claim(memory, field, spec)?);
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
    /// See [`crate::daemon::host_api::Host::create`].
    pub(super) fn create_volume(
        self: &Arc<Self>,
        volume: &Definition,
        existing: Existing,
        work: &Arc<Work>,
    ) -> Result<(), ApiError> {
        self.served.begin(volume)?;
        let (own, unwanted) = (volume.clone(), volume.clone());
        self.attended(
            &volume.name,
            work,
            move |host, _| {
                let result = host.create_now(&own, existing);
                if result.is_err() {
                    host.served.remove(&own.name);
                }
                result
            },
            move |host, ()| {
                if let Err(error) = host.delete_now(&unwanted, true, &Arc::default()) {
                    tracing::error!(volume = %unwanted.name, "cannot undo the abandoned creation: {error}");
                }
            },
        )
    }

    fn create_now(
        self: &Arc<Self>,
        volume: &Definition,
        existing: Existing,
    ) -> Result<(), ApiError> {
        self.served.ram.make(
            &volume.name,
            &volume.settings,
            self.lanes.memory(),
            self.lanes.clock(),
        )?;
        let (cache_spec, origin_spec) =
            (spec("cache", &volume.cache)?, spec("origin", &volume.origin)?);
        let made = [
            Made::new(&self.memory, "cache", &cache_spec)?,
            Made::new(&self.memory, "origin", &origin_spec)?,
        ];
        let same = |a: &DeviceSpec, b: &DeviceSpec| matches!((a.identity(), b.identity()), (Ok(Some(a)), Ok(Some(b))) if a == b);
        if same(&cache_spec, &origin_spec) {
            return Err(ApiError::invalid(
                "origin",
                "it is also the cache device; name two devices",
            ));
        }
        let origin = {
            let _wait = self.served.wait_for(&volume.name, &volume.origin);
            let access = access_of(&volume.settings);
            let origin = claim_for(access, &self.memory, "origin", &origin_spec)?;
            // Before anything is written for this volume.
            self.await_answer(&origin)?;
            origin
        };
        let place = self.caches.place(&cache_spec, &volume.name)?;
        let created = self.using(&place, || {
            let open = self.open_new(volume, existing, &cache_spec, &origin, &place)?;
            let _wait = self.served.wait_for(&volume.name, &volume.origin);
            self.create_in(volume, origin, &place, &open)
        });
        if created.is_ok() {
            made.into_iter().for_each(Made::keep);
        }
        created.and_then(|()| self.begin_deferring(&volume.name, &volume.settings))
    }

    /// Waits until an origin has answered, with success or an error.
    fn await_answer(&self, origin: &Arc<dyn Device>) -> Result<(), ApiError> {
        let origin = origin.clone();
        self.lanes.run(0, move |state| async move {
            let queue = state.context.open(&origin).map_err(faults::engine)?;
            let len = origin.size().min(PAGE as u64) as usize;
            let _ = queue.read(0, IoBuf::zeroed(len)).await;
            let _ = queue.sync().await;
            Ok(())
        })?
    }

    /// Returns the cache for a new volume; opens it if necessary.
    fn open_new(
        &self,
        volume: &Definition,
        existing: Existing,
        cache_spec: &DeviceSpec,
        origin: &Arc<dyn Device>,
        place: &Arc<Place>,
    ) -> Result<Arc<Cache>, ApiError> {
        let _wait = self.served.wait_for(&volume.name, &volume.cache);
        let mut cache = place.lock();
        if let Some(open) = &*cache {
            check_block_size(volume, open.store.block_size())?;
            return Ok(open.clone());
        }
        let device = match existing {
            Existing::Join => claim(&self.memory, "cache", &cache_spec.made())?,
            Existing::Spare | Existing::Overwrite => claim(&self.memory, "cache", cache_spec)?,
        };
        self.prepare(volume, existing, &device)?;
        let room = blocks_of(volume, origin);
        let opened = caches::open(&self.lanes, place, device, room, Vec::new())?;
        self.remove_deleted(place, &opened);
        *cache = Some(opened.clone());
        Ok(opened)
    }

    /// See [`crate::daemon::host_api::Host::adopt`].
    pub(super) fn adopt_volume(
        self: &Arc<Self>,
        volume: &mut Definition,
        force: bool,
        work: &Arc<Work>,
    ) -> Result<(), StartError> {
        self.served.begin(volume)?;
        let own = volume.clone();
        let unwanted = volume.name.clone();
        *volume = self.attended(
            &volume.name,
            work,
            move |host, _| {
                let result = host.adopt_now(&own, force);
                if result.is_err() {
                    host.served.remove(&own.name);
                }
                result
            },
            move |host, _| host.stop_quietly(&unwanted),
        )?;
        Ok(())
    }

    fn adopt_now(
        self: &Arc<Self>,
        asked: &Definition,
        force: bool,
    ) -> Result<Definition, StartError> {
        let mut volume = asked.clone();
        let cache_spec = made("cache", &volume.cache)?;
        if cache_spec.is_volatile() {
            return Err(
                ApiError::invalid("cache", "a cache in RAM holds no volume to adopt").into()
            );
        }
        // A missing device must not be created anew, empty.
        let _wait = self.served.wait_for(&asked.name, &asked.cache);
        let place = self.caches.place(&cache_spec, &volume.name)?;
        let (block, cache, records) = match &*place.lock() {
            Some(open) => (open.store.block_size(), open.store.uuid(), open.store.volumes()),
            None => {
                let device = claim(&self.memory, "cache", &cache_spec)?;
                let content = self.lanes.run(0, move |state| async move {
                    inspect::content(&state.context, &device).await
                })??;
                match content {
                    Content::Cache(roots) => {
                        let Superblock { geometry, cache, .. } = roots.superblock;
                        (geometry.block, cache, roots.volumes)
                    }
                    Content::Nothing => {
                        return Err(ApiError::invalid("cache", "it is not a Forebay cache").into());
                    }
                    Content::Unusable(why) => {
                        let message = format!("cache: {} cannot be used: {why}", volume.cache);
                        return Err(ApiError::new(ErrorKind::Refused, message)
                            .about("cache")
                            .into());
                    }
                }
            }
        };
        let Some(record) = inspect::record_of(&records, &volume.name) else {
            let names: Vec<&str> = records.iter().map(|record| record.name.as_str()).collect();
            let message = format!(
                "name: {} holds no volume '{}'; it holds {}",
                volume.cache,
                volume.name,
                if names.is_empty() { "none".to_owned() } else { names.join(", ") }
            );
            return Err(ApiError::new(ErrorKind::Refused, message).about("name").into());
        };
        if self.caches.known.is_deleted(record.uuid) {
            if !force {
                let message = format!(
                    "name: '{}' was deleted by this daemon while {} was unavailable; its blocks there may be older than the origin; use --force to adopt it anyway",
                    volume.name, volume.cache
                );
                return Err(ApiError::new(ErrorKind::DataAtRisk, message).about("name").into());
            }
            self.caches.known.facts().deleted.remove(&record.uuid);
        }
        volume.block_size = block.bytes();
        volume.alignment = record.alignment.into();
        let settings = settings_of(record);
        volume.version = settings.version;
        volume.settings = settings::for_operator(&settings);
        (volume.uuid, volume.cache_uuid) = (Some(record.uuid), Some(cache));
        self.bring_up(&volume, force)?;
        Ok(volume)
    }

    /// Creates the volume in an open cache.
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
            uuid: volume.uuid.unwrap_or_else(Uuid::new_v4),
            alignment: volume.alignment,
            settings: settings::of(volume),
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
                        tracing::error!(volume = %volume.name, "cannot remove the half-created volume: {error}");
                    }
                }
                Err(error)
            }
        }
    }

    /// Formats the device as a cache, unless it holds one that must be kept.
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
                    "cache: {} is the cache device of other volumes, but holds no usable cache; see 'forebay check'",
                    device.name()
                );
                return Err(ApiError::new(ErrorKind::Refused, message).about("cache"));
            }
            (Existing::Spare, Content::Unusable(why)) => {
                return at_risk(format!("holds a Forebay cache that cannot be used ({why})"));
            }
            (Existing::Spare, Content::Cache(roots)) if self.has_volumes(&roots) => {
                let names: Vec<&str> =
                    roots.volumes.iter().map(|record| record.name.as_str()).collect();
                let names = names.join(", ");
                let message = format!(
                    "cache: {} holds a Forebay cache with the volumes {names}; use --adopt to adopt the one of this name with its dirty blocks, or --force to overwrite the cache and lose them",
                    device.name()
                );
                return Err(ApiError::new(ErrorKind::DataAtRisk, message).about("cache"));
            }
            (Existing::Spare | Existing::Overwrite, _) => {}
        }
        self.format(volume, device)
    }

    /// Whether the cache has a volume that has not been deleted.
    fn has_volumes(&self, roots: &Roots) -> bool {
        roots.volumes.iter().any(|record| !self.caches.known.is_deleted(record.uuid))
    }

    pub(super) fn format(
        &self,
        volume: &Definition,
        device: &Arc<dyn Device>,
    ) -> Result<(), ApiError> {
        let block = BlockSize::new(volume.block_size).unwrap_or_default();
        let opened = StoreOptions {
            lanes: self.lanes.count() as usize,
            memory: self.lanes.memory().clone(),
            ..StoreOptions::default()
        };
        Store::fits(device, block, &opened).map_err(|error| faults::store(error).about("cache"))?;
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
