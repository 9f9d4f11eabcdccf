//! The store: the content of the cache device, and its index.
//!
//! [`Store`] is shared by all lanes; a [`StoreLane`](crate::StoreLane) is a store as one lane uses
//! it.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use forebay_core::{
    BlockSize, Generation, OriginBlock, RecordNumber, SectorMask, SegmentId, Slot, VolumeId,
};
use forebay_device::Device;
use forebay_format::{Geometry, Mark, MarkKind, Uuid, VolumeRecord};
use forebay_lane::{Gate, MemoryHold, Notify};
use parking_lot::Mutex;

use crate::appender::Appenders;
use crate::hazard::{HazardId, HazardSlots};
use crate::health::Health;
use crate::index::{Condition, Found, Index, Unlocked, Walk};
use crate::latency::DeviceLatency;
use crate::layout::SegmentLayout;
use crate::loading::Loading;
use crate::log::Log;
use crate::options::StoreOptions;
use crate::ordered::Ordered;
use crate::planted::{self, PlantedBug};
use crate::segments::{Live, Segments};
use crate::spaces;
use crate::spaces::Ranges;
pub use crate::spaces::{SpaceUse, Spaces, VolumeSpace};
use crate::table::Entry;

/// Number of resting volume numbers at which a checkpoint is due: a fourth of all.
const MANY_REST: usize = 1 << 14;

/// The check of a payload that was read back and verified.
#[derive(Clone, Copy, Debug)]
pub struct PayloadCheck(pub(crate) u32);

/// The kind of an append; it selects the appender, and background work may use the reserved
/// segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// A client's write, or a fill.
    Foreground,
    /// A client's write of a block that is worth keeping. Most such blocks are rewritten soon, so
    /// their segments become empty without reclaim.
    Rewritten,
    /// A write to an ordered volume. Its versions, and so their segments, are held until the origin
    /// has them in order; segments of their own keep nothing else from being reclaimed.
    Ordered,
    /// A fill of a block that is expected to stay: stored with reinserted blocks, so that blocks
    /// that leave together share segments.
    Settled,
    /// A block that reclaim reinserts.
    Background,
}

/// A new version to append.
pub struct Version<'a> {
    /// The volume.
    pub space: &'a VolumeSpace,
    /// The block.
    pub block: OriginBlock,
    /// Whether the version is newer than the origin.
    pub dirty: bool,
    /// Valid sectors of the version; `None` for all.
    pub mask: Option<SectorMask>,
    /// Rank on the replacement policy's own scale.
    pub rank: u8,
    /// When the version may replace the current one.
    pub condition: Condition<'a>,
}

/// The result of an append.
#[derive(Debug)]
pub enum Appended {
    /// The version is now the newest.
    Done {
        /// The version that was replaced.
        old: Option<Entry>,
        /// Identity of the version.
        version: VersionId,
    },
    /// The condition did not hold.
    Refused,
    /// There is no room at present: wait for [`Store::space`].
    NoSpace,
    /// There is no memory for the mask: append the whole block, see [`Store::has_room_for_mask`].
    NoMask,
}

/// Why a cached block could not be read.
#[derive(Clone, Debug)]
pub enum ReadFailure {
    /// The payload does not match its checksum: flipped, misdirected, lost or stale.
    Corrupt,
    /// The device failed.
    Device(forebay_device::DeviceError),
}

/// Counters, kept separate from the fields that every look-up reads.
#[derive(Default, Debug)]
#[repr(align(128))]
pub struct Counters {
    /// Bytes read from the cache device by lanes without a hazard slot: see [`Store::read_bytes`].
    pub(crate) read_bytes: AtomicU64,
    /// Bytes written to the cache device.
    pub written_bytes: AtomicU64,
    /// Bytes of payload among these.
    pub payload_bytes: AtomicU64,
    /// Syncs of the cache device.
    pub syncs: AtomicU64,
    /// Cached blocks that failed their check.
    pub corrupt_blocks: AtomicU64,
}

