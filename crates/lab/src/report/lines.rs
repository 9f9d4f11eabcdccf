//! Charts of lines: over time, and of latencies over shares of requests.

use plotters::prelude::PathElement;
use plotters::style::Color;

use crate::error::LabResult;

use super::canvas::{Area, Axis, Drawn, Key, grid, legend, legend_height, mark, panel, svg};
use super::style::line;

/// A line; which one it is decides on colour and mark.
#[derive(Clone, Debug)]
pub(super) struct Line {
    pub(super) which: usize,
    pub(super) points: Vec<(f64, f64)>,
}

/// Lines on common axes.
#[derive(Clone, Debug)]
pub(super) struct LinePanel {
    pub(super) title: String,
    pub(super) x: Axis,
    pub(super) y: Axis,
    pub(super) lines: Vec<Line>,
}

/// Small multiples of lines, so many in a row; the names of the lines are in the legend.
///
/// # Errors
/// The library's.
pub(super) fn lines(
    alt: &str,
    names: &[String],
    panels: &[LinePanel],
    (columns, height): (usize, i32),
) -> LabResult<String> {
    let shown =
        |which: usize| panels.iter().flat_map(|panel| &panel.lines).any(|l| l.which == which);
    let entries: Vec<(String, Key)> = names
        .iter()
        .enumerate()
        .filter(|(which, _)| shown(*which))
        .map(|(which, name)| (name.clone(), Key::Line(line(which), which)))
        .collect();
    let top = legend_height(&entries);
    let heights = vec![height; panels.len().div_ceil(columns.max(1))];
    svg(alt, top + heights.iter().sum::<i32>(), |root| {
        legend(root, &entries)?;
        for (panel, area) in panels.iter().zip(grid(root, top, columns, &heights)) {
            draw(root, &area, panel)?;
        }
        Ok(())
    })
}

fn draw(root: &Area<'_>, area: &Area<'_>, lines: &LinePanel) -> LabResult<()> {
    let mut chart = panel(area, &lines.title, (&lines.x, &lines.y), 62)?;
    // The first one is the most important, so it is drawn last, over the others.
    for one in lines.lines.iter().rev() {
        let place = |(x, y): &(f64, f64)| (lines.x.place(*x), lines.y.place(*y));
        let placed: Vec<(f64, f64)> = one.points.iter().map(place).collect();
        let pixels: Vec<(i32, i32)> = placed.iter().map(|at| chart.backend_coord(at)).collect();
        let kept = simplified(&pixels);
        let points: Vec<(f64, f64)> =
            kept.iter().filter_map(|at| placed.get(*at).copied()).collect();
        let colour = line(one.which);
        chart.draw_series([PathElement::new(points, colour.stroke_width(2))]).drawn()?;
        for pixel in marked(&pixels, one.which) {
            mark(root, pixel, one.which, colour)?;
        }
    }
    Ok(())
}

/// Where a line carries its marks: five, or one if it is short, evenly along the horizontal axis, at other places for
/// each line.
fn marked(points: &[(i32, i32)], which: usize) -> Vec<(i32, i32)> {
    let (Some(first), Some(last)) = (points.first(), points.last()) else {
        return Vec::new();
    };
    let shift = (which % 6) as f64 * 0.15 + 0.1;
    let mut marks = Vec::new();
    let count = if last.0 - first.0 > 100 { 5 } else { 1 };
    for place in 0..count {
        let share = (f64::from(place) + shift) / f64::from(count);
        let x = f64::from(first.0) + share * f64::from(last.0 - first.0);
        let over = points.windows(2).find_map(|pair| match pair {
            [from, to] if f64::from(from.0) <= x && x < f64::from(to.0) => Some((from, to)),
            _ => None,
        });
        if let Some((from, to)) = over {
            let along = (x - f64::from(from.0)) / f64::from(to.0 - from.0);
            let y = f64::from(from.1) + along * f64::from(to.1 - from.1);
            marks.push((x.round() as i32, y.round() as i32));
        }
    }
    marks
}

/// Which points of a line are needed so that none is further than a pixel from it
/// (Ramer, Douglas and Peucker).
fn simplified(points: &[(i32, i32)]) -> Vec<usize> {
    let Some(last) = points.len().checked_sub(1) else {
        return Vec::new();
    };
    let mut kept = vec![false; points.len()];
    let mut open = vec![(0, last)];
    while let Some((from, to)) = open.pop() {
        kept[from] = true;
        kept[to] = true;
        let between = (from + 1..to).map(|at| (at, distance(points[at], points[from], points[to])));
        let furthest = between.max_by(|one, other| one.1.total_cmp(&other.1));
        if let Some((at, distance)) = furthest
            && distance > 1.0
        {
            open.push((from, at));
            open.push((at, to));
        }
    }
    kept.iter().enumerate().filter(|(_, kept)| **kept).map(|(at, _)| at).collect()
}

