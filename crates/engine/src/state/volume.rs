//! A volume: one origin, its settings and its state, shared by all lanes.

mod bad;
pub(crate) mod layout;
mod origin;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

use forebay_core::{BlockSize, Clock, Durability, IoError, Mode, Nanos, OriginBlock, VolumeId};
use forebay_device::Device;
use forebay_format::VolumeRecord;
use forebay_lane::{Gate, Lane, Notify};
use forebay_policy::curve::LiveCurve;
use forebay_policy::sweep::DirtyMap;
use forebay_settings::Settings;
use forebay_store::{Entry, Store, VersionId, VolumeSpace};
use parking_lot::Mutex;

use crate::error::WritebackError;
use crate::settings::settings_of;
use crate::state::admission_rules::AdmissionRules;
use crate::state::bad::BadBlocks;
use crate::state::curve::Watched;
use crate::state::dirty::DirtyCount;
use crate::state::health::LastError;
use crate::state::intent::Intent;
use crate::state::origin::Waits;
use crate::state::origin_latency::{OriginLatency, WriteCost};
use crate::state::ranges::Ranges;
use crate::state::untouched::Untouched;
use crate::stats::Stats;

/// Regions of the origin for which dirty blocks are counted.
const DIRTY_REGIONS: usize = 4096;

/// Blocks on the origin whose changes are remembered one by one until the next sync.
const MOST_UNSYNCED: usize = 1 << 16;

/// Whether a volume takes requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VolumeState {
    /// Requests are served.
    Running,
    /// Requests are refused; what is in flight ends.
    Stopped,
    /// It is leaving the cache: background work ends too.
    Removed,
}

/// See the module.
pub struct Volume {
    /// Its number in the cache.
    pub id: VolumeId,
    /// Its name.
    pub name: String,
    /// The origin as the operator named it.
    pub origin_name: String,
    /// The origin.
    pub origin: Arc<dyn Device>,
    pub(crate) space: VolumeSpace,
    pub(crate) block: BlockSize,
    size: u64,
    alignment: u64,
    settings: Mutex<Settings>,
    mode: AtomicU8,
    durability: AtomicU8,
    cutoff: AtomicU64,
    pub(crate) admission: AdmissionRules,
    dirty_limit: AtomicU8,
    state: AtomicU8,
    pub(crate) ranges: Ranges,
    pub(crate) untouched: Untouched,
    pub(crate) dirty: DirtyMap,
    dirty_count: DirtyCount,
    pub(crate) intent: Intent,
    /// Foreground requests on the origin.
    pub(crate) origin_latency: OriginLatency,
    /// Operations on the origin that are under way.
    pub(crate) waits: Arc<Waits>,
    /// Reclaim has waited for the origin long enough, and goes on without it until what it asked for
    /// is written.
    overdue: AtomicBool,
    /// Writes of writeback to the origin.
    pub(crate) write_cost: WriteCost,
    sweeps: AtomicU64,
    /// Something that matters to writeback has changed.
    pub(crate) writeback_wanted: Notify,
    /// Dirty blocks have become fewer, or writeback has failed.
    pub(crate) progress: Notify,
    /// Everything is to be written back.
    pub(crate) draining: AtomicU64,
    /// Nothing but ordered writeback may write to the origin.
    ordered: AtomicBool,
    /// Blocks that writes through the cache have put on the origin, which has not been synced.
    pub(crate) through: Mutex<BTreeMap<OriginBlock, VersionId>>,
    /// They are so many that they should be synced now.
    pub(crate) through_many: Notify,
    origin_writes: AtomicU64,
    origin_synced: AtomicU64,
    /// Blocks that were changed on the origin since its last sync, and by which write.
    unsynced: Mutex<HashMap<u64, u64>>,
    /// Until a sync covers this write, any block may have been changed. At first the writes of an
    /// earlier run are not known.
    all_unsynced: AtomicU64,
    origin_sync_failed: AtomicBool,
    sync_failures: AtomicU64,
    /// Whether the origin can discard: 0 not asked yet, 1 it can, 2 it cannot.
    discards: AtomicU8,
    pub(crate) bad: BadBlocks,
    /// Why the last read of the origin failed.
    pub(crate) read_error: LastError,
    /// Why the last write to the origin on behalf of a client failed.
    pub(crate) write_error: LastError,
    /// The log says that the origin has shrunk.
    pub(crate) shrunk_told: AtomicBool,
    /// The dirty blocks of the note that says that nothing else on the cache device counts.
    pub(crate) noted: Mutex<Option<Arc<BTreeSet<OriginBlock>>>>,
    /// Whether there is such a note.
    pub(crate) is_noted: AtomicBool,
    /// Held by who sees to the note by the clock.
    pub(crate) write_down: Gate,
    /// Held by whoever writes a note.
    pub(crate) note_gate: Gate,
    /// How often something that the cache device was not told has been left to the note.
    pub(crate) note_uses: AtomicU64,
    writeback_error: Mutex<Option<WritebackError>>,
    writeback_fails: AtomicBool,
    /// What is known of caches of other sizes. On the heap: few requests come to it.
    pub(crate) watched: Box<Watched>,
    /// What is counted.
    pub stats: Stats,
}

