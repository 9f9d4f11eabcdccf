//! SVG made smaller without looking different: the library writes an element for each line and
//! bar, and spells out what is the default. The figures are committed, so their size matters.
//!
//! Neighbouring lines and bars of one style become one path. Neighbouring texts of one
//! style become a group.

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

/// Style, place and content of a text that is not turned; where it stands in pixels, as the
/// library's offsets cannot be inherited.
fn label(element: &str) -> Option<(String, String)> {
    let (head, content) = element.strip_prefix("<text ")?.split_once('>')?;
    let head = format!("<text {head}/>");
    let attributes = attributes(&head);
    let get = |name: &str| attributes.iter().find(|(known, _)| *known == name).map(|(_, v)| *v);
    if get("transform").is_some() {
        return None;
    }
    let size: f64 = get("font-size").unwrap_or("12").parse().ok()?;
    let down = match get("dy") {
        Some("0.76em") => 0.76,
        Some("0.5ex") => 0.27,
        Some("-0.5ex") => -0.27,
        _ => 0.0,
    };
    let y = get("y")?.parse::<f64>().ok()? + down * size;
    let mut style = String::new();
    for name in ["text-anchor", "font-size", "font-weight"] {
        if let Some(value) = get(name) {
            let _ = write!(style, " {name}=\"{value}\"");
        }
    }
    Some((style, format!("<text x=\"{}\" y=\"{:.0}\">{content}", get("x")?, y)))
}

/// Writes elements, those of one style together.
#[derive(Default)]
struct Writer {
    out: String,
    /// Lines or bars: style and outline.
    path: Option<(String, String)>,
    /// The style of the texts that were written last.
    texts: Option<String>,
}

impl Writer {
    fn end_texts(&mut self) {
        if self.texts.take().is_some_and(|style| !style.is_empty()) {
            self.out.push_str("</g>\n");
        }
    }

    fn end_path(&mut self) {
        if let Some((style, outline)) = self.path.take() {
            self.end_texts();
            let _ = writeln!(self.out, "<path{style} d=\"{outline}\"/>");
        }
    }

    fn text(&mut self, element: &str) {
        // No line is drawn over text; bars may lie under it.
        if self.path.as_ref().is_some_and(|(style, _)| !style.contains("fill=\"none\"")) {
            self.end_path();
        }
        let Some((style, text)) = label(element) else {
            self.end_texts();
            let _ = writeln!(self.out, "{element}");
            return;
        };
        if self.texts.as_ref() != Some(&style) {
            self.end_texts();
            if !style.is_empty() {
                let _ = writeln!(self.out, "<g{style}>");
            }
            self.texts = Some(style);
        }
        let _ = writeln!(self.out, "{text}");
    }

    fn element(&mut self, element: &str) {
        if element.starts_with("<text ") {
            return self.text(element);
        }
        match (outline(element), &mut self.path) {
            (Some((style, more)), Some((known, outline))) if style == *known => {
                outline.push_str(&more);
            }
            (Some(new), _) => {
                self.end_path();
                self.path = Some(new);
            }
            (None, _) => {
                self.end_path();
                self.end_texts();
                let _ = writeln!(self.out, "{element}");
            }
        }
    }
}

/// What the library wrote, shorter; `alt` says in words what it shows.
pub(super) fn compact(svg: &str, alt: &str) -> String {
    let mut svg = svg.to_owned();
    for (long, short) in SHORTER {
        svg = svg.replace(long, short);
    }
    let svg = svg.replace("><", ">\n<");
    let mut writer = Writer::default();
    svg.lines().for_each(|element| writer.element(element));
    writer.end_path();
    writer.end_texts();
    let out = writer.out;
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
    fn neighbours_of_one_style_are_put_together() {
        let long = "<svg width=\"9\" height=\"9\" viewBox=\"0 0 9 9\">
<rect x=\"0\" y=\"0\" width=\"9\" height=\"9\" opacity=\"1\" fill=\"#FFFFFF\" stroke=\"none\"/>
<text x=\"3\" y=\"3\" fill=\"#222222\">\nover\n</text>
<line opacity=\"1\" stroke=\"#111111\" stroke-width=\"1\" x1=\"1\" y1=\"2\" x2=\"3\" y2=\"4\"/>
<text x=\"1\" y=\"2\" dy=\"0.76em\" text-anchor=\"end\" fill=\"#222222\">\na&lt;b\n</text>
<polyline fill=\"none\" opacity=\"1\" stroke=\"#111111\" stroke-width=\"1\" points=\"5,6 7,8 9,9 \"/>
<text x=\"1\" y=\"9\" text-anchor=\"end\" fill=\"#222222\">\nc\n</text>
<rect x=\"1\" y=\"2\" width=\"3\" height=\"4\" opacity=\"1\" fill=\"#333333\" stroke=\"none\"/>
<circle cx=\"1\" cy=\"1\" r=\"3\" opacity=\"1\" fill=\"#333333\" stroke=\"none\" stroke-width=\"1\"/>
</svg>\n";
        let short = "<svg role=\"img\" aria-label=\"&lt;x&gt;\" font-family=\"sans-serif\" \
font-size=\"12\" width=\"9\" height=\"9\" viewBox=\"0 0 9 9\">
<path fill=\"#FFFFFF\" d=\"M0,0h9v9h-9z\"/>
<text x=\"3\" y=\"3\">over</text>
<g text-anchor=\"end\">
<text x=\"1\" y=\"11\">a&lt;b</text>
<text x=\"1\" y=\"9\">c</text>
</g>
<path fill=\"none\" stroke=\"#111111\" d=\"M1,2L3,4M5,6L7,8 9,9\"/>
<path fill=\"#333333\" d=\"M1,2h3v4h-3z\"/>
<circle cx=\"1\" cy=\"1\" r=\"3\" fill=\"#333333\"/>
</svg>\n";
        assert_eq!(compact(long, "<x>"), short);
    }
}