/// The store of one cache device, shared by all lanes.
pub struct Store {
    pub(crate) device: Arc<dyn Device>,
    pub(crate) uuid: Uuid,
    pub(crate) geometry: Geometry,
    pub(crate) options: StoreOptions,
    /// The index.
    pub index: Index,
    /// The segments.
    pub segments: Segments,
    /// Whether the device has failed.
    pub health: Health,
    /// Counters.
    pub counters: Counters,
    pub(crate) hazards: HazardSlots,
    /// Latency of the device.
    pub latency: DeviceLatency,
    /// Notified when room was made.
    pub space: Notify,
    /// Notified when a writer waits for room.
    pub space_wanted: Notify,
    /// Whether a block found no room in the index: then blocks must be evicted even if segments are
    /// free.
    pub(crate) index_full: AtomicBool,
    pub(crate) log: Log,
    pub(crate) appenders: Appenders,
    pub(crate) ordered: Ordered,
    pub(crate) spaces: Mutex<Ranges>,
    pub(crate) meta: Mutex<forebay_format::Superblock>,
    pub(crate) volumes: Mutex<Vec<VolumeRecord>>,
    /// Numbers of volumes that were deleted since the last checkpoint began: at most
    /// [`Store::MOST_REST`].
    pub(crate) resting: Mutex<HashSet<VolumeId>>,
    pub(crate) meta_gate: Gate,
    pub(crate) sync_gate: Gate,
    pub(crate) checkpoint_gate: Gate,
    pub(crate) loading: Loading,
    pub(crate) appended_at_checkpoint: AtomicU64,
    /// Checksum of the volumes' address ranges in the last checkpoint.
    pub(crate) spaces_at_checkpoint: AtomicU64,
    /// Memory held for all of this.
    pub(crate) _memory: Vec<MemoryHold>,
    pub(crate) distrust: AtomicBool,
    /// Checksums of all appended payloads, for [`PlantedBug::UnboundChecksum`].
    #[cfg(feature = "planted-bugs")]
    pub(crate) known_checks: Mutex<std::collections::HashSet<u32>>,
}

impl Store {
    /// Returns the unit of caching.
    pub fn block_size(&self) -> BlockSize {
        self.geometry.block
    }

    /// Returns the cache's identity.
    pub fn uuid(&self) -> Uuid {
        self.uuid
    }

    /// Returns the cache device.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    /// Returns the layout of the device.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Returns the options with which the store was opened.
    pub fn options(&self) -> &StoreOptions {
        &self.options
    }

    /// Returns the number of blocks that fit if every record is full and no segment is kept free.
    pub fn capacity_blocks(&self) -> u64 {
        self.log.layout().cells_per_segment() * u64::from(self.segments.count())
    }

    /// Segments that foreground work leaves free for background work.
    pub const RESERVED_SEGMENTS: u32 = 2;

    /// Returns [`Store::RESERVED_SEGMENTS`].
    pub fn reserved_segments(&self) -> u32 {
        Self::RESERVED_SEGMENTS
    }

    /// Returns the blocks that fit into a segment of a cache with this layout, if every record is
    /// full.
    pub fn cells_per_segment_of(geometry: &Geometry) -> u64 {
        SegmentLayout::new(geometry).cells_per_segment()
    }

    /// Returns the current address ranges of the volumes.
    pub fn spaces(&self) -> Spaces {
        let mut spaces = self.spaces.lock().all();
        spaces.sort_by_key(|space| space.base);
        Spaces::new(spaces)
    }

    /// Returns the bytes of memory of the index and of the segment tables.
    pub fn index_bytes(&self) -> u64 {
        self.index.bytes() + self.segments.bytes()
    }

    /// Returns the bytes of memory of the log's buffers.
    pub fn buffer_bytes(&self) -> u64 {
        self.log.buffer_bytes()
    }

    /// Returns whether the device has a record, written since it was opened, that neither clean
    /// copies nor samples of origins can be trusted.
    pub fn is_distrusted(&self) -> bool {
        self.distrust.load(Ordering::SeqCst)
    }

    /// Returns the segment that contains a slot.
    #[inline]
    pub fn segment_of(&self, slot: Slot) -> SegmentId {
        self.log.layout().segment_of(slot)
    }