impl Volume {
    pub(crate) fn new(
        record: &VolumeRecord,
        origin: Arc<dyn Device>,
        space: VolumeSpace,
        clock: &Arc<dyn Clock>,
        store: &Store,
    ) -> Self {
        let (block, lanes) = (store.block_size(), store.options().lanes);
        let dirty = DirtyMap::new(space.blocks, DIRTY_REGIONS);
        let volume = Volume {
            id: space.id,
            name: record.name.clone(),
            origin_name: record.origin.clone(),
            origin,
            space,
            block,
            size: record.origin_bytes,
            alignment: u64::from(record.alignment),
            mode: AtomicU8::new(0),
            durability: AtomicU8::new(0),
            cutoff: AtomicU64::new(0),
            admission: AdmissionRules::default(),
            dirty_limit: AtomicU8::new(0),
            settings: Mutex::new(Settings::default()),
            state: AtomicU8::new(VolumeState::Running as u8),
            ranges: Ranges::default(),
            untouched: Untouched::new(record.samples.as_ref(), record.origin_bytes),
            intent: Intent::new(dirty.regions()),
            dirty,
            dirty_count: DirtyCount::new(lanes),
            origin_latency: OriginLatency::default(),
            waits: Arc::new(Waits::new(clock.clone(), lanes)),
            overdue: AtomicBool::new(false),
            write_cost: WriteCost::default(),
            sweeps: AtomicU64::new(0),
            writeback_wanted: Notify::default(),
            progress: Notify::default(),
            draining: AtomicU64::new(0),
            ordered: AtomicBool::new(false),
            through: Mutex::default(),
            through_many: Notify::default(),
            unsynced: Mutex::default(),
            all_unsynced: AtomicU64::new(1),
            // What an earlier run has written may not be durable: the first flush syncs.
            origin_writes: AtomicU64::new(1),
            origin_synced: AtomicU64::new(0),
            origin_sync_failed: AtomicBool::new(false),
            sync_failures: AtomicU64::new(0),
            discards: AtomicU8::new(0),
            bad: BadBlocks::default(),
            read_error: LastError::default(),
            write_error: LastError::default(),
            shrunk_told: AtomicBool::new(false),
            noted: Mutex::default(),
            is_noted: AtomicBool::new(false),
            write_down: Gate::default(),
            note_gate: Gate::default(),
            note_uses: AtomicU64::new(0),
            writeback_error: Mutex::default(),
            writeback_fails: AtomicBool::new(false),
            watched: Box::new(Watched::new()),
            stats: Stats::new(lanes),
        };
        volume.set_settings(settings_of(record));
        volume
    }

    /// Size in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Bytes by which the block grid is shifted towards the start of the origin.
    pub fn alignment(&self) -> u64 {
        self.alignment
    }

    /// The settings.
    pub fn settings(&self) -> Settings {
        self.settings.lock().clone()
    }

    pub(crate) fn set_settings(&self, settings: Settings) {
        self.mode.store(settings.mode as u8, Ordering::SeqCst);
        self.durability.store(settings.durability as u8, Ordering::SeqCst);
        self.cutoff.store(settings.sequential_cutoff, Ordering::SeqCst);
        self.admission.set(&settings);
        if settings.ordered {
            self.ordered.store(true, Ordering::SeqCst);
        }
        let limit = settings.cache_watermarks().1;
        self.dirty_limit.store(limit, Ordering::SeqCst);
        *self.settings.lock() = settings;
        self.writeback_wanted.notify_all();
    }

    /// The mode in force.
    #[inline]
    pub fn mode(&self) -> Mode {
        let number = self.mode.load(Ordering::Relaxed) as usize;
        Mode::ALL.get(number).copied().unwrap_or_default()
    }

