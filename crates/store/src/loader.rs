//! Loading the index while requests are served.
//!
//! The checkpoint has the whole index, sorted by shard; after a crash, recovery has replayed the
//! log behind it. The cache opens without reading the entries: a request first loads the shards of
//! its blocks ([`StoreLane::load`]), and [`StoreLane::load_rest`] loads the others in the
//! background. A shard is loaded as a whole, with the log's changes, before anything reads it, and
//! is exact afterwards.
//!
//! Until all shards are loaded, nothing may rely on the index as a whole: no checkpoint is written,
//! no segment is reclaimed, and only as many segments may be opened as recovery can replay. If the
//! checkpoint turns out to be damaged beyond its parity, the cache device counts as failed, and the
//! superblock records it: the next opening loads everything at once, and rebuilds the index from
//! the log, which contains everything written meanwhile.

use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use forebay_core::{OriginBlock, SegmentId};

use crate::changes::NewestVersions;
use crate::chunks::{entry_of, items_in};
use crate::error::StoreError;
use crate::index::{Address, ShardContent};
use crate::lane::StoreLane;
use crate::loading::{
    ABSENT, Decoded, Entries, EntrySource, LoadBuffers, LoadGuard, LoadWaiter, PRESENT, UNDER_WAY,
};
use crate::meta::LOAD_AT_ONCE;
use crate::planted::{self, PlantedBug};
use crate::segments::Live;
use crate::store::{Store, VolumeSpace};
use crate::table::Entry;

/// Called with each block that is loaded, before it becomes visible.
pub type OnLoad<'a> = &'a dyn Fn(Address, &Entry);

impl Store {
    /// Returns whether the whole index is loaded.
    #[inline]
    pub fn is_loaded(&self) -> bool {
        self.loading.is_complete()
    }

    /// Returns the shards of the index that are loaded.
    pub fn loaded_shards(&self) -> Vec<u32> {
        (0..self.index.shard_count()).filter(|shard| self.loading.is_present(*shard)).collect()
    }

    /// Returns the loaded shards and all shards of the index, while it is being loaded.
    pub fn loading_progress(&self) -> Option<(u32, u32)> {
        let all = self.loading.shards.len() as u32;
        let left = self.loading.left.load(Ordering::Relaxed);
        (!self.is_loaded()).then_some((all.saturating_sub(left), all))
    }

    /// Returns whether these blocks of a volume can be looked up.
    #[inline]
    pub fn has_loaded(&self, space: &VolumeSpace, first: OriginBlock, end: OriginBlock) -> bool {
        self.is_loaded() || self.shards_of(space, first, end).all(|it| self.loading.is_present(it))
    }

    /// Returns the shards of these blocks, or all shards if there are more blocks than shards.
    fn shards_of(
        &self,
        space: &VolumeSpace,
        first: OriginBlock,
        end: OriginBlock,
    ) -> impl Iterator<Item = u32> + use<> {
        let all = self.loading.shards.len() as u32;
        let blocks = first.0..end.0.min(space.blocks);
        let few = blocks.end.saturating_sub(blocks.start) < u64::from(all);
        let (geometry, space) = (*self.index.geometry(), *space);
        let some = blocks.filter(move |_| few);
        let some = some.map(move |block| geometry.place(space.address(OriginBlock(block)).0).shard);
        some.chain(if few { 0..0 } else { 0..all })
    }

    /// Returns whether another checkpoint should be written after the loading: a part of this one
    /// was rebuilt from parity, or there is a log to replay over it.
    pub fn checkpoint_is_outdated(&self) -> bool {
        self.loading.outdated.load(Ordering::SeqCst)
    }

    /// Runs `act` while no shard becomes visible. Entries that `act` has not seen are passed to
    /// [`OnLoad`] afterwards.
    pub fn while_none_is_loaded<T>(&self, act: impl FnOnce() -> T) -> T {
        let _publishing = self.loading.publishing.lock();
        act()
    }

    /// Ends the loading in the background because the cache is closed: shards that are not loaded
    /// stay in the checkpoint.
    pub fn abandon_loading(&self) {
        self.loading.abandoned.store(true, Ordering::SeqCst);
        self.loading.changed.notify_all();
    }

    /// Returns whether the index cannot be loaded, because the checkpoint cannot be read or a task
    /// panicked while loading. A device that refuses writes can still be read.
    pub fn cannot_be_loaded(&self) -> bool {
        self.loading.failed.load(Ordering::SeqCst)
    }

    /// Waits until the index is loaded. Returns `false` if it never will be, because the checkpoint
    /// cannot be read or the cache is closed.
    pub async fn loaded(&self) -> bool {
        loop {
            let changed = self.loading.changed.listen();
            if self.is_loaded() {
                return true;
            }
            if self.cannot_be_loaded() || self.loading.abandoned.load(Ordering::SeqCst) {
                return false;
            }
            changed.await;
        }
    }

