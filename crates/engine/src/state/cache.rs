//! A cache: one cache device with all of its volumes, shared by all lanes.

pub(crate) mod hang;
mod occupancy;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use forebay_core::{Clock, Nanos, ReplacementKind, VolumeId};
use forebay_device::Meter;
use forebay_lane::{Gate, Lane, MemoryHold, MemoryUse, Notify, OverLimit};
use forebay_policy::Ghost;
use forebay_policy::exact::Key;
use forebay_store::{Address, Entry, Store};
use parking_lot::{Mutex, RwLock};

use crate::state::health::DeviceHealth;
use crate::state::ledger::Ledger;
use crate::state::occupancy::{Detached, Occupancy};
use crate::state::replacement::{How, Replacement, segments_kept_free};
use crate::state::throttle::Throttle;
use crate::state::volume::Volume;

/// The ghosts (memory of absent blocks), as a lane holds them.
#[derive(Clone)]
pub(crate) struct GhostMemory {
    /// Incremented when the ghosts are replaced, so that lanes notice.
    pub(crate) number: u64,
    /// Capacity as a multiple of the blocks of the cache; 0 if the ghosts serve only statistics.
    times: u8,
    pub(crate) ghost: Arc<Ghost>,
}

impl GhostMemory {
    fn new(number: u64, times: u8, capacity: u64) -> Self {
        let ghost = match times {
            0 => Ghost::for_statistics(capacity),
            times => Ghost::new(capacity.saturating_mul(times.into())),
        };
        GhostMemory { number, times, ghost: Arc::new(ghost) }
    }
}

/// One cache device with all of its volumes.
pub struct Cache {
    /// The contents of the cache device.
    pub store: Arc<Store>,
    volumes: RwLock<Vec<Arc<Volume>>>,
    /// Volumes whose dirty blocks are being counted. Locked after `volumes`.
    coming: RwLock<Vec<Arc<Volume>>>,
    /// Dirty blocks of the volumes that are not attached.
    pub(crate) detached: Detached,
    /// The occupancy by volume, and the time at which it was counted.
    pub(crate) counted: Mutex<Option<(Nanos, BTreeMap<VolumeId, Occupancy>)>>,
    pub(crate) clock: Arc<dyn Clock>,
    /// The operations of the cache device.
    pub meter: Arc<Meter>,
    /// The policy in force, and its number, which changes with each replacement.
    replacement: RwLock<(u64, Arc<Replacement>)>,
    replacement_number: AtomicU64,
    /// Whether the policy in force uses the ranks in the index.
    ranks: AtomicBool,
    /// Ghosts: records of blocks that are not cached.
    memory: RwLock<GhostMemory>,
    memory_number: AtomicU64,
    /// Whether the cache device answers.
    pub(crate) health: DeviceHealth,
    /// Keeps notes of changes that the cache device cannot record.
    ledger: RwLock<Option<Arc<dyn Ledger>>>,
    /// Whether only ordered writeback can free space.
    pressed: AtomicBool,
    /// See [`Cache::starve`].
    starved: AtomicBool,
    /// Number of writes that wait for free space and must not bypass the log (invariant 28).
    bound_to_log: AtomicU64,
    /// Throttles writes when nearly all of the cache is dirty.
    pub(crate) throttle: Throttle,
    /// Whether the counts of the volumes' shares may be too low and must be repeated.
    pub(crate) shares_doubtful: AtomicBool,
    /// Held by the change of settings in progress, because each change stores the settings of all
    /// volumes.
    pub(crate) settings_gate: Gate,
    /// Not 0 if background work must end.
    pub(crate) stopping: AtomicU64,
    /// Wakes background tasks: settings have changed, or the cache stops.
    pub(crate) background_changed: Notify,
    /// Number of background tasks that have not ended.
    pub(crate) background: AtomicU64,
    /// Memory held for the cache, in addition to the store's.
    memory_held: Mutex<Vec<MemoryHold>>,
}

