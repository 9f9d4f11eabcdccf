//! The figure of `forebay-lab policies`: miss ratios by the size of the cache.

use super::axis::Axis;
use super::figures::{Line, line_legend, line_panel};
use super::svg::figure;

/// An axis for these ratios, which are near each other: it begins at the tenth below the least.
fn ratios(values: impl Iterator<Item = f64>) -> Axis {
    let (least, most) =
        values.fold((1.0f64, 0.0f64), |(least, most), value| (least.min(value), most.max(value)));
    let twentieths = |value: f64| value * 20.0;
    let from = (twentieths(least) / 2.0).floor() as i32 * 2;
    let to = twentieths(most).ceil().max(f64::from(from + 2)) as i32;
    let every = if to - from > 10 { 2 } else { 1 };
    let ticks = (from..=to).filter(|tick| tick % every == 0).map(|tick| f64::from(tick) / 20.0);
    Axis {
        title: "miss ratio".into(),
        range: f64::from(from) / 20.0..f64::from(to) / 20.0,
        ticks: ticks.map(|value| (value, format!("{value:.2}"))).collect(),
        lines: true,
        ..Axis::default()
    }
}

/// Lines by name, each as percent of the blocks and miss ratio, in the order of the sizes.
pub(crate) fn miss_ratios(trace: &str, named: &[(String, Vec<(f64, f64)>)]) -> String {
    let points = || named.iter().flat_map(|(_, points)| points);
    let (least, most) = points()
        .fold((f64::MAX, 0.0f64), |(least, most), (size, _)| (least.min(*size), most.max(*size)));
    let of_blocks = "cache, % of the trace's blocks";
    // Each size has its tick, if there are so few that they fit.
    let mut x = if most > 4.0 * least {
        Axis::logarithmic(of_blocks, least, most)
    } else {
        Axis::linear(of_blocks, most)
    };
    let mut sizes: Vec<f64> = points().map(|(size, _)| *size).collect();
    sizes.sort_by(f64::total_cmp);
    sizes.dedup();
    if sizes.len() <= 8 && x.log {
        x.ticks = sizes.iter().map(|size| (size.log10(), size.to_string())).collect();
    }
    let lines = named.iter().enumerate();
    let lines: Vec<Line> =
        lines.map(|(which, (_, points))| Line::new(which, points.clone())).collect();
    let y = ratios(points().map(|(_, ratio)| *ratio));
    let panels = [line_panel(format!("Blocks missed, {trace}"), x, y, 460, &lines)];
    let names: Vec<String> = named.iter().map(|(name, _)| name.clone()).collect();
    let alt = format!("Miss ratios of replacement policies on {trace}");
    figure(&alt, &line_legend(&names, &panels), &panels, 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_fill_their_axis() {
        let names = |values: &[f64]| -> Vec<String> {
            ratios(values.iter().copied()).ticks.into_iter().map(|(_, name)| name).collect()
        };
        assert_eq!(names(&[0.71, 0.93]), ["0.70", "0.75", "0.80", "0.85", "0.90", "0.95"]);
        assert_eq!(
            names(&[0.05, 0.98]),
            [
                "0.00", "0.10", "0.20", "0.30", "0.40", "0.50", "0.60", "0.70", "0.80", "0.90",
                "1.00"
            ]
        );
        assert_eq!(names(&[0.5]), ["0.50", "0.55", "0.60"]);
        assert!(!names(&[]).is_empty());
    }

    #[test]
    fn each_policy_has_a_line_and_a_name() {
        let line = |name: &str, shift: f64| {
            let points = [1.0, 5.0, 20.0].map(|size| (size, 0.9 - shift - size / 50.0));
            (name.to_owned(), points.to_vec())
        };
        let svg = miss_ratios("a<b", &[line("first", 0.0), line("other", 0.1)]);
        assert!(svg.contains("first") && svg.contains("other") && svg.contains("a&lt;b"));
        assert!(!svg.contains("NaN"));
        assert!(!miss_ratios("x", &[]).contains("NaN"));
    }
}
