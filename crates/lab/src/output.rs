//! Results for people and for programs.
//!
//! An experiment declares its [`Row`] once: the names of the fields are those of the JSON, and a
//! line says which of them are the columns of the table.

use std::path::Path;

use clap::ValueEnum;
use forebay_core::units::format_size;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::{LabError, LabResult, other, usage};

/// A row of results.
pub(crate) trait Row: Serialize {
    /// The columns of the table, with `|` between them: `HEADING=field:format`. Fields of fields
    /// have a dot between them. Formats, without one as it is:
    ///
    /// - `2`: a number with two decimals; `2-`: a dash in place of 0; `+2`: the sign is always
    ///   printed; `1%`: a share as a percentage with one decimal; `~`: at least three digits
    /// - `rate`, `bytes`, `latency`: operations per second, a size, microseconds
    /// - `>=2`, `<=2`: a [`Goal`] with two decimals
    /// - `never/each`: words for false and true
    const COLUMNS: &'static str;
}

/// Names and fields of columns.
fn columns(text: &str) -> Vec<(&str, &str)> {
    text.split('|').filter_map(|column| column.trim().split_once('=')).collect()
}

/// One row from top to bottom, with columns as in [`Row::COLUMNS`].
pub(crate) fn list(row: &impl Serialize, text: &str) -> LabResult<String> {
    let row = serde_json::to_value(row).map_err(unprintable)?;
    let lines = columns(text).into_iter().map(|(name, field)| [name.into(), cell(&row, field)]);
    Ok(Table { rows: lines.map(Vec::from).collect() }.render())
}

/// The table of rows.
pub(crate) fn table<R: Row>(rows: &[R]) -> LabResult<String> {
    let columns = columns(R::COLUMNS);
    let headings: Vec<&str> = columns.iter().map(|(heading, _)| *heading).collect();
    let mut table = Table::new(&headings.join("|"));
    for row in rows {
        let row = serde_json::to_value(row).map_err(unprintable)?;
        table.row(columns.iter().map(|(_, field)| cell(&row, field)));
    }
    Ok(table.render())
}

/// One field of a row; a dash if it has no value.
fn cell(row: &Value, field: &str) -> String {
    let (path, format) = field.split_once(':').unwrap_or((field, ""));
    let value = path.split('.').try_fold(row, |value, name| match value {
        Value::Null => Some(value),
        value => value.get(name),
    });
    let Some(value) = value else { return "?".to_owned() };
    let digits = |text: &str| text.parse::<usize>().unwrap_or_default();
    let number = value.as_f64().unwrap_or_default();
    match (value, format) {
        (Value::Null, _) => "-".to_owned(),
        (Value::Bool(value), words) => {
            let (no, yes) = words.split_once('/').unwrap_or(("no", "yes"));
            if *value { yes } else { no }.to_owned()
        }
        (Value::String(text), _) => text.clone(),
        (Value::Object(of), "") => {
            // An estimate.
            let [median, low, high] = ["median", "low", "high"]
                .map(|name| of.get(name).and_then(Value::as_f64).unwrap_or_default());
            format!("{median:.2} [{low:.2}, {high:.2}]")
        }
        (Value::Object(_), format) => {
            let (sign, digits) = format.split_at(format.len().saturating_sub(1));
            let goal = Goal::deserialize(value);
            goal.map_or_else(
                |_| "?".to_owned(),
                |goal| goal.show(sign, digits.parse().unwrap_or(0)),
            )
        }
        (value, "") => value.to_string(),
        (_, "rate") => rate(number),
        (_, "latency") => latency(number),
        (_, "bytes") => format_size(number as u64),
        (_, "~") => significant(number),
        (_, format) if format.ends_with('-') && number == 0.0 => "-".to_owned(),
        (_, format) if format.ends_with('%') => {
            format!("{:.1$} %", number * 100.0, digits(format.trim_end_matches('%')))
        }
        (_, format) if format.starts_with('+') => format!("{number:+.0$}", digits(&format[1..])),
        (_, format) => format!("{number:.0$}", digits(format.trim_end_matches('-'))),
    }
}

/// A number with three digits or more.
fn significant(value: f64) -> String {
    match value.abs() {
        1000.0.. => format!("{value:.0}"),
        100.0.. => format!("{value:.1}"),
        1.0.. => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

/// Prints rows and their common fields: as JSON, or as a table, which `text` puts into its place.
pub(crate) fn show<R: Row>(
    json: bool,
    mut common: Value,
    rows: &[R],
    text: impl FnOnce(String) -> String,
) -> LabResult<()> {
    if json {
        common["rows"] = serde_json::to_value(rows).map_err(unprintable)?;
        return print_json(&common);
    }
    println!("{}", text(table(rows)?).trim_end());
    Ok(())
}

fn unprintable(error: serde_json::Error) -> LabError {
    other(format!("the result cannot be written: {error}"))
}

/// Prints a result as JSON.
pub(crate) fn print_json(result: &impl Serialize) -> LabResult<()> {
    let text = serde_json::to_string_pretty(result).map_err(unprintable)?;
    println!("{text}");
    Ok(())
}

/// Checks, before hours of measuring, that a result can be written to a directory. Creates missing
/// directories, and changes nothing else.
pub(crate) fn try_directory(directory: &Path) -> LabResult<()> {
    std::fs::create_dir_all(directory)
        .and_then(|()| tempfile::tempfile_in(directory))
        .map(drop)
        .map_err(|error| unwritable(directory, &error))
}

/// Checks, before hours of measuring, that a result can be written to a file. Changes nothing.
pub(crate) fn try_file(file: &Path) -> LabResult<()> {
    let there = file.exists();
    let opened = std::fs::OpenOptions::new().append(true).create(true).open(file);
    opened.map_err(|error| unwritable(file, &error))?;
    if !there {
        // The attempt created the file, which would stay empty.
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
    /// The goal.
    pub(crate) goal: f64,
    /// Whether the number meets the goal.
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

/// Microseconds for people.
pub(crate) fn latency(us: f64) -> String {
    match us {
        us if us < 1_000.0 => format!("{us:.0} us"),
        us if us < 1_000_000.0 => format!("{:.2} ms", us / 1e3),
        us => format!("{:.2} s", us / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Serialize)]
    struct Sample {
        name: &'static str,
        share: f64,
        none: Option<f64>,
        flag: bool,
        goal: Goal,
        estimate: crate::statistics::Estimate,
    }

    impl Row for Sample {
        const COLUMNS: &'static str = "NAME=name | SHARE=share:1% | MORE=share:+2 | RATE=share:rate | \
            NONE=none.inside:2 | FLAG=flag:never/each | GOAL=goal:<=2 | OF=estimate | LOW=estimate.low:0- | \
            TIME=share:latency";
    }

    #[test]
    fn columns_name_fields_and_formats() {
        let goal = Goal::at_most(0.5, 0.25);
        let estimate = crate::statistics::Estimate::default();
        let row = Sample { name: "a", share: 0.25, none: None, flag: true, goal, estimate };
        let text = table(&[row]).expect("a table");
        let line = text.lines().nth(1).expect("a row");
        let cells: Vec<&str> =
            line.split("  ").map(str::trim).filter(|it| !it.is_empty()).collect();
        let expected = ["a", "25.0 %", "+0.25", "0.0 k", "-", "each", "<= 0.50 met"];
        assert_eq!(cells[..7], expected);
        assert_eq!(cells[7..], ["0.00 [0.00, 0.00]", "-", "0 us"]);
        assert_eq!(cell(&serde_json::json!({}), "gone"), "?", "a column without a field is seen");
    }

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
