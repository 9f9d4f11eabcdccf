//! Axes, panels and legends on SVG: what all figures have in common.

use std::ops::Range;

use plotters::chart::{ChartBuilder, ChartContext};
use plotters::coord::Shift;
use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};
use plotters::prelude::{
    Cartesian2d, Circle, DrawingArea, DrawingAreaErrorKind, IntoDrawingArea, IntoFont, PathElement,
    Rectangle, SVGBackend, Text, WHITE,
};
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{Color, FontStyle, RGBColor, TextStyle};

use crate::error::{LabError, LabResult, other};

use super::compact::compact;
use super::style::{GRID, INK, NORMAL, SMALL, TITLE, WIDTH};

pub(super) type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
pub(super) type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<Axis, Axis>>;

fn failed<E: std::error::Error + Send + Sync>(error: &DrawingAreaErrorKind<E>) -> LabError {
    other(format!("a figure cannot be drawn: {error}"))
}

/// Errors of the library as ours.
pub(super) trait Drawn<T> {
    /// # Errors
    /// It could not be drawn.
    fn drawn(self) -> LabResult<T>;
}

impl<T, E: std::error::Error + Send + Sync> Drawn<T> for Result<T, DrawingAreaErrorKind<E>> {
    fn drawn(self) -> LabResult<T> {
        self.map_err(|error| failed(&error))
    }
}

/// Text of so many pixels.
pub(super) fn text(size: i32, h_pos: HPos, v_pos: VPos) -> TextStyle<'static> {
    // The backend divides by this.
    let font = ("sans-serif", f64::from(size) * 1.24).into_font();
    TextStyle::from(font).color(&INK).pos(Pos::new(h_pos, v_pos))
}

fn bold(size: i32) -> TextStyle<'static> {
    let font = ("sans-serif", f64::from(size) * 1.24).into_font().style(FontStyle::Bold);
    TextStyle::from(font).color(&INK).pos(Pos::new(HPos::Left, VPos::Top))
}

/// About as wide as text is, in pixels.
pub(super) fn width_of(text: &str, size: i32) -> i32 {
    let width = |letter: char| match letter {
        'i' | 'j' | 'l' | 't' | 'f' | 'r' | ' ' | '.' | ',' | '/' | '-' => 0.34,
        'm' | 'w' | 'M' | 'W' | '%' => 0.85,
        letter if letter.is_ascii_digit() || letter.is_ascii_uppercase() => 0.62,
        _ => 0.55,
    };
    (text.chars().map(width).sum::<f64>() * f64::from(size)).ceil() as i32
}

