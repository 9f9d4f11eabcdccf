//! What the admin API does on each of its routes.

use std::time::Duration;

use forebay_admin::operation::OperationList;
use forebay_admin::profiles::ProfileList;
use forebay_admin::{
    ApiError, DeleteRequest, DropRequest, ErrorKind, EventId, EventList, HandOverRequest,
    MemoryRequest, OperationId, OperationState, PROFILES, ReportList, SetRequest, StartRequest,
    StopRequest, VolumeList, VolumeName, VolumeReport,
};
use forebay_core::parse_size;
use serde::de::DeserializeOwned;

use super::openapi;
use super::route::{Answered, Call};
use crate::curve::Sizes;
use crate::events::{query::Query, stream};
use crate::host_api::Count;
use crate::http::{HttpAnswer, HttpRequest};
use crate::metrics::{self, text::Format};
use crate::recording::MOST_SECONDS;
use crate::volumes::Volumes;
use crate::{log, memory};

/// How long the answer to a new operation is delayed, so that it can report the end of a quick one.
const GRACE: Duration = Duration::from_millis(150);

pub(super) fn metrics(call: &Call<'_>) -> Answered {
    let format = Format::for_client(&call.request.accept);
    Ok(HttpAnswer::text(format.media_type(), metrics::scrape(call.volumes, format)))
}

pub(super) fn daemon(call: &Call<'_>) -> Answered {
    json(&call.volumes.daemon_report())
}

pub(super) fn hand_over(call: &Call<'_>) -> Answered {
    let HandOverRequest { program } = body(call.request)?;
    call.volumes.ask_hand_over(program)?;
    Ok(HttpAnswer::json(202, &call.volumes.daemon_report()))
}

pub(super) fn memory(call: &Call<'_>) -> Answered {
    json(&memory::report(call.volumes.memory()))
}

pub(super) fn set_memory(call: &Call<'_>) -> Answered {
    let MemoryRequest { limit_bytes } = body(call.request)?;
    call.volumes.set_memory_limit(limit_bytes)?;
    memory(call)
}

/// Returns events, or lets the client follow them if it accepts that.
pub(super) fn events(call: &Call<'_>) -> Answered {
    let mut query = Query::parse(call.query.unwrap_or_default())?;
    let events = call.volumes.events();
    if !call.request.accept.contains(stream::MEDIA_TYPE) {
        return json(&EventList { events: events.list(&query) });
    }
    if let Some(last) = call.request.last_event.as_ref().and_then(|last| last.parse().ok()) {
        query.after = query.after.max(EventId(last));
    }
    events.follow(query).map(HttpAnswer::events)
}

pub(super) fn log(_: &Call<'_>) -> Answered {
    json(&log::report())
}

pub(super) fn openapi(call: &Call<'_>) -> Answered {
    json(&openapi::document(call.routes))
}

pub(super) fn settings(_: &Call<'_>) -> Answered {
    json(&forebay_settings::help::json())
}

pub(super) fn profiles(_: &Call<'_>) -> Answered {
    json(&ProfileList { profiles: PROFILES })
}

pub(super) fn list(call: &Call<'_>) -> Answered {
    let all = call.volumes.list(Count::Fresh);
    json(&VolumeList { volumes: all.iter().map(VolumeReport::summary).collect() })
}

pub(super) fn create(call: &Call<'_>) -> Answered {
    begun(call.volumes, call.volumes.create(&body(call.request)?))
}

pub(super) fn show(call: &Call<'_>) -> Answered {
    json(&call.volumes.show(&named(call)?, Count::Fresh)?)
}

/// For those that ask again and again: no lane waits for it.
pub(super) fn reports(call: &Call<'_>) -> Answered {
    json(&ReportList { volumes: call.volumes.list(Count::Known) })
}

pub(super) fn report(call: &Call<'_>) -> Answered {
    json(&call.volumes.show(&named(call)?, Count::Known)?)
}

pub(super) fn lost(call: &Call<'_>) -> Answered {
    json(&call.volumes.lost(&named(call)?)?)
}

pub(super) fn pins(call: &Call<'_>) -> Answered {
    json(&call.volumes.pins(&named(call)?)?)
}

pub(super) fn curve(call: &Call<'_>) -> Answered {
    let sizes = sizes_in(call.query)?;
    json(&call.volumes.curve(&named(call)?, &sizes)?)
}

/// Lets the client follow the requests of a volume for a while.
pub(super) fn trace(call: &Call<'_>) -> Answered {
    let length = match call.query {
        None => Duration::from_secs(60),
        Some(query) => {
            let seconds = query.strip_prefix("seconds=").and_then(|text| text.parse().ok());
            let seconds = seconds.filter(|seconds| (1..=MOST_SECONDS).contains(seconds));
            let unclear = || {
                ApiError::invalid(
                    "query",
                    format!("write it like trace?seconds=60, up to {MOST_SECONDS}"),
                )
            };
            Duration::from_secs(seconds.ok_or_else(unclear)?)
        }
    };
    call.volumes.record(&named(call)?, length).map(HttpAnswer::trace)
}

pub(super) fn set(call: &Call<'_>) -> Answered {
    let (name, settings) = (named(call)?, body::<SetRequest>(call.request)?);
    begun(call.volumes, call.volumes.set(&name, settings))
}

