//! One-line messages for operators.

/// Characters of a word that are compared with others, at most.
const LONGEST_WORD: usize = 64;

/// Returns the text with every run of white space and control characters as one space.
pub fn one_line(text: &str) -> String {
    text.split(|c: char| c.is_whitespace() || c.is_control())
        .filter(|word| !word.is_empty())
        .collect::<Vec<_>>()
        .join(" ")
}

/// Returns the error message of a command-line parser as one line, without the usage block, and
/// with a reference to `command --help`.
pub fn usage_line(rendered: &str, command: &str) -> String {
    let message = rendered.split("\nUsage:").next().unwrap_or(rendered);
    let message = message.split("\nFor more information").next().unwrap_or(message);
    let message = message.trim().strip_prefix("error: ").unwrap_or(message);
    let message = one_line(&message.replace("\n\n  tip: ", "; "));
    format!("{message} (see '{command} --help')")
}

/// Returns the one of `words` that was probably meant by `given`: the one with the fewest
/// characters that are wrong, missing, added or exchanged, if these are about a third or less.
/// Capitals count as small letters, and hyphens as underscores.
pub fn nearest<'a>(given: &str, words: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let plain = |text: &str| -> Vec<char> {
        let text = text.chars().take(LONGEST_WORD);
        text.map(|c| if c == '-' { '_' } else { c.to_ascii_lowercase() }).collect()
    };
    let given = plain(given);
    let (changes, word) = words
        .into_iter()
        .map(|word| (changes(&given, &plain(word)), word))
        .min_by_key(|(changes, _)| *changes)?;
    (changes <= (given.len() + 1) / 3).then_some(word)
}

/// Returns how many characters of `one` have to be replaced, added, removed, or exchanged with the
/// next one, to make `other` of it.
fn changes(one: &[char], other: &[char]) -> usize {
    let (mut before, mut last) = (Vec::new(), (0..=other.len()).collect::<Vec<usize>>());
    for (row, a) in one.iter().enumerate() {
        let mut next = vec![row + 1];
        for (column, b) in other.iter().enumerate() {
            let replaced = last[column] + usize::from(a != b);
            let least = replaced.min(last[column + 1] + 1).min(next[column] + 1);
            let exchanged = row > 0 && column > 0 && one[row - 1] == *b && other[column - 1] == *a;
            next.push(if exchanged { least.min(before[column - 1] + 1) } else { least });
        }
        (before, last) = (last, next);
    }
    last[other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_usage_error_becomes_one_line_that_names_the_help() {
        let rendered = "error: the following required arguments were not provided:\n  --cache <CACHE>\n  <NAME>\n\nUsage: forebay create --cache <CACHE> <NAME>\n\nFor more information, try '--help'.\n";
        assert_eq!(
            usage_line(rendered, "forebay create"),
            "the following required arguments were not provided: --cache <CACHE> <NAME> \
             (see 'forebay create --help')"
        );
        assert_eq!(usage_line("error: no\tsuch\x1b thing", "x"), "no such thing (see 'x --help')");
        let tip = "error: no verb 'lsit'\n\n  tip: there is 'list'\n\nUsage: x\n";
        assert_eq!(usage_line(tip, "x"), "no verb 'lsit'; there is 'list' (see 'x --help')");
    }

    #[test]
    fn a_word_that_is_nearly_right_is_recognised() {
        let words = ["mode", "dirty_high", "dirty_low", "ram", "v2"];
        for (given, meant) in [
            ("mdoe", Some("mode")),
            ("Mode", Some("mode")),
            ("modes", Some("mode")),
            ("dirty-high", Some("dirty_high")),
            ("dirtyhigh", Some("dirty_high")),
            ("dirty_lwo", Some("dirty_low")),
            ("v1", Some("v2")),
            ("ra", Some("ram")),
            ("x", None),
            ("", None),
            ("nope", None),
            ("writeback", None),
        ] {
            assert_eq!(nearest(given, words), meant, "{given}");
        }
        assert_eq!(nearest("a", []), None);
        assert_eq!(nearest(&"x".repeat(1 << 20), words), None);
    }
}
