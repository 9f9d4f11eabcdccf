//! The store: everything that is on the cache device, and the index of it.
//!
//! [`Store`] is shared by all lanes; a [`StoreLane`](crate::StoreLane) is one lane's way to it.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use forebay_core::{
    BlockSize, Generation, OriginBlock, RecordNumber, SectorMask, SegmentId, Slot, VolumeId,
};
use forebay_device::Device;
use forebay_format::{CheckSeed, Geometry, Mark, MarkKind, Uuid, VolumeRecord};
use forebay_lane::{Gate, MemoryHold, Notify};
use parking_lot::Mutex;

use crate::appender::Appenders;
use crate::hazard::{HazardId, HazardSlots};
use crate::health::Health;
use crate::index::{Address, Condition, Found, Index};
use crate::latency::DeviceLatency;
use crate::layout::SegmentLayout;
use crate::log::Log;
use crate::options::StoreOptions;
use crate::ordered::Ordered;
use crate::planted::{self, PlantedBug};
use crate::segments::{Live, Segments};
use crate::table::Entry;

/// The check of a payload that was read back and is good.
#[derive(Clone, Copy, Debug)]
pub struct PayloadCheck(pub(crate) u32);

/// One volume's part of the index, and what its checksums begin with.
#[derive(Clone, Copy, Debug)]
pub struct VolumeSpace {
    /// The volume.
    pub id: VolumeId,
    /// Address of its block 0.
    pub base: u64,
    /// Number of its blocks.
    pub blocks: u64,
    pub(crate) seed: CheckSeed,
}

impl VolumeSpace {
    /// Whether the volume has this block. Block numbers that come from a device are to be asked about:
    /// the address of one beyond the end belongs to another volume, or to none.
    #[inline]
    pub fn contains(&self, block: OriginBlock) -> bool {
        block.0 < self.blocks
    }

    /// The address of a block of this volume.
    #[inline]
    pub fn address(&self, block: OriginBlock) -> Address {
        debug_assert!(self.contains(block), "{block:?} is beyond the end of {:?}", self.id);
        Address(self.base + block.0)
    }

    /// The block behind an address, if it belongs to this volume.
    pub fn block(&self, address: Address) -> Option<OriginBlock> {
        let block = address.0.checked_sub(self.base)?;
        (block < self.blocks).then_some(OriginBlock(block))
    }
}

/// The volumes' parts of the index, to find the volume of an address.
pub struct Spaces(Vec<VolumeSpace>);

impl Spaces {
    /// The volume of an address, and which of its blocks that is.
    pub fn find(&self, address: Address) -> Option<(&VolumeSpace, OriginBlock)> {
        let after = self.0.partition_point(|space| space.base <= address.0);
        let space = self.0.get(after.checked_sub(1)?)?;
        space.block(address).map(|block| (space, block))
    }
}

/// Who appends: background work may use the reserved segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// A client's write, or a fill.
    Foreground,
    /// A client's write of a block that is worth keeping. Most are written again before long, so these
    /// segments empty themselves.
    Rewritten,
    /// A write to an ordered volume. Its versions are held until the origin has them in their order, and
    /// so are their segments, which therefore keep nothing else from being reclaimed.
    Ordered,
    /// A fill of what is expected to stay: beside what is reinserted, so that segments hold what
    /// leaves together.
    Settled,
    /// Reclaim carrying blocks on.
    Background,
}

/// A new version to append.
pub struct Version<'a> {
    /// The volume.
    pub space: &'a VolumeSpace,
    /// The block.
    pub block: OriginBlock,
    /// Newer than the origin.
    pub dirty: bool,
    /// Its valid sectors, if not all of them.
    pub mask: Option<SectorMask>,
    /// Rank in the measure of the replacement policy.
    pub rank: u8,
    /// When it may replace what is there.
    pub condition: Condition<'a>,
}

/// What became of an append.
#[derive(Debug)]
pub enum Appended {
    /// It is the newest version now.
    Done {
        /// The version that it replaced.
        old: Option<Entry>,
    },
    /// The condition did not hold.
    Refused,
    /// There is no room at the moment: wait for [`Store::space`].
    NoSpace,
    /// There is no memory for its mask: the block has to be whole, see [`Store::has_room_for_mask`].
    NoMask,
}

