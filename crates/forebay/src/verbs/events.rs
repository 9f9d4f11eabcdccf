//! `forebay events`: prints what happened, and what happens.

use std::time::Duration;

use forebay_admin::{ApiError, Event, EventId, EventList, Severity};
use form_urlencoded::Serializer;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::cli::EventsArgs;
use crate::client::Client;
use crate::exit::Outcome;
use crate::output::print_more;

/// How long to wait for a daemon that has ended.
const RECONNECT: Duration = Duration::from_secs(1);

/// Prints events, and goes on until it is interrupted if it has to follow them.
pub(super) fn run(client: &Client, args: &EventsArgs) -> Outcome {
    let list: EventList = client.get(&format!("/events?{}", query(args, None)))?;
    let mut last = EventId(0);
    for event in &list.events {
        if !print(event, args.json)? {
            return Ok(());
        }
        last = event.id;
    }
    let mut goes_on = args.follow;
    while goes_on {
        let path = format!("/events?{}", query(args, Some(last)));
        goes_on = client.follow(&path, |data| {
            // Kinds that a later daemon has added are left out.
            let Ok(event) = serde_json::from_str::<Event>(data) else { return Ok(true) };
            last = event.id;
            print(&event, args.json)
        })?;
        if goes_on {
            std::thread::sleep(RECONNECT);
        }
    }
    Ok(())
}

/// Returns the query for the events that are wanted, of all or of those after one.
fn query(args: &EventsArgs, after: Option<EventId>) -> String {
    let mut query = Serializer::new(String::new());
    if let Some(name) = &args.name {
        query.append_pair("volume", name.as_str());
    }
    if !args.kinds.is_empty() {
        let kinds: Vec<&str> = args.kinds.iter().map(|kind| kind.name()).collect();
        query.append_pair("kind", &kinds.join(","));
    }
    if let Some(since) = args.since.and_then(|since| since.format(&Rfc3339).ok()) {
        query.append_pair("since", &since);
    }
    match (after, args.limit) {
        (Some(EventId(after)), _) => _ = query.append_pair("after", &after.to_string()),
        (None, Some(limit)) => _ = query.append_pair("limit", &limit.to_string()),
        (None, None) => {}
    }
    query.finish()
}

/// Prints an event; returns whether anybody reads it.
fn print(event: &Event, as_json: bool) -> Result<bool, ApiError> {
    let text = match as_json {
        true => {
            serde_json::to_string(event).map_err(|error| ApiError::failed(error.to_string()))?
        }
        false => line(event),
    };
    print_more(format!("{text}\n").as_bytes())
}

/// Returns the line for an event. The name of the volume is in its message.
pub(super) fn line(event: &Event) -> String {
    let time = event.time.replace_nanosecond(0).unwrap_or(OffsetDateTime::UNIX_EPOCH);
    let time = time.format(&Rfc3339).unwrap_or_default();
    let mark = match event.severity {
        Severity::Info => "",
        Severity::Warning => "warning: ",
        Severity::Error => "ERROR: ",
    };
    format!("{time}  {:<22}  {mark}{}", event.kind, event.message)
}
