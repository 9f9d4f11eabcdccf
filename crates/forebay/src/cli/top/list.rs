//! All volumes: three lines for each, numbers above their history, and the reasons of missed reads.

use std::time::Instant;

use forebay_admin::VolumeName;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::text::{Line, Span};
use ratatui::widgets::{RenderDirection, Sparkline};

use super::history::Point;
use super::model::TopModel;
use super::numbers::{bytes, count, megabytes, percent, time};
use super::order::Order;
use super::view::{cut, every, last_line, missed, misses, parts, trend, until_clean};
use forebay_admin::activity::{Activity, Interval};

/// Lines of a volume.
const LINES: u16 = 3;

/// The narrowest and the widest column of names.
const NAMES: (u16, u16) = (13, 32);

/// Number of reasons of misses that are named.
const REASONS: usize = 3;

/// A column of numbers.
struct Column {
    heading: &'static str,
    order: Option<Order>,
    cell: fn(&Activity) -> String,
    /// The history that the line below shows.
    line: Option<Scaled>,
}

/// A number of each interval, and the top of its scale if that is fixed.
type Scaled = (fn(&Point) -> Option<f64>, Option<f64>);

const COLUMNS: [Column; 8] = [
    Column {
        heading: "HIT",
        order: Some(Order::Hits),
        cell: |of| percent(of.hit_ratio),
        line: Some((|of| of.hit_ratio, Some(1.0))),
    },
    Column {
        heading: "IOPS",
        order: Some(Order::Iops),
        cell: |of| count(of.iops),
        line: Some((|of| Some(of.iops), None)),
    },
    Column {
        heading: "MB/s",
        order: Some(Order::Bytes),
        cell: |of| megabytes(of.bytes_per_second()),
        line: Some((|of| Some(of.bytes_per_second), None)),
    },
    Column {
        heading: "P50",
        order: None,
        cell: |of| time(of.times().p50_us),
        line: Some((|of| of.p50_us, None)),
    },
    Column {
        heading: "P99",
        order: Some(Order::Latency),
        cell: |of| time(of.times().p99_us),
        line: Some((|of| of.p99_us, None)),
    },
    Column {
        heading: "DIRTY",
        order: Some(Order::Dirty),
        cell: |of| {
            of.unwritten_bytes().map_or_else(|| "?".to_owned(), |all| bytes(all) + trend(of))
        },
        line: Some((|of| of.dirty.map(|bytes| bytes as f64), None)),
    },
    Column {
        heading: "WB MB/s",
        order: Some(Order::Writeback),
        cell: |of| megabytes(of.writeback.bytes_per_second),
        line: Some((|of| Some(of.writeback), None)),
    },
    Column { heading: "CLEAN", order: None, cell: until_clean, line: None },
];

/// Draws everything.
pub(super) fn draw(model: &mut TopModel, frame: &mut Frame<'_>, now: Instant) {
    let [title, body, last] = parts(frame.area());
    let [heading, body] =
        Layout::vertical([Constraint::Length(1), Constraint::Fill(1)]).areas(body);
    model.fits = usize::from(body.height / LINES);
    draw_title(model, frame, title);
    let keys = format!(
        "q quit  ? keys  Enter details  c n h i b l d w sort: by {}{}",
        model.order.name(),
        if model.reversed { ", reversed" } else { "" }
    );
    last_line(model, frame, last, now, &keys);
    let Some(interval) = &model.latest else {
        let text = if model.silence(now).is_some() { "" } else { " measuring..." };
        frame.render_widget(Line::raw(text), body);
        return;
    };
    let rows = model.rows();
    if rows.is_empty() {
        let text = " No volumes. Create one with 'forebay create'.";
        frame.render_widget(Line::raw(text), body);
        return;
    }
    let place = model.place(&rows);
    let first = scrolled(model.first, place, model.fits, rows.len());
    draw_headings(model, frame, heading);
    for (index, activity) in rows.iter().enumerate().skip(first).take(model.fits) {
        let y = body.y + u16::try_from(index - first).unwrap_or(u16::MAX) * LINES;
        let area = Rect { y, height: LINES, ..body };
        draw_volume(model, frame, area, interval, activity, index == place);
    }
    model.first = first;
}

/// Returns the first row to show, so that the selected one is visible and no space is left below
/// without need.
fn scrolled(first: usize, place: usize, fits: usize, rows: usize) -> usize {
    let fits = fits.max(1);
    let most = rows.saturating_sub(fits);
    first.min(place).max((place + 1).saturating_sub(fits)).min(most)
}

