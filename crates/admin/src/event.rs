//! Events of volumes, devices and the daemon, for operators and programs.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use time::OffsetDateTime;

use crate::name::VolumeName;

/// The importance of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Normal operation, or an operator's request.
    Info,
    /// A fault that has lost no data.
    Warning,
    /// Data is lost or may be.
    Error,
}

impl Severity {
    /// Returns the name of this severity, as in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Severity::Info => "info",
            Severity::Warning => "warning",
            Severity::Error => "error",
        }
    }
}

macro_rules! kinds {
    ($($kind:ident $name:literal $severity:ident $help:literal;)*) => {
        /// The kind of an event. The names are stable: kinds are added, never renamed or removed.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
        pub enum EventKind {
            $(#[doc = $help] #[serde(rename = $name)] $kind,)*
        }

        impl EventKind {
            /// Every kind.
            pub const ALL: &[EventKind] = &[$(EventKind::$kind),*];

            /// Returns the name, as in JSON.
            pub fn name(self) -> &'static str {
                match self {
                    $(EventKind::$kind => $name,)*
                }
            }

            /// Returns the importance of events of this kind.
            pub fn severity(self) -> Severity {
                match self {
                    $(EventKind::$kind => Severity::$severity,)*
                }
            }

            /// Returns the meaning of the event in one sentence, with the names of its fields.
            pub fn help(self) -> &'static str {
                match self {
                    $(EventKind::$kind => $help,)*
                }
            }
        }
    };
}

kinds! {
    DaemonStarted "daemon-started" Info "The daemon has started. `version`; `after`: the end of the daemon before it: `stop`, `crash`, or `nothing` if none is known.";
    DaemonStopped "daemon-stopped" Info "The daemon has ended on request. `clean`: whether everything was stopped in order.";
    HandedOver "handed-over" Info "Another program has taken over from the running one, without disconnecting clients. `from` and `to`: their versions.";
    MemoryLimitChanged "memory-limit-changed" Info "The memory limit of the daemon was changed. `from` and `to` in bytes.";
    Created "created" Info "A volume was created. `origin`, `cache`, `mode`.";
    Adopted "adopted" Info "A volume was adopted from its cache device. `origin`, `cache`.";
    Deleted "deleted" Info "A volume was deleted. `discard_dirty`: whether its dirty blocks were discarded.";
    Started "started" Info "A volume is served. `forced`.";
    OriginChanged "origin-changed" Warning "The origin of a volume was written elsewhere while it was stopped, and clean blocks of the cache were dropped. `evidence`: the sign of that; `compared`, `differing`, `dropped`: numbers of blocks.";
    StartFailed "start-failed" Warning "A volume cannot be served. `error`.";
    Stopped "stopped" Info "A volume is no longer served, at an operator's request. `forced`.";
    ModeSwitched "mode-switched" Info "The mode of a volume was changed. `from`, `to`.";
    SettingChanged "setting-changed" Info "Another setting was changed. `setting`, `from`, `to`.";
    Drained "drained" Info "The dirty blocks of a volume were written to its origin at an operator's request. `bytes`.";
    Pinned "pinned" Info "Ranges of a volume were pinned. `ranges`, `bytes`.";
    Unpinned "unpinned" Info "Ranges of a volume are no longer pinned; without `ranges`, nothing is pinned any more. `ranges`, `bytes`.";
    RecoveredAfterCrash "recovered-after-crash" Info "A cache was not closed in order, and its content was recovered from its log. `milliseconds`.";
    SlowDevice "slow-device" Warning "A device does not answer. The `device` of the event names it if a start or stop waits for it.";
    Degraded "degraded" Warning "Requests to a device of a volume fail or hang; the volume is served as far as possible. `cause`: `cache-failed` (nothing new is written to it), `cache-errors`, `cache-hangs`, `origin-failed`, `origin-hangs`, `origin-shrunk`, `origin-read-only`, `origin-displaced` and `cache-displaced` (the path leads elsewhere), `origin-fenced` or `data-lost`; `error`.";
    ExportLost "export-lost" Warning "Another program has ended the block device of a volume; the volume gets another device. `former`: the device that it had.";
    Recovered "recovered" Info "A volume that was degraded is served normally again. `seconds`: the time for which it was degraded.";
    DataLost "data-lost" Error "Dirty blocks cannot be read any more. `ranges` and `bytes`: the lost data of the volume in all.";
    OperationFailed "operation-failed" Warning "A command on a volume failed. `verb`, `error`.";
}

