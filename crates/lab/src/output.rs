//! Results for people and for programs.

use std::path::Path;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::error::{LabError, LabResult, other, usage};

/// Prints a result as JSON.
pub(crate) fn print_json(result: &impl Serialize) -> LabResult<()> {
    let text = serde_json::to_string_pretty(result)
        .map_err(|error| other(format!("the result cannot be written: {error}")))?;
    println!("{text}");
    Ok(())
}

/// Tries whether a result can be written there when it is ready, hours from now. Leaves things as they
/// were, but for directories that it has made.
pub(crate) fn try_directory(directory: &Path) -> LabResult<()> {
    std::fs::create_dir_all(directory)
        .and_then(|()| tempfile::tempfile_in(directory))
        .map(drop)
        .map_err(|error| unwritable(directory, &error))
}

/// The same for a file.
pub(crate) fn try_file(file: &Path) -> LabResult<()> {
    let there = file.exists();
    let opened = std::fs::OpenOptions::new().append(true).create(true).open(file);
    opened.map_err(|error| unwritable(file, &error))?;
    if !there {
        // It was made just now, and nobody wants it empty.
        let _ = std::fs::remove_file(file);
    }
    Ok(())
}

fn unwritable(path: &Path, error: &std::io::Error) -> LabError {
    usage(format!("{} cannot be written: {error}", path.display()))
}

/// Aligned columns under a heading; the first goes to the left, the others to the right.
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// The names of the columns, with `|` between them.
    pub(crate) fn new(heading: &str) -> Self {
        Table { rows: vec![heading.split('|').map(|cell| cell.trim().to_owned()).collect()] }
    }

    /// Adds a row; cells that are missing stay empty.
    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// The table as lines without trailing blanks.
    pub(crate) fn render(&self) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let widths: Vec<usize> = (0..columns)
            .map(|column| {
                let cells = self.rows.iter().filter_map(|row| row.get(column));
                cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
            })
            .collect();
        let mut text = String::new();
        for row in &self.rows {
            let mut line = String::new();
            for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
                if column == 0 {
                    line.push_str(&format!("{cell:<width$}"));
                } else {
                    line.push_str(&format!("  {cell:>width$}"));
                }
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }
}

/// A goal beside a number.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Goal {
    /// What is wanted.
    pub(crate) goal: f64,
    /// Whether the number is there.
    pub(crate) met: bool,
}

impl Goal {
    pub(crate) fn at_least(goal: f64, value: f64) -> Self {
        Goal { goal, met: value >= goal }
    }

    pub(crate) fn at_most(goal: f64, value: f64) -> Self {
        Goal { goal, met: value <= goal }
    }

    /// `>= 0.60 met`, or `missed`.
    pub(crate) fn show(&self, sign: &str, digits: usize) -> String {
        format!("{sign} {:.digits$} {}", self.goal, if self.met { "met" } else { "missed" })
    }
}

/// The name of a choice on the command line.
pub(crate) fn name_of(choice: impl ValueEnum) -> String {
    choice.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

/// A rate of operations: `1.25 M`.
pub(crate) fn rate(per_second: f64) -> String {
    if per_second >= 1e6 {
        format!("{:.2} M", per_second / 1e6)
    } else {
        format!("{:.1} k", per_second / 1e3)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned() {
        let mut table = Table::new("CASE | RATE");
        table.row(["read".to_owned(), rate(2_500_000.0)]);
        table.row(["overwrite".to_owned(), rate(400.0)]);
        table.row(["x".to_owned()]);
        assert_eq!(table.render(), "CASE         RATE\nread       2.50 M\noverwrite   0.4 k\nx\n");
    }

    #[test]
    fn a_place_for_results_is_tried_and_left_as_it_was() {
        let folder = tempfile::tempdir().expect("writable");
        let (new, file) = (folder.path().join("a/b"), folder.path().join("file"));
        try_directory(&new).expect("it can be made");
        assert_eq!(std::fs::read_dir(&new).expect("it was made").count(), 0);
        try_file(&file).expect("it can be made");
        assert!(!file.exists());
        std::fs::write(&file, "kept").expect("writable");
        try_file(&file).expect("it can be written");
        assert_eq!(std::fs::read(&file).expect("there"), b"kept");
        for bad in [try_directory(&file), try_directory(&file.join("x")), try_file(folder.path())] {
            assert_eq!(bad.expect_err("it cannot be").exit_code(), 2);
        }
    }

    #[test]
    fn goals_have_a_direction() {
        assert!(Goal::at_least(0.6, 0.6).met && !Goal::at_least(0.6, 0.59).met);
        assert!(Goal::at_most(0.8, 0.8).met && !Goal::at_most(0.8, 0.81).met);
        assert_eq!(Goal::at_most(0.8, 0.9).show("<=", 2), "<= 0.80 missed");
    }
}
