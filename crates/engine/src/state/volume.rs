//! A volume: one origin, its settings and its state, shared by all lanes.

mod bad;
pub(crate) mod layout;
mod origin;
pub(crate) mod recording;
mod refused;

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use forebay_core::{
    BlockSize, Clock, Durability, IoError, Mode, Nanos, OriginBlock, Sectors, VolumeId,
};
use forebay_device::{Device, Meter};
use forebay_format::VolumeRecord;
use forebay_lane::{Gate, Lane, MemoryBudget, Notify};
use forebay_policy::curve::LiveCurve;
use forebay_policy::sweep::DirtyMap;
use forebay_policy::whatif::{Prediction, Setup};
use forebay_settings::Settings;
use forebay_store::{Entry, SpaceUse, Store, VolumeSpace};
use parking_lot::Mutex;

use crate::error::WritebackError;
use crate::plan::keeps_dirty;
use crate::settings::settings_of;
use crate::state::admission_rules::AdmissionRules;
use crate::state::bad::BadBlocks;
use crate::state::bad_reads::BadReads;
use crate::state::committed::Committed;
use crate::state::curve::{Sizes, Watched, simulated};
use crate::state::dirty::DirtyCount;
use crate::state::dirty_set::DirtySet;
use crate::state::discarding::Discarding;
use crate::state::drains::Drains;
use crate::state::health::LastError;
use crate::state::intent::Intent;
use crate::state::limits::Limits;
use crate::state::origin::Waits;
use crate::state::origin_check::OriginCheck;
use crate::state::origin_latency::{OriginLatency, WriteCost};
use crate::state::pins::{BlockSet, Pins};
use crate::state::ranges::Ranges;
use crate::state::read_share::ReadShare;
use crate::state::recording::Recorder;
use crate::state::refused::Refused;
use crate::state::replacement::room;
use crate::state::share::Share;
use crate::state::streams::Streams;
use crate::state::syncs::Syncs;
use crate::state::through::Through;
use crate::state::untouched::Untouched;
use crate::stats::Stats;

/// The number of regions of the origin for which dirty blocks are counted.
const DIRTY_REGIONS: usize = 4096;

/// Whether a volume serves requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VolumeState {
    /// Requests are served.
    Running,
    /// New requests are refused; those in flight end.
    Stopped,
    /// The volume is leaving the cache: background work ends too.
    Removed,
}

