//! The admin API.
//!
//! - `routes`: the table of routes; `route`: finds the route of a request and runs it
//! - `openapi`: the description of the API, which is also in `docs/openapi.json`

mod openapi;
mod route;
mod routes;

use std::sync::Arc;

use forebay_admin::{ApiError, ErrorKind};

use super::http::{HttpAnswer, HttpRequest};
use super::volumes::Volumes;

/// Answers one request.
pub(crate) fn answer(volumes: &Arc<Volumes>, request: &HttpRequest) -> HttpAnswer {
    let answered = match route::find(&routes::ROUTES, volumes, request) {
        Some((route, call)) => route.answer(&call),
        None => {
            let message = format!("there is no such path for {} in the admin API", request.method);
            Err(ApiError::new(ErrorKind::NotFound, message))
        }
    };
    answered.unwrap_or_else(|error| HttpAnswer::error(&error))
}

#[cfg(test)]
mod tests {
    use forebay_admin::{Operation, OperationState};
    use serde_json::{Value, json};

    use super::*;
    use crate::http::ResponseBody;
    use crate::state::State;
    use crate::testing::FakeHost;
    use crate::volumes::Programs;
    use forebay_testkit::TempDir;

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
            let ResponseBody::Whole(body) = answer.body else { panic!("{target} has no end") };
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
        let (status, reports) = api.ask("GET", "/v1/reports", "");
        // The memory of the process changes all the time.
        let steady = |mut report: Value| {
            report["memory"]["resident_bytes"] = json!(0);
            report
        };
        let one = steady(one);
        assert_eq!((status, steady(reports["volumes"][0].clone())), (200, one.clone()));
        let (status, report) = api.ask("GET", "/v1/reports/v", "");
        assert_eq!((status, steady(report)), (200, one));
        assert_eq!(api.ask("GET", "/v1/reports/w", "").0, 404);
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
        let before = api.host.asked.lock().clone();
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
            ("GET", "/v1/volumes/v/curves", "", 404),
            ("GET", "/v1/daemon?x", "", 404),
            ("GET", "/v1/volumes/v/curve?", "", 400),
            ("GET", "/v1/volumes/v/curve?size=1G", "", 400),
            ("GET", "/v1/volumes/v/curve?sizes=", "", 400),
            ("GET", "/v1/volumes/v/curve?sizes=1G,-1", "", 400),
            ("GET", "/v1/volumes/v/curve?sizes=1G&ram=", "", 400),
            ("GET", "/v1/volumes/v/curve?sizes=1G&rom=1G", "", 400),
            ("GET", "/v1/volumes/v/curve?sizes=1G&", "", 400),
            ("GET", "/v1/volumes/w/trace", "", 404),
            ("GET", "/v1/volumes/v/trace?seconds=0", "", 400),
            ("GET", "/v1/volumes/v/trace?seconds=86401", "", 400),
            ("GET", "/v1/volumes/v/trace?second=1", "", 400),
            ("GET", "/v1/volumes/v/trace?seconds=1", "", 409),
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
        assert_eq!(*api.host.asked.lock(), before);
    }

    #[test]
    fn a_hand_over_needs_a_ready_daemon_and_a_capable_program() {
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
        let (status, again) = api.ask("GET", "/v1/memory", "");
        assert_eq!((status, &again["limit_bytes"]), (200, &memory["limit_bytes"]));
        assert_eq!(again["used_bytes"], memory["used_bytes"]);
        assert!(again["resident_bytes"].as_u64().is_some_and(|bytes| bytes > 1 << 20), "{again}");
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
        api.host.failing.lock().push("create v".to_owned());
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
