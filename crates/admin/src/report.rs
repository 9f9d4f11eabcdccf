//! Reports about volumes. The JSON names are stable: fields are added, never renamed or removed.
//! Sizes and amounts are in bytes, latencies in microseconds.

use std::fmt;

use forebay_core::CounterTotals;
use forebay_core::why::Why;
use forebay_core::{Caching, Durability, Mode, ReplacementKind};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::name::VolumeName;
use crate::operation::Progress;
pub use crate::origin_check::OriginReport;
use crate::ranges::ByteRange;
use forebay_settings::Settings;

mod clients;
mod daemon;
mod latency;
mod memory;
mod requests;
mod served;

pub use crate::displaced::DisplacedReport;
pub use clients::{ClientReport, Transport};
pub use daemon::DaemonReport;
pub use latency::{DeviceReport, DevicesReport, Latency, LatencyReport, OpReport, WritebackReport};
pub use memory::{DaemonMemory, MemoryReport, MemoryUsed, RamReport};
pub use requests::RequestReport;
pub use served::{RamTraffic, ServedBy, ServedReport};

/// The answer to `GET /v1/log`.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct LogReport {
    /// The latest lines of the daemon's log, oldest first.
    pub lines: Vec<String>,
    /// Messages that are not in the log because too many of their kind came.
    pub left_out: u64,
    /// Lines that are not on the daemon's stderr because its reader did not take them in time.
    #[serde(default)]
    pub dropped: u64,
}

/// State of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum VolumeState {
    /// Not served.
    #[default]
    Stopped,
    /// Not served yet: the daemon has just started, or a device does not answer.
    Waiting,
    /// The cache is recovering from the cache device.
    Recovering,
    /// Served.
    Running,
    /// Served, while dirty blocks are written back at the operator's request.
    Draining,
    /// Served as far as possible, because a device is failing.
    Degraded,
    /// Changing to `stopped`.
    Stopping,
    /// Could not be started; see the errors.
    Failed,
}

impl VolumeState {
    /// Every state.
    pub const ALL: [VolumeState; 8] = [
        VolumeState::Stopped,
        VolumeState::Waiting,
        VolumeState::Recovering,
        VolumeState::Running,
        VolumeState::Draining,
        VolumeState::Degraded,
        VolumeState::Stopping,
        VolumeState::Failed,
    ];

    /// Whether clients are served.
    pub fn is_served(self) -> bool {
        matches!(self, VolumeState::Running | VolumeState::Draining | VolumeState::Degraded)
    }

    /// Returns the name of this state, as in JSON.
    pub fn name(self) -> &'static str {
        match self {
            VolumeState::Stopped => "stopped",
            VolumeState::Waiting => "waiting",
            VolumeState::Recovering => "recovering",
            VolumeState::Running => "running",
            VolumeState::Draining => "draining",
            VolumeState::Degraded => "degraded",
            VolumeState::Stopping => "stopping",
            VolumeState::Failed => "failed",
        }
    }

    /// Whether a volume in this state is served, so that its counts mean something.
    pub fn has_counts(self) -> bool {
        matches!(
            self,
            VolumeState::Running
                | VolumeState::Draining
                | VolumeState::Degraded
                | VolumeState::Stopping
        )
    }
}

/// The rests of an origin since its volume was started. It rests while nothing has accessed it
/// through the volume for a minute or more; `why.wake` counts the reasons that ended its rests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct RestReport {
    /// Rests that have ended.
    pub wakes: u64,
    /// Seconds of all rests, with the present one.
    pub rested_seconds: u64,
    /// Seconds since the last access.
    pub last_access_seconds: u64,
}

/// The cache device of a volume.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct CacheReport {
    /// The device as the operator named it.
    pub path: String,
    /// Bytes for blocks on the device, without the cache's own structures.
    pub size: u64,
    /// Bytes of cached blocks of all volumes; [`BlockReport::cached`] counts the volume's own.
    pub used: u64,
    /// Share of the index that is loaded, 0 to 1, while a cache that was closed in order is being
    /// loaded. Until then the counts of blocks include only this share. `null`: all of it.
    #[serde(default)]
    pub index_loaded: Option<f64>,
    /// The way in which its path no longer leads to it; `null` if the path does.
    #[serde(default)]
    pub displaced: Option<DisplacedReport>,
}

