//! The admin API: paths and their handlers.
//!
//! | request | answer |
//! |---|---|
//! | `GET /metrics` | metrics of the daemon and of all volumes, as text: see `metrics` |
//! | `GET /v1/daemon` | state of the daemon |
//! | `POST /v1/daemon/hand-over` | the state of the daemon, which replaces its program |
//! | `GET /v1/memory` | the daemon's memory limit and its use |
//! | `POST /v1/memory` | the same, with a new limit |
//! | `GET /v1/events`, with `?volume=`, `kind=`, `since=`, `after=` and `limit=` or without | events; with `Accept: text/event-stream` they are followed |
//! | `GET /v1/log` | the latest lines of the daemon's log |
//! | `GET /v1/knobs` | all settings, with their kinds and defaults |
//! | `GET /v1/profiles` | the profiles and their settings |
//! | `GET /v1/volumes` | list of all volumes |
//! | `POST /v1/volumes` | operation: create |
//! | `GET /v1/volumes/NAME` | full report of one volume |
//! | `GET /v1/volumes/NAME/curve`, with `?sizes=64G,128G` and `ram=1G,4G` or without | hit ratios of caches and RAM tiers of other sizes |
//! | `GET /v1/volumes/NAME/lost` | dirty ranges on a cache device that has failed or is gone |
//! | `GET /v1/volumes/NAME/pins` | the pinned ranges, and how much of them is cached |
//! | `POST /v1/volumes/NAME/set`, `flush`, `drop`, `prefetch`, `pin`, `unpin`, `evict`, `stop`, `start`, `delete` | operation |
//! | `GET /v1/operations` | all known operations |
//! | `GET /v1/operations/ID` | one operation |
//! | `POST /v1/operations/ID/cancel` | the operation, which has been asked to cancel |
//!
//! An operation is answered with status 202 while it runs, and with 200 once it has succeeded or
//! failed.

use std::sync::Arc;
use std::time::Duration;

use forebay_admin::{
    API_VERSION, ApiError, DeleteRequest, DropRequest, ErrorKind, EventId, EventList,
    HandOverRequest, MemoryRequest, OperationId, OperationState, PROFILES, SetRequest,
    StartRequest, StopRequest, VolumeList, VolumeName, VolumeReport,
};
use forebay_core::parse_size;
use serde::de::DeserializeOwned;

use super::events::{query::Query, stream};
use super::host_api::Count;
use super::http::{HttpAnswer, HttpRequest};
use super::metrics::{self, text::Format};
use super::volumes::Volumes;
use super::{log, memory};
use crate::curve::Sizes;

/// How long the answer to a new operation is delayed, so that it can report the end of a quick one.
const GRACE: Duration = Duration::from_millis(150);

/// Answers one request.
pub(crate) fn answer(volumes: &Arc<Volumes>, request: &HttpRequest) -> HttpAnswer {
    route(volumes, request).unwrap_or_else(|error| HttpAnswer::error(&error))
}

