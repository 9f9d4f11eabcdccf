//! One volume: its numbers, those of its devices, latencies over time, and the reasons of missed
//! reads.

use std::time::Instant;

use forebay_admin::{VolumeName, VolumeReport};
use forebay_core::LATENCY_RANGES;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::text::{Line, Span};

use super::heat;
use super::model::{LatencyKind, TopModel};
use super::numbers::{bytes, count, megabytes, percent, time};
use super::view::{cut, last_line, missed, misses, parts, trend, until_clean};
use crate::output::volume::mode;
use forebay_admin::activity::{Activity, Interval, Operations, Times};

/// Width of the words on the left of the table.
const LABEL: u16 = 8;

/// The narrowest and the widest column of the table.
const COLUMN: (u16, u16) = (6, 10);

/// Lines of everything above the map, and the least number of lines for the reasons of misses.
const OTHERS: u16 = 8;
const REASONS: u16 = 2;

/// Draws everything.
pub(super) fn draw(model: &TopModel, frame: &mut Frame<'_>, now: Instant, kind: LatencyKind) {
    let [title, body, last] = parts(frame.area());
    last_line(model, frame, last, now, "q quit  ? keys  Esc all volumes  Tab reads, writes, ...");
    let Some(name) = &model.selected else { return };
    let found = model.latest.as_ref().and_then(|interval| {
        let activity = interval.volumes.iter().find(|activity| activity.name == *name)?;
        Some((interval, activity))
    });
    let Some((interval, activity)) = found else {
        frame.render_widget(Line::styled(format!(" {name}"), model.theme.heading()), title);
        let text = match (&model.latest, model.silence(now)) {
            (_, Some(_)) => "",
            (None, None) => " measuring...",
            (Some(_), None) => {
                " There is no volume of this name at the moment. Esc shows all volumes."
            }
        };
        frame.render_widget(Line::raw(text), body);
        return;
    };
    // A line for each range of latencies and one for the axis are enough.
    let most = u16::try_from(LATENCY_RANGES + 1).unwrap_or(u16::MAX);
    let map = body.height.saturating_sub(OTHERS + REASONS).min(most);
    let rows = [1, 6, 1, map].map(Constraint::Length).into_iter().chain([Constraint::Fill(1)]);
    let [state, table, heading, map, why] = Layout::vertical(rows).areas(body);
    draw_title(model, frame, title, activity);
    draw_state(model, frame, state, activity);
    draw_table(model, frame, table, interval, activity);
    draw_map(model, frame, [heading, map], name, kind);
    draw_why(model, frame, why, interval, activity);
}

fn draw_title(model: &TopModel, frame: &mut Frame<'_>, area: Rect, activity: &Activity) {
    let theme = model.theme;
    let how = |report: &VolumeReport| {
        let mode = mode(report.mode, report.caching);
        let cache =
            if report.cache.path.is_empty() { "no cache device" } else { &report.cache.path };
        format!("  {mode}, {}  {cache}  {}", report.policy, report.origin.path)
    };
    frame.render_widget(
        Line::from(vec![
            Span::styled(format!(" {}", activity.name), theme.heading()),
            Span::raw("  "),
            Span::styled(activity.state.name(), theme.state(activity.state)),
            Span::raw(model.report(&activity.name).map_or(String::new(), how)),
        ]),
        area,
    );
}

fn draw_state(model: &TopModel, frame: &mut Frame<'_>, area: Rect, activity: &Activity) {
    let theme = model.theme;
    let dirty = activity.unwritten_bytes().map_or_else(|| "?".to_owned(), bytes);
    let words = [
        (" hits ", percent(activity.hit_ratio)),
        ("  IOPS ", count(activity.iops)),
        ("  MB/s ", megabytes(activity.bytes_per_second())),
        ("  dirty ", dirty + trend(activity)),
        ("  WB MB/s ", megabytes(activity.writeback.bytes_per_second)),
        ("  clean ", until_clean(activity)),
    ];
    let spans = words.into_iter().flat_map(|(word, number)| {
        [Span::styled(word, theme.quiet()), Span::styled(number, theme.name())]
    });
    frame.render_widget(Line::from(spans.collect::<Vec<_>>()), area);
}

/// Whether a volume has a RAM tier: latencies are those below it.
fn has_ram(model: &TopModel, name: &VolumeName) -> bool {
    model.report(name).is_some_and(|report| report.ram.is_some())
}

/// A row of the table for one of the three who do operations.
struct Cells {
    iops: f64,
    bytes_per_second: Option<f64>,
    times: Times,
}

impl Cells {
    fn of(operations: &Operations, has_bytes: bool) -> Self {
        Cells {
            iops: operations.iops,
            bytes_per_second: has_bytes.then_some(operations.bytes_per_second),
            times: operations.latency,
        }
    }

