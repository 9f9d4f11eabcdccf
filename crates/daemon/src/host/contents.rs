//! The cached blocks of served volumes: writes them back, drops, pins, fills and evicts them, and
//! loads them into RAM again.

use std::rc::Rc;
use std::sync::Arc;

use forebay_admin::{ApiError, ByteRange, DropRequest, ErrorKind, PinReport, VolumeName};
use forebay_core::units::format_size;
use forebay_core::{Caching, OriginBlock, RamStrategy};
use forebay_engine::{BlockSet, EngineLane, Volume};
use forebay_ram::prefetch::prefetch;

use super::report::ServedVolume;
use super::waiting::RemainingBlocks;
use super::{EngineHost, faults};
use crate::devices::NO_CACHE;
use crate::host_api::{BlockTask, CachedBlocks, Definition};
use crate::work::Work;

fn refused(message: String) -> ApiError {
    ApiError::new(ErrorKind::Refused, message)
}

fn no_tier(volume: &Definition) -> ApiError {
    let name = &volume.name;
    refused(match volume.settings.ram {
        0 => format!(
            "volume '{name}' has no RAM tier; give it one with 'forebay set {name} ram=SIZE', then stop and start it"
        ),
        _ => format!("volume '{name}' has no RAM tier until it is stopped and started"),
    })
}

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

impl CachedBlocks for Arc<EngineHost> {
    fn run(&self, task: &BlockTask, volume: &Definition, work: &Arc<Work>) -> Result<(), ApiError> {
        let own = volume.clone();
        match task {
            BlockTask::Flush => {
                self.attended(&volume.name, work, move |host, work| host.drain_now(&own.name, work))
            }
            &BlockTask::Drop(tiers) => self
                .attended(&volume.name, work, move |host, work| host.drop_now(&own, tiers, work)),
            BlockTask::Prefetch => self.prefetch_into(volume, work),
            BlockTask::Fill(ranges) => self.fill_ranges(volume, ranges, work),
            BlockTask::Pin(ranges) => self.change_pins(volume, ranges, true, work),
            BlockTask::Unpin(ranges) => self.change_pins(volume, ranges, false, work),
            BlockTask::Evict(ranges) => self.evict_ranges(volume, ranges, work),
        }
    }

    fn has_pins(&self, volume: &Definition) -> bool {
        self.lists.pins.of(volume).is_some_and(|list| list.runs().next().is_some())
    }

    fn pins(&self, name: &VolumeName) -> Result<PinReport, ApiError> {
        let running = self.served.get(name)?;
        let (pinned, store) = (running.volume.pinned(), running.store());
        let block = running.block_bytes();
        let number = running.place.number;
        let most = self.lanes.run(0, move |state| async move {
            state.engine(number).map(|engine| engine.most_pinned())
        })??;
        let space = store.space_of(running.volume.id);
        let all = pinned.ranges().iter().flat_map(|range| range.clone());
        // Blocks of a shard that is not loaded yet cannot be looked up.
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
}

impl EngineHost {
    fn drop_now(
        &self,
        volume: &Definition,
        DropRequest { ram, ssd }: DropRequest,
        work: &Arc<Work>,
    ) -> Result<(), ApiError> {
        let name = &volume.name;
        let (running, tier) = (self.served.get(name)?, self.served.ram.get(name));
        if ram && tier.is_none() {
            return Err(no_tier(volume));
        }
        if ssd && volume.cache == NO_CACHE {
            return Err(refused(format!("volume '{name}' has no cache device")));
        }
        let both = !ram && !ssd;
        // The cache device comes first, because a read from it would fill RAM again.
        if (ssd || both) && volume.cache != NO_CACHE {
            let (number, own) = (running.place.number, name.to_string());
            let _wait = self.served.wait_for(name, &volume.cache);
            self.lanes.watch(work, running.block_bytes(), move |state, left| async move {
                let engine = state.engine(number)?;
                engine.forget_clean(&own, |blocks| left.set(blocks)).await.map_err(faults::engine)
            })?;
        }
        if let Some(tier) = tier.filter(|_| ram || both) {
            tier.tier().forget_clean();
        }
        Ok(())
    }

    /// Stores the list of blocks in a volume's RAM tier, to prefetch them later.
    pub(super) fn note_contents(&self, volume: &Definition) {
        if let Some(ram) = self.served.ram.get(&volume.name) {
            let tier = ram.tier();
            let blocks = tier.cached_blocks();
            if blocks.is_empty() {
                // The list from earlier stays.
                return;
            }
            let runs = blocks.chunk_by(|one, next| one + 1 == *next);
            let runs = runs.map(|run| run[0]..run[0] + run.len() as u64);
            if let Err(error) = self.lists.hints.store(volume, tier.block().bytes(), runs) {
                tracing::warn!(volume = %volume.name, "the list of blocks in RAM cannot be stored, so prefetch cannot load them: {error}");
            }
        }
    }

