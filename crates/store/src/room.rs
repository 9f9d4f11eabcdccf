//! Room in the index for volumes that are created, grow and are deleted while others are served.
//!
//! A volume has a range of addresses. Ranges of deleted volumes are used again. If no range is
//! free, the index is widened, shard by shard: its entries stay where they are and lose bits of
//! their checks (decision 72). A volume that grows moves if another volume follows it. All of this
//! concerns RAM only: the cache device stores no addresses.

use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use forebay_core::VolumeId;
use forebay_format::CheckSeed;
use forebay_lane::yield_now;

use crate::error::StoreError;
use crate::index::{Address, Relocated};
use crate::lane::StoreLane;
use crate::planted::{self, PlantedBug};
use crate::segments::Live;
use crate::spaces::{NoRoom, NotHere};
use crate::store::{Store, VolumeSpace};
use crate::table::CHECK_BITS_MIN;

/// Blocks examined before other tasks of the lane get their turn.
const STEP: usize = 1024;

/// Pause in the move of a volume while a shard of the index is full.
const FULL: Duration = Duration::from_millis(5);

impl Store {
    /// Returns the addresses of a shard's entries in this range.
    fn addresses_in(&self, shard: u32, space: &VolumeSpace) -> Vec<Address> {
        let mut found = Vec::new();
        self.index.scan_shard(shard, &mut |address, _| {
            found.extend(space.block(address).map(|_| address));
        });
        found
    }

    fn bits_for(end: u64) -> u32 {
        u64::BITS - end.saturating_sub(1).leading_zeros()
    }
}

impl StoreLane {
    /// Assigns a new volume its address range in the index. Makes room for it if necessary, while
    /// requests are served.
    ///
    /// # Errors
    /// The index cannot have so many addresses.
    pub async fn add_space(
        self: &Rc<Self>,
        id: VolumeId,
        blocks: u64,
    ) -> Result<VolumeSpace, StoreError> {
        let store = self.store();
        self.free_ranges().await;
        let space = VolumeSpace { id, base: 0, blocks, seed: CheckSeed::new(&store.uuid, id) };
        loop {
            let added = store.spaces.lock().add(space, store.index.room());
            match added {
                Ok(space) => return Ok(space),
                Err(NoRoom(end)) => self.make_room(end).await?,
            }
        }
    }

    /// Removes a deleted volume's blocks from the index. Its number is not reused before a
    /// checkpoint, so its records in the log have no effect from now on. Its addresses can be
    /// reused.
    pub async fn remove_space(self: &Rc<Self>, space: &VolumeSpace) {
        let store = self.store();
        store.end_ordered(space.id);
        // Only a request that did not end in time may still insert blocks of the volume. Then the
        // range is in use, and is purged again before it is reused.
        let purged = !store.spaces.lock().is_used(space.id);
        self.purge(space).await;
        store.spaces.lock().leave(space.id, purged);
    }

    /// Gives a volume that is not in use at least this number of blocks. The whole index must be
    /// loaded. Returns the volume's range.
    ///
    /// # Errors
    /// The index cannot have so many addresses, or requests of the volume have not ended yet.
    pub async fn grow_space(
        self: &Rc<Self>,
        id: VolumeId,
        blocks: u64,
    ) -> Result<Option<VolumeSpace>, StoreError> {
        let store = self.store();
        self.free_ranges().await;
        loop {
            let extended = store.spaces.lock().extend(id, blocks, store.index.room());
            match extended {
                Ok(space) => return Ok(space),
                Err(NotHere::NoRoom(NoRoom(end))) => self.make_room(end).await?,
                Err(NotHere::Taken) => break,
            }
        }
        self.move_space(id, blocks).await
    }

    /// Moves a volume to a range of `blocks` addresses.
    async fn move_space(
        self: &Rc<Self>,
        id: VolumeId,
        blocks: u64,
    ) -> Result<Option<VolumeSpace>, StoreError> {
        let store = self.store();
        let Some(from) = store.space_of(id) else { return Ok(None) };
        if store.spaces.lock().is_used(id) {
            return Err(StoreError::Refused(
                "requests from its last run still wait for its origin".into(),
            ));
        }
        let to = loop {
            let wanted = VolumeSpace { blocks, ..from };
            let begun = store.spaces.lock().begin_move(wanted, store.index.room());
            match begun {
                Ok(to) => break to,
                Err(NoRoom(end)) => self.make_room(end).await?,
            }
        };
        // Barrier for invariant 9: a block that moves to a shard that was already copied would be
        // missing in the checkpoint.
        let _none = store.checkpoint_gate.enter().await;
        for shard in 0..store.index.shard_count() {
            for some in store.addresses_in(shard, &from).chunks(STEP) {
                for address in some {
                    self.move_block(*address, &from, &to).await;
                }
                yield_now().await;
            }
            yield_now().await;
        }
        store.spaces.lock().end_move(&to);
        Ok(Some(to))
    }

    /// Moves a block. If the target has no room, waits for room, or drops the block if it is clean.
    async fn move_block(&self, at: Address, from: &VolumeSpace, to: &VolumeSpace) {
        let store = self.store();
        let Some(block) = from.block(at) else { return };
        while store.index.relocate(at, to.address(block)) == Relocated::Full {
            if store.forget(from, block, |entry| !entry.dirty).is_some() {
                return;
            }
            store.index_full.store(true, Ordering::Relaxed);
            store.space_wanted.notify_all();
            self.lane().sleep(FULL).await;
        }
    }

    /// Makes room for addresses below `end`, while requests are served.
    async fn make_room(&self, end: u64) -> Result<(), StoreError> {
        let store = self.store();
        // Barrier for invariant 10: a checkpoint records one number of check bits for all of its
        // entries.
        let _none = store.checkpoint_gate.enter().await;
        let wide = store.index.begin_widening(Store::bits_for(end)).map_err(|_| {
            let slots = store.index.geometry().slot_bits();
            StoreError::Refused(format!(
                "the origins of this cache would have {end} blocks, more than its index can tell apart with {slots} bits for a slot and {CHECK_BITS_MIN} for a checksum: use another cache device for this volume"
            ))
        })?;
        for shard in 0..store.index.shard_count() {
            store.index.widen_shard(shard, &wide);
            yield_now().await;
        }
        store.index.widened(&wide);
        tracing::info!(
            device = store.device.name(),
            addresses = store.index.room(),
            check_bits = store.index.check_bits(),
            "the index has room for more blocks of origins"
        );
        Ok(())
    }

    /// Frees the ranges of deleted volumes that nothing uses any more.
    async fn free_ranges(&self) {
        let store = self.store();
        loop {
            let left = store.spaces.lock().free();
            let Some(space) = left else { return };
            self.purge(&space).await;
            store.spaces.lock().purged(&space);
        }
    }

    /// Removes all blocks in a range from the index, and overtakes their fills.
    async fn purge(&self, space: &VolumeSpace) {
        let store = self.store();
        let none = planted::has(PlantedBug::AddressesNotPurged);
        for shard in 0..if none { 0 } else { store.index.shard_count() } {
            for some in store.addresses_in(shard, space).chunks(STEP) {
                for address in some {
                    if let Some(entry) = store.index.remove(*address, |_| true) {
                        let gone = Live::one(entry.dirty, entry.rank);
                        store.segments.remove_live(store.segment_of(entry.slot), gone);
                    }
                }
                yield_now().await;
            }
            store.index.overtake_fills_in(shard, |address| space.block(address).is_some());
            yield_now().await;
        }
    }
}