impl Cache {
    pub(crate) fn new(
        store: Arc<Store>,
        policy: ReplacementKind,
        clock: Arc<dyn Clock>,
        meter: Arc<Meter>,
    ) -> Arc<Self> {
        let capacity = store.capacity_blocks();
        let replacement = Arc::new(Replacement::new(policy, &store));
        Arc::new(Cache {
            ranks: AtomicBool::new(replacement.goes_by_ranks()),
            replacement: RwLock::new((0, replacement)),
            replacement_number: AtomicU64::new(0),
            memory: RwLock::new(GhostMemory::new(0, 0, capacity)),
            memory_number: AtomicU64::new(0),
            detached: Detached::default(),
            counted: Mutex::default(),
            clock,
            meter,
            health: DeviceHealth::new(store.options().lanes),
            ledger: RwLock::new(None),
            store,
            volumes: RwLock::default(),
            coming: RwLock::default(),
            pressed: AtomicBool::new(false),
            starved: AtomicBool::new(false),
            bound_to_log: AtomicU64::new(0),
            throttle: Throttle::default(),
            shares_doubtful: AtomicBool::new(false),
            settings_gate: Gate::default(),
            stopping: AtomicU64::new(0),
            background_changed: Notify::default(),
            background: AtomicU64::new(0),
            memory_held: Mutex::default(),
        })
    }

    /// Sets the ledger for changes that the cache device cannot record. Must be called before the
    /// first volume is attached.
    pub fn set_ledger(&self, ledger: Arc<dyn Ledger>) {
        *self.ledger.write() = Some(ledger);
    }

    pub(crate) fn ledger(&self) -> Option<Arc<dyn Ledger>> {
        self.ledger.read().clone()
    }

    /// Holds memory until the cache is dropped.
    pub fn hold_memory(&self, held: MemoryHold) {
        self.memory_held.lock().push(held);
    }