/// One origin, its settings and its state, shared by all lanes.
pub struct Volume {
    /// The volume's number in the cache.
    pub id: VolumeId,
    /// The volume's name.
    pub name: String,
    /// The origin as the operator named it.
    pub origin_name: String,
    /// The origin.
    pub origin: Arc<dyn Device>,
    pub(crate) space: VolumeSpace,
    /// Reserves the volume's addresses while anything refers to the volume.
    _space_use: Option<SpaceUse>,
    pub(crate) block: BlockSize,
    size: u64,
    alignment: u64,
    /// Sizes of the cache, for all of its volumes.
    sizes: Sizes,
    memory: Arc<MemoryBudget>,
    settings: Mutex<Settings>,
    mode: AtomicU8,
    frozen: AtomicBool,
    rotational: AtomicBool,
    durability: AtomicU8,
    /// Sequential streams.
    pub(crate) streams: Streams,
    pub(crate) admission: AdmissionRules,
    pub(crate) limits: Limits,
    pub(crate) pins: Pins,
    pub(crate) share: Share,
    dirty_limit: AtomicU8,
    state: AtomicU8,
    pub(crate) ranges: Ranges,
    pub(crate) untouched: Untouched,
    pub(crate) dirty: DirtyMap,
    dirty_count: DirtyCount,
    pub(crate) intent: Intent,
    /// Data in the log that no flush has to commit again.
    pub(crate) committed: Committed,
    /// Latency of foreground requests on the origin.
    pub(crate) origin_latency: OriginLatency,
    /// Durations of the operations in flight on the origin.
    pub(crate) waits: Arc<Waits>,
    /// Whether reclaim has waited long enough for the origin, until the writeback it requested
    /// ends.
    overdue: AtomicBool,
    /// The cost of writeback's writes to the origin.
    pub(crate) write_cost: WriteCost,
    pub(crate) read_share: ReadShare,
    sweeps: AtomicU64,
    failed_sweeps: AtomicU64,
    /// Wakes writeback: something that it depends on has changed.
    pub(crate) writeback_wanted: Notify,
    /// Dirty blocks have become fewer, or writeback has failed.
    pub(crate) progress: Notify,
    pub(crate) drains: Drains,
    /// Whether only ordered writeback may write to the origin.
    ordered: AtomicBool,
    /// Blocks that are being written through.
    pub(crate) through: Through,
    /// Syncs of the origin, and the changes that each makes durable.
    pub(crate) syncs: Syncs,
    /// Whether the origin can discard: 0 not tried yet, 1 it can, 2 it cannot.
    discards: AtomicU8,
    pub(crate) discarding: Discarding,
    pub(crate) bad: BadBlocks,
    pub(crate) refused: Refused,
    pub(crate) bad_reads: BadReads,
    /// When it was last found out which part of a read of the origin failed, in nanoseconds.
    pub(crate) read_located: AtomicU64,
    /// The error of the last read of the origin, if it failed.
    pub(crate) read_error: LastError,
    /// The error of the last write to the origin for a client, if it failed.
    pub(crate) write_error: LastError,
    /// The sizes in which clients see the volume.
    sectors: Sectors,
    /// Whether clients may not write while the volume is started.
    read_only: bool,
    /// Why the origin takes no writes at the moment, although clients may write.
    protection: LastError,
    /// Whether the device itself says so, and not just a write that it has refused.
    is_protected: AtomicBool,
    /// Number of times that the origin became writable again.
    healed: AtomicU64,
    pub(crate) shrunk_told: AtomicBool,
    pub(crate) leaves_no_print: AtomicBool,
    /// Whether the origin was taken over by another machine.
    is_fenced: AtomicBool,
    /// Whether clients' requests are recorded. Read for each request, like the state.
    pub(crate) is_recorded: AtomicBool,
    pub(crate) recorder: Recorder,
    /// Dirty blocks of the distrusting note, if any: nothing else on the cache device counts.
    pub(crate) noted: Mutex<Option<Arc<DirtySet>>>,
    /// Whether there is a distrusting note.
    pub(crate) is_noted: AtomicBool,
    /// Held by the periodic update of the note.
    pub(crate) write_down: Gate,
    /// Held while a note is written.
    pub(crate) note_gate: Gate,
    /// Number of times that a task relied on the note for a change missing on the cache device.
    pub(crate) note_uses: AtomicU64,
    writeback_error: Mutex<Option<WritebackError>>,
    writeback_fails: AtomicBool,
    /// The miss-ratio curve. On the heap, because few requests touch it.
    pub(crate) watched: Box<Watched>,
    /// Findings about the origin at the start; empty for a new volume.
    pub checked: OnceLock<OriginCheck>,
    /// The operations of the origin.
    pub meter: Arc<Meter>,
    /// The volume's counters.
    pub stats: Stats,
}

