//! A heat map of latencies: time from left to right, latencies on a logarithmic scale with the
//! longest on top, and the number of requests as density.

use std::time::Duration;

use forebay_core::{LATENCY_BOUNDS_US, LATENCY_RANGES, LatencyCounts};
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};

use super::numbers::{count, time};
use super::theme::{SHADES, Theme};

/// Width of the latencies on the left, with the axis.
const LABELS: u16 = 7;

/// Draws a map of the newest intervals; the newest is the first. `None` is a gap.
pub(super) fn draw(
    theme: Theme,
    frame: &mut Frame<'_>,
    area: Rect,
    every: Duration,
    intervals: &[Option<LatencyCounts>],
) {
    let (Some(rows), Some(width)) = (area.height.checked_sub(1), area.width.checked_sub(LABELS))
    else {
        return;
    };
    if rows == 0 || width == 0 {
        return;
    }
    let together = LATENCY_RANGES.div_ceil(usize::from(rows));
    let groups = LATENCY_RANGES.div_ceil(together);
    let intervals = &intervals[..intervals.len().min(usize::from(width))];
    let columns: Vec<Option<Vec<u64>>> = intervals
        .iter()
        .map(|counts| counts.as_ref().map(|counts| grouped(counts, together)))
        .collect();
    let most = columns.iter().flatten().flatten().copied().max().unwrap_or_default();
    for group in 0..groups {
        let y = area.y + u16::try_from(groups - 1 - group).unwrap_or_default();
        frame.render_widget(label(group, together), Rect { y, height: 1, width: LABELS, ..area });
        for (age, column) in columns.iter().enumerate() {
            let x = area.right() - 1 - u16::try_from(age).unwrap_or_default();
            let (shade, style) = match column {
                Some(counts) => {
                    let density = density(counts[group], most);
                    (SHADES[density], theme.heat(density))
                }
                None => ("·", theme.quiet()),
            };
            frame.buffer_mut().set_string(x, y, shade, style);
        }
    }
    let y = area.y + u16::try_from(groups).unwrap_or_default();
    draw_axis(theme, frame, Rect { y, height: 1, ..area }, every, most);
}

/// Returns the requests of neighbouring ranges together.
fn grouped(counts: &LatencyCounts, together: usize) -> Vec<u64> {
    counts.ranges.chunks(together).map(|ranges| ranges.iter().sum()).collect()
}

/// Returns the upper bound of a group of ranges; the last has none.
fn label(group: usize, together: usize) -> Line<'static> {
    let last = (group + 1) * together - 1;
    let text = match LATENCY_BOUNDS_US.get(last) {
        Some(bound) => micros(*bound),
        None => "more".to_owned(),
    };
    Line::raw(format!("{text:>5} │"))
}

/// Formats a bound, which is a whole number of its unit.
fn micros(bound: u64) -> String {
    match bound {
        0..1_000 => format!("{bound}µs"),
        1_000..1_000_000 => format!("{}ms", bound / 1_000),
        _ => format!("{}s", bound / 1_000_000),
    }
}

/// Returns the density of a cell. A single slow request among thousands is visible, and a tenth of
/// the most differs from it: neither would be on a linear scale, nor both on a logarithmic one.
fn density(requests: u64, most: u64) -> usize {
    if requests == 0 {
        return 0;
    }
    let steps = SHADES.len() - 1;
    let share = ((requests as f64).ln() / (most.max(2) as f64).ln()).powi(2);
    1 + ((share * steps as f64) as usize).min(steps - 1)
}

/// Draws the axis of time with the legend.
fn draw_axis(theme: Theme, frame: &mut Frame<'_>, area: Rect, every: Duration, most: u64) {
    let width = usize::from(area.width - LABELS);
    let past = every.as_secs_f64() * width as f64;
    let oldest = time(Some(past * 1e6));
    let mut spans = vec![Span::raw(format!("      └ {oldest} ago   "))];
    for (density, shade) in SHADES.iter().enumerate().skip(1) {
        spans.push(Span::styled((*shade).to_owned(), theme.heat(density)));
    }
    let legend = match most {
        0 => String::new(),
        most => format!(" 1 to {} requests", count(most as f64)),
    };
    spans.push(Span::raw(legend));
    frame.render_widget(Line::from(spans), area);
    frame.render_widget(Line::raw("now").right_aligned(), area);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_single_request_is_visible_and_only_many_are_dense() {
        for (requests, most, expected) in [
            (0, 0, 0),
            (0, 9, 0),
            (1, 1, 1),
            (1, 100_000, 1),
            (2, 2, 4),
            (99, 100_000, 1),
            (10_000, 100_000, 3),
            (100_000, 100_000, 4),
        ] {
            assert_eq!(density(requests, most), expected, "{requests} of {most}");
        }
    }

    #[test]
    fn groups_have_all_requests_and_end_at_their_bounds() {
        let counts = LatencyCounts { ranges: [1; LATENCY_RANGES], sum_nanos: 0 };
        for together in 1..=LATENCY_RANGES {
            let groups = grouped(&counts, together);
            assert_eq!(groups.iter().sum::<u64>(), LATENCY_RANGES as u64);
        }
        let text = |group, together| label(group, together).to_string();
        assert_eq!(text(0, 3), " 20µs │");
        assert_eq!(text(5, 3), "   2s │");
        assert_eq!(text(6, 3), " more │");
        assert_eq!(text(19, 1), "  10s │");
    }
}