    fn texts(&self) -> [String; 4] {
        [
            count(self.iops),
            self.bytes_per_second.map_or_else(|| "-".to_owned(), megabytes),
            time(self.times.p50_us),
            time(self.times.p99_us),
        ]
    }
}

fn rows(interval: &Interval, activity: &Activity) -> [(&'static str, [Cells; 3]); 4] {
    let (latency, cache, origin) =
        (&activity.latency, &activity.devices.cache, &activity.devices.origin);
    let clients = |iops, bytes_per_second, times| Cells { iops, bytes_per_second, times };
    let (read, written) = (activity.read_bytes_per_second, activity.write_bytes_per_second);
    let a_second = |times: Times| times.count as f64 / interval.seconds;
    [
        (
            " read",
            [
                clients(activity.read_iops, Some(read), latency.read),
                Cells::of(&cache.read, true),
                Cells::of(&origin.read, true),
            ],
        ),
        (
            " write",
            [
                clients(activity.write_iops, Some(written), latency.write),
                Cells::of(&cache.write, true),
                Cells::of(&origin.write, true),
            ],
        ),
        (
            " flush",
            [
                clients(a_second(latency.flush), None, latency.flush),
                Cells::of(&cache.sync, false),
                Cells::of(&origin.sync, false),
            ],
        ),
        (
            " discard",
            [
                clients(a_second(latency.discard), None, latency.discard),
                Cells::of(&cache.discard, false),
                Cells::of(&origin.discard, false),
            ],
        ),
    ]
}

fn draw_table(
    model: &TopModel,
    frame: &mut Frame<'_>,
    area: Rect,
    interval: &Interval,
    activity: &Activity,
) {
    let theme = model.theme;
    let width = (area.width.saturating_sub(LABEL) / 12).clamp(COLUMN.0, COLUMN.1);
    let rect = |row: u16, x: u16, width: u16| {
        Rect { x: area.x + x, y: area.y + row, width, height: 1 }.intersection(area)
    };
    let clients = if has_ram(model, &activity.name) { "CLIENTS, P50 BELOW RAM" } else { "CLIENTS" };
    for (group, heading) in (0..).zip([clients, "CACHE DEVICE", "ORIGIN"]) {
        let x = LABEL + group * 4 * width;
        // Over the numbers, which are on the right of their columns.
        let heading = Line::styled(format!("{heading} "), theme.heading()).right_aligned();
        frame.render_widget(heading, rect(0, x, 4 * width));
        for (column, heading) in (0..).zip(["IOPS", "MB/s", "P50", "P99"]) {
            let heading = Line::styled(heading, theme.quiet()).right_aligned();
            frame.render_widget(heading, rect(1, x + column * width, width));
        }
    }
    for (row, (label, cells)) in (2..).zip(rows(interval, activity)) {
        frame.render_widget(Line::raw(label), rect(row, 0, LABEL));
        for (column, text) in (0..).zip(cells.iter().flat_map(Cells::texts)) {
            frame.render_widget(
                Line::raw(text).right_aligned(),
                rect(row, LABEL + column * width, width),
            );
        }
    }
}

fn draw_map(
    model: &TopModel,
    frame: &mut Frame<'_>,
    areas: [Rect; 2],
    name: &VolumeName,
    kind: LatencyKind,
) {
    let [heading, area] = areas;
    let below = if has_ram(model, name) { " BELOW RAM" } else { "" };
    let text = format!(" LATENCIES OF {}{below}", kind.name().to_uppercase());
    let rest = format!("  (Tab: {})", kind.next().name());
    let theme = model.theme;
    let line = vec![Span::styled(text, theme.heading()), Span::styled(rest, theme.quiet())];
    frame.render_widget(Line::from(line), heading);
    let points = model.history.newest(name, usize::from(area.width));
    let intervals: Vec<_> =
        points.map(|point| point.map(|point| point.latency[kind as usize])).collect();
    heat::draw(theme, frame, area, model.every, &intervals);
}

fn draw_why(
    model: &TopModel,
    frame: &mut Frame<'_>,
    area: Rect,
    interval: &Interval,
    activity: &Activity,
) {
    let theme = model.theme;
    let error = activity.error.iter().map(|error| (format!("error: {error}"), theme.bad()));
    let mut reasons = misses(activity);
    let head = match reasons.is_empty() {
        true => "no misses".to_owned(),
        false => format!("{} misses/s: {}", missed(activity, interval), reasons.remove(0)),
    };
    let reasons = std::iter::once(head).chain(reasons).map(|reason| (reason, theme.reason()));
    for (row, (text, style)) in (0..area.height).zip(error.chain(reasons)) {
        let line = Line::styled(
            format!(" {}", cut(&text, usize::from(area.width.saturating_sub(2)))),
            style,
        );
        frame.render_widget(line, Rect { y: area.y + row, height: 1, ..area });
    }
}
