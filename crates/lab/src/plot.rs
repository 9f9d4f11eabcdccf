//! Line charts as SVG, for which plotters has the axes, the keys and the escapes. Only courses are
//! drawn: latencies, runs over time, miss ratios by size. Values beside each other are tables.

use plotters::coord::Shift;
use plotters::prelude::*;

use crate::error::{LabResult, other};

/// Width and height of a chart, in pixels.
const SIZE: (u32, u32) = (560, 320);

/// The direction of an axis.
pub(crate) struct Axis {
    pub(crate) title: &'static str,
    /// Each power of ten takes as much room.
    pub(crate) log: bool,
}

/// Named lines over one pair of axes.
pub(crate) struct Chart {
    pub(crate) title: String,
    pub(crate) x: Axis,
    pub(crate) y: Axis,
    pub(crate) lines: Vec<(String, Vec<(f64, f64)>)>,
}

impl Axis {
    /// Returns where a value is drawn.
    fn place(&self, value: f64) -> f64 {
        if self.log { value.max(1e-6).log10() } else { value }
    }

    /// Returns the ends of the axis; a linear one begins at 0 unless all values are near each
    /// other.
    fn range(&self, values: impl Iterator<Item = f64>) -> std::ops::Range<f64> {
        let places = values.filter(|value| value.is_finite()).map(|value| self.place(value));
        let (least, most) =
            places.fold((f64::MAX, f64::MIN), |(least, most), it| (least.min(it), most.max(it)));
        if least > most {
            return 0.0..1.0;
        }
        let start = if self.log || least > most / 2.0 { least } else { least.min(0.0) };
        start..most.max(start + 1e-3)
    }

    fn label(&self, place: f64) -> String {
        let value = if self.log { 10f64.powf(place) } else { place };
        let digits = if value.abs() < 10.0 { 3 } else { 0 };
        let text = format!("{value:.digits$}");
        let text =
            if digits > 0 { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
        text.to_owned()
    }
}

impl Chart {
    fn draw<B: DrawingBackend>(&self, area: &DrawingArea<B, Shift>) -> Result<(), String> {
        let failed = |error: DrawingAreaErrorKind<B::ErrorType>| error.to_string();
        let points = || self.lines.iter().flat_map(|(_, points)| points);
        let x = self.x.range(points().map(|(x, _)| *x));
        let y = self.y.range(points().map(|(_, y)| *y));
        let mut chart = ChartBuilder::on(area)
            .caption(&self.title, ("sans-serif", 15))
            .margin(8)
            .x_label_area_size(36)
            .y_label_area_size(56)
            .build_cartesian_2d(x, y)
            .map_err(failed)?;
        chart
            .configure_mesh()
            .light_line_style(TRANSPARENT)
            .x_desc(self.x.title)
            .y_desc(self.y.title)
            .x_label_formatter(&|place| self.x.label(*place))
            .y_label_formatter(&|place| self.y.label(*place))
            .draw()
            .map_err(failed)?;
        for (number, (name, points)) in self.lines.iter().enumerate() {
            let style = Palette99::pick(number).stroke_width(2);
            let placed = points.iter().filter(|(x, y)| x.is_finite() && y.is_finite());
            let placed = placed.map(|(x, y)| (self.x.place(*x), self.y.place(*y)));
            let line = LineSeries::new(placed, style);
            let key = move |(x, y)| PathElement::new([(x, y), (x + 16, y)], style);
            chart.draw_series(line).map_err(failed)?.label(name).legend(key);
        }
        let mut names = chart.configure_series_labels();
        names.background_style(WHITE.mix(0.8)).border_style(BLACK.mix(0.3)).draw().map_err(failed)
    }
}

/// Draws charts beside and below each other.
pub(crate) fn svg(charts: &[Chart]) -> LabResult<String> {
    let columns = charts.len().clamp(1, 2);
    let rows = charts.len().div_ceil(columns).max(1);
    let mut text = String::new();
    let size = (SIZE.0 * columns as u32, SIZE.1 * rows as u32);
    let mut draw = || -> Result<(), String> {
        let page = SVGBackend::with_string(&mut text, size).into_drawing_area();
        page.fill(&WHITE).map_err(|error| error.to_string())?;
        for (area, chart) in page.split_evenly((rows, columns)).iter().zip(charts) {
            chart.draw(area)?;
        }
        page.present().map_err(|error| error.to_string())
    };
    draw().map_err(|error| other(format!("the figure cannot be drawn: {error}")))?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(lines: Vec<(String, Vec<(f64, f64)>)>) -> Chart {
        let axis = |log| Axis { title: "size", log };
        Chart { title: "a<b".to_owned(), x: axis(true), y: axis(false), lines }
    }

    #[test]
    fn every_line_has_its_name_and_text_is_escaped() {
        let line = |name: &str, shift: f64| {
            (name.to_owned(), vec![(1.0, 0.9 - shift), (5.0, 0.8), (20.0, f64::NAN)])
        };
        let charts = [chart(vec![line("first", 0.0), line("other", 0.1)]), chart(Vec::new())];
        let text = svg(&charts).expect("draws");
        assert!(text.contains("first") && text.contains("other") && text.contains("a&lt;b"));
        assert!(!text.contains("NaN"));
        assert_eq!(text, svg(&charts).expect("draws"), "equal input, equal bytes");
    }

    #[test]
    fn axes_begin_at_0_unless_all_values_are_near_each_other() {
        let axis = Axis { title: "", log: false };
        assert_eq!(axis.range([3.0, 1.0].into_iter()), 0.0..3.0);
        assert_eq!(axis.range([3.0, 2.0].into_iter()), 2.0..3.0);
        assert_eq!(axis.range(std::iter::empty()), 0.0..1.0);
        assert_eq!((axis.label(0.25), axis.label(1500.0)), ("0.25".into(), "1500".into()));
    }
}
