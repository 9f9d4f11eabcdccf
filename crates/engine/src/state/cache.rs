//! A cache: one cache device with all of its volumes, shared by all lanes.

pub(crate) mod hang;
mod occupancy;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use forebay_core::{Clock, Nanos, ReplacementKind, VolumeId};
use forebay_lane::{MemoryHold, MemoryUse, Notify};
use forebay_policy::Ghost;
use forebay_store::Store;
use parking_lot::{Mutex, RwLock};

use crate::state::health::DeviceHealth;
use crate::state::ledger::Ledger;
use crate::state::occupancy::{Detached, Occupancy};
use crate::state::replacement::{How, Replacement, segments_kept_free};
use crate::state::throttle::Throttle;
use crate::state::volume::Volume;

/// Streams that are followed for each volume and lane.
pub(crate) const STREAMS: usize = 256;

/// The memory of absent blocks, as a lane holds it.
#[derive(Clone)]
pub(crate) struct Memory {
    /// Tells it from those that were there before.
    pub(crate) number: u64,
    /// How far it reaches back, in times the blocks of the cache; 0: it is for statistics only.
    times: u8,
    pub(crate) ghost: Arc<Ghost>,
}

impl Memory {
    fn new(number: u64, times: u8, capacity: u64) -> Self {
        let ghost = match times {
            0 => Ghost::for_statistics(capacity),
            times => Ghost::new(capacity.saturating_mul(times.into())),
        };
        Memory { number, times, ghost: Arc::new(ghost) }
    }
}

/// See the module.
pub struct Cache {
    /// What is on the cache device.
    pub store: Arc<Store>,
    volumes: RwLock<Vec<Arc<Volume>>>,
    /// What the volumes have in it that are not among these.
    pub(crate) detached: Detached,
    /// Who occupied what at that moment.
    pub(crate) counted: Mutex<Option<(Nanos, BTreeMap<VolumeId, Occupancy>)>>,
    pub(crate) clock: Arc<dyn Clock>,
    /// The present policy, and its number, which tells it from those before.
    replacement: RwLock<(u64, Arc<Replacement>)>,
    replacement_number: AtomicU64,
    /// Whether it goes by the ranks of the index.
    ranks: AtomicBool,
    /// What became of blocks that are not cached.
    memory: RwLock<Memory>,
    memory_number: AtomicU64,
    /// Whether the cache device answers.
    pub(crate) health: DeviceHealth,
    /// Where it is written down what the cache device cannot be told.
    ledger: RwLock<Option<Arc<dyn Ledger>>>,
    /// There is no room but what ordered writeback can make.
    pressed: AtomicBool,
    /// See [`Cache::starve`].
    starved: AtomicBool,
    /// Turns of writes when nearly all of the cache is dirty.
    pub(crate) throttle: Throttle,
    /// Background work ends.
    pub(crate) stopping: AtomicU64,
    /// Background tasks look again: settings have changed, or the cache stops.
    pub(crate) background_changed: Notify,
    /// Background tasks that have not ended.
    pub(crate) background: AtomicU64,
    /// What it takes of memory beside the store.
    memory_held: Mutex<Vec<MemoryHold>>,
}

impl Cache {
    pub(crate) fn new(
        store: Arc<Store>,
        policy: ReplacementKind,
        clock: Arc<dyn Clock>,
    ) -> Arc<Self> {
        let capacity = store.capacity_blocks();
        let replacement = Arc::new(Replacement::new(policy, &store));
        Arc::new(Cache {
            ranks: AtomicBool::new(replacement.goes_by_ranks()),
            replacement: RwLock::new((0, replacement)),
            replacement_number: AtomicU64::new(0),
            memory: RwLock::new(Memory::new(0, 0, capacity)),
            memory_number: AtomicU64::new(0),
            detached: Detached::of(&store),
            counted: Mutex::default(),
            clock,
            health: DeviceHealth::new(store.options().lanes),
            ledger: RwLock::new(None),
            store,
            volumes: RwLock::default(),
            pressed: AtomicBool::new(false),
            starved: AtomicBool::new(false),
            throttle: Throttle::default(),
            stopping: AtomicU64::new(0),
            background_changed: Notify::default(),
            background: AtomicU64::new(0),
            memory_held: Mutex::default(),
        })
    }

    /// Sets where it is written down what the cache device cannot be told; before the first volume is
    /// attached.
    pub fn set_ledger(&self, ledger: Arc<dyn Ledger>) {
        *self.ledger.write() = Some(ledger);
    }

    pub(crate) fn ledger(&self) -> Option<Arc<dyn Ledger>> {
        self.ledger.read().clone()
    }

    /// Holds memory for as long as the cache is there.
    pub fn hold_memory(&self, held: MemoryHold) {
        self.memory_held.lock().push(held);
    }

