//! Commands of operators, and their reports.

use std::time::Duration;

use forebay_admin::{ErrorBody, ErrorKind, Operation, OperationId, OperationState};
use forebay_daemon::embedded::{ApiResponse, Embedded};
use forebay_threads::{Instant, sleep};
use serde_json::{Value, json};

use crate::shelf::{REMOTE, Shelf};

/// Interval at which an operator checks an operation.
const LOOK: Duration = Duration::from_millis(40);

/// Names of volumes, and their origins. Some volumes share an origin.
pub(crate) const VOLUMES: [(&str, &str); 5] =
    [("a", "o1"), ("b", "o2"), ("y", "o1"), ("r", REMOTE), ("s", REMOTE)];

/// The cache devices. "foreign" contains data of another system; [`MOVED`] is the first device
/// under another name.
pub(crate) const CACHES: [&str; 4] = ["c1", "c2", "foreign", "moved"];

/// Index in [`CACHES`] of the other name of the first device.
pub(crate) const MOVED: usize = 3;

/// A verb with its arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    /// On a cache device.
    Create {
        cache: usize,
        force: bool,
    },
    Start {
        force: bool,
    },
    Stop,
    /// Changes the threshold of dirty data, which no other command changes, and the policy, which
    /// all volumes of a cache share: an odd threshold selects LRU.
    Set {
        dirty_high: u64,
    },
    /// The mode: writethrough or writeback.
    Mode {
        through: bool,
    },
    Flush,
    Drop,
    Delete {
        discard: bool,
    },
}

impl Verb {
    /// Every verb, once with each relevant argument.
    pub(crate) const ALL: [Verb; 12] = [
        Verb::Create { cache: 0, force: false },
        Verb::Create { cache: 1, force: false },
        Verb::Create { cache: 2, force: true },
        Verb::Start { force: false },
        Verb::Start { force: true },
        Verb::Stop,
        Verb::Set { dirty_high: 77 },
        Verb::Mode { through: true },
        Verb::Flush,
        Verb::Drop,
        Verb::Delete { discard: false },
        Verb::Delete { discard: true },
    ];
}

/// A command to a daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OperatorCommand {
    pub(crate) verb: Verb,
    /// Index in [`VOLUMES`].
    pub(crate) volume: usize,
    /// Time after the beginning of the command at which the operator presses Ctrl-C.
    pub(crate) cancel: Option<Duration>,
}

/// The result of a command, as far as the operator knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Report {
    Done,
    Failed(ErrorKind, String),
    /// The command can no longer be withdrawn, and has not ended.
    UnderWay,
    /// The daemon has ended.
    Unknown,
}

/// Prefixes of the error messages of commands that failed and yet took effect: a stop that lost
/// data, and a change that may not be durable.
const IN_EFFECT: [&str; 2] =
    ["it is stopped, but not in order", "it is in force, but a power cut may undo it"];

impl Report {
    /// Returns whether the command was refused because an earlier command on the volume was given
    /// up.
    pub(crate) fn is_behind_abandoned(&self) -> bool {
        matches!(self, Report::Failed(_, why) if why.starts_with("an abandoned operation on"))
    }

    /// Returns whether the operator was told that the command took effect.
    pub(crate) fn took_effect(&self) -> bool {
        match self {
            Report::Done => true,
            Report::Failed(_, why) => IN_EFFECT.iter().any(|prefix| why.starts_with(prefix)),
            Report::UnderWay | Report::Unknown => false,
        }
    }

    /// Returns whether the operator of a creation was told that it has overwritten the cache
    /// device.
    pub(crate) fn has_overwritten(&self) -> bool {
        let said = |why: &str| why.contains(" overwritten: ");
        self.took_effect() || matches!(self, Report::Failed(_, why) if said(why))
    }
}

/// A command and its report.
#[derive(Clone, Debug)]
pub(crate) struct Issued {
    pub(crate) command: OperatorCommand,
    /// The operation's number. `None` if the command was refused before it became an operation.
    pub(crate) id: Option<OperationId>,
    pub(crate) report: Report,
}