pub(super) fn flush(call: &Call<'_>) -> Answered {
    let name = named(call)?;
    no_body(call.request)?;
    begun(call.volumes, call.volumes.flush(&name))
}

pub(super) fn drop_clean(call: &Call<'_>) -> Answered {
    let (name, tiers) = (named(call)?, body_or_nothing::<DropRequest>(call.request)?);
    begun(call.volumes, call.volumes.drop_clean(&name, tiers))
}

pub(super) fn prefetch(call: &Call<'_>) -> Answered {
    let (name, ranges) = (named(call)?, body_or_nothing(call.request)?);
    begun(call.volumes, call.volumes.prefetch(&name, ranges))
}

pub(super) fn pin(call: &Call<'_>) -> Answered {
    let (name, ranges) = (named(call)?, body(call.request)?);
    begun(call.volumes, call.volumes.pin(&name, ranges))
}

pub(super) fn unpin(call: &Call<'_>) -> Answered {
    let (name, ranges) = (named(call)?, body_or_nothing(call.request)?);
    begun(call.volumes, call.volumes.unpin(&name, ranges))
}

pub(super) fn evict(call: &Call<'_>) -> Answered {
    let (name, ranges) = (named(call)?, body(call.request)?);
    begun(call.volumes, call.volumes.evict(&name, ranges))
}

pub(super) fn stop(call: &Call<'_>) -> Answered {
    let (name, request) = (named(call)?, body_or_nothing::<StopRequest>(call.request)?);
    begun(call.volumes, call.volumes.stop(&name, request))
}

pub(super) fn start(call: &Call<'_>) -> Answered {
    let (name, how): (_, StartRequest) = (named(call)?, body_or_nothing(call.request)?);
    begun(call.volumes, call.volumes.start(&name, how))
}

pub(super) fn delete(call: &Call<'_>) -> Answered {
    let (name, request) = (named(call)?, body::<DeleteRequest>(call.request)?);
    begun(call.volumes, call.volumes.delete(&name, request))
}

pub(super) fn operations(call: &Call<'_>) -> Answered {
    json(&OperationList { operations: call.volumes.operations().list() })
}

pub(super) fn operation(call: &Call<'_>) -> Answered {
    state_of(call.volumes, numbered(call)?, Duration::ZERO)
}

pub(super) fn cancel(call: &Call<'_>) -> Answered {
    no_body(call.request)?;
    let id = numbered(call)?;
    call.volumes.operations().cancel(id);
    state_of(call.volumes, id, GRACE)
}

fn json(body: &impl serde::Serialize) -> Answered {
    Ok(HttpAnswer::json(200, body))
}

/// Returns the volume in the path.
fn named(call: &Call<'_>) -> Result<VolumeName, ApiError> {
    Ok(call.argument.parse::<VolumeName>()?)
}

/// Returns the operation in the path.
fn numbered(call: &Call<'_>) -> Result<OperationId, ApiError> {
    let number = call.argument.parse();
    number.map_err(|_| ApiError::invalid("id", "operations have whole numbers"))
}

/// Parses `sizes=64G,128G&ram=1G`, in bytes, in any order; without a query there are no sizes.
fn sizes_in(query: Option<&str>) -> Result<Sizes, ApiError> {
    let mut sizes = Sizes::default();
    let unclear = || ApiError::invalid("query", "write it like curve?sizes=64G,128G&ram=1G");
    for part in query.into_iter().flat_map(|query| query.split('&')) {
        let (name, texts) = part.split_once('=').ok_or_else(unclear)?;
        let into = match name {
            "sizes" => &mut sizes.cache,
            "ram" => &mut sizes.ram,
            _ => return Err(unclear()),
        };
        for text in texts.split(',') {
            into.push(parse_size(text).map_err(|error| ApiError::invalid(name, error))?);
        }
    }
    Ok(sizes)
}

fn body<T: DeserializeOwned>(request: &HttpRequest) -> Result<T, ApiError> {
    // A JSON list would be read as the fields of an object in the order of their declaration.
    if request.body.trim_ascii_start().first() != Some(&b'{') {
        return Err(ApiError::new(ErrorKind::Invalid, "body: send a JSON object"));
    }
    serde_json::from_slice(&request.body)
        .map_err(|error| ApiError::new(ErrorKind::Invalid, format!("body: {error}")))
}

/// Parses a body; an empty one stands for an object without fields.
fn body_or_nothing<T: DeserializeOwned + Default>(request: &HttpRequest) -> Result<T, ApiError> {
    if request.body.is_empty() { Ok(T::default()) } else { body(request) }
}

/// Accepts an empty body, or an empty object for clients that always send JSON.
fn no_body(request: &HttpRequest) -> Result<(), ApiError> {
    #[derive(serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Nothing {}

    if request.body.is_empty() { Ok(()) } else { body::<Nothing>(request).map(|Nothing {}| ()) }
}

fn begun(volumes: &Volumes, started: Result<OperationId, ApiError>) -> Answered {
    state_of(volumes, started?, GRACE)
}

fn state_of(volumes: &Volumes, id: OperationId, wait: Duration) -> Answered {
    let operation = volumes.operations().wait(id, Some(wait)).ok_or_else(|| {
        ApiError::new(ErrorKind::NotFound, format!("operation {id} is not known (any more)"))
    })?;
    let status = if operation.state == OperationState::Running { 202 } else { 200 };
    Ok(HttpAnswer::json(status, &operation))
}
