//! The state of `forebay top`, and the effects of keys on it.

use std::time::{Duration, Instant};

use forebay_admin::{ApiError, ReportList, VolumeName, VolumeReport};
use ratatui::crossterm::event::KeyCode;

use super::history::History;
use super::order::Order;
use super::theme::Theme;
use forebay_admin::activity::{Activity, Interval, Looks};

/// An answer is late after this many intervals, and this time.
const LATE: (u32, Duration) = (2, Duration::from_secs(1));

/// One look at the daemon.
pub(super) struct Look {
    /// When the answer came.
    pub(super) at: Instant,
    /// The same in seconds since 1970.
    pub(super) time: f64,
    /// The answer.
    pub(super) answer: Result<ReportList, ApiError>,
}

/// Whose latencies the heat map shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LatencyKind {
    /// Reads.
    Reads,
    /// Writes.
    Writes,
    /// Flushes.
    Flushes,
    /// Discards.
    Discards,
}

impl LatencyKind {
    /// Returns the next kind, after the last one the first.
    pub(super) fn next(self) -> Self {
        match self {
            LatencyKind::Reads => LatencyKind::Writes,
            LatencyKind::Writes => LatencyKind::Flushes,
            LatencyKind::Flushes => LatencyKind::Discards,
            LatencyKind::Discards => LatencyKind::Reads,
        }
    }

    /// Returns the kind in words.
    pub(super) fn name(self) -> &'static str {
        match self {
            LatencyKind::Reads => "reads",
            LatencyKind::Writes => "writes",
            LatencyKind::Flushes => "flushes",
            LatencyKind::Discards => "discards",
        }
    }
}

/// The content of the screen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Screen {
    /// All volumes.
    List,
    /// The selected volume, with a heat map.
    Detail(LatencyKind),
}

/// Everything that is shown.
pub(super) struct TopModel {
    pub(super) theme: Theme,
    pub(super) every: Duration,
    pub(super) screen: Screen,
    pub(super) help: bool,
    pub(super) order: Order,
    pub(super) reversed: bool,
    /// The selected volume. The selection stays with it if the order changes.
    pub(super) selected: Option<VolumeName>,
    /// The first row on the screen, and how many there is space for. Drawing sets both.
    pub(super) first: usize,
    pub(super) fits: usize,
    pub(super) history: History,
    pub(super) latest: Option<Interval>,
    looks: Looks,
    /// When the last answer came, and why none came since, if that is known.
    heard: Instant,
    failure: Option<String>,
}

impl TopModel {
    /// Makes a model that knows nothing; with a name it begins with the details of that volume.
    pub(super) fn new(
        theme: Theme,
        every: Duration,
        name: Option<VolumeName>,
        now: Instant,
    ) -> Self {
        TopModel {
            theme,
            every,
            screen: if name.is_some() { Screen::Detail(LatencyKind::Reads) } else { Screen::List },
            help: false,
            order: Order::Creation,
            reversed: false,
            selected: name,
            first: 0,
            fits: 1,
            history: History::default(),
            latest: None,
            looks: Looks::default(),
            heard: now,
            failure: None,
        }
    }

    /// Returns the volumes in their order.
    pub(super) fn rows(&self) -> Vec<&Activity> {
        let mut rows: Vec<&Activity> =
            self.latest.iter().flat_map(|interval| &interval.volumes).collect();
        rows.sort_by(|one, other| self.order.compare(one, other));
        if self.reversed {
            rows.reverse();
        }
        rows
    }

    /// Returns the place of the selected volume among the rows.
    pub(super) fn place(&self, rows: &[&Activity]) -> usize {
        let selected =
            self.selected.as_ref().and_then(|name| rows.iter().position(|row| row.name == *name));
        selected.unwrap_or_default()
    }

    /// Returns the latest report of a volume.
    pub(super) fn report(&self, name: &VolumeName) -> Option<&VolumeReport> {
        self.looks.reports().iter().find(|report| report.name == *name)
    }

    /// Returns for how long the daemon has not answered, and the reason if it is known; `None`: it
    /// answers.
    pub(super) fn silence(&self, now: Instant) -> Option<(Duration, Option<&str>)> {
        let since = now.saturating_duration_since(self.heard);
        let late = since > self.every * LATE.0 + LATE.1;
        (late || self.failure.is_some()).then_some((since, self.failure.as_deref()))
    }

    fn select(&mut self, place: impl FnOnce(usize, usize) -> usize) {
        let rows = self.rows();
        let Some(last) = rows.len().checked_sub(1) else { return };
        let place = place(self.place(&rows), last).min(last);
        self.selected = Some(rows[place].name.clone());
    }

    fn sort(&mut self, order: Order) {
        self.reversed = order == self.order && !self.reversed;
        self.order = order;
        self.first = 0;
    }

    fn key_in_list(&mut self, key: KeyCode) {
        let page = self.fits.max(1);
        match key {
            KeyCode::Up => self.select(|place, _| place.saturating_sub(1)),
            KeyCode::Down => self.select(|place, _| place + 1),
            KeyCode::PageUp => self.select(|place, _| place.saturating_sub(page)),
            KeyCode::PageDown => self.select(|place, _| place + page),
            KeyCode::Home => self.select(|_, _| 0),
            KeyCode::End => self.select(|_, last| last),
            KeyCode::Enter => {
                // Mark the volume that will be opened, also before the first key.
                self.select(|place, _| place);
                if self.selected.is_some() {
                    self.screen = Screen::Detail(LatencyKind::Reads);
                }
            }
            KeyCode::Char(key) => {
                if let Some(order) = Order::of(key) {
                    self.sort(order);
                }
            }
            _ => {}
        }
    }

    /// Takes an answer of the daemon.
    pub(super) fn news(&mut self, look: Look) {
        match look.answer {
            Ok(reports) => {
                (self.heard, self.failure) = (look.at, None);
                if let Some(interval) = self.looks.next(look.at, look.time, reports) {
                    self.history.add(&interval);
                    self.latest = Some(interval);
                }
            }
            Err(error) => {
                self.failure = Some(error.message);
                self.looks.forget();
                self.history.gap();
            }
        }
    }

    /// Takes a key.
    pub(super) fn key(&mut self, key: KeyCode) {
        if self.help {
            self.help = false;
            return;
        }
        match (key, self.screen) {
            (KeyCode::Char('?'), _) => self.help = true,
            (KeyCode::Esc | KeyCode::Backspace, Screen::Detail(_)) => self.screen = Screen::List,
            (KeyCode::Tab, Screen::Detail(kind)) => self.screen = Screen::Detail(kind.next()),
            (other, Screen::List) => self.key_in_list(other),
            _ => {}
        }
    }
}
