//! The routes of the admin API, in one table: the function that answers each request.

use std::sync::LazyLock;
use std::time::Duration;

use forebay_admin::operation::OperationList;
use forebay_admin::profiles::ProfileList;
use forebay_admin::{ApiError, EventId, EventList, PROFILES, ReportList, VolumeList, VolumeReport};
use forebay_admin::{HandOverRequest, MemoryRequest, RangesRequest, api};
use forebay_core::parse_size;

use super::openapi;
use super::route::{Answered, Call, GRACE, Route, answer, begin, json, state_of};
use crate::curve::Sizes;
use crate::events::{query::Query, stream};
use crate::host_api::{BlockTask, Count};
use crate::http::HttpAnswer;
use crate::metrics::{self, text::Format};
use crate::recording::MOST_SECONDS;
use crate::volumes::Volumes;
use crate::{log, memory};

/// Every route.
pub(super) static ROUTES: LazyLock<Vec<Route>> = LazyLock::new(|| {
    vec![
        answer(&api::METRICS, |call, (), _| metrics(call)),
        json(&api::OPENAPI, |_, (), _| Ok(openapi::document(&ROUTES))),
        json(&api::DAEMON, |call, (), _| Ok(call.volumes.daemon_report())),
        json(&api::HAND_OVER, |call, (), HandOverRequest { program }| {
            call.volumes.ask_hand_over(program)?;
            Ok(call.volumes.daemon_report())
        }),
        json(&api::MEMORY, |call, (), _| Ok(memory::report(call.volumes.memory()))),
        json(&api::SET_MEMORY, |call, (), MemoryRequest { limit_bytes }| {
            call.volumes.set_memory_limit(limit_bytes)?;
            Ok(memory::report(call.volumes.memory()))
        }),
        answer(&api::EVENTS, |call, (), _| events(call)),
        json(&api::LOG, |_, (), _| Ok(log::report())),
        answer(&api::SETTINGS, |_, (), _| {
            Ok(HttpAnswer::json(200, &forebay_settings::help::json()))
        }),
        json(&api::PROFILES, |_, (), _| Ok(ProfileList { profiles: PROFILES })),
        json(&api::LIST, |call, (), _| {
            let all = call.volumes.list(Count::Fresh);
            Ok(VolumeList { volumes: all.iter().map(VolumeReport::summary).collect() })
        }),
        begin(&api::CREATE, |volumes, (), request| volumes.create(&request)),
        json(&api::SHOW, |call, name, _| call.volumes.show(&name, Count::Fresh)),
        // For clients that poll: no lane waits for this answer.
        json(&api::REPORTS, |call, (), _| {
            Ok(ReportList { volumes: call.volumes.list(Count::Known) })
        }),
        json(&api::REPORT, |call, name, _| call.volumes.show(&name, Count::Known)),
        json(&api::CURVE, |call, name, _| call.volumes.curve(&name, &sizes_in(call.query)?)),
        // The client follows the requests of a volume for a while.
        answer(&api::TRACE, |call, name, _| {
            call.volumes.record(&name, length_in(call.query)?).map(HttpAnswer::trace)
        }),
        json(&api::LOST, |call, name, _| call.volumes.lost(&name)),
        json(&api::PINS, |call, name, _| call.volumes.pins(&name)),
        begin(&api::SET, Volumes::set),
        begin(&api::FLUSH, |volumes, name, _| volumes.run(name, BlockTask::Flush)),
        begin(&api::DROP, |volumes, name, tiers| volumes.run(name, BlockTask::Drop(tiers))),
        begin(&api::PREFETCH, |volumes, name, RangesRequest { ranges }| {
            let task =
                if ranges.is_empty() { BlockTask::Prefetch } else { BlockTask::Fill(ranges) };
            volumes.run(name, task)
        }),
        begin(&api::PIN, |volumes, name, ranges| {
            volumes.run(name, BlockTask::Pin(ranges.named()?))
        }),
        begin(&api::UNPIN, |volumes, name, RangesRequest { ranges }| {
            volumes.run(name, BlockTask::Unpin(ranges))
        }),
        begin(&api::EVICT, |volumes, name, ranges| {
            volumes.run(name, BlockTask::Evict(ranges.named()?))
        }),
        begin(&api::STOP, Volumes::stop),
        begin(&api::START, Volumes::start),
        begin(&api::DELETE, Volumes::delete),
        json(&api::OPERATIONS, |call, (), _| {
            Ok(OperationList { operations: call.volumes.operations().list() })
        }),
        answer(&api::OPERATION, |call, id, _| state_of(call.volumes, id, Duration::ZERO)),
        answer(&api::CANCEL, |call, id, _| {
            call.volumes.operations().cancel(id);
            state_of(call.volumes, id, GRACE)
        }),
    ]
});

fn metrics(call: &Call<'_>) -> Answered {
    let format = Format::for_client(&call.request.accept);
    Ok(HttpAnswer::text(format.media_type(), metrics::scrape(call.volumes, format)))
}

/// Returns events, or a stream of events if the client accepts that.
fn events(call: &Call<'_>) -> Answered {
    let mut query = Query::parse(call.query.unwrap_or_default())?;
    let events = call.volumes.events();
    if !call.request.accept.contains(stream::MEDIA_TYPE) {
        return Ok(HttpAnswer::json(200, &EventList { events: events.list(&query) }));
    }
    if let Some(last) = call.request.last_event.as_ref().and_then(|last| last.parse().ok()) {
        query.after = query.after.max(EventId(last));
    }
    events.follow(query).map(HttpAnswer::events)
}

/// Parses `seconds=60`; without a query the length of a recording is 60 s as well.
fn length_in(query: Option<&str>) -> Result<Duration, ApiError> {
    let Some(query) = query else { return Ok(Duration::from_secs(60)) };
    let seconds = query.strip_prefix("seconds=").and_then(|text| text.parse().ok());
    let seconds = seconds.filter(|seconds| (1..=MOST_SECONDS).contains(seconds));
    seconds.map(Duration::from_secs).ok_or_else(|| {
        let how = format!("write it like trace?seconds=60, up to {MOST_SECONDS}");
        ApiError::invalid("query", how)
    })
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
