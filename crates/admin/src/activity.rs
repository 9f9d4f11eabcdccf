//! Activity between two reports: the differences of counters, per second and by volume.
//!
//! The names in JSON are stable: `docs/monitoring.md` has them.

use std::time::Instant;

use crate::report::{
    DeviceReport, DevicesReport, LatencyReport, OpReport, ServedReport, WritebackReport,
};
use crate::{ReportList, VolumeName, VolumeReport, VolumeState};
use forebay_core::LatencyCounts;
use forebay_core::why::{MissCounts, MissReason, Reason};
use serde::Serialize;

/// The activity of all volumes in an interval.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Interval {
    /// When it ended, in seconds since 1970.
    pub time: f64,
    /// Its length in seconds.
    pub seconds: f64,
    /// The volumes in the order of their creation.
    pub volumes: Vec<Activity>,
}

/// The activity of one volume in an interval.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Activity {
    /// Its name.
    pub name: VolumeName,
    /// Its state at the end.
    pub state: VolumeState,
    /// The share of reads that the origin had no part in; `null` if there were no reads.
    pub hit_ratio: Option<f64>,
    /// Reads and writes of clients per second.
    pub iops: f64,
    /// Reads of clients per second.
    pub read_iops: f64,
    /// Writes of clients per second.
    pub write_iops: f64,
    /// Bytes that clients read per second.
    pub read_bytes_per_second: f64,
    /// Bytes that clients wrote per second.
    pub write_bytes_per_second: f64,
    /// Latencies of clients' requests, or of those below the RAM tier if there is one.
    pub latency: Latencies,
    /// Bytes at the end that are newer than the origin, but for those in RAM alone; `null`:
    /// unknown.
    pub dirty_bytes: Option<u64>,
    /// Bytes at the end that only RAM has.
    pub deferred_bytes: u64,
    /// By how much both grew per second; negative if they shrank.
    pub dirty_bytes_per_second: f64,
    /// The progress of writeback.
    pub writeback: WritebackReport,
    /// Reads that needed the origin, by their reasons.
    pub miss: MissCounts,
    /// Operations on the devices.
    pub devices: Devices,
    /// The latest error, until it is resolved.
    pub error: Option<String>,
}

/// Latencies by the kind of request.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Latencies {
    /// Latencies of reads.
    pub read: Times,
    /// Latencies of writes.
    pub write: Times,
    /// Latencies of flushes.
    pub flush: Times,
    /// Latencies of discards, and of zeroes that are not written as data.
    pub discard: Times,
}

/// Latencies in an interval. Quantiles are `null` if there were none.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Times {
    /// The number of requests.
    pub count: u64,
    /// Median in microseconds, as exact as the ranges.
    pub p50_us: Option<f64>,
    /// 99th percentile in microseconds, as exact as the ranges.
    pub p99_us: Option<f64>,
    /// All by ranges.
    pub counts: LatencyCounts,
}

/// Operations on the devices of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Devices {
    /// The cache device, for all of its volumes.
    pub cache: DeviceActivity,
    /// The origin.
    pub origin: DeviceActivity,
}

/// Operations on a device.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct DeviceActivity {
    /// Reads.
    pub read: Operations,
    /// Writes.
    pub write: Operations,
    /// Syncs.
    pub sync: Operations,
    /// Discards.
    pub discard: Operations,
}

/// Operations of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Operations {
    /// Operations per second.
    pub iops: f64,
    /// Bytes per second of the operations that succeeded.
    pub bytes_per_second: f64,
    /// Operations that failed.
    pub errors: u64,
    /// Latencies of all.
    pub latency: Times,
}

impl Times {
    fn of(counts: LatencyCounts) -> Self {
        Times {
            count: counts.total(),
            p50_us: counts.quantile_us(0.50),
            p99_us: counts.quantile_us(0.99),
            counts,
        }
    }
}

impl Activity {
    /// Returns bytes that clients read and wrote per second.
    pub fn bytes_per_second(&self) -> f64 {
        self.read_bytes_per_second + self.write_bytes_per_second
    }

    /// Returns the latencies of reads and writes together.
    pub fn times(&self) -> Times {
        Times::of(self.latency.read.counts.with(&self.latency.write.counts))
    }

    /// Returns all bytes that are not on the origin; `None`: unknown.
    pub fn unwritten_bytes(&self) -> Option<u64> {
        self.dirty_bytes.map(|dirty| dirty.saturating_add(self.deferred_bytes))
    }

    /// Returns the reasons of misses with their counts, the most frequent first.
    pub fn misses(&self) -> Vec<(MissReason, u64)> {
        let counts = MissReason::ALL.iter().map(|reason| (*reason, self.miss.of(*reason)));
        let mut counts: Vec<_> = counts.filter(|(_, count)| *count > 0).collect();
        counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        counts
    }
}

/// The previous look, from which the next one is told.
#[derive(Debug, Default)]
pub struct Looks {
    last: Option<(Instant, ReportList)>,
}

