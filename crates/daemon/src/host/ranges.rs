//! Ranges of served volumes: pinned, filled and evicted.

use std::rc::Rc;
use std::sync::Arc;

use forebay_admin::{ApiError, ByteRange, ErrorKind, PinReport, VolumeName};
use forebay_core::OriginBlock;
use forebay_core::units::format_size;
use forebay_engine::{BlockSet, EngineLane, Volume};

use super::report::Running;
use super::waiting::Left;
use super::{EngineHost, faults};
use crate::devices::NO_CACHE;
use crate::host_api::Definition;
use crate::work::Work;

/// Returns the blocks of a volume that ranges touch.
///
/// # Errors
/// A range is not within the volume.
fn blocks(volume: &Volume, ranges: &[ByteRange]) -> Result<BlockSet, ApiError> {
    let size = volume.size();
    for range in ranges {
        if range.len == 0 || range.offset.checked_add(range.len).is_none_or(|end| end > size) {
            let message = format!(
                "{} bytes at {} are not within '{}', which has {size}",
                range.len, range.offset, volume.name
            );
            return Err(ApiError::invalid("ranges", message));
        }
    }
    Ok(volume.blocks_of(ranges.iter().map(|range| range.offset..range.offset + range.len)))
}

impl EngineHost {
    /// Returns a served volume that has a cache device.
    fn cached(&self, volume: &Definition) -> Result<Running, ApiError> {
        if volume.cache == NO_CACHE {
            let message = format!("volume '{}' has no cache device", volume.name);
            return Err(ApiError::new(ErrorKind::Refused, message));
        }
        self.served.get(&volume.name)
    }

    /// Pins blocks, or no longer.
    pub(super) fn change_pins(
        self: &Arc<Self>,
        volume: &Definition,
        ranges: &[ByteRange],
        pinned: bool,
        work: &Arc<Work>,
    ) -> Result<(), ApiError> {
        let running = self.cached(volume)?;
        let (before, named) = (running.volume.pinned(), blocks(&running.volume, ranges)?);
        let after = match pinned {
            true => before.union(&named),
            false if ranges.is_empty() => BlockSet::default(),
            false => before.without(&named),
        };
        self.pin_in_engine(&running, after.clone())?;
        let list = after.ranges().iter().cloned();
        if let Err(error) = self.lists.pins.store(volume, running.block_bytes(), list) {
            self.pin_in_engine(&running, BlockSet::clone(&before))?;
            return Err(error);
        }
        if pinned { self.fill_blocks(volume, &running, named, work) } else { Ok(()) }
    }

    fn pin_in_engine(&self, running: &Running, blocks: BlockSet) -> Result<(), ApiError> {
        let (number, name) = (running.place.number, running.volume.name.clone());
        self.lanes.run(0, move |state| async move {
            state.engine(number)?.pin(&name, &blocks).map_err(faults::engine)
        })?
    }

    /// Pins what was pinned when the volume was last served. A failure is logged.
    pub(super) fn pin_again(&self, volume: &Definition) {
        let Some(list) = self.lists.pins.of(volume) else { return };
        let Ok(running) = self.cached(volume) else { return };
        if list.block != running.block_bytes() {
            tracing::warn!(volume = %volume.name, "nothing is pinned: its blocks have another size than before");
            return;
        }
        if let Err(error) = self.pin_in_engine(&running, BlockSet::of(list.runs())) {
            tracing::warn!(volume = %volume.name, "nothing is pinned: {error}");
        }
    }

    /// See [`crate::host_api::Contents::pins`].
    pub(super) fn report_pins(&self, name: &VolumeName) -> Result<PinReport, ApiError> {
        let running = self.served.get(name)?;
        let (pinned, store) = (running.volume.pinned(), running.store());
        let block = running.block_bytes();
        let number = running.place.number;
        let most = self.lanes.run(0, move |state| async move {
            state.engine(number).map(|engine| engine.most_pinned())
        })??;
        let space = store.space_of(running.volume.id);
        let all = pinned.ranges().iter().flat_map(|range| range.clone());
        // What is not loaded yet cannot be looked up.
        let cached = all.map(OriginBlock).filter(|block| {
            space.is_some_and(|space| {
                store.has_loaded(&space, *block, OriginBlock(block.0 + 1))
                    && store.peek(&space, *block).is_some()
            })
        });
        let cached = cached.count() as u64;
        let ranges = running.volume.bytes_of(&pinned).into_iter();
        let ranges = ranges
            .map(|range| ByteRange { offset: range.start, len: range.end - range.start })
            .collect();
        Ok(PinReport {
            pinned: pinned.len() * block,
            cached: cached * block,
            most: most * block,
            ranges,
        })
    }

    /// See [`crate::host_api::Task::Fill`].
    pub(super) fn fill_ranges(
        self: &Arc<Self>,
        volume: &Definition,
        ranges: &[ByteRange],
        work: &Arc<Work>,
    ) -> Result<(), ApiError> {
        let running = self.cached(volume)?;
        let named = match ranges {
            [] => BlockSet::clone(&running.volume.pinned()),
            ranges => blocks(&running.volume, ranges)?,
        };
        self.fill_blocks(volume, &running, named, work)
    }

    fn fill_blocks(
        self: &Arc<Self>,
        volume: &Definition,
        running: &Running,
        blocks: BlockSet,
        work: &Arc<Work>,
    ) -> Result<(), ApiError> {
        let (name, unit) = (volume.name.to_string(), running.block_bytes());
        let fill = move |engine: Rc<EngineLane>, left: Left| async move {
            let progress = |blocks| left.set(blocks);
            let absent = engine.fill(&name, &blocks, progress).await.map_err(faults::engine)?;
            match absent {
                0 => Ok(()),
                absent => Err(ApiError::failed(format!(
                    "{} did not enter the cache: it has no space, its write_budget is used up, or they are being written",
                    format_size(absent * unit)
                ))),
            }
        };
        self.on_engine(volume, running, volume.origin.clone(), work, fill)
    }

    /// See [`crate::host_api::Task::Evict`].
    pub(super) fn evict_ranges(
        self: &Arc<Self>,
        volume: &Definition,
        ranges: &[ByteRange],
        work: &Arc<Work>,
    ) -> Result<(), ApiError> {
        let running = self.cached(volume)?;
        let (named, name) = (blocks(&running.volume, ranges)?, volume.name.to_string());
        let evict = move |engine: Rc<EngineLane>, left: Left| async move {
            let progress = |blocks| left.set(blocks);
            engine.forget_clean_of(&name, &named, progress).await.map_err(faults::engine)
        };
        self.on_engine(volume, &running, volume.cache.clone(), work, evict)
    }

    /// Runs attended work of a volume, which may wait for `device`, on the lane that opened its cache.
    fn on_engine<F>(
        self: &Arc<Self>,
        volume: &Definition,
        running: &Running,
        device: String,
        work: &Arc<Work>,
        job: impl FnOnce(Rc<EngineLane>, Left) -> F + Send + 'static,
    ) -> Result<(), ApiError>
    where
        F: Future<Output = Result<(), ApiError>> + 'static,
    {
        let (number, unit, own) =
            (running.place.number, running.block_bytes(), volume.name.clone());
        let run = move |host: &Arc<Self>, work: &Arc<Work>| {
            let _wait = host.served.wait_for(&own, &device);
            host.lanes.watch(work, unit, move |state, left| async move {
                job(state.engine(number)?, left).await
            })
        };
        self.attended(&volume.name, work, run)
    }
}
