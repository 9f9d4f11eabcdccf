//! The curve of a running volume.

use forebay_admin::curve::{CurveReport, CurveRow};
use forebay_admin::{ApiError, VolumeName};
use forebay_policy::curve::Which;

use super::EngineHost;
use crate::curve::{hits, points, rows};

impl EngineHost {
    /// See [`crate::daemon::host_api::Host::curve`].
    pub(super) fn curve_of(
        &self,
        name: &VolumeName,
        sizes: &[u64],
    ) -> Result<CurveReport, ApiError> {
        let running = self.served.get(name)?;
        // A copy, so that lanes need not wait while the curve is computed.
        let live = running.volume.curve();
        let store = running.store();
        let block = store.block_size().bytes();
        let (accesses, reads) = (live.accesses(Which::All), live.accesses(Which::Reads));
        let row = |bytes: u64| CurveRow {
            bytes,
            reads: (reads > 0).then(|| hits(live.hits(Which::Reads, bytes / block))),
            all: hits(live.hits(Which::All, bytes / block)),
        };
        let footprint = live.footprint().saturating_mul(block);
        let rows = rows(sizes, footprint, block, &row);
        Ok(CurveReport {
            volume: name.clone(),
            block_size: block,
            accesses,
            reads,
            footprint,
            one_of: live.sample().stands_for(),
            sampled_blocks: live.sampled_blocks() as u64,
            state_bytes: live.bytes() as u64,
            present: row(store.capacity_blocks().saturating_mul(block)),
            curve: points(&rows, footprint, block, &row),
            rows,
        })
    }
}
