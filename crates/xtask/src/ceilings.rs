//! Ceilings: counts of old habits, per crate or per name, that may fall and never rise.
//!
//! [`FILE`] has a table for each measure. A count above its ceiling is a finding at each place; one
//! below it asks for a lower ceiling, so that it cannot rise again. The sum of a table may not
//! exceed that of the last commit, which lets code move between crates.
//! `cargo run -p xtask -- lower` writes the lower ceilings.

use std::collections::BTreeMap;
use std::process::Command;

use crate::occurrence::Occurrence;
use crate::tree::Tree;
use crate::{Finding, names, prose};

/// The file of the ceilings.
pub(crate) const FILE: &str = "crates/xtask/ceilings.toml";

const HEADER: &str = "\
# Ceilings of `cargo run -p xtask -- tidy`, which may only fall.
# `cargo run -p xtask -- lower` lowers them to today's counts, also after a merge conflict here;
# `cargo run -p xtask -- places CRATE...` lists the places. docs/style.md has examples of the prose.
";

/// The measures: name of the table, and the remedy.
const MEASURES: &[(&str, &str)] = &[
    ("nouns", "use the technical noun instead of a pronoun: see docs/style.md"),
    ("openings", "begin a doc comment with a noun or a verb: see docs/style.md"),
    ("wide", "wrap comments at 100 columns"),
    ("pronoun-tests", "name the subject of the guarantee instead of a pronoun"),
    ("long-tests", "shorten the name of the test to 60 characters"),
    ("types", "give the type a name of its own: at most two types have the same"),
];

/// A number for each key of each measure; a key that is absent has 0.
type Ceilings = BTreeMap<String, BTreeMap<String, usize>>;

/// Returns all places of all measures.
pub(crate) fn places(tree: &Tree) -> Vec<Occurrence> {
    let mut places = prose::places(tree);
    places.extend(names::places(tree));
    places.sort();
    places
}

/// Compares the tree with its ceilings, and these with the ceilings of the last commits.
///
/// # Errors
/// When the file is missing or cannot be parsed.
pub(crate) fn check(tree: &Tree) -> Result<Vec<Finding>, String> {
    let ceilings = read(tree)?;
    let mut findings = compare(&places(tree), &ceilings);
    for commit in ["HEAD", "HEAD~1"] {
        // There is no such commit in a shallow clone, and no file in the first one.
        if let Some(text) = committed(commit) {
            findings.extend(risen(&ceilings, &parse(&text)?, commit));
        }
    }
    Ok(findings)
}

/// Writes lower ceilings where counts have fallen.
///
/// # Errors
/// When the file cannot be read, parsed or written.
pub(crate) fn lower(tree: &Tree) -> Result<(), String> {
    let ceilings = match tree.file(FILE) {
        Some(_) => Some(read(tree)?),
        None => None,
    };
    let mut counts = count(&places(tree));
    for (measure, keys) in &mut counts {
        for (key, number) in keys.iter_mut() {
            let ceiling = ceilings.as_ref().map_or(*number, |all| at(all, measure, key));
            *number = ceiling.min(*number);
        }
    }
    std::fs::write(FILE, render(&counts)).map_err(|error| format!("{FILE}: {error}"))
}

fn read(tree: &Tree) -> Result<Ceilings, String> {
    parse(&tree.file(FILE).ok_or(format!("{FILE} is missing"))?.text)
}

fn parse(text: &str) -> Result<Ceilings, String> {
    toml::from_str(text).map_err(|error| format!("{FILE}: {error}"))
}

fn render(counts: &Ceilings) -> String {
    let mut text = HEADER.to_owned();
    for (measure, _) in MEASURES {
        text += &format!("\n[{measure}]\n");
        for (key, number) in counts.get(*measure).into_iter().flatten() {
            if *number > 0 {
                text += &format!("{key} = {number}\n");
            }
        }
    }
    text
}

/// The text of the file in a commit.
fn committed(commit: &str) -> Option<String> {
    let output = Command::new("git").args(["show", &format!("{commit}:{FILE}")]).output().ok()?;
    output.status.success().then(|| String::from_utf8(output.stdout).ok())?
}

fn at(counts: &Ceilings, measure: &str, key: &str) -> usize {
    counts.get(measure).and_then(|keys| keys.get(key)).copied().unwrap_or(0)
}

