//! The last intervals of each volume, for lines and the heat map.

use std::collections::{BTreeMap, VecDeque};

use forebay_admin::VolumeName;
use forebay_core::LatencyCounts;

use forebay_admin::activity::{Activity, Interval};

/// Number of intervals that are kept: more than a wide terminal has columns.
const KEPT: usize = 400;

/// One interval of a volume.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Point {
    /// The share of reads that the origin had no part in.
    pub(super) hit_ratio: Option<f64>,
    /// Requests per second.
    pub(super) iops: f64,
    /// Bytes per second.
    pub(super) bytes_per_second: f64,
    /// The median of latencies in microseconds.
    pub(super) p50_us: Option<f64>,
    /// Their 99th percentile.
    pub(super) p99_us: Option<f64>,
    /// Bytes that are not on the origin.
    pub(super) dirty: Option<u64>,
    /// Bytes written back per second.
    pub(super) writeback: f64,
    /// Latencies of reads, writes, flushes and discards.
    pub(super) latency: [LatencyCounts; 4],
}

impl Point {
    fn of(activity: &Activity) -> Self {
        let (times, latency) = (activity.times(), &activity.latency);
        Point {
            hit_ratio: activity.hit_ratio,
            iops: activity.iops,
            bytes_per_second: activity.bytes_per_second(),
            p50_us: times.p50_us,
            p99_us: times.p99_us,
            dirty: activity.unwritten_bytes(),
            writeback: activity.writeback.bytes_per_second,
            latency: [latency.read, latency.write, latency.flush, latency.discard]
                .map(|times| times.counts),
        }
    }
}

/// The history of all volumes that there are. `None` is a gap: the daemon did not answer.
#[derive(Debug, Default)]
pub(super) struct History(BTreeMap<VolumeName, VecDeque<Option<Point>>>);

impl History {
    /// Adds an interval. Volumes that are gone are forgotten.
    pub(super) fn add(&mut self, interval: &Interval) {
        self.0.retain(|name, _| interval.volumes.iter().any(|activity| activity.name == *name));
        for activity in &interval.volumes {
            let points = self.0.entry(activity.name.clone()).or_default();
            points.push_back(Some(Point::of(activity)));
            if points.len() > KEPT {
                points.pop_front();
            }
        }
    }

    /// Adds a gap, unless there is one already.
    pub(super) fn gap(&mut self) {
        for points in self.0.values_mut() {
            if points.back().is_some_and(Option::is_some) {
                points.push_back(None);
            }
        }
    }

    /// Returns the newest `most` intervals of a volume, the newest first.
    pub(super) fn newest(
        &self,
        name: &VolumeName,
        most: usize,
    ) -> impl DoubleEndedIterator<Item = Option<&Point>> + ExactSizeIterator {
        let points = self.0.get(name).map(VecDeque::as_slices);
        let (old, new) = points.unwrap_or_default();
        let skipped = (old.len() + new.len()).saturating_sub(most);
        let all: Vec<_> = old.iter().chain(new).skip(skipped).map(Option::as_ref).collect();
        all.into_iter().rev()
    }
}
