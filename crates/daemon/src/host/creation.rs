//! Creates and adopts volumes, and formats caches for them.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use forebay_admin::{ApiError, ErrorKind};
use forebay_core::BlockSize;
use forebay_device::{Device, DeviceSpec, IoBuf};
use forebay_engine::{Cache, VolumeSpec, settings_of};
use forebay_format::{PAGE, Superblock, Uuid, VolumeRecord};
use forebay_store::{FormatOptions, Store, StoreOptions, format};

use super::caches::{self, CacheSlot};
use super::devices::Devices;
use super::inspect::{self, CacheContent};
use super::overwriting::New;
use super::volumes::{blocks_of, made, spec};
use super::{EngineHost, How, access_of, faults, settings};
use crate::host_api::{Copied, Creation, Definition, Existing, Making, StartError, fresh_uuid};
use crate::paths::io_error;
use crate::planted::{self, PlantedBug};
use crate::preflight::same_cache;
use crate::work::{Effect, Work};

/// A newly created file. Dropping this deletes the file, unless it is kept, was replaced, or is in
/// use.
struct Made(Option<NewFile>);

struct NewFile {
    devices: Devices,
    field: &'static str,
    spec: DeviceSpec,
    path: PathBuf,
    /// Filesystem and inode.
    identity: (u64, u64),
}

impl NewFile {
    /// Deletes the file if it is still the created one. The claim excludes other users meanwhile.
    fn delete(&self) -> Result<(), ApiError> {
        let _claimed = self.devices.claim(self.field, &self.spec.made())?;
        let failed = |error| io_error("cannot delete", &self.path, &error);
        if identity(&self.path).map_err(failed)? == self.identity {
            fs::remove_file(&self.path).map_err(failed)?;
        }
        Ok(())
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    fs::metadata(path).map(|file| (file.dev(), file.ino()))
}

impl Made {
    /// Creates the file of a specification with a size, if it is missing.
    fn new(devices: &Devices, field: &'static str, spec: &DeviceSpec) -> Result<Self, ApiError> {
        let missing = spec.path().filter(|path| matches!(path.try_exists(), Ok(false)));
        let Some(path) = missing.map(Path::to_owned) else { return Ok(Made(None)) };
        let _claimed = devices.claim(field, spec)?;
        let identity =
            identity(&path).map_err(|error| io_error("cannot look at", &path, &error))?;
        Ok(Made(Some(NewFile {
            devices: devices.clone(),
            field,
            spec: spec.clone(),
            path,
            identity,
        })))
    }

    fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        if let Some(Err(error)) = self.0.take().map(|file| file.delete()) {
            tracing::warn!("a file that was created for a volume stays: {error}");
        }
    }
}

/// A creation that has examined the cache device.
struct PendingCreation {
    host: Arc<EngineHost>,
    new: New,
    created: bool,
}

impl Creation for PendingCreation {
    fn create(mut self: Box<Self>) -> Result<(), ApiError> {
        let New { volume, work, .. } = &self.new;
        let (host, name, work) = (self.host.clone(), volume.name.clone(), work.clone());
        host.attended(&name, &work, move |host, _| {
            let created = host.bring_in(&self.new);
            self.created = created.is_ok();
            created
        })
    }
}

impl Drop for PendingCreation {
    fn drop(&mut self) {
        if !self.created && !planted::has(PlantedBug::NameStays) {
            self.host.served.remove(&self.new.volume.name);
        }
    }
}

impl Making for Arc<EngineHost> {
    fn begin_creation<'a>(
        &'a self,
        volume: &Definition,
        existing: Existing,
        volumes: &[Definition],
        work: &Arc<Work>,
    ) -> Result<Box<dyn Creation + 'a>, ApiError> {
        self.served.begin(volume)?;
        let new = New {
            volume: volume.clone(),
            existing,
            seen: None,
            volumes: volumes.to_vec(),
            work: work.clone(),
        };
        let mut begun = PendingCreation { host: self.clone(), new, created: false };
        let begun = self.attended(&volume.name, work, move |host, _| {
            host.see_first(&mut begun.new).map(|()| begun)
        })?;
        Ok(Box::new(begun))
    }

    fn adopt(
        &self,
        volume: &mut Definition,
        force: bool,
        work: &Arc<Work>,
    ) -> Result<Copied, StartError> {
        self.served.begin(volume)?;
        let own = volume.clone();
        let (adopted, copied) = self.attended(&volume.name, work, move |host, work| {
            let result = host.adopt_now(&own, force, work);
            if result.is_err() {
                host.served.remove(&own.name);
            }
            result
        })?;
        *volume = adopted;
        Ok(copied)
    }

    fn wipe(&self, volume: &Definition, work: &Arc<Work>) -> Result<(), ApiError> {
        self.served.begin(volume)?;
        let own = volume.clone();
        self.attended(&volume.name, work, move |host, work| {
            let wiped = host.wipe_empty(&own, work);
            host.served.remove(&own.name);
            wiped
        })
    }
}