fn route(volumes: &Arc<Volumes>, request: &HttpRequest) -> Result<HttpAnswer, ApiError> {
    let unknown = || {
        let message = format!("there is no such path for {} in the admin API", request.method);
        ApiError::new(ErrorKind::NotFound, message)
    };
    if (request.method.as_str(), request.target.as_str()) == ("GET", "/metrics") {
        let format = Format::for_client(&request.accept);
        return Ok(HttpAnswer::text(format.media_type(), metrics::scrape(volumes, format)));
    }
    let path: Vec<&str> = request.target.split('/').collect();
    let ["", version, path @ ..] = path.as_slice() else { return Err(unknown()) };
    if *version != API_VERSION {
        return Err(unknown());
    }
    match (request.method.as_str(), path) {
        ("GET", ["daemon"]) => Ok(HttpAnswer::json(200, &volumes.daemon_report())),
        ("POST", ["daemon", "hand-over"]) => hand_over(volumes, request),
        ("GET", ["memory"]) => Ok(HttpAnswer::json(200, &memory::report(volumes.memory()))),
        ("POST", ["memory"]) => set_memory(volumes, request),
        ("GET", [events]) if events.split('?').next() == Some("events") => {
            self::events(volumes, events.strip_prefix("events?").unwrap_or_default(), request)
        }
        ("GET", ["log"]) => Ok(HttpAnswer::json(200, &log::report())),
        ("GET", ["knobs"]) => Ok(HttpAnswer::json(200, &forebay_settings::help::json())),
        ("GET", ["profiles"]) => {
            Ok(HttpAnswer::json(200, &serde_json::json!({ "profiles": PROFILES })))
        }
        ("GET", ["volumes"]) => {
            let all = volumes.list(Count::Fresh).iter().map(VolumeReport::summary).collect();
            Ok(HttpAnswer::json(200, &VolumeList { volumes: all }))
        }
        ("POST", ["volumes"]) => begun(volumes, volumes.create(&body(request)?)),
        ("GET", ["volumes", name]) => Ok(HttpAnswer::json(200, &volumes.show(&named(name)?)?)),
        ("GET", ["volumes", name, "lost"]) => {
            Ok(HttpAnswer::json(200, &volumes.lost(&named(name)?)?))
        }
        ("GET", ["volumes", name, "pins"]) => {
            Ok(HttpAnswer::json(200, &volumes.pins(&named(name)?)?))
        }
        ("GET", ["volumes", name, curve]) => {
            let sizes = sizes_in(curve.strip_prefix("curve").ok_or_else(unknown)?)?;
            Ok(HttpAnswer::json(200, &volumes.curve(&named(name)?, &sizes)?))
        }
        ("POST", ["volumes", name, verb]) => {
            operate(volumes, &named(name)?, verb, request).unwrap_or_else(|| Err(unknown()))
        }
        ("GET", ["operations"]) => {
            let all = serde_json::json!({ "operations": volumes.operations().list() });
            Ok(HttpAnswer::json(200, &all))
        }
        ("GET", ["operations", id]) => operation(volumes, numbered(id)?, Duration::ZERO),
        ("POST", ["operations", id, "cancel"]) => {
            no_body(request)?;
            let id = numbered(id)?;
            volumes.operations().cancel(id);
            operation(volumes, id, GRACE)
        }
        _ => Err(unknown()),
    }
}

/// Begins an operation on a volume; `None`: there is no such verb.
fn operate(
    volumes: &Arc<Volumes>,
    name: &VolumeName,
    verb: &str,
    request: &HttpRequest,
) -> Option<Result<HttpAnswer, ApiError>> {
    let started = match verb {
        "set" => body::<SetRequest>(request).and_then(|settings| volumes.set(name, settings)),
        "flush" => no_body(request).and_then(|()| volumes.flush(name)),
        "drop" => {
            body_or_nothing(request).and_then(|tiers: DropRequest| volumes.drop_clean(name, tiers))
        }
        "prefetch" => body_or_nothing(request).and_then(|ranges| volumes.prefetch(name, ranges)),
        "pin" => body(request).and_then(|ranges| volumes.pin(name, ranges)),
        "unpin" => body_or_nothing(request).and_then(|ranges| volumes.unpin(name, ranges)),
        "evict" => body(request).and_then(|ranges| volumes.evict(name, ranges)),
        "stop" => {
            body_or_nothing(request).and_then(|StopRequest { force }| volumes.stop(name, force))
        }
        "start" => {
            body_or_nothing(request).and_then(|StartRequest { force }| volumes.start(name, force))
        }
        "delete" => body(request)
            .and_then(|DeleteRequest { discard_dirty }| volumes.delete(name, discard_dirty)),
        _ => return None,
    };
    Some(begun(volumes, started))
}

fn hand_over(volumes: &Volumes, request: &HttpRequest) -> Result<HttpAnswer, ApiError> {
    let HandOverRequest { program } = body(request)?;
    volumes.ask_hand_over(program)?;
    Ok(HttpAnswer::json(202, &volumes.daemon_report()))
}

/// Returns events, or lets the client follow them if it accepts that.
fn events(volumes: &Volumes, query: &str, request: &HttpRequest) -> Result<HttpAnswer, ApiError> {
    let mut query = Query::parse(query)?;
    let events = volumes.events();
    if !request.accept.contains(stream::MEDIA_TYPE) {
        return Ok(HttpAnswer::json(200, &EventList { events: events.list(&query) }));
    }
    if let Some(last) = request.last_event.as_ref().and_then(|last| last.parse().ok()) {
        query.after = query.after.max(EventId(last));
    }
    events.follow(query).map(HttpAnswer::events)
}

fn set_memory(volumes: &Volumes, request: &HttpRequest) -> Result<HttpAnswer, ApiError> {
    let MemoryRequest { limit_bytes } = body(request)?;
    volumes.set_memory_limit(limit_bytes)?;
    Ok(HttpAnswer::json(200, &memory::report(volumes.memory())))
}

fn named(text: &str) -> Result<VolumeName, ApiError> {
    Ok(text.parse::<VolumeName>()?)
}

