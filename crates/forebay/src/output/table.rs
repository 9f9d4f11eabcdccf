//! Aligned columns.

use std::fmt::Write;

/// A column: its heading and its alignment.
#[derive(Clone, Copy)]
pub(crate) struct Column {
    heading: &'static str,
    right: bool,
    /// Whether a narrow table shows only the ends of its cells.
    shortens: bool,
}

impl Column {
    /// A left-aligned column, for words.
    pub(crate) const fn left(heading: &'static str) -> Self {
        Column { heading, right: false, shortens: false }
    }

    /// A right-aligned column, for numbers.
    pub(crate) const fn right(heading: &'static str) -> Self {
        Column { heading, right: true, shortens: false }
    }

    /// A left-aligned column of paths, whose ends tell more than their beginnings.
    pub(crate) const fn path(heading: &'static str) -> Self {
        Column { heading, right: false, shortens: true }
    }
}

/// The narrowest column of paths that a narrow table has.
const NARROWEST: usize = 8;

/// Returns the end of a text that is too wide, after two dots.
fn end_of(text: &str, width: usize) -> String {
    let surplus = text.chars().count().saturating_sub(width);
    if surplus == 0 {
        return text.to_owned();
    }
    let end: String = text.chars().skip(surplus + 2).collect();
    format!("..{end}")
}

/// A table with a heading; columns are as wide as their widest cell.
pub(crate) struct Table {
    columns: Vec<Column>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Makes a table without rows.
    pub(crate) fn new(columns: &[Column]) -> Self {
        Table { columns: columns.to_vec(), rows: Vec::new() }
    }

    /// Adds a row; missing cells stay empty.
    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// Formats the table, without trailing blanks.
    pub(crate) fn render(&self) -> String {
        self.render_within(usize::MAX)
    }

    /// Formats the table in lines of at most `width` columns, as far as shorter paths allow.
    pub(crate) fn render_within(&self, width: usize) -> String {
        let cell = |row: &'_ Vec<String>, index: usize| row.get(index).cloned().unwrap_or_default();
        let heading: Vec<String> =
            self.columns.iter().map(|column| column.heading.to_owned()).collect();
        let lines: Vec<&Vec<String>> = std::iter::once(&heading).chain(&self.rows).collect();
        let mut text = String::new();
        let mut widths: Vec<usize> = (0..self.columns.len())
            .map(|index| {
                lines.iter().map(|row| cell(row, index).chars().count()).max().unwrap_or(0)
            })
            .collect();
        let line_width = |widths: &[usize]| widths.iter().map(|width| width + 2).sum::<usize>() - 2;
        while line_width(&widths) > width {
            // The widest column of paths gives way.
            let paths = self.columns.iter().zip(&mut widths).filter(|(column, _)| column.shortens);
            match paths.map(|(_, width)| width).max() {
                Some(widest) if *widest > NARROWEST => *widest -= 1,
                _ => break,
            }
        }
        for row in lines {
            let mut line = String::new();
            for (index, (column, width)) in self.columns.iter().zip(&widths).enumerate() {
                let gap = if index == 0 { "" } else { "  " };
                let cell = end_of(&cell(row, index), *width);
                let _ = if column.right {
                    write!(line, "{gap}{cell:>width$}")
                } else {
                    write!(line, "{gap}{cell:<width$}")
                };
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_aligned_and_lines_end_without_blanks() {
        let mut table =
            Table::new(&[Column::left("NAME"), Column::right("SIZE"), Column::left("X")]);
        table.row(["a".to_owned(), "1.5G".to_owned(), "-".to_owned()]);
        table.row(["longer".to_owned(), "512".to_owned()]);
        assert_eq!(table.render(), "NAME    SIZE  X\na       1.5G  -\nlonger   512\n");
    }

    #[test]
    fn paths_give_way_from_their_beginning_where_space_is_short() {
        let mut table = Table::new(&[Column::left("NAME"), Column::path("A"), Column::path("B")]);
        table.row(["long-name", "/dev/disk/by-id/x-part1", "/dev/sda"].map(str::to_owned));
        let line = |width| table.render_within(width).lines().nth(1).map(str::to_owned);
        assert_eq!(line(33).as_deref(), Some("long-name  ..id/x-part1  /dev/sda"));
        assert_eq!(line(30).as_deref(), Some("long-name  ..x-part1  /dev/sda"));
        assert_eq!(line(9).as_deref(), Some("long-name  ..-part1  /dev/sda"), "no narrower");
        assert_eq!(
            line(usize::MAX).as_deref(),
            Some("long-name  /dev/disk/by-id/x-part1  /dev/sda")
        );
    }
}
