//! Rules for every source file: its first line, its length, unsafe code, leftovers.

use crate::Finding;
use crate::tree::{TextFile, Tree};

/// Maximum number of lines of a file. A longer one holds more than one subject.
const MAX_LINES: usize = 600;

/// Macros that have no place in finished code. Spelt without the mark, so that this file passes.
const UNFINISHED: [&str; 3] = ["todo", "unimplemented", "dbg"];

/// The crate whose subject is unsafe code.
const UNSAFE_CRATE: &str = "crates/device/";
/// The crate that may have modules with unsafe code, each of which says so.
const UNSAFE_MODULES: &str = "crates/rbd/";

/// Checks every file.
pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in &tree.files {
        findings.extend(length(file));
        if file.is("rs") {
            findings.extend(module_line(file));
            findings.extend(unsafe_code(file));
            findings.extend(unfinished(file));
        }
    }
    findings
}

/// Files that are references, not read from top to bottom.
fn is_reference(path: &str) -> bool {
    path.ends_with("Cargo.lock")
        || path.starts_with("LICENSE")
        || path.starts_with("docs/results")
        || path == "docs/openapi.json"
}

fn length(file: &TextFile) -> Option<Finding> {
    let lines = file.lines().count();
    (lines > MAX_LINES && !is_reference(&file.path)).then(|| {
        let what =
            format!("{lines} lines; at most {MAX_LINES}: move a subject to a file of its own");
        Finding::new(&file.path, 0, what)
    })
}

/// Files of tests are named after the module that they test.
fn is_test(path: &str) -> bool {
    path.ends_with("/tests.rs")
}

fn module_line(file: &TextFile) -> Option<Finding> {
    let first = file.text.lines().next().unwrap_or_default();
    let described = first.starts_with("//! ");
    (!described && !is_test(&file.path)).then(|| {
        Finding::new(&file.path, 1, "starts without a '//!' line that says what it is for")
    })
}

fn is_root(path: &str) -> bool {
    let root = |rest: &str| matches!(rest, "src/lib.rs" | "src/main.rs");
    path.strip_prefix("crates/")
        .and_then(|rest| rest.split_once('/'))
        .is_some_and(|(_, rest)| root(rest))
}

fn unsafe_code(file: &TextFile) -> Option<Finding> {
    let wanted = match file.path.starts_with(UNSAFE_MODULES) {
        true => "#![deny(unsafe_code)]",
        false => "#![forbid(unsafe_code)]",
    };
    let forbidden = file.text.lines().any(|line| line.trim() == wanted);
    (is_root(&file.path) && !file.path.starts_with(UNSAFE_CRATE) && !forbidden)
        .then(|| Finding::new(&file.path, 0, format!("lacks {wanted}")))
}

fn unfinished(file: &TextFile) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (number, line) in file.lines() {
        for name in UNFINISHED {
            let called = format!("{name}!");
            let own_word =
                |at: usize| !line[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
            if line.match_indices(&called).any(|(at, _)| own_word(at)) {
                findings.push(Finding::new(&file.path, number, format!("'{called}' is left over")));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: [usize; 0] = [];

    fn found(path: &str, text: &str) -> Vec<usize> {
        check(&Tree::of(&[(path, text)])).into_iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn modules_say_what_they_are_for() {
        assert_eq!(found("crates/core/src/a.rs", "//! What.\n"), NONE);
        assert_eq!(found("crates/core/src/a.rs", "use std::fmt;\n"), [1]);
        assert_eq!(found("crates/core/src/a.rs", ""), [1]);
        assert_eq!(found("crates/core/src/a/tests.rs", "use super::*;\n"), NONE);
        assert_eq!(found("tests/e2e/a.py", "import os\n"), NONE);
    }

    #[test]
    fn only_few_crates_may_hold_unsafe_code() {
        for root in ["lib.rs", "main.rs"] {
            let path = format!("crates/core/src/{root}");
            assert_eq!(found(&path, "//! What.\n#![forbid(unsafe_code)]\n"), NONE);
            assert_eq!(found(&path, "//! What.\n// #![forbid(unsafe_code)]\n"), [0]);
        }
        assert_eq!(found("crates/device/src/lib.rs", "//! What.\n"), NONE);
        assert_eq!(found("crates/rbd/src/lib.rs", "//! What.\n#![deny(unsafe_code)]\n"), NONE);
        assert_eq!(found("crates/rbd/src/lib.rs", "//! What.\n"), [0]);
        assert_eq!(found("crates/core/src/a/lib.rs", "//! What.\n"), NONE);
    }

    #[test]
    fn leftovers_are_found() {
        for name in UNFINISHED {
            let line = format!("//! What.\n    {name}!()\n");
            assert_eq!(found("crates/core/src/a.rs", &line), [2]);
            let other = format!("//! What.\n    not_{name}!()\n");
            assert_eq!(found("crates/core/src/a.rs", &other), NONE);
        }
    }

    #[test]
    fn long_files_are_found() {
        let lines = |number: usize| "//! What.\n".repeat(number);
        assert_eq!(found("crates/core/src/a.rs", &lines(MAX_LINES)), NONE);
        assert_eq!(found("crates/core/src/a.rs", &lines(MAX_LINES + 1)), [0]);
        assert_eq!(found("tests/e2e/a.py", &lines(MAX_LINES + 1)), [0]);
        assert_eq!(found("Cargo.lock", &lines(MAX_LINES + 1)), NONE);
    }
}