/// Parses `?sizes=64G,128G&ram=1G`, in bytes, in any order; an empty query has no sizes.
fn sizes_in(query: &str) -> Result<Sizes, ApiError> {
    let mut sizes = Sizes::default();
    if query.is_empty() {
        return Ok(sizes);
    }
    let unclear = || ApiError::invalid("query", "write it like curve?sizes=64G,128G&ram=1G");
    for part in query.strip_prefix('?').ok_or_else(unclear)?.split('&') {
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

fn numbered(text: &str) -> Result<OperationId, ApiError> {
    text.parse().map_err(|_| ApiError::invalid("id", "operations have whole numbers"))
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

fn begun(
    volumes: &Volumes,
    started: Result<OperationId, ApiError>,
) -> Result<HttpAnswer, ApiError> {
    operation(volumes, started?, GRACE)
}

fn operation(volumes: &Volumes, id: OperationId, wait: Duration) -> Result<HttpAnswer, ApiError> {
    let operation = volumes.operations().wait(id, Some(wait)).ok_or_else(|| {
        ApiError::new(ErrorKind::NotFound, format!("operation {id} is not known (any more)"))
    })?;
    let status = if operation.state == OperationState::Running { 202 } else { 200 };
    Ok(HttpAnswer::json(status, &operation))
}

#[cfg(test)]
mod tests {
    use forebay_admin::Operation;
    use serde_json::{Value, json};

    use super::*;
    use crate::daemon::http::Content;
    use crate::daemon::state::State;
    use crate::daemon::testing::{FakeHost, TempDir};
    use crate::daemon::volumes::Programs;

    struct Api {
        dir: TempDir,
        host: Arc<FakeHost>,
        volumes: Arc<Volumes>,
    }

    impl Api {
        fn new() -> Self {
            let (dir, host) = (TempDir::new("api"), Arc::new(FakeHost::default()));
            std::fs::write(dir.path().join("origin"), [0; 512]).expect("writable");
            let state = State::open(&dir.path().join("state")).expect("free");
            let volumes = Volumes::new(host.clone(), state, Vec::new(), Programs::default());
            Api { dir, host, volumes }
        }

        fn ask(&self, method: &str, target: &str, body: &str) -> (u16, Value) {
            let (method, target) = (method.to_owned(), target.to_owned());
            let request = HttpRequest {
                method,
                target: target.clone(),
                accept: String::new(),
                last_event: None,
                body: body.as_bytes().to_vec(),
            };
            let answer = answer(&self.volumes, &request);
            let Content::Whole(body) = answer.body else { panic!("{target} has no end") };
            (answer.status, serde_json::from_slice(&body).expect("always JSON"))
        }

        fn end(&self, (status, body): (u16, Value)) -> Operation {
            assert!(status == 200 || status == 202, "{status}: {body}");
            let begun: Operation = serde_json::from_value(body).expect("an operation");
            self.volumes.operations().wait(begun.id, None).expect("known")
        }

        fn create_body(&self) -> String {
            let origin = self.dir.path().join("origin");
            json!({"name": "v", "cache": "ram:1M", "origin": origin}).to_string()
        }
    }

    #[test]
    fn a_volume_lives_and_dies() {
        let api = Api::new();
        let created = api.end(api.ask("POST", "/v1/volumes", &api.create_body()));
        assert_eq!((created.state, created.error), (OperationState::Done, None));
        let (status, list) = api.ask("GET", "/v1/volumes", "");
        assert_eq!((status, &list["volumes"][0]["name"]), (200, &json!("v")));
        let (_, one) = api.ask("GET", "/v1/volumes/v", "");
        assert_eq!(one["cache"]["path"], "ram:1M");
        for (verb, body) in [
            ("flush", ""),
            ("set", r#"{"settings":{"mode":"wt","dirty_high":55}}"#),
            ("drop", r#"{"ram":true}"#),
            ("drop", ""),
            ("prefetch", ""),
            ("prefetch", r#"{"ranges":[{"offset":0,"len":4096}]}"#),
            ("pin", r#"{"ranges":[{"offset":0,"len":4096}]}"#),
            ("unpin", ""),
            ("evict", r#"{"ranges":[{"offset":0,"len":4096}]}"#),
            ("stop", "{}"),
            ("start", ""),
            ("delete", r#"{"discard_dirty":true}"#),
        ] {
            let ended = api.end(api.ask("POST", &format!("/v1/volumes/v/{verb}"), body));
            assert_eq!(ended.error, None, "{verb}");
            let (status, again) = api.ask("GET", &format!("/v1/operations/{}", ended.id), "");
            assert_eq!((status, &again["verb"]), (200, &json!(verb)));
        }
        let (_, list) = api.ask("GET", "/v1/volumes", "");
        assert_eq!(list, json!({"volumes": []}));
    }

    #[test]
    fn bad_requests_change_nothing_and_name_the_field() {
        let api = Api::new();
        api.end(api.ask("POST", "/v1/volumes", &api.create_body()));
        let before = api.host.asked.lock().expect("not poisoned").clone();
        let deep = format!("{{\"settings\":{}", "[".repeat(30_000));
        for (method, target, body, status) in [
            ("GET", "/", "", 404),
            ("GET", "/v2/volumes", "", 404),
            ("GET", "v1/volumes", "", 404),
            ("GET", "/v1/volumes/", "", 400),
            ("GET", "/v1/volumes/w", "", 404),
            ("GET", "/v1/volumes/..", "", 400),
            ("PUT", "/v1/volumes", "{}", 404),
            ("DELETE", "/v1/volumes/v", "", 404),
            ("POST", "/v1/volumes", "", 400),
            ("POST", "/v1/volumes", "{}", 400),
            ("POST", "/v1/volumes", "\u{feff}{}", 400),
            ("POST", "/v1/volumes", r#"["w","ram:1M","ram:1M"]"#, 400),
            ("POST", "/v1/volumes", r#"{"name":"../x","cache":"ram:1M","origin":"/o"}"#, 400),
            ("POST", "/v1/volumes/v/flush", "[]", 400),
            ("POST", "/v1/volumes/v/flush", r#"{"now":true}"#, 400),
            ("POST", "/v1/volumes/v/explode", "", 404),
            ("POST", "/v1/volumes/v/drop", r#"{"dirty":true}"#, 400),
            ("POST", "/v1/volumes/v/prefetch", "[]", 400),
            ("POST", "/v1/volumes/v/pin", "", 400),
            ("POST", "/v1/volumes/v/pin", r#"{"ranges":[]}"#, 400),
            ("POST", "/v1/volumes/v/evict", "{}", 400),
            ("POST", "/v1/volumes/v/evict", r#"{"ranges":[{"offset":-1,"len":4096}]}"#, 400),
            ("POST", "/v1/volumes/v/unpin", r#"{"ranges":[{"offset":0}]}"#, 400),
            ("GET", "/v1/volumes/w/pins", "", 404),
            ("POST", "/v1/volumes/w/flush", "", 404),
            ("POST", "/v1/volumes/v/set", "{}", 400),
            ("POST", "/v1/volumes/v/set", &deep, 400),
            ("POST", "/v1/volumes/v/set", r#"{"settings":{"mode":"wb","mode":"wt"}}"#, 400),
            ("POST", "/v1/volumes/v/set", r#"{"settings":{"dirty_low":99}}"#, 400),
            ("POST", "/v1/volumes/v/set", r#"{"settings":{"nope":1}}"#, 400),
            ("POST", "/v1/volumes/v/delete", r#"{"discard_dirty":1}"#, 400),
            ("POST", "/v1/volumes/v/delete", "", 400),
            ("GET", "/v1/volumes/w/curve", "", 404),
            ("GET", "/v1/volumes/w/lost", "", 404),
            ("GET", "/v1/volumes/v/curves", "", 400),
            ("GET", "/v1/volumes/v/curve?", "", 400),
            ("GET", "/v1/volumes/v/curve?size=1G", "", 400),
            ("GET", "/v1/volumes/v/curve?sizes=", "", 400),
            ("GET", "/v1/volumes/v/curve?sizes=1G,-1", "", 400),
            ("GET", "/v1/volumes/v/curve?sizes=1G&ram=", "", 400),
            ("GET", "/v1/volumes/v/curve?sizes=1G&rom=1G", "", 400),
            ("GET", "/v1/volumes/v/curve?sizes=1G&", "", 400),
            ("GET", "/v1/volumes/v/bend", "", 404),
            ("GET", "/v1/operations/0", "", 404),
            ("GET", "/v1/operations/x", "", 400),
            ("GET", "/v1/operations/18446744073709551616", "", 400),
        ] {
            let (got, answer) = api.ask(method, target, body);
            assert_eq!(got, status, "{method} {target} {body:.60}: {answer}");
            let message = answer["error"]["message"].as_str().expect("a message");
            assert!(!message.is_empty() && !message.contains('\n'));
        }
        assert_eq!(*api.host.asked.lock().expect("not poisoned"), before);
    }

    #[test]
    fn only_a_ready_daemon_hands_over_and_only_to_a_program_that_can_take_over() {
        let api = Api::new();
        let ask = |program: &str| {
            let body = json!({ "program": program }).to_string();
            let (status, answer) = api.ask("POST", "/v1/daemon/hand-over", &body);
            (status, answer["error"]["message"].as_str().unwrap_or_default().to_owned())
        };
        let (status, message) = ask("/bin/true");
        assert!(status == 409 && message.contains("still starting"), "{status} {message}");
        assert_eq!(api.ask("GET", "/v1/daemon", "").1["ready"], json!(false));
        api.volumes.note_ready();
        let (status, message) = ask("/bin/true");
        assert!(status == 409 && message.contains("cannot take over"), "{status} {message}");
        assert_eq!(ask("forebay").0, 400);
        let (_, daemon) = api.ask("GET", "/v1/daemon", "");
        assert_eq!((&daemon["ready"], &daemon["hand_overs"]), (&json!(true), &json!(0)));
    }

    #[test]
    fn the_memory_limit_can_be_changed() {
        let api = Api::new();
        let limit = |body: &str| api.ask("POST", "/v1/memory", body);
        let (status, memory) = limit(r#"{"limit_bytes":1073741824}"#);
        assert_eq!((status, &memory["limit_bytes"]), (200, &json!(1 << 30)));
        assert_eq!(api.ask("GET", "/v1/memory", ""), (200, memory));
        assert_eq!(limit(r#"{"limit_bytes":1048576}"#).0, 400);
        let tier =
            api.volumes.memory().hold(forebay_lane::MemoryUse::RamTiers, 700 << 20, "a tier");
        let (status, refused) = limit(r#"{"limit_bytes":536870912}"#);
        let message = refused["error"]["message"].as_str().expect("a message");
        assert!(status == 409 && message.contains("934 MiB or more"), "{status} {message}");
        drop(tier);
        assert_eq!(limit(r#"{"limit_bytes":536870912}"#).0, 200);
    }

    #[test]
    fn the_curve_of_a_volume_is_there_while_it_is_served() {
        let api = Api::new();
        api.end(api.ask("POST", "/v1/volumes", &api.create_body()));
        let (status, curve) = api.ask("GET", "/v1/volumes/v/curve?sizes=64M,1G", "");
        assert_eq!((status, &curve["volume"]), (200, &json!("v")));
        assert_eq!(
            curve["rows"][1],
            json!({"bytes": 1 << 30, "reads": null, "all": {"share": 0.25, "error": 0.125}})
        );
        assert_eq!(api.ask("GET", "/v1/volumes/v/curve", "").1["rows"], json!([]));
        let (_, curve) = api.ask("GET", "/v1/volumes/v/curve?ram=1M,2M&sizes=1G", "");
        let bytes = |rows: &str| curve[rows].as_array().expect("rows").len();
        assert_eq!((bytes("rows"), bytes("ram_rows"), &curve["ram"]), (1, 2, &Value::Null));
        assert_eq!(
            (&curve["ram_rows"][0]["bytes"], &curve["ram_rows"][0]["origin"]["share"]),
            (&json!(1 << 20), &json!(0.75))
        );
        api.end(api.ask("POST", "/v1/volumes/v/stop", ""));
        assert_eq!(api.ask("GET", "/v1/volumes/v/curve", "").0, 409);
    }

    #[test]
    fn an_operation_that_fails_says_why_where_it_is_polled() {
        let api = Api::new();
        api.host.failing.lock().expect("not poisoned").push("create v".to_owned());
        let ended = api.end(api.ask("POST", "/v1/volumes", &api.create_body()));
        assert_eq!(ended.state, OperationState::Failed);
        assert_eq!(ended.error.map(|error| error.message).as_deref(), Some("told to fail"));
    }

    #[test]
    fn the_table_of_settings_and_the_daemon_can_be_read() {
        let api = Api::new();
        let (_, knobs) = api.ask("GET", "/v1/knobs", "");
        assert_eq!(knobs["knobs"][0]["name"], "mode");
        let (_, profiles) = api.ask("GET", "/v1/profiles", "");
        assert_eq!(profiles["profiles"][1]["name"], "bcache");
        let (_, daemon) = api.ask("GET", "/v1/daemon", "");
        assert_eq!(daemon["pid"], std::process::id());
    }
}