impl Volume {
    #[expect(clippy::too_many_lines, reason = "a line for each field")]
    pub(crate) fn new(
        record: &VolumeRecord,
        (origin, sectors): (Arc<dyn Device>, Sectors),
        space: VolumeSpace,
        clock: &Arc<dyn Clock>,
        store: &Store,
    ) -> Self {
        let (block, lanes) = (store.block_size(), store.options().lanes);
        let dirty = DirtyMap::new(space.blocks, DIRTY_REGIONS);
        let read_only = origin.for_reading_only();
        let volume = Volume {
            id: space.id,
            name: record.name.clone(),
            origin_name: record.origin.clone(),
            origin,
            space,
            _space_use: store.use_space_of(space.id),
            block,
            size: record.origin_bytes,
            alignment: u64::from(record.alignment),
            sizes: Sizes { capacity: room(store), cells: store.capacity_blocks() },
            memory: store.options().memory.clone(),
            mode: AtomicU8::new(0),
            frozen: AtomicBool::new(false),
            rotational: AtomicBool::new(true),
            durability: AtomicU8::new(0),
            streams: Streams::default(),
            admission: AdmissionRules::default(),
            limits: Limits::default(),
            pins: Pins::default(),
            share: Share::default(),
            dirty_limit: AtomicU8::new(0),
            settings: Mutex::new(Settings::default()),
            state: AtomicU8::new(VolumeState::Running as u8),
            ranges: Ranges::default(),
            untouched: Untouched::new(record.samples.as_ref(), record.origin_bytes),
            intent: Intent::new(dirty.regions()),
            committed: Committed::new(lanes),
            dirty,
            dirty_count: DirtyCount::new(lanes),
            origin_latency: OriginLatency::default(),
            waits: Arc::new(Waits::new(clock.clone(), lanes)),
            overdue: AtomicBool::new(false),
            write_cost: WriteCost::default(),
            read_share: ReadShare::default(),
            sweeps: AtomicU64::new(0),
            failed_sweeps: AtomicU64::new(0),
            writeback_wanted: Notify::default(),
            progress: Notify::default(),
            drains: Drains::default(),
            ordered: AtomicBool::new(false),
            through: Through::default(),
            syncs: Syncs::default(),
            discards: AtomicU8::new(0),
            discarding: Discarding::default(),
            bad: BadBlocks::default(),
            refused: Refused::default(),
            bad_reads: BadReads::default(),
            read_located: AtomicU64::new(0),
            read_error: LastError::default(),
            write_error: LastError::default(),
            read_only,
            sectors,
            protection: LastError::default(),
            is_protected: AtomicBool::new(false),
            healed: AtomicU64::new(0),
            shrunk_told: AtomicBool::new(false),
            leaves_no_print: AtomicBool::new(false),
            is_fenced: AtomicBool::new(false),
            is_recorded: AtomicBool::new(false),
            recorder: Recorder::default(),
            noted: Mutex::default(),
            is_noted: AtomicBool::new(false),
            write_down: Gate::default(),
            note_gate: Gate::default(),
            note_uses: AtomicU64::new(0),
            writeback_error: Mutex::default(),
            writeback_fails: AtomicBool::new(false),
            watched: Box::default(),
            checked: OnceLock::new(),
            meter: Meter::new(lanes),
            stats: Stats::new(lanes),
        };
        volume.stats.rest.start(clock.now());
        volume.set_settings(settings_of(record));
        volume
    }

    /// Returns the size in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Returns the sizes in which clients see the volume.
    pub fn sectors(&self) -> Sectors {
        self.sectors
    }

    /// Returns the bytes by which the block grid is shifted towards the start of the origin.
    pub fn alignment(&self) -> u64 {
        self.alignment
    }

    /// Returns the settings.
    pub fn settings(&self) -> Settings {
        self.settings.lock().clone()
    }

    pub(crate) fn set_settings(&self, settings: Settings) {
        self.frozen.store(settings.is_frozen(), Ordering::SeqCst);
        let rotational = settings.rotational.of(self.origin.rotational());
        self.rotational.store(rotational, Ordering::SeqCst);
        self.mode.store(settings.effective_mode() as u8, Ordering::SeqCst);
        self.durability.store(settings.durability as u8, Ordering::SeqCst);
        self.streams.set(&settings);
        self.admission.set(&settings);
        self.limits.set(settings.limit_iops, settings.limit_bandwidth);
        self.share.set(settings.share_min, settings.share_max);
        if settings.wants_order() {
            self.ordered.store(true, Ordering::SeqCst);
        }
        let limit = settings.cache_watermarks().1;
        self.dirty_limit.store(limit, Ordering::SeqCst);
        // A RAM tier sees all that clients ask for, and simulates by itself.
        let setup = simulated(&settings, self.sizes, self.block.bytes());
        let setup = setup.filter(|setup| setup.now.ram == 0);
        self.watched.simulate(setup, self.stats.blocks(), &self.memory);
        *self.settings.lock() = settings;
        self.writeback_wanted.notify_all();
    }

    /// Returns the pinned blocks.
    pub fn pinned(&self) -> Arc<BlockSet> {
        self.pins.blocks()
    }

    /// Returns the mode in force.
    #[inline]
    pub fn mode(&self) -> Mode {
        let number = self.mode.load(Ordering::Relaxed) as usize;
        Mode::ALL.get(number).copied().unwrap_or_default()
    }

    /// Returns whether no block may enter the cache.
    #[inline]
    pub(crate) fn is_frozen(&self) -> bool {
        self.frozen.load(Ordering::Relaxed)
    }

    /// Returns the durability in force.
    #[inline]
    pub fn durability(&self) -> Durability {
        let number = self.durability.load(Ordering::Relaxed) as usize;
        Durability::ALL.get(number).copied().unwrap_or_default()
    }