/// Why a cached block could not be read.
#[derive(Clone, Debug)]
pub enum ReadFailure {
    /// The payload is not what was written: flipped, misdirected, lost or stale.
    Corrupt,
    /// The device failed.
    Device(forebay_device::DeviceError),
}

/// What is counted, apart from what every look-up reads.
#[derive(Default, Debug)]
#[repr(align(128))]
pub struct Counters {
    /// Bytes read from the cache device by who counts them nowhere else: see [`Store::read_bytes`].
    pub(crate) read_bytes: AtomicU64,
    /// Bytes written to the cache device.
    pub written_bytes: AtomicU64,
    /// Bytes of payload in them.
    pub payload_bytes: AtomicU64,
    /// Syncs of the cache device.
    pub syncs: AtomicU64,
    /// Cached blocks that failed their check.
    pub corrupt_blocks: AtomicU64,
}

/// The store of one cache device. See the module.
pub struct Store {
    pub(crate) device: Arc<dyn Device>,
    pub(crate) uuid: Uuid,
    pub(crate) geometry: Geometry,
    pub(crate) options: StoreOptions,
    /// The index.
    pub index: Index,
    /// The segments.
    pub segments: Segments,
    /// Whether the device can be trusted.
    pub health: Health,
    /// What is counted.
    pub counters: Counters,
    pub(crate) hazards: HazardSlots,
    /// How long the device takes.
    pub latency: DeviceLatency,
    /// Room has been made.
    pub space: Notify,
    /// Somebody waits for room.
    pub space_wanted: Notify,
    /// A block found no room in the index: there are free segments, and yet blocks have to leave.
    pub(crate) index_full: AtomicBool,
    pub(crate) log: Log,
    pub(crate) appenders: Appenders,
    pub(crate) ordered: Ordered,
    pub(crate) spaces: Mutex<Vec<VolumeSpace>>,
    pub(crate) meta: Mutex<forebay_format::Superblock>,
    pub(crate) volumes: Mutex<Vec<VolumeRecord>>,
    /// Numbers of volumes that have left the table since the last checkpoint began.
    pub(crate) resting: Mutex<HashSet<VolumeId>>,
    pub(crate) meta_gate: Gate,
    pub(crate) sync_gate: Gate,
    pub(crate) checkpoint_gate: Gate,
    pub(crate) appended_at_checkpoint: AtomicU64,
    /// What all of this takes.
    pub(crate) _memory: Vec<MemoryHold>,
    pub(crate) distrust: AtomicBool,
    /// Checksums of everything that was appended, for [`PlantedBug::UnboundChecksum`].
    #[cfg(feature = "planted-bugs")]
    pub(crate) known_checks: Mutex<std::collections::HashSet<u32>>,
}

impl Store {
    /// The unit of caching.
    pub fn block_size(&self) -> BlockSize {
        self.geometry.block
    }

    /// The cache's identity.
    pub fn uuid(&self) -> Uuid {
        self.uuid
    }

    /// The device.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    /// Where everything lies.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// How it was opened.
    pub fn options(&self) -> &StoreOptions {
        &self.options
    }

    /// Blocks that fit if every record is full and no segment is kept free.
    pub fn capacity_blocks(&self) -> u64 {
        self.log.layout().cells_per_segment() * u64::from(self.segments.count())
    }

    /// Segments that foreground work leaves free for background work.
    pub const RESERVED_SEGMENTS: u32 = 2;

    /// See [`Store::RESERVED_SEGMENTS`].
    pub fn reserved_segments(&self) -> u32 {
        Self::RESERVED_SEGMENTS
    }

    /// Blocks that fit into a segment of a cache laid out like this, if every record is full.
    pub fn cells_per_segment_of(geometry: &Geometry) -> u64 {
        SegmentLayout::new(geometry).cells_per_segment()
    }

    /// The parts of the index that volumes have at the moment.
    pub fn spaces(&self) -> Spaces {
        let mut spaces = self.spaces.lock().clone();
        spaces.sort_by_key(|space| space.base);
        Spaces(spaces)
    }

    /// Bytes of memory of the index, all in.
    pub fn index_bytes(&self) -> u64 {
        self.index.bytes() + self.segments.bytes()
    }

