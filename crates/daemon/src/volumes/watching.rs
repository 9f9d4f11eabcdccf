//! Watches the volumes continuously: their rates of writeback, and changes of their condition.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use forebay_admin::report::WritebackReport;
use forebay_admin::{ApiError, VolumeName};
use forebay_threads::{Instant, Mutex};

use super::Volumes;
use super::noticing::{Notice, Noticed};
use crate::host_api::Condition;
use crate::log;
use crate::signals::StopRequest;

/// Time between two checks of a volume.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The time over which a rate is averaged.
const SMOOTHED_OVER: f64 = 10.0;

/// Slower than this many bytes per second counts as standing still.
const STILL: f64 = 1.0;

/// Age limit of the count of cached blocks while clients request metrics.
const COUNT_AGE: Duration = Duration::from_secs(60);

/// Results of watching the volumes.
#[derive(Default)]
pub(super) struct WatchResults {
    volumes: Mutex<BTreeMap<VolumeName, VolumeObservation>>,
    /// True if a client needs the number of cached blocks.
    count: AtomicBool,
}

/// The last look at a volume.
struct VolumeObservation {
    at: Instant,
    condition: Condition,
    /// Bytes written back per second, smoothed.
    rate: f64,
    noticed: Noticed,
}

impl VolumeObservation {
    fn new(at: Instant, condition: Condition) -> Self {
        VolumeObservation { at, condition, rate: 0.0, noticed: Noticed::default() }
    }

    /// Updates the observation. Returns the changes to report.
    fn look(&mut self, at: Instant, condition: Condition) -> Vec<Notice> {
        let seconds = at.saturating_duration_since(self.at).as_secs_f64();
        let written = condition.written_back_bytes.checked_sub(self.condition.written_back_bytes);
        if let Some(written) = written
            && seconds > 0.0
        {
            let part = 1.0 - (-seconds / SMOOTHED_OVER).exp();
            self.rate += (written as f64 / seconds - self.rate) * part;
        } else {
            // The volume was restarted meanwhile.
            self.rate = 0.0;
        }
        (self.at, self.condition) = (at, condition);
        self.noticed.look(at, &self.condition)
    }
}

/// Returns the state of writeback of a volume with `dirty_bytes` dirty bytes.
fn writeback(rate: f64, dirty_bytes: u64) -> WritebackReport {
    let moves = rate >= STILL;
    WritebackReport {
        bytes_per_second: if moves { rate } else { 0.0 },
        seconds_to_clean: match dirty_bytes {
            0 => Some(0.0),
            dirty => moves.then(|| dirty as f64 / rate),
        },
    }
}

impl Volumes {
    /// Returns the state of writeback of a volume with `dirty_bytes` dirty bytes.
    pub(super) fn writeback(&self, name: &VolumeName, dirty_bytes: u64) -> WritebackReport {
        let all = self.watched.volumes.lock();
        writeback(all.get(name).map_or(0.0, |seen| seen.rate), dirty_bytes)
    }

    /// Requests a new count of the cached blocks of volumes that share a cache, if the last one is
    /// old.
    pub(crate) fn want_count(&self) {
        self.watched.count.store(true, Ordering::Relaxed);
    }

    fn look(&self) {
        let conditions = self.state.names().into_iter().filter_map(|name| {
            let condition = self.host.condition(&name)?;
            Some((name, condition))
        });
        let (now, conditions) = (Instant::now(), conditions.collect::<BTreeMap<_, _>>());
        let mut all = self.watched.volumes.lock();
        all.retain(|name, _| conditions.contains_key(name));
        let mut notices = Vec::new();
        for (name, condition) in conditions {
            let seen = all
                .entry(name.clone())
                .or_insert_with(|| VolumeObservation::new(now, condition.clone()));
            notices.extend(seen.look(now, condition).into_iter().map(|it| (name.clone(), it)));
        }
        drop(all);
        for (name, notice) in notices {
            self.tell_noticed(&name, notice);
        }
    }

    /// Watches until the daemon ends, on a separate thread.
    ///
    /// # Errors
    /// The system has no threads left.
    pub(crate) fn watch(self: &Arc<Self>, stop: &Arc<StopRequest>) -> Result<(), ApiError> {
        let (this, stop) = (self.clone(), stop.clone());
        let spawned = forebay_threads::spawn("watcher", move || {
            while stop.wait_for(LOOK_EVERY).is_none() {
                this.host.look_at_paths();
                this.host.catch_up();
                this.look();
                this.mend_exports();
                this.restore_paths();
                log::sweep();
                if this.watched.count.swap(false, Ordering::Relaxed) {
                    this.host.recount(COUNT_AGE);
                }
            }
        });
        spawned.map(drop).map_err(|error| ApiError::failed(format!("no thread: {error}")))
    }
}

#[cfg(test)]
mod tests {
    use forebay_admin::VolumeState;

    use super::*;

    fn condition(written_back_bytes: u64) -> Condition {
        Condition { written_back_bytes, ..Condition::of(VolumeState::Running) }
    }

    #[test]
    fn the_time_to_clean_follows_from_the_rate_if_there_is_one() {
        let begin = Instant::now();
        let dirty = 100 << 20;
        let mut seen = VolumeObservation::new(begin, condition(0));
        // 1 MiB each second, for long enough.
        for second in 1..=100u64 {
            seen.look(begin + Duration::from_secs(second), condition(second << 20));
        }
        let WritebackReport { bytes_per_second, seconds_to_clean } = writeback(seen.rate, dirty);
        assert!((bytes_per_second - f64::from(1 << 20)).abs() < 1000.0, "{bytes_per_second}");
        let seconds = seconds_to_clean.expect("it moves");
        assert!((seconds - 100.0).abs() < 0.1, "{seconds}");
        // Nothing more is written, so the rate falls to zero.
        for second in 101..=400u64 {
            seen.look(begin + Duration::from_secs(second), condition(100 << 20));
        }
        assert_eq!(writeback(seen.rate, dirty), WritebackReport::default());
        assert_eq!(writeback(seen.rate, 0).seconds_to_clean, Some(0.0));
    }

    #[test]
    fn a_volume_that_was_started_again_has_no_rate_from_before() {
        let begin = Instant::now();
        let mut seen = VolumeObservation::new(begin, condition(0));
        seen.look(begin + Duration::from_secs(1), condition(1 << 30));
        assert!(seen.rate > 1e6);
        seen.look(begin + Duration::from_secs(2), condition(0));
        assert_eq!(seen.rate, 0.0);
    }
}