    /// Returns whether only ordered writeback may write to the origin: while set, and until done.
    #[inline]
    pub(crate) fn is_ordered(&self) -> bool {
        self.ordered.load(Ordering::SeqCst)
    }

    /// See [`Volume::is_ordered`].
    pub(crate) fn set_ordered(&self, ordered: bool) {
        self.ordered.store(ordered, Ordering::SeqCst);
    }

    /// Returns the dirty share of the cache, in percent, above which this volume writes back.
    pub(crate) fn dirty_limit(&self) -> u8 {
        self.dirty_limit.load(Ordering::Relaxed)
    }

    /// Returns the miss-ratio curve of the requests since the volume was started.
    pub fn curve(&self) -> LiveCurve {
        self.watched.curve(self.waits.now(), self.stats.blocks())
    }

    /// Switches feeding requests to the curve and the shadow caches; off only to measure the cost.
    pub fn watch(&self, on: bool) {
        self.watched.set_off(!on);
    }

    /// Returns the simulation of the volume and its RAM tier, if it has one.
    pub fn simulated(&self) -> Option<Setup> {
        simulated(&self.settings.lock(), self.sizes, self.block.bytes())
    }

    /// Returns the predicted results of other settings since the present ones are in force, see
    /// [`Watched::what_if`].
    pub fn what_if(&self) -> (Vec<Prediction>, (u64, u64)) {
        self.watched.what_if(self.waits.now(), self.stats.blocks())
    }

    /// Brings the curve and the shadow caches up to date, so that lanes need not.
    pub fn catch_up(&self) {
        self.watched.catch_up(self.waits.now());
    }

    /// Returns whether requests are served.
    #[inline]
    pub fn state(&self) -> VolumeState {
        match self.state.load(Ordering::SeqCst) {
            0 => VolumeState::Running,
            1 => VolumeState::Stopped,
            _ => VolumeState::Removed,
        }
    }

    /// Checks that the volume was not removed during a request, which happens if the origin does
    /// not answer for too long. The request must change neither origin nor cache then.
    ///
    /// # Errors
    /// [`IoError::ShuttingDown`] if the volume has been removed.
    pub(crate) fn still_there(&self) -> Result<(), IoError> {
        match self.state() {
            VolumeState::Removed => Err(IoError::ShuttingDown),
            VolumeState::Running | VolumeState::Stopped => Ok(()),
        }
    }

    pub(crate) fn set_state(&self, state: VolumeState) {
        self.state.store(state as u8, Ordering::SeqCst);
        self.writeback_wanted.notify_all();
        self.limits.changed.notify_all();
    }

