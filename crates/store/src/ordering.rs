//! Versions that the store holds for [`ordered`](crate::ordered) volumes: closing groups, releasing
//! versions.

pub(crate) mod recover;

use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use forebay_core::{Nanos, OriginBlock, VolumeId};
use forebay_lane::OverLimit;

use crate::error::StoreError;
use crate::index::Found;
use crate::lane::StoreLane;
use crate::ordered::queue::GroupQueue;
use crate::ordered::room::{OWN, VERSION};
use crate::ordered::{Front, Horizon, OrderedVersion};
use crate::planted::{self, PlantedBug};
use crate::record::{Ready, RecordContent};
use crate::store::{Pinned, Store, VolumeSpace};

impl Store {
    /// Begins to collect all writes to the volume in groups.
    pub fn begin_ordered(&self, id: VolumeId) {
        self.ordered.queues.write().entry(id).or_insert_with(|| Arc::new(GroupQueue::new(None)));
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
        // Memory may have been requested for versions that were never written.
        if self.ordered.room.released() {
            self.space.notify_all();
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

    /// Takes a cut: all earlier writes of the volume's clients are in groups up to it, and all
    /// later ones are not. A commit must follow, and, if it succeeds, [`Store::confirm_cut`].
    /// Returns `None` if the volume is not ordered.
    pub fn cut(&self, id: VolumeId, now: Nanos) -> Option<u64> {
        Some(self.ordered.queue(id)?.cut(&self.index, now))
    }

    /// Confirms that everything up to a cut is durable on the cache device and so forms a group.
    pub fn confirm_cut(&self, id: VolumeId, cut: u64) {
        if let Some(queue) = self.ordered.queue(id) {
            self.release(queue.confirm(cut));
        }
    }

    /// Takes the first cut, like [`Store::cut`]: it closes the group of all versions that existed
    /// before the volume was ordered. No groups precede it.
    pub fn first_cut(&self, id: VolumeId, now: Nanos) -> Option<u64> {
        Some(self.ordered.queue(id)?.first_cut(&self.index, now))
    }

    /// Drops all versions up to a cut, because the caller adds them again from the index.
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

    /// Records that the origin durably has the group in front, which reaches `through`, except for
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
            if self.written_back(space, *block, &self.version_at(version.slot), || false) {
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

    /// Returns the number of versions that the origin has and the horizon does not cover; `None` if
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
        let RecordContent::Data(entries) = &ready.content else { return };
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

    fn hold_in(&self, queue: &GroupQueue, block: OriginBlock, version: OrderedVersion) {
        self.ordered.room.add(&version);
        if !planted::has(PlantedBug::HeldNotKept) {
            self.segments.hold(self.segment_of(version.slot));
        }
        // Release the version itself, or the one that it replaces.
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

    /// Returns whether an ordered volume may hold more versions. If not, wait for [`Store::space`].
    pub fn has_room_in_order(&self, id: VolumeId) -> bool {
        let room = &self.ordered.room;
        if room.is_left() || room.ask() {
            return true;
        }
        // Set before the check below, so that a release in between is noticed.
        room.full.store(true, Ordering::SeqCst);
        room.is_left() || self.held_versions(id) < OWN
    }

    /// Returns whether a writer waits for ordered volumes to hold fewer versions.
    pub fn is_order_full(&self) -> bool {
        self.ordered.room.full.load(Ordering::Relaxed)
    }

    /// Requests memory for `versions` versions at once, when a volume is put in order.
    ///
    /// # Errors
    /// There is not enough memory.
    pub fn make_room_in_order(&self, versions: u64) -> Result<(), OverLimit> {
        self.ordered.room.grow(versions * VERSION as u64, "what is dirty, in order,")
    }
}

impl StoreLane {
    /// Records durably which groups the origin has, and returns that horizon; `None` if none was
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
        // Barrier for invariant 28: after a crash, older versions must not overwrite newer data of
        // the origin.
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
