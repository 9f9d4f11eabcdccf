//! Leaves out repeated messages, like the kernel: a disk that fails must not fill the journal.
//!
//! Messages of one kind come from one place in the program and name the same volume and device.
//! [`BURST`] messages of a kind are logged per [`WINDOW`]; as long as there are too many, one is
//! logged in each following window. A line reports how many were left out. Levels below `info` are
//! not limited, because they are enabled to search for a fault and needed completely.

use std::collections::HashMap;
use std::fmt::{self, Write as _};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tracing::callsite::Identifier;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

/// Messages of one kind that are logged per window.
const BURST: u64 = 10;

/// Length of a window.
const WINDOW: Duration = Duration::from_secs(30);

/// Most kinds that are distinguished; beyond that, all messages from one place in the program are
/// one kind.
const MAX_KINDS: usize = 1024;

/// Most bytes of a message that are repeated in the line about omitted ones.
const SAMPLE: usize = 200;

/// Fields that distinguish kinds.
const ABOUT: [&str; 4] = ["volume", "device", "cache", "origin"];

/// The target of lines about the log itself and of panics, which are not limited.
pub(super) const TARGET: &str = "forebay::log";

/// A kind of messages.
#[derive(Clone, PartialEq, Eq, Hash)]
struct MessageKind {
    site: Identifier,
    /// A hash of the volume and the device that the message names.
    about: u64,
}

/// The messages of one kind in one window.
struct MessageWindow {
    began: Instant,
    /// Number of messages that may be logged.
    burst: u64,
    logged: u64,
    left_out: u64,
    /// The first message that was left out.
    sample: String,
}

impl MessageWindow {
    fn new(began: Instant, burst: u64) -> Self {
        MessageWindow { began, burst, logged: 0, left_out: 0, sample: String::new() }
    }
}

#[derive(Default)]
struct WindowTable {
    windows: HashMap<MessageKind, MessageWindow>,
    /// Counts and samples of windows that have ended.
    ended: Vec<(u64, String)>,
}

/// See the module.
#[derive(Default)]
pub(super) struct Limit {
    table: Mutex<WindowTable>,
    left_out: AtomicU64,
}

impl Limit {
    fn table(&self) -> MutexGuard<'_, WindowTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether a message of this kind may be logged now; `sample` returns its text.
    fn admits(&self, now: Instant, mut kind: MessageKind, sample: impl FnOnce() -> String) -> bool {
        let mut table = self.table();
        let WindowTable { windows, ended } = &mut *table;
        if windows.len() >= MAX_KINDS && !windows.contains_key(&kind) {
            kind.about = 0;
        }
        let window = windows.entry(kind).or_insert_with(|| MessageWindow::new(now, BURST));
        if now.saturating_duration_since(window.began) >= WINDOW {
            let burst = if window.left_out > 0 { 1 } else { BURST };
            let last = std::mem::replace(window, MessageWindow::new(now, burst));
            if last.left_out > 0 {
                ended.push((last.left_out, last.sample));
            }
        }
        if window.logged < window.burst {
            window.logged += 1;
            return true;
        }
        if window.left_out == 0 {
            window.sample = sample();
        }
        window.left_out += 1;
        self.left_out.fetch_add(1, Ordering::Relaxed);
        false
    }

    /// Takes the lines about windows that have ended. After a window with too many messages, the
    /// next one allows fewer.
    fn take(&self, now: Instant, all: bool) -> Vec<(u64, String)> {
        let mut table = self.table();
        let WindowTable { windows, ended } = &mut *table;
        windows.retain(|_, window| {
            if !all && now.saturating_duration_since(window.began) < WINDOW {
                return true;
            }
            if window.left_out == 0 {
                return false;
            }
            let last = std::mem::replace(window, MessageWindow::new(now, 1));
            ended.push((last.left_out, last.sample));
            true
        });
        std::mem::take(ended)
    }

    /// Logs how many messages were left out in windows that have ended.
    pub(super) fn sweep(&self, now: Instant) {
        say(self.take(now, false));
    }

    /// Logs these lines for all windows.
    pub(super) fn finish(&self) {
        say(self.take(Instant::now(), true));
    }

    /// Returns how many messages were left out.
    pub(super) fn left_out(&self) -> u64 {
        self.left_out.load(Ordering::Relaxed)
    }
}

fn say(left_out: Vec<(u64, String)>) {
    for (count, sample) in left_out {
        tracing::warn!(target: TARGET, "{count} similar messages were left out: {sample}");
    }
}

/// The layer of the subscriber that applies the limit.
pub(super) struct LimitLayer(pub(super) Arc<Limit>);

impl<S: Subscriber> Layer<S> for LimitLayer {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        let metadata = event.metadata();
        if *metadata.level() > Level::INFO || metadata.target() == TARGET {
            return true;
        }
        let mut about = About(DefaultHasher::new());
        event.record(&mut about);
        let kind = MessageKind { site: metadata.callsite(), about: about.0.finish() };
        self.0.admits(Instant::now(), kind, || {
            let mut text = MessageText(String::new());
            event.record(&mut text);
            text.0
        })
    }
}