    fn prefetch_into(&self, volume: &Definition, work: &Work) -> Result<(), ApiError> {
        let name = &volume.name;
        let running = self.served.get(name)?;
        let tier = self.served.ram.get(name).ok_or_else(|| no_tier(volume))?.tier().clone();
        let settings = running.volume.settings();
        if settings.caching != Caching::On {
            return Err(refused(format!(
                "nothing enters the RAM tier of '{name}' while it is {}; 'forebay resume {name}' first",
                settings.caching
            )));
        }
        if settings.ram_strategy == RamStrategy::WriteOnly {
            return Err(refused(format!(
                "with ram_strategy=write-only the RAM tier of '{name}' caches nothing that is read; choose read-write or read-only"
            )));
        }
        let hint = self.lists.hints.of(volume).ok_or_else(|| {
            refused(format!(
                "there is no list of the blocks that the RAM tier of '{name}' held; one is stored when the volume is stopped or paused, and when the daemon ends in order"
            ))
        })?;
        let (own, counted) = (name.to_string(), running.volume.clone());
        self.lanes.watch(work, 1, move |state, left| async move {
            let volume = state.open(&own);
            let volume = volume
                .ok_or_else(|| ApiError::failed(format!("'{own}' is not served any more")))?;
            let total = hint.ranges().map(|range| range.end - range.start).sum();
            left.set(total).map_err(|_| faults::cancelled())?;
            let lane: &Rc<_> = &state.context.lane;
            let in_flight = || counted.stats.in_flight();
            let progress = |done| left.set(total.saturating_sub(done));
            let done = prefetch(&tier, &volume, lane, hint.ranges(), in_flight, progress).await;
            tracing::info!(volume = own, bytes = done.bytes, failed = done.failed, "prefetched");
            left.set(0).map_err(|_| faults::cancelled())?;
            match done.failed {
                0 => Ok(()),
                failed => {
                    Err(ApiError::failed(format!("{failed} reads of '{own}' failed; see the log")))
                }
            }
        })
    }

    /// Returns a served volume that has a cache device.
    fn cached(&self, volume: &Definition) -> Result<ServedVolume, ApiError> {
        if volume.cache == NO_CACHE {
            let message = format!("volume '{}' has no cache device", volume.name);
            return Err(ApiError::new(ErrorKind::Refused, message));
        }
        self.served.get(&volume.name)
    }

    /// Pins blocks, or no longer.
    fn change_pins(
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

    fn pin_in_engine(&self, running: &ServedVolume, blocks: BlockSet) -> Result<(), ApiError> {
        let (number, name) = (running.place.number, running.volume.name.clone());
        self.lanes.run(0, move |state| async move {
            state.engine(number)?.pin(&name, &blocks).map_err(faults::engine)
        })?
    }

    /// Pins the blocks that were pinned when the volume was last served. A failure is logged.
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

    fn fill_ranges(
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
        running: &ServedVolume,
        blocks: BlockSet,
        work: &Arc<Work>,
    ) -> Result<(), ApiError> {
        let (name, unit) = (volume.name.to_string(), running.block_bytes());
        let fill = move |engine: Rc<EngineLane>, left: RemainingBlocks| async move {
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

    fn evict_ranges(
        self: &Arc<Self>,
        volume: &Definition,
        ranges: &[ByteRange],
        work: &Arc<Work>,
    ) -> Result<(), ApiError> {
        let running = self.cached(volume)?;
        let (named, name) = (blocks(&running.volume, ranges)?, volume.name.to_string());
        let evict = move |engine: Rc<EngineLane>, left: RemainingBlocks| async move {
            let progress = |blocks| left.set(blocks);
            engine.forget_clean_of(&name, &named, progress).await.map_err(faults::engine)
        };
        self.on_engine(volume, &running, volume.cache.clone(), work, evict)
    }

    /// Runs attended work of a volume, which may wait for `device`, on the lane that opened its
    /// cache.
    fn on_engine<F>(
        self: &Arc<Self>,
        volume: &Definition,
        running: &ServedVolume,
        device: String,
        work: &Arc<Work>,
        job: impl FnOnce(Rc<EngineLane>, RemainingBlocks) -> F + Send + 'static,
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
