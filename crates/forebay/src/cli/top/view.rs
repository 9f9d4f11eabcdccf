//! Parts of both screens: the title, the last line, the words for misses, and the help.

use std::time::{Duration, Instant};

use forebay_core::why::Reason;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Clear, Paragraph};

use super::model::TopModel;
use super::numbers::count;
use super::theme::Theme;
use super::{KEYS, REVERSE};
use crate::output::volume::time;
use forebay_admin::activity::{Activity, Interval};

/// A change of the dirty data below this share of it in ten seconds is none.
const STEADY: f64 = 0.005;

/// Divides the screen into the title, the middle, and the last line.
pub(super) fn parts(area: Rect) -> [Rect; 3] {
    let rows = [Constraint::Length(1), Constraint::Fill(1), Constraint::Length(1)];
    Layout::vertical(rows).areas(area)
}

/// Draws the last line: the keys, or that the daemon does not answer.
pub(super) fn last_line(
    model: &TopModel,
    frame: &mut Frame<'_>,
    area: Rect,
    now: Instant,
    keys: &str,
) {
    let theme = model.theme;
    let line = match model.silence(now) {
        None => Line::styled(format!(" {keys}"), theme.quiet()),
        Some((since, why)) => {
            let why = why.map_or(String::new(), |why| format!(": {why}"));
            let text = format!(" waiting for the daemon for {} s{why}", since.as_secs());
            Line::styled(text, theme.bad().patch(theme.marked()))
        }
    };
    frame.render_widget(line, area);
}

/// Returns an arrow for the trend of the dirty data.
pub(super) fn trend(activity: &Activity) -> &'static str {
    let all = activity.unwritten_bytes().unwrap_or_default() as f64;
    let change = activity.dirty_bytes_per_second * 10.0;
    match change {
        _ if change.abs() <= all * STEADY => "",
        0.0.. => "↑",
        _ => "↓",
    }
}

/// Returns the time until nothing is dirty, in words.
pub(super) fn until_clean(activity: &Activity) -> String {
    match (activity.unwritten_bytes(), activity.writeback.seconds_to_clean) {
        (None, _) => "?".to_owned(),
        (Some(_), None) => "waits".to_owned(),
        (Some(0), _) => "-".to_owned(),
        (Some(_), Some(seconds)) => time(seconds),
    }
}

/// Returns the reasons of misses with their shares, in words, one line each and the most frequent
/// first.
pub(super) fn misses(activity: &Activity) -> Vec<String> {
    let misses = activity.misses();
    let all: u64 = misses.iter().map(|(_, count)| count).sum();
    let share = |count: u64| match count as f64 / all as f64 {
        ..0.01 => "<1%".to_owned(),
        share => format!("{:.0}%", share * 100.0),
    };
    misses
        .into_iter()
        .map(|(reason, count)| format!("{} {}", share(count), reason.help()))
        .collect()
}

/// Returns how many reads missed per second.
pub(super) fn missed(activity: &Activity, interval: &Interval) -> String {
    count(activity.miss.total() as f64 / interval.seconds)
}

/// Returns an interval in words.
pub(super) fn every(interval: Duration) -> String {
    format!("every {} s", interval.as_secs_f64())
}

/// Shortens a text to a width, with dots at the end.
pub(super) fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let cut: String = text.chars().take(width.saturating_sub(1)).collect();
    format!("{}…", cut.trim_end())
}

/// Draws the keys over everything else.
pub(super) fn help(theme: Theme, frame: &mut Frame<'_>) {
    let mut lines: Vec<Line<'_>> = Vec::new();
    for (key, effect) in KEYS {
        let key = Span::styled(format!(" {key}"), theme.heading());
        lines.extend([Line::from(key), Line::raw(format!("     {effect}"))]);
    }
    lines.push(Line::raw(format!(" {REVERSE}")));
    let height = u16::try_from(lines.len()).unwrap_or(u16::MAX).saturating_add(2);
    let area = frame.area().centered(Constraint::Length(78), Constraint::Length(height));
    frame.render_widget(Clear, area);
    let block = Block::bordered().title(" Keys ");
    frame.render_widget(Paragraph::new(lines).block(block), area);
}