/// Hashes the volume and the device that a message names.
struct About(DefaultHasher);

impl Visit for About {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if ABOUT.contains(&field.name()) {
            field.name().hash(&mut self.0);
            let _ = write!(Hashed(&mut self.0), "{value:?}");
        }
    }
}

struct Hashed<'a>(&'a mut DefaultHasher);

impl fmt::Write for Hashed<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.write(text.as_bytes());
        Ok(())
    }
}

/// Collects the beginning of a message.
struct MessageText(String);

impl Visit for MessageText {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let _ = match field.name() {
            "message" => {
                let rest = std::mem::take(&mut self.0);
                write!(self.0, "{value:?}{rest}")
            }
            name => write!(self.0, " {name}={value:?}"),
        };
        self.0.truncate(self.0.floor_char_boundary(SAMPLE));
    }
}

#[cfg(test)]
mod tests {
    use tracing::field::FieldSet;
    use tracing::{Callsite, Metadata};
    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    /// A place in a program.
    struct Site;

    static SITE: Site = Site;

    static METADATA: Metadata<'static> = Metadata::new(
        "sample",
        "target",
        Level::WARN,
        None,
        None,
        None,
        FieldSet::new(&["message"], Identifier(&SITE)),
        tracing::metadata::Kind::EVENT,
    );

    impl Callsite for Site {
        fn set_interest(&self, _: tracing::subscriber::Interest) {}

        fn metadata(&self) -> &Metadata<'_> {
            &METADATA
        }
    }

    fn kind(about: u64) -> MessageKind {
        MessageKind { site: Identifier(&SITE), about }
    }

    /// Logs messages of a kind at a rate per second; returns the number of logged messages, and the
    /// lines about the others.
    fn feed(
        limit: &Limit,
        begin: Instant,
        each_second: impl IntoIterator<Item = u64>,
    ) -> (u64, Vec<u64>) {
        let (mut logged, mut said) = (0, Vec::new());
        for (second, messages) in (0..).zip(each_second) {
            let now = begin + Duration::from_secs(second);
            for _ in 0..messages {
                logged += u64::from(limit.admits(now, kind(1), || "x".to_owned()));
            }
            said.extend(limit.take(now, false).into_iter().map(|(count, _)| count));
        }
        (logged, said)
    }

    #[test]
    fn messages_beyond_the_limit_are_counted_once() {
        let (limit, begin) = (Limit::default(), Instant::now());
        assert_eq!(feed(&limit, begin, [10]), (10, vec![]));
        assert_eq!(feed(&limit, begin + WINDOW, [10]), (10, vec![]));
        let burst = std::iter::once(1000).chain([0; 100]);
        assert_eq!(feed(&limit, begin + 2 * WINDOW, burst), (10, vec![990]));
        assert_eq!(limit.left_out(), 990);
        // After a quiet time a full burst is allowed again.
        assert_eq!(feed(&limit, begin + 10 * WINDOW, [10]), (10, vec![]));
    }

    #[test]
    fn endless_messages_are_logged_once_in_a_window() {
        let (limit, begin) = (Limit::default(), Instant::now());
        let (logged, said) = feed(&limit, begin, [100; 3600]);
        let windows = 3600 / WINDOW.as_secs();
        assert!((windows..=windows + BURST).contains(&logged), "{logged}");
        assert!((windows - 1..=windows).contains(&(said.len() as u64)), "{said:?}");
        let rest: u64 = limit.take(begin, true).into_iter().map(|(count, _)| count).sum();
        assert_eq!(
            logged + said.iter().sum::<u64>() + rest,
            360_000,
            "every message is accounted for"
        );
    }

    #[test]
    fn the_table_of_kinds_is_bounded() {
        let (limit, now) = (Limit::default(), Instant::now());
        let logged = (0..10 * MAX_KINDS as u64)
            .filter(|about| limit.admits(now, kind(*about), String::new))
            .count();
        assert_eq!(limit.table().windows.len(), MAX_KINDS);
        assert!(logged <= MAX_KINDS + BURST as usize);
        limit.take(now + WINDOW, false);
        assert!(limit.table().windows.len() <= 1);
    }

    #[test]
    fn messages_are_limited_for_each_place_and_volume() {
        let limit = Arc::<Limit>::default();
        let subscriber = tracing_subscriber::registry().with(LimitLayer(limit.clone()));
        tracing::subscriber::with_default(subscriber, || {
            for number in 0..100 {
                for volume in ["a", "b"] {
                    tracing::warn!(volume, number, "cannot be read");
                }
                tracing::error!(volume = "a", "elsewhere");
                tracing::debug!("whoever asks for this wants all");
                tracing::warn!(target: TARGET, "about the log");
            }
        });
        assert_eq!(limit.left_out(), 3 * 90);
        let mut said = limit.take(Instant::now(), true);
        said.sort();
        let expected = [
            "cannot be read volume=\"a\" number=10",
            "cannot be read volume=\"b\" number=10",
            "elsewhere volume=\"a\"",
        ];
        assert_eq!(said, expected.map(|sample| (90, sample.to_owned())));
    }
}
