//! `forebay events`: prints past events, and follows new ones.

use std::time::Duration;

use clap::Args;
use forebay_admin::{ApiError, Event, EventId, EventKind, EventList, Severity, VolumeName, api};
use form_urlencoded::Serializer;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::client::{DaemonClient, parse};
use crate::exit::VerbResult;
use crate::output::print_more;
use crate::values::WordParser;
use forebay_daemon::events_since;

/// Arguments of `events`.
#[derive(Debug, Args)]
pub(crate) struct EventsArgs {
    /// Only those about this volume
    pub(crate) name: Option<VolumeName>,

    /// Print further events as they happen, also of the next daemon
    #[arg(short = 'f', long)]
    pub(crate) follow: bool,

    /// Only since then: how long ago, like 30m or 2h, or a time like 2026-01-31T15:04:05Z
    #[arg(long, value_name = "TIME", value_parser = events_since)]
    pub(crate) since: Option<OffsetDateTime>,

    /// Only of these kinds, separated by commas, like degraded,recovered
    #[arg(long = "kind", value_name = "KIND", value_delimiter = ',')]
    #[arg(value_parser = WordParser(EventKind::ALL), hide_possible_values = true)]
    pub(crate) kinds: Vec<EventKind>,

    /// Print at most this many events, the newest
    #[arg(short = 'n', long, value_name = "N")]
    pub(crate) limit: Option<usize>,

    /// Print JSON, one event per line
    #[arg(long)]
    pub(crate) json: bool,
}

/// Interval between attempts to reach a daemon that has ended.
const RECONNECT: Duration = Duration::from_secs(1);

/// Prints events, and follows new ones until it is interrupted if that is requested.
pub(crate) fn run(client: &DaemonClient, args: &EventsArgs) -> VerbResult {
    let path = |after| format!("{}?{}", api::EVENTS.path(&()), query(args, after));
    let list: EventList = parse(&client.get_raw(&path(None))?)?;
    let mut last = EventId(0);
    for event in &list.events {
        if !print(event, args.json)? {
            return Ok(());
        }
        last = event.id;
    }
    let mut goes_on = args.follow;
    while goes_on {
        goes_on = client.follow(&path(Some(last)), |data| {
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

/// Prints an event; returns false once the reader has closed stdout.
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
