//! Figures as SVG: small multiples of panels with axes, under one legend. What has one style and is
//! drawn one after the other is one path, as the figures are committed.

use std::fmt::Write as _;

use super::axis::{Axis, SMALL, width_of};
use super::colours::{Colour, GRID, INK, WHITE, hex};
use super::words::escape;

/// Of figures, in pixels; on A4 a pixel is then 0.2 mm, and the smallest text 7 points.
const WIDTH: i32 = 860;

/// Higher figures do not fit on a page of A4.
pub(super) const HIGHEST: i32 = 1170;

/// Sizes of text that is not small.
const NORMAL: i32 = 13;
const TITLE: i32 = 14;

/// As values of both axes.
type Point = (f64, f64);

/// What is drawn in a panel.
#[derive(Clone, Debug)]
pub(super) enum Shape {
    /// Between two corners.
    Bar([Point; 2], Colour),
    /// A line that is so wide; which one it is decides where it carries marks, if it does.
    Line(Vec<Point>, Colour, i32, Option<usize>),
    Mark(Point, usize, Colour),
    /// Text to the right of a point.
    Label(Point, String),
}

/// Axes with a title over them.
#[derive(Clone, Debug)]
pub(super) struct Panel {
    pub(super) title: String,
    pub(super) x: Axis,
    pub(super) y: Axis,
    /// Pixels for the names of the vertical axis, and of the whole panel.
    pub(super) left: i32,
    pub(super) height: i32,
    pub(super) shapes: Vec<Shape>,
}

/// How an entry of a legend looks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Key {
    Bar(Colour),
    Line(Colour, usize),
}

/// How high a row of panels is.
pub(super) fn row_height(panels: &[Panel]) -> i32 {
    panels.iter().map(|panel| panel.height).max().unwrap_or(0)
}

/// A figure of panels, so many in a row; `alt` says in words what it shows.
pub(super) fn figure(
    alt: &str,
    legend: &[(String, Key)],
    panels: &[Panel],
    columns: usize,
) -> String {
    let (places, top) = places(legend);
    let height = top + panels.chunks(columns).map(row_height).sum::<i32>();
    let mut svg = Svg::default();
    svg.path(&format!("fill=\"{}\"", hex(WHITE)), &rectangle((0, 0), (WIDTH, height)));
    for ((name, key), place) in legend.iter().zip(places) {
        svg.legend(name, *key, place);
    }
    let mut y = top;
    for row in panels.chunks(columns) {
        for (column, panel) in (0..).zip(row) {
            let width = WIDTH / columns as i32;
            svg.panel(panel, (column * width, y), width);
        }
        y += row_height(row);
    }
    svg.flush();
    format!(
        "<svg role=\"img\" aria-label=\"{}\" font-family=\"sans-serif\" font-size=\"{SMALL}\" \
         width=\"{WIDTH}\" height=\"{height}\" viewBox=\"0 0 {WIDTH} {height}\" \
         xmlns=\"http://www.w3.org/2000/svg\">\n{}</svg>\n",
        escape(alt),
        svg.out
    )
}

const ROW: i32 = 20;

/// Where the entries of a legend are, and how high it is.
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

fn rectangle((x, y): (i32, i32), (right, bottom): (i32, i32)) -> String {
    let ((x, right), (y, bottom)) = ((x.min(right), x.max(right)), (y.min(bottom), y.max(bottom)));
    let (width, height) = (right - x, bottom - y);
    format!("M{x},{y}h{width}v{height}h-{width}z")
}

fn line(points: &[(i32, i32)]) -> String {
    let points: Vec<String> = points.iter().map(|(x, y)| format!("{x},{y}")).collect();
    format!("M{}", points.join(" ").replacen(' ', "L", 1))
}

fn stroke(colour: Colour, width: i32) -> String {
    let width = if width == 1 { String::new() } else { format!(" stroke-width=\"{width}\"") };
    format!("fill=\"none\" stroke=\"{}\"{width}", hex(colour))
}

fn fill(colour: Colour) -> String {
    format!("fill=\"{}\"", hex(colour))
}

#[derive(Default)]
struct Svg {
    out: String,
    /// Style and outline of what was drawn last.
    path: (String, String),
}

impl Svg {
    fn flush(&mut self) {
        let (style, outline) = std::mem::take(&mut self.path);
        if !outline.is_empty() {
            let _ = writeln!(self.out, "<path {style} d=\"{outline}\"/>");
        }
    }