impl OperatorCommand {
    fn name(&self) -> &'static str {
        VOLUMES[self.volume].0
    }

    fn request(&self, shelf: &Shelf) -> (String, Value) {
        let (name, origin) = VOLUMES[self.volume];
        let of = |verb: &str| format!("/v1/volumes/{name}/{verb}");
        match self.verb {
            Verb::Create { cache, force } => {
                let (cache, origin) = (shelf.path(CACHES[cache]), shelf.path(origin));
                let body = json!({"name": name, "cache": cache, "origin": origin, "force": force});
                ("/v1/volumes".to_owned(), body)
            }
            Verb::Start { force } => (of("start"), json!({ "force": force })),
            Verb::Stop => (of("stop"), Value::Null),
            Verb::Set { dirty_high } => {
                let policy = if dirty_high % 2 == 1 { "lru" } else { "s3-fifo" };
                (of("set"), json!({"settings": {"dirty_high": dirty_high, "policy": policy}}))
            }
            Verb::Mode { through } => {
                let mode = if through { "writethrough" } else { "writeback" };
                (of("set"), json!({"settings": {"mode": mode}}))
            }
            Verb::Flush => (of("flush"), Value::Null),
            Verb::Drop => (of("drop"), Value::Null),
            Verb::Delete { discard } => (of("delete"), json!({ "discard_dirty": discard })),
        }
    }

    /// Sends the command, and follows it as the command line does.
    pub(crate) fn issue(&self, daemon: &Embedded, shelf: &Shelf) -> Issued {
        let (target, body) = self.request(shelf);
        let (id, report) = self.follow(daemon, daemon.ask("POST", &target, &body));
        Issued { command: *self, id, report }
    }

    fn follow(&self, daemon: &Embedded, answer: ApiResponse) -> (Option<OperationId>, Report) {
        let begun = Instant::now();
        let mut operation = match operation_in(answer) {
            Ok(operation) => operation,
            Err(report) => return (None, report),
        };
        let id = operation.id;
        let mut cancelled = false;
        loop {
            match (operation.state, operation.error) {
                (OperationState::Done, _) => return (Some(id), Report::Done),
                (OperationState::Failed, error) => {
                    let error = error.map(|error| (error.kind, error.message));
                    let (kind, message) = error.unwrap_or((ErrorKind::Failed, String::new()));
                    let report = match kind {
                        ErrorKind::UnderWay => Report::UnderWay,
                        _ => Report::Failed(kind, message),
                    };
                    return (Some(id), report);
                }
                (OperationState::Running, Some(_)) => return (Some(id), Report::UnderWay),
                (OperationState::Running, None) => {}
            }
            if !cancelled && self.cancel.is_some_and(|after| begun.elapsed() >= after) {
                cancelled = true;
                daemon.ask("POST", &format!("/v1/operations/{id}/cancel"), &Value::Null);
            }
            sleep(LOOK);
            match operation_in(daemon.ask("GET", &format!("/v1/operations/{id}"), &Value::Null)) {
                Ok(now) => operation = now,
                Err(_) => return (Some(id), Report::Unknown),
            }
        }
    }
}

fn operation_in(answer: ApiResponse) -> Result<Operation, Report> {
    if answer.status < 300
        && let Ok(operation) = serde_json::from_value(answer.body.clone())
    {
        return Ok(operation);
    }
    Err(match serde_json::from_value::<ErrorBody>(answer.body) {
        Ok(ErrorBody { error }) if error.kind == ErrorKind::UnderWay => Report::UnderWay,
        Ok(ErrorBody { error }) => Report::Failed(error.kind, error.message),
        Err(error) => Report::Failed(ErrorKind::Failed, error.to_string()),
    })
}

impl std::fmt::Display for Issued {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Issued { command, id, report } = self;
        let id = id.map_or("-".to_owned(), |id| id.to_string());
        write!(f, "#{id} {:?} {}", command.verb, command.name())?;
        if let Some(after) = command.cancel {
            write!(f, ", cancelled after {after:?}")?;
        }
        write!(f, ": {report:?}")
    }
}
