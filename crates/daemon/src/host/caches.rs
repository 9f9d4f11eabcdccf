//! The open cache devices, each in a [`CacheSlot`] of its own.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use forebay_admin::{ApiError, VolumeName};
use forebay_core::VolumeId;
use forebay_device::{Device, DeviceIdentity, DeviceSpec};
use forebay_engine::{Cache, EngineLane, Volume};
use forebay_format::VolumeRecord;
use forebay_lane::MemoryUse;
use forebay_store::{Store, StoreOptions};
use forebay_threads::{Instant, Mutex, MutexGuard};

use super::faults;
use super::lanes::Lanes;
use crate::host_api::fresh_uuid;
use crate::known::{Known, Position};
use crate::ledger::FileLedger;

/// Identifies a cache device.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum CacheKey {
    Device(DeviceIdentity),
    /// RAM is never shared: it belongs to the volume that requested it.
    Ram(VolumeName),
}

/// A slot for one cache, open or not. Its lock is held while the cache is inspected, opened or
/// closed: only for as long as the cache device takes, and never while waiting for an origin.
pub(super) struct CacheSlot {
    /// The number of the cache, the same on all lanes.
    pub(super) number: u64,
    /// Whether the content of the cache is lost when it is closed.
    pub(super) volatile: bool,
    /// Whether the volumes of an open cache still have the UUIDs of the cache of which it is a
    /// copy.
    pub(super) is_copy: AtomicBool,
    notes: Arc<FileLedger>,
    open: Mutex<Option<Arc<Cache>>>,
    /// Number of operations that may add a volume to this cache.
    users: AtomicUsize,
    /// Stopped volumes; something may still wait for their origins.
    left: Mutex<Vec<Weak<Volume>>>,
}

/// Keeps the cache of a place open, even without a volume.
pub(super) struct CacheUse(Arc<CacheSlot>);

impl Drop for CacheUse {
    fn drop(&mut self) {
        self.0.users.fetch_sub(1, Ordering::SeqCst);
    }
}

impl CacheSlot {
    /// Locks the slot, and returns the cache if it is open.
    pub(super) fn lock(&self) -> MutexGuard<'_, Option<Arc<Cache>>> {
        self.open.lock()
    }

    /// Locks like [`CacheSlot::lock`], but fails at once if the slot is locked.
    pub(super) fn try_lock(&self) -> Option<MutexGuard<'_, Option<Arc<Cache>>>> {
        self.open.try_lock()
    }

    /// Locks like [`CacheSlot::lock`], but fails if the slot stays locked for longer than
    /// `patience`.
    pub(super) fn lock_within(
        &self,
        patience: Duration,
    ) -> Option<MutexGuard<'_, Option<Arc<Cache>>>> {
        let end = Instant::now() + patience;
        loop {
            match self.try_lock() {
                None if Instant::now() < end => forebay_threads::sleep(Duration::from_millis(5)),
                locked => return locked,
            }
        }
    }

    /// Keeps the cache open until the result is dropped. After dropping it, the caller calls
    /// [`EngineHost::close_unused`].
    ///
    /// [`EngineHost::close_unused`]: super::EngineHost::close_unused
    pub(super) fn use_it(self: &Arc<Self>) -> CacheUse {
        self.users.fetch_add(1, Ordering::SeqCst);
        CacheUse(self.clone())
    }

    /// Notes a stopped volume.
    pub(super) fn note_left(&self, volume: &Arc<Volume>) {
        let mut left = self.left.lock();
        // Remove dead entries here too, not only in queries: each entry keeps the memory of its
        // volume, and many volumes leave a cache that stays open.
        left.retain(|volume| volume.strong_count() > 0);
        left.push(Arc::downgrade(volume));
    }

    /// Returns whether something still waits for the origin of a stopped volume; the cache cannot
    /// be closed before that ends.
    pub(super) fn is_lingering(&self) -> bool {
        let mut left = self.left.lock();
        left.retain(|volume| volume.strong_count() > 0);
        !left.is_empty()
    }

    /// Whether a [`CacheUse`] keeps the cache open.
    pub(super) fn is_used(&self) -> bool {
        self.users.load(Ordering::SeqCst) > 0
    }
}

/// All places.
pub(super) struct Caches {
    places: Mutex<HashMap<CacheKey, Arc<CacheSlot>>>,
    last: AtomicU64,
    /// The daemon's records of caches, open or not.
    pub(super) known: Arc<Known>,
    /// Notes about volumes, in case their cache devices are lost.
    pub(super) notes: Arc<FileLedger>,
}

impl Caches {
    /// Starts without places.
    pub(super) fn new(known: Arc<Known>, notes: Arc<FileLedger>) -> Self {
        Caches { places: Mutex::default(), last: AtomicU64::new(0), known, notes }
    }

    /// Returns all places, in the order of their numbers.
    pub(super) fn places(&self) -> Vec<Arc<CacheSlot>> {
        let mut places: Vec<_> = self.places.lock().values().cloned().collect();
        places.sort_by_key(|place| place.number);
        places
    }

