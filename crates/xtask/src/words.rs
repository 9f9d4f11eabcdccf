//! Words that are not used any more, because the field has others: see `docs/style.md`.

use crate::Finding;
use crate::tree::Tree;

/// A retired word, alone or as a part of a name in snake case, and the one to use.
const RETIRED: &[(&str, &str)] = &[
    ("brake", "throttle"),
    ("carried_on", "reinserted"),
    ("carry_on", "reinsert"),
    ("glance", "hazard slot"),
    ("grown_up", "probation"),
    ("keeper", "list policy"),
    ("knob", "setting"),
    ("lets_in", "admits"),
    ("strain", "origin latency"),
    ("stranger", "external writer"),
    ("swallow", "overlay"),
    ("toy", "reference model"),
    ("weather", "fault profile"),
    ("wish", "workload op"),
];

/// Files where a retired word has to stay, and which.
const KEPT: &[(&str, &str)] = &[
    // The list of words itself.
    ("crates/xtask/src/words.rs", ""),
    ("docs/style.md", ""),
    // Earlier names are quoted there.
    ("CHANGELOG.md", ""),
    // Names that users know: a path of the admin API, a field of its JSON, and old options.
    ("crates/daemon/src/api.rs", "knob"),
    ("crates/admin/src/api.rs", "knob"),
    ("crates/daemon/src/web.rs", "knob"),
    ("crates/admin/src/schema.rs", "knob"),
    ("crates/settings/src/help.rs", "knob"),
    ("crates/settings/src/tests.rs", "knob"),
    ("crates/admin/src/report.rs", "carried_on"),
    ("crates/daemon/src/host/report.rs", "carried_on"),
    ("crates/forebay/src/output/volume.rs", "carried_on"),
    ("crates/forebay/src/output/volume/tests.rs", "carried_on"),
    ("crates/daemon/src/metrics.rs", "carried_on"),
    ("crates/sim/src/args.rs", "toy"),
    ("crates/sim/src/args.rs", "weather"),
];

/// Checks the sources and the pages; results that were published stay as they are.
pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in &tree.files {
        if !(file.is("rs") || file.is("md")) || file.path.starts_with("docs/results") {
            continue;
        }
        for (number, line) in file.lines() {
            let lower = line.to_ascii_lowercase();
            for (word, instead) in RETIRED {
                let kept = KEPT
                    .iter()
                    .any(|(path, kept)| *path == file.path && (kept.is_empty() || kept == word));
                if !kept && has_word(&lower, word) {
                    let what = format!("'{word}' is retired; say {instead}");
                    findings.push(Finding::new(&file.path, number, what));
                }
            }
        }
    }
    findings
}

/// Whether a line has this word, also in the plural, or as a part of a name in snake case.
fn has_word(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let rest = line[at + word.len()..].trim_start_matches('s');
        let letter = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
        !letter(before) && !letter(rest.chars().next())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_words_and_parts_of_names_are_found() {
        for line in ["the toy", "toys", "a_toy_bug", "let toy = 1;", "(toy)"] {
            assert!(has_word(line, "toy"), "{line}");
        }
        for line in ["toyota", "stoy", "a story", ""] {
            assert!(!has_word(line, "toy"), "{line}");
        }
    }
}