impl EngineHost {
    /// Adds a new volume to the cache on its cache device, which is formatted if necessary.
    fn bring_in(self: &Arc<Self>, new: &New) -> Result<(), ApiError> {
        let New { volume, seen, work, .. } = new;
        let (cache_spec, origin_spec) =
            (spec("cache", &volume.cache)?, spec("origin", &volume.origin)?);
        self.served.ram.make(
            &volume.name,
            &volume.settings,
            self.lanes.memory(),
            self.lanes.clock(),
        )?;
        let made = [
            Made::new(&self.devices, "cache", &cache_spec)?,
            Made::new(&self.devices, "origin", &origin_spec)?,
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
            let origin = self.devices.claim_for(access, "origin", &origin_spec)?;
            // Awaited before anything is written for this volume.
            self.await_answer(&origin)?;
            self.check_not_exchanged(volume, seen.as_ref(), &cache_spec, &origin)?;
            origin
        };
        let place = self.caches.place(&cache_spec, &volume.name)?;
        let created = self.using(&place, || {
            let open = self.open_new(new, &cache_spec, &origin, &place)?;
            let effect = work.commit().map_err(|_| faults::given_up())?;
            let _wait = self.served.wait_for(&volume.name, &volume.origin);
            self.add_volume(volume, origin, &place, &open, &effect)
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
        new: &New,
        cache_spec: &DeviceSpec,
        origin: &Arc<dyn Device>,
        place: &Arc<CacheSlot>,
    ) -> Result<Arc<Cache>, ApiError> {
        let volume = &new.volume;
        let _wait = self.served.wait_for(&volume.name, &volume.cache);
        let mut cache = place.lock();
        if let Some(open) = &*cache {
            check_block_size(volume, open.store.block_size())?;
            return Ok(open.clone());
        }
        let device = match new.existing {
            Existing::Join => self.devices.claim("cache", &cache_spec.made())?,
            Existing::Spare | Existing::Overwrite => self.devices.claim("cache", cache_spec)?,
        };
        self.prepare(new, &device)?;
        let room = blocks_of(volume, origin);
        place.is_copy.store(false, Ordering::SeqCst);
        let opened = caches::open(&self.lanes, place, device, room, Vec::new())?;
        self.remove_deleted(place, &opened, volume.uuid);
        *cache = Some(opened.clone());
        Ok(opened)
    }

    fn adopt_now(
        self: &Arc<Self>,
        asked: &Definition,
        force: bool,
        work: &Arc<Work>,
    ) -> Result<(Definition, Copied), StartError> {
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
                let device = self.devices.claim("cache", &cache_spec)?;
                let content = self.lanes.run(0, move |state| async move {
                    inspect::content(&state.context, &device).await
                })??;
                match content {
                    CacheContent::Cache(roots) => {
                        let Superblock { geometry, cache, .. } = roots.superblock;
                        (geometry.block, cache, roots.volumes)
                    }
                    CacheContent::Nothing => {
                        return Err(ApiError::invalid("cache", "it is not a Forebay cache").into());
                    }
                    CacheContent::Unusable(why) => {
                        let message = format!("cache: {} cannot be used: {why}", volume.cache);
                        return Err(ApiError::new(ErrorKind::Refused, message)
                            .about("cache")
                            .into());
                    }
                }
            }
        };
        let record = self.to_adopt(&volume, &records, force)?;
        volume.block_size = block.bytes();
        volume.alignment = record.alignment.into();
        let settings = settings_of(record);
        volume.version = settings.version;
        volume.settings = settings::for_operator(&settings);
        let uuid = if volume.stored_as.is_some() { fresh_uuid() } else { record.uuid };
        (volume.uuid, volume.cache_uuid) = (Some(uuid), Some(cache));
        let copied = self.bring_up(&volume, &How { force, verify: false, work: work.clone() })?;
        volume.stored_as = None;
        Ok((volume, copied))
    }