/// The addresses and devices at which clients find a volume.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct ExportReport {
    /// The first NBD URI; `null` while the volume is not served, or no address of NBD leads to it.
    pub nbd: Option<String>,
    /// Every URI.
    #[serde(default)]
    pub all: Vec<String>,
    /// The URI of the socket for a virtual machine, `vhost-user:PATH`; `null` if there is none.
    #[serde(default)]
    pub vhost_user: Option<String>,
    /// The block device; `null` if there is none.
    #[serde(default)]
    pub device: Option<String>,
    /// A link to it with the volume's name; `null` if there is none.
    #[serde(default)]
    pub link: Option<String>,
    /// Why the volume is not exported as its settings say; `null`: it is.
    #[serde(default)]
    pub error: Option<String>,
}

/// Blocks of a volume in the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct BlockReport {
    /// Whether `cached`, `dirty` and `held` are known. They are while the cache is open, whether or
    /// not the volume is served.
    #[serde(default)]
    pub known: bool,
    /// Whether the number of cached and of dirty blocks is not known now, and is the one that the
    /// volume had when it was stopped.
    #[serde(default)]
    pub as_of_stop: bool,
    /// Cached blocks of the volume, clean and dirty.
    pub cached: u64,
    /// Blocks that are newer than the origin.
    pub dirty: u64,
    /// Versions of blocks held for an ordered volume's origin, replaced ones included.
    #[serde(default)]
    pub held: u64,
    /// Blocks copied from the origin since the volume was started.
    #[serde(default)]
    pub filled: u64,
    /// Blocks copied to the origin since the volume was started.
    #[serde(default)]
    pub written_back: u64,
    /// Blocks reinserted, that is, written to the cache device once more to keep them, since the
    /// volume was started.
    #[serde(default)]
    pub carried_on: u64,
}

/// Bytes moved since the volume was started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct ByteReport {
    /// Read by clients.
    pub user_read: u64,
    /// Written by clients.
    pub user_written: u64,
    /// Bytes read by clients that RAM alone answered.
    #[serde(default)]
    pub ram_read: u64,
    /// Bytes written by clients that RAM took, to be written down later.
    #[serde(default)]
    pub ram_written: u64,
    /// Read from the cache device.
    pub cache_read: u64,
    /// Written to the cache device, headers included.
    pub cache_written: u64,
    /// Read from the origin.
    pub origin_read: u64,
    /// Written to the origin.
    pub origin_written: u64,
}

impl ByteReport {
    /// The report of a volume with these counters, for which `cache_written` bytes were written to
    /// the cache device.
    pub fn of(totals: &CounterTotals, cache_written: u64, ram: &RamTraffic) -> Self {
        ByteReport {
            user_read: totals.user_read_bytes + ram.read_bytes,
            // The counters include what the tier has written down.
            user_written: match ram.writes {
                0 => totals.user_written_bytes,
                _ => ram.written_bytes + ram.passed_bytes,
            },
            ram_read: ram.read_bytes,
            ram_written: ram.written_bytes,
            cache_read: totals.cache_read_bytes,
            cache_written,
            origin_read: totals.origin_read_bytes,
            origin_written: totals.origin_written_bytes,
        }
    }
}

/// Errors since the volume was started.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct ErrorReport {
    /// Failed reads of the origin.
    pub origin_read: u64,
    /// Failed writes and syncs of the origin.
    pub origin_write: u64,
    /// Failed reads of the cache device.
    pub cache_read: u64,
    /// Failed writes and syncs of the cache device.
    pub cache_write: u64,
    /// Blocks on the cache device that failed their checksum.
    pub checksum: u64,
    /// Dirty data that can no longer be read.
    pub lost: Vec<ByteRange>,
    /// Dirty data that the origin does not take, although it takes other writes. It stays in the
    /// cache and is tried again at least once a minute.
    pub refused: Vec<ByteRange>,
    /// The latest error, until it is resolved.
    pub last: Option<String>,
}

