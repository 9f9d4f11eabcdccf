//! SVG made smaller without looking different: the library writes an element for each line and
//! bar, and spells out what is the default. The figures are committed, so their size matters.
//!
//! Neighbouring lines and bars of one style become one path. Text between lines is no obstacle, as no
//! line is drawn over text; bars may lie under it.

use std::fmt::Write as _;

/// Defaults, and what the figures inherit from their root.
const SHORTER: [(&str, &str); 12] = [
    (" opacity=\"1\"", ""),
    (" stroke=\"none\" stroke-width=\"1\"/>", "/>"),
    (" stroke=\"none\"/>", "/>"),
    (" stroke-width=\"1\"", ""),
    (" font-family=\"sans-serif\"", ""),
    (" font-size=\"12\"", ""),
    ("\"13.000000000000002\"", "\"13\""),
    (" fill=\"#222222\"", ""),
    (" text-anchor=\"start\"", ""),
    (" \"/>", "\"/>"),
    (">\n", ">"),
    ("\n</text>", "</text>"),
];

/// Attributes that say how something looks, not where it is.
const STYLES: [&str; 3] = ["fill", "stroke", "stroke-width"];

fn attributes(element: &str) -> Vec<(&str, &str)> {
    let inside = element.trim_start_matches('<').trim_end_matches("/>");
    let parts = inside.split_once(' ').map_or("", |(_, rest)| rest).split("\" ");
    let pair = |part| str::split_once(part, "=\"");
    parts.filter_map(pair).map(|(name, value)| (name, value.trim_end_matches('"'))).collect()
}

/// Style and outline of an element that can be a part of a path.
fn outline(element: &str) -> Option<(String, String)> {
    let tag =
        ["<line ", "<polyline ", "<rect "].into_iter().find(|tag| element.starts_with(tag))?;
    let attributes = attributes(element);
    let get = |name: &str| attributes.iter().find(|(known, _)| *known == name).map(|(_, v)| *v);
    let outline = match tag {
        "<line " => format!("M{},{}L{},{}", get("x1")?, get("y1")?, get("x2")?, get("y2")?),
        "<polyline " => format!("M{}", get("points")?.replacen(' ', "L", 1)),
        _ => {
            let (width, height) = (get("width")?, get("height")?);
            format!("M{},{}h{width}v{height}h-{width}z", get("x")?, get("y")?)
        }
    };
    let mut style = String::new();
    for name in STYLES {
        let value = get(name).or((name == "fill" && tag == "<line ").then_some("none"));
        if let Some(value) = value {
            let _ = write!(style, " {name}=\"{value}\"");
        }
    }
    Some((style, outline))
}

/// What the library wrote, shorter; `alt` says in words what it shows.
pub(super) fn compact(svg: &str, alt: &str) -> String {
    let mut svg = svg.to_owned();
    for (long, short) in SHORTER {
        svg = svg.replace(long, short);
    }
    let svg = svg.replace("><", ">\n<");
    let mut out = String::with_capacity(svg.len() / 2);
    let mut open: Option<(String, String)> = None;
    let close = |open: &mut Option<(String, String)>, out: &mut String| {
        if let Some((style, outline)) = open.take() {
            let _ = writeln!(out, "<path{style} d=\"{outline}\"/>");
        }
    };
    for element in svg.lines() {
        let lines = open.as_ref().is_none_or(|(style, _)| style.contains("fill=\"none\""));
        if lines && element.starts_with("<text ") {
            let _ = writeln!(out, "{element}");
            continue;
        }
        match (outline(element), &mut open) {
            (Some((style, more)), Some((known, outline))) if style == *known => {
                outline.push_str(&more);
            }
            (Some(new), _) => {
                close(&mut open, &mut out);
                open = Some(new);
            }
            (None, _) => {
                close(&mut open, &mut out);
                let _ = writeln!(out, "{element}");
            }
        }
    }
    close(&mut open, &mut out);
    let head = format!(
        "<svg role=\"img\" aria-label=\"{}\" font-family=\"sans-serif\" font-size=\"12\" ",
        super::words::html(alt).replace("<code>", "").replace("</code>", "")
    );
    out.replacen("<svg ", &head, 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_of_one_style_become_a_path() {
        let long = "<svg width=\"9\" height=\"9\" viewBox=\"0 0 9 9\">\n\
                    <rect x=\"0\" y=\"0\" width=\"9\" height=\"9\" opacity=\"1\" fill=\"#FFFFFF\" stroke=\"none\"/>\n\
                    <text x=\"3\" y=\"3\">\nover\n</text>\n\
                    <line opacity=\"1\" stroke=\"#111111\" stroke-width=\"1\" x1=\"1\" y1=\"2\" x2=\"3\" y2=\"4\"/>\n\
                    <text x=\"1\" y=\"2\" fill=\"#222222\">\na&lt;b\n</text>\n\
                    <polyline fill=\"none\" opacity=\"1\" stroke=\"#111111\" stroke-width=\"1\" points=\"5,6 7,8 9,9 \"/>\n\
                    <rect x=\"1\" y=\"2\" width=\"3\" height=\"4\" opacity=\"1\" fill=\"#333333\" stroke=\"none\"/>\n\
                    <circle cx=\"1\" cy=\"1\" r=\"3\" opacity=\"1\" fill=\"#333333\" stroke=\"none\" stroke-width=\"1\"/>\n\
                    </svg>\n";
        let short = "<svg role=\"img\" aria-label=\"&lt;x&gt;\" font-family=\"sans-serif\" font-size=\"12\" width=\"9\" height=\"9\" viewBox=\"0 0 9 9\">\n\
                     <path fill=\"#FFFFFF\" d=\"M0,0h9v9h-9z\"/>\n\
                     <text x=\"3\" y=\"3\">over</text>\n\
                     <text x=\"1\" y=\"2\">a&lt;b</text>\n\
                     <path fill=\"none\" stroke=\"#111111\" d=\"M1,2L3,4M5,6L7,8 9,9\"/>\n\
                     <path fill=\"#333333\" d=\"M1,2h3v4h-3z\"/>\n\
                     <circle cx=\"1\" cy=\"1\" r=\"3\" fill=\"#333333\"/>\n\
                     </svg>\n";
        assert_eq!(compact(long, "<x>"), short);
    }
}