/// Draws a figure of a height; returns it as SVG.
///
/// # Errors
/// The library's.
pub(super) fn svg(
    alt: &str,
    height: i32,
    draw: impl FnOnce(&Area<'_>) -> LabResult<()>,
) -> LabResult<String> {
    let mut text = String::new();
    {
        let size = (WIDTH as u32, height.max(1) as u32);
        let area = SVGBackend::with_string(&mut text, size).into_drawing_area();
        area.fill(&WHITE).drawn()?;
        draw(&area)?;
        area.present().drawn()?;
    }
    Ok(compact(&text, alt))
}

/// One axis: values, how they are placed, and which are named.
#[derive(Clone, Debug)]
pub(super) struct Axis {
    pub(super) title: String,
    pub(super) log: bool,
    /// As placed: of logarithmic axes the logarithms.
    pub(super) range: Range<f64>,
    pub(super) ticks: Vec<(f64, String)>,
    /// Lines across the panel at the ticks.
    pub(super) lines: bool,
}

/// A short number for an axis.
fn tick(value: f64) -> String {
    let round = |value: f64| {
        let text = format!("{value:.3}");
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    };
    match value.abs() {
        1e9.. => format!("{}G", round(value / 1e9)),
        1e6.. => format!("{}M", round(value / 1e6)),
        1e4.. => format!("{}k", round(value / 1e3)),
        _ => round(value),
    }
}

impl Axis {
    /// From 0 to about `most`, with round ticks.
    pub(super) fn linear(title: &str, most: f64) -> Self {
        let most = if most > 0.0 && most.is_finite() { most } else { 1.0 };
        let power = 10f64.powf((most / 4.0).log10().floor());
        let steps = [1.0, 2.0, 2.5, 5.0, 10.0];
        let step = steps.iter().map(|step| step * power).find(|step| most / step <= 4.5);
        let step = step.unwrap_or(10.0 * power);
        let count = (most / step + 1e-9).floor() as usize;
        let ticks = (0..=count).map(|place| place as f64 * step);
        Axis {
            title: title.into(),
            log: false,
            range: 0.0..most,
            ticks: ticks.map(|value| (value, tick(value))).collect(),
            lines: true,
        }
    }

    /// Over these values, logarithmically; they are above 0.
    pub(super) fn logarithmic(title: &str, least: f64, most: f64) -> Self {
        let (least, most) =
            if least > 0.0 && most.is_finite() { (least, most) } else { (1.0, 10.0) };
        let range = least.log10()..most.log10().max(least.log10() + 1.0);
        let decades = range.start.ceil() as i32..=range.end.floor() as i32;
        let every = if decades.clone().count() > 6 { 2 } else { 1 };
        let mut ticks: Vec<(f64, String)> = decades
            .filter(|decade| decade % every == 0)
            .map(|decade| (f64::from(decade), tick(10f64.powi(decade))))
            .collect();
        if range.end - range.start < 1.7 {
            let more = [2.0, 5.0].iter().flat_map(|factor: &f64| {
                let decades = range.start.floor() as i32..=range.end.floor() as i32;
                decades.map(move |decade| (decade, *factor))
            });
            for (decade, factor) in more {
                let place = f64::from(decade) + factor.log10();
                if range.contains(&place) {
                    ticks.push((place, tick(factor * 10f64.powi(decade))));
                }
            }
            ticks.sort_by(|one, other| one.0.total_cmp(&other.0));
        }
        Axis { title: title.into(), log: true, range, ticks, lines: true }
    }

    /// Names in a row, each in the middle of a place of width 1.
    pub(super) fn names(names: &[String]) -> Self {
        let ticks = names.iter().enumerate();
        Axis {
            title: String::new(),
            log: false,
            range: 0.0..names.len().max(1) as f64,
            ticks: ticks.map(|(place, name)| (place as f64 + 0.5, name.clone())).collect(),
            lines: false,
        }
    }

    /// With every second name, if all of them do not fit into so many pixels.
    fn thinned(&self, width: i32) -> Self {
        let names = self.ticks.len().max(1) as i32;
        let widest = self.ticks.iter().map(|(_, name)| width_of(name, SMALL)).max().unwrap_or(0);
        let mut thinned = self.clone();
        if !self.lines && (widest + 3) * names > width {
            thinned.ticks = self.ticks.iter().step_by(2).cloned().collect();
        }
        thinned
    }

    /// Where a value is placed; never outside.
    pub(super) fn place(&self, value: f64) -> f64 {
        let place = if self.log { value.max(1e-300).log10() } else { value };
        place.clamp(self.range.start, self.range.end)
    }

    /// Where bars begin.
    pub(super) fn floor(&self) -> f64 {
        self.range.start
    }
}

impl Ranged for Axis {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, place: &f64, (from, to): (i32, i32)) -> i32 {
        let share = (place - self.range.start) / (self.range.end - self.range.start);
        from + (share * f64::from(to - from)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        if hint.weight().allow_light_points() {
            return Vec::new();
        }
        self.ticks.iter().map(|(place, _)| *place).collect()
    }

    fn range(&self) -> Range<f64> {
        self.range.clone()
    }
}

impl ValueFormatter<f64> for Axis {
    fn format_ext(&self, place: &f64) -> String {
        let same = |(tick, _): &&(f64, String)| (tick - place).abs() < 1e-9;
        self.ticks.iter().find(same).map(|(_, name)| name.clone()).unwrap_or_default()
    }
}

/// A panel with a title over it; `left` pixels are for the names of the vertical axis.
///
/// # Errors
/// The library's.
pub(super) fn panel<'a, 'b>(
    area: &'a Area<'b>,
    title: &str,
    (x, y): (&Axis, &Axis),
    left: i32,
) -> LabResult<Chart<'a, 'b>> {
    let below = if x.title.is_empty() { 24 } else { 40 };
    let x = &x.thinned(area.dim_in_pixel().0 as i32 - left - 16);
    area.draw(&Text::new(title.to_owned(), (8, 4), bold(TITLE))).drawn()?;
    let mut chart = ChartBuilder::on(area)
        .margin_top(26)
        .margin_right(12)
        .margin_left(4)
        .margin_bottom(4)
        .x_label_area_size(below)
        .y_label_area_size(left)
        .build_cartesian_2d(x.clone(), y.clone())
        .drawn()?;
    let mut mesh = chart.configure_mesh();
    mesh.bold_line_style(GRID.stroke_width(1))
        .light_line_style(GRID.stroke_width(0))
        .axis_style(INK.stroke_width(1))
        .label_style(text(SMALL, HPos::Center, VPos::Center))
        .x_label_style(text(SMALL, HPos::Center, VPos::Top))
        .axis_desc_style(text(NORMAL, HPos::Center, VPos::Top))
        .set_all_tick_mark_size(4);
    if !x.lines {
        mesh.disable_x_mesh();
    }
    if !y.lines {
        mesh.disable_y_mesh();
    }
    if !x.title.is_empty() {
        mesh.x_desc(x.title.clone());
    }
    if !y.title.is_empty() {
        mesh.y_desc(y.title.clone());
    }
    mesh.draw().drawn()?;
    Ok(chart)
}

/// How an entry of a legend looks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Key {
    Bar(RGBColor),
    Line(RGBColor, usize),
}