    /// Records that a version was appended in place of `old`.
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
                // A block that is written through is not for writeback, unless that fails.
                let first = self.dirty_count.add(lane.id(), || lane.now());
                if first && (keeps_dirty(self.mode()) || self.is_ordered()) {
                    self.writeback_wanted.notify_all();
                }
            }
            (true, false) => self.cleaned(lane, block),
            _ => (),
        }
    }

    /// Records that a block is no longer dirty.
    pub(crate) fn cleaned(&self, lane: &Lane, block: OriginBlock) {
        self.dirty.sub(block);
        self.dirty_count.sub(lane.id());
        self.remove_bad(block);
        self.remove_refused(block);
        self.progress.notify_all();
    }

    /// Counts a sweep: everything that was dirty at `since` has been written back.
    pub(crate) fn swept(&self, since: Nanos) {
        self.sweeps.fetch_add(1, Ordering::SeqCst);
        self.dirty_count.swept(since);
    }

    /// Like [`Volume::swept`], but does not count as a sweep.
    pub(crate) fn clean_since(&self, since: Nanos) {
        self.dirty_count.swept(since);
    }

    /// Returns the number of sweeps over the whole origin in which every write succeeded.
    pub(crate) fn sweeps(&self) -> u64 {
        self.sweeps.load(Ordering::SeqCst)
    }

    /// Counts a sweep in which a write failed.
    pub(crate) fn sweep_failed(&self) {
        self.failed_sweeps.fetch_add(1, Ordering::SeqCst);
        self.progress.notify_all();
    }

    /// Returns the number of sweeps over the whole origin in which a write failed.
    pub(crate) fn failed_sweeps(&self) -> u64 {
        self.failed_sweeps.load(Ordering::SeqCst)
    }

    /// Returns the clean blocks that reclaim cannot evict, nearly: pinned ones, and those that the
    /// share guards.
    pub(crate) fn staying_blocks(&self) -> u64 {
        let guarded = match self.share.guarded() {
            0 => 0,
            guarded => guarded.saturating_sub(self.dirty_blocks()),
        };
        self.pins.count().max(guarded)
    }

    /// Returns the number of dirty blocks. 0: no block was dirty throughout the call.
    pub fn dirty_blocks(&self) -> u64 {
        self.dirty_count.total_beside(&self.dirty)
    }

    pub(crate) fn oldest_dirty(&self) -> Option<Nanos> {
        self.dirty_count.since()
    }

    /// Records that a client's operation, not writeback, has changed a range of the origin.
    pub(crate) fn origin_changed(&self, range: Range<u64>) {
        self.syncs.changed(self.blocks(range));
    }

    /// Records a failed sync of the origin. Blocks written through stay dirty.
    pub(crate) fn origin_sync_fails(&self) {
        self.syncs.fail();
        self.through.clear();
    }

    /// Returns whether a failed sync may have lost a client's change, so that flushes fail.
    pub fn origin_sync_failed(&self) -> bool {
        self.syncs.has_failed()
    }

    /// Records that a range of the origin may be zeroes, and may have lost blocks that writeback
    /// wrote. Blocks that were not marked clean yet stay dirty.
    pub(crate) fn origin_is_uncertain(&self) {
        self.syncs.doubt();
        self.through.clear();
    }

    /// Returns whether a request zeroes a block on the origin, so that an earlier write there must
    /// not make it clean.
    pub(crate) fn is_being_zeroed(&self, block: OriginBlock) -> bool {
        self.discarding.concerns(block)
    }

    /// Returns whether the origin can discard; `None`: it has not been tried.
    pub(crate) fn discards(&self) -> Option<bool> {
        match self.discards.load(Ordering::Relaxed) {
            0 => None,
            answer => Some(answer == 1),
        }
    }

    pub(crate) fn set_discards(&self, can: bool) {
        self.discards.store(if can { 1 } else { 2 }, Ordering::Relaxed);
    }

    /// Records how the last writeback ended. Errors of a volume that is being removed are not
    /// failures: its dirty blocks stay in the cache.
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
        match &error {
            None => self.write_error.clear(),
            Some(error) if error.is_write_protection() => self.protected(error),
            Some(_) => {}
        }
        self.writeback_fails.store(error.is_some(), Ordering::SeqCst);
        *slot = error;
        drop(slot);
        self.progress.notify_all();
    }

    /// Records that the origin takes writes again. The last error stays until nothing is dirty, or
    /// a sweep has written everything: the blocks that it is about are perhaps still dirty
    /// (invariant 18).
    pub(crate) fn writeback_works(&self) {
        self.writeback_fails.store(false, Ordering::SeqCst);
        self.progress.notify_all();
    }

    /// Returns whether the last attempt to write back failed.
    pub(crate) fn writeback_fails(&self) -> bool {
        self.writeback_fails.load(Ordering::SeqCst)
    }

    /// Returns whether the volume is bound: its dirty blocks cannot be written back at the moment,
    /// because its origin does not answer or may not be written, or writeback fails.
    pub(crate) fn is_bound(&self) -> bool {
        self.writeback_fails() || self.waits.is_hung() || self.is_read_only()
    }

    /// Returns whether the volume's writers must not take the last free space in the cache: the
    /// volume is bound, or may turn out to be.
    pub(crate) fn may_be_bound(&self) -> bool {
        self.is_bound() || self.waits.is_late()
    }

    /// Returns whether reclaim may wait for the origin to take dirty blocks.
    pub(crate) fn can_be_emptied(&self) -> bool {
        !self.is_bound() && !self.overdue.load(Ordering::SeqCst)
    }

    pub(crate) fn set_overdue(&self, overdue: bool) {
        self.overdue.store(overdue, Ordering::SeqCst);
    }

    /// Returns why dirty blocks cannot be written back at the moment: all, or those that the origin
    /// refuses.
    pub fn writeback_error(&self) -> Option<WritebackError> {
        let error = self.writeback_error.lock().clone();
        error.or_else(|| self.refusal())
    }

    /// Returns whether an error of writeback as a whole is shown.
    pub(crate) fn shows_writeback_error(&self) -> bool {
        self.writeback_error.lock().is_some()
    }
}
