//! The form of pages: lines of prose have at most 100 columns, and the list of decisions has their
//! titles.

use crate::Finding;
use crate::tree::{TextFile, Tree};

/// Columns of a line of prose. Tables, code, headings and pictures may be wider.
const COLUMNS: usize = 100;

const DECISIONS: &str = "docs/decisions/";
const LIST: &str = "docs/decisions/README.md";

/// Pages whose lines are not checked: history, and pages that programs write.
const WIDE: &[&str] = &["CHANGELOG.md", "docs/results/"];

/// Checks every page.
pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let pages = tree.files.iter().filter(|file| file.is("md"));
    let narrow = pages.filter(|page| !WIDE.iter().any(|path| page.path.starts_with(path)));
    let mut findings: Vec<Finding> = narrow.flat_map(wide_lines).collect();
    let list = tree.file(LIST).map_or("", |list| &list.text);
    let decisions = tree.files.iter().filter(|file| file.path.starts_with(DECISIONS));
    findings.extend(decisions.filter(|page| page.path != LIST).filter_map(|page| {
        let what = listed(page, list).err()?;
        Some(Finding::new(&page.path, 1, what))
    }));
    findings
}

/// Returns the lines of prose in a page that are too wide.
fn wide_lines(page: &TextFile) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut in_code = false;
    for (number, line) in page.lines() {
        let start = line.trim_start();
        in_code ^= start.starts_with("```");
        let prose =
            !in_code && !["|", "#", "![", "<", "```"].iter().any(|it| start.starts_with(it));
        // One link or piece of code cannot be wrapped.
        if prose && line.chars().count() > COLUMNS && start.contains(' ') {
            let what = format!("a line of prose has at most {COLUMNS} columns");
            findings.push(Finding::new(&page.path, number, what));
        }
    }
    findings
}

/// Checks that the list of decisions has the number and the title of a page.
fn listed(page: &TextFile, list: &str) -> Result<(), String> {
    let file = page.path.strip_prefix(DECISIONS).unwrap_or(&page.path);
    let head = page.text.lines().next().and_then(|line| line.strip_prefix("# "));
    let (number, title) = head
        .and_then(|head| head.split_once(". "))
        .filter(|(number, _)| file.trim_start_matches('0').starts_with(&format!("{number}-")))
        .ok_or("begin it with '# NUMBER. TITLE'; the number is that of the file's name")?;
    let row = format!("| [{number}]({file}) | {title} |");
    let lacks = || format!("{LIST} has not the row: {row}");
    if list.lines().any(|line| line == row) { Ok(()) } else { Err(lacks()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str, list: &str) -> usize {
        let file = |path: &str, text: &str| TextFile { path: path.into(), text: text.into() };
        check(&Tree { files: vec![file(path, text), file(LIST, list)] }).len()
    }

    #[test]
    fn only_prose_has_a_width() {
        let wide = "word ".repeat(21);
        assert_eq!(found("docs/page.md", &wide, ""), 1);
        assert_eq!(found("docs/page.md", &format!("- {wide}"), ""), 1);
        for text in [
            format!("| {wide} |"),
            format!("# {wide}"),
            format!("```\n{wide}\n```"),
            wide[..100].to_owned(),
            "x".repeat(120),
        ] {
            assert_eq!(found("docs/page.md", &text, ""), 0, "{text}");
        }
        assert_eq!(found("CHANGELOG.md", &wide, ""), 0);
    }

    #[test]
    fn the_list_of_decisions_has_their_titles() {
        let path = "docs/decisions/0012-yields.md";
        let row = "| [12](0012-yields.md) | Writeback yields |";
        assert_eq!(found(path, "# 12. Writeback yields\n", row), 0);
        assert_eq!(found(path, "# 12. Writeback pushes\n", row), 1);
        assert_eq!(found(path, "# Writeback yields\n", row), 1);
        assert_eq!(found(path, "# 13. Writeback yields\n", row), 1);
        assert_eq!(found(path, "# 12. Writeback yields\n", ""), 1);
    }
}
