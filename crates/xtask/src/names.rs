//! Names: tests that begin with a pronoun or are too long, and type names that mean many things.

use std::collections::BTreeMap;

use crate::occurrence::{Occurrence, crate_of};
use crate::tree::{TextFile, Tree};

/// Maximum number of characters of the name of a test.
const MAX_TEST_NAME: usize = 60;

/// Beginnings of test names that do not name their subject.
const PRONOUNS: &[&str] = &[
    "it", "nobody", "one", "somebody", "they", "those", "what", "whatever", "which", "who",
    "whoever",
];

/// Maximum number of types of one name.
const MAX_TYPES: usize = 2;

/// Type names that may be used any number of times: their module tells them apart.
const GENERIC: &[&str] = &["Args", "Error", "Inner", "Report", "Result", "State"];

/// Crates whose programs are independent of each other, and repeat names.
const INDEPENDENT: &[&str] = &["lab", "fuzz"];

/// Returns the places of the measures `pronoun-tests`, `long-tests` and `types`.
pub(crate) fn places(tree: &Tree) -> Vec<Occurrence> {
    let mut places = Vec::new();
    let mut types: BTreeMap<&str, Vec<Occurrence>> = BTreeMap::new();
    for file in tree.files.iter().filter(|file| file.is("rs")) {
        let owner = crate_of(&file.path);
        let place = |measure, key: &str, line| Occurrence {
            measure,
            key: key.to_owned(),
            file: file.path.clone(),
            line,
        };
        for (line, name) in tests(file) {
            if name.split_once('_').is_some_and(|(first, _)| PRONOUNS.contains(&first)) {
                places.push(place("pronoun-tests", owner, line));
            }
            if name.len() > MAX_TEST_NAME {
                places.push(place("long-tests", owner, line));
            }
        }
        if !INDEPENDENT.contains(&owner) {
            for (line, name) in definitions(file) {
                types.entry(name).or_default().push(place("types", name, line));
            }
        }
    }
    types.retain(|name, defined| defined.len() > MAX_TYPES && !GENERIC.contains(name));
    places.extend(types.into_values().flatten());
    places
}

/// The tests of a file: line and name.
fn tests(file: &TextFile) -> Vec<(usize, &str)> {
    let mut tests = Vec::new();
    let mut marked = false;
    for (number, line) in file.lines() {
        let line = line.trim_start();
        if line.starts_with("#[test]") || line.starts_with("#[tokio::test") {
            marked = true;
        } else if let Some(name) = function(line) {
            if marked {
                tests.push((number, name));
            }
            marked = false;
        }
    }
    tests
}

/// The name of the function that a line declares.
fn function(line: &str) -> Option<&str> {
    let line = line.strip_prefix("pub ").unwrap_or(line);
    let line = line.strip_prefix("async ").unwrap_or(line);
    line.strip_prefix("fn ")?.split(['(', '<']).next()
}

/// The types that a file defines outside its tests: line and name.
fn definitions(file: &TextFile) -> Vec<(usize, &str)> {
    let is_test = |part: &str| {
        let name = part.strip_suffix(".rs").unwrap_or(part);
        matches!(name, "tests" | "testing" | "benches" | "examples") || name.ends_with("_tests")
    };
    if file.path.split('/').any(is_test) {
        return Vec::new();
    }
    let code = file.lines().take_while(|(_, line)| !line.starts_with("#[cfg(test)]"));
    code.filter_map(|(number, line)| Some((number, definition(line)?))).collect()
}

/// The name of the type that a line defines. An associated type, which is indented, is none.
fn definition(line: &str) -> Option<&str> {
    let line = match line.strip_prefix("pub") {
        Some(rest) => rest.strip_prefix(' ').or(rest.split_once(") ").map(|(_, rest)| rest))?,
        None => line,
    };
    let (keyword, rest) = line.split_once(' ')?;
    if !matches!(keyword, "struct" | "enum" | "union" | "trait" | "type") {
        return None;
    }
    let name = rest.split(|c: char| !(c.is_alphanumeric() || c == '_')).next()?;
    name.starts_with(char::is_uppercase).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(measure: &str, files: &[(&str, &str)]) -> Vec<(String, usize)> {
        let places = places(&Tree::of(files)).into_iter().filter(|it| it.measure == measure);
        places.map(|it| (it.key, it.line)).collect()
    }

    #[test]
    fn tests_that_begin_with_a_pronoun_are_found() {
        let number = |text: &str| found("pronoun-tests", &[("crates/a/src/b.rs", text)]).len();
        let text = "#[test]\n#[ignore]\nfn what_is_lost() {}\n    #[tokio::test]\n    async fn it_ends() {}";
        assert_eq!(number(text), 2);
        let text =
            "#[test]\nfn items_end() {}\nfn what_is_lost() {}\n#[test]\nfn oneness_is_kept() {}";
        assert_eq!(number(text), 0);
    }

    #[test]
    fn long_names_of_tests_are_found() {
        let number = |length: usize| {
            let text = format!("#[test]\nfn {}() {{}}\n", "a".repeat(length));
            found("long-tests", &[("crates/a/src/b.rs", &text)])
        };
        assert_eq!(number(MAX_TEST_NAME), []);
        assert_eq!(number(MAX_TEST_NAME + 1), [("a".to_owned(), 2)]);
    }

    #[test]
    fn the_third_type_of_a_name_is_found() {
        let names = |third: &str, path: &str| {
            let (a, b) = ("struct Thing;", "pub(crate) enum Thing {}");
            let files = [("crates/a/src/a.rs", a), ("crates/b/src/b.rs", b), (path, third)];
            found("types", &files).len()
        };
        for third in ["pub trait Thing {", "type Thing = u8;", "struct Thing<'a>(&'a u8);"] {
            assert_eq!(names(third, "crates/a/src/c.rs"), 3, "{third}");
        }
        for third in [
            "struct Things;",
            "// struct Thing;",
            "    type Thing = u8;",
            "#[cfg(test)]\nmod tests {\nstruct Thing;",
        ] {
            assert_eq!(names(third, "crates/a/src/c.rs"), 0, "{third}");
        }
        assert_eq!(names("struct Thing;", "crates/lab/src/c.rs"), 0);
        assert_eq!(names("struct Thing;", "crates/a/src/c/tests.rs"), 0);
        let generic = "struct State;\nstruct State;\nstruct State;\n";
        assert_eq!(found("types", &[("crates/a/src/a.rs", generic)]), []);
    }
}
