//! Opens a cache and an origin together. The order matters: nothing is written before the two are
//! known to belong together, and the cache's slot is not locked while waiting for the origin, so
//! that other volumes can start and stop meanwhile.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use forebay_admin::origin_check::OriginFound;
use forebay_admin::{ApiError, ErrorKind, EventKind, Unit};
use forebay_device::{Access, Device, DeviceSpec, IoBuf, OpenErrorKind, RemoteName};
use forebay_engine::{
    Cache, Ledger, Naming, OnVerify, TableChange, Verdict, Volume, check_sectors, settings_of,
};
use forebay_format::{PAGE, Uuid, VolumeRecord};
use forebay_store::Roots;
use forebay_threads::{Instant, Receiver};

use super::caches::{self, CacheSlot};
use super::devices::Devices;
use super::inspect::{self, CacheContent};
use super::lanes::Flag;
use super::report::{self, Wait};
use super::volumes::{blocks_of, made};
use super::{CLOSE_PATIENCE, EngineHost, How, access_of, faults, settings};
use crate::events::NewEvent;
use crate::host_api::{Copied, Definition, StartError, fresh_uuid};
use crate::known::Position;
use crate::preflight;
use crate::work::Work;

/// Time limit for users of a stopped volume to end.
const LINGERING: Duration = Duration::from_millis(500);

/// Interval at which a device is probed.
const ASKING: Duration = Duration::from_secs(1);

/// Interval between attempts to claim a device that is in use.
const AGAIN: Duration = Duration::from_millis(100);

/// Interval at which a probe checks whether it is still wanted.
const LOOKING: Duration = Duration::from_millis(5);

impl EngineHost {
    /// Serves a volume that its cache knows; see [`crate::host_api::Serving::start`].
    pub(super) fn bring_up(
        self: &Arc<Self>,
        volume: &Definition,
        how: &How,
    ) -> Result<Copied, StartError> {
        let name = &volume.name;
        self.served.ram.make(name, &volume.settings, self.lanes.memory(), self.lanes.clock())?;
        let origin = {
            let wait = self.served.wait_for(name, &volume.origin);
            let spec = made("origin", &volume.origin)?;
            // A missing device must not be created anew, empty.
            spec.identity().map_err(|error| faults::open("origin", &error))?;
            let access = access_of(&volume.settings);
            claim_again(access, &self.devices, ("origin", &spec), &wait, &how.work)?
        };
        let (spec, place) = {
            let _wait = self.served.wait_for(name, &volume.cache);
            let spec = made("cache", &volume.cache)?;
            let place = self.caches.place(&spec, name)?;
            (spec, place)
        };
        let copied = self.using(&place, || {
            if place.volatile {
                check_identity(volume, &*origin, how.force)?;
                self.bring_up_in_ram(volume, how, &spec, origin, &place)?;
                return Ok(Copied::Current);
            }
            self.bring_up_at(volume, how, &spec, origin, &place)
        })?;
        self.begin_deferring(name, &volume.settings)?;
        Ok(copied)
    }

