//! Events of volumes, devices and the daemon, kept over restarts and crashes.
//!
//! - [`file`](mod@file): the file, bounded in size
//! - `programs`: events of the daemon itself
//! - [`query`]: which events a client requests
//! - [`stream`]: sends events to a client as they happen, as server-sent events
//!
//! The latest events are in memory, from which clients are answered. A separate thread writes them
//! to the file: neither a volume nor a command waits for it. If the file cannot be written, only
//! the events before the next start are lost.

pub(crate) mod file;
mod programs;
pub(crate) mod query;
pub(crate) mod stream;

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, TrySendError};
use std::time::Duration;

use forebay_admin::error::one_line;
use forebay_admin::{Event, EventId, EventKind, VolumeName};
use forebay_threads::{Mutex, Receiver, SyncSender, sync_channel};
use serde_json::Value;
use time::OffsetDateTime;
use tokio::sync::{Semaphore, watch};

use file::{EventFile, MAX_BYTES};
use query::Query;

/// Longest text in an event, in bytes.
const MAX_TEXT: usize = 1024;

/// Most events that wait to be written.
const QUEUE: usize = 1024;

/// Interval between attempts to write events that could not be written.
const RETRY: Duration = Duration::from_secs(10);

/// Most clients that follow the events at a time.
const MAX_FOLLOWERS: usize = 8;

/// An event that has not been recorded yet.
pub(crate) struct NewEvent {
    kind: EventKind,
    volume: Option<VolumeName>,
    device: Option<String>,
    message: String,
    fields: BTreeMap<String, Value>,
}

impl NewEvent {
    /// Creates an event without fields; `message` is one sentence.
    pub(crate) fn new(kind: EventKind, message: impl AsRef<str>) -> Self {
        let message = shortened(&one_line(message.as_ref()));
        NewEvent { kind, volume: None, device: None, message, fields: BTreeMap::new() }
    }

    /// Sets the volume.
    pub(crate) fn volume(mut self, name: &VolumeName) -> Self {
        self.volume = Some(name.clone());
        self
    }

    /// Sets the device, by the name that the operator gave it.
    pub(crate) fn device(mut self, device: &str) -> Self {
        self.device = Some(shortened(device));
        self
    }

    /// Adds a field.
    pub(crate) fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        let value = match value.into() {
            Value::String(text) => Value::String(shortened(&text)),
            other => other,
        };
        self.fields.insert(name.to_owned(), value);
        self
    }
}

fn shortened(text: &str) -> String {
    let end = text.floor_char_boundary(MAX_TEXT);
    if end < text.len() { format!("{}...", &text[..end]) } else { text.to_owned() }
}

/// The latest events, as many as the file holds.
#[derive(Default)]
struct Recent {
    events: VecDeque<(usize, Event)>,
    bytes: usize,
    last: EventId,
}

impl Recent {
    fn push(&mut self, bytes: usize, event: Event) {
        self.last = self.last.max(event.id);
        self.bytes += bytes;
        self.events.push_back((bytes, event));
        while self.bytes as u64 > MAX_BYTES
            && let Some((bytes, _)) = self.events.pop_front()
        {
            self.bytes -= bytes;
        }
    }
}

/// Work of the writing thread.
enum WriterJob {
    Write(Vec<u8>),
    /// Answers when everything before has been written, or could not be.
    Answer(SyncSender<()>),
}

/// See the module.
pub(crate) struct Events {
    recent: Mutex<Recent>,
    /// Numbers of recorded events, by kind in the order of their declaration.
    counts: Vec<AtomicU64>,
    newest: watch::Sender<EventId>,
    jobs: SyncSender<WriterJob>,
    followers: Arc<Semaphore>,
}

impl Events {
    /// Reads the events of a state directory, and starts the thread that writes new ones. As long
    /// as no usable file exists, events are only in memory.
    pub(crate) fn open(state_dir: &Path) -> Arc<Self> {
        let mut recent = Recent::default();
        for (line, event) in file::read(state_dir) {
            recent.push(line.len() + 1, event);
        }
        let (jobs, todo) = sync_channel(QUEUE);
        let file = EventFile::new(state_dir);
        if let Err(error) = forebay_threads::spawn("events", move || write_all(file, &todo)) {
            tracing::error!("no thread to write events: {error}");
        }
        Arc::new(Events {
            newest: watch::Sender::new(recent.last),
            recent: Mutex::new(recent),
            counts: EventKind::ALL.iter().map(|_| AtomicU64::new(0)).collect(),
            jobs,
            followers: Arc::new(Semaphore::new(MAX_FOLLOWERS)),
        })
    }

    /// Records an event. Waits for no file.
    pub(crate) fn record(&self, new: NewEvent) {
        let NewEvent { kind, volume, device, message, fields } = new;
        let time = OffsetDateTime::now_utc();
        self.counts[kind as usize].fetch_add(1, Ordering::Relaxed);
        let mut recent = self.recent.lock();
        let micros = u64::try_from(time.unix_timestamp_nanos() / 1000).unwrap_or(0);
        let id = EventId(micros.max(recent.last.0.saturating_add(1)));
        let severity = kind.severity();
        let event = Event { id, time, kind, severity, volume, device, message, fields };
        let mut line = serde_json::to_vec(&event).unwrap_or_default();
        line.push(b'\n');
        recent.push(line.len(), event);
        // Sent with the list locked, so that the file has the events in the same order.
        if let Err(TrySendError::Full(_)) = self.jobs.try_send(WriterJob::Write(line)) {
            tracing::warn!("an event is not kept: {QUEUE} others wait for the state directory");
        }
        drop(recent);
        self.newest.send_replace(id);
    }

