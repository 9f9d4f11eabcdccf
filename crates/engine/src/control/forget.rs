//! Forgets the clean blocks of a running volume.

use std::rc::Rc;

use forebay_core::why::InvalidationReason;
use forebay_core::{Cancelled, OriginBlock};
use forebay_lane::yield_now;
use forebay_store::{Entry, VolumeSpace};

use crate::error::EngineError;
use crate::io::admission::AdmissionControl;
use crate::io::policy::Policy;
use crate::lane::LaneVolume;
use crate::lane::engine::EngineLane;
use crate::state::pins::BlockSet;

/// Blocks that are forgotten before other tasks of the lane run.
const STEP: usize = 1024;

/// Number of blocks whose marks may wait in RAM for their record.
const MARKS: usize = 64 * STEP;

/// Forgets a block of a volume if it is clean.
fn forget(view: &LaneVolume, block: OriginBlock) {
    let store = view.store.store();
    if let Some(entry) = store.forget(&view.volume.space, block, |entry| !entry.dirty) {
        Policy(view).gone(&entry);
        AdmissionControl(view).invalidated(block, InvalidationReason::Dropped);
    }
}

impl EngineLane {
    /// Forgets all clean blocks of a volume. Requests are served meanwhile; blocks that they read
    /// may enter again. `progress` is called with the number of blocks left, and may end the
    /// command.
    ///
    /// # Errors
    /// The volume does not exist, the command is cancelled, or the cache device fails: blocks may
    /// then return after a crash, which is harmless.
    pub async fn forget_clean(
        self: &Rc<Self>,
        name: &str,
        progress: impl Fn(u64) -> Result<(), Cancelled>,
    ) -> Result<(), EngineError> {
        let view = self.loaded_volume(name).await?;
        let (store, space) = (&self.cache.store, view.volume.space);
        let mut left = 0;
        self.store
            .visit(
                |entry| !entry.dirty,
                |address, _| left += u64::from(space.block(address).is_some()),
            )
            .await;
        progress(left)?;
        let (mut clean, mut marks) = (Vec::<OriginBlock>::new(), 0);
        for shard in 0..store.index.shard_count() {
            store.index.scan_shard(shard, &mut |address, entry| {
                clean.extend(space.block(address).filter(|_| !entry.dirty));
            });
            yield_now().await;
            while !clean.is_empty() {
                let some = clean.split_off(clean.len().saturating_sub(STEP));
                some.iter().for_each(|block| forget(&view, *block));
                left = left.saturating_sub(some.len() as u64);
                progress(left)?;
                self.rest(&mut marks, some.len()).await?;
            }
        }
        Ok(self.store.sync_marks().await?)
    }

    /// Forgets blocks like [`EngineLane::forget_clean`], but looks up only the given ones and not
    /// the whole index.
    ///
    /// # Errors
    /// See [`EngineLane::forget_clean`].
    pub async fn forget_clean_of(
        self: &Rc<Self>,
        name: &str,
        blocks: &BlockSet,
        progress: impl Fn(u64) -> Result<(), Cancelled>,
    ) -> Result<(), EngineError> {
        let view = self.loaded_volume(name).await?;
        let (mut left, mut marks) = (blocks.len(), 0);
        for range in blocks.ranges() {
            for start in range.clone().step_by(STEP) {
                let end = (start + STEP as u64).min(range.end);
                progress(left)?;
                (start..end).for_each(|block| forget(&view, OriginBlock(block)));
                left -= end - start;
                self.rest(&mut marks, STEP).await?;
            }
        }
        Ok(self.store.sync_marks().await?)
    }

    /// Calls `forget` with the blocks of a volume that are `wanted`, one shard of the index after
    /// the other. The whole index must be loaded, and the volume not attached.
    pub(super) async fn forget_where(
        self: &Rc<Self>,
        space: &VolumeSpace,
        wanted: impl Fn(OriginBlock, &Entry) -> bool,
        forget: impl Fn(OriginBlock),
    ) -> Result<(), EngineError> {
        let index = &self.cache.store.index;
        let (mut found, mut marks) = (Vec::new(), 0);
        for shard in 0..index.shard_count() {
            found.clear();
            index.scan_shard(shard, &mut |address, entry| {
                found.extend(space.block(address).filter(|block| wanted(*block, entry)));
            });
            self.in_steps(&found, &mut marks, &forget).await?;
            yield_now().await;
        }
        Ok(())
    }

    /// Calls `forget` for these blocks in steps. `marks`: limit of marks that wait for their
    /// record.
    pub(super) async fn in_steps(
        self: &Rc<Self>,
        blocks: &[OriginBlock],
        marks: &mut usize,
        forget: impl Fn(OriginBlock),
    ) -> Result<(), EngineError> {
        for some in blocks.chunks(STEP) {
            some.iter().for_each(|block| forget(*block));
            self.rest(marks, some.len()).await?;
        }
        Ok(())
    }

    /// Returns the lane's view of a volume, once the whole index is loaded.
    pub(super) async fn loaded_volume(&self, name: &str) -> Result<Rc<LaneVolume>, EngineError> {
        let volume = self.cache.volume(name).ok_or_else(|| EngineError::no_volume(name))?;
        let view = self.lane_volume(volume.id).ok_or_else(|| EngineError::no_volume(name))?;
        self.index_loaded().await?;
        Ok(view)
    }

    /// Lets other tasks run after a step; logs the marks if there may be many.
    async fn rest(self: &Rc<Self>, marks: &mut usize, forgotten: usize) -> Result<(), EngineError> {
        *marks += forgotten;
        if *marks >= MARKS {
            *marks = 0;
            self.store.sync_marks().await?;
        }
        yield_now().await;
        Ok(())
    }
}
