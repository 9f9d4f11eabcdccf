//! Counters of the cache and the RAM tier during samples.

use std::sync::atomic::Ordering;

use forebay_engine::stats::CounterTotals;

use crate::bench::engine::Background;
use crate::bench::engine::worker::{Crew, Worker, gone};
use crate::bench::measure::{Rates, Sample};
use crate::error::LabResult;
use crate::rig::VOLUME;
use crate::statistics::Estimate;

/// Counts since the start, or between two moments.
#[derive(Clone, Copy, Debug, Default)]
struct Counters {
    totals: CounterTotals,
    log_bytes: u64,
    requests: u64,
    submitted: u64,
    written_down: u64,
}

impl Counters {
    /// Adds what was counted between two moments.
    fn add(&mut self, after: &Counters, before: &Counters) {
        let (sum, after_totals, before_totals) = (&mut self.totals, &after.totals, &before.totals);
        macro_rules! add {
            ($($name:ident)*) => { $(sum.$name += after_totals.$name - before_totals.$name;)* };
        }
        add!(read_hits read_partial read_misses write_hits write_misses user_read_bytes
            user_written_bytes origin_written_bytes);
        self.log_bytes += after.log_bytes - before.log_bytes;
        self.requests += after.requests - before.requests;
        self.submitted += after.submitted - before.submitted;
        self.written_down += after.written_down - before.written_down;
    }

    /// Converts the counts to shares.
    fn summary(&self, segment_bytes: u64) -> Background {
        let totals = &self.totals;
        let share = |part: u64, whole: u64| part as f64 / whole.max(1) as f64;
        let reads = totals.read_hits + totals.read_partial + totals.read_misses;
        let written = totals.user_written_bytes;
        Background {
            log_bytes_per_user_byte: if written == 0 {
                0.0
            } else {
                share(self.log_bytes, written)
            },
            segments_filled: share(self.log_bytes, segment_bytes),
            origin_written_bytes: totals.origin_written_bytes,
            read_hit_share: share(totals.read_hits, reads),
            submitted_share: share(self.submitted, self.requests),
            written_down_bytes: self.written_down,
        }
    }
}

/// A sample, and the counts meanwhile.
pub(crate) struct Counted {
    pub(crate) rates: Rates,
    counters: Counters,
}

/// Converts the counts of samples to shares.
pub(crate) fn background(samples: &[Counted], segment_bytes: u64) -> Background {
    let mut all = Counters::default();
    samples.iter().for_each(|one| all.add(&one.counters, &Counters::default()));
    all.summary(segment_bytes)
}

/// Returns the ratios of one number of samples that were taken in turns.
pub(crate) fn ratios(of: &[Counted], to: &[Counted], field: fn(&Rates) -> f64) -> Estimate {
    Estimate::of_ratios(of.iter().zip(to).map(|(of, to)| (field(&of.rates), field(&to.rates))))
}

impl Crew {
    /// Takes a sample, and counts meanwhile.
    pub(crate) fn counted(
        &self,
        sample: impl FnOnce() -> LabResult<Vec<Sample>>,
    ) -> LabResult<Counted> {
        let before = self.counters()?;
        let rates = Rates::of(&sample()?);
        let mut counters = Counters::default();
        counters.add(&self.counters()?, &before);
        Ok(Counted { rates, counters })
    }

    /// Returns the counts since the start.
    fn counters(&self) -> LabResult<Counters> {
        let volume = self.cache.volume(VOLUME).ok_or_else(gone)?;
        let (mut requests, mut submitted) = (0, 0);
        for lane in 0..self.lanes() {
            let driver = |worker: &mut Worker| (worker.driver.requests, worker.driver.submitted);
            let (own_requests, own_submitted) = self.on(lane, driver)?;
            requests += own_requests;
            submitted += own_submitted;
        }
        Ok(Counters {
            totals: volume.stats.totals(),
            log_bytes: self.cache.store.counters.written_bytes.load(Ordering::Relaxed),
            requests,
            submitted,
            written_down: self.tier.as_ref().map_or(0, |tier| tier.counts().written_down_bytes),
        })
    }
}
