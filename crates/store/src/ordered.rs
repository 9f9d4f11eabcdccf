//! Ordered volumes: the versions that their origins still have to receive, and in which order
//! (invariant 28).
//!
//! The writes of a volume's clients between two flushes form a *group*. Groups reach the origin one
//! after the other, so that it is at every moment in a state that a power cut between two flushes
//! could have left on a disk: all earlier groups, and any part of one. Within a group only the
//! newest version of a block matters. A version of a closed group must stay readable until the
//! origin has it, even after a newer one has replaced it in the index: it is *held*, and so is its
//! segment.
//!
//! Groups are separated by sequences, the order that the index assigns to versions: a flush takes a
//! *cut*, the highest sequence assigned so far, before it commits, and when the commit succeeds,
//! everything up to the cut is a group. So the versions of one block are always in the order of
//! their groups, whichever lanes wrote them. Versions are collected from records when these are
//! about to be written; appending costs nothing extra.
//!
//! The volume table records the progress of the origin: the [`Horizon`]. It is made durable before
//! the origin receives anything of the next group; only after that are versions marked clean and
//! released. See `recover` for how groups are recovered.

pub(crate) mod queue;
pub(crate) mod recover;
mod room;

use std::collections::{BTreeSet, HashMap};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use forebay_core::{Nanos, OriginBlock, RecordNumber, VolumeId};
use forebay_format::VolumeRecord;
use forebay_format::volume::{ORDERED_RECORD, ORDERED_SEQUENCE};
use forebay_lane::{MemoryBudget, OverLimit};
use parking_lot::RwLock;

use crate::error::StoreError;
use crate::index::Found;
use crate::lane::StoreLane;
use crate::planted::{self, PlantedBug};
use crate::record::{Content, Ready};
use crate::store::{Pinned, Store, VolumeSpace};

use queue::Queue;
pub use queue::{Front, OrderedVersion};
use room::Room;

/// Progress of an origin: it has every version with a sequence up to one number, and every version
/// in records up to another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Horizon {
    /// Every version with a sequence up to this.
    pub sequence: u64,
    /// Every version in a record up to this; used after recovery, where groups consist of records.
    pub record: RecordNumber,
}

impl Horizon {
    /// Reads it from a volume's record; `None`: the volume is not in order.
    pub fn of(volume: &VolumeRecord) -> Option<Horizon> {
        let value = |wanted| volume.settings.iter().find(|(tag, _)| *tag == wanted).map(|it| it.1);
        let sequence = value(ORDERED_SEQUENCE)?;
        Some(Horizon { sequence, record: RecordNumber(value(ORDERED_RECORD).unwrap_or(0)) })
    }

    /// Stores it in a volume's record, or removes it.
    fn put(volume: &mut VolumeRecord, horizon: Option<Horizon>) {
        volume.settings.retain(|(tag, _)| ![ORDERED_SEQUENCE, ORDERED_RECORD].contains(tag));
        if let Some(horizon) = horizon {
            volume.settings.push((ORDERED_SEQUENCE, horizon.sequence));
            volume.settings.push((ORDERED_RECORD, horizon.record.0));
        }
    }

    fn max(self, other: Horizon) -> Horizon {
        Horizon {
            sequence: self.sequence.max(other.sequence),
            record: self.record.max(other.record),
        }
    }
}

/// The queues of all ordered volumes.
pub(crate) struct Ordered {
    any: AtomicBool,
    room: Room,
    queues: RwLock<HashMap<VolumeId, Arc<Queue>>>,
}

impl Ordered {
    /// Makes the queues from those that recovery has found.
    ///
    /// # Errors
    /// There is no memory for the versions in them.
    pub(crate) fn new(
        queues: HashMap<VolumeId, Queue>,
        memory: &Arc<MemoryBudget>,
    ) -> Result<Self, OverLimit> {
        let room = Room::new(memory);
        queues.values().for_each(|queue| queue.each(|version| room.add(version)));
        room.restore()?;
        let queues: HashMap<_, _> =
            queues.into_iter().map(|(id, queue)| (id, Arc::new(queue))).collect();
        Ok(Ordered { any: AtomicBool::new(!queues.is_empty()), room, queues: RwLock::new(queues) })
    }

    /// Whether any volume is ordered.
    #[inline]
    pub(crate) fn any(&self) -> bool {
        self.any.load(Ordering::Relaxed)
    }

    fn queue(&self, id: VolumeId) -> Option<Arc<Queue>> {
        if !self.any() {
            return None;
        }
        self.queues.read().get(&id).cloned()
    }
}

