//! Every invariant has its line in `docs/testing.md`, and the tests that the line names exist.
//!
//! A line of the table is `| number | promise | tests |`. Tests are in backticks: the name of a
//! function, or the path of a script. A line without tests says "not yet". So does every line of
//! the tables of `SECURITY.md`, which have no numbers.

use crate::Finding;
use crate::tree::Tree;

const FILE: &str = "docs/testing.md";

const SECURITY: &str = "SECURITY.md";

/// Number of invariants.
const INVARIANTS: u32 = 38;

/// Checks the table.
pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let Some(file) = tree.file(FILE) else {
        return vec![Finding::new(FILE, 0, "is missing")];
    };
    let mut findings = Vec::new();
    let mut seen = Vec::new();
    for (line, text) in file.lines() {
        let Some((number, tests)) = row(text) else { continue };
        if seen.contains(&number) || number == 0 || number > INVARIANTS {
            findings.push(Finding::new(
                FILE,
                line,
                format!("invariant {number} is here once too often"),
            ));
        }
        seen.push(number);
        let names = quoted(tests);
        if names.is_empty() && !tests.contains("not yet") {
            let what = format!("invariant {number} names no test; name one, or say \"not yet\"");
            findings.push(Finding::new(FILE, line, what));
        }
        for name in names.into_iter().filter(|name| !exists(tree, name)) {
            findings.push(Finding::new(FILE, line, format!("there is no test '{name}'")));
        }
    }
    for number in (1..=INVARIANTS).filter(|number| !seen.contains(number)) {
        findings.push(Finding::new(FILE, 0, format!("invariant {number} has no line")));
    }
    findings
}

/// Checks the tables of the trust model.
pub(crate) fn check_security(tree: &Tree) -> Vec<Finding> {
    let Some(file) = tree.file(SECURITY) else {
        return vec![Finding::new(SECURITY, 0, "is missing")];
    };
    let mut findings = Vec::new();
    for (line, text) in file.lines() {
        let cells = text.strip_prefix('|').and_then(|text| text.strip_suffix('|'));
        let Some(tests) = cells.and_then(|cells| cells.rsplit('|').next()).map(str::trim) else {
            continue;
        };
        if tests == "tests" || tests.starts_with("--") {
            continue;
        }
        let names = quoted(tests);
        if names.is_empty() && !tests.contains("not yet") {
            let what = "the sentence names no test; name one, or say \"not yet\"";
            findings.push(Finding::new(SECURITY, line, what));
        }
        for name in names.into_iter().filter(|name| !exists(tree, name)) {
            findings.push(Finding::new(SECURITY, line, format!("there is no test '{name}'")));
        }
    }
    findings
}

/// The number and the tests of a line of the table.
fn row(line: &str) -> Option<(u32, &str)> {
    let mut cells = line.strip_prefix('|')?.strip_suffix('|')?.split('|').map(str::trim);
    let number = cells.next()?.parse().ok()?;
    let tests = cells.next_back()?;
    Some((number, tests))
}

fn quoted(text: &str) -> Vec<&str> {
    text.split('`').skip(1).step_by(2).collect()
}

/// A path is a file of the tree; anything else is a function, with or without its module.
fn exists(tree: &Tree, name: &str) -> bool {
    if name.contains('/') {
        return tree.file(name).is_some();
    }
    let function = name.rsplit("::").next().unwrap_or(name);
    let (rust, python) = (format!("fn {function}("), format!("def {function}("));
    tree.files.iter().any(|file| {
        file.is("rs") && file.text.contains(&rust) || file.is("py") && file.text.contains(&python)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(change: impl Fn(u32) -> Option<&'static str>) -> Vec<String> {
        let mut table = "# Tests\n\n| # | promise | tests |\n|---|---|---|\n".to_owned();
        for number in 1..=INVARIANTS {
            if let Some(tests) = change(number) {
                table += &format!("| {number} | it holds | {tests} |\n");
            }
        }
        let tree = Tree::of(&[
            (FILE, &table),
            ("crates/a/src/lib.rs", "#[test]\nfn it_holds() {}\n"),
            ("tests/e2e/a.py", ""),
        ]);
        check(&tree).into_iter().map(|finding| finding.what).collect()
    }

    #[test]
    fn a_whole_table_passes() {
        assert_eq!(findings(|_| Some("`a::it_holds`, `tests/e2e/a.py`")), [""; 0]);
        assert_eq!(findings(|_| Some("not yet")), [""; 0]);
    }

    #[test]
    fn gaps_are_found() {
        let gap = |bad: Option<&'static str>| {
            findings(move |number| if number == 7 { bad } else { Some("`it_holds`") })
        };
        assert_eq!(gap(None), ["invariant 7 has no line"]);
        assert_eq!(gap(Some("")), ["invariant 7 names no test; name one, or say \"not yet\""]);
        assert_eq!(gap(Some("`it_breaks`")), ["there is no test 'it_breaks'"]);
        assert_eq!(gap(Some("`tests/e2e/b.py`")), ["there is no test 'tests/e2e/b.py'"]);
        assert_eq!(check(&Tree::default()).len(), 1);
    }

    #[test]
    fn sentences_of_the_trust_model_name_tests_that_exist() {
        let found = |tests: &str| {
            let table = format!("| sentence | tests |\n|---|---|\n| it holds | {tests} |\n");
            let files = [
                (SECURITY, table.as_str()),
                ("a.rs", "fn it_holds() {}"),
                ("b.py", "def it_is_so(box):"),
            ];
            check_security(&Tree::of(&files)).into_iter().map(|it| it.what).collect::<Vec<_>>()
        };
        assert_eq!(found("`it_holds`, `it_is_so`"), [""; 0]);
        assert_eq!(found("not yet"), [""; 0]);
        assert_eq!(found("`it_breaks`"), ["there is no test 'it_breaks'"]);
        assert_eq!(found("").len(), 1);
        assert_eq!(check_security(&Tree::default()).len(), 1);
    }

    #[test]
    fn a_number_comes_once() {
        let tree =
            Tree::of(&[(FILE, "| 1 | a | not yet |\n| 1 | b | not yet |\n| 39 | c | not yet |\n")]);
        let doubled = check(&tree).into_iter().filter(|finding| finding.line > 0).count();
        assert_eq!(doubled, 2);
    }
}
