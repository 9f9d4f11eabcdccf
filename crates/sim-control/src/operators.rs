//! Operators, which give commands and consent to overwriting.

use std::time::Duration;

use forebay_admin::OperationState;
use forebay_admin::operation::OperationList;
use forebay_daemon::embedded::Embedded;
use forebay_threads::{Instant, Mutex, sleep};
use serde_json::Value;

use crate::command::{CACHES, Issued, OperatorCommand, Report, VOLUMES, Verb};
use crate::model::{Model, origin_of};
use crate::notes::{WorldNotes, note};
use crate::shelf::Shelf;

/// Returns two operations that run on one volume simultaneously although the later one does not
/// supersede the other.
pub(crate) fn crowd(daemon: &Embedded) -> Option<String> {
    let answer = daemon.ask("GET", "/v1/operations", &Value::Null);
    let list: OperationList = serde_json::from_value(answer.body).unwrap_or_default();
    let running: Vec<_> =
        list.operations.iter().filter(|it| it.state == OperationState::Running).collect();
    running.iter().enumerate().find_map(|(at, later)| {
        let earlier = running[..at].iter().find(|it| it.volume == later.volume)?;
        let supersedes = ["stop", "delete"].contains(&later.verb.as_str());
        let said =
            || format!("'{}' and '{}' of {} run at once", earlier.verb, later.verb, later.volume);
        (!supersedes).then(said)
    })
}

/// Ends the consent of a command that ended after its operator had stopped waiting.
pub(crate) fn end_consent(shelf: &Shelf, model: &Mutex<Model>, issued: &Issued) {
    let has_ended = matches!(issued.report, Report::Done | Report::Failed(..));
    if !has_ended {
        return;
    }
    match issued.command.verb {
        Verb::Create { cache, force: true } => {
            if let Some(media) = shelf.at(&shelf.path(CACHES[cache])) {
                media.end_consent(issued.report.has_overwritten());
            }
        }
        Verb::Delete { discard: true } => model.lock().discard(issued.command.volume, false),
        _ => {}
    }
}

/// Gives a command, waits for its report, and applies the report to the model.
pub(crate) fn give(
    daemon: &Embedded,
    shelf: &Shelf,
    model: &Mutex<Model>,
    (issued, notes): (&Mutex<Vec<Issued>>, &Mutex<WorldNotes>),
    command: OperatorCommand,
) -> Report {
    // If the daemon is killed meanwhile, the operator learns no more than this.
    let place = {
        let mut issued = issued.lock();
        issued.push(Issued { command, id: None, report: Report::Unknown });
        issued.len() - 1
    };
    // The consent lasts until the operator is told that the command has ended.
    match command.verb {
        Verb::Create { cache, force: true } => {
            if let Some(media) = shelf.at(&shelf.path(CACHES[cache])) {
                media.consent();
            }
        }
        Verb::Delete { discard: true } => model.lock().discard(command.volume, true),
        _ => {}
    }
    let ended = command.issue(daemon, shelf);
    end_consent(shelf, model, &ended);
    note(notes, &ended);
    notes.lock().commands += 1;
    let report = ended.report.clone();
    match command.verb {
        Verb::Stop if report == Report::Done => {
            check_let_go(daemon, shelf, (issued, notes), (command, place));
        }
        Verb::Stop if report.took_effect() => {
            model.lock().lose_unflushed(origin_of(command.volume))
        }
        _ => {}
    }
    if let Some(own) = issued.lock().get_mut(place) {
        *own = ended;
    }
    report
}

/// Checks that a stopped volume releases its origin, unless another command uses it.
fn check_let_go(
    daemon: &Embedded,
    shelf: &Shelf,
    (issued, notes): (&Mutex<Vec<Issued>>, &Mutex<WorldNotes>),
    (command, place): (OperatorCommand, usize),
) {
    let (name, origin) = VOLUMES[command.volume];
    let path = format!("/v1/reports/{name}");
    let media = shelf.named(origin).expect("added");
    let begun = Instant::now();
    while media.is_claimed() {
        let is_other = |it: &Issued| origin_of(it.command.volume) == origin_of(command.volume);
        let others = issued.lock().iter().enumerate().any(|(at, it)| {
            at != place && is_other(it) && (at > place || it.report == Report::Unknown)
        });
        if others {
            return;
        }
        if begun.elapsed() > Duration::from_secs(3) {
            let state = &daemon.ask("GET", &path, &Value::Null).body["state"];
            let wrong =
                format!("{name} was reported as stopped, and is {state}, and {origin} is in use");
            notes.lock().wrong.push(wrong);
            return;
        }
        sleep(Duration::from_millis(50));
    }
}
