//! Pages of results: `forebay-lab seeds --report DIR`, and the same from a file.
//!
//! Markdown with its figures beside it. Equal input gives equal bytes, as long as logarithms round
//! in the same way.
//!
//! - `rows`: the data of the pages; `verdict`: beaten published rows
//! - `pages`: the values for the templates
//! - `figures`: latencies, and runs over time
//! - `words`: numbers and escapes

mod figures;
mod pages;
pub(crate) mod rows;
mod verdict;
mod words;

use std::path::{Path, PathBuf};

use crate::error::{LabResult, other, usage};

use rows::Rows;

/// Pages of results from a file.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Output of `seeds --save` or `seeds --json`
    #[arg(value_name = "FILE")]
    rows: PathBuf,
    /// Write the pages to this directory
    #[arg(long, value_name = "DIR")]
    report: PathBuf,
    /// The revision that made the rows, if the file does not say it
    #[arg(long, value_name = "REVISION")]
    revision: Option<String>,
}

pub(crate) fn run(args: &Args) -> LabResult<()> {
    let text = std::fs::read_to_string(&args.rows)
        .map_err(|error| other(format!("{} cannot be read: {error}", args.rows.display())))?;
    write(&text, args.revision.as_deref(), &args.report)
}

/// The pages of a result, by file name; fails if it is not one.
fn render(text: &str, revision: Option<&str>) -> LabResult<Vec<(String, String)>> {
    let mut input: Rows = serde_json::from_str(text).map_err(|error| {
        usage(format!("these are no rows as `seeds --json` or `seeds --save` writes them: {error}"))
    })?;
    if let Some(revision) = revision {
        input.about.get_or_insert_default().revision = Some(revision.to_owned());
    }
    pages::render(&input)
}

/// Makes the pages and writes them to a directory, which is created.
pub(crate) fn write(text: &str, revision: Option<&str>, directory: &Path) -> LabResult<()> {
    let files = render(text, revision)?;
    let failed = |path: &Path, error: std::io::Error| {
        other(format!("{} cannot be written: {error}", path.display()))
    };
    std::fs::create_dir_all(directory).map_err(|error| failed(directory, error))?;
    for (name, text) in files {
        let path = directory.join(name);
        std::fs::write(&path, text).map_err(|error| failed(&path, error))?;
    }
    eprintln!("The pages are in {}.", directory.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Made up, as `seeds --save` would write it: one report with charts for each experiment, one
    /// with panels.
    const EXAMPLE: &str = include_str!("report/example.json");

    #[test]
    fn equal_input_gives_equal_pages() {
        let (one, other) = (render(EXAMPLE, None), render(EXAMPLE, None));
        assert_eq!(one.expect("renders"), other.expect("renders"));
    }

    #[test]
    fn the_page_has_every_row_and_every_figure() {
        let files = render(EXAMPLE, Some("f00")).expect("renders");
        let page = &files[0].1;
        let input: Rows = serde_json::from_str(EXAMPLE).expect("is a result");
        for row in &input.rows {
            let value = words::number(row.value.map(|value| value.0));
            let mut lines = page.lines();
            let config = format!("|{}", words::markdown(&row.config));
            assert!(lines.any(|it| it.contains(&config) && it.contains(&value)), "{row:?}");
        }
        for (name, text) in &files {
            for broken in ["NaN", "inf,", "null", "{}", "<b>"] {
                assert!(!text.contains(broken), "{name}: {broken}");
            }
        }
        assert!(page.contains("f00") && page.contains("a &lt;b>\\|"));
        assert!(files.len() > 2, "there are figures");
        for (name, _) in &files[1..] {
            assert!(page.contains(&format!("]({name})")), "{name}");
        }
    }

    #[test]
    fn pages_count_beaten_rows_that_had_no_sequential_cutoff() {
        let page = |text: &str| {
            let files = render(text, None).expect("renders");
            files.into_iter().find(|(name, _)| name == "README.md").map(|(_, text)| text)
        };
        let said = page(EXAMPLE).expect("a page");
        assert!(said.contains("1 of the 27 figures that are beaten were measured with"), "{said}");
        for other in ["\"sequential_cutoff\":4194304", "\"other\":0"] {
            let text = EXAMPLE.replace("\"sequential_cutoff\":0", other);
            assert!(!page(&text).expect("a page").contains("were measured with"), "{other}");
        }
    }

    #[test]
    fn a_file_without_results_is_refused() {
        assert!(render("{}", None).is_err());
        assert!(render("[1, 2", None).is_err());
    }

    #[test]
    fn no_rows_make_a_page_too() {
        assert!(render(r#"{"seed": 1, "scale": 1.0, "rows": []}"#, None).is_ok());
    }
}