    /// Looks a block up and keeps its segment from being reused until the result is dropped.
    #[inline]
    pub fn look_up(&self, space: &VolumeSpace, block: OriginBlock) -> Option<Pinned<'_>> {
        let found = self.index.look_up(space.address(block), |entry| {
            self.segments.pin(self.segment_of(entry.slot));
            None
        })?;
        Some(Pinned { store: self, block, found, hazard: None })
    }

    /// Looks a block up like [`Store::look_up`], for a lane that reads the block before it does
    /// anything else. `rank` returns the entry's new rank. It is called again if the new rank has
    /// to be written.
    #[inline]
    pub(crate) fn look_up_now(
        &self,
        hazard: Option<HazardId>,
        space: &VolumeSpace,
        block: OriginBlock,
        mut rank: impl FnMut(&Entry) -> u8,
    ) -> Option<Pinned<'_>> {
        let address = space.address(block);
        if let Some(id) = hazard {
            let segment_of = |slot| self.segment_of(slot);
            match self.index.look_up_in_hazard(address, &self.hazards, id, segment_of) {
                Unlocked::Found(entry) => {
                    if rank(&entry) != entry.rank {
                        // Another lane may have changed the rank meanwhile.
                        let rank = |now| rank(&Entry { rank: now, ..entry });
                        self.rerank(space, block, entry.slot, rank);
                    }
                    let found = Found { entry, mask: None };
                    return Some(Pinned { store: self, block, found, hazard });
                }
                Unlocked::Absent => return None,
                Unlocked::Undecided => (),
            }
        }
        let mut hazard = hazard;
        let found = self.index.look_up(address, |entry| {
            let segment = self.segment_of(entry.slot);
            if !self.hazards.begin(hazard, segment) {
                hazard = None;
                self.segments.pin(segment);
            }
            let rank = rank(entry);
            (rank != entry.rank).then(|| {
                self.segments.ranked(segment, entry.rank, rank);
                rank
            })
        })?;
        Some(Pinned { store: self, block, found, hazard })
    }

    /// Returns the bytes read from the cache device.
    pub fn read_bytes(&self) -> u64 {
        self.counters.read_bytes.load(Ordering::Relaxed) + self.hazards.read_bytes()
    }

    /// Changes the rank of a block, if the version at `slot` is still current. Returns the old and
    /// the new rank.
    pub fn rerank(
        &self,
        space: &VolumeSpace,
        block: OriginBlock,
        slot: Slot,
        change: impl FnOnce(u8) -> u8,
    ) -> Option<(u8, u8)> {
        let mut after = None;
        let before = self.index.update(space.address(block), |entry| {
            if entry.slot != slot {
                return None;
            }
            let rank = change(entry.rank);
            after = Some(rank);
            self.segments.ranked(self.segment_of(slot), entry.rank, rank);
            Some(Entry { rank, ..*entry })
        })?;
        Some((before.rank, after?))
    }

    /// Prefetches the entry of a block that will be looked up soon. Has no effect beyond the end of
    /// the volume.
    #[inline]
    pub fn expect(&self, space: &VolumeSpace, block: OriginBlock, to_change: bool) {
        if block.0 < space.blocks {
            self.index.expect(space.address(block), to_change);
        }
    }

    /// Looks a block up without a pin, for decisions that remain valid if the block changes.
    #[inline]
    pub fn peek(&self, space: &VolumeSpace, block: OriginBlock) -> Option<Found> {
        self.index.peek(space.address(block))
    }

    /// Returns whether there is memory to cache an absent block partially, at this moment.
    pub fn has_room_for_mask(&self, space: &VolumeSpace, block: OriginBlock) -> bool {
        self.index.has_room_for_mask(space.address(block))
    }

    pub(crate) fn check(&self, space: &VolumeSpace, block: OriginBlock, payload: &[u8]) -> u32 {
        space.seed.check(block, payload)
    }

    /// With [`PlantedBug::UnboundChecksum`]: returns whether the payload is intact, in whatever
    /// block it belongs. A checksum that does not cover the address verifies no more than that.
    pub(crate) fn is_intact_somewhere(&self, _payload: &[u8]) -> bool {
        #[cfg(feature = "planted-bugs")]
        if planted::has(PlantedBug::UnboundChecksum) {
            return self.known_checks.lock().contains(&forebay_format::crc32c(_payload));
        }
        false
    }

    /// Records that a version is durable on the origin, unless `stays`, which is called under the
    /// lock of the block's shard. Returns whether it was still the newest, and dirty. The mark is
    /// logged with the next commit.
    pub fn written_back(
        &self,
        space: &VolumeSpace,
        block: OriginBlock,
        version: &VersionId,
        stays: impl FnOnce() -> bool,
    ) -> bool {
        let segment = self.segment_of(version.slot);
        let mut marked = false;
        self.index.update(space.address(block), |entry| {
            let replaced = entry.slot != version.slot && !planted::has(PlantedBug::MarksAnyVersion);
            if replaced || !entry.dirty || stays() {
                return None;
            }
            let generation = self.segments.generation(segment);
            if generation != version.generation {
                return None;
            }
            self.log.push_marks([Mark { slot: entry.slot, generation, kind: MarkKind::Clean }]);
            marked = true;
            Some(Entry { dirty: false, ..*entry })
        });
        if marked {
            self.segments.turned_clean(segment);
        }
        marked
    }

    /// Evicts or invalidates a block if `when` agrees. Fills of it are overtaken in any case. The
    /// mark is logged with the next commit; until then the block could come back after a crash, so
    /// no other copy may change before [`sync_marks`](crate::StoreLane::sync_marks).
    pub fn forget(
        &self,
        space: &VolumeSpace,
        block: OriginBlock,
        when: impl FnOnce(&Entry) -> bool,
    ) -> Option<Entry> {
        // The mark is pushed before the removal is visible: a thread that finds the block absent
        // also finds the mark unsettled.
        let entry = self.index.remove(space.address(block), |entry| {
            if !when(entry) {
                return false;
            }
            let generation = self.segments.generation(self.segment_of(entry.slot));
            if !planted::has(PlantedBug::GoneWithoutMark) {
                self.log.push_marks([Mark { slot: entry.slot, generation, kind: MarkKind::Gone }]);
            }
            true
        })?;
        let segment = self.segment_of(entry.slot);
        self.segments.remove_live(segment, Live::one(entry.dirty, entry.rank));
        Some(entry)
    }

    /// Returns the blocks that fit into a segment, if every record is full.
    pub fn cells_per_segment(&self) -> u64 {
        self.log.layout().cells_per_segment()
    }

    /// Returns the blocks that fit into a segment with two records more than necessary: reinserted
    /// blocks begin in one segment and end in another, beside other records.
    pub fn cells_if_split(&self) -> u64 {
        self.log.layout().cells_if_split()
    }

    /// Latches a failure of the device, and wakes all waiters, since their events will not come.
    pub(crate) fn fail(&self, error: &dyn std::fmt::Display) {
        self.health.fail(error);
        self.log.written.notify_all();
        self.log.commits.ended.notify_all();
        self.log.writes.ended.notify_all();
        self.space.notify_all();
        self.space_wanted.notify_all();
    }

    /// Returns the durable position: the generation of the superblock, and the last durable record.
    /// Neither is lower when the device is opened again, unless it lost durable data.
    pub fn position(&self) -> (u64, RecordNumber) {
        (self.meta.lock().generation, self.log.durable_through())
    }

    /// Returns whether a block found no room in the index since the last call.
    pub fn index_was_full(&self) -> bool {
        self.index_full.swap(false, Ordering::Relaxed)
    }

    /// Returns whether the version at a slot is durable.
    pub fn is_durable(&self, slot: Slot) -> bool {
        self.segments.is_durable(self.segment_of(slot), self.log.layout().granule_of(slot))
    }

    /// Returns the bytes appended since the last checkpoint.
    pub fn appended_since_checkpoint(&self) -> u64 {
        let now = self.counters.written_bytes.load(Ordering::Relaxed);
        now.saturating_sub(self.appended_at_checkpoint.load(Ordering::Relaxed))
    }

    /// Returns the number of appended bytes after which a checkpoint is due.
    pub fn checkpoint_due(&self) -> u64 {
        self.options.checkpoint_due(&self.geometry)
    }

    /// Returns whether a checkpoint is due: after that many appended bytes; because volumes were
    /// created, deleted or have grown since the last one, so that after a crash a large index could
    /// not be loaded while requests are served; or because the numbers of many deleted volumes
    /// rest.
    pub fn checkpoint_is_due(&self) -> bool {
        let at_checkpoint = self.spaces_at_checkpoint.load(Ordering::Relaxed);
        let is_large = || self.index.len() >= self.options.load_later_from;
        self.appended_since_checkpoint() >= self.checkpoint_due()
            || self.resting.lock().len() >= MANY_REST
            || (spaces::checksum(self.spaces().all()) != at_checkpoint && is_large())
    }

    /// Returns whether everything that was appended or marked is durable.
    pub fn all_durable(&self) -> bool {
        let open =
            self.appenders.numbers().any(|number| self.appenders.lock(number).open_cells() > 0);
        !open
            && self.log.last_closed() <= self.log.durable_through()
            && self.log.marks_pushed() <= self.log.marks_durable()
    }

    /// Returns whether all pushed marks are durable.
    pub fn marks_durable(&self) -> bool {
        self.log.marks_pushed() <= self.log.marks_durable()
    }

    /// Returns whether every removed block stays removed after a crash. Blocks that were written
    /// back may become dirty again.
    pub fn gone_durable(&self) -> bool {
        self.log.gone_pushed() <= self.log.marks_durable()
    }

    /// Returns the end of the vacant blocks from `first` on and before `end`: none is cached, and
    /// no fill is in flight. Blocks are not looked up one by one, so the vacant range may be
    /// longer.
    pub fn vacant_to(
        &self,
        space: &VolumeSpace,
        first: OriginBlock,
        end: OriginBlock,
    ) -> OriginBlock {
        // Entries that are not loaded are unknown, so no block counts as vacant.
        if !self.is_loaded() {
            return first;
        }
        OriginBlock(self.index.vacant_to(space.base + first.0..space.base + end.0) - space.base)
    }

    /// Begins to remove each block from `first` on, up to the returned one, which is at most `end`.
    pub fn walk(
        &self,
        space: &VolumeSpace,
        first: OriginBlock,
        end: OriginBlock,
    ) -> (OriginBlock, Walk<'_>) {
        let (end, walk) = self.index.walk(space.base + first.0..space.base + end.0);
        (OriginBlock(end - space.base), walk)
    }

    /// Ends the reclaim of a segment. Returns whether it is empty: then it becomes free once
    /// everything that removed its blocks is durable.
    pub fn end_reclaim(&self, segment: SegmentId) -> bool {
        self.segments.end_reclaim(segment, || (self.log.commits.next(), self.log.marks_pushed()))
    }
}

