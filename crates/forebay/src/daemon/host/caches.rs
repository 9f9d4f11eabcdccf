//! The cache devices that are open, each at a place of its own.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use forebay_admin::{ApiError, VolumeName};
use forebay_core::VolumeId;
use forebay_device::{Device, DeviceIdentity, DeviceSpec};
use forebay_engine::{Cache, EngineLane};
use forebay_format::Uuid;
use forebay_store::StoreOptions;

use super::faults;
use super::lanes::{Lanes, unfinished};

/// What tells cache devices apart.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Key {
    Device(DeviceIdentity),
    /// RAM is never shared: it belongs to the volume that asks for it.
    Ram(VolumeName),
}

/// A place for a cache: open or not. Its lock is held while it is opened or closed, and while
/// volumes come and go.
pub(super) struct Place {
    /// Its number, the same on all lanes.
    pub(super) number: u64,
    /// Whether its content is lost when it is closed.
    pub(super) volatile: bool,
    open: Mutex<Option<Arc<Cache>>>,
}

impl Place {
    /// Locks the place, and gives the cache if it is open.
    pub(super) fn lock(&self) -> MutexGuard<'_, Option<Arc<Cache>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// All places.
#[derive(Default)]
pub(super) struct Caches {
    places: Mutex<HashMap<Key, Arc<Place>>>,
    last: AtomicU64,
}

impl Caches {
    /// The place of a cache device. RAM has one for each volume.
    ///
    /// # Errors
    /// When there is no such device.
    pub(super) fn place(
        &self,
        spec: &DeviceSpec,
        volume: &VolumeName,
    ) -> Result<Arc<Place>, ApiError> {
        let identity = spec.identity().map_err(|error| faults::open("cache", &error))?;
        let key = identity.map_or_else(|| Key::Ram(volume.clone()), Key::Device);
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        let place = places.entry(key).or_insert_with(|| {
            let number = self.last.fetch_add(1, Ordering::Relaxed);
            Arc::new(Place { number, volatile: spec.is_volatile(), open: Mutex::default() })
        });
        Ok(place.clone())
    }

    /// Closes every cache that is open, each within `patience`.
    ///
    /// # Errors
    /// The first that did not end clean; the others have been tried.
    pub(super) fn close_all(&self, lanes: &Lanes, patience: Duration) -> Result<(), ApiError> {
        let places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        let mut result = Ok(());
        for place in places.values() {
            let closed = match locked_within(&place.open, patience) {
                Some(mut open) => close(lanes, place.number, &mut open, patience),
                None => Err(ApiError::failed("a cache is still at work on something else")),
            };
            if result.is_ok() {
                result = closed;
            }
        }
        result
    }
}

fn locked_within<T>(mutex: &Mutex<T>, patience: Duration) -> Option<MutexGuard<'_, T>> {
    let end = Instant::now() + patience;
    loop {
        match mutex.try_lock() {
            Ok(guard) => return Some(guard),
            Err(std::sync::TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
            Err(std::sync::TryLockError::WouldBlock) if Instant::now() >= end => return None,
            Err(std::sync::TryLockError::WouldBlock) => {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }
}

/// Opens a cache on all lanes: recovers it, and begins its background work on the first one.
/// `room` is the number of blocks of a volume that is about to be created, and `grown` those of
/// volumes whose origins are larger now.
///
/// # Errors
/// What the engine says; the cache is then not open on any lane.
pub(super) fn open(
    lanes: &Lanes,
    place: &Place,
    device: Arc<dyn Device>,
    room: u64,
    grown: Vec<(VolumeId, u64)>,
) -> Result<Arc<Cache>, ApiError> {
    let (number, name) = (place.number, device.name().to_owned());
    let options = StoreOptions {
        lanes: lanes.count() as usize,
        room_for_blocks: room,
        grown,
        seed: Uuid::new_v4().as_u64_pair().0,
        ..StoreOptions::default()
    };
    let (cache, report) = lanes.run(0, move |state| async move {
        let (engine, report) = EngineLane::open(state.context.clone(), device, options)
            .await
            .map_err(faults::engine)?;
        let cache = engine.cache.clone();
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
            let closed = close(lanes, number, &mut Some(cache), super::CLOSE_PATIENCE);
            if let Err(error) = closed {
                tracing::error!("closing a cache that not all lanes could open: {error}");
            }
            return Err(error);
        }
    }
    Ok(cache)
}

/// Closes the cache at a place, if it is open: everything is durable, the device clean and free.
///
/// # Errors
/// When something could not be made durable or took longer than `patience`; the cache is closed
/// all the same, as far as possible.
pub(super) fn close(
    lanes: &Lanes,
    number: u64,
    open: &mut Option<Arc<Cache>>,
    patience: Duration,
) -> Result<(), ApiError> {
    if open.take().is_none() {
        return Ok(());
    }
    let closed = lanes.begin(0, move |state| async move {
        state.engine(number)?.close().await.map_err(faults::engine)
    });
    let result = closed.recv_timeout(patience).unwrap_or_else(|_| Err(unfinished()));
    let gone: Vec<_> = lanes
        .all()
        .map(|lane| lanes.begin(lane, move |state| async move { state.remove(number).await }))
        .collect();
    for gone in gone {
        let _ = gone.recv_timeout(patience);
    }
    result
}