    fn path(&mut self, style: &str, outline: &str) {
        if self.path.0 != style {
            self.flush();
            self.path.0 = style.to_owned();
        }
        self.path.1.push_str(outline);
    }

    /// Text; `down` is how far its base line is below `y`, as a share of its size.
    fn text(&mut self, style: &str, size: i32, (x, y): (i32, i32), down: f64, text: &str) {
        self.flush();
        let y = f64::from(y) + down * f64::from(size);
        let size = if size == SMALL { String::new() } else { format!(" font-size=\"{size}\"") };
        let text = escape(text);
        let _ = writeln!(self.out, "<text x=\"{x}\" y=\"{y:.0}\"{size}{style}>{text}</text>");
    }

    fn legend(&mut self, name: &str, key: Key, (x, y): (i32, i32)) {
        let middle = y + ROW / 2;
        match key {
            Key::Bar(colour) => {
                let bar = rectangle((x + 6, middle - 6), (x + 26, middle + 6));
                self.path(&fill(colour), &bar);
                self.path(&stroke(INK, 1), &bar);
            }
            Key::Line(colour, which) => {
                self.path(&stroke(colour, 2), &line(&[(x, middle), (x + 28, middle)]));
                self.mark((x + 14, middle), which, colour);
            }
        }
        self.text("", NORMAL, (x + 34, middle), 0.27, name);
    }

    /// A mark that tells one line from another: filled or hollow, round or square.
    fn mark(&mut self, (x, y): (i32, i32), which: usize, colour: Colour) {
        // Colours begin again after eight; the marks are others then.
        let which = (which + which / 8) % 4;
        let (inside, hollow) = if which < 2 { (colour, false) } else { (WHITE, true) };
        let outline = if which.is_multiple_of(2) {
            format!("M{},{y}a3,3 0 1 0 6,0a3,3 0 1 0 -6,0z", x - 3)
        } else {
            rectangle((x - 3, y - 3), (x + 3, y + 3))
        };
        self.path(&fill(inside), &outline);
        if hollow {
            self.path(&stroke(colour, 1), &outline);
        }
    }

    fn panel(&mut self, panel: &Panel, (left, top): (i32, i32), width: i32) {
        let below = if panel.x.title.is_empty() { 24 } else { 40 };
        let (from, to) = (left + 4 + panel.left, left + width - 13);
        let (high, low) = (top + 26, top + panel.height - 5 - below);
        let x_ticks = panel.x.shown_ticks(width - panel.left - 16);
        let x_pixels: Vec<i32> =
            x_ticks.iter().map(|tick| panel.x.pixel_of_place(tick.0, from, to)).collect();
        let y_pixels: Vec<i32> =
            panel.y.ticks.iter().map(|tick| panel.y.pixel_of_place(tick.0, low, high)).collect();
        self.text(" font-weight=\"bold\"", TITLE, (left + 8, top + 4), 0.76, &panel.title);
        let middle = " text-anchor=\"middle\"";
        if !panel.y.title.is_empty() {
            let (x, y) = (left + 4, (high + low + 1) / 2);
            let turned = format!("{middle} dy=\"0.76em\" transform=\"rotate(270, {x}, {y})\"");
            self.text(&turned, NORMAL, (x, y), 0.0, &panel.y.title);
        }
        if !panel.x.title.is_empty() {
            let place = ((from + to + 1) / 2, top + panel.height - 18);
            self.text(middle, NORMAL, place, 0.76, &panel.x.title);
        }
        for x in x_pixels.iter().filter(|_| panel.x.lines) {
            self.path(&stroke(GRID, 1), &line(&[(*x, low), (*x, high)]));
        }
        for y in y_pixels.iter().filter(|_| panel.y.lines) {
            self.path(&stroke(GRID, 1), &line(&[(from, *y), (to, *y)]));
        }
        for (y, (_, name)) in y_pixels.iter().zip(&panel.y.ticks) {
            self.text(" text-anchor=\"end\"", SMALL, (from - 8, *y), 0.27, name);
        }
        for (x, (_, name)) in x_pixels.iter().zip(x_ticks) {
            self.text(middle, SMALL, (*x, low + 9), 0.76, name);
        }
        let axes = stroke(INK, 1);
        self.path(&axes, &line(&[(from - 1, high), (from - 1, low)]));
        for y in y_pixels {
            self.path(&axes, &line(&[(from - 5, y), (from - 1, y)]));
        }
        self.path(&axes, &line(&[(from, low + 1), (to, low + 1)]));
        for x in x_pixels {
            self.path(&axes, &line(&[(x, low + 1), (x, low + 5)]));
        }
        let pixel = |(x, y): &Point| (panel.x.pixel(*x, from, to), panel.y.pixel(*y, low, high));
        for shape in &panel.shapes {
            self.shape(shape, pixel);
        }
    }

