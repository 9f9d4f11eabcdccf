//! Every request of the admin API: its path, its types and its meaning.

use serde_json::Value;

use crate::curve::CurveReport;
use crate::endpoint::{Endpoint, Nothing, Parameter, ResponseKind};
use crate::lost::LostReport;
use crate::operation::OperationList;
use crate::profiles::ProfileList;
use crate::report::DaemonMemory;
use crate::schema::SettingList;
use crate::{
    CreateRequest, DaemonReport, DeleteRequest, DropRequest, EventList, HandOverRequest, LogReport,
    MemoryRequest, Operation, OperationId, PinReport, RangesRequest, ReportList, SetRequest,
    StartRequest, StopRequest, VolumeList, VolumeName, VolumeReport,
};

/// A request that is answered at once.
pub type Get<A, R> = Endpoint<A, Nothing, R>;

/// A request that begins an operation on a volume.
pub type Operate<Q> = Endpoint<VolumeName, Q, Operation>;

const EVENT_QUERY: &[Parameter] = &[
    Parameter { name: "volume", help: "Only events about this volume." },
    Parameter { name: "kind", help: "Only events of these kinds, separated by commas." },
    Parameter {
        name: "since",
        help: "Only events since then: how long ago, like 30m, or a time in RFC 3339.",
    },
    Parameter { name: "after", help: "Only events with numbers larger than this." },
    Parameter { name: "limit", help: "At most this many events, the newest." },
];

const CURVE_QUERY: &[Parameter] = &[
    Parameter {
        name: "sizes",
        help: "Sizes of caches, like 64G,128G, instead of the default ones.",
    },
    Parameter { name: "ram", help: "Sizes of RAM tiers, like 1G,4G, instead of the default ones." },
];

const TRACE_QUERY: &[Parameter] =
    &[Parameter { name: "seconds", help: "Seconds to record, 1 to 86400 (default 60)." }];

pub static METRICS: Get<(), String> = Endpoint::get(
    "/metrics",
    "Metrics of the daemon and of all volumes, as OpenMetrics, or as the older text of Prometheus for clients \
     that accept only that.",
)
.answered(ResponseKind::Metrics);

pub static OPENAPI: Get<(), Value> =
    Endpoint::get("/v1/openapi.json", "This document.").answered(ResponseKind::Document);

pub static DAEMON: Get<(), DaemonReport> = Endpoint::get("/v1/daemon", "The state of the daemon.");

pub static HAND_OVER: Endpoint<(), HandOverRequest, DaemonReport> = Endpoint::post(
    "/v1/daemon/hand-over",
    "Replace the program of the daemon without disconnecting clients.",
)
.answered(ResponseKind::Accepted);

pub static MEMORY: Get<(), DaemonMemory> =
    Endpoint::get("/v1/memory", "The daemon's memory limit and its use.");

pub static SET_MEMORY: Endpoint<(), MemoryRequest, DaemonMemory> =
    Endpoint::post("/v1/memory", "Change the limit until the daemon ends.");

pub static EVENTS: Get<(), EventList> = Endpoint::get(
    "/v1/events",
    "Events, oldest first. With 'Accept: text/event-stream' the answer continues with new events, as \
     server-sent events whose id is the number of the event; Last-Event-ID is understood.",
)
.query(EVENT_QUERY)
.answered(ResponseKind::Events);

pub static LOG: Get<(), LogReport> =
    Endpoint::get("/v1/log", "The latest lines of the daemon's log.");

pub static SETTINGS: Get<(), SettingList> =
    Endpoint::get("/v1/knobs", "All settings of volumes, with their kinds and defaults.");

pub static PROFILES: Get<(), ProfileList> =
    Endpoint::get("/v1/profiles", "Settings that imitate other caches.");

pub static LIST: Get<(), VolumeList> = Endpoint::get("/v1/volumes", "A summary of each volume.");