impl ErrorReport {
    /// Whether anything went wrong.
    pub fn is_empty(&self) -> bool {
        *self == ErrorReport::default()
    }
}

/// A device that does not answer.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct WaitReport {
    /// The device as the operator named it.
    pub device: String,
    /// Seconds for which it has not answered.
    pub seconds: u64,
    /// Why it could not be opened at the last attempt; absent if it does not answer at all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
}

impl fmt::Display for WaitReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} has not answered for {} s", self.device, self.seconds)?;
        self.cause.as_ref().map_or(Ok(()), |cause| write!(f, " ({cause})"))
    }
}

/// The full report of one volume.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct VolumeReport {
    /// The volume's name.
    pub name: VolumeName,
    /// The mode: the way of reads and writes through the cache.
    #[schemars(schema_with = "crate::schema::mode")]
    pub mode: Mode,
    /// Whether it is paused or frozen.
    #[serde(default)]
    #[schemars(schema_with = "crate::schema::caching")]
    pub caching: Caching,
    /// The replacement policy, which chooses blocks for eviction.
    #[schemars(schema_with = "crate::schema::policy")]
    pub policy: ReplacementKind,
    /// Block size in bytes.
    pub block_size: u64,
    /// Bytes by which blocks are shifted on the origin.
    pub alignment: u64,
    /// When a write is acknowledged.
    #[schemars(schema_with = "crate::schema::durability")]
    pub durability: Durability,
    /// State of the volume.
    pub state: VolumeState,
    /// The device that its start or stop waits for; `null` if none.
    #[serde(default)]
    pub waiting_for: Option<WaitReport>,
    /// The origin.
    pub origin: OriginReport,
    /// The cache device.
    pub cache: CacheReport,
    /// The RAM tier; `null` if the volume has none.
    #[serde(default)]
    pub ram: Option<RamReport>,
    /// The addresses and devices at which clients find the volume.
    pub export: ExportReport,
    /// The clients that have it open: one for each connection. The users of its block device are
    /// not among them.
    #[serde(default)]
    pub clients: Vec<ClientReport>,
    /// Blocks in the cache.
    pub blocks: BlockReport,
    /// Progress of the origin; `null` unless the volume is ordered.
    #[serde(default)]
    pub ordered: Option<OrderReport>,
    /// The share of RAM, cache and origin in serving clients since the start.
    #[serde(default)]
    pub served: ServedReport,
    /// Requests to the cache since the start; those that the RAM tier answers do not reach it.
    pub requests: RequestReport,
    /// Why requests missed or bypassed the cache, and why blocks entered and left.
    #[serde(default)]
    #[schemars(schema_with = "crate::schema::why")]
    pub why: Why,
    /// The rests of the origin; `null` while the volume is not served.
    #[serde(default)]
    pub rest: Option<RestReport>,
    /// Bytes moved since the start.
    pub bytes: ByteReport,
    /// Latencies since the start.
    pub latency: LatencyReport,
    /// Operations on its devices.
    #[serde(default)]
    pub devices: DevicesReport,
    /// Progress of writeback.
    #[serde(default)]
    pub writeback: WritebackReport,
    /// RAM in use.
    pub memory: MemoryReport,
    /// Errors since the start.
    pub errors: ErrorReport,
    /// The progress of the current operation, if there is one.
    pub progress: Option<Progress>,
    /// Every setting.
    #[schemars(schema_with = "crate::schema::settings")]
    pub settings: Settings,
}