    /// Returns the record of a volume that is to be adopted.
    fn to_adopt<'a>(
        &self,
        volume: &Definition,
        records: &'a [VolumeRecord],
        force: bool,
    ) -> Result<&'a VolumeRecord, ApiError> {
        if volume.stored_as.is_some() && inspect::record_of(records, &volume.name).is_some() {
            let message =
                format!("name: {} holds a volume '{}' already", volume.cache, volume.name);
            return Err(ApiError::new(ErrorKind::Refused, message).about("name"));
        }
        let Some(record) = inspect::record_of(records, volume.stored_name()) else {
            let names: Vec<&str> = records.iter().map(|record| record.name.as_str()).collect();
            let message = format!(
                "name: {} holds no volume '{}'; it holds {}",
                volume.cache,
                volume.stored_name(),
                if names.is_empty() { "none".to_owned() } else { names.join(", ") }
            );
            return Err(ApiError::new(ErrorKind::Refused, message).about("name"));
        };
        if self.caches.known.is_deleted(record.uuid) && !force {
            let message = format!(
                "name: '{}' was deleted by this daemon while {} was unavailable; its blocks there may be older than the origin; use --force to adopt it anyway",
                volume.name, volume.cache
            );
            return Err(ApiError::new(ErrorKind::DataAtRisk, message).about("name"));
        }
        if volume.uuid.is_some_and(|known| known != record.uuid) {
            let message = format!(
                "name: this daemon has another volume '{}', on another cache; adopt this one under another name with 'forebay create {} --adopt --as OTHER', or delete that volume first",
                volume.name, volume.name
            );
            return Err(ApiError::new(ErrorKind::Refused, message).about("name"));
        }
        Ok(record)
    }

    /// Creates the volume in an open cache.
    pub(super) fn add_volume(
        &self,
        volume: &Definition,
        origin: Arc<dyn Device>,
        place: &Arc<CacheSlot>,
        cache: &Arc<Cache>,
        _: &Effect,
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
            uuid: volume.uuid.unwrap_or_else(fresh_uuid),
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
                        engine.delete_stopped(&name, true).await.map(drop).map_err(faults::engine)
                    });
                    if let Err(error) = undone.and_then(|undone| undone) {
                        tracing::error!(volume = %volume.name, "cannot remove the half-created volume: {error}");
                    }
                }
                Err(error)
            }
        }
    }

    /// Checks the cache that the volume joins, or formats the device.
    fn prepare(&self, new: &New, device: &Arc<dyn Device>) -> Result<(), ApiError> {
        let New { volume, existing, volumes, .. } = new;
        if *existing != Existing::Join {
            return self.overwrite(new, device);
        }
        let own = device.clone();
        let content = self
            .lanes
            .run(0, move |state| async move { inspect::content(&state.context, &own).await })??;
        let why = match content {
            CacheContent::Cache(roots) if is_theirs(volume, volumes, roots.superblock.cache) => {
                return check_block_size(volume, roots.superblock.geometry.block);
            }
            CacheContent::Cache(_) => "holds another cache than theirs",
            CacheContent::Nothing | CacheContent::Unusable(_) => "holds no usable cache",
        };
        let message = format!(
            "cache: {} is the cache device of other volumes, but {why}; see 'forebay check'",
            device.name()
        );
        Err(ApiError::new(ErrorKind::Refused, message).about("cache"))
    }

    /// Checks that the device and the daemon's memory have room for a cache.
    pub(super) fn fits(
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
        Store::fits(device, block, &opened).map_err(|error| faults::store(error).about("cache"))
    }

    pub(super) fn format(
        &self,
        volume: &Definition,
        device: &Arc<dyn Device>,
        _: &Effect,
    ) -> Result<(), ApiError> {
        self.fits(volume, device)?;
        let block = BlockSize::new(volume.block_size).unwrap_or_default();
        let options = FormatOptions { block, segment_bytes: None, uuid: fresh_uuid() };
        let device = device.clone();
        self.lanes.run(0, move |state| async move {
            let queue = state.context.open(&device).map_err(faults::engine)?;
            format(&device, &queue, &options)
                .await
                .map_err(|error| faults::store(error).about("cache"))
        })?
    }
}

/// Returns whether a cache belongs, according to the state, to the volumes whose cache device the
/// new one shares.
fn is_theirs(new: &Definition, volumes: &[Definition], cache: Uuid) -> bool {
    let mut theirs = volumes.iter().filter(|other| same_cache(new, other));
    theirs.all(|other| other.cache_uuid.is_none_or(|known| known == cache))
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