/// Returns the column of names and those of numbers.
fn columns(area: Rect) -> (Rect, [Rect; 8]) {
    let names = (area.width / 6).clamp(NAMES.0, NAMES.1);
    let width = (area.width.saturating_sub(names + 1)) / 8;
    let rect = |x: u16, width: u16| Rect { x: area.x + x, width, ..area }.intersection(area);
    let numbers = std::array::from_fn(|index| {
        // One column is left between two.
        rect(
            1 + names + u16::try_from(index).unwrap_or_default() * width + 1,
            width.saturating_sub(1),
        )
    });
    (rect(1, names), numbers)
}

fn draw_title(model: &TopModel, frame: &mut Frame<'_>, area: Rect) {
    let theme = model.theme;
    let volumes = model.latest.iter().flat_map(|interval| &interval.volumes);
    let (mut iops, mut rate, mut dirty, mut number, mut known) = (0.0, 0.0, 0, 0, true);
    for activity in volumes {
        (iops, rate, number) =
            (iops + activity.iops, rate + activity.bytes_per_second(), number + 1);
        dirty += activity.unwritten_bytes().unwrap_or_default();
        known &= activity.unwritten_bytes().is_some();
    }
    // A volume of which that is unknown has a question mark in its line, and no part in the sum.
    let least = if known { "" } else { "at least " };
    let text = format!(
        "  {number} volumes  {} IOPS  {} MB/s  {least}{} dirty",
        count(iops),
        megabytes(rate),
        bytes(dirty),
    );
    frame.render_widget(
        Line::from(vec![Span::styled(" forebay", theme.heading()), Span::raw(text)]),
        area,
    );
    frame.render_widget(Line::raw(every(model.every) + " ").right_aligned(), area);
}

fn draw_headings(model: &TopModel, frame: &mut Frame<'_>, area: Rect) {
    let theme = model.theme;
    let (names, numbers) = columns(area);
    let style = |order: Option<Order>| {
        if order == Some(model.order) { theme.sorted() } else { theme.heading() }
    };
    frame.render_widget(Line::styled("NAME", style(Some(Order::Name))), names);
    for (column, area) in COLUMNS.iter().zip(numbers) {
        let heading = Line::styled(column.heading, style(column.order));
        frame.render_widget(heading.right_aligned(), area);
    }
}

fn draw_volume(
    model: &TopModel,
    frame: &mut Frame<'_>,
    area: Rect,
    interval: &Interval,
    activity: &Activity,
    selected: bool,
) {
    let theme = model.theme;
    let line = |row: u16| Rect { y: area.y + row, height: 1, ..area };
    let [first, second, third] = [line(0), line(1), line(2)];
    if selected {
        frame.render_widget(Line::raw(">"), first);
        frame.buffer_mut().set_style(first, theme.marked());
    }
    let (names, numbers) = columns(first);
    let name = cut(activity.name.as_str(), usize::from(names.width));
    frame.render_widget(Line::styled(name, theme.name()), names);
    for (column, area) in COLUMNS.iter().zip(numbers) {
        frame.render_widget(Line::raw((column.cell)(activity)).right_aligned(), area);
    }
    let (names, numbers) = columns(second);
    frame.render_widget(Line::styled(activity.state.name(), theme.state(activity.state)), names);
    for (column, area) in COLUMNS.iter().zip(numbers) {
        if let Some(line) = column.line {
            draw_line(model, frame, area, &activity.name, line);
        }
    }
    draw_why(model, frame, third, interval, activity);
}

fn draw_line(
    model: &TopModel,
    frame: &mut Frame<'_>,
    area: Rect,
    name: &VolumeName,
    (number, top): Scaled,
) {
    let points = model.history.newest(name, usize::from(area.width));
    let numbers: Vec<Option<f64>> = points.map(|point| point.and_then(number)).collect();
    let top = top.unwrap_or_else(|| numbers.iter().flatten().copied().fold(0.0, f64::max));
    // In thousandths of the scale.
    let data = numbers.into_iter().map(|number| {
        number.map(|number| if top > 0.0 { (number / top * 1000.0) as u64 } else { 0 })
    });
    let line = Sparkline::default()
        .data(data.collect::<Vec<Option<u64>>>())
        .max(1000)
        .direction(RenderDirection::RightToLeft)
        .style(model.theme.line());
    frame.render_widget(line, area);
}

/// Draws the latest error, or else why reads missed.
fn draw_why(
    model: &TopModel,
    frame: &mut Frame<'_>,
    area: Rect,
    interval: &Interval,
    activity: &Activity,
) {
    let theme = model.theme;
    let (text, style) = match &activity.error {
        Some(error) => (format!("error: {error}"), theme.bad()),
        None => {
            let reasons = misses(activity);
            if reasons.is_empty() {
                return;
            }
            let reasons = reasons.iter().take(REASONS).cloned().collect::<Vec<_>>().join("; ");
            (format!("{} misses/s: {reasons}", missed(activity, interval)), theme.reason())
        }
    };
    let text = cut(&text, usize::from(area.width.saturating_sub(3)));
    frame.render_widget(Line::styled(format!("  {text}"), style), area);
}
