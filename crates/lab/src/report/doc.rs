//! A document as blocks, and the same blocks as HTML and as Markdown.

use super::words::{html, markdown};

/// A cell of a table; what is not text is said in words as well.
#[derive(Clone, Debug, Default)]
pub(super) struct Cell {
    pub(super) text: String,
    /// Numbers of footnotes.
    pub(super) notes: Vec<usize>,
    pub(super) tone: Tone,
}

/// How a cell is meant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Tone {
    #[default]
    Plain,
    Good,
    Bad,
}

impl Cell {
    pub(super) fn new(text: impl Into<String>) -> Self {
        Cell { text: text.into(), ..Cell::default() }
    }

    pub(super) fn tone(mut self, tone: Tone) -> Self {
        self.tone = tone;
        self
    }

    pub(super) fn notes(mut self, notes: Vec<usize>) -> Self {
        self.notes = notes;
        self
    }
}

/// A line of a table.
#[derive(Clone, Debug)]
pub(super) enum Line {
    /// Over all columns: what the next lines have in common.
    Over(Cell),
    Cells(Vec<Cell>),
}

/// Columns under names; the first so many go to the left, the others to the right.
#[derive(Clone, Debug, Default)]
pub(super) struct Table {
    pub(super) heading: Vec<&'static str>,
    pub(super) left: usize,
    pub(super) lines: Vec<Line>,
}

/// A part of a document.
#[derive(Clone, Debug)]
pub(super) enum Block {
    /// Level 1 to 3, and a name to refer to.
    Heading(u8, String, String),
    Text(String),
    List(Vec<String>),
    Code(String),
    Table(Table),
    /// File name, SVG, caption.
    Figure(String, String, String),
    /// Numbers and footnotes.
    Notes(Vec<(usize, String)>),
    /// Names and headings to go to.
    Contents(Vec<(String, String)>),
}

