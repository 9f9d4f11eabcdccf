//! Pages of results: `forebay-lab seeds --report DIR`, and the same from a file.
//!
//! A page of HTML that needs no other file, and Markdown with its figures beside it. Equal input
//! gives equal bytes, as long as logarithms round in the same way.
//!
//! - `rows`: what the pages are made of; `verdict`: which published rows are beaten
//! - `pages`: what the templates are given
//! - `figures`: which figures there are; `bars`: those of published values
//! - `svg`, `axis`, `colours`: how figures are drawn
//! - `misses`: the figure of another subcommand
//! - `words`: numbers and escapes

mod axis;
mod bars;
mod colours;
mod figures;
mod misses;
mod pages;
pub(crate) mod rows;
mod svg;
mod verdict;
mod words;

use std::path::{Path, PathBuf};

use crate::error::{LabResult, other, usage};

use rows::Rows;

pub(crate) use misses::miss_ratios;

/// Pages of results from a file.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// What `seeds --save` or `seeds --json` wrote
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

    /// Made up, as `seeds --save` would write it: one report with charts for each experiment, one with
    /// panels.
    const EXAMPLE: &str = include_str!("example.json");

    #[test]
    fn equal_input_gives_equal_pages() {
        let (one, other) = (render(EXAMPLE, None), render(EXAMPLE, None));
        assert_eq!(one.expect("renders"), other.expect("renders"));
    }

    #[test]
    fn every_row_is_on_both_pages_and_no_number_is_broken() {
        let files = render(EXAMPLE, Some("f00")).expect("renders");
        let page = |name: &str| {
            let file = files.iter().find(|(known, _)| known == name);
            file.map(|(_, text)| text.clone()).expect("is there")
        };
        let (html, markdown) = (page("index.html"), page("README.md"));
        let input: Rows = serde_json::from_str(EXAMPLE).expect("is a result");
        for row in &input.rows {
            let value = words::number(row.value.map(|value| value.0));
            let beside = |text: &str, config: String, start: &str, end: &str| {
                let line = |line: &&str| line.contains(&format!("{start}{config}{end}"));
                text.lines().filter(line).any(|line| line.contains(&value))
            };
            assert!(beside(&html, words::html(&row.config), "<td class=l>", "<"), "{row:?}");
            assert!(beside(&markdown, words::markdown(&row.config), "|", ""), "{row:?}");
        }
        for (name, text) in &files {
            for broken in ["NaN", "inf,", "null", "{}"] {
                assert!(!text.contains(broken), "{name}: {broken}");
            }
        }
        assert!(html.contains("f00") && markdown.contains("f00"));
        assert_eq!(html.matches("<svg").count(), files.len() - 2);
        for (name, _) in &files[2..] {
            assert!(markdown.contains(&format!("]({name})")), "{name}");
        }
    }

    #[test]
    fn text_is_escaped_everywhere() {
        for (name, text) in render(EXAMPLE, None).expect("renders") {
            assert!(!text.contains("<b>"), "{name}");
            if name.ends_with(".html") {
                assert!(text.contains("a &lt;b&gt;|"), "{name}");
                assert!(!text.contains("<script") && !text.contains("http-equiv"), "{name}");
            }
            if name == "README.md" {
                assert!(text.contains("a &lt;b>\\|"), "{name}");
            }
        }
    }

    #[test]
    fn pages_say_when_beaten_rows_had_no_sequential_cutoff_and_only_then() {
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
    fn what_is_no_result_is_refused() {
        assert!(render("{}", None).is_err());
        assert!(render("[1, 2", None).is_err());
    }

    #[test]
    fn no_rows_make_a_page_too() {
        assert!(render(r#"{"seed": 1, "scale": 1.0, "rows": []}"#, None).is_ok());
    }
}
