//! The curve as SVG: two lines and two axes, too little for a library.

use std::fmt::Write;

use forebay_admin::curve::CurveRow;
use forebay_core::units::format_size;

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 400.0;
const LEFT: f64 = 56.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 48.0;

const READS: &str = "#1f6fb4";
const ALL: &str = "#c26a1b";

fn escaped(text: &str) -> String {
    let escape = |letter: char| match letter {
        '&' => "&amp;".to_owned(),
        '<' => "&lt;".to_owned(),
        '>' => "&gt;".to_owned(),
        letter if letter.is_control() => " ".to_owned(),
        letter => letter.to_string(),
    };
    text.chars().map(escape).collect()
}

/// Draws hit ratios by size on a logarithmic axis, for all accesses and, if there are any, for
/// reads, with an error band around the first line.
pub(super) fn svg(title: &str, reads: bool, curve: &[CurveRow]) -> String {
    let log = |bytes: u64| (bytes.max(1) as f64).log2();
    let first = curve.first().map_or(0.0, |row| log(row.bytes));
    let span = (curve.last().map_or(0.0, |row| log(row.bytes)) - first).max(0.01);
    let x = |bytes: u64| LEFT + (log(bytes) - first) / span * (WIDTH - LEFT - RIGHT);
    let y = |share: f64| TOP + (1.0 - share.clamp(0.0, 1.0)) * (HEIGHT - TOP - BOTTOM);
    let path = |points: &mut dyn Iterator<Item = (u64, f64)>| -> String {
        let points = points.map(|(bytes, share)| format!("{:.1},{:.1}", x(bytes), y(share)));
        points.collect::<Vec<_>>().join(" ")
    };

    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n\
         <text x=\"{LEFT}\" y=\"22\" font-size=\"15\" font-weight=\"bold\">Hits by size of the cache, {}</text>\n",
        escaped(title)
    );
    for tenths in (0..=10).step_by(2) {
        let (share, right) = (f64::from(tenths) / 10.0, WIDTH - RIGHT);
        let _ = writeln!(
            svg,
            "<line x1=\"{LEFT}\" x2=\"{right}\" y1=\"{0:.1}\" y2=\"{0:.1}\" stroke=\"#ddd\"/>\
             <text x=\"{1}\" y=\"{2:.1}\" text-anchor=\"end\">{3} %</text>",
            y(share),
            LEFT - 6.0,
            y(share) + 4.0,
            tenths * 10
        );
    }
    let doublings =
        (first.ceil() as u32..=(first + span).floor() as u32).filter(|power| *power < 64);
    let every = (span / 9.0).ceil().max(1.0) as usize;
    for power in doublings.step_by(every) {
        let (bytes, bottom) = (1u64 << power, HEIGHT - BOTTOM);
        let _ = writeln!(
            svg,
            "<line x1=\"{0:.1}\" x2=\"{0:.1}\" y1=\"{TOP}\" y2=\"{bottom}\" stroke=\"#eee\"/>\
             <text x=\"{0:.1}\" y=\"{1}\" text-anchor=\"middle\">{2}</text>",
            x(bytes),
            bottom + 18.0,
            format_size(bytes)
        );
    }
    let upper = curve.iter().map(|row| (row.bytes, row.hits().share + row.hits().error));
    let lower = curve.iter().rev().map(|row| (row.bytes, row.hits().share - row.hits().error));
    let colour = if reads { READS } else { ALL };
    let band = path(&mut upper.chain(lower));
    let _ = writeln!(svg, "<polygon points=\"{band}\" fill=\"{colour}\" fill-opacity=\"0.15\"/>");
    let of_reads = path(&mut curve.iter().filter_map(|row| Some((row.bytes, row.reads?.share))));
    let of_all = path(&mut curve.iter().map(|row| (row.bytes, row.all.share)));
    let lines = [(reads, "reads", READS, of_reads), (true, "reads and writes", ALL, of_all)];
    let mut legend = LEFT + 10.0;
    for (_, name, colour, points) in lines.iter().filter(|(shown, ..)| *shown) {
        let _ = writeln!(
            svg,
            "<polyline points=\"{points}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>\
             <text x=\"{legend}\" y=\"{}\" fill=\"{colour}\">{name}</text>",
            HEIGHT - 8.0
        );
        legend += 60.0;
    }
    svg + "</svg>\n"
}

#[cfg(test)]
mod tests {
    use forebay_admin::curve::Hits;

    use super::*;

    #[test]
    fn lines_are_inside_and_names_are_escaped() {
        let hits = |share| Hits { share, error: 0.3 };
        let curve: Vec<CurveRow> = (0..=10)
            .map(|step| CurveRow {
                bytes: 1 << (20 + step),
                reads: Some(hits(step as f64 / 10.0)),
                all: hits(0.5),
            })
            .collect();
        let svg = svg("a<b", true, &curve);
        assert!(svg.contains("a&lt;b") && svg.contains(">1M<") && svg.contains(">1G<"), "{svg}");
        assert_eq!(svg.matches("<polyline").count(), 2);
        assert!(!svg.contains("NaN") && !svg.contains("inf"));
        let ends = [
            format!("{LEFT:.1},{:.1} ", HEIGHT - BOTTOM),
            format!(" {:.1},{TOP:.1}", WIDTH - RIGHT),
        ];
        assert!(ends.iter().all(|end| svg.contains(end)), "{svg}");
    }

    #[test]
    fn nothing_can_be_drawn() {
        let svg = svg("x", false, &[]);
        assert!(!svg.contains("NaN") && svg.ends_with("</svg>\n"));
    }
}