/// Of the page; it is printed as well as looked at.
const STYLE: &str = "\
:root{color-scheme:light}
body{font:15px/1.45 sans-serif;color:#222;background:#fff;max-width:900px;margin:0 auto;padding:16px 20px}
h1{font-size:26px;margin:.4em 0}h2{font-size:21px;margin:1.8em 0 .5em;border-bottom:1px solid #999}
h3{font-size:16px;margin:1.4em 0 .4em}
code,pre{font:13px/1.4 monospace}pre{background:#f2f2f2;padding:8px 10px;white-space:pre-wrap;overflow-wrap:anywhere}
figure{margin:1.2em 0;break-inside:avoid}figcaption{font-size:13px;color:#333;margin-top:4px}
svg{width:100%;height:auto;display:block}
.t{overflow-x:auto}table{border-collapse:collapse;font-size:12.5px;line-height:1.3;margin:.6em 0;font-variant-numeric:tabular-nums}
th,td{padding:2px 7px;text-align:right;vertical-align:top;border-bottom:1px solid #ddd}
th{border-bottom:2px solid #555;vertical-align:bottom}.l{text-align:left}
tr.o td{text-align:left;font-weight:bold;background:#f2f2f2;padding-top:5px}tr.o small{font-weight:normal;font-size:12px}
.g{color:#0b5394;font-weight:bold;white-space:nowrap}.b{color:#a33c00;font-weight:bold;white-space:nowrap}
.n{font-size:12.5px;padding:0;list-style:none}sup a{color:inherit}a{color:#0b5394}
thead{display:table-header-group}tr{break-inside:avoid}h2,h3{break-after:avoid}
@media print{@page{size:A4;margin:14mm}body{font-size:10pt;max-width:none;padding:0}table{font-size:7.5pt}th,td{padding:1.5px 4px}.t{overflow:visible}}
";

fn html_cell(cell: &Cell) -> String {
    let mut text = html(&cell.text);
    for note in &cell.notes {
        text.push_str(&format!("<sup><a href=\"#n{note}\">{note}</a></sup> "));
    }
    text.trim_end().to_owned()
}

fn html_table(table: &Table, out: &mut String) {
    let class = |column: usize, tone: Tone| {
        let tone = match tone {
            Tone::Plain => "",
            Tone::Good => "g",
            Tone::Bad => "b",
        };
        match (column < table.left, tone) {
            (false, "") => String::new(),
            (true, "") => " class=l".into(),
            (false, tone) => format!(" class={tone}"),
            (true, tone) => format!(" class=\"l {tone}\""),
        }
    };
    out.push_str("<div class=t><table>\n<thead><tr>");
    for (column, name) in table.heading.iter().enumerate() {
        out.push_str(&format!("<th{}>{}", class(column, Tone::Plain), html(name)));
    }
    out.push_str("</thead>\n");
    for line in &table.lines {
        match line {
            Line::Over(cell) => {
                let columns = table.heading.len();
                out.push_str(&format!("<tr class=o><td colspan={columns}>{}", html_cell(cell)));
            }
            Line::Cells(cells) => {
                out.push_str("<tr>");
                for (column, cell) in cells.iter().enumerate() {
                    out.push_str(&format!("<td{}>{}", class(column, cell.tone), html_cell(cell)));
                }
            }
        }
        out.push('\n');
    }
    out.push_str("</table></div>\n");
}

/// The document as one page that needs nothing else.
pub(super) fn as_html(title: &str, blocks: &[Block]) -> String {
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n\
         <title>{}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n",
        html(title)
    );
    for block in blocks {
        match block {
            Block::Heading(level, name, text) => {
                let text = html(text);
                out.push_str(&format!("<h{level} id=\"{}\">{text}</h{level}>\n", html(name)));
            }
            Block::Text(text) => out.push_str(&format!("<p>{}</p>\n", html(text))),
            Block::List(items) => {
                let items: Vec<String> =
                    items.iter().map(|item| format!("<li>{}</li>\n", html(item))).collect();
                out.push_str(&format!("<ul>\n{}</ul>\n", items.concat()));
            }
            Block::Code(text) => {
                out.push_str(&format!("<pre>{}</pre>\n", html(&text.replace('`', "'"))));
            }
            Block::Table(table) => html_table(table, &mut out),
            Block::Figure(_, svg, caption) => {
                let caption = html(caption);
                out.push_str(&format!(
                    "<figure>\n{svg}<figcaption>{caption}</figcaption>\n</figure>\n"
                ));
            }
            Block::Notes(notes) => {
                out.push_str("<ul class=n>\n");
                for (number, text) in notes {
                    out.push_str(&format!("<li id=\"n{number}\">{number}. {}</li>\n", html(text)));
                }
                out.push_str("</ul>\n");
            }
            Block::Contents(entries) => {
                out.push_str("<ul>\n");
                for (name, text) in entries {
                    let (name, text) = (html(name), html(text));
                    out.push_str(&format!("<li><a href=\"#{name}\">{text}</a></li>\n"));
                }
                out.push_str("</ul>\n");
            }
        }
    }
    out.push_str("</body>\n</html>\n");
    out
}

fn markdown_cell(cell: &Cell) -> String {
    let mut text = markdown(&cell.text);
    if !cell.notes.is_empty() {
        let notes: Vec<String> = cell.notes.iter().map(usize::to_string).collect();
        text.push_str(&format!(" <sup>{}</sup>", notes.join(" ")));
    }
    text.trim().to_owned()
}

fn markdown_table(table: &Table, out: &mut String) {
    let heading: Vec<String> = table.heading.iter().map(|name| markdown(name)).collect();
    out.push_str(&format!("|{}|\n|", heading.join("|")));
    for column in 0..table.heading.len() {
        out.push_str(if column < table.left { "---|" } else { "--:|" });
    }
    out.push('\n');
    for line in &table.lines {
        match line {
            Line::Over(cell) => {
                let bold = format!("**{}**", markdown_cell(cell));
                let rest = "|".repeat(table.heading.len());
                out.push_str(&format!("|{bold}{rest}\n"));
            }
            Line::Cells(cells) => {
                let cells: Vec<String> = cells.iter().map(markdown_cell).collect();
                out.push_str(&format!("|{}|\n", cells.join("|")));
            }
        }
    }
    out.push('\n');
}

/// The document as Markdown; figures are files beside it.
pub(super) fn as_markdown(blocks: &[Block]) -> String {
    let mut out = String::new();
    for block in blocks {
        match block {
            Block::Heading(level, name, text) => {
                let marks = "#".repeat(usize::from(*level));
                let text = markdown(text);
                out.push_str(&format!("<a id=\"{}\"></a>\n\n{marks} {text}\n\n", html(name)));
            }
            Block::Text(text) => out.push_str(&format!("{}\n\n", markdown(text))),
            Block::List(items) => {
                for item in items {
                    out.push_str(&format!("- {}\n", markdown(item)));
                }
                out.push('\n');
            }
            Block::Code(text) => out.push_str(&format!("```\n{}\n```\n\n", text.replace('`', "'"))),
            Block::Table(table) => markdown_table(table, &mut out),
            Block::Figure(file, _, caption) => {
                let caption = markdown(caption);
                let short = caption.split(": ").next().unwrap_or_default();
                out.push_str(&format!("![{short}]({file})\n\n*{caption}*\n\n"));
            }
            Block::Notes(notes) => {
                for (number, text) in notes {
                    out.push_str(&format!("{number}. {}\n", markdown(text)));
                }
                out.push('\n');
            }
            Block::Contents(entries) => {
                for (name, text) in entries {
                    out.push_str(&format!("- [{}](#{})\n", markdown(text), html(name)));
                }
                out.push('\n');
            }
        }
    }
    out.truncate(out.trim_end().len());
    out.push('\n');
    out
}