impl VolumeReport {
    /// Makes a report with all counts zero.
    pub fn empty(name: VolumeName, state: VolumeState, settings: Settings) -> Self {
        VolumeReport {
            name,
            mode: settings.mode,
            caching: settings.caching,
            policy: settings.policy,
            block_size: forebay_core::BlockSize::DEFAULT.bytes(),
            alignment: 0,
            durability: settings.durability,
            state,
            waiting_for: None,
            origin: OriginReport::default(),
            cache: CacheReport::default(),
            ram: None,
            export: ExportReport::default(),
            clients: Vec::new(),
            blocks: BlockReport::default(),
            ordered: None,
            served: ServedReport::default(),
            requests: RequestReport::default(),
            why: Why::default(),
            rest: None,
            bytes: ByteReport::default(),
            latency: LatencyReport::default(),
            devices: DevicesReport::default(),
            writeback: WritebackReport::default(),
            memory: MemoryReport::default(),
            errors: ErrorReport::default(),
            progress: None,
            settings,
        }
    }

    /// Returns the bytes that are newer than the origin, but for those that only RAM has; `None`:
    /// unknown.
    pub fn dirty_bytes(&self) -> Option<u64> {
        (self.blocks.known || self.state.has_counts())
            .then(|| self.blocks.dirty.saturating_mul(self.block_size))
    }

    /// Returns the volume's line in a list.
    pub fn summary(&self) -> VolumeSummary {
        VolumeSummary {
            name: self.name.clone(),
            state: self.state,
            mode: self.mode,
            caching: self.caching,
            read_only: self.origin.read_only.unwrap_or(self.settings.read_only),
            size: self.origin.size,
            origin: self.origin.path.clone(),
            cache: self.cache.path.clone(),
            used: self.blocks.cached.saturating_mul(self.block_size),
            dirty: self.blocks.dirty.saturating_mul(self.block_size),
            held: self.blocks.held.saturating_mul(self.block_size),
            known: self.blocks.known,
            as_of_stop: self.blocks.as_of_stop,
            ram: self.ram.map_or(0, |ram| ram.size),
            deferred: self.ram.map_or(0, |ram| ram.deferred),
            device: self.export.link.clone().or_else(|| self.export.device.clone()),
            nbd: self.export.nbd.clone(),
        }
    }
}

/// One line of a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct VolumeSummary {
    /// The volume's name.
    pub name: VolumeName,
    /// State of the volume.
    pub state: VolumeState,
    /// The mode: the way of reads and writes through the cache.
    #[schemars(schema_with = "crate::schema::mode")]
    pub mode: Mode,
    /// Whether it is paused or frozen.
    #[serde(default)]
    #[schemars(schema_with = "crate::schema::caching")]
    pub caching: Caching,
    /// Whether clients may only read.
    #[serde(default)]
    pub read_only: bool,
    /// Size in bytes.
    pub size: u64,
    /// The origin as the operator named it.
    pub origin: String,
    /// The cache device as the operator named it.
    pub cache: String,
    /// Bytes of the volume in the cache, clean and dirty.
    pub used: u64,
    /// Bytes that are newer than the origin.
    pub dirty: u64,
    /// Bytes held for ordered writeback, replaced versions included.
    #[serde(default)]
    pub held: u64,
    /// Whether these three are known; they are while the cache is open.
    #[serde(default)]
    pub known: bool,
    /// Whether `used` and `dirty` are not known now, and are those of the volume when it was
    /// stopped.
    #[serde(default)]
    pub as_of_stop: bool,
    /// Bytes that the RAM tier may hold; 0 without one, and while the volume is not served.
    #[serde(default)]
    pub ram: u64,
    /// Bytes that only RAM has.
    #[serde(default)]
    pub deferred: u64,
    /// The link to its block device, or else the device; `null` if there is none.
    #[serde(default)]
    pub device: Option<String>,
    /// The first NBD URI; `null` while the volume is not served.
    pub nbd: Option<String>,
}

/// State of an ordered volume's origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct OrderReport {
    /// Whether the origin is in the state of a flush at every moment. `false` while blocks that
    /// were dirty when the setting was switched on are still being written back.
    pub in_effect: bool,
    /// Versions of blocks not yet on the origin, counted once for every flush that needs them.
    pub waiting: u64,
}