    fn shape(&mut self, shape: &Shape, pixel: impl Fn(&Point) -> (i32, i32)) {
        match shape {
            Shape::Bar([one, other], colour) => {
                self.path(&fill(*colour), &rectangle(pixel(one), pixel(other)));
            }
            Shape::Line(points, colour, width, which) => {
                let pixels: Vec<(i32, i32)> = points.iter().map(pixel).collect();
                self.path(&stroke(*colour, *width), &line(&simplified(&pixels)));
                for place in which.iter().flat_map(|which| marked(&pixels, *which)) {
                    self.mark(place, which.unwrap_or(0), *colour);
                }
            }
            Shape::Mark(point, which, colour) => self.mark(pixel(point), *which, *colour),
            Shape::Label(point, text) => {
                let (x, y) = pixel(point);
                self.text("", SMALL, (x + 4, y), 0.27, text);
            }
        }
    }
}

/// Where a line carries its marks: five, or one if it is short, evenly along the horizontal axis, at
/// other places for each line.
fn marked(points: &[(i32, i32)], which: usize) -> Vec<(i32, i32)> {
    let (Some(first), Some(last)) = (points.first(), points.last()) else {
        return Vec::new();
    };
    let shift = (which % 6) as f64 * 0.15 + 0.1;
    let count = if last.0 - first.0 > 100 { 5 } else { 1 };
    let mark = |place: i32| {
        let share = (f64::from(place) + shift) / f64::from(count);
        let x = f64::from(first.0) + share * f64::from(last.0 - first.0);
        let over = |pair: &&[(i32, i32)]| f64::from(pair[0].0) <= x && x < f64::from(pair[1].0);
        let [from, to] = *points.windows(2).find(over)? else { return None };
        let along = (x - f64::from(from.0)) / f64::from(to.0 - from.0);
        let y = f64::from(from.1) + along * f64::from(to.1 - from.1);
        Some((x.round() as i32, y.round() as i32))
    };
    (0..count).filter_map(mark).collect()
}

/// The points of a line that are needed so that none is further than a pixel from it
/// (Ramer, Douglas and Peucker).
fn simplified(points: &[(i32, i32)]) -> Vec<(i32, i32)> {
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
            open.extend([(from, at), (at, to)]);
        }
    }
    points.iter().zip(kept).filter(|(_, kept)| *kept).map(|(point, _)| *point).collect()
}

/// Of a point from a line.
fn distance(point: (i32, i32), from: (i32, i32), to: (i32, i32)) -> f64 {
    let less = |one: (i32, i32), two: (i32, i32)| {
        (f64::from(one.0) - f64::from(two.0), f64::from(one.1) - f64::from(two.1))
    };
    let ((dx, dy), (x, y)) = (less(to, from), less(point, from));
    let length = dx.hypot(dy);
    if length == 0.0 { x.hypot(y) } else { (dx * y - dy * x).abs() / length }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn straight_lines_need_two_points() {
        let straight: Vec<(i32, i32)> = (0..100).map(|x| (x, 2 * x)).collect();
        assert_eq!(simplified(&straight), [(0, 0), (99, 198)]);
        let bent = [(0, 0), (50, 0), (50, 50), (50, 90)];
        assert_eq!(simplified(&bent), [bent[0], bent[1], bent[3]]);
        assert_eq!(simplified(&[]), []);
    }

    #[test]
    fn neighbours_of_one_style_are_put_together() {
        let mut svg = Svg::default();
        svg.path("a", "M1,2");
        svg.path("a", "M3,4");
        svg.path("b", &rectangle((4, 6), (1, 2)));
        svg.text("", SMALL, (1, 2), 0.76, "a<b");
        svg.flush();
        let expected = "<path a d=\"M1,2M3,4\"/>\n<path b d=\"M1,2h3v4h-3z\"/>\n\
                        <text x=\"1\" y=\"11\">a&lt;b</text>\n";
        assert_eq!(svg.out, expected);
    }
}
