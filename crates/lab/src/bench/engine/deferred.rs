//! Deferred writes to the RAM tier: the state that their cases start from. Nothing is written down
//! while the clock runs, so only RAM is measured.

use std::sync::Arc;
use std::time::Duration;

use forebay_core::{Op, WriteDown};
use forebay_ram::{Deferral, Tier};

use crate::bench::engine::worker::{Crew, Worker, gone};
use crate::bench::engine::{Case, Sizes};
use crate::bench::pattern::{Step, permutation};
use crate::error::{LabResult, usage};
use crate::rig::BLOCK;

/// Deferred data is written down on demand only.
const DEFERRAL: Deferral = Deferral {
    within: Duration::from_secs(3600),
    mode: WriteDown::Infinite,
    share: 100,
    ignore_flush: false,
};

/// Ranges of blocks that the writes to absent blocks go through in turn. Together they are larger
/// than the tier.
const RANGES: usize = 3;

impl Sizes {
    /// Blocks that are written as deferred writes: below half of the tier, where write-down begins.
    pub(crate) fn deferred_blocks(&self) -> u64 {
        self.ram_bytes / BLOCK * 2 / 5
    }

    /// Checks that a case has what it needs.
    pub(crate) fn check(&self, case: Case) -> LabResult<()> {
        if !case.defers() {
            return Ok(());
        }
        if self.deferred_blocks() == 0 {
            return Err(usage(format!("{} needs a RAM tier; see --ram", case.name())));
        }
        if self.deferred_blocks() * RANGES as u64 * BLOCK > self.origin_bytes {
            return Err(usage("the origin is too small for this RAM tier; see --origin"));
        }
        Ok(())
    }
}

/// Each block of a range once, in random order; the part of one of several streams.
pub(super) fn once(sizes: Sizes, range: usize, stream: usize, streams: usize) -> Arc<[Step]> {
    let blocks = sizes.deferred_blocks() as u32;
    let first = blocks * range as u32;
    let all = permutation(7, blocks, true).into_iter();
    let all = all.map(|step| Step::new(first + step.block() as u32, true));
    all.skip(stream).step_by(streams).collect()
}

impl Crew {
    fn tier(&self) -> LabResult<Arc<Tier>> {
        self.tier.clone().ok_or_else(|| usage("this case needs a RAM tier; see --ram"))
    }

    /// Writes down what is deferred.
    fn write_down(&self) -> LabResult<()> {
        self.on(0, |worker| worker.driver.plain(Op::Flush, 0, 0))?
    }

    /// Writes go to the cache again.
    pub(super) fn end_deferral(&self) -> LabResult<()> {
        if let Some(tier) = &self.tier {
            tier.defer_writes(None);
            self.write_down()?;
        }
        Ok(())
    }

    /// Brings the tier into the state that a case of deferred writes starts from.
    pub(super) fn prepare_deferred(&self, case: Case) -> LabResult<()> {
        let tier = self.tier()?;
        let sizes = self.sizes();
        self.on(0, move |worker: &mut Worker| -> LabResult<()> {
            let rig = worker.rig.as_ref().ok_or_else(gone)?;
            rig.drain()?;
            rig.set(case.settings())
        })??;
        tier.defer_writes(Some(DEFERRAL));
        let ranges = if case == Case::DeferAbsent { RANGES } else { 1 };
        for range in 0..ranges {
            let steps = once(sizes, range, 0, 1);
            self.on(0, move |worker: &mut Worker| worker.driver.steps(&steps))??;
            if case != Case::DeferDirty {
                self.write_down()?;
            }
        }
        Ok(())
    }

    /// Prepares a sample of a case that defers writes.
    pub(super) fn before_deferred_sample(&self, case: Case) -> LabResult<()> {
        if case == Case::DeferDirty {
            return Ok(());
        }
        self.write_down()?;
        if case == Case::DeferAbsent {
            let (sizes, lanes) = (self.sizes(), self.lanes());
            for lane in 0..lanes {
                self.on(lane, move |worker: &mut Worker| {
                    worker.round += 1;
                    worker.steps = once(sizes, worker.round % RANGES, lane, lanes);
                })?;
            }
        }
        Ok(())
    }
}
