//! A screen as SVG, for the documentation. Text is text; lines over time and the heat map are
//! areas.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use ratatui::buffer::{Buffer, Cell};
use ratatui::style::{Color, Modifier};

/// The size of a cell, and of a margin around all.
const WIDTH: usize = 8;
const HEIGHT: usize = 17;
const MARGIN: usize = 8;

const BACKGROUND: &str = "#12161c";
const FOREGROUND: &str = "#d5dbe3";

/// Returns the buffer as a picture.
pub(super) fn picture(title: &str, buffer: &Buffer) -> String {
    let (columns, rows) = (usize::from(buffer.area.width), usize::from(buffer.area.height));
    let (width, height) = (columns * WIDTH + 2 * MARGIN, rows * HEIGHT + 2 * MARGIN);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" role=\"img\" aria-label=\"{title}\" \
         font-family=\"ui-monospace, 'DejaVu Sans Mono', monospace\" font-size=\"13\">\n\
         <rect width=\"{width}\" height=\"{height}\" rx=\"6\" fill=\"{BACKGROUND}\"/>\n\
         <g transform=\"translate({MARGIN} {MARGIN})\" xml:space=\"preserve\">\n"
    );
    let mut areas = BTreeMap::<(&str, usize), String>::new();
    let mut text = String::new();
    for (row, cells) in buffer.content().chunks(columns.max(1)).enumerate() {
        for run in runs(cells, |cell| {
            let (_, back) = colours(cell);
            (back != BACKGROUND).then_some((back, Area { height: HEIGHT, percent: 100 }))
        }) {
            add(&mut areas, row, run);
        }
        for run in runs(cells, |cell| Some((colours(cell).0, area(cell.symbol())?))) {
            add(&mut areas, row, run);
        }
        write_text(&mut text, row, cells);
    }
    for ((colour, percent), path) in areas {
        let opacity =
            if percent == 100 { String::new() } else { format!(" fill-opacity=\".{percent}\"") };
        let _ = writeln!(svg, "<path fill=\"{colour}\"{opacity} d=\"{path}\"/>");
    }
    svg + &text + "</g>\n</svg>\n"
}

/// The area that a block character covers, from the bottom of its cell.
#[derive(Clone, Copy, PartialEq)]
struct Area {
    height: usize,
    percent: usize,
}

fn area(symbol: &str) -> Option<Area> {
    let bars = ["▁", "▂", "▃", "▄", "▅", "▆", "▇"];
    if let Some(place) = bars.iter().position(|bar| *bar == symbol) {
        return Some(Area { height: HEIGHT * (place + 1) / 8, percent: 100 });
    }
    let shades = [("░", 30), ("▒", 55), ("▓", 80), ("█", 100)];
    let percent = shades.iter().find(|(shade, _)| *shade == symbol)?.1;
    Some(Area { height: HEIGHT, percent })
}

fn add(
    areas: &mut BTreeMap<(&'static str, usize), String>,
    row: usize,
    run: CellRun<(&'static str, Area)>,
) {
    let (colour, Area { height, percent }) = run.what;
    let path = areas.entry((colour, percent)).or_default();
    let (x, y, width) = (run.start * WIDTH, (row + 1) * HEIGHT, run.length * WIDTH);
    let _ = write!(path, "M{x} {y}h{width}v-{height}h-{width}z");
}

fn write_text(svg: &mut String, row: usize, cells: &[Cell]) {
    let style = |cell: &Cell| {
        let shown = cell.symbol() != " " && area(cell.symbol()).is_none();
        shown.then(|| (colours(cell).0, cell.modifier & (Modifier::BOLD | Modifier::UNDERLINED)))
    };
    for run in runs(cells, style) {
        let symbols = cells.iter().skip(run.start).take(run.length).map(Cell::symbol);
        let text: String = symbols.collect();
        let text = text.replace('&', "&amp;").replace('<', "&lt;");
        let (colour, modifier) = run.what;
        let bold = if modifier.contains(Modifier::BOLD) { " font-weight=\"bold\"" } else { "" };
        let line = modifier.contains(Modifier::UNDERLINED);
        let line = if line { " text-decoration=\"underline\"" } else { "" };
        let (x, y, width) = (run.start * WIDTH, row * HEIGHT + 13, run.length * WIDTH);
        let _ = writeln!(
            svg,
            "<text x=\"{x}\" y=\"{y}\" textLength=\"{width}\" fill=\"{colour}\"{bold}{line}>{text}</text>"
        );
    }
}

/// Neighbouring cells that are alike.
struct CellRun<T> {
    start: usize,
    length: usize,
    what: T,
}

fn runs<T: PartialEq>(cells: &[Cell], what: impl Fn(&Cell) -> Option<T>) -> Vec<CellRun<T>> {
    let mut runs = Vec::<CellRun<T>>::new();
    for (place, cell) in cells.iter().enumerate() {
        let Some(what) = what(cell) else { continue };
        match runs.last_mut() {
            Some(run) if run.start + run.length == place && run.what == what => run.length += 1,
            _ => runs.push(CellRun { start: place, length: 1, what }),
        }
    }
    runs
}

/// Returns the colours of the character and of its background.
fn colours(cell: &Cell) -> (&'static str, &'static str) {
    let colour = match cell.fg {
        Color::Cyan => "#4fc1d9",
        Color::Green => "#7fc06e",
        Color::Yellow => "#e0b457",
        Color::Red => "#e8685c",
        Color::Blue => "#5b8fd6",
        Color::DarkGray => "#7f8a98",
        _ => FOREGROUND,
    };
    if cell.modifier.contains(Modifier::REVERSED) {
        (BACKGROUND, colour)
    } else {
        (colour, BACKGROUND)
    }
}