    /// Runs `run` with the cache of a slot kept open, then closes the cache if it has no volume.
    pub(super) fn using<T, E>(
        self: &Arc<Self>,
        place: &Arc<CacheSlot>,
        run: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, E> {
        let used = place.use_it();
        let result = run();
        drop(used);
        if let Err(error) = self.close_unused(place) {
            tracing::error!("closing a cache that no volume uses: {error}");
        }
        result
    }

    /// Closes a cache that no volume uses; in the background if something still waits for the
    /// origin of a stopped volume.
    fn close_unused(self: &Arc<Self>, place: &Arc<CacheSlot>) -> Result<(), ApiError> {
        let end = Instant::now() + LINGERING;
        while place.is_lingering() {
            if Instant::now() >= end {
                let (host, place) = (self.clone(), place.clone());
                tracing::info!("a cache stays open until the origin of a stopped volume answers");
                let closing = forebay_threads::spawn("close", move || {
                    while place.is_lingering() {
                        forebay_threads::sleep(LINGERING);
                    }
                    if let Err(error) = host.close_unused(&place) {
                        tracing::error!("closing a cache that no volume uses: {error}");
                    }
                });
                return closing
                    .map(drop)
                    .map_err(|error| ApiError::failed(format!("no thread: {error}")));
            }
            forebay_threads::sleep(Duration::from_millis(5));
        }
        let mut cache = place.lock();
        match cache.take_if(|open| !place.is_used() && open.volumes().is_empty()) {
            Some(open) => self.close(place, &open, CLOSE_PATIENCE),
            None => Ok(()),
        }
    }

    /// Closes a cache, and records its final position.
    pub(super) fn close(
        &self,
        place: &CacheSlot,
        open: &Arc<Cache>,
        patience: Duration,
    ) -> Result<(), ApiError> {
        let closed = caches::close(&self.lanes, place.number, open, patience);
        self.caches.note_position(place, &open.store);
        closed
    }

    /// Starts a volume with a cache in RAM. The cache was drained before it was lost, so it starts
    /// empty.
    fn bring_up_in_ram(
        &self,
        volume: &Definition,
        how: &How,
        spec: &DeviceSpec,
        origin: Arc<dyn Device>,
        place: &Arc<CacheSlot>,
    ) -> Result<(), ApiError> {
        let effect = how.work.commit().map_err(|_| faults::given_up())?;
        let opened = {
            let mut cache = place.lock();
            // A stop left this cache open because a request still waited for the origin.
            if let Some(left) = cache.take() {
                self.close(place, &left, CLOSE_PATIENCE)?;
            }
            let device = self.devices.claim("cache", spec)?;
            self.format(volume, &device, &effect)?;
            let room = blocks_of(volume, &origin);
            let opened = caches::open(&self.lanes, place, device, room, Vec::new())?;
            *cache = Some(opened.clone());
            opened
        };
        self.add_volume(volume, origin, place, &opened, &effect)
    }

    fn bring_up_at(
        &self,
        volume: &Definition,
        how: &How,
        spec: &DeviceSpec,
        origin: Arc<dyn Device>,
        place: &Arc<CacheSlot>,
    ) -> Result<Copied, StartError> {
        let (open, copied) = self.open_for(volume, how, spec, &origin, place)?;
        let wanted = settings::of(volume);
        let renamed = self.take_name(volume, how, place, &open)?;
        let attached = {
            let _wait = self.served.wait_for(&volume.name, &volume.origin);
            let (number, name, how) = (place.number, volume.name.to_string(), how.clone());
            let sector_size = wanted.sector_size;
            let (served, device) = (self.served.clone(), volume.origin.clone());
            self.lanes.run(0, move |state| async move {
                let engine = state.engine(number)?;
                let How { force, verify, work } = how;
                let report = |done, total| {
                    served.answered(&device);
                    work.report(done, total, Unit::Blocks);
                    !work.is_cancelled()
                };
                let on_verify = verify.then_some(&report as OnVerify<'_>);
                let commit = || work.commit().map(drop);
                let attached =
                    engine.attach_with(&name, origin, sector_size, force, on_verify, &commit);
                attached.await.map_err(faults::engine)
            })
        };
        let attached = attached.and_then(|attached| attached).inspect_err(|_| {
            // A command that fails must have changed nothing.
            let is_copy = !renamed.is_empty() && open.volumes().is_empty();
            place.is_copy.store(is_copy, Ordering::SeqCst);
            if let Err(error) = self.rename(place, renamed) {
                tracing::error!(volume = %volume.name, "cannot undo that it was renamed on its cache device: {error}");
            }
        })?;
        let wanted = self.with_newest(&volume.name, wanted);
        if attached.settings() != wanted(attached.settings()) {
            let _wait = self.served.wait_for(&volume.name, &volume.cache);
            let effect = how.work.commit().map_err(|_| faults::given_up());
            if let Err(error) =
                effect.and_then(|effect| self.apply(place, &volume.name, wanted, &effect))
            {
                // A volume that is only partly started is stopped again.
                if let Err(error) = self.take_out(place, &attached) {
                    tracing::error!(volume = %volume.name, "cannot stop the half-started volume: {error}");
                }
                return Err(error.into());
            }
        }
        self.served.running(volume, place, &open, &attached);
        self.tell_change(volume, &attached);
        self.pin_again(volume);
        Ok(copied)
    }

    /// Gives the new name and a new UUID to a volume that is adopted under another name. The other
    /// volumes of its cache device get new UUIDs as well if none of them is served, because the
    /// device is a copy then. Returns the volume as it was before.
    fn take_name(
        &self,
        volume: &Definition,
        how: &How,
        place: &CacheSlot,
        open: &Cache,
    ) -> Result<Vec<Naming>, ApiError> {
        let Some(stored) = &volume.stored_as else { return Ok(Vec::new()) };
        let _effect = how.work.commit().map_err(|_| faults::given_up())?;
        let is_first = open.volumes().is_empty();
        let records = open.store.volumes().into_iter();
        let concerned = |record: &VolumeRecord| is_first || record.name == stored.as_str();
        let before: Vec<Naming> = records
            .filter(concerned)
            .map(|VolumeRecord { id, name, uuid, .. }| Naming { id, name, uuid })
            .collect();
        let renamed = |naming: &Naming| match naming.name == stored.as_str() {
            true => {
                let uuid = volume.uuid.unwrap_or_else(fresh_uuid);
                Naming { name: volume.name.to_string(), uuid, ..naming.clone() }
            }
            false => Naming { uuid: fresh_uuid(), ..naming.clone() },
        };
        let _wait = self.served.wait_for(&volume.name, &volume.cache);
        self.rename(place, before.iter().map(renamed).collect())?;
        place.is_copy.store(false, Ordering::SeqCst);
        Ok(before)
    }

    fn rename(&self, place: &CacheSlot, wanted: Vec<Naming>) -> Result<(), ApiError> {
        if wanted.is_empty() {
            return Ok(());
        }
        let number = place.number;
        self.lanes.run(0, move |state| async move {
            state.engine(number)?.rename(wanted).await.map_err(faults::engine)
        })?
    }

    /// Returns the cache of a volume; opens it if necessary. The lock is held only while waiting
    /// for the cache device, and released while the origin is sampled.
    fn open_for(
        &self,
        volume: &Definition,
        how: &How,
        spec: &DeviceSpec,
        origin: &Arc<dyn Device>,
        place: &Arc<CacheSlot>,
    ) -> Result<(Arc<Cache>, Copied), StartError> {
        let (mut look, force) = (None, how.force);
        loop {
            let wait = self.served.wait_for(&volume.name, &volume.cache);
            let mut cache = place.lock();
            if let Some(open) = &*cache {
                let position = Position::from(&*open.store);
                let records = open.store.volumes();
                self.check_record(volume, open.store.uuid(), (position, &records), force)?;
                let copied = self.check_position(volume, open.store.uuid(), position, force)?;
                return Ok((open.clone(), copied));
            }
            let device =
                claim_again(Access::Exclusive, &self.devices, ("cache", spec), &wait, &how.work)?;
            let roots = self.roots(&device)?;
            let superblock = &roots.superblock;
            self.check_copy_of_served(volume, place, &roots)?;
            let stored = (Position::from(superblock), &*roots.volumes);
            let record = self.check_record(volume, superblock.cache, stored, force)?.clone();
            self.check_position(volume, superblock.cache, stored.0, force)?;
            check_sectors(&record, &**origin, volume.settings.sector_size)
                .map_err(faults::engine)?;
            if origin.size() >= record.origin_bytes
                && !force
                && look.as_ref().is_none_or(|(known, _)| *known != record)
            {
                drop((device, cache, wait));
                let _wait = self.served.wait_for(&volume.name, &volume.origin);
                let (own, size) = (origin.clone(), record.origin_bytes);
                let taken = self.lanes.run(0, move |state| async move {
                    inspect::look(&state.context, &own, size).await
                })??;
                look = Some((record, taken));
                continue;
            }
            let was_closed = superblock.clean_shutdown;
            let grown = inspect::grown(&self.devices, &roots, volume.stored_name(), origin.size());
            let (own_device, own_origin) = (device.clone(), origin.clone());
            let own_look = look.take();
            let noted = self.caches.notes.may_distrust(volume.name.as_str(), superblock.cache);
            let memory = self.lanes.memory().clone();
            self.lanes.run(0, move |state| async move {
                let look = own_look.as_ref().map(|(_, look)| look);
                let context = (&state.context, &memory);
                let (device, origin) = (&own_device, &own_origin);
                inspect::check_pair(context, device, &roots, &record, origin, look, noted).await
            })??;
            let asking = self.keep_asking(&device, &volume.cache);
            let begun = Instant::now();
            // Until the volume is renamed, a note about the copy would be taken for one about the
            // original.
            place.is_copy.store(volume.stored_as.is_some(), Ordering::SeqCst);
            let opened = caches::open(&self.lanes, place, device, 0, grown)?;
            drop(asking);
            if !was_closed {
                self.tell_recovery(volume, begun.elapsed());
            }
            let position = Position::from(&*opened.store);
            // How far the log reaches is known only after recovery.
            let copied = self.check_position(volume, opened.store.uuid(), position, force);
            let copied = copied.inspect_err(|_| {
                if let Err(error) =
                    caches::close(&self.lanes, place.number, &opened, CLOSE_PATIENCE)
                {
                    tracing::error!("closing a cache device that is refused: {error}");
                }
            })?;
            self.remove_deleted(place, &opened, volume.uuid);
            *cache = Some(opened.clone());
            return Ok((opened, copied));
        }
    }

    /// Refuses a copy of an open cache, unless a volume of the copy is adopted under another name.
    fn check_copy_of_served(
        &self,
        volume: &Definition,
        place: &Arc<CacheSlot>,
        roots: &Roots,
    ) -> Result<(), ApiError> {
        let Some(other) = self.caches.other_with(place, &roots.volumes) else { return Ok(()) };
        if volume.stored_as.is_some() {
            return Ok(());
        }
        let message = format!(
            "{} is a copy of {other}, whose volumes are served: use one of them, or adopt a volume of the copy with 'forebay create NAME --adopt --as OTHER'",
            volume.cache
        );
        Err(ApiError::new(ErrorKind::Refused, message))
    }

    /// Reports that an origin was written by another program.
    fn tell_change(&self, volume: &Definition, attached: &Volume) {
        let Some(check) = attached.checked.get().map(report::origin_check) else { return };
        if check.found != OriginFound::Changed {
            return;
        }
        let (name, origin) = (&volume.name, &volume.origin);
        let said = format!(
            "the origin {origin} of volume '{name}' was written elsewhere ({}): {} clean blocks were dropped",
            check.evidence, check.dropped
        );
        let event = NewEvent::new(EventKind::OriginChanged, said).volume(name).device(origin);
        let event = event.with("evidence", check.evidence).with("compared", check.compared);
        let event = event.with("differing", check.differing).with("dropped", check.dropped);
        self.events.record(event);
    }

    fn tell_recovery(&self, volume: &Definition, took: Duration) {
        let milliseconds = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        let said = format!(
            "the cache device {} was not closed in order; its content was recovered in {milliseconds} ms",
            volume.cache
        );
        let event = NewEvent::new(EventKind::RecoveredAfterCrash, said).device(&volume.cache);
        self.events.record(event.with("milliseconds", milliseconds));
    }

    /// Probes a device every second until the result is dropped, to distinguish a long recovery
    /// from a device that does not answer.
    fn keep_asking(&self, device: &Arc<dyn Device>, name: &str) -> Asking {
        let flag = Flag::default();
        let (raised, device) = (flag.clone(), device.clone());
        let (served, name) = (self.served.clone(), name.to_owned());
        let ended = self.lanes.begin(0, move |state| async move {
            let Ok(queue) = state.context.open(&device) else { return };
            drop(device);
            let mut asked = None;
            while !raised.is_raised() {
                let now = state.context.lane.now();
                if asked.is_none_or(|asked| now.since(asked) >= ASKING) {
                    asked = Some(now);
                    if queue.read(0, IoBuf::zeroed(PAGE)).await.is_ok() {
                        served.answered(&name);
                    }
                }
                state.context.lane.sleep(LOOKING).await;
            }
        });
        Asking { flag, ended }
    }

    /// Reads the roots of a cache device.
    pub(super) fn roots(&self, device: &Arc<dyn Device>) -> Result<Roots, ApiError> {
        let refused = |what: &str| {
            let message = format!("the cache device {} {what}", device.name());
            Err(ApiError::new(ErrorKind::Refused, message))
        };
        let own = device.clone();
        let content = self
            .lanes
            .run(0, move |state| async move { inspect::content(&state.context, &own).await })??;
        match content {
            CacheContent::Nothing => refused("is not a Forebay cache; name the device that is"),
            CacheContent::Unusable(why) => refused(&format!("cannot be used: {why}")),
            CacheContent::Cache(roots) => Ok(*roots),
        }
    }

    /// Finds the record of a volume in the volume table of its cache, which is at position `found`,
    /// and checks that cache, volume and the daemon's state belong together.
    ///
    /// # Errors
    /// [`StartError::Unknown`] if the volume was removed from the cache.
    pub(super) fn check_record<'a>(
        &self,
        volume: &Definition,
        cache: Uuid,
        (found, records): (Position, &'a [VolumeRecord]),
        force: bool,
    ) -> Result<&'a VolumeRecord, StartError> {
        let Definition { name, cache: device, .. } = volume;
        let refused = |message: String| ApiError::new(ErrorKind::Refused, message);
        let take_it = format!("accept this one with 'forebay start --force {name}'");
        if volume.cache_uuid.is_some_and(|known| known != cache) && !force {
            let message = format!(
                "{device} is not the cache device that held '{name}'; name that one, or {take_it}"
            );
            return Err(refused(message).into());
        }
        let Some(record) = inspect::record_of(records, volume.stored_name()) else {
            // A table of an earlier generation may be from before the volume was created.
            let older = self.known_position(volume, cache);
            let older = older.filter(|known| found.generation < known.generation);
            if let Some(known) = older.filter(|_| !force) {
                return Err(preflight::older(volume, found, known).into());
            }
            let message = format!(
                "{device} is the cache device of other volumes and does not hold '{name}'; name the device that does with 'forebay create {name} --adopt', or delete the volume with 'forebay delete --discard-dirty {name}'"
            );
            return Err(match volume.cache_uuid {
                Some(known) if known == cache && older.is_none() => {
                    StartError::Unknown(refused(message))
                }
                _ => refused(message).into(),
            });
        };
        let changes = settings_of(record).version.saturating_sub(volume.version);
        let another =
            volume.stored_as.is_none() && volume.uuid.is_some_and(|known| known != record.uuid);
        if (another || changes > 0) && !force {
            let why = match another {
                true => format!("it holds another volume '{name}', created since"),
                false => format!("'{name}' was changed {changes} times since"),
            };
            let message = format!(
                "the daemon's state is older than the cache device {device}: {why}; restore the newer state, adopt the volume from the cache device with 'forebay create --adopt', or {take_it}"
            );
            return Err(refused(message).into());
        }
        Ok(record)
    }

    /// Refuses a cache device that lacks records that had been durable on it, unless forced.
    fn check_position(
        &self,
        volume: &Definition,
        cache: Uuid,
        found: Position,
        force: bool,
    ) -> Result<Copied, ApiError> {
        let known = self.known_position(volume, cache);
        let is_ahead = known.filter(|known| found.is_behind(*known));
        if force && is_ahead.is_some() {
            let Definition { name, cache: device, .. } = volume;
            tracing::warn!(volume = %name, "an older copy of the cache device {device} is accepted because of --force");
            return Ok(Copied::Older(cache));
        }
        if self.caches.known.is_behind(volume.uuid) && !force {
            return Err(preflight::behind(volume));
        }
        is_ahead.map_or(Ok(Copied::Current), |known| Err(preflight::older(volume, found, known)))
    }

    /// Returns the last known position of a volume's cache. A copy has its own position from its
    /// adoption on.
    fn known_position(&self, volume: &Definition, cache: Uuid) -> Option<Position> {
        let known = self.caches.known.position(volume.uuid, cache);
        known.filter(|_| volume.stored_as.is_none())
    }

    /// Removes volumes from a cache that were deleted while its device was unavailable, except
    /// `wanted`, which is adopted nevertheless.
    pub(super) fn remove_deleted(&self, slot: &CacheSlot, open: &Arc<Cache>, wanted: Option<Uuid>) {
        for record in open.store.volumes() {
            if !self.caches.known.is_deleted(record.uuid) || wanted == Some(record.uuid) {
                continue;
            }
            let (number, name) = (slot.number, record.name.clone());
            let removed = self.lanes.run(0, move |state| async move {
                state.engine(number)?.delete_stopped(&name, true).await.map_err(faults::engine)
            });
            match removed.and_then(|removed| removed) {
                // The removal is repeated when the device is next opened.
                Ok(TableChange::ByDaemon) => {}
                Ok(TableChange::OnDevice) => {
                    tracing::info!(
                        volume = record.name,
                        "was deleted earlier, and is now removed from its cache device too"
                    );
                    self.caches.known.facts().deleted.remove(&record.uuid);
                }
                Err(error) => {
                    tracing::warn!(
                        volume = record.name,
                        "was deleted earlier, but is still on its cache device: {error}"
                    );
                }
            }
        }
    }
}

/// Refuses an origin that is not the one of a volume without a cache device, unless forced. A link,
/// or a name that the system gives to another disk, could lead the daemon to a file that its
/// clients must not read.
fn check_identity(volume: &Definition, origin: &dyn Device, force: bool) -> Result<(), ApiError> {
    let now = origin.identity();
    let difference = || volume.origin_identity.as_ref()?.difference(now.as_ref()?);
    let Some(difference) = difference() else { return Ok(()) };
    if force {
        tracing::warn!(volume = %volume.name, "another origin is accepted because of --force: its {difference}");
        return Ok(());
    }
    let other = Verdict::Other(difference);
    other.allow(volume.name.as_str(), &volume.origin, 0).map_err(faults::engine)
}

/// Opens the device named in `field`, which existed before. Connecting to a server has the time
/// limit of its requests; a device in use by another process is waited for if the work demands it.
pub(super) fn claim_again(
    access: Access,
    devices: &Devices,
    (field, spec): (&str, &DeviceSpec),
    wait: &Wait<'_>,
    work: &Work,
) -> Result<Arc<dyn Device>, ApiError> {
    let patience = spec.remote().map_or(Duration::ZERO, RemoteName::patience);
    let until = Instant::now() + patience;
    loop {
        let error = match devices.try_claim(access, spec) {
            Ok(device) => return Ok(device),
            Err(error) => error,
        };
        let is_in_use = error.kind == OpenErrorKind::InUse;
        let error = faults::open(field, &error);
        match error.kind {
            _ if is_in_use && work.outwaits() => {}
            ErrorKind::Failed if Instant::now() < until => {}
            _ => return Err(error),
        }
        wait.fails(&error);
        forebay_threads::sleep(if is_in_use { AGAIN } else { ASKING });
    }
}

/// Keeps probing a device until it is dropped.
struct Asking {
    flag: Flag,
    ended: Receiver<()>,
}

impl Drop for Asking {
    fn drop(&mut self) {
        self.flag.raise();
        // The device stays claimed while it is probed, and may be closed and opened again at once.
        let _ = self.ended.recv_timeout(LINGERING);
    }
}