fn count(places: &[Occurrence]) -> Ceilings {
    let mut counts = Ceilings::new();
    for place in places {
        let keys = counts.entry(place.measure.to_owned()).or_default();
        *keys.entry(place.key.clone()).or_default() += 1;
    }
    counts
}

fn compare(places: &[Occurrence], ceilings: &Ceilings) -> Vec<Finding> {
    let counts = count(places);
    let mut findings = Vec::new();
    for place in places {
        let (measure, key) = (place.measure, &place.key);
        let (number, ceiling) = (at(&counts, measure, key), at(ceilings, measure, key));
        if number > ceiling {
            let remedy = MEASURES.iter().find(|(name, _)| *name == measure);
            let remedy = remedy.map_or("", |(_, remedy)| remedy);
            let what = format!("{remedy} ({measure} of {key}: {number}, at most {ceiling})");
            findings.push(Finding::new(&place.file, place.line, what));
        }
    }
    for (measure, keys) in ceilings {
        if !MEASURES.iter().any(|(name, _)| name == measure) {
            findings.push(Finding::new(FILE, 0, format!("there is no measure '{measure}'")));
            continue;
        }
        for (key, ceiling) in keys {
            let number = at(&counts, measure, key);
            if number < *ceiling {
                let what = format!(
                    "{measure} of {key} have fallen from {ceiling} to {number}: `cargo run -p xtask -- lower`"
                );
                findings.push(Finding::new(FILE, 0, what));
            }
        }
    }
    findings
}

/// Measures whose ceilings together are higher than in a commit before.
fn risen(ceilings: &Ceilings, before: &Ceilings, commit: &str) -> Vec<Finding> {
    let sum =
        |counts: &Ceilings, measure| counts.get(measure).map(|keys| keys.values().sum::<usize>());
    let mut findings = Vec::new();
    for measure in before.keys() {
        let (now, then) = (sum(ceilings, measure).unwrap_or(0), sum(before, measure).unwrap_or(0));
        if now > then {
            let what = format!(
                "the ceilings of {measure} have risen from {then} in {commit} to {now}: they may only fall"
            );
            findings.push(Finding::new(FILE, 0, what));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(key: &str, line: usize) -> Occurrence {
        Occurrence {
            measure: "wide",
            key: key.into(),
            file: format!("crates/{key}/src/lib.rs"),
            line,
        }
    }

    fn ceilings(text: &str) -> Ceilings {
        parse(text).expect("ceilings")
    }

    #[test]
    fn counts_above_and_below_their_ceilings_are_found() {
        let places = [place("a", 3), place("a", 5), place("b", 7)];
        let found = |text| {
            let findings = compare(&places, &ceilings(text));
            findings.into_iter().map(|it| (it.file, it.line)).collect::<Vec<_>>()
        };
        let in_a = |line| ("crates/a/src/lib.rs".to_owned(), line);
        assert_eq!(found("[wide]\na = 2\nb = 1"), []);
        assert_eq!(found("[wide]\na = 1\nb = 1"), [in_a(3), in_a(5)]);
        assert_eq!(found("[wide]\na = 2"), [("crates/b/src/lib.rs".to_owned(), 7)]);
        assert_eq!(found("[wide]\na = 3\nb = 1"), [(FILE.to_owned(), 0)]);
        assert_eq!(found("[wide]\na = 2\nb = 1\nc = 1"), [(FILE.to_owned(), 0)]);
        assert_eq!(found("[width]\na = 2\n[wide]\na = 2\nb = 1"), [(FILE.to_owned(), 0)]);
    }

    #[test]
    fn ceilings_may_move_between_crates_but_not_rise() {
        let before = ceilings("[wide]\na = 2\nb = 1\n[nouns]\na = 1");
        let rises = |text| risen(&ceilings(text), &before, "HEAD").len();
        assert_eq!(rises("[wide]\na = 2\nb = 1\n[nouns]\na = 1"), 0);
        assert_eq!(rises("[wide]\nb = 3"), 0);
        assert_eq!(rises("[wide]\na = 2\nb = 2\n[nouns]\na = 1"), 1);
        assert_eq!(rises("[wide]\na = 4\n[nouns]\nb = 2"), 2);
    }

    #[test]
    fn rendered_ceilings_are_read_back() {
        let counts = count(&[place("a", 3), place("a", 5), place("b", 7)]);
        let mut read = ceilings(&render(&counts));
        read.retain(|_, keys| !keys.is_empty());
        assert_eq!(read, counts);
    }
}