impl Store {
    /// Begins to collect all writes to the volume in groups.
    pub fn begin_ordered(&self, id: VolumeId) {
        self.ordered.queues.write().entry(id).or_insert_with(|| Arc::new(Queue::new(None)));
        self.ordered.any.store(true, Ordering::SeqCst);
    }

    /// Ends the order of a volume: all of its held versions are released.
    pub fn end_ordered(&self, id: VolumeId) {
        let queue = {
            let mut queues = self.ordered.queues.write();
            let queue = queues.remove(&id);
            self.ordered.any.store(!queues.is_empty(), Ordering::SeqCst);
            queue
        };
        if let Some(queue) = queue {
            self.release(queue.clear());
        }
    }

    /// Returns whether the volume has a queue, in effect or not.
    pub fn has_order(&self, id: VolumeId) -> bool {
        self.ordered.queue(id).is_some()
    }

    /// Returns whether the order is in effect: the origin is known to be at a flush.
    pub fn is_in_order(&self, id: VolumeId) -> bool {
        self.ordered.queue(id).is_some_and(|queue| queue.in_effect())
    }

    /// Returns the number of the volume's held versions: blocks that its origin still has to
    /// receive, counted once per group.
    pub fn held_versions(&self, id: VolumeId) -> u64 {
        self.ordered.queue(id).map_or(0, |queue| queue.len())
    }

    /// Returns whether any version of a block is held.
    pub fn is_held(&self, id: VolumeId, block: OriginBlock) -> bool {
        self.ordered.queue(id).is_some_and(|queue| queue.has(block))
    }

    /// Takes a cut: all earlier writes of the volume's clients are in groups up to it, all later
    /// ones are not. A commit must follow, and, if it succeeds, [`Store::confirm_cut`]. `None`: the
    /// volume is not ordered.
    pub fn cut(&self, id: VolumeId, now: Nanos) -> Option<u64> {
        Some(self.ordered.queue(id)?.cut(&self.index, now))
    }

    /// Confirms that everything up to a cut is durable on the cache device and so forms a group.
    pub fn confirm_cut(&self, id: VolumeId, cut: u64) {
        if let Some(queue) = self.ordered.queue(id) {
            self.release(queue.confirm(cut));
        }
    }

    /// As [`Store::cut`], for the first cut: it closes the group of all versions that existed
    /// before the volume was ordered. There are no groups before it.
    pub fn first_cut(&self, id: VolumeId, now: Nanos) -> Option<u64> {
        Some(self.ordered.queue(id)?.first_cut(&self.index, now))
    }

    /// Drops all versions up to a cut; the caller takes them from the index instead.
    pub fn drop_before(&self, id: VolumeId, cut: u64) {
        if let Some(queue) = self.ordered.queue(id) {
            self.release(queue.drop_through(cut));
        }
    }

    /// Adds the newest version of a block, if it is dirty, to the first group that the origin
    /// receives.
    pub fn add_base(&self, space: &VolumeSpace, block: OriginBlock) {
        let Some(queue) = self.ordered.queue(space.id) else { return };
        let Some(pinned) = self.look_up(space, block) else { return };
        if pinned.found.entry.dirty {
            let (entry, mask) = (pinned.found.entry, pinned.found.mask.clone().map(Box::new));
            let version =
                OrderedVersion { slot: entry.slot, check: entry.check, mask, sequence: 0 };
            self.hold_in(&queue, block, version);
        }
    }

    /// Returns the next group for the origin, if it is closed.
    pub fn front_group(&self, id: VolumeId) -> Option<Front> {
        self.ordered.queue(id)?.front()
    }

    /// Notes that the origin durably has the group in front, which reaches `through`, except for
    /// the `unreadable` blocks: they stay dirty.
    pub fn group_written(
        &self,
        id: VolumeId,
        through: Horizon,
        unreadable: &BTreeSet<OriginBlock>,
    ) {
        if let Some(queue) = self.ordered.queue(id) {
            self.release(queue.written(through, unreadable));
        }
    }

    /// After [`StoreLane::note_written`]: marks the versions that the origin has clean, and
    /// releases them. Returns the blocks that have become clean.
    pub fn settle_groups(&self, space: &VolumeSpace, horizon: Horizon) -> Vec<OriginBlock> {
        let Some(queue) = self.ordered.queue(space.id) else { return Vec::new() };
        let settled = queue.settle(horizon);
        let mut clean = Vec::new();
        for (block, version) in &settled.versions {
            // The version is held, so its segment has not been reused.
            if self.written_back(space, *block, &self.version_at(version.slot)) {
                clean.push(*block);
            }
        }
        self.release(settled.versions.into_iter().map(|(_, version)| version));
        self.release(settled.kept);
        clean
    }