    /// Returns the events that a client requests, oldest first.
    pub(crate) fn list(&self, query: &Query) -> Vec<Event> {
        self.batch(query).0
    }

    /// Returns the events of [`Events::list`], with the number of the newest event that was
    /// considered.
    fn batch(&self, query: &Query) -> (Vec<Event>, EventId) {
        let recent = self.recent.lock();
        let newer = recent.events.iter().rev().map(|(_, event)| event);
        let newer = newer.take_while(|event| event.id > query.after);
        let wanted = newer.filter(|event| query.wants(event));
        let mut found: Vec<Event> = wanted.take(query.limit).cloned().collect();
        found.reverse();
        (found, recent.last)
    }

    /// Returns the newest event of these kinds.
    pub(crate) fn last_of(&self, kinds: &[EventKind]) -> Option<Event> {
        let query = Query { kinds: kinds.to_vec(), limit: 1, ..Query::default() };
        self.list(&query).pop()
    }

    /// Returns how many events of each kind were recorded since the daemon started.
    pub(crate) fn counts(&self) -> impl Iterator<Item = (EventKind, u64)> {
        let counts = self.counts.iter().map(|count| count.load(Ordering::Relaxed));
        EventKind::ALL.iter().copied().zip(counts)
    }

    /// Waits until all recorded events are written or cannot be written, for at most `patience`.
    pub(crate) fn settle(&self, patience: Duration) {
        let (tell, told) = sync_channel(1);
        if self.jobs.try_send(WriterJob::Answer(tell)).is_ok() {
            let _ = told.recv_timeout(patience);
        }
    }
}

/// Writes events until the channel is closed.
fn write_all(mut file: EventFile, todo: &Receiver<WriterJob>) {
    loop {
        match todo.recv_timeout(RETRY) {
            Ok(WriterJob::Write(line)) => file.add(line),
            Ok(WriterJob::Answer(tell)) => {
                file.write();
                let _ = tell.send(());
            }
            Err(RecvTimeoutError::Timeout) => file.write(),
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use forebay_testkit::TempDir;

    fn pinned(number: u64) -> NewEvent {
        NewEvent::new(EventKind::Pinned, "ranges were\npinned").with("bytes", number)
    }

    fn numbers(events: &Events, query: &Query) -> Vec<Value> {
        events.list(query).into_iter().map(|event| event.fields["bytes"].clone()).collect()
    }

    #[test]
    fn events_survive_a_restart_with_growing_numbers() {
        let dir = TempDir::new("events");
        for round in 0..3 {
            let events = Events::open(dir.path());
            for number in 0..100 {
                events.record(pinned(round * 100 + number));
            }
            events.settle(Duration::from_secs(60));
            let all = events.list(&Query::default());
            assert_eq!(all.len() as u64, (round + 1) * 100);
            assert!(all.is_sorted_by(|one, next| one.id < next.id));
            assert_eq!(all[0].message, "ranges were pinned");
            let count = events.counts().find(|(kind, _)| *kind == EventKind::Pinned);
            assert_eq!(count, Some((EventKind::Pinned, 100)));
        }
        let events = Events::open(dir.path());
        let last = Query { limit: 2, ..Query::default() };
        assert_eq!(numbers(&events, &last), [json!(298), json!(299)]);
        let after = events.list(&last)[0].id;
        assert_eq!(numbers(&events, &Query { after, ..Query::default() }), [json!(299)]);
        assert!(events.last_of(&[EventKind::Deleted]).is_none());
        assert!(events.last_of(&[EventKind::Deleted, EventKind::Pinned]).is_some());
    }

    #[test]
    fn long_texts_are_cut_and_memory_is_bounded_as_the_file_is() {
        let dir = TempDir::new("events-bounded");
        let events = Events::open(dir.path());
        for _ in 0..3000 {
            let text = "ä".repeat(MAX_TEXT);
            events.record(NewEvent::new(EventKind::Degraded, &text).with("error", text));
        }
        events.settle(Duration::from_secs(60));
        let kept = events.recent.lock();
        assert!(kept.bytes as u64 <= MAX_BYTES && kept.events.len() > 400);
        assert!(kept.events.iter().all(|(bytes, _)| *bytes < 3 * MAX_TEXT));
    }

    #[test]
    fn events_stay_in_memory_until_the_directory_can_be_written() {
        let dir = TempDir::new("events-nowhere");
        let events = Events::open(&dir.path().join("absent"));
        events.record(pinned(1));
        events.settle(Duration::from_secs(60));
        assert_eq!(numbers(&events, &Query::default()), [json!(1)]);
        // The event is written once the directory exists.
        std::fs::create_dir(dir.path().join("absent")).expect("writable");
        events.settle(Duration::from_secs(60));
        assert_eq!(file::read(&dir.path().join("absent")).len(), 1);
    }
}
