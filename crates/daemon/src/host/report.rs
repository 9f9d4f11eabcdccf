//! The served volumes, and their reports.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use forebay_admin::origin_check::{OriginCheckReport, OriginFound};
use forebay_admin::ranges::ByteRange;
use forebay_admin::report::{
    BlockReport, ByteReport, DeviceReport, DevicesReport, ErrorReport, Latency, LatencyReport,
    MemoryReport, OpReport, OrderReport, RamTraffic, RequestReport, RestReport, ServedReport,
    WaitReport,
};
use forebay_admin::{ApiError, ErrorKind, VolumeName, VolumeReport, VolumeState};
use forebay_device::{Meter, OpCounts, OpKind};
use forebay_engine::stats::Kind;
use forebay_engine::{Cache, OriginCheck, Verdict, Volume};
use forebay_store::Store;
use forebay_threads::{Instant, Mutex, MutexGuard};

use super::caches::CacheSlot;
use super::paths::Paths;
use super::ram::RamTiers;
use super::settings;
use super::shown::Shown;
use crate::host_api::{Condition, Count, Definition, Trouble, VolumeUuids};

/// Age limit of a block count if a cache has several volumes: counting visits the whole index.
const COUNT_AGE: Duration = Duration::from_secs(2);

/// A wait for a device is reported after this time.
const NOTICED: Duration = Duration::from_secs(3);

/// A served volume.
#[derive(Clone)]
pub(super) struct ServedVolume {
    /// The slot of the volume's cache.
    pub(super) place: Arc<CacheSlot>,
    /// The volume's cache.
    cache: Arc<Cache>,
    /// The volume.
    pub(super) volume: Arc<Volume>,
    /// The last checks of the paths of the volume's devices.
    pub(super) paths: Arc<Paths>,
}

impl ServedVolume {
    /// Returns the block size in bytes.
    pub(super) fn block_bytes(&self) -> u64 {
        self.cache.store.block_size().bytes()
    }

    /// Returns the volume's cache.
    pub(super) fn cache(&self) -> &Cache {
        &self.cache
    }

    /// Returns the store of the volume's cache.
    pub(super) fn store(&self) -> &Store {
        &self.cache.store
    }

    /// Returns the volume's UUIDs; `None` if its cache is in RAM.
    pub(super) fn identity(&self) -> Option<VolumeUuids> {
        let records = self.store().volumes();
        let record = records.iter().find(|record| record.id == self.volume.id)?;
        let cache = self.store().uuid();
        (!self.place.volatile).then_some(VolumeUuids { volume: record.uuid, cache })
    }

    /// Returns the identity of the volume's origin if its cache is in RAM.
    pub(super) fn origin_identity(&self) -> Option<forebay_core::Identity> {
        let records = self.store().volumes();
        let record = records.into_iter().find(|record| record.id == self.volume.id)?;
        record.identity.filter(|_| self.place.volatile)
    }
}

struct VolumeEntry {
    definition: Definition,
    phase: VolumeState,
    running: Option<ServedVolume>,
    wait: Option<Awaited>,
}

/// The device that a volume's start or stop waits for.
struct Awaited {
    since: Instant,
    device: String,
    /// Why the last attempt to open the device failed.
    cause: Option<String>,
}

impl Awaited {
    fn is_long(&self) -> bool {
        self.since.elapsed() >= NOTICED
    }

    fn report(&self) -> WaitReport {
        let (device, cause) = (self.device.clone(), self.cause.clone());
        WaitReport { device, seconds: self.since.elapsed().as_secs(), cause }
    }
}

impl VolumeEntry {
    fn new(definition: &Definition, phase: VolumeState, running: Option<ServedVolume>) -> Self {
        VolumeEntry { definition: definition.clone(), phase, running, wait: None }
    }
}

/// Marks a volume as waiting for a device until it is dropped.
pub(super) struct Wait<'a>(&'a Served, &'a VolumeName);

impl Wait<'_> {
    /// Records that the device could not be opened and will be tried again. The first failure of a
    /// wait is logged.
    pub(super) fn fails(&self, cause: &ApiError) {
        let is_first = self.0.lock().get_mut(self.1).is_some_and(|entry| {
            entry.wait.as_mut().is_some_and(|wait| wait.cause.replace(cause.to_string()).is_none())
        });
        // The lock is not held here, because logging may block.
        if is_first {
            tracing::warn!(volume = %self.1, "waiting for a device: {cause}");
        }
    }
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        if let Some(entry) = self.0.lock().get_mut(self.1) {
            entry.wait = None;
        }
    }
}