/// The list of all volumes.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct VolumeList {
    /// The volumes in the order of their creation.
    pub volumes: Vec<VolumeSummary>,
}

/// The reports of all volumes. They are made without counting anything: [`BlockReport::cached`] of
/// volumes that share a cache is as of the last count, and `known` says whether there was one.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct ReportList {
    /// The volumes in the order of their creation.
    pub volumes: Vec<VolumeReport>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_promised_names_are_there() {
        let name = "v".parse().expect("valid");
        let report = VolumeReport::empty(name, VolumeState::Running, Settings::default());
        let json = serde_json::to_value(&report).expect("plain data");
        for pointer in "name mode policy block_size durability state origin/path origin/size \
             cache/path cache/size cache/used cache/index_loaded export/nbd blocks/known blocks/cached blocks/dirty blocks/held \
             served/reads/total served/reads/ram served/reads/cache served/reads/origin \
             served/writes/total served/writes/ram served/writes/cache served/writes/origin \
             requests/read_hits requests/read_partial requests/read_misses requests/write_hits \
             requests/write_misses requests/bypassed requests/flushes bytes/user_read \
             bytes/user_written bytes/ram_read bytes/ram_written bytes/cache_read bytes/cache_written bytes/origin_read \
             bytes/origin_written waiting_for latency/read/p50_us latency/write/p99_us latency/flush/max_us \
             memory/index_bytes memory/buffer_bytes \
             memory/limit_bytes memory/used_bytes/index \
             memory/used_bytes/connections memory/used_bytes/requests errors/last progress settings/mode"
            .split_whitespace()
        {
            assert!(json.pointer(&format!("/{pointer}")).is_some(), "{pointer} is missing");
        }
        assert_eq!(serde_json::from_value::<VolumeReport>(json).expect("own output"), report);
    }

    #[test]
    fn reasons_have_names_in_json_and_may_be_absent_or_unknown() {
        let name = "v".parse().expect("valid");
        let mut report = VolumeReport::empty(name, VolumeState::Running, Settings::default());
        report.why.miss.not_admitted = 3;
        let mut json = serde_json::to_value(&report).expect("plain data");
        report.why.each(|group, name, count| {
            let pointer = format!("/why/{group}/{name}");
            assert_eq!(json.pointer(&pointer).and_then(|v| v.as_u64()), Some(count), "{pointer}");
        });
        assert_eq!(json["why"]["miss"]["not_admitted"], 3);
        // Reports of earlier and later versions can be read.
        json["why"] = serde_json::json!({ "miss": { "cold": 7, "bored": 1 }, "feared": {} });
        let report: VolumeReport = serde_json::from_value(json.clone()).expect("lenient");
        assert_eq!((report.why.miss.cold, report.why.miss.total()), (7, 7));
        json.as_object_mut().expect("an object").remove("why");
        assert!(serde_json::from_value::<VolumeReport>(json).is_ok());
    }

    #[test]
    fn states_have_the_same_name_in_json_and_in_tables() {
        for state in VolumeState::ALL {
            let json = serde_json::to_value(state).expect("plain data");
            assert_eq!(json.as_str(), Some(state.name()));
        }
    }

    #[test]
    fn a_line_of_a_list_is_about_the_volume_and_not_about_its_cache() {
        let name = "v".parse().expect("valid");
        let mut report = VolumeReport::empty(name, VolumeState::Running, Settings::default());
        (report.block_size, report.blocks.cached, report.blocks.dirty) = (8192, 10, 3);
        report.cache.used = 1 << 20;
        let summary = report.summary();
        assert_eq!((summary.used, summary.dirty), (81_920, 24_576));
    }

    #[test]
    fn ratios_of_nothing_are_unknown() {
        let mut requests = RequestReport::default();
        assert_eq!(requests.read_hit_ratio(), None);
        requests.read_hits = 3;
        requests.read_partial = 1;
        assert_eq!(requests.read_hit_ratio(), Some(0.75));
    }
}
