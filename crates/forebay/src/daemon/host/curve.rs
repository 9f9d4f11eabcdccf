//! The curve of a running volume.

use forebay_admin::curve::{CurveReport, CurveRow};
use forebay_admin::{ApiError, VolumeName};
use forebay_policy::curve::Which;

use super::EngineHost;
use crate::curve::{Sizes, hits, points, ram_row, ram_rows, rows};
use crate::devices::NO_CACHE;

impl EngineHost {
    /// See [`crate::daemon::host_api::Host::curve`].
    pub(super) fn curve_of(
        &self,
        name: &VolumeName,
        sizes: &Sizes,
    ) -> Result<CurveReport, ApiError> {
        let running = self.served.get(name)?;
        let ram = self.served.ram.get(name);
        // A copy, so that lanes need not wait while the curve is computed. The cache's own curve knows
        // only what misses RAM.
        let live = match &ram {
            Some(ram) => ram.tier().curve(),
            None => running.volume.curve(),
        };
        let store = running.store();
        let block = store.block_size().bytes();
        let (accesses, reads) = (live.accesses(Which::All), live.accesses(Which::Reads));
        let row = |bytes: u64| CurveRow {
            bytes,
            reads: (reads > 0).then(|| hits(live.hits(Which::Reads, bytes / block))),
            all: hits(live.hits(Which::All, bytes / block)),
        };
        let footprint = live.footprint().saturating_mul(block);
        let rows = rows(&sizes.cache, footprint, block, &row);
        let definition = self.served.definition(name);
        let present = match definition.is_some_and(|own| own.cache == NO_CACHE) {
            true => 0,
            false => store.capacity_blocks().saturating_mul(block),
        };
        Ok(CurveReport {
            volume: name.clone(),
            block_size: block,
            accesses,
            reads,
            footprint,
            one_of: live.sample().stands_for(),
            sampled_blocks: live.sampled_blocks() as u64,
            state_bytes: live.bytes() as u64,
            present: row(present),
            rotational: Some(running.volume.is_rotational()),
            ram: ram.map(|ram| ram_row(ram.tier().options().bytes, present, &row)),
            ram_rows: ram_rows(&sizes.ram, footprint, block, present, &row),
            curve: points(&rows, footprint, block, &row),
            rows,
        })
    }
}
