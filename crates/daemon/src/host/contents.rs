//! What volumes have cached: dropped, and loaded again into RAM.

use std::rc::Rc;
use std::sync::Arc;

use forebay_admin::{ApiError, DropRequest, ErrorKind, PinReport, VolumeName};
use forebay_core::{Caching, RamStrategy};
use forebay_ram::prefetch::prefetch;

use super::{EngineHost, faults};
use crate::devices::NO_CACHE;
use crate::host_api::{Contents, Definition, Task};
use crate::work::Work;

fn refused(message: String) -> ApiError {
    ApiError::new(ErrorKind::Refused, message)
}

fn no_tier(name: &VolumeName) -> ApiError {
    refused(format!(
        "volume '{name}' has no RAM tier; give it one with 'forebay set {name} ram=SIZE', then stop and start it"
    ))
}

impl Contents for Arc<EngineHost> {
    fn run(&self, task: &Task, volume: &Definition, work: &Arc<Work>) -> Result<(), ApiError> {
        let own = volume.clone();
        match task {
            Task::Flush => {
                self.attended(&volume.name, work, move |host, work| host.drain_now(&own.name, work))
            }
            &Task::Drop(tiers) => self
                .attended(&volume.name, work, move |host, work| host.drop_now(&own, tiers, work)),
            Task::Prefetch => self.prefetch_into(volume, work),
            Task::Fill(ranges) => self.fill_ranges(volume, ranges, work),
            Task::Pin(ranges) => self.change_pins(volume, ranges, true, work),
            Task::Unpin(ranges) => self.change_pins(volume, ranges, false, work),
            Task::Evict(ranges) => self.evict_ranges(volume, ranges, work),
        }
    }

    fn has_pins(&self, volume: &Definition) -> bool {
        self.lists.pins.of(volume).is_some_and(|list| list.runs().next().is_some())
    }

    fn pins(&self, name: &VolumeName) -> Result<PinReport, ApiError> {
        self.report_pins(name)
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
            return Err(no_tier(name));
        }
        if ssd && volume.cache == NO_CACHE {
            return Err(refused(format!("volume '{name}' has no cache device")));
        }
        let both = !ram && !ssd;
        // First, as a read from there enters RAM.
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

    /// Stores which blocks a volume's RAM tier holds, to prefetch them later.
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
                tracing::warn!(volume = %volume.name, "prefetch cannot load what is in RAM now: {error}");
            }
        }
    }

    fn prefetch_into(&self, volume: &Definition, work: &Work) -> Result<(), ApiError> {
        let name = &volume.name;
        let running = self.served.get(name)?;
        let tier = self.served.ram.get(name).ok_or_else(|| no_tier(name))?.tier().clone();
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
                "it is not known what the RAM tier of '{name}' held; a list is stored whenever the volume is stopped or paused, or the daemon ends, in order"
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
}
