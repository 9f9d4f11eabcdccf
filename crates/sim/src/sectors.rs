//! Origins with bad sectors: a drain leaves exactly the blocks that contain bad sectors.

use std::ops::Range;

use crate::disk::SimDisk;
use crate::faults::FaultPlan;
use crate::features::Feature;
use crate::oracle::plain;
use crate::schedule::StopReason;
use crate::stamp::{SECTOR, SectorAddress};
use crate::system::{Admin, Stuck};
use crate::violation::Violation;
use crate::world::World;

/// Maximum number of places of a disk that go bad together, and maximum number of sectors of each.
const PLACES: u64 = 4;
const SECTORS: u64 = 12;

impl SimDisk {
    /// Makes sectors bad: some adjacent, some isolated. A few of them can still be read.
    fn spoil(&self) {
        let state = &mut *self.state.lock();
        let end = state.image.sectors();
        for _ in 0..state.rng.u64(0..=PLACES) {
            let first = state.rng.u64(0..end);
            let count = if state.rng.bool() { 1 } else { state.rng.u64(1..=SECTORS) };
            let reads = state.rng.u32(0..3) > 0;
            state.bad_spots.extend((first..end.min(first + count)).map(|sector| (sector, reads)));
        }
    }

    /// Replaces bad sectors by good ones: either all, or each with a probability of one half.
    fn mend(&self, all: bool) {
        let state = &mut *self.state.lock();
        let rng = &mut state.rng;
        state.bad_spots.retain(|_, _| !all && rng.bool());
    }

    /// Returns whether any of these sectors cannot be written, or, with `reads`, cannot be read.
    fn has_bad_spot(&self, sectors: Range<u64>, reads: bool) -> bool {
        self.state.lock().bad_spots.range(sectors).any(|(_, readable)| !reads || !readable)
    }
}

impl World<'_> {
    /// Makes sectors of the origins bad, or repairs all of them.
    pub(crate) fn set_bad_sectors(&mut self, on: bool) {
        if self.profile.features.has(Feature::Sectors) {
            for disk in &self.origins {
                if on { disk.spoil() } else { disk.mend(true) }
            }
        }
    }

    /// Drains the volumes while the only faults are bad sectors: all other data must arrive, and
    /// exactly the bad sectors must be named. Some of them are then repaired, and the data that
    /// they held back must arrive. Returns `false` if the world stopped.
    pub(crate) fn judge_bad_sectors(&mut self) -> Result<bool, Violation> {
        let setup = &self.profile.setup;
        // Deferred data has not reached the tier below yet.
        if !self.profile.features.has(Feature::Sectors) || setup.deferred {
            return Ok(true);
        }
        for disk in &self.origins {
            // This repairs all faults except the bad sectors.
            let plan = FaultPlan { discards_zero: self.discards_zero, ..FaultPlan::default() };
            disk.set_plan(plan, true);
        }
        for _ in 0..2 {
            for volume in self.running() {
                if !self.drain_beside_bad_sectors(volume)? {
                    return Ok(false);
                }
            }
            self.origins.iter().for_each(|disk| disk.mend(false));
        }
        Ok(true)
    }

    /// Repairs the origins of ordered volumes that remain at the flush before a refused block, as
    /// they must: once the cache is full of later writes, the clients of all ordered volumes wait
    /// until the operator repairs the origins. Returns whether this explains every request that
    /// waits.
    pub(crate) fn mend_for_order(&self) -> bool {
        let Some(instance) = &self.instance else { return false };
        let all = 0..self.origins.len() as u16;
        let waits = |volume: &u16| self.oracle.underway_on(*volume) > 0;
        let stays = |volume: &u16| {
            let spoilt = self.origins[usize::from(*volume)].has_bad_spot(0..u64::MAX, false);
            spoilt && instance.is_ordered(*volume) && !instance.stuck(*volume).refused.is_empty()
        };
        let stuck: Vec<u16> = all.clone().filter(stays).collect();
        let explained = !stuck.is_empty() && all.filter(waits).all(|it| instance.is_ordered(it));
        if explained {
            stuck.iter().for_each(|volume| self.origins[usize::from(*volume)].mend(true));
        }
        explained
    }

    fn drain_beside_bad_sectors(&mut self, volume: u16) -> Result<bool, Violation> {
        let Some(instance) = self.instance.clone() else { return Ok(true) };
        let slot = self.call(instance.admin(Admin::Drain(volume)));
        self.last_progress = self.now();
        let ended = |world: &mut Self| {
            world.judge_order()?;
            Ok(slot.borrow().is_some())
        };
        if self.pump(false, ended)? == StopReason::Crashed {
            return Ok(false);
        }
        let result = slot.borrow_mut().take().unwrap_or(Ok(()));
        let Stuck { refused, unreadable, dirty, .. } = instance.stuck(volume);
        let disk = &self.origins[usize::from(volume)];
        let logical = disk.logical_block;
        for range in &refused {
            let mut start = range.start;
            while start < range.end {
                // Each of these blocks contains a bad sector, or shares a logical block with one.
                let end = (start + self.block_left(volume, start)).min(range.end);
                let around = start / logical * logical..end.next_multiple_of(logical);
                let sectors = around.start / SECTOR as u64..around.end / SECTOR as u64;
                if !disk.has_bad_spot(sectors, false) {
                    let what = format!(
                        "a block at {start} of volume {volume} counts as refused, and its sectors are good"
                    );
                    return Err(plain(18, what));
                }
                start = end;
            }
        }
        if instance.is_ordered(volume) {
            return Ok(true);
        }
        // A dirty block that the cache device can no longer read cannot reach the origin either.
        let rots = self.profile.features.has(Feature::Rot);
        let unreadable = if rots { unreadable } else { Vec::new() };
        let blocks = self.blocks_in(volume, &refused) + self.blocks_in(volume, &unreadable);
        if dirty != blocks {
            let what = format!(
                "{dirty} blocks of volume {volume} are dirty after a drain, {refused:?} of which are refused: {result:?}"
            );
            return Err(plain(18, what));
        }
        if result.is_ok() && dirty > 0 {
            return Err(plain(
                20,
                format!("a drain of volume {volume} has left {dirty} blocks, and says nothing"),
            ));
        }
        let stays = |sector: u64| {
            let byte = sector * SECTOR as u64;
            refused.iter().chain(&unreadable).any(|range| range.contains(&byte))
        };
        let (oracle, disk) = (&mut self.oracle, &self.origins[usize::from(volume)]);
        disk.with_image(|image| {
            (0..oracle.sectors(volume)).filter(|sector| !stays(*sector)).try_for_each(|sector| {
                oracle.check_origin(SectorAddress { volume, sector }, image.visible(sector))
            })
        })?;
        Ok(true)
    }

    /// Returns the bytes from `start` to the end of its block.
    fn block_left(&self, volume: u16, start: u64) -> u64 {
        let setup = &self.profile.setup;
        let (block, shift) = (setup.block_size.bytes(), setup.alignments[usize::from(volume)]);
        block - (start + shift) % block
    }

    fn blocks_in(&self, volume: u16, ranges: &[Range<u64>]) -> u64 {
        let setup = &self.profile.setup;
        let (block, shift) = (setup.block_size.bytes(), setup.alignments[usize::from(volume)]);
        let count = |range: &Range<u64>| {
            (range.end - 1 + shift) / block - (range.start + shift) / block + 1
        };
        ranges.iter().map(count).sum()
    }
}