    /// What the cache takes of memory beside the store: for what, how many bytes.
    pub(crate) fn memory_needed(&self) -> [(MemoryUse, u64, &'static str); 2] {
        // Writeback, reclaim, scrub; and a checkpoint's copy of a shard with its masks.
        const TRANSFERS: u64 = 24 << 20;
        const COPIED: u64 = 32 + 56;
        let copied = self.store.capacity_blocks() / u64::from(self.store.index.shard_count());
        let (blocks, ghosts) = self.policy_bytes();
        [
            (MemoryUse::Policy, blocks + ghosts + self.memory_bytes(), "the replacement policy"),
            (MemoryUse::Background, TRANSFERS + copied * COPIED, "background work"),
        ]
    }

    /// The volumes, in the order of their creation.
    pub fn volumes(&self) -> Vec<Arc<Volume>> {
        self.volumes.read().clone()
    }

    /// The volume of this name.
    pub fn volume(&self, name: &str) -> Option<Arc<Volume>> {
        self.volumes.read().iter().find(|volume| volume.name == name).cloned()
    }

    /// The sum of something over the volumes.
    pub(crate) fn sum_volumes(&self, of: impl Fn(&Volume) -> u64) -> u64 {
        self.volumes.read().iter().map(|volume| of(volume)).sum()
    }

    /// The maximum of something over the volumes; 0 without any.
    pub(crate) fn volumes_max(&self, of: impl Fn(&Volume) -> u64) -> u64 {
        self.volumes.read().iter().map(|volume| of(volume)).max().unwrap_or(0)
    }

    /// Free segments that reclaim aims for.
    pub(crate) fn free_target(&self) -> u32 {
        segments_kept_free(self.store.segments.count(), self.store.options().lanes as u32)
    }

    pub(crate) fn add_volume(&self, volume: Arc<Volume>) {
        let mut volumes = self.volumes.write();
        self.detached.remove(volume.id);
        volumes.push(volume);
        volumes.sort_by_key(|volume| volume.id);
        drop(volumes);
        self.settings_changed();
    }

    pub(crate) fn remove_volume(&self, name: &str) {
        self.volumes.write().retain(|volume| volume.name != name);
        self.settings_changed();
    }

    /// Removes a volume whose dirty blocks stay in the cache.
    pub(crate) fn detach(&self, volume: &Volume) {
        let mut volumes = self.volumes.write();
        self.detached.add(volume.id, volume.dirty_blocks());
        volumes.retain(|other| other.id != volume.id);
        drop(volumes);
        self.settings_changed();
    }

    /// Sees to it that the cache has what the settings of its volumes need: a memory of absent
    /// blocks that is long enough, and latencies of the device if they count.
    pub(crate) fn settings_changed(&self) {
        let volumes = self.volumes.read();
        let times = volumes.iter().map(|volume| volume.admission.rule().times()).max().unwrap_or(0);
        self.store.latency.want(volumes.iter().any(|volume| volume.admission.measures()));
        drop(volumes);
        self.background_changed.notify_all();
        let mut memory = self.memory.write();
        if memory.times != times {
            *memory = Memory::new(memory.number + 1, times, self.store.capacity_blocks());
            self.memory_number.store(memory.number, Ordering::Relaxed);
        }
    }

    /// How room is made.
    pub fn policy(&self) -> ReplacementKind {
        self.replacement.read().1.kind
    }

    /// Begins anew with a policy of this kind, unless it is in force. What is cached must be made
    /// known to it then: see `EngineLane::switch_policy`.
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

    /// The present policy, and its number.
    pub(crate) fn replacement(&self) -> (u64, Arc<Replacement>) {
        self.replacement.read().clone()
    }

    /// The number of the policy in force.
    #[inline]
    pub(crate) fn replacement_number(&self) -> u64 {
        self.replacement_number.load(Ordering::Relaxed)
    }

    /// Whether the present policy goes by the ranks of the index.
    #[inline]
    pub(crate) fn ranks(&self) -> bool {
        self.ranks.load(Ordering::Relaxed)
    }

    /// Makes a policy with lists known to what is cached: a shard of the index.
    pub(crate) fn show_cached(&self, shard: u32) {
        let (_, replacement) = self.replacement();
        if let How::Lists(lists) = &replacement.how {
            self.store.index.scan_shard(shard, &mut |address, entry: &forebay_store::Entry| {
                lists.begin(entry.slot, forebay_policy::exact::Key(address.0));
            });
        }
    }

    /// The memory of absent blocks.
    pub(crate) fn memory(&self) -> Memory {
        self.memory.read().clone()
    }

    /// The number of the memory in force.
    pub(crate) fn memory_number(&self) -> u64 {
        self.memory_number.load(Ordering::Relaxed)
    }

    /// Bytes of memory that the replacement policy takes beside the index: for cached blocks, and for
    /// what it remembers of others.
    pub fn policy_bytes(&self) -> (u64, u64) {
        self.replacement().1.bytes()
    }

    /// Bytes of memory for what is known of blocks that are not cached, by admission and statistics.
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

    /// Notes whether there is no room but what ordered writeback can make.
    pub(crate) fn press(&self, pressed: bool) {
        if self.pressed.swap(pressed, Ordering::SeqCst) != pressed && pressed {
            self.volumes().iter().for_each(|volume| volume.writeback_wanted.notify_all());
        }
    }

    pub(crate) fn is_pressed(&self) -> bool {
        self.pressed.load(Ordering::SeqCst) || self.store.is_order_full()
    }

    /// Notes whether the log has no room and gets none: versions that no origin is about to get keep every
    /// segment. Who waits for room then looks again.
    pub(crate) fn starve(&self, starved: bool) {
        if self.starved.swap(starved, Ordering::SeqCst) != starved && starved {
            tracing::warn!("versions that ordered volumes hold keep all room in the cache");
            self.volumes().iter().for_each(|volume| volume.writeback_wanted.notify_all());
            self.store.space.notify_all();
        }
    }

    /// See [`Cache::starve`].
    pub(crate) fn is_starved(&self) -> bool {
        self.starved.load(Ordering::SeqCst)
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst) != 0
    }
}

/// Held by a background task: whoever closes the cache waits until it is dropped. If the task panics,
/// nobody else does what it was there for, and the cache device counts as failed.
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