    /// The durability in force.
    #[inline]
    pub fn durability(&self) -> Durability {
        let number = self.durability.load(Ordering::Relaxed) as usize;
        Durability::ALL.get(number).copied().unwrap_or_default()
    }

    /// Whether nothing but ordered writeback may write to the origin. So it is from the moment at which
    /// the setting is switched on to some time after it is switched off.
    #[inline]
    pub(crate) fn is_ordered(&self) -> bool {
        self.ordered.load(Ordering::SeqCst)
    }

    /// See [`Volume::is_ordered`].
    pub(crate) fn set_ordered(&self, ordered: bool) {
        self.ordered.store(ordered, Ordering::SeqCst);
    }

    /// The highest share of the cache, in percent, that may be dirty before this volume writes back.
    pub(crate) fn dirty_limit(&self) -> u8 {
        self.dirty_limit.load(Ordering::Relaxed)
    }

    /// What caches of other sizes would have hit of its requests since it was started.
    pub fn curve(&self) -> LiveCurve {
        let (read, written) = self.stats.blocks();
        self.watched.copy().into_curve(read, written)
    }

    pub(crate) fn sequential_cutoff(&self) -> u64 {
        self.cutoff.load(Ordering::Relaxed)
    }

    /// Whether requests are taken.
    #[inline]
    pub fn state(&self) -> VolumeState {
        match self.state.load(Ordering::SeqCst) {
            0 => VolumeState::Running,
            1 => VolumeState::Stopped,
            _ => VolumeState::Removed,
        }
    }

    /// Whether it has left the cache, though this request has not ended: the origin had not answered for
    /// too long. Neither the origin nor the cache gets anything more.
    ///
    /// # Errors
    /// It has.
    pub(crate) fn still_there(&self) -> Result<(), IoError> {
        match self.state() {
            VolumeState::Removed => Err(IoError::ShuttingDown),
            VolumeState::Running | VolumeState::Stopped => Ok(()),
        }
    }

    pub(crate) fn set_state(&self, state: VolumeState) {
        self.state.store(state as u8, Ordering::SeqCst);
        self.writeback_wanted.notify_all();
    }

    /// Notes that a version was appended in place of `old`.
    pub(crate) fn appended(
        &self,
        lane: &Lane,
        block: OriginBlock,
        old: Option<&Entry>,
        dirty: bool,
    ) {
        match (old.is_some_and(|entry| entry.dirty), dirty) {
            (false, true) => {
                self.dirty.add(block);
                self.intent.dirtied(self.dirty.region_of(block));
                if self.dirty_count.add(lane.id(), || lane.now()) {
                    self.writeback_wanted.notify_all();
                }
            }
            (true, false) => self.cleaned(lane, block),
            _ => (),
        }
    }

    /// Notes that a block is no longer dirty.
    pub(crate) fn cleaned(&self, lane: &Lane, block: OriginBlock) {
        self.dirty.sub(block);
        self.dirty_count.sub(lane.id());
        self.remove_bad(block);
        self.progress.notify_all();
    }

    /// Starts the clock of the oldest dirty block anew: everything that was dirty at `since` has
    /// been written back.
    pub(crate) fn swept(&self, since: Nanos) {
        self.sweeps.fetch_add(1, Ordering::SeqCst);
        self.dirty_count.swept(since);
    }

    /// Everything that was dirty at `since` has been written back; not a sweep of its own.
    pub(crate) fn clean_since(&self, since: Nanos) {
        self.dirty_count.swept(since);
    }

    /// Sweeps over the whole origin in which every write succeeded.
    pub(crate) fn sweeps(&self) -> u64 {
        self.sweeps.load(Ordering::SeqCst)
    }

    /// Dirty blocks.
    pub fn dirty_blocks(&self) -> u64 {
        self.dirty_count.total()
    }

    pub(crate) fn oldest_dirty(&self) -> Option<Nanos> {
        self.dirty_count.since()
    }

    /// Notes that an operation which goes to the origin alone has changed it.
    pub(crate) fn origin_changed(&self, range: Range<u64>) {
        let number = self.origin_writes.fetch_add(1, Ordering::SeqCst) + 1;
        let mut unsynced = self.unsynced.lock();
        if unsynced.len() > MOST_UNSYNCED {
            // Too many to remember: until the next sync all count.
            unsynced.clear();
            self.all_unsynced.store(number, Ordering::SeqCst);
        }
        for block in self.blocks(range) {
            unsynced.insert(block, number);
        }
    }