    /// Bytes of memory of the log's buffers.
    pub fn buffer_bytes(&self) -> u64 {
        self.log.buffer_bytes()
    }

    /// Whether the device has been told, since it was opened, that neither clean copies nor samples
    /// of origins are to be trusted.
    pub fn is_distrusted(&self) -> bool {
        self.distrust.load(Ordering::SeqCst)
    }

    /// The segment that holds a slot.
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

    /// As [`Store::look_up`], for a lane that reads the block before it does anything else. `rank`
    /// gives the entry's new rank.
    #[inline]
    pub(crate) fn look_up_now(
        &self,
        hazard: Option<HazardId>,
        space: &VolumeSpace,
        block: OriginBlock,
        rank: impl FnOnce(&Entry) -> u8,
    ) -> Option<Pinned<'_>> {
        let mut hazard = hazard;
        let found = self.index.look_up(space.address(block), |entry| {
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

    /// Bytes read from the cache device.
    pub fn read_bytes(&self) -> u64 {
        self.counters.read_bytes.load(Ordering::Relaxed) + self.hazards.read_bytes()
    }

    /// Changes the rank of a block, if it is still the version at `slot`. Returns it as it was, and
    /// as it is now.
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

    /// A hint: the block will be looked up soon, if there is one of this number.
    #[inline]
    pub fn expect(&self, space: &VolumeSpace, block: OriginBlock) {
        if block.0 < space.blocks {
            self.index.expect(space.address(block));
        }
    }

    /// Looks a block up without pinning anything: for decisions that tolerate change.
    #[inline]
    pub fn peek(&self, space: &VolumeSpace, block: OriginBlock) -> Option<Found> {
        self.index.look_up(space.address(block), |_| None)
    }

    /// Whether a block that is absent may be valid in part, as far as can be told at this moment.
    pub fn has_room_for_mask(&self, space: &VolumeSpace, block: OriginBlock) -> bool {
        self.index.has_room_for_mask(space.address(block))
    }

    pub(crate) fn check(&self, space: &VolumeSpace, block: OriginBlock, payload: &[u8]) -> u32 {
        space.seed.check(block, payload)
    }

    /// With [`PlantedBug::UnboundChecksum`]: whether the payload is intact, wherever it belongs. That is
    /// all that a checksum tells which does not cover the address.
    pub(crate) fn is_intact_somewhere(&self, _payload: &[u8]) -> bool {
        #[cfg(feature = "planted-bugs")]
        if planted::has(PlantedBug::UnboundChecksum) {
            return self.known_checks.lock().contains(&forebay_format::crc32c(_payload));
        }
        false
    }

    /// Notes that a version is durable on the origin. `true` if it was still the newest and dirty. The
    /// mark is logged with the next commit.
    pub fn written_back(
        &self,
        space: &VolumeSpace,
        block: OriginBlock,
        version: &VersionId,
    ) -> bool {
        let segment = self.segment_of(version.slot);
        let mut marked = false;
        self.index.update(space.address(block), |entry| {
            let replaced = entry.slot != version.slot && !planted::has(PlantedBug::MarksAnyVersion);
            if replaced || !entry.dirty {
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

    /// Forgets a block if `when` agrees: evicts or invalidates it. Fills of it are overtaken in
    /// any case. The mark is logged with the next commit; until then the block could come back
    /// after a crash, so no other copy may change before [`settle_marks`](crate::StoreLane::settle_marks).
    pub fn forget(
        &self,
        space: &VolumeSpace,
        block: OriginBlock,
        when: impl FnOnce(&Entry) -> bool,
    ) -> Option<Entry> {
        // The mark is pushed before anybody can see that the block is gone: who finds it absent
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

    /// Drops everything of a volume that has left the volume table.
    pub fn purge(&self, space: &VolumeSpace) {
        let (mut copy, mut masks) = (Vec::new(), Vec::new());
        for shard in 0..self.index.shard_count() {
            copy.clear();
            masks.clear();
            self.index.snapshot_shard(shard, &mut copy, &mut masks);
            for (address, _) in &copy {
                if space.block(*address).is_some()
                    && let Some(entry) = self.index.remove(*address, |_| true)
                {
                    let gone = Live::one(entry.dirty, entry.rank);
                    self.segments.remove_live(self.segment_of(entry.slot), gone);
                }
            }
        }
    }

    /// Blocks that fit into a segment, if every record is full.
    pub fn cells_per_segment(&self) -> u64 {
        self.log.layout().cells_per_segment()
    }

    /// Latches a failure of the device, and wakes everyone who waits for something that will not
    /// come now.
    pub(crate) fn fail(&self, error: &dyn std::fmt::Display) {
        self.health.fail(error);
        self.log.written.notify_all();
        self.log.round_ended.notify_all();
        self.space.notify_all();
        self.space_wanted.notify_all();
    }

    /// How far what is durable reaches: the generation of the superblock, and the last record. Neither
    /// is ever lower when the device is opened again, unless it lost what was durable.
    pub fn position(&self) -> (u64, RecordNumber) {
        (self.meta.lock().generation, self.log.durable_through())
    }

    /// Whether a block found no room in the index since this was asked last.
    pub fn index_was_full(&self) -> bool {
        self.index_full.swap(false, Ordering::Relaxed)
    }

    /// Whether a version is durable where it is.
    pub fn is_durable(&self, slot: Slot) -> bool {
        self.segments.is_durable(self.segment_of(slot), self.log.layout().granule_of(slot))
    }

    /// Bytes appended since the last checkpoint.
    pub fn appended_since_checkpoint(&self) -> u64 {
        let now = self.counters.written_bytes.load(Ordering::Relaxed);
        now.saturating_sub(self.appended_at_checkpoint.load(Ordering::Relaxed))
    }

    /// Appended bytes after which a checkpoint is due.
    pub fn checkpoint_due(&self) -> u64 {
        // Recovery holds the headers of what was written since in memory, which has to be there then.
        // More is written until the checkpoint is, so this is about the half of it.
        const MOST: u64 = 64 << 30;
        const FOR_EACH_BLOCK: u64 = 400;
        let segment = self.log.layout().segment_bytes;
        let half = u64::from(self.segments.count()) * segment / 2;
        let blocks = self.options.memory.not_held() / FOR_EACH_BLOCK;
        // A segment at least: with no memory left at all, a checkpoint would be due without an append.
        let within_memory = blocks.saturating_mul(self.block_size().bytes()).max(segment);
        self.options.checkpoint_bytes.unwrap_or(half).min(half).min(MOST).min(within_memory)
    }

    /// Whether everything that was appended or marked is durable.
    pub fn all_durable(&self) -> bool {
        let open =
            self.appenders.numbers().any(|number| self.appenders.lock(number).open_cells() > 0);
        !open
            && self.log.last_closed() <= self.log.durable_through()
            && self.log.marks_pushed() <= self.log.marks_durable()
    }

    /// Whether a mark could still be lost in a crash.
    pub fn marks_settled(&self) -> bool {
        self.log.marks_pushed() <= self.log.marks_durable()
    }

    /// Ends the reclaim of a segment. `true` if it is empty: it will be free once everything that
    /// took its blocks out is durable.
    pub fn end_reclaim(&self, segment: SegmentId) -> bool {
        self.segments.end_reclaim(segment, || (self.log.next_round(), self.log.marks_pushed()))
    }
}

/// A block that was found, with its segment kept from being reused.
pub struct Pinned<'a> {
    store: &'a Store,
    /// Which block.
    pub block: OriginBlock,
    /// What was found.
    pub found: Found,
    /// The hazard slot that replaces the pin.
    hazard: Option<HazardId>,
}

impl<'a> Pinned<'a> {
    /// Something in a segment that the caller has pinned.
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

/// Identifies a version of a block by its slot and the generation of its segment. It holds no pin: the
/// segment may be reused meanwhile. A slot holds one version in each generation, so the pair never
/// identifies another one.
#[derive(Clone, Copy, Debug)]
pub struct VersionId {
    slot: Slot,
    generation: Generation,
}

impl Store {
    /// The version at `slot` in the current generation of its segment.
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
            // The entry is live, so its segment's life lasts.
            if entry.slot == slot {
                let generation = self.segments.generation(self.segment_of(slot));
                version = Some(VersionId { slot, generation });
            }
            None
        });
        version
    }
}