/// A block that was found. Its segment is protected from reuse.
pub struct Pinned<'a> {
    store: &'a Store,
    /// The block.
    pub block: OriginBlock,
    /// The result of the look-up.
    pub found: Found,
    /// The hazard slot, if it replaces the pin.
    hazard: Option<HazardId>,
}

impl<'a> Pinned<'a> {
    /// Creates a result for a segment that the caller has pinned.
    pub(crate) fn new(store: &'a Store, block: OriginBlock, found: Found) -> Self {
        Pinned { store, block, found, hazard: None }
    }
}

impl Drop for Pinned<'_> {
    #[inline]
    fn drop(&mut self) {
        match self.hazard {
            Some(hazard) => self.store.hazards.end(hazard),
            None => self.store.segments.unpin(self.store.segment_of(self.found.entry.slot)),
        }
    }
}

/// Identifies a version by slot and generation; holds no pin, so the segment may be reused
/// meanwhile. A slot holds one version per generation, so the pair is unique.
#[derive(Clone, Copy, Debug)]
pub struct VersionId {
    pub(crate) slot: Slot,
    pub(crate) generation: Generation,
}

impl VersionId {
    /// Returns the slot.
    pub fn slot(&self) -> Slot {
        self.slot
    }
}

impl Store {
    /// Identifies the version at `slot` in the current generation of its segment.
    pub(crate) fn version_at(&self, slot: Slot) -> VersionId {
        VersionId { slot, generation: self.segments.generation(self.segment_of(slot)) }
    }

    /// Identifies the newest version of a block, if it is the one at `slot`.
    pub fn version_of(
        &self,
        space: &VolumeSpace,
        block: OriginBlock,
        slot: Slot,
    ) -> Option<VersionId> {
        let mut version = None;
        self.index.look_up(space.address(block), |entry| {
            // The entry is live, so its segment is not reused meanwhile.
            if entry.slot == slot {
                let generation = self.segments.generation(self.segment_of(slot));
                version = Some(VersionId { slot, generation });
            }
            None
        });
        version
    }
}