    /// Returns the memory that the cache takes in addition to the store: purpose, bytes,
    /// description.
    pub(crate) fn memory_needed(&self) -> [(MemoryUse, u64, &'static str); 2] {
        // Transfers of writeback, reclaim and scrub. Then a checkpoint's copy of one index shard
        // with its masks.
        const TRANSFERS: u64 = 24 << 20;
        const COPIED: u64 = 32 + 56;
        let copied = self.store.capacity_blocks() / u64::from(self.store.index.shard_count());
        let (blocks, ghosts) = self.policy_bytes();
        [
            (MemoryUse::Policy, blocks + ghosts + self.memory_bytes(), "the replacement policy"),
            (MemoryUse::Background, TRANSFERS + copied * COPIED, "background work"),
        ]
    }

    /// Holds the memory that [`Cache::memory_needed`] returns.
    pub(crate) fn hold_needed(&self) -> Result<(), OverLimit> {
        let budget = &self.store.options().memory;
        let held = self.memory_needed().map(|(by, bytes, what)| budget.hold(by, bytes, what));
        held.into_iter()
            .collect::<Result<Vec<_>, _>>()
            .map(|held| self.memory_held.lock().extend(held))
    }

    /// Returns the volumes in the order of their creation.
    pub fn volumes(&self) -> Vec<Arc<Volume>> {
        self.volumes.read().clone()
    }

    /// Returns the volume with this name.
    pub fn volume(&self, name: &str) -> Option<Arc<Volume>> {
        self.volumes.read().iter().find(|volume| volume.name == name).cloned()
    }

    /// Returns the sum of a value over the volumes.
    pub(crate) fn sum_volumes(&self, of: impl Fn(&Volume) -> u64) -> u64 {
        self.volumes.read().iter().map(|volume| of(volume)).sum()
    }

    /// Returns the maximum of a value over the volumes; 0 if there are none.
    pub(crate) fn volumes_max(&self, of: impl Fn(&Volume) -> u64) -> u64 {
        self.volumes.read().iter().map(|volume| of(volume)).max().unwrap_or(0)
    }

    /// Returns the number of free segments that reclaim aims for.
    pub(crate) fn free_target(&self) -> u32 {
        segments_kept_free(self.store.segments.count(), self.store.options().lanes as u32)
    }

    pub(crate) fn add_volume(&self, volume: Arc<Volume>) {
        let mut volumes = self.volumes.write();
        self.detached.remove(volume.id);
        self.coming.write().retain(|coming| coming.id != volume.id);
        volumes.push(volume);
        volumes.sort_by_key(|volume| volume.id);
        drop(volumes);
        self.volumes_changed();
    }

    /// Counts the dirty blocks of a volume that are loaded from now on, until it is added.
    pub(crate) fn expect_volume(&self, volume: Arc<Volume>) {
        self.coming.write().push(volume);
    }

    pub(crate) fn remove_volume(&self, name: &str) {
        self.volumes.write().retain(|volume| volume.name != name);
        self.volumes_changed();
    }

    /// Removes a volume and keeps its dirty blocks in the cache.
    pub(crate) fn detach(&self, volume: &Volume) {
        let mut volumes = self.volumes.write();
        self.detached.add(volume.id, volume.dirty_blocks());
        volumes.retain(|other| other.id != volume.id);
        drop(volumes);
        self.volumes_changed();
    }

    fn volumes_changed(&self) {
        // A volume that is no longer attached keeps its blocks as of its end, which differ from
        // those of an earlier count.
        *self.counted.lock() = None;
        self.settings_changed();
    }

    /// Provides the resources that the volumes' settings need: ghosts that reach back far enough,
    /// and latencies of the cache device if a volume has congestion thresholds.
    pub(crate) fn settings_changed(&self) {
        let volumes = self.volumes.read();
        let times = volumes.iter().map(|volume| volume.admission.rule_of_reads().times());
        let times = times.max().unwrap_or(0);
        self.store.latency.want(volumes.iter().any(|volume| volume.admission.measures()));
        drop(volumes);
        self.background_changed.notify_all();
        let mut memory = self.memory.write();
        if memory.times != times {
            *memory = GhostMemory::new(memory.number + 1, times, self.store.capacity_blocks());
            self.memory_number.store(memory.number, Ordering::Relaxed);
        }
    }

    /// Returns the kind of the replacement policy in force.
    pub fn policy(&self) -> ReplacementKind {
        self.replacement.read().1.kind
    }

    /// Replaces the policy by a new one of this kind, unless that kind is in force. Returns whether
    /// it did; the caller must then pass the cached blocks to the new policy
    /// (`EngineLane::switch_policy`).
    pub(crate) fn set_policy(&self, kind: ReplacementKind) -> bool {
        let mut present = self.replacement.write();
        if present.1.kind == kind {
            return false;
        }
        let next = Arc::new(Replacement::new(kind, &self.store));
        self.ranks.store(next.goes_by_ranks(), Ordering::SeqCst);
        *present = (present.0 + 1, next);
        self.replacement_number.store(present.0, Ordering::SeqCst);
        true
    }

    /// Returns the policy in force and its number.
    pub(crate) fn replacement(&self) -> (u64, Arc<Replacement>) {
        self.replacement.read().clone()
    }

    /// Returns the number of the policy in force.
    #[inline]
    pub(crate) fn replacement_number(&self) -> u64 {
        self.replacement_number.load(Ordering::Relaxed)
    }

    /// Returns whether the policy in force uses the ranks in the index.
    #[inline]
    pub(crate) fn ranks(&self) -> bool {
        self.ranks.load(Ordering::Relaxed)
    }

    /// Passes the cached blocks of one index shard to a policy with lists.
    pub(crate) fn show_cached(&self, shard: u32) {
        let (_, replacement) = self.replacement();
        if let How::Lists(lists) = &replacement.how {
            let spaces = self.store.spaces();
            self.store.index.scan_shard(shard, &mut |address, entry: &Entry| {
                if let Some((space, block)) = spaces.find(address) {
                    lists.begin(entry.slot, Key(space.unique(block)));
                }
            });
        }
    }

    /// Registers a block that is loaded into the index with a policy with lists, and with its
    /// volume if it is dirty.
    pub(crate) fn on_load(&self, lane: &Lane, address: Address, entry: &Entry) {
        if !self.ranks()
            && let How::Lists(lists) = &self.replacement().1.how
            && let Some((space, block)) = self.store.find_space(address)
        {
            lists.begin(entry.slot, Key(space.unique(block)));
        }
        if !entry.dirty {
            return;
        }
        let volumes = self.volumes.read();
        let owner = volumes.iter().find_map(|volume| Some((volume, volume.space.block(address)?)));
        match owner {
            Some((volume, block)) => volume.appended(lane, block, None, true),
            None => {
                self.detached.loaded(&self.store, address);
                for volume in self.coming.read().iter() {
                    if let Some(block) = volume.space.block(address) {
                        volume.appended(lane, block, None, true);
                    }
                }
            }
        }
    }

    /// Returns the ghosts in force.
    pub(crate) fn memory(&self) -> GhostMemory {
        self.memory.read().clone()
    }

    /// Returns the number of the ghosts in force.
    pub(crate) fn memory_number(&self) -> u64 {
        self.memory_number.load(Ordering::Relaxed)
    }

    /// Returns the memory of the replacement policy in addition to the index, in bytes: for cached
    /// blocks, and for its ghosts.
    pub fn policy_bytes(&self) -> (u64, u64) {
        self.replacement().1.bytes()
    }

    /// Returns the memory of the ghosts that serve admission and statistics, in bytes.
    pub fn memory_bytes(&self) -> u64 {
        self.memory.read().ghost.bytes()
    }

    pub(crate) fn background_started(&self) {
        self.background.fetch_add(1, Ordering::SeqCst);
    }

    fn background_ended(&self) {
        self.background.fetch_sub(1, Ordering::SeqCst);
        self.background_changed.notify_all();
    }

    /// Sets whether only ordered writeback can free space; wakes writeback if so.
    pub(crate) fn press(&self, pressed: bool) {
        if self.pressed.swap(pressed, Ordering::SeqCst) != pressed && pressed {
            self.volumes().iter().for_each(|volume| volume.writeback.wanted.notify_all());
        }
    }

    pub(crate) fn is_pressed(&self) -> bool {
        self.pressed.load(Ordering::SeqCst) || self.store.is_order_full()
    }

    /// Sets whether the log has no free space and will get none: every segment has blocks that must
    /// stay, or versions held for ordered writeback that no origin is about to receive. Wakes the
    /// tasks that wait for space.
    pub(crate) fn starve(&self, starved: bool) {
        if self.starved.swap(starved, Ordering::SeqCst) != starved && starved {
            tracing::warn!(
                "the cache has no free space, and none can be made: every segment has blocks that must stay"
            );
            self.volumes().iter().for_each(|volume| volume.writeback.wanted.notify_all());
            self.store.space.notify_all();
        }
    }

    /// See [`Cache::starve`].
    pub(crate) fn is_starved(&self) -> bool {
        self.starved.load(Ordering::SeqCst)
    }

    /// Registers a write that waits for free space and must not bypass the log. Dropping the result
    /// ends the registration.
    pub(crate) fn wait_for_log(&self) -> BoundToLog<'_> {
        self.bound_to_log.fetch_add(1, Ordering::SeqCst);
        BoundToLog(self)
    }

    /// Returns whether clean blocks that are pinned, or guarded by a share, may leave the cache.
    /// They may if there is no other way to free space and writes wait that must not bypass the
    /// log, which would otherwise wait for ever (invariant 25).
    pub(crate) fn lifts_guards(&self) -> bool {
        self.is_starved() && self.bound_to_log.load(Ordering::SeqCst) > 0
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst) != 0
    }
}

/// Held by a write that waits for free space and must not bypass the log.
pub(crate) struct BoundToLog<'a>(&'a Cache);

impl Drop for BoundToLog<'_> {
    fn drop(&mut self) {
        self.0.bound_to_log.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Held by a background task. Closing the cache waits until it is dropped. If the task panics, no
/// other task does its work, so the cache device counts as failed.
pub(crate) struct BackgroundEnding {
    pub(crate) cache: Arc<Cache>,
    pub(crate) task: &'static str,
}

impl Drop for BackgroundEnding {
    fn drop(&mut self) {
        self.cache.store.fail_if_panicking(self.task);
        self.cache.background_ended();
    }
}