/// All volumes that are served or being started.
pub(super) struct Served {
    all: Mutex<BTreeMap<VolumeName, VolumeEntry>>,
    /// The RAM tiers of the volumes.
    pub(super) ram: Arc<RamTiers>,
    shown: Arc<Shown>,
}

impl Served {
    /// Creates an empty list.
    pub(super) fn new(ram: Arc<RamTiers>, shown: Arc<Shown>) -> Self {
        Served { all: Mutex::default(), ram, shown }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<VolumeName, VolumeEntry>> {
        self.all.lock()
    }

    /// Adds a volume that is being started.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] if an abandoned operation on it still waits for a device.
    pub(super) fn begin(&self, definition: &Definition) -> Result<(), ApiError> {
        let name = &definition.name;
        let mut all = self.lock();
        if let Some(there) = all.get(name) {
            let device = there.wait.as_ref().map_or("its devices", |wait| &wait.device);
            let message = format!(
                "an abandoned operation on '{name}' still waits for {device}; try again when the device answers"
            );
            return Err(ApiError::new(ErrorKind::Busy, message));
        }
        all.insert(name.clone(), VolumeEntry::new(definition, VolumeState::Recovering, None));
        Ok(())
    }

    /// Marks a volume as served.
    pub(super) fn running(
        &self,
        definition: &Definition,
        place: &Arc<CacheSlot>,
        cache: &Arc<Cache>,
        volume: &Arc<Volume>,
    ) {
        let running = ServedVolume {
            place: place.clone(),
            cache: cache.clone(),
            volume: volume.clone(),
            paths: Arc::default(),
        };
        let entry = VolumeEntry::new(definition, VolumeState::Running, Some(running));
        self.lock().insert(definition.name.clone(), entry);
    }

    /// Marks a volume as waiting for a device, until the result is dropped.
    pub(super) fn wait_for<'a>(&'a self, name: &'a VolumeName, device: &str) -> Wait<'a> {
        if let Some(entry) = self.lock().get_mut(name) {
            let device = device.to_owned();
            entry.wait = Some(Awaited { since: Instant::now(), device, cause: None });
        }
        Wait(self, name)
    }

    /// Restarts the clock of volumes that wait for a device that has answered: they wait for a long
    /// operation, not for a dead device.
    pub(super) fn answered(&self, device: &str) {
        for wait in self.lock().values_mut().filter_map(|entry| entry.wait.as_mut()) {
            if wait.device == device {
                wait.since = Instant::now();
            }
        }
    }

    /// Returns the device that a volume waits for.
    pub(super) fn waits_for(&self, name: &VolumeName) -> Option<WaitReport> {
        Some(self.lock().get(name)?.wait.as_ref()?.report())
    }

    /// Returns the definition of a volume.
    pub(super) fn definition(&self, name: &VolumeName) -> Option<Definition> {
        self.lock().get(name).map(|entry| entry.definition.clone())
    }

    /// Returns all served volumes.
    pub(super) fn all(&self) -> Vec<(Definition, ServedVolume)> {
        let all = self.lock();
        let served = all
            .values()
            .filter_map(|entry| Some((entry.definition.clone(), entry.running.clone()?)));
        served.collect()
    }

    /// Returns a volume on which an operation is in progress, if there is one.
    pub(super) fn unsettled(&self) -> Option<VolumeName> {
        let all = self.lock();
        let settled =
            |entry: &VolumeEntry| entry.running.is_some() && entry.phase == VolumeState::Running;
        all.iter().find(|(_, entry)| !settled(entry)).map(|(name, _)| name.clone())
    }

    /// Changes the state of a volume.
    pub(super) fn phase(&self, name: &VolumeName, phase: VolumeState) {
        if let Some(entry) = self.lock().get_mut(name) {
            entry.phase = phase;
        }
    }

    /// Makes a volume visible to clients, until it is removed.
    pub(super) fn show(&self, name: &VolumeName) {
        let all = self.lock();
        if all.contains_key(name) {
            self.shown.show(name);
        }
    }

    /// Removes a volume that is no longer served, or could not be started.
    pub(super) fn remove(&self, name: &VolumeName) {
        let gone = {
            let mut all = self.lock();
            self.shown.hide(name);
            all.remove(name)
        };
        // Devices are closed without the lock.
        drop(gone);
        self.ram.remove(name.as_str());
    }

    /// Drops all volumes, so that their devices are closed when nothing else uses them.
    pub(super) fn let_go(&self) {
        let running: Vec<_> =
            self.lock().values_mut().filter_map(|entry| entry.running.take()).collect();
        // Devices are closed without the lock.
        drop(running);
    }

    /// Returns a served volume.
    ///
    /// # Errors
    /// [`ErrorKind::Refused`] if the volume is not served.
    pub(super) fn get(&self, name: &VolumeName) -> Result<ServedVolume, ApiError> {
        let running = self.lock().get(name).and_then(|entry| entry.running.clone());
        running.ok_or_else(|| {
            let message = format!("volume '{name}' is not served; start it first");
            ApiError::new(ErrorKind::Refused, message)
        })
    }

    /// Implements [`crate::host_api::Reports::told_apart`]. A volume whose cache is in RAM has
    /// other UUIDs in the next program, and then has the content of its origin.
    pub(super) fn told_apart(&self, name: &VolumeName) -> Option<forebay_export::VolumeIdentity> {
        let of =
            |entry: &VolumeEntry| Some((entry.running.clone()?, entry.definition.origin.clone()));
        let (running, origin) = self.lock().get(name).and_then(of)?;
        match running.identity() {
            Some(identity) => Some(identity.told_apart()),
            None => {
                let text = format!("in RAM, of {origin}");
                running
                    .place
                    .volatile
                    .then_some(forebay_export::VolumeIdentity { text, lasts: false })
            }
        }
    }

    /// Counts the blocks of a volume that is not served, if its cache is open.
    pub(super) fn blocks(&self, name: &VolumeName) -> Option<BlockReport> {
        let open: Vec<Arc<Cache>> = self
            .lock()
            .values()
            .filter_map(|entry| Some(entry.running.as_ref()?.cache.clone()))
            .collect();
        let (cache, id) = open.into_iter().find_map(|cache| {
            let records = cache.store.volumes();
            let record = records.iter().find(|record| record.name == name.as_str())?;
            Some((cache, record.id))
        })?;
        let own = *cache.occupancy_lately(COUNT_AGE).get(&id)?;
        Some(BlockReport {
            known: true,
            cached: own.cached,
            dirty: own.dirty,
            held: own.held,
            ..BlockReport::default()
        })
    }

    /// Returns the full report of a volume.
    pub(super) fn report(&self, name: &VolumeName, count: Count) -> Option<VolumeReport> {
        let all = self.lock();
        let entry = all.get(name)?;
        let mut report =
            VolumeReport::empty(name.clone(), entry.phase, entry.definition.settings.clone());
        report.block_size = entry.definition.block_size;
        report.alignment = entry.definition.alignment;
        let wait = entry.wait.as_ref().filter(|wait| wait.is_long());
        report.waiting_for = wait.map(Awaited::report);
        if report.waiting_for.is_some() && report.state == VolumeState::Recovering {
            report.state = VolumeState::Waiting;
        }
        let Some(running) = entry.running.clone() else { return Some(report) };
        drop(all);
        let ram = self.ram.get(name);
        report.ram = ram.as_ref().map(|ram| ram.report());
        let traffic = ram.map_or_else(RamTraffic::default, |ram| ram.traffic());
        // Do not walk the index with the list of volumes locked.
        let cached = cached_blocks(&running, count);
        fill(&mut report, &running, cached, &traffic);
        Some(report)
    }

    /// Returns the condition that the watcher compares.
    pub(super) fn condition(&self, name: &VolumeName) -> Option<Condition> {
        let all = self.lock();
        let entry = all.get(name)?;
        let (phase, running) = (entry.phase, entry.running.clone());
        let wait = entry.wait.as_ref().filter(|wait| wait.is_long());
        let waits_for = wait.map(|wait| wait.device.clone());
        drop(all);
        let Some(running) = running else {
            return Some(Condition { waits_for, ..Condition::of(phase) });
        };
        let (volume, block) = (&running.volume, running.block_bytes());
        let lost = lost_ranges(&running);
        let trouble = trouble(&running, &lost);
        let state = match phase {
            VolumeState::Running if trouble.is_some() => VolumeState::Degraded,
            other => other,
        };
        Some(Condition {
            dirty_bytes: volume.dirty_blocks() * block,
            written_back_bytes: volume.stats.totals().written_back_blocks * block,
            lost_ranges: lost.len() as u64,
            lost_bytes: lost.iter().map(|range| range.len).sum(),
            trouble,
            failed_cache_reads: failed_reads(&running.cache.meter),
            failed_origin_reads: failed_reads(&volume.meter),
            waits_for,
            ..Condition::of(state)
        })
    }

    /// Counts the blocks of the volumes that share caches, unless they were counted within `age`.
    pub(super) fn recount(&self, age: Duration) {
        for (_, running) in self.all() {
            if running.store().volumes().len() > 1 {
                running.cache.occupancy_lately(age);
            }
        }
    }
}

/// Returns the number of cached blocks of a volume, counted now or at the last count; `None` if it
/// was not counted yet.
fn cached_blocks(running: &ServedVolume, count: Count) -> Option<u64> {
    let (cache, id) = (&running.cache, running.volume.id);
    match cache.store.volumes().len() {
        0 | 1 => Some(cache.store.index.len()),
        _ if count == Count::Known => cache.cached_as_counted(id),
        _ => cache.occupancy_lately(COUNT_AGE).get(&id).map(|own| own.cached),
    }
}

fn fill(report: &mut VolumeReport, running: &ServedVolume, cached: Option<u64>, ram: &RamTraffic) {
    let (store, volume) = (&running.cache.store, &running.volume);
    let set = volume.settings();
    (report.mode, report.policy, report.durability) = (set.mode, set.policy, set.durability);
    report.caching = set.caching;
    report.settings = settings::for_operator(&set);
    let block = store.block_size().bytes();
    report.origin.size = volume.size();
    report.origin.sector_bytes = Some(volume.sectors().logical);
    report.origin.read_only = Some(volume.is_read_only());
    report.origin.rotational = Some(volume.is_rotational());
    report.origin.check = volume.checked.get().map(origin_check);
    // The cache's numbers include the blocks of all its volumes.
    report.cache.size = store.capacity_blocks().saturating_mul(block);
    report.cache.used = store.index.len().saturating_mul(block);
    let loading = store.loading_progress();
    report.cache.index_loaded = loading.map(|(loaded, all)| f64::from(loaded) / f64::from(all));
    let totals = volume.stats.totals();
    let dirty = volume.dirty_blocks();
    report.blocks = BlockReport {
        known: cached.is_some(),
        // The count may be old, but dirty blocks are always cached.
        cached: cached.unwrap_or_default().max(dirty),
        dirty,
        held: store.held_versions(volume.id),
        filled: totals.filled_blocks,
        written_back: totals.written_back_blocks,
        carried_on: totals.reinserted_blocks,
        as_of_stop: false,
    };
    report.ordered = store.has_order(volume.id).then(|| OrderReport {
        in_effect: store.is_in_order(volume.id),
        waiting: store.held_versions(volume.id),
    });
    let why = volume.stats.why();
    report.why = why;
    let (current, rested) = volume.origin_rests();
    report.rest = Some(RestReport {
        wakes: why.wake.total(),
        rested_seconds: rested.as_secs(),
        last_access_seconds: current.as_secs(),
    });
    report.served = ServedReport::of(&totals, ram);
    report.requests = RequestReport::of(&totals, &why.bypass);
    // The bytes written to the device, including headers and checkpoints, are known only for the
    // whole cache; a volume gets a share proportional to its payload.
    let counters = &store.counters;
    let written = counters.written_bytes.load(Ordering::Relaxed);
    let payload = counters.payload_bytes.load(Ordering::Relaxed).max(1);
    let share = u128::from(written) * u128::from(totals.cache_written_bytes) / u128::from(payload);
    report.bytes = ByteReport::of(&totals, u64::try_from(share).unwrap_or(u64::MAX), ram);
    report.latency = LatencyReport {
        read: latency(volume, Kind::Read),
        write: latency(volume, Kind::Write),
        flush: latency(volume, Kind::Flush),
        discard: latency(volume, Kind::Discard),
    };
    report.devices =
        DevicesReport { cache: device(&running.cache.meter), origin: device(&volume.meter) };
    let (blocks, ghosts) = running.cache.policy_bytes();
    report.memory = MemoryReport {
        index_bytes: store.index_bytes() + running.cache.memory_bytes() + blocks + ghosts,
        buffer_bytes: store.buffer_bytes(),
        ..MemoryReport::default()
    };
    [report.origin.displaced, report.cache.displaced] = running.displaced_reports();
    report.errors = errors(running);
    if report.state == VolumeState::Running && trouble(running, &report.errors.lost).is_some() {
        report.state = VolumeState::Degraded;
    }
}

/// Describes the result of a start's check of an origin.
pub(super) fn origin_check(check: &OriginCheck) -> OriginCheckReport {
    let (found, evidence) = match &check.verdict {
        Verdict::Same => (OriginFound::Unchanged, "its system counts no writes".to_owned()),
        Verdict::Unclear(why) => (OriginFound::Unclear, (*why).to_owned()),
        Verdict::Changed(sign) => (OriginFound::Changed, sign.to_string()),
        Verdict::Other(difference) => (OriginFound::Other, difference.to_string()),
    };
    let &OriginCheck { compared, differing, dropped, .. } = check;
    OriginCheckReport { found, evidence, compared, differing, dropped }
}

fn failed_reads(meter: &Meter) -> u64 {
    meter.counts()[OpKind::Read as usize].errors
}

fn device(meter: &Meter) -> DeviceReport {
    let counts = meter.counts();
    let of = |kind: OpKind| {
        let OpCounts { bytes, errors, latency } = counts[kind as usize];
        OpReport { bytes, errors, latency }
    };
    DeviceReport {
        read: of(OpKind::Read),
        write: of(OpKind::Write),
        sync: of(OpKind::Sync),
        discard: of(OpKind::Discard),
    }
}

fn latency(volume: &Volume, kind: Kind) -> Latency {
    let forebay_engine::stats::LatencySummary { count, mean_us, p50_us, p99_us, max_us, counts } =
        volume.stats.latency(kind);
    if count == 0 {
        return Latency::default();
    }
    Latency { count, mean_us, p50_us, p99_us, max_us, counts }
}

/// Returns the latest error of the devices of a volume, until it is resolved.
pub(super) fn last_error(running: &ServedVolume) -> Option<String> {
    device_trouble(running).map(|(_, error)| error)
}

/// Returns why a volume is degraded, with the latest error.
fn trouble(running: &ServedVolume, lost: &[ByteRange]) -> Option<(Trouble, String)> {
    device_trouble(running).or_else(|| {
        let bytes = lost.iter().map(|range| range.len).sum::<u64>();
        (bytes > 0).then(|| (Trouble::DataLost, format!("{bytes} dirty bytes cannot be read")))
    })
}

fn device_trouble(running: &ServedVolume) -> Option<(Trouble, String)> {
    let (store, volume) = (&running.cache.store, &running.volume);
    let failed = || {
        let cause = store.health.cause().map(|cause| cause.to_string());
        cause.or_else(|| store.health.failed().then(|| "the cache device failed".to_owned()))
    };
    let writeback = || volume.writeback_error().map(|error| error.to_string());
    let sync = || volume.origin_sync_failed().then(|| "a sync of the origin failed".to_owned());
    let waits = || {
        let seconds = volume.origin_waits()?.as_secs();
        Some(format!("the origin {} has not answered for {seconds} s", volume.origin_name))
    };
    let as_ = |trouble: Trouble| move |error: String| (trouble, error);
    failed()
        .map(as_(Trouble::CacheFailed))
        .or_else(|| volume.origin_fenced().map(as_(Trouble::OriginFenced)))
        .or_else(|| running.displaced())
        .or_else(|| hung(running).map(as_(Trouble::CacheHangs)))
        .or_else(|| volume.origin_shrunk().map(as_(Trouble::OriginShrunk)))
        .or_else(|| volume.origin_protected().map(as_(Trouble::OriginReadOnly)))
        .or_else(|| writeback().or_else(sync).map(as_(Trouble::OriginFailed)))
        .or_else(|| waits().map(as_(Trouble::OriginHangs)))
        .or_else(|| volume.origin_write_error().map(as_(Trouble::OriginFailed)))
        .or_else(|| volume.origin_read_error().map(as_(Trouble::OriginFailed)))
}

/// Returns the ranges of dirty data that cannot be read any more.
fn lost_ranges(running: &ServedVolume) -> Vec<ByteRange> {
    byte_ranges(running.volume.bad_ranges())
}

fn byte_ranges(ranges: Vec<Range<u64>>) -> Vec<ByteRange> {
    let one = |range: Range<u64>| ByteRange { offset: range.start, len: range.end - range.start };
    ranges.into_iter().map(one).collect()
}

fn errors(running: &ServedVolume) -> ErrorReport {
    let (store, volume) = (&running.cache.store, &running.volume);
    let totals = volume.stats.totals();
    ErrorReport {
        origin_read: totals.origin_read_errors,
        origin_write: u64::from(volume.writeback_error().is_some())
            + u64::from(volume.origin_write_error().is_some())
            + u64::from(volume.origin_sync_failed()),
        cache_read: totals.cache_read_errors,
        cache_write: u64::from(store.health.failed()),
        checksum: store.counters.corrupt_blocks.load(Ordering::Relaxed),
        lost: lost_ranges(running),
        refused: byte_ranges(volume.refused_ranges()),
        last: last_error(running),
    }
}

/// Describes how long the cache device has not answered; `None` if it answers.
fn hung(running: &ServedVolume) -> Option<String> {
    let seconds = running.cache.health().hung_for()?.as_secs();
    let device = running.cache.store.device().name();
    Some(format!("the cache device {device} has not answered for {seconds} s"))
}
