//! The record of a world's events and failures.

use forebay_threads::{Mutex, Simulation};

/// Violations and events of a world.
#[derive(Clone, Debug, Default)]
pub(crate) struct WorldNotes {
    pub(crate) wrong: Vec<String>,
    pub(crate) events: Vec<String>,
    pub(crate) commands: u64,
    pub(crate) requests: u64,
}

/// Adds an event, with the virtual time.
pub(crate) fn note(notes: &Mutex<WorldNotes>, what: impl std::fmt::Display) {
    let now = Simulation::current().map_or(0, |it| it.clock().now().0 / 1_000_000);
    let event = format!("{now:>8} ms  {what}");
    tracing::info!("{event}");
    notes.lock().events.push(event);
}
