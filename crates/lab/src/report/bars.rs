//! Bar charts: some bars with their names beside them, or many in groups with a legend.

use plotters::prelude::{PathElement, Rectangle, Text};
use plotters::style::text_anchor::{HPos, VPos};
use plotters::style::{Color, RGBColor};

use crate::error::LabResult;

use super::canvas::{
    Area, Axis, Chart, Drawn, Key, grid, legend, legend_height, mark, panel, svg, text, width_of,
};
use super::style::{HIGHEST, INK, SMALL};
use super::words::number;

/// A bar with a name of its own.
#[derive(Clone, Debug)]
pub(super) struct Bar {
    pub(super) name: String,
    pub(super) colour: RGBColor,
    pub(super) value: f64,
    /// Standard deviation.
    pub(super) sd: Option<f64>,
}

/// Bars of one experiment.
#[derive(Clone, Debug)]
pub(super) struct BarPanel {
    pub(super) title: String,
    pub(super) unit: String,
    pub(super) bars: Vec<Bar>,
}

/// Values that are more than so many times as large as others need a logarithmic axis.
const WIDE: f64 = 30.0;

fn extremes(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    let values = values.filter(|value| value.is_finite() && *value > 0.0);
    values.fold(None, |found: Option<(f64, f64)>, value| {
        Some(found.map_or((value, value), |(least, most)| (least.min(value), most.max(value))))
    })
}

/// An axis for bars: from 0, or from a decade below the least where the range demands it.
fn value_axis(title: &str, values: impl Iterator<Item = f64>, headroom: f64) -> Axis {
    let Some((least, most)) = extremes(values) else {
        return Axis::linear(title, 1.0);
    };
    if most / least < WIDE {
        return Axis::linear(title, most * (1.0 + headroom));
    }
    let floor = 10f64.powf((least / 1.5).log10().floor());
    let decades = (most / floor).log10();
    let title = format!("{title} (logarithmic)");
    Axis::logarithmic(&title, floor, most * 10f64.powf(decades * headroom * 1.1))
}

const BAR: i32 = 18;
const COLUMNS: usize = 2;

fn panel_height(panel: &BarPanel) -> i32 {
    26 + BAR * panel.bars.len() as i32 + 52
}

/// The same panels in parts that fit on a page each.
pub(super) fn parts(panels: &[BarPanel]) -> Vec<&[BarPanel]> {
    let mut parts = Vec::new();
    let (mut start, mut height) = (0, 0);
    for (row, members) in panels.chunks(COLUMNS).enumerate() {
        let here = members.iter().map(panel_height).max().unwrap_or(0);
        if height > 0 && height + here > HIGHEST {
            parts.extend(panels.get(start..row * COLUMNS));
            (start, height) = (row * COLUMNS, 0);
        }
        height += here;
    }
    parts.extend(panels.get(start..).filter(|rest| !rest.is_empty()));
    parts
}

/// Small multiples of bars with names, two in a row.
///
/// # Errors
/// The library's.
pub(super) fn named_bars(alt: &str, panels: &[BarPanel]) -> LabResult<String> {
    let rows = panels.chunks(COLUMNS);
    let heights: Vec<i32> =
        rows.map(|row| row.iter().map(panel_height).max().unwrap_or(0)).collect();
    svg(alt, heights.iter().sum(), |root| {
        for (panel, area) in panels.iter().zip(grid(root, 0, COLUMNS, &heights)) {
            let (width, _) = area.dim_in_pixel();
            let area = area.shrink((0, 0), (width as i32, panel_height(panel)));
            draw_named(root, &area, panel)?;
        }
        Ok(())
    })
}

fn draw_named(root: &Area<'_>, area: &Area<'_>, bars: &BarPanel) -> LabResult<()> {
    let tops = bars.bars.iter().map(|bar| bar.value + bar.sd.unwrap_or(0.0));
    let x = value_axis(&bars.unit, tops, 0.22);
    let names: Vec<String> = bars.bars.iter().rev().map(|bar| bar.name.clone()).collect();
    let y = Axis::names(&names);
    let left = names.iter().map(|name| width_of(name, SMALL)).max().unwrap_or(0).max(60) + 8;
    let mut chart = panel(area, &bars.title, (&x, &y), left)?;
    let count = bars.bars.len() as f64;
    for (place, bar) in bars.bars.iter().enumerate() {
        let middle = count - place as f64 - 0.5;
        let end = x.place(bar.value);
        let corners = [(x.floor(), middle - 0.36), (end, middle + 0.36)];
        chart.draw_series([Rectangle::new(corners, bar.colour.filled())]).drawn()?;
        let mut reach = end;
        if let Some(sd) = bar.sd.filter(|sd| *sd > 0.0) {
            reach = x.place(bar.value + sd);
            error_bar(
                &mut chart,
                [(x.place(bar.value - sd), middle), (reach, middle)],
                (0.0, 0.2),
            )?;
        }
        let label = number(bar.value);
        let style = text(SMALL, HPos::Left, VPos::Center);
        let (x, y) = chart.backend_coord(&(reach, middle));
        root.draw(&Text::new(label, (x + 4, y), style)).drawn()?;
    }
    Ok(())
}

