//! Every request of the admin API: its path, its types and its meaning.

use serde_json::Value;

use crate::curve::CurveReport;
use crate::endpoint::{Answer, Endpoint, Nothing, Parameter};
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
    Parameter { name: "after", help: "Only events with larger numbers." },
    Parameter { name: "limit", help: "Only so many, the newest ones." },
];

const CURVE_QUERY: &[Parameter] = &[
    Parameter { name: "sizes", help: "Sizes of caches, like 64G,128G, instead of the usual ones." },
    Parameter { name: "ram", help: "Sizes of RAM tiers, like 1G,4G, instead of the usual ones." },
];

const TRACE_QUERY: &[Parameter] =
    &[Parameter { name: "seconds", help: "How long to record, 1 to 86400; 60 without it." }];

pub static METRICS: Get<(), String> = Endpoint::get(
    "/metrics",
    "Metrics of the daemon and of all volumes, as OpenMetrics, or as the older text of Prometheus for clients \
     that accept only that.",
)
.answered(Answer::Metrics);

pub static OPENAPI: Get<(), Value> =
    Endpoint::get("/v1/openapi.json", "This document.").answered(Answer::Document);

pub static DAEMON: Get<(), DaemonReport> = Endpoint::get("/v1/daemon", "The state of the daemon.");

pub static HAND_OVER: Endpoint<(), HandOverRequest, DaemonReport> = Endpoint::post(
    "/v1/daemon/hand-over",
    "Replace the program of the daemon without disconnecting clients.",
)
.answered(Answer::Accepted);

pub static MEMORY: Get<(), DaemonMemory> =
    Endpoint::get("/v1/memory", "The daemon's memory limit and its use.");

pub static SET_MEMORY: Endpoint<(), MemoryRequest, DaemonMemory> =
    Endpoint::post("/v1/memory", "Change the limit until the daemon ends.");

pub static EVENTS: Get<(), EventList> = Endpoint::get(
    "/v1/events",
    "What happened, oldest first. With 'Accept: text/event-stream' the answer goes on with what happens, as \
     server-sent events with the number of the event as id; Last-Event-ID is understood.",
)
.query(EVENT_QUERY)
.answered(Answer::Events);

pub static LOG: Get<(), LogReport> =
    Endpoint::get("/v1/log", "The latest lines of the daemon's log.");

pub static SETTINGS: Get<(), SettingList> =
    Endpoint::get("/v1/knobs", "All settings of volumes, with their kinds and defaults.");

pub static PROFILES: Get<(), ProfileList> =
    Endpoint::get("/v1/profiles", "Settings that imitate other caches.");

pub static LIST: Get<(), VolumeList> =
    Endpoint::get("/v1/volumes", "All volumes, a line for each.");

pub static CREATE: Endpoint<(), CreateRequest, Operation> =
    Endpoint::operate("/v1/volumes", "Create a volume and serve it.");

pub static SHOW: Get<VolumeName, VolumeReport> =
    Endpoint::get("/v1/volumes/{name}", "Everything about a volume.");

pub static REPORTS: Get<(), ReportList> = Endpoint::get(
    "/v1/reports",
    "Everything about all volumes, without counting blocks, for programs that ask often: no lane waits for it.",
);

pub static REPORT: Get<VolumeName, VolumeReport> =
    Endpoint::get("/v1/reports/{name}", "Everything about a volume, likewise.");

pub static CURVE: Get<VolumeName, CurveReport> = Endpoint::get(
    "/v1/volumes/{name}/curve",
    "Hit ratios of caches and RAM tiers of other sizes, for the requests since the volume was started.",
)
.query(CURVE_QUERY);

pub static TRACE: Get<VolumeName, String> = Endpoint::get(
    "/v1/volumes/{name}/trace",
    "Record the requests of clients. The last line begins with '#' and has the number of the requests, of those \
     that had to be left out, and the seconds; without it the trace is cut short.",
)
.query(TRACE_QUERY)
.answered(Answer::Trace);

pub static LOST: Get<VolumeName, LostReport> = Endpoint::get(
    "/v1/volumes/{name}/lost",
    "Dirty ranges on a cache device that has failed or is gone.",
);

pub static PINS: Get<VolumeName, PinReport> =
    Endpoint::get("/v1/volumes/{name}/pins", "The pinned ranges, and how much of them is cached.");

pub static SET: Operate<SetRequest> =
    Endpoint::operate("/v1/volumes/{name}/set", "Change settings.");

pub static FLUSH: Operate<Nothing> =
    Endpoint::ask("/v1/volumes/{name}/flush", "Write all dirty blocks to the origin.");

pub static DROP: Operate<DropRequest> = Endpoint::operate_by_default(
    "/v1/volumes/{name}/drop",
    "Discard what is cached; data that is not on the origin yet stays.",
);

pub static PREFETCH: Operate<RangesRequest> = Endpoint::operate_by_default(
    "/v1/volumes/{name}/prefetch",
    "Load ranges into the cache; without any, what the RAM tier held at the last stop.",
);

pub static PIN: Operate<RangesRequest> =
    Endpoint::operate("/v1/volumes/{name}/pin", "Keep ranges in the cache, and load them.");

pub static UNPIN: Operate<RangesRequest> = Endpoint::operate_by_default(
    "/v1/volumes/{name}/unpin",
    "Let ranges be evicted again; without any, all.",
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
    Endpoint::get("/v1/operations", "All operations that are known.");

pub static OPERATION: Get<OperationId, Operation> =
    Endpoint::get("/v1/operations/{id}", "The state of one operation.").answered(Answer::Operation);

pub static CANCEL: Endpoint<OperationId, Nothing, Operation> =
    Endpoint::ask("/v1/operations/{id}/cancel", "Ask the operation to cancel.");