    /// Whether anything that only the origin has may not be durable there.
    fn went_round(&self) -> bool {
        let synced = self.origin_synced.load(Ordering::SeqCst);
        self.all_unsynced.load(Ordering::SeqCst) > synced || !self.unsynced.lock().is_empty()
    }

    /// Whether the origin could still lose what it has of a block: then a copy of it must not
    /// outlive it in the cache (invariant 12).
    pub(crate) fn is_unsynced(&self, block: OriginBlock) -> bool {
        let synced = self.origin_synced.load(Ordering::SeqCst);
        self.all_unsynced.load(Ordering::SeqCst) > synced
            || self.unsynced.lock().contains_key(&block.0)
    }

    /// What a sync that starts now will cover; `None` if everything is durable already.
    pub(crate) fn origin_unsynced(&self) -> Option<u64> {
        let writes = self.origin_writes.load(Ordering::SeqCst);
        (writes > self.origin_synced.load(Ordering::SeqCst)).then_some(writes)
    }

    /// Nothing that an earlier run has written can be lost any more.
    pub(crate) fn origin_is_settled(&self) {
        self.origin_synced(1);
    }

    pub(crate) fn origin_synced(&self, writes: u64) {
        self.origin_synced.fetch_max(writes, Ordering::SeqCst);
        self.unsynced.lock().retain(|_, write| *write > writes);
    }

    /// A sync of the origin failed. A failure is told once, to whoever asks first, and may have
    /// dropped everybody's writes (invariant 18): what was written through stays dirty, and if
    /// anything went round the cache flushes fail from now on, because nothing proves that it is
    /// there.
    pub(crate) fn origin_sync_fails(&self) {
        self.sync_failures.fetch_add(1, Ordering::SeqCst);
        self.through.lock().clear();
        if self.went_round() {
            self.origin_sync_failed.store(true, Ordering::SeqCst);
        }
    }

    /// Counts failed syncs of the origin. Who marks blocks clean after a sync notes this before its
    /// first write, and marks nothing if it has changed.
    pub(crate) fn sync_failures(&self) -> u64 {
        self.sync_failures.load(Ordering::SeqCst)
    }

    /// Whether a sync of the origin has failed.
    pub fn origin_sync_failed(&self) -> bool {
        self.origin_sync_failed.load(Ordering::SeqCst)
    }

    /// Whether the origin can discard; `None`: it has not been asked.
    pub(crate) fn discards(&self) -> Option<bool> {
        match self.discards.load(Ordering::Relaxed) {
            0 => None,
            answer => Some(answer == 1),
        }
    }

    pub(crate) fn set_discards(&self, can: bool) {
        self.discards.store(if can { 1 } else { 2 }, Ordering::Relaxed);
    }

    /// Notes how the last writeback ended. That a volume which is leaving is not written back any
    /// more is no failure: its dirty blocks stay in the cache.
    pub(crate) fn set_writeback_error(&self, error: Option<WritebackError>) {
        let error = error.filter(|_| self.state() != VolumeState::Removed);
        let mut slot = self.writeback_error.lock();
        if let (Some(error), None) = (&error, slot.as_ref()) {
            tracing::error!(
                volume = self.name,
                %error,
                "writing back to the origin fails; the data stays dirty and is tried again"
            );
        }
        if error.is_none() {
            self.write_error.clear();
        }
        self.writeback_fails.store(error.is_some(), Ordering::SeqCst);
        *slot = error;
        drop(slot);
        self.progress.notify_all();
    }

    /// Whether nothing gets the volume's dirty blocks out of the cache at the moment: its origin does
    /// not answer, or writeback fails.
    pub(crate) fn is_bound(&self) -> bool {
        self.writeback_fails.load(Ordering::SeqCst) || self.waits.is_hung()
    }

    /// Whether the volume's writers should not have the last room in the cache: it is bound, or may turn
    /// out to be.
    pub(crate) fn may_be_bound(&self) -> bool {
        self.is_bound() || self.waits.is_late()
    }

    /// Whether reclaim may wait for the origin to take dirty blocks.
    pub(crate) fn can_be_emptied(&self) -> bool {
        !self.is_bound() && !self.overdue.load(Ordering::SeqCst)
    }

    pub(crate) fn set_overdue(&self, overdue: bool) {
        self.overdue.store(overdue, Ordering::SeqCst);
    }

    /// Why writeback fails at the moment.
    pub fn writeback_error(&self) -> Option<WritebackError> {
        self.writeback_error.lock().clone()
    }
}