/// Of a point from a line.
fn distance(point: (i32, i32), from: (i32, i32), to: (i32, i32)) -> f64 {
    let wide = |(x, y): (i32, i32)| (f64::from(x), f64::from(y));
    let (point, from, to) = (wide(point), wide(from), wide(to));
    let (dx, dy) = (to.0 - from.0, to.1 - from.1);
    let length = dx.hypot(dy);
    if length == 0.0 {
        return (point.0 - from.0).hypot(point.1 - from.1);
    }
    (dx * (point.1 - from.1) - dy * (point.0 - from.0)).abs() / length
}

/// At most so many points, each the mean of its neighbours.
pub(super) fn thinned(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    const MOST: usize = 64;
    let mean = |some: &[(f64, f64)]| {
        let count = some.len().max(1) as f64;
        let sum = some.iter().fold((0.0, 0.0), |sum, at| (sum.0 + at.0, sum.1 + at.1));
        (sum.0 / count, sum.1 / count)
    };
    points.chunks(points.len().div_ceil(MOST).max(1)).map(mean).collect()
}

/// An axis of shares of requests on which every further nine takes as much room.
pub(super) fn nines() -> Axis {
    let names = [
        ("0", 0.0),
        ("50 %", 0.5),
        ("90 %", 0.9),
        ("99 %", 0.99),
        ("99.9 %", 0.999),
        ("99.99 %", 0.9999),
    ];
    let ticks = names.iter().map(|(name, share)| (nine(*share), (*name).to_owned()));
    Axis {
        title: "requests that were not slower".into(),
        log: false,
        range: 0.0..nine(SHOWN),
        ticks: ticks.collect(),
        lines: true,
    }
}

fn nine(share: f64) -> f64 {
    -(1.0 - share).max(1e-9).log10()
}

/// The last share that is shown.
const SHOWN: f64 = 0.99995;

/// Width of a bucket, as the histograms of the runs have it.
const BUCKET: f64 = 1.0 + 1.0 / 32.0;

/// Latency in milliseconds by share of requests, from buckets with their lower ends in
/// microseconds.
pub(super) fn percentiles(buckets: &[(f64, u64)]) -> Vec<(f64, f64)> {
    let all: u64 = buckets.iter().map(|(_, count)| count).sum();
    // The slowest request stands for the last half of its share, so that there is an end.
    let most = (all as f64 - 0.5).max(0.5);
    let place = |sum: u64| nine((sum as f64).min(most) / all.max(1) as f64);
    let mut sum = 0;
    let mut points = Vec::new();
    for (microseconds, count) in buckets {
        let value = (microseconds / 1000.0).max(1e-4);
        if place(sum) > nine(SHOWN) {
            break;
        }
        points.push((place(sum), value));
        sum += count;
        // Latencies are spread over the bucket.
        points.push((place(sum).min(nine(SHOWN)), value * BUCKET));
    }
    points
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn straight_lines_need_two_points() {
        let straight: Vec<(i32, i32)> = (0..100).map(|x| (x, 2 * x)).collect();
        assert_eq!(simplified(&straight), [0, 99]);
        let bent = [(0, 0), (50, 0), (50, 50), (50, 90)];
        assert_eq!(simplified(&bent), [0, 1, 3]);
        assert_eq!(simplified(&[]), Vec::<usize>::new());
    }

    #[test]
    fn percentiles_climb() {
        let points = percentiles(&[(100.0, 90), (1000.0, 9), (5000.0, 1)]);
        assert_eq!(points[0], (0.0, 0.1));
        assert!((points[1].0 - 1.0).abs() < 1e-9 && points[0].1 == 0.1 && points[1].1 < 0.11);
        assert!((points[3].0 - 2.0).abs() < 1e-9 && points[2].1 == 1.0);
        // The slowest of a hundred ends at 99.5 %, and is not lost.
        assert!((points[5].0 - nine(0.995)).abs() < 1e-9 && points[4].1 == 5.0);
        assert_eq!(percentiles(&[(80.0, 1_000_000)]).len(), 2);
        assert!(points.windows(2).all(|pair| pair[0].0 <= pair[1].0 && pair[0].1 <= pair[1].1));
    }
}
