//! Counts how much of a cache each volume occupies.

use std::collections::BTreeMap;
use std::time::Duration;

use forebay_core::VolumeId;
use forebay_policy::Rank;

use crate::state::cache::Cache;
use crate::state::occupancy::Occupancy;
use crate::state::volume::Volume;

impl Cache {
    /// Returns the occupancy of every volume, attached or not, at most `age` old. Counting visits
    /// every entry of the index.
    pub fn occupancy_lately(&self, age: Duration) -> BTreeMap<VolumeId, Occupancy> {
        let now = self.clock.now();
        if let Some((at, known)) = &*self.counted.lock()
            && now.since(*at) < age
        {
            return known.clone();
        }
        // Counts without the lock, so that readers of the last count need not wait.
        let all = self.occupancy();
        *self.counted.lock() = Some((now, all.clone()));
        all
    }

    /// Returns the number of cached blocks of a volume in the last count of
    /// [`Cache::occupancy_lately`], or `None` before the first.
    pub fn cached_as_counted(&self, volume: VolumeId) -> Option<u64> {
        let counted = self.counted.lock();
        counted.as_ref().and_then(|(_, known)| known.get(&volume)).map(|own| own.cached)
    }

    /// Returns the occupancy of every volume, attached or not.
    pub fn occupancy(&self) -> BTreeMap<VolumeId, Occupancy> {
        let mut counted = BTreeMap::new();
        for shard in 0..self.store.index.shard_count() {
            self.count_shard(shard, &mut counted);
        }
        let of = |id| {
            let own = counted.get(&id).copied().unwrap_or_default();
            (id, Occupancy { held: self.store.held_versions(id), ..own })
        };
        self.store.volumes().iter().map(|volume| of(volume.id)).collect()
    }

    /// Counts the blocks in a shard of the index, in addition to those of other shards.
    pub(crate) fn count_shard(&self, shard: u32, all: &mut BTreeMap<VolumeId, Occupancy>) {
        let spaces = self.store.spaces();
        self.store.index.scan_shard(shard, &mut |address, entry| {
            if let Some((space, _)) = spaces.find(address) {
                let own = all.entry(space.id).or_default();
                own.cached += 1;
                own.dirty += u64::from(entry.dirty);
                own.kept += u64::from(Rank::from_bits(entry.rank).is_kept());
            }
        });
    }

    /// Returns the space, in blocks, of versions that origins have not received yet: dirty blocks,
    /// and on ordered volumes everything in segments with held versions, because those segments
    /// cannot be reclaimed.
    pub(crate) fn unwritten_blocks(&self) -> u64 {
        let versions = self.sum_volumes(|volume| self.unwritten_of(volume));
        versions + self.detached.dirty() + self.beside_held()
    }

    /// Returns the space, in blocks, that segments with held versions use for other data.
    fn beside_held(&self) -> u64 {
        let room = u64::from(self.store.segments.with_held()) * self.store.cells_per_segment();
        room.saturating_sub(self.sum_volumes(|volume| self.held_of(volume)))
    }

    /// Returns the part of [`Cache::unwritten_blocks`] that cannot be written back at present: the
    /// volumes are not attached, or their origins accept no writes, or refuse these blocks. The
    /// other volumes share the rest of the cache.
    pub(crate) fn bound_blocks(&self) -> u64 {
        let bound = |volume: &Volume| match volume.is_bound() {
            true => self.unwritten_of(volume),
            false => volume.refused_count(),
        };
        // The ordered volume that holds a segment is unknown, so all are counted as bound if any
        // attached ordered volume is bound or no ordered volume is attached.
        let ordered = |bound| {
            move |volume: &Volume| u64::from(volume.is_ordered() && volume.is_bound() == bound)
        };
        let held_on = self.sum_volumes(ordered(true)) > 0 || self.sum_volumes(ordered(false)) == 0;
        let beside = if held_on { self.beside_held() } else { 0 };
        self.sum_volumes(bound) + self.detached.dirty() + beside
    }

    fn held_of(&self, volume: &Volume) -> u64 {
        if volume.is_ordered() { self.store.held_versions(volume.id) } else { 0 }
    }

    pub(crate) fn unwritten_of(&self, volume: &Volume) -> u64 {
        volume.dirty_blocks().max(self.held_of(volume))
    }
}
