//! Pages refer to files and headings that exist, by links and by paths in backticks.

use std::path::Path;

use crate::Finding;
use crate::tree::{TextFile, Tree};

/// Folders of the tree. A path in backticks that begins with one of them has to be there.
const FOLDERS: [&str; 6] = ["crates/", "docs/", "dist/", "fuzz/", "scripts/", "tests/"];

/// Checks every page but the results, which are written by a program.
pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    let pages = tree.files.iter().filter(|file| file.is("md"));
    for page in pages.filter(|page| !page.path.starts_with("docs/results/")) {
        let folder = page.path.rsplit_once('/').map_or("", |(folder, _)| folder);
        for (number, line) in page.lines() {
            for link in targets(line) {
                let (file, heading) = link.split_once('#').unwrap_or((link, ""));
                let path = if file.is_empty() { page.path.clone() } else { joined(folder, file) };
                let lacks = |page: &TextFile| !headings(page).any(|it| it == heading);
                if !heading.is_empty() && tree.file(&path).is_some_and(lacks) {
                    let what = format!("refers to '#{heading}', which is no heading of {path}");
                    findings.push(Finding::new(&page.path, number, what));
                }
            }
            let linked = links(line).map(|link| joined(folder, link));
            let quoted = line.split('`').skip(1).step_by(2).filter(|text| is_path(text));
            for path in linked.chain(quoted.map(str::to_owned)) {
                if !exists(tree, &path) {
                    let what = format!("refers to '{path}', which is not there");
                    findings.push(Finding::new(&page.path, number, what));
                }
            }
        }
    }
    findings
}

fn is_path(text: &str) -> bool {
    let plain = |c: char| c.is_alphanumeric() || "/._-".contains(c);
    FOLDERS.iter().any(|folder| text.starts_with(folder)) && text.chars().all(plain)
}

/// The places in the tree that a line links to: a file, a heading behind '#', or both.
fn targets(line: &str) -> impl Iterator<Item = &str> {
    let targets = line.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    targets.filter(|target| !target.contains("://"))
}

/// The files of the tree that a line links to.
fn links(line: &str) -> impl Iterator<Item = &str> {
    let files = targets(line).map(|target| target.split('#').next().unwrap_or_default());
    files.filter(|file| !file.is_empty())
}

/// The headings of a page, as links name them.
fn headings(page: &TextFile) -> impl Iterator<Item = String> {
    let titles = page.text.lines().filter(|line| line.starts_with('#'));
    titles.map(|title| {
        let title = title.trim_start_matches('#').trim().to_lowercase();
        let kept = title.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    })
}

/// A path that is relative to a folder, relative to the root.
fn joined(folder: &str, path: &str) -> String {
    let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in path.split('/') {
        match part {
            ".." => _ = parts.pop(),
            "." | "" => (),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// Whether a file or a folder is there; the tree knows text files only.
fn exists(tree: &Tree, path: &str) -> bool {
    let path = path.trim_end_matches('/');
    Path::new(path).exists()
        || tree.files.iter().any(|file| {
            file.path
                .strip_prefix(path)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(page: &str, text: &str) -> usize {
        let file = |path: &str, text: &str| TextFile { path: path.into(), text: text.into() };
        let files = vec![
            file(page, text),
            file("crates/a/src/lib.rs", ""),
            file("docs/other.md", "# Other\n## A `part`, and more\n"),
            file("README.md", ""),
        ];
        check(&Tree { files }).iter().filter(|it| it.file == page).count()
    }

    #[test]
    fn references_to_missing_files_and_headings_are_found() {
        for text in [
            "`crates/a/src/lib.rs`, `crates/a/`",
            "[x](other.md#a-part-and-more) [y](../README.md) [z](https://example.org/crates/b) [w](other.md#other)",
            "`cargo run` and `crates/{a,b}` are no paths",
        ] {
            assert_eq!(findings("docs/page.md", text), 0, "{text}");
        }
        for text in [
            "`crates/b/src/lib.rs`",
            "`crates/a/src/li`",
            "[x](README.md)",
            "[x](other.md#part)",
            "[x](#here)",
        ] {
            assert_eq!(findings("docs/page.md", text), 1, "{text}");
        }
        assert_eq!(findings("docs/results/page.md", "`crates/b`"), 0, "written by a program");
    }
}
