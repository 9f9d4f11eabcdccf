//! Aligned columns.

use std::fmt::Write;

/// A column: its heading and its alignment.
#[derive(Clone, Copy)]
pub(crate) struct Column {
    heading: &'static str,
    right: bool,
}

impl Column {
    /// A left-aligned column, for words.
    pub(crate) const fn left(heading: &'static str) -> Self {
        Column { heading, right: false }
    }

    /// A right-aligned column, for numbers.
    pub(crate) const fn right(heading: &'static str) -> Self {
        Column { heading, right: true }
    }
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
        let cell = |row: &'_ Vec<String>, index: usize| row.get(index).cloned().unwrap_or_default();
        let heading: Vec<String> =
            self.columns.iter().map(|column| column.heading.to_owned()).collect();
        let lines: Vec<&Vec<String>> = std::iter::once(&heading).chain(&self.rows).collect();
        let mut text = String::new();
        let widths: Vec<usize> = (0..self.columns.len())
            .map(|index| {
                lines.iter().map(|row| cell(row, index).chars().count()).max().unwrap_or(0)
            })
            .collect();
        for row in lines {
            let mut line = String::new();
            for (index, (column, width)) in self.columns.iter().zip(&widths).enumerate() {
                let gap = if index == 0 { "" } else { "  " };
                let cell = cell(row, index);
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
}
