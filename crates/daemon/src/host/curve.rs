//! The curve of a running volume.

use forebay_admin::curve::{CurveReport, CurveRow, WhatIf, WhatIfRow};
use forebay_admin::{ApiError, VolumeName};
use forebay_core::units::format_size;
use forebay_policy::curve::Which;
use forebay_policy::whatif::{Prediction, Rules};

use super::EngineHost;
use crate::curve::{Sizes, hits, points, ram_row, ram_rows, rows};
use crate::devices::NO_CACHE;

impl EngineHost {
    /// See [`crate::host_api::Reports::curve`].
    pub(super) fn curve_of(
        &self,
        name: &VolumeName,
        sizes: &Sizes,
    ) -> Result<CurveReport, ApiError> {
        let running = self.served.get(name)?;
        let ram = self.served.ram.get(name);
        // Copy the curve, so that lanes need not wait for the computation. The curve of the cache
        // itself sees only the misses of RAM.
        let (live, predictions) = match &ram {
            Some(ram) => (ram.tier().curve(), ram.tier().what_if()),
            None => (running.volume.curve(), running.volume.what_if()),
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
            what_if: what_if(&predictions.0, predictions.1, block),
            ram: ram.map(|ram| ram_row(ram.tier().options().bytes, present, &row)),
            ram_rows: ram_rows(&sizes.ram, footprint, block, present, &row),
            curve: points(&rows, footprint, block, &row),
            rows,
        })
    }

    /// Updates the curves of all served volumes and of their RAM tiers.
    pub(super) fn catch_up_curves(&self) {
        for (volume, running) in self.served.all() {
            running.volume.catch_up();
            if let Some(ram) = self.served.ram.get(&volume.name) {
                ram.tier().simulate(running.volume.simulated(), &self.memory);
                ram.tier().catch_up(running.volume.dirty_blocks());
            }
        }
    }
}

/// Returns the rows for these predictions, of which the first is for the present settings.
fn what_if(predictions: &[Prediction], (reads, writes): (u64, u64), block: u64) -> Option<WhatIf> {
    let now = predictions.first()?;
    let rows = predictions.iter().map(|one| {
        let (share, gain) =
            if reads > 0 { (one.reads, one.reads_gain) } else { (one.all, one.all_gain) };
        let written = |of: &Prediction| of.written as f64;
        WhatIfRow {
            setting: setting(&now.rules, &one.rules, block),
            hits: hits(share),
            ram: one.ram,
            gain: hits(gain),
            written_bytes: one.written.saturating_mul(block),
            written_change: (now.written > 0).then(|| written(one) / written(now) - 1.0),
        }
    });
    Some(WhatIf { accesses: reads + writes, reads, rows: rows.collect() })
}

/// Returns the first difference from the present rules, in the form for `forebay set`.
fn setting(now: &Rules, rules: &Rules, block: u64) -> Option<String> {
    if rules.policy != now.policy {
        return Some(format!("policy={}", rules.policy.name()));
    }
    if rules.admission != now.admission {
        return Some(format!("admission={}", rules.admission));
    }
    let ram = || format!("ram={}", format_size(rules.ram.saturating_mul(block)));
    (rules.ram != now.ram).then(ram)
}

#[cfg(test)]
mod tests {
    use forebay_core::{Admission, ReplacementKind};
    use forebay_policy::curve::Share;

    use super::*;

    fn prediction(rules: Rules, written: u64) -> Prediction {
        let share = |share| Share { share, error: 0.01 };
        let (reads, all) = (share(0.5), share(0.25));
        Prediction {
            rules,
            reads,
            ram: 0.0,
            all,
            written,
            reads_gain: share(0.125),
            all_gain: share(0.0),
        }
    }

    #[test]
    fn each_prediction_names_its_setting_and_its_gain() {
        let (policy, ram_policy) = (ReplacementKind::S3Fifo, ReplacementKind::Lru);
        let now = Rules { policy, admission: Admission::Always, ram: 0, ram_policy };
        let all = [
            prediction(now, 1000),
            prediction(Rules { admission: Admission::Ghost(1), ..now }, 390),
            prediction(Rules { policy: ReplacementKind::Lru, ..now }, 1000),
            prediction(Rules { ram: 1 << 18, ..now }, 0),
        ];
        let found = what_if(&all, (10, 30), 4096).expect("rows");
        let names: Vec<_> = found.rows.iter().map(|row| row.setting.as_deref()).collect();
        let expected = [None, Some("admission=second-hit"), Some("policy=lru"), Some("ram=1G")];
        assert_eq!(names, expected);
        let second = &found.rows[1];
        assert_eq!((found.accesses, found.reads, second.written_bytes), (40, 10, 390 * 4096));
        assert_eq!(
            (second.written_change, second.hits.share, second.gain.share),
            (Some(-0.61), 0.5, 0.125)
        );
        let unread = what_if(&all, (0, 30), 4096).expect("rows");
        assert_eq!((unread.rows[1].hits.share, unread.rows[1].gain.share), (0.25, 0.0));
        assert_eq!(what_if(&[], (1, 1), 4096), None);
        let nothing = [prediction(now, 0)];
        assert_eq!(what_if(&nothing, (1, 1), 4096).expect("a row").rows[0].written_change, None);
    }
}