    /// Makes the entries of a shard visible.
    fn publish(
        &self,
        shard: u32,
        content: &mut ShardContent,
        on_load: OnLoad<'_>,
    ) -> Result<(), StoreError> {
        let _publishing = self.loading.publishing.lock();
        let versions = content.versions.iter().map(|(address, version)| (address, &version.entry));
        for (address, entry) in
            content.entries.iter().map(|(address, entry)| (address, entry)).chain(versions)
        {
            let live = Live::one(entry.dirty, entry.rank);
            self.segments.add_live(self.segment_of(entry.slot), live);
            let untold = planted::has(PlantedBug::LoadedDirtyNotTold);
            on_load(*address, &Entry { dirty: entry.dirty && !untold, ..*entry });
        }
        self.index.load_shard(shard, content)?;
        self.loading.shards[shard as usize].store(PRESENT, Ordering::Release);
        if self.loading.left.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.loading.completed();
            self.segments.withhold(0);
            self.space.notify_all();
        }
        Ok(())
    }
}

impl StoreLane {
    /// Loads the shards of these blocks of a volume, if they are not loaded.
    ///
    /// # Errors
    /// The checkpoint cannot be read. The device counts as failed.
    pub async fn load(
        self: &Rc<Self>,
        space: &VolumeSpace,
        (first, end): (OriginBlock, OriginBlock),
        on_load: OnLoad<'_>,
    ) -> Result<(), StoreError> {
        let _waiting = LoadWaiter::begin(&self.store().loading);
        for shard in self.store().shards_of(space, first, end) {
            self.load_shard(shard, on_load).await?;
        }
        Ok(())
    }

    /// Loads all shards that are neither loaded nor being loaded by other lanes, unless the cache
    /// is closed. Each lane begins at a different shard.
    ///
    /// # Errors
    /// See [`StoreLane::load`].
    pub async fn load_rest(self: &Rc<Self>, on_load: OnLoad<'_>) -> Result<(), StoreError> {
        let loading = &self.store().loading;
        let all = loading.shards.len();
        let lanes = self.store().options.lanes.max(1);
        let first = all * usize::from(self.lane().id().0) / lanes;
        let mut result = Ok(());
        for shard in (first..all).chain(0..first) {
            loop {
                let changed = loading.changed.listen();
                if loading.waiting.load(Ordering::SeqCst) == 0 {
                    break;
                }
                changed.await;
            }
            let ends = result.is_err() || loading.abandoned.load(Ordering::SeqCst);
            if !ends && loading.shards[shard].load(Ordering::Acquire) == ABSENT {
                result = self.load_shard(shard as u32, on_load).await;
                match self.store().options().load_pause {
                    Duration::ZERO => forebay_lane::yield_now().await,
                    pause => self.lane().sleep(pause).await,
                }
            }
        }
        // Waiters see that the loading has ended or that the device has failed.
        loading.changed.notify_all();
        result
    }

    async fn load_shard(
        self: &Rc<Self>,
        shard: u32,
        on_load: OnLoad<'_>,
    ) -> Result<(), StoreError> {
        let store = self.store();
        let loading = &store.loading;
        loop {
            let changed = loading.changed.listen();
            if loading.is_present(shard) {
                return Ok(());
            }
            if store.cannot_be_loaded() {
                return Err(self.failed());
            }
            let state = &loading.shards[shard as usize];
            let begun =
                state.compare_exchange(ABSENT, UNDER_WAY, Ordering::SeqCst, Ordering::SeqCst);
            if begun.is_ok() {
                break;
            }
            changed.await;
        }
        let _under_way = LoadGuard { loading, shard };
        let _guard = store.fail_on_panic("the task that loads a part of the index");
        let own = usize::from(self.lane().id().0) % loading.lanes.len();
        let _turn = loading.lanes[own].turn.enter().await;
        let (mut kept, mut content) = (loading.take_kept(own), ShardContent::default());
        content.entries = std::mem::take(&mut kept.entries);
        let loaded = match &loading.source {
            Some(source) => self.read_shard(source, shard, &mut kept, &mut content).await,
            None => Ok(()),
        };
        let published = loaded.and_then(|()| store.publish(shard, &mut content, on_load));
        if let Err(error) = &published {
            store.fail(error);
            loading.failed.store(true, Ordering::SeqCst);
            // The write below may take long.
            loading.changed.notify_all();
            // Without this the next opening would meet the same damage again. If the superblock
            // cannot be written now, a later write will record it.
            _ = self.write_superblock(|superblock| superblock.compat |= LOAD_AT_ONCE).await;
        }
        content.entries.clear();
        kept.entries = content.entries;
        loading.keep(own, kept);
        published
    }