impl fmt::Display for EventKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The text names no kind of event.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there are no events of the kind '{given}'; write one of {}", names())]
pub struct EventKindError {
    given: String,
}

fn names() -> String {
    EventKind::ALL.iter().map(|kind| kind.name()).collect::<Vec<_>>().join(", ")
}

impl FromStr for EventKind {
    type Err = EventKindError;

    fn from_str(text: &str) -> Result<Self, EventKindError> {
        let found = EventKind::ALL.iter().find(|kind| kind.name() == text);
        let given = || text.escape_debug().take(40).collect();
        found.copied().ok_or_else(|| EventKindError { given: given() })
    }
}

/// Returns the table of all kinds, for the help.
pub fn help_text() -> String {
    let rows = EventKind::ALL.iter().map(|kind| {
        let lines = forebay_settings::help::wrapped(&kind.help().replace('`', ""), 72);
        let severity = kind.severity().name();
        format!("  {kind} ({severity})\n      {}\n", lines.join("\n      "))
    });
    format!("Kinds of events, and their fields in JSON:\n{}", rows.collect::<String>())
}

/// Number of an event. Numbers increase, also over restarts of the daemon: they are microseconds
/// since 1970, or one more than the one before.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Default,
    Serialize,
    Deserialize,
    JsonSchema,
)]
#[serde(transparent)]
pub struct EventId(pub u64);

/// An event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Event {
    /// Its number.
    pub id: EventId,
    /// When it was noticed, as RFC 3339 in UTC.
    #[serde(with = "time::serde::rfc3339")]
    #[schemars(schema_with = "crate::schema::time")]
    pub time: OffsetDateTime,
    /// Its kind.
    pub kind: EventKind,
    /// Its importance.
    pub severity: Severity,
    /// The volume that it is about, if it is about one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume: Option<VolumeName>,
    /// The device that it is about, as the operator named it, if it is about one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// The event in one sentence.
    pub message: String,
    /// Details by their names, which [`EventKind::help`] explains.
    #[serde(default)]
    pub fields: BTreeMap<String, Value>,
}

/// The answer to `GET /v1/events`.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct EventList {
    /// The events, oldest first.
    pub events: Vec<Event>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn event_kinds_have_one_kebab_case_name_in_json_and_as_argument() {
        for kind in EventKind::ALL {
            let json = serde_json::to_value(kind).expect("plain data");
            assert_eq!(json.as_str(), Some(kind.name()));
            assert_eq!(kind.name().parse(), Ok(*kind));
            assert!(kind.name().bytes().all(|byte| byte == b'-' || byte.is_ascii_lowercase()));
            let severity = serde_json::to_value(kind.severity()).expect("plain data");
            assert_eq!(severity.as_str(), Some(kind.severity().name()));
        }
        let error = "explodes".parse::<EventKind>().expect_err("no kind").to_string();
        assert!(error.contains("daemon-started, "), "{error}");
    }

    #[test]
    fn an_event_is_the_same_after_json() {
        let line = r#"{"id":7,"time":"2026-01-02T03:04:05.5Z","kind":"drained","severity":"info","volume":"v","message":"m","fields":{"bytes":4096}}"#;
        let event: Event = serde_json::from_str(line).expect("an event");
        assert_eq!((event.id, event.kind, &event.device), (EventId(7), EventKind::Drained, &None));
        assert_eq!(serde_json::to_string(&event).expect("plain data"), line);
    }
}