/// A line with a cap at each end.
fn error_bar(
    chart: &mut Chart<'_, '_>,
    [from, to]: [(f64, f64); 2],
    cap: (f64, f64),
) -> LabResult<()> {
    let line = |one: (f64, f64), other: (f64, f64)| {
        PathElement::new(vec![one, other], INK.stroke_width(1))
    };
    let ends = |(x, y): (f64, f64)| line((x - cap.0, y - cap.1), (x + cap.0, y + cap.1));
    chart.draw_series([line(from, to), ends(from), ends(to)]).drawn()?;
    Ok(())
}

/// A value, or a range of them, of one series in one place.
#[derive(Clone, Copy, Debug)]
pub(super) enum Mark {
    /// A bar, and its standard deviation.
    Bar(f64, Option<f64>),
    /// A median, and the 99th percentile.
    Span(f64, f64),
}

impl Mark {
    fn ends(self) -> [f64; 2] {
        match self {
            Mark::Bar(value, sd) => [value, value + sd.unwrap_or(0.0)],
            Mark::Span(median, high) => [median, high],
        }
    }
}

/// What has one colour in all places.
#[derive(Clone, Debug)]
pub(super) struct Series {
    pub(super) name: String,
    pub(super) colour: RGBColor,
    /// Of lines: which mark.
    pub(super) which: Option<usize>,
    /// One for each place of the panel.
    pub(super) marks: Vec<Option<Mark>>,
}

/// Places with a group of marks each.
#[derive(Clone, Debug)]
pub(super) struct GroupPanel {
    pub(super) title: String,
    pub(super) unit: String,
    /// What the places are, under the axis.
    pub(super) below: String,
    pub(super) places: Vec<String>,
    pub(super) series: Vec<Series>,
}

/// Small multiples of grouped marks, so many in a row; all have the same vertical axis.
///
/// # Errors
/// The library's.
pub(super) fn grouped(alt: &str, panels: &[GroupPanel], columns: usize) -> LabResult<String> {
    let mut entries: Vec<(String, Key)> = Vec::new();
    for series in panels.iter().flat_map(|panel| &panel.series) {
        if !entries.iter().any(|(name, _)| *name == series.name) {
            let key = match series.which {
                Some(which) => Key::Line(series.colour, which),
                None => Key::Bar(series.colour),
            };
            entries.push((series.name.clone(), key));
        }
    }
    let all = panels.iter().flat_map(|panel| &panel.series).flat_map(|series| &series.marks);
    let all: Vec<f64> = all.flatten().flat_map(|mark| mark.ends()).collect();
    let unit = panels.first().map_or("", |panel| panel.unit.as_str());
    let y = value_axis(unit, all.into_iter(), 0.05);
    let top = legend_height(&entries);
    let heights = vec![if columns > 1 { 230 } else { 250 }; panels.len().div_ceil(columns.max(1))];
    svg(alt, top + heights.iter().sum::<i32>(), |root| {
        legend(root, &entries)?;
        for (panel, area) in panels.iter().zip(grid(root, top, columns, &heights)) {
            draw_group(root, &area, panel, &y)?;
        }
        Ok(())
    })
}

fn draw_group(root: &Area<'_>, area: &Area<'_>, group: &GroupPanel, y: &Axis) -> LabResult<()> {
    let mut x = Axis::names(&group.places);
    x.title.clone_from(&group.below);
    let mut chart = panel(area, &group.title, (&x, y), 62)?;
    let width = 0.84 / group.series.len().max(1) as f64;
    for (index, series) in group.series.iter().enumerate() {
        let start = |place: usize| place as f64 + 0.08 + width * index as f64;
        let middle = |place: usize| start(place) + width / 2.0;
        let found: Vec<(usize, Mark)> = series
            .marks
            .iter()
            .enumerate()
            .filter_map(|(place, mark)| mark.map(|mark| (place, mark)))
            .collect();
        // One kind after the other, so that each is one path.
        for (place, found) in &found {
            if let Mark::Bar(value, _) = found {
                let from = (start(*place), y.floor());
                let corners = [from, (start(*place) + width, y.place(*value))];
                chart.draw_series([Rectangle::new(corners, series.colour.filled())]).drawn()?;
            }
        }
        for (place, found) in &found {
            let (ends, style) = match found {
                Mark::Bar(value, Some(sd)) if *sd > 0.0 => {
                    ([value - sd, value + sd], INK.stroke_width(1))
                }
                Mark::Bar(..) => continue,
                Mark::Span(median, high) => ([*median, *high], series.colour.stroke_width(3)),
            };
            let line = ends.map(|end| (middle(*place), y.place(end))).to_vec();
            chart.draw_series([PathElement::new(line, style)]).drawn()?;
        }
        for (place, found) in &found {
            if let Mark::Span(median, _) = found {
                let pixel = chart.backend_coord(&(middle(*place), y.place(*median)));
                mark(root, pixel, series.which.unwrap_or(index), series.colour)?;
            }
        }
    }
    Ok(())
}