    /// Returns whether everything up to a cut is on the origin and covered by the horizon.
    pub fn has_settled(&self, id: VolumeId, cut: u64) -> bool {
        self.ordered.queue(id).is_none_or(|queue| queue.has_settled(cut))
    }

    /// Returns the number of versions that the origin has and the horizon does not cover; `None`:
    /// there is no such group.
    pub fn unsettled(&self, id: VolumeId) -> Option<u64> {
        self.ordered.queue(id)?.unsettled()
    }

    /// Marks the groups written to the origin as not written, because their state there is unknown.
    pub fn unwrite_groups(&self, id: VolumeId) {
        if let Some(queue) = self.ordered.queue(id) {
            queue.unwrite();
        }
    }

    /// Pins a held version for reading.
    pub fn pin_held(&self, block: OriginBlock, version: &OrderedVersion) -> Pinned<'_> {
        self.segments.pin(self.segment_of(version.slot));
        Pinned::new(
            self,
            block,
            Found { entry: version.entry(), mask: version.mask.as_deref().cloned() },
        )
    }

    /// Adds the dirty versions of a record that is about to be written to their groups.
    pub(crate) fn put_in_order(&self, ready: &Ready) {
        let Content::Data(entries) = &ready.content else { return };
        let layout = self.log.layout();
        let first = u64::from(ready.record.position) * layout.granule + layout.header_bytes;
        for (number, entry) in entries.iter().enumerate() {
            let Some(entry) = entry else { continue };
            if entry.void || !entry.dirty {
                continue;
            }
            let Some(queue) = self.ordered.queue(entry.volume) else { continue };
            let slot = layout.slot(ready.record.segment, first + number as u64 * layout.block);
            self.hold_in(&queue, entry.block, OrderedVersion::of(slot, entry));
        }
    }

    fn hold_in(&self, queue: &Queue, block: OriginBlock, version: OrderedVersion) {
        self.ordered.room.add(&version);
        if !planted::has(PlantedBug::HeldNotKept) {
            self.segments.hold(self.segment_of(version.slot));
        }
        // Releases the version itself, or the one that it replaces.
        self.release(queue.add(block, version));
    }

    fn release(&self, versions: impl IntoIterator<Item = OrderedVersion>) {
        let mut any = false;
        for version in versions {
            self.ordered.room.remove(&version);
            if !planted::has(PlantedBug::HeldNotKept) {
                self.segments.release(self.segment_of(version.slot));
            }
            any = true;
        }
        if any {
            self.space_wanted.notify_all();
            if self.ordered.room.released() {
                self.space.notify_all();
            }
        }
    }
}

impl StoreLane {
    /// Records durably which groups the origin has, and returns that horizon. `None`: none was
    /// written. [`Store::settle_groups`] must follow.
    ///
    /// # Errors
    /// The cache device failed: nothing has changed, and nothing of the next group may be written.
    pub async fn note_written(
        self: &Rc<Self>,
        id: VolumeId,
    ) -> Result<Option<Horizon>, StoreError> {
        let store = self.store();
        let Some(queue) = store.ordered.queue(id) else { return Ok(None) };
        let Some(horizon) = queue.written_through() else { return Ok(None) };
        // Barrier for invariant 28: after a crash, older versions must not overwrite what the
        // origin has.
        if !planted::has(PlantedBug::HorizonForgotten) || !queue.in_effect() {
            self.note_horizon(id, Some(horizon)).await?;
        }
        Ok(Some(horizon))
    }

    /// Ends the order of a volume, durably.
    ///
    /// # Errors
    /// The cache device failed: the volume is still in order.
    pub async fn leave_order(self: &Rc<Self>, id: VolumeId) -> Result<(), StoreError> {
        if let Some(queue) = self.store().ordered.queue(id) {
            queue.release_all();
        }
        // Barrier for invariant 28: the table must stop promising an order before the order ends.
        self.note_horizon(id, None).await?;
        self.store().end_ordered(id);
        Ok(())
    }

    async fn note_horizon(
        self: &Rc<Self>,
        id: VolumeId,
        horizon: Option<Horizon>,
    ) -> Result<(), StoreError> {
        self.change_volumes(|volumes, _| {
            for volume in volumes.iter_mut().filter(|volume| volume.id == id) {
                Horizon::put(volume, horizon);
            }
            Ok(())
        })
        .await
    }
}
