//! A volume: one origin, its settings and its state, shared by all lanes.

mod bad;
pub(crate) mod layout;
mod note;
mod origin;
pub(crate) mod recording;
mod refused;
mod settings;
mod writeback;

use std::ops::Range;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};

use forebay_core::{BlockSize, Clock, IoError, Nanos, OriginBlock, Sectors, VolumeId};
use forebay_device::{Device, Meter};
use forebay_format::VolumeRecord;
use forebay_lane::{Lane, MemoryBudget};
use forebay_policy::curve::LiveCurve;
use forebay_policy::sweep::DirtyMap;
use forebay_policy::whatif::{Prediction, Setup};
use forebay_settings::Settings;
use forebay_store::{Entry, SpaceUse, Store, VolumeSpace};
use parking_lot::Mutex;

use crate::plan::keeps_dirty;
use crate::settings::settings_of;
use crate::state::admission_rules::AdmissionRules;
use crate::state::bad::BadBlocks;
use crate::state::committed::Committed;
use crate::state::curve::{Sizes, VolumeCurve, simulated};
use crate::state::dirty::DirtyCount;
use crate::state::discarding::Discarding;
use crate::state::health::LastError;
use crate::state::intent::Intent;
use crate::state::limits::Limits;
use crate::state::origin::Waits;
use crate::state::origin_check::OriginCheck;
use crate::state::origin_latency::OriginLatency;
use crate::state::pins::{BlockSet, Pins};
use crate::state::ranges::Ranges;
use crate::state::recording::Recorder;
use crate::state::refused::Refused;
use crate::state::replacement::room;
use crate::state::share::Share;
use crate::state::streams::Streams;
use crate::state::syncs::Syncs;
use crate::state::through::Through;
use crate::state::untouched::Untouched;
use crate::state::volume::note::VolumeNote;
use crate::state::volume::origin::{OriginAccess, OriginReads};
use crate::state::volume::settings::InForce;
use crate::state::volume::writeback::WritebackState;
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
    /// The origin, by the name that the operator gave it.
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
    in_force: InForce,
    /// Sequential streams.
    pub(crate) streams: Streams,
    pub(crate) admission: AdmissionRules,
    pub(crate) limits: Limits,
    pub(crate) pins: Pins,
    pub(crate) share: Share,
    state: AtomicU8,
    pub(crate) ranges: Ranges,
    pub(crate) untouched: Untouched,
    pub(crate) dirty: DirtyMap,
    dirty_count: DirtyCount,
    pub(crate) intent: Intent,
    /// The data in the log that no flush has to commit again.
    pub(crate) committed: Committed,
    /// Latency of foreground requests on the origin.
    pub(crate) origin_latency: OriginLatency,
    /// Durations of the operations in flight on the origin.
    pub(crate) waits: Arc<Waits>,
    pub(crate) writeback: WritebackState,
    /// Blocks that are being written through.
    pub(crate) through: Through,
    /// Syncs of the origin, and the changes that each makes durable.
    pub(crate) syncs: Syncs,
    /// Whether the origin can discard: 0 if not tried yet, 1 if it can, 2 if it cannot.
    discards: AtomicU8,
    pub(crate) discarding: Discarding,
    pub(crate) bad: BadBlocks,
    pub(crate) refused: Refused,
    /// Reads of the origin.
    pub(crate) reads: OriginReads,
    /// The error of the last write of a client to the origin, if that failed.
    pub(crate) write_error: LastError,
    /// The sizes in which clients see the volume.
    sectors: Sectors,
    pub(crate) access: OriginAccess,
    pub(crate) recorder: Recorder,
    pub(crate) note: VolumeNote,
    /// The miss-ratio curve. On the heap, because few requests touch it.
    pub(crate) watched: Box<VolumeCurve>,
    /// Findings about the origin at the start; empty for a new volume.
    pub checked: OnceLock<OriginCheck>,
    /// The operations of the origin.
    pub meter: Arc<Meter>,
    /// The volume's counters.
    pub stats: Stats,
}

impl Volume {
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
            in_force: InForce::default(),
            streams: Streams::default(),
            admission: AdmissionRules::default(),
            limits: Limits::default(),
            pins: Pins::default(),
            share: Share::default(),
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
            writeback: WritebackState::default(),
            through: Through::default(),
            syncs: Syncs::default(),
            discards: AtomicU8::new(0),
            discarding: Discarding::default(),
            bad: BadBlocks::default(),
            refused: Refused::default(),
            reads: OriginReads::default(),
            write_error: LastError::default(),
            sectors,
            access: OriginAccess::new(read_only),
            recorder: Recorder::default(),
            note: VolumeNote::default(),
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

    /// Returns the pinned blocks.
    pub fn pinned(&self) -> Arc<BlockSet> {
        self.pins.blocks()
    }

    /// Returns the miss-ratio curve of the requests since the volume was started.
    pub fn curve(&self) -> LiveCurve {
        self.watched.curve(self.waits.now(), self.stats.blocks())
    }

    /// Enables or disables feeding requests to the curve and the shadow caches; disabled only to
    /// measure the cost.
    pub fn watch(&self, on: bool) {
        self.watched.set_off(!on);
    }

    /// Returns the simulation of the volume and its RAM tier, if it has one.
    pub fn simulated(&self) -> Option<Setup> {
        simulated(&self.settings.lock(), self.sizes, self.block.bytes())
    }

    /// Returns the predicted results of other settings since the present ones came into force, see
    /// [`VolumeCurve::what_if`].
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
        self.writeback.wanted.notify_all();
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
                // A block that is written through is not work for writeback, unless that fails.
                let first = self.dirty_count.add(lane.id(), || lane.now());
                if first && (keeps_dirty(self.mode()) || self.is_ordered()) {
                    self.writeback.wanted.notify_all();
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
        self.writeback.progress.notify_all();
    }

    /// Returns the approximate number of clean blocks that reclaim cannot evict: pinned ones, and
    /// those that the share guards.
    pub(crate) fn staying_blocks(&self) -> u64 {
        let guarded = match self.share.guarded() {
            0 => 0,
            guarded => guarded.saturating_sub(self.dirty_blocks()),
        };
        self.pins.count().max(guarded)
    }

    /// Returns the number of dirty blocks. A result of 0 means that no single block stayed dirty
    /// for the whole call.
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

    /// Records that a sync of the origin has failed. Blocks written through stay dirty.
    pub(crate) fn origin_sync_fails(&self) {
        self.syncs.fail();
        self.through.clear();
    }

    /// Returns whether a failed sync may have lost a client's change, so that flushes fail.
    pub fn origin_sync_failed(&self) -> bool {
        self.syncs.has_failed()
    }

    /// Records that a range of the origin may now be zeroes, and may lack blocks that writeback
    /// wrote. Blocks that were not marked clean yet stay dirty.
    pub(crate) fn origin_is_uncertain(&self) {
        self.syncs.doubt();
        self.through.clear();
    }

    /// Returns whether a request is zeroing a block on the origin, so that an earlier write there
    /// must not make it clean.
    pub(crate) fn is_being_zeroed(&self, block: OriginBlock) -> bool {
        self.discarding.concerns(block)
    }

    /// Returns whether the origin can discard; `None` if that was not tried.
    pub(crate) fn discards(&self) -> Option<bool> {
        match self.discards.load(Ordering::Relaxed) {
            0 => None,
            answer => Some(answer == 1),
        }
    }

    pub(crate) fn set_discards(&self, can: bool) {
        self.discards.store(if can { 1 } else { 2 }, Ordering::Relaxed);
    }
}
