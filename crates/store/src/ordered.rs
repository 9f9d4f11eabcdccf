//! Ordered volumes: what their origins still have to get, and in which order (invariant 28).
//!
//! What a volume's clients wrote between two flushes is a *group*. Groups reach the origin one after
//! the other, so that it is at every moment what a power cut between two flushes could have left on a
//! disk: all of the groups before, and any part of one. Within a group only the newest version of a
//! block counts. A version of a closed group has to stay readable until the origin has it, though a
//! newer one has replaced it in the index: it is *held*, and so is its segment.
//!
//! Groups are told apart by sequences, the order that the index gives to versions: a flush takes a
//! *cut*, the highest sequence given out so far, before it commits, and when the commit has ended well
//! everything up to the cut is a group. So the versions of one block can never be in another order
//! than their groups, whichever lanes wrote them. The versions come from the records, when these are
//! about to be written; what is appended costs nothing more for it.
//!
//! How far the origin is, the volume table says: the [`Horizon`]. It is durable before the origin gets
//! anything of the next group; versions are marked clean, and no longer held, only after that. See
//! [`recover`] for how the groups are found again.

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

/// How far an origin is: it has everything with a sequence up to one number, and everything in
/// records up to another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Horizon {
    /// The sequence.
    pub sequence: u64,
    /// The record: counts for what recovery has found, where groups are records.
    pub record: RecordNumber,
}

impl Horizon {
    /// What the volume table says; `None`: the volume is not in order.
    pub fn of(volume: &VolumeRecord) -> Option<Horizon> {
        let value = |wanted| volume.settings.iter().find(|(tag, _)| *tag == wanted).map(|it| it.1);
        let sequence = value(ORDERED_SEQUENCE)?;
        Some(Horizon { sequence, record: RecordNumber(value(ORDERED_RECORD).unwrap_or(0)) })
    }

    /// Puts it into a volume's record, or takes it out.
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
    /// With what recovery has found.
    ///
    /// # Errors
    /// There is no memory for it.
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
    /// From now on everything that is written to the volume is put in order.
    pub fn begin_ordered(&self, id: VolumeId) {
        self.ordered.queues.write().entry(id).or_insert_with(|| Arc::new(Queue::new(None)));
        self.ordered.any.store(true, Ordering::SeqCst);
    }

    /// Gives up the order of a volume: nothing of it is held any more.
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

    /// Whether the volume has a queue, in effect or not.
    pub fn has_order(&self, id: VolumeId) -> bool {
        self.ordered.queue(id).is_some()
    }

    /// Whether the origin of the volume is known to be at a flush.
    pub fn is_in_order(&self, id: VolumeId) -> bool {
        self.ordered.queue(id).is_some_and(|queue| queue.in_effect())
    }

    /// Versions of the volume that are held: blocks that its origin still has to get, counted once for
    /// each group.
    pub fn held_versions(&self, id: VolumeId) -> u64 {
        self.ordered.queue(id).map_or(0, |queue| queue.len())
    }

    /// Whether a version of a block is held, the newest one or an older one.
    pub fn is_held(&self, id: VolumeId, block: OriginBlock) -> bool {
        self.ordered.queue(id).is_some_and(|queue| queue.has(block))
    }

    /// Takes a cut: everything that the volume's clients have written up to now is in groups up to
    /// it, and what they write from now on is not. To be followed by a commit, and, if that ends well,
    /// by [`Store::confirm_cut`]. `None`: the volume is not ordered.
    pub fn cut(&self, id: VolumeId, now: Nanos) -> Option<u64> {
        Some(self.ordered.queue(id)?.cut(&self.index, now))
    }

    /// Everything up to a cut is durable on the cache device: it is a group.
    pub fn confirm_cut(&self, id: VolumeId, cut: u64) {
        if let Some(queue) = self.ordered.queue(id) {
            self.release(queue.confirm(cut));
        }
    }

    /// As [`Store::cut`], for the first time: everything that was there before the volume was ordered
    /// is in the group that it closes. Before it there are no groups.
    pub fn first_cut(&self, id: VolumeId, now: Nanos) -> Option<u64> {
        Some(self.ordered.queue(id)?.first_cut(&self.index, now))
    }

    /// Forgets everything up to a cut: whoever calls this looks for it in the index.
    pub fn drop_before(&self, id: VolumeId, cut: u64) {
        if let Some(queue) = self.ordered.queue(id) {
            self.release(queue.drop_through(cut));
        }
    }

    /// Adds the newest version of a block, if it is dirty, to what the origin gets first.
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

    /// The next group that the origin is to get, if it is closed.
    pub fn front_group(&self, id: VolumeId) -> Option<Front> {
        self.ordered.queue(id)?.front()
    }

    /// The origin durably has the group that was in front and went up to there, but for these blocks,
    /// which cannot be read: they stay dirty.
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

    /// After [`StoreLane::note_written`]: marks what the origin has clean, and no longer holds it.
    /// Returns the blocks that have become clean.
    pub fn settle_groups(&self, space: &VolumeSpace, horizon: Horizon) -> Vec<OriginBlock> {
        let Some(queue) = self.ordered.queue(space.id) else { return Vec::new() };
        let settled = queue.settle(horizon);
        let mut clean = Vec::new();
        for (block, version) in &settled.versions {
            // It is held, so its segment's life lasts.
            if self.written_back(space, *block, &self.version_at(version.slot)) {
                clean.push(*block);
            }
        }
        self.release(settled.versions.into_iter().map(|(_, version)| version));
        self.release(settled.kept);
        clean
    }

    /// Whether everything up to a cut is on the origin and the horizon says so.
    pub fn has_settled(&self, id: VolumeId, cut: u64) -> bool {
        self.ordered.queue(id).is_none_or(|queue| queue.has_settled(cut))
    }

    /// Versions that the origin has and the horizon does not say so; `None`: there is no such group.
    pub fn unsettled(&self, id: VolumeId) -> Option<u64> {
        self.ordered.queue(id)?.unsettled()
    }

    /// Groups that the origin has count as not written: nobody knows what became of it meanwhile.
    pub fn unwrite_groups(&self, id: VolumeId) {
        if let Some(queue) = self.ordered.queue(id) {
            queue.unwrite();
        }
    }

    /// A version that is held, to be read.
    pub fn pin_held(&self, block: OriginBlock, version: &OrderedVersion) -> Pinned<'_> {
        self.segments.pin(self.segment_of(version.slot));
        Pinned::new(
            self,
            block,
            Found { entry: version.entry(), mask: version.mask.as_deref().cloned() },
        )
    }

    /// Puts the dirty versions of a record in order that is about to be written.
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
        // Either the version itself, or what it takes the place of.
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
    /// Makes it durable that the origin has the groups that were written; how far it is with them. `None`:
    /// none was. To be followed by [`Store::settle_groups`].
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
        // Barrier for invariant 28: after a crash nothing older goes over what the origin has.
        if !planted::has(PlantedBug::HorizonForgotten) || !queue.in_effect() {
            self.note_horizon(id, Some(horizon)).await?;
        }
        Ok(Some(horizon))
    }

    /// Gives up the order of a volume, durably.
    ///
    /// # Errors
    /// The cache device failed: the volume is as it was.
    pub async fn leave_order(self: &Rc<Self>, id: VolumeId) -> Result<(), StoreError> {
        if let Some(queue) = self.store().ordered.queue(id) {
            queue.release_all();
        }
        // Barrier for invariant 28: the table no longer promises an order before there is none.
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