    /// Returns the device of an open cache in another slot that has one of these volumes: one of
    /// the two caches is a copy.
    pub(super) fn other_with(&self, place: &CacheSlot, volumes: &[VolumeRecord]) -> Option<String> {
        let others = self.places().into_iter().filter(|other| other.number != place.number);
        others.into_iter().find_map(|other| {
            let open = other.try_lock()?.clone()?;
            let has = |record: &VolumeRecord| volumes.iter().any(|own| own.uuid == record.uuid);
            open.store.volumes().iter().any(has).then(|| open.store.device().name().to_owned())
        })
    }

    /// Records the log position of a cache.
    pub(super) fn note_position(&self, place: &CacheSlot, store: &Store) {
        if !place.volatile && !place.is_copy.load(Ordering::SeqCst) {
            let volumes = store.volumes().into_iter().map(|record| record.uuid);
            self.known.reached(store.uuid(), volumes, Position::from(store));
        }
    }

    /// Returns the slot of a cache device, a new one if necessary. RAM has one slot per volume.
    ///
    /// # Errors
    /// The device does not exist.
    pub(super) fn place(
        &self,
        spec: &DeviceSpec,
        volume: &VolumeName,
    ) -> Result<Arc<CacheSlot>, ApiError> {
        let identity = spec.identity().map_err(|error| faults::open("cache", &error))?;
        let key = identity.map_or_else(|| CacheKey::Ram(volume.clone()), CacheKey::Device);
        let mut places = self.places.lock();
        let place = places.entry(key).or_insert_with(|| {
            let number = self.last.fetch_add(1, Ordering::Relaxed);
            Arc::new(CacheSlot {
                number,
                volatile: spec.is_volatile(),
                is_copy: AtomicBool::new(false),
                notes: self.notes.clone(),
                open: Mutex::default(),
                users: AtomicUsize::new(0),
                left: Mutex::default(),
            })
        });
        Ok(place.clone())
    }
}

/// Opens a cache on all lanes: recovers it, and starts its background work on the first lane.
/// `room` is the number of blocks of a volume about to be created; `grown` has the numbers for
/// volumes whose origins have grown.
///
/// # Errors
/// The error of the engine; the cache is then not open on any lane.
pub(super) fn open(
    lanes: &Lanes,
    place: &CacheSlot,
    device: Arc<dyn Device>,
    room: u64,
    grown: Vec<(VolumeId, u64)>,
) -> Result<Arc<Cache>, ApiError> {
    let (number, name) = (place.number, device.name().to_owned());
    let in_ram = if place.volatile { device.size() } else { 0 };
    let in_ram =
        lanes.memory().hold(MemoryUse::RamDevices, in_ram, &name).map_err(faults::memory)?;
    let options = StoreOptions {
        lanes: lanes.count() as usize,
        room_for_blocks: room,
        grown,
        helpers: lanes.helpers(),
        memory: lanes.memory().clone(),
        seed: fresh_uuid().as_u64_pair().0,
        ..StoreOptions::default()
    };
    // A cache in RAM is lost with the daemon in any case.
    let notes = (!place.volatile).then(|| place.notes.clone());
    let (cache, report) = lanes.run(0, move |state| async move {
        let (engine, report) = EngineLane::open(state.context.clone(), device, options)
            .await
            .map_err(faults::engine)?;
        let cache = engine.cache.clone();
        if let Some(notes) = notes {
            cache.set_ledger(notes);
        }
        cache.hold_memory(in_ram);
        state.add(number, engine);
        Ok::<_, ApiError>((cache, report))
    })??;
    tracing::info!(
        cache = name,
        clean = report.clean,
        blocks = report.blocks,
        dirty = report.dirty,
        records = report.records,
        torn = report.torn,
        bytes_read = report.bytes_read,
        "the cache is open"
    );
    for lane in lanes.others() {
        let own = cache.clone();
        let joined = lanes.run(lane, move |state| async move {
            let engine = EngineLane::join(&own, state.context.clone()).map_err(faults::engine)?;
            state.add(number, engine);
            Ok(())
        });
        if let Err(error) = joined.and_then(|joined| joined) {
            let closed = close(lanes, number, &cache, super::CLOSE_PATIENCE);
            if let Err(error) = closed {
                tracing::error!("closing a cache that not all lanes could open: {error}");
            }
            return Err(error);
        }
    }
    Ok(cache)
}

/// Closes the cache in a slot: everything becomes durable, the device is marked clean and, once
/// `cache` is dropped, released.
///
/// # Errors
/// Something could not be made durable or took longer than `patience`; the cache is still closed as
/// far as possible.
pub(super) fn close(
    lanes: &Lanes,
    number: u64,
    cache: &Arc<Cache>,
    patience: Duration,
) -> Result<(), ApiError> {
    let closed = lanes.begin(0, move |state| async move {
        state.engine(number)?.close().await.map_err(faults::engine)
    });
    let result = closed.recv_timeout(patience).unwrap_or_else(|_| {
        let device = cache.store.device().name().to_owned();
        let seconds = patience.as_secs();
        Err(ApiError::failed(format!("the cache on {device} was not closed within {seconds} s")))
    });
    let gone: Vec<_> = lanes
        .all()
        .map(|lane| lanes.begin(lane, move |state| async move { state.remove(number).await }))
        .collect();
    for gone in gone {
        let _ = gone.recv_timeout(patience);
    }
    result
}
