//! Forgets the clean blocks of a running volume.

use std::rc::Rc;

use forebay_core::OriginBlock;
use forebay_core::why::InvalidationReason;
use forebay_lane::yield_now;

use crate::error::EngineError;
use crate::io::admission::AdmissionControl;
use crate::io::policy::Policy;
use crate::lane::engine::EngineLane;
use crate::state::pins::BlockSet;

/// Blocks that are forgotten before other tasks of the lane get their turn.
const STEP: usize = 1024;

/// Blocks whose marks wait in RAM for their record.
const MARKS: usize = 64 * STEP;

impl EngineLane {
    /// Forgets all clean blocks of a volume, or those of `within`. Requests are served meanwhile; blocks
    /// that they read may enter again. `progress` is called with the number of blocks left.
    ///
    /// # Errors
    /// There is no such volume, or the cache device fails: blocks may then come back after a crash,
    /// which does no harm.
    pub async fn forget_clean(
        self: &Rc<Self>,
        name: &str,
        within: Option<&BlockSet>,
        progress: impl Fn(u64),
    ) -> Result<(), EngineError> {
        let volume = self.cache.volume(name).ok_or_else(|| EngineError::no_volume(name))?;
        let view = self.lane_volume(volume.id).ok_or_else(|| EngineError::no_volume(name))?;
        self.index_loaded().await?;
        let store = &self.cache.store;
        let is_meant = |block: OriginBlock| {
            within.is_none_or(|within| within.overlaps(&(block.0..block.0.saturating_add(1))))
        };
        let mut left = 0;
        store.index.visit(
            |entry| !entry.dirty,
            |address, _| left += u64::from(volume.space.block(address).is_some_and(is_meant)),
        );
        progress(left);
        let (mut clean, mut marks) = (Vec::<OriginBlock>::new(), 0);
        for shard in 0..store.index.shard_count() {
            store.index.scan_shard(shard, &mut |address, entry| {
                let block = volume.space.block(address).filter(|_| !entry.dirty);
                clean.extend(block.filter(|block| is_meant(*block)));
            });
            while !clean.is_empty() {
                for block in clean.drain(clean.len().saturating_sub(STEP)..) {
                    left = left.saturating_sub(1);
                    if let Some(entry) = store.forget(&volume.space, block, |entry| !entry.dirty) {
                        Policy(&view).gone(&entry);
                        AdmissionControl(&view).invalidated(block, InvalidationReason::Dropped);
                    }
                }
                progress(left);
                marks += STEP;
                if marks >= MARKS {
                    marks = 0;
                    self.store.sync_marks().await?;
                }
                yield_now().await;
            }
        }
        Ok(self.store.sync_marks().await?)
    }
}
