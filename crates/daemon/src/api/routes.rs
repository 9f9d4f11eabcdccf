//! The routes of the admin API, in one table: requests are dispatched by it, and it is what `openapi` describes.

use forebay_admin::curve::CurveReport;
use forebay_admin::lost::LostReport;
use forebay_admin::operation::OperationList;
use forebay_admin::profiles::ProfileList;
use forebay_admin::report::DaemonMemory;
use forebay_admin::schema::SettingList;
use forebay_admin::{
    CreateRequest, DaemonReport, DeleteRequest, DropRequest, HandOverRequest, LogReport,
    MemoryRequest, PinReport, RangesRequest, ReportList, SetRequest, StartRequest, StopRequest,
    VolumeList, VolumeReport,
};

use super::handlers as to;
use super::route::{Answer, Body, Parameter, Route, get, of, operate, post};

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

/// Every route.
pub(super) static ROUTES: &[Route] = &[
    get(
        "/metrics",
        "Metrics of the daemon and of all volumes, as OpenMetrics, or as the older text of Prometheus for clients that accept only that.",
        Answer::Metrics,
        to::metrics,
    ),
    get("/v1/openapi.json", "This document.", Answer::Document, to::openapi),
    get("/v1/daemon", "The state of the daemon.", Answer::Json(of::<DaemonReport>), to::daemon),
    post(
        "/v1/daemon/hand-over",
        "Replace the program of the daemon without disconnecting clients.",
        Body::Required(of::<HandOverRequest>),
        Answer::Accepted(of::<DaemonReport>),
        to::hand_over,
    ),
    get(
        "/v1/memory",
        "The daemon's memory limit and its use.",
        Answer::Json(of::<DaemonMemory>),
        to::memory,
    ),
    post(
        "/v1/memory",
        "Change the limit until the daemon ends.",
        Body::Required(of::<MemoryRequest>),
        Answer::Json(of::<DaemonMemory>),
        to::set_memory,
    ),
    Route {
        query: EVENT_QUERY,
        ..get(
            "/v1/events",
            "What happened, oldest first. With 'Accept: text/event-stream' the answer goes on with what happens, as server-sent events with the number of the event as id; Last-Event-ID is understood.",
            Answer::Events,
            to::events,
        )
    },
    get("/v1/log", "The latest lines of the daemon's log.", Answer::Json(of::<LogReport>), to::log),
    get(
        "/v1/knobs",
        "All settings of volumes, with their kinds and defaults.",
        Answer::Json(of::<SettingList>),
        to::settings,
    ),
    get(
        "/v1/profiles",
        "Settings that imitate other caches.",
        Answer::Json(of::<ProfileList>),
        to::profiles,
    ),
    get("/v1/volumes", "All volumes, a line for each.", Answer::Json(of::<VolumeList>), to::list),
    operate(
        "/v1/volumes",
        "Create a volume and serve it.",
        Body::Required(of::<CreateRequest>),
        to::create,
    ),
    get(
        "/v1/volumes/{name}",
        "Everything about a volume.",
        Answer::Json(of::<VolumeReport>),
        to::show,
    ),
    get(
        "/v1/reports",
        "Everything about all volumes, without counting blocks, for programs that ask often: no lane waits for it.",
        Answer::Json(of::<ReportList>),
        to::reports,
    ),
    get(
        "/v1/reports/{name}",
        "Everything about a volume, likewise.",
        Answer::Json(of::<VolumeReport>),
        to::report,
    ),
    Route {
        query: CURVE_QUERY,
        ..get(
            "/v1/volumes/{name}/curve",
            "Hit ratios of caches and RAM tiers of other sizes, for the requests since the volume was started.",
            Answer::Json(of::<CurveReport>),
            to::curve,
        )
    },
    Route {
        query: TRACE_QUERY,
        ..get(
            "/v1/volumes/{name}/trace",
            "Record the requests of clients. The last line begins with '#' and has the number of the requests, of those that had to be left out, and the seconds; without it the trace is cut short.",
            Answer::Trace,
            to::trace,
        )
    },
    get(
        "/v1/volumes/{name}/lost",
        "Dirty ranges on a cache device that has failed or is gone.",
        Answer::Json(of::<LostReport>),
        to::lost,
    ),
    get(
        "/v1/volumes/{name}/pins",
        "The pinned ranges, and how much of them is cached.",
        Answer::Json(of::<PinReport>),
        to::pins,
    ),
    operate(
        "/v1/volumes/{name}/set",
        "Change settings.",
        Body::Required(of::<SetRequest>),
        to::set,
    ),
    operate(
        "/v1/volumes/{name}/flush",
        "Write all dirty blocks to the origin.",
        Body::None,
        to::flush,
    ),
    operate(
        "/v1/volumes/{name}/drop",
        "Discard what is cached; data that is not on the origin yet stays.",
        Body::Optional(of::<DropRequest>),
        to::drop_clean,
    ),
    operate(
        "/v1/volumes/{name}/prefetch",
        "Load ranges into the cache; without any, what the RAM tier held at the last stop.",
        Body::Optional(of::<RangesRequest>),
        to::prefetch,
    ),
    operate(
        "/v1/volumes/{name}/pin",
        "Keep ranges in the cache, and load them.",
        Body::Required(of::<RangesRequest>),
        to::pin,
    ),
    operate(
        "/v1/volumes/{name}/unpin",
        "Let ranges be evicted again; without any, all.",
        Body::Optional(of::<RangesRequest>),
        to::unpin,
    ),
    operate(
        "/v1/volumes/{name}/evict",
        "Discard clean blocks of ranges.",
        Body::Required(of::<RangesRequest>),
        to::evict,
    ),
    operate(
        "/v1/volumes/{name}/stop",
        "Stop serving the volume; its cache stays warm.",
        Body::Optional(of::<StopRequest>),
        to::stop,
    ),
    operate(
        "/v1/volumes/{name}/start",
        "Serve a stopped volume again.",
        Body::Optional(of::<StartRequest>),
        to::start,
    ),
    operate(
        "/v1/volumes/{name}/delete",
        "Remove the volume from its cache; dirty blocks are written to the origin first.",
        Body::Required(of::<DeleteRequest>),
        to::delete,
    ),
    get(
        "/v1/operations",
        "All operations that are known.",
        Answer::Json(of::<OperationList>),
        to::operations,
    ),
    get("/v1/operations/{id}", "The state of one operation.", Answer::Operation, to::operation),
    operate("/v1/operations/{id}/cancel", "Ask the operation to cancel.", Body::None, to::cancel),
];