impl Looks {
    /// Takes the reports of `at`, which is `time` seconds after 1970; returns the interval since
    /// the previous ones, if there were any.
    pub fn next(&mut self, at: Instant, time: f64, reports: ReportList) -> Option<Interval> {
        let (before, last) = self.last.replace((at, reports))?;
        let now = self.reports();
        let seconds = at.saturating_duration_since(before).as_secs_f64().max(1e-3);
        let activity = |report: &VolumeReport| {
            let earlier = last.volumes.iter().find(|earlier| earlier.name == report.name);
            activity(report, earlier.filter(|earlier| goes_on(report, earlier)), seconds)
        };
        Some(Interval { time, seconds, volumes: now.iter().map(activity).collect() })
    }

    /// Forgets the previous look, because the daemon did not answer: it may have been started
    /// again.
    pub fn forget(&mut self) {
        self.last = None;
    }

    /// Returns the latest reports.
    pub fn reports(&self) -> &[VolumeReport] {
        self.last.as_ref().map_or(&[], |(_, reports)| &reports.volumes)
    }
}

/// The numbers of a report that only grow while its volume is served.
fn totals(report: &VolumeReport) -> [u64; 5] {
    let (served, bytes) = (&report.served, &report.bytes);
    let requests = [served.reads.total, served.writes.total, report.requests.flushes];
    [requests[0], requests[1], requests[2], bytes.user_read, bytes.user_written]
}

/// Whether the volume was not started again in between. If it was, everything is counted since
/// then, and so within the interval.
fn goes_on(report: &VolumeReport, earlier: &VolumeReport) -> bool {
    totals(report).iter().zip(totals(earlier)).all(|(now, then)| *now >= then)
}

fn activity(report: &VolumeReport, earlier: Option<&VolumeReport>, seconds: f64) -> Activity {
    let (no_requests, no_latency, no_devices) =
        (ServedReport::default(), LatencyReport::default(), DevicesReport::default());
    let served = earlier.map_or(no_requests, |earlier| earlier.served);
    let latency = earlier.map_or(no_latency, |earlier| earlier.latency);
    let devices = earlier.map_or(no_devices, |earlier| earlier.devices);
    let bytes = earlier.map(|earlier| earlier.bytes).unwrap_or_default();
    let miss = earlier.map(|earlier| earlier.why.miss).unwrap_or_default();
    let per_second = |now: u64, then: u64| now.saturating_sub(then) as f64 / seconds;
    let reads = report.served.reads.total.saturating_sub(served.reads.total);
    let missed = report.served.reads.origin.saturating_sub(served.reads.origin);
    let read_iops = per_second(report.served.reads.total, served.reads.total);
    let write_iops = per_second(report.served.writes.total, served.writes.total);
    let since = |now: &LatencyCounts, then: &LatencyCounts| Times::of(now.since(then));
    let unwritten = |report: &VolumeReport| {
        Some((report.dirty_bytes()? + report.ram.map_or(0, |ram| ram.deferred)) as f64)
    };
    let grown = earlier.and_then(|earlier| Some(unwritten(report)? - unwritten(earlier)?));
    Activity {
        name: report.name.clone(),
        state: report.state,
        hit_ratio: (reads > 0).then(|| reads.saturating_sub(missed) as f64 / reads as f64),
        iops: read_iops + write_iops,
        read_iops,
        write_iops,
        read_bytes_per_second: per_second(report.bytes.user_read, bytes.user_read),
        write_bytes_per_second: per_second(report.bytes.user_written, bytes.user_written),
        latency: Latencies {
            read: since(&report.latency.read.counts, &latency.read.counts),
            write: since(&report.latency.write.counts, &latency.write.counts),
            flush: since(&report.latency.flush.counts, &latency.flush.counts),
            discard: since(&report.latency.discard.counts, &latency.discard.counts),
        },
        dirty_bytes: report.dirty_bytes(),
        deferred_bytes: report.ram.map_or(0, |ram| ram.deferred),
        dirty_bytes_per_second: grown.unwrap_or_default() / seconds,
        writeback: report.writeback,
        miss: MissCounts::collect(|reason| {
            report.why.miss.of(reason).saturating_sub(miss.of(reason))
        }),
        devices: Devices {
            cache: device(&report.devices.cache, &devices.cache, seconds),
            origin: device(&report.devices.origin, &devices.origin, seconds),
        },
        error: report.errors.last.clone(),
    }
}

fn device(now: &DeviceReport, then: &DeviceReport, seconds: f64) -> DeviceActivity {
    let operations = |now: &OpReport, then: &OpReport| {
        let latency = Times::of(now.latency.since(&then.latency));
        Operations {
            iops: latency.count as f64 / seconds,
            bytes_per_second: now.bytes.saturating_sub(then.bytes) as f64 / seconds,
            errors: now.errors.saturating_sub(then.errors),
            latency,
        }
    };
    DeviceActivity {
        read: operations(&now.read, &then.read),
        write: operations(&now.write, &then.write),
        sync: operations(&now.sync, &then.sync),
        discard: operations(&now.discard, &then.discard),
    }
}