    /// Reads the entries of a shard into `content`, and applies the log's changes to them.
    async fn read_shard(
        &self,
        source: &EntrySource,
        shard: u32,
        kept: &mut LoadBuffers,
        content: &mut ShardContent,
    ) -> Result<(), StoreError> {
        let changes = source.changes.lock().clone();
        if source.has_log != changes.is_some() {
            return Err(StoreError::Refused("the log is not at hand any more".into()));
        }
        let changes = changes.filter(|_| !planted::has(PlantedBug::LoadedWithoutLog));
        let newest = changes.as_ref().map(|changes| changes.newest(shard)).unwrap_or_default();
        let newest = NewestVersions::new(newest);
        let (mut chunk, most) = (
            self.first_chunk(source, shard, kept).await?,
            source.checkpoint.chunks_of_entries().end,
        );
        let mut beyond = false;
        while chunk < most && !beyond {
            self.read_chunk(source, chunk, kept).await?;
            for Decoded { shard: own, meaning, address, entry } in &kept.decoded {
                beyond |= *own > shard;
                if *own != shard {
                    continue;
                }
                let changed = newest.has(*address);
                let left = match &changes {
                    _ if changed || *meaning == Entries::Superseded => None,
                    Some(changes) => changes.marked(entry),
                    None => Some(*entry),
                };
                match left {
                    Some(_) if *meaning == Entries::None => {
                        return Err(StoreError::Refused(
                            "the checkpoint has a block in an empty segment".into(),
                        ));
                    }
                    Some(entry) => content.entries.push((*address, entry)),
                    None if entry.partial && !changed => content.superseded.push(*address),
                    None => (),
                }
            }
            chunk += 1;
            // Let requests that do not need this shard run first.
            forebay_lane::yield_now().await;
        }
        if let Some(changes) = &changes {
            for version in &newest.versions {
                let address = version.address();
                match changes.version(version) {
                    Some(version) => content.versions.push((address, version)),
                    None => content.superseded.push(address),
                }
            }
        }
        Ok(())
    }

    /// Returns a chunk that begins with an entry of a lower shard, or the first chunk, so that no
    /// earlier chunk has entries of `shard`.
    async fn first_chunk(
        &self,
        source: &EntrySource,
        shard: u32,
        kept: &mut LoadBuffers,
    ) -> Result<u32, StoreError> {
        let own = kept.chunk.zip(kept.decoded.first().zip(kept.decoded.last()));
        if let Some((chunk, (first, last))) = own
            && first.shard < shard
            && shard <= last.shard
        {
            return Ok(chunk);
        }
        let all = source.checkpoint.chunks_of_entries();
        let (mut low, mut high) = (all.start, all.end);
        {
            let firsts = source.firsts.lock();
            for (chunk, first) in firsts.iter() {
                if *first < shard {
                    low = low.max(*chunk);
                } else {
                    high = high.min(*chunk);
                }
            }
        }
        // Chunk `low` begins with a lower shard, chunk `high` does not.
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            self.read_chunk(source, middle, kept).await?;
            let is_lower = kept.decoded.first().is_some_and(|first| first.shard < shard);
            if is_lower { low = middle } else { high = middle }
        }
        Ok(low)
    }

    /// Reads a chunk and decodes its entries.
    async fn read_chunk(
        &self,
        source: &EntrySource,
        chunk: u32,
        kept: &mut LoadBuffers,
    ) -> Result<(), StoreError> {
        if kept.chunk == Some(chunk) {
            return Ok(());
        }
        let store = self.store();
        kept.chunk = None;
        kept.decoded.clear();
        let (read, mut reader) = source.checkpoint.read_at(self.queue(), chunk).await?;
        store.loading.outdated.fetch_or(read.mended, Ordering::SeqCst);
        let items = items_in(&mut reader, &read.chunk)?;
        let bits = u32::from(source.checkpoint.header().check_bits);
        for raw in items.entries() {
            let SegmentId(segment) = store.segment_of(raw.slot);
            let space = source.spaces.iter().find(|space| space.id == raw.volume);
            let known = space.filter(|space| space.contains(raw.block));
            let (Some(space), Some(meaning)) = (known, source.segments.get(segment as usize))
            else {
                return Err(StoreError::Refused(
                    "the checkpoint has a block of no volume or in no segment".into(),
                ));
            };
            let (address, entry) = (space.address(raw.block), entry_of(&raw, bits));
            let shard = store.index.shard_of(address);
            kept.decoded.push(Decoded { shard, meaning: *meaning, address, entry });
        }
        if let Some(first) = kept.decoded.first() {
            source.firsts.lock().insert(chunk, first.shard);
        }
        kept.chunk = Some(chunk);
        Ok(())
    }
}