pub static CREATE: Endpoint<(), CreateRequest, Operation> =
    Endpoint::operate("/v1/volumes", "Create a volume and serve it.");

pub static SHOW: Get<VolumeName, VolumeReport> =
    Endpoint::get("/v1/volumes/{name}", "Everything about a volume.");

pub static REPORTS: Get<(), ReportList> = Endpoint::get(
    "/v1/reports",
    "Everything about all volumes, without counting blocks, for programs that ask often: no lane waits for it.",
);

pub static REPORT: Get<VolumeName, VolumeReport> = Endpoint::get(
    "/v1/reports/{name}",
    "Everything about a volume, without counting blocks: no lane waits for it.",
);

pub static CURVE: Get<VolumeName, CurveReport> = Endpoint::get(
    "/v1/volumes/{name}/curve",
    "Hit ratios of caches and RAM tiers of other sizes, for the requests since the volume was started.",
)
.query(CURVE_QUERY);

pub static TRACE: Get<VolumeName, String> = Endpoint::get(
    "/v1/volumes/{name}/trace",
    "Record the requests of clients. The last line begins with '#' and has the number of requests, the number \
     of requests that were left out, and the seconds; a trace without this line is incomplete.",
)
.query(TRACE_QUERY)
.answered(ResponseKind::Trace);

pub static LOST: Get<VolumeName, LostReport> = Endpoint::get(
    "/v1/volumes/{name}/lost",
    "Dirty ranges on a cache device that has failed or is gone.",
);

pub static PINS: Get<VolumeName, PinReport> = Endpoint::get(
    "/v1/volumes/{name}/pins",
    "The pinned ranges, and the bytes of them that are cached.",
);

pub static SET: Operate<SetRequest> =
    Endpoint::operate("/v1/volumes/{name}/set", "Change settings.");

pub static FLUSH: Operate<Nothing> =
    Endpoint::ask("/v1/volumes/{name}/flush", "Write all dirty blocks to the origin.");

pub static DROP: Operate<DropRequest> = Endpoint::operate_by_default(
    "/v1/volumes/{name}/drop",
    "Discard cached data; data that is not on the origin yet stays.",
);

pub static PREFETCH: Operate<RangesRequest> = Endpoint::operate_by_default(
    "/v1/volumes/{name}/prefetch",
    "Load ranges into the cache; without ranges, load the blocks that the RAM tier held at the last stop.",
);

pub static PIN: Operate<RangesRequest> =
    Endpoint::operate("/v1/volumes/{name}/pin", "Keep ranges in the cache, and load them.");

pub static UNPIN: Operate<RangesRequest> = Endpoint::operate_by_default(
    "/v1/volumes/{name}/unpin",
    "Let pinned ranges be evicted again; without ranges, all of them.",
);

pub static EVICT: Operate<RangesRequest> =
    Endpoint::operate("/v1/volumes/{name}/evict", "Discard clean blocks of ranges.");

pub static STOP: Operate<StopRequest> = Endpoint::operate_by_default(
    "/v1/volumes/{name}/stop",
    "Stop serving the volume; its cache stays warm.",
);

pub static START: Operate<StartRequest> =
    Endpoint::operate_by_default("/v1/volumes/{name}/start", "Serve a stopped volume again.");

pub static DELETE: Operate<DeleteRequest> = Endpoint::operate(
    "/v1/volumes/{name}/delete",
    "Remove the volume from its cache; dirty blocks are written to the origin first.",
);

pub static OPERATIONS: Get<(), OperationList> =
    Endpoint::get("/v1/operations", "All operations that the daemon remembers.");

pub static OPERATION: Get<OperationId, Operation> =
    Endpoint::get("/v1/operations/{id}", "The state of one operation.")
        .answered(ResponseKind::Operation);

pub static CANCEL: Endpoint<OperationId, Nothing, Operation> =
    Endpoint::ask("/v1/operations/{id}/cancel", "Ask the operation to cancel.");
