//! Latencies of requests, and of operations on the devices below.

use forebay_core::LatencyCounts;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A latency distribution, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Latency {
    /// Requests measured. Of requests that complete at once, one in 16 is measured and counts as
    /// 16.
    #[serde(default)]
    pub count: u64,
    /// Mean.
    #[serde(default)]
    pub mean_us: f64,
    /// Median.
    pub p50_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// The slowest request.
    pub max_us: f64,
    /// The requests by ranges of their latencies, exact to 3 %.
    #[serde(default)]
    #[schemars(schema_with = "crate::schema::latencies")]
    pub counts: LatencyCounts,
}

/// Latencies since the volume was started, from the front end's call to its completion; the front
/// end itself and the network are not included.
#[derive(Clone, Copy, Debug, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct LatencyReport {
    /// Latencies of reads.
    pub read: Latency,
    /// Latencies of writes, and of zeroes that are written as data.
    pub write: Latency,
    /// Latencies of flushes.
    pub flush: Latency,
    /// Latencies of discards, and of zeroes that are not written as data.
    #[serde(default)]
    pub discard: Latency,
}

impl LatencyReport {
    /// Returns the latencies of each kind of request with its name.
    pub fn kinds(&self) -> [(&'static str, &Latency); 4] {
        [
            ("read", &self.read),
            ("write", &self.write),
            ("flush", &self.flush),
            ("discard", &self.discard),
        ]
    }
}

/// Operations of one kind on a device, as seen from one volume or cache: since it was started or
/// opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct OpReport {
    /// Bytes of the operations that succeeded.
    pub bytes: u64,
    /// Operations that failed.
    pub errors: u64,
    /// Latencies of all that ended.
    #[schemars(schema_with = "crate::schema::latencies")]
    pub latency: LatencyCounts,
}

/// Operations on a device. Reads that a device in RAM answers at once are not among them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct DeviceReport {
    /// Reads.
    pub read: OpReport,
    /// Writes, of zeroes as well.
    pub write: OpReport,
    /// Syncs.
    pub sync: OpReport,
    /// Discards.
    pub discard: OpReport,
}

impl DeviceReport {
    /// Returns the operations of each kind with its name.
    pub fn kinds(&self) -> [(&'static str, &OpReport); 4] {
        [
            ("read", &self.read),
            ("write", &self.write),
            ("sync", &self.sync),
            ("discard", &self.discard),
        ]
    }
}

/// The devices of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct DevicesReport {
    /// The cache device: the operations for all of its volumes.
    pub cache: DeviceReport,
    /// The origin.
    pub origin: DeviceReport,
}

/// The progress of writeback.
#[derive(Clone, Copy, Debug, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct WritebackReport {
    /// Bytes written back per second, a mean over the last ten seconds or so.
    pub bytes_per_second: f64,
    /// Seconds at this rate until nothing is dirty or in RAM alone, if nothing else is written;
    /// `null` while there is such data and nothing is written back.
    pub seconds_to_clean: Option<f64>,
}