const ROW: i32 = 20;

fn places(entries: &[(String, Key)]) -> (Vec<(i32, i32)>, i32) {
    let (mut x, mut y) = (12, 4);
    let mut places = Vec::new();
    for (name, _) in entries {
        let width = 34 + width_of(name, NORMAL) + 14;
        if x > 12 && x + width > WIDTH - 8 {
            (x, y) = (12, y + ROW);
        }
        places.push((x, y));
        x += width;
    }
    (places, if entries.is_empty() { 0 } else { y + ROW + 4 })
}

/// How high a legend is.
pub(super) fn legend_height(entries: &[(String, Key)]) -> i32 {
    places(entries).1
}

/// A legend at the top of a figure, above all panels.
///
/// # Errors
/// The library's.
pub(super) fn legend(area: &Area<'_>, entries: &[(String, Key)]) -> LabResult<()> {
    for ((name, key), (x, y)) in entries.iter().zip(places(entries).0) {
        let middle = y + ROW / 2;
        match key {
            Key::Bar(colour) => {
                let corners = [(x + 6, middle - 6), (x + 26, middle + 6)];
                area.draw(&Rectangle::new(corners, colour.filled())).drawn()?;
                area.draw(&Rectangle::new(corners, INK.stroke_width(1))).drawn()?;
            }
            Key::Line(colour, which) => {
                let line = vec![(x, middle), (x + 28, middle)];
                area.draw(&PathElement::new(line, colour.stroke_width(2))).drawn()?;
                mark(area, (x + 14, middle), *which, *colour)?;
            }
        }
        let style = text(NORMAL, HPos::Left, VPos::Center);
        area.draw(&Text::new(name.clone(), (x + 34, middle), style)).drawn()?;
    }
    Ok(())
}

/// A mark that tells one line from another: filled or hollow, round or square.
///
/// # Errors
/// The library's.
pub(super) fn mark(
    area: &Area<'_>,
    (x, y): (i32, i32),
    which: usize,
    colour: RGBColor,
) -> LabResult<()> {
    let square = [(x - 3, y - 3), (x + 3, y + 3)];
    // Colours begin again after eight; the marks are others then.
    match (which + which / 8) % 4 {
        0 => area.draw(&Circle::new((x, y), 3, colour.filled())).drawn(),
        1 => area.draw(&Rectangle::new(square, colour.filled())).drawn(),
        2 => {
            area.draw(&Circle::new((x, y), 3, WHITE.filled())).drawn()?;
            area.draw(&Circle::new((x, y), 3, colour.stroke_width(1))).drawn()
        }
        _ => {
            area.draw(&Rectangle::new(square, WHITE.filled())).drawn()?;
            area.draw(&Rectangle::new(square, colour.stroke_width(1))).drawn()
        }
    }
}

/// Places for panels: so many columns, rows of these heights, below `top`.
pub(super) fn grid<'b>(
    root: &Area<'b>,
    top: i32,
    columns: usize,
    heights: &[i32],
) -> Vec<Area<'b>> {
    let width = WIDTH / columns.max(1) as i32;
    let mut y = top;
    let mut areas = Vec::new();
    for height in heights {
        for column in 0..columns as i32 {
            areas.push(root.clone().shrink((column * width, y), (width, *height)));
        }
        y += height;
    }
    areas
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(axis: &Axis) -> Vec<&str> {
        axis.ticks.iter().map(|(_, name)| name.as_str()).collect()
    }

    #[test]
    fn ticks_are_round() {
        assert_eq!(names(&Axis::linear("", 1.0)), ["0", "0.25", "0.5", "0.75", "1"]);
        assert_eq!(names(&Axis::linear("", 317_000.0)), ["0", "100k", "200k", "300k"]);
        assert_eq!(names(&Axis::linear("", 0.0)), names(&Axis::linear("", 1.0)));
        assert_eq!(names(&Axis::logarithmic("", 3.0, 40_000.0)), ["10", "100", "1000", "10k"]);
        assert_eq!(names(&Axis::logarithmic("", 3.0, 40.0)), ["5", "10", "20"]);
        assert_eq!(
            names(&Axis::logarithmic("", f64::NAN, 40.0)),
            names(&Axis::logarithmic("", 1.0, 10.0))
        );
    }

    #[test]
    fn nothing_is_placed_outside() {
        let axis = Axis::logarithmic("", 1.0, 100.0);
        for value in [0.0, -1.0, 1e9, f64::INFINITY] {
            assert!((0.0..=2.0).contains(&axis.place(value)), "{value}");
        }
    }
}
