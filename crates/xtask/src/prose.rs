//! Comments: pronouns in the place of nouns, doc comments without a noun or a verb, and lines that
//! are too long.

use crate::occurrence::{Occurrence, crate_of};
use crate::tree::{TextFile, Tree};

/// Columns of a comment line, unless it is a row of a table.
const COLUMNS: usize = 100;

/// Pronouns for persons, which stand for a component here.
const PERSONS: &[&str] = &["whoever", "whomever", "nobody", "somebody", "anybody", "everybody"];

/// Words after which "what" is a noun if a clause follows, as in `a copy of what is there`.
const BEFORE: &[&str] = &[
    "of", "and", "or", "but", "to", "from", "than", "that", "not", "only", "all", "in", "on", "as",
    "at", "by", "for", "with", "without", "after", "before", "below", "above", "behind", "into",
    "is", "are", "was",
];

/// Words that begin the clause, besides verbs in -s and -ed.
const CLAUSE: &[&str] = &[
    "are", "had", "have", "it", "they", "we", "you", "the", "a", "an", "can", "may", "must",
    "will", "were",
];

/// Words with which a doc comment begins that has neither subject nor verb.
const ELLIPTIC: &[&str] = &[
    "What", "Whatever", "Who", "Whoever", "Of", "Where", "Those", "Which", "None", "Nobody", "That",
];

/// Prepositions of an opening such as "By which".
const PREPOSITIONS: &[&str] =
    &["At", "Behind", "Below", "By", "For", "From", "In", "Into", "On", "Through", "To", "With"];

/// Returns the places of the measures `nouns`, `openings` and `wide`.
pub(crate) fn places(tree: &Tree) -> Vec<Occurrence> {
    let mut places = Vec::new();
    for file in tree.files.iter().filter(|file| file.is("rs")) {
        let mut note = |measure, line| {
            let key = crate_of(&file.path).to_owned();
            places.push(Occurrence { measure, key, file: file.path.clone(), line });
        };
        for (line, text) in file.lines() {
            let row = ["/// |", "//! |"].iter().any(|row| text.trim_start().starts_with(row));
            if text.trim_start().starts_with("//") && !row && text.chars().count() > COLUMNS {
                note("wide", line);
            }
        }
        for comment in comments(file) {
            comment.nouns().for_each(|line| note("nouns", line));
            if comment.opens_elliptically() {
                note("openings", comment.words[0].line);
            }
        }
    }
    places
}

/// A word of a comment, with its punctuation.
struct CommentWord<'a> {
    line: usize,
    text: &'a str,
}

/// Consecutive comment lines of one kind, without code.
struct Comment<'a> {
    marker: &'static str,
    words: Vec<CommentWord<'a>>,
}

/// The comments of a file.
fn comments(file: &TextFile) -> Vec<Comment<'_>> {
    let mut comments: Vec<Comment<'_>> = Vec::new();
    let (mut last, mut fenced) = (0, false);
    for (number, line) in file.lines() {
        let line = line.trim_start();
        let Some(marker) = ["///", "//!", "//"].into_iter().find(|it| line.starts_with(it)) else {
            continue;
        };
        let follows = number == last + 1 && comments.last().is_some_and(|it| it.marker == marker);
        if !follows {
            comments.push(Comment { marker, words: Vec::new() });
            fenced = false;
        }
        last = number;
        let text = line[marker.len()..].trim_start_matches('/');
        fenced ^= text.trim_start().starts_with("```");
        if fenced {
            continue;
        }
        if let Some(comment) = comments.last_mut() {
            let prose = text.split('`').step_by(2);
            let words = prose.flat_map(str::split_whitespace);
            comment.words.extend(words.map(|text| CommentWord { line: number, text }));
        }
    }
    comments.retain(|comment| !comment.words.is_empty());
    comments
}

impl CommentWord<'_> {
    fn plain(&self) -> String {
        self.text.trim_matches(|c: char| !c.is_alphanumeric()).to_ascii_lowercase()
    }

    fn ends_sentence(&self) -> bool {
        self.text.trim_end_matches(')').ends_with(['.', ':', ';', '?', '!'])
    }
}

impl Comment<'_> {
    /// The lines with a pronoun in the place of a noun.
    fn nouns(&self) -> impl Iterator<Item = usize> {
        (0..self.words.len())
            .filter(|index| self.is_noun(*index))
            .map(|index| self.words[index].line)
    }

    fn is_noun(&self, index: usize) -> bool {
        let word = self.words[index].plain();
        if PERSONS.contains(&&*word) {
            return true;
        }
        if word != "what" && word != "whatever" {
            return false;
        }
        let after_noun = match index.checked_sub(1).map(|before| &self.words[before]) {
            Some(before) => before.ends_sentence() || BEFORE.contains(&&*before.plain()),
            None => true,
        };
        let clause = self.words.get(index + 1).is_some_and(|next| {
            let next = next.plain();
            let verb = next.len() > 2 && (next.ends_with('s') || next.ends_with("ed"));
            next == "is" || verb || CLAUSE.contains(&&*next)
        });
        after_noun && clause
    }

    fn opens_elliptically(&self) -> bool {
        if self.marker == "//" {
            return false;
        }
        let word = |index: usize| self.words.get(index).map_or("", |word| word.text);
        let plain = |index| word(index).trim_end_matches(|c: char| !c.is_alphanumeric());
        let second = plain(1);
        match plain(0) {
            "As" => !matches!(second, "a" | "an" | "the"),
            "How" => second != "to",
            first if PREPOSITIONS.contains(&first) => matches!(second, "which" | "what" | "whom"),
            first => ELLIPTIC.contains(&first),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(measure: &str, text: &str) -> Vec<usize> {
        let places = places(&Tree::of(&[("crates/a/src/lib.rs", text)]));
        assert!(places.iter().all(|place| place.key == "a"));
        places.into_iter().filter(|it| it.measure == measure).map(|it| it.line).collect()
    }

    const NO_LINES: [usize; 0] = [];

    #[test]
    fn pronouns_in_the_place_of_nouns_are_found() {
        for text in [
            "// A copy of what is there.",
            "// It ends. What was begun goes on.",
            "// Whatever it holds is lost.",
            "// The slot is free (nobody reads it).",
            "    /// Told to whoever waits.",
        ] {
            assert_eq!(found("nouns", text), [1], "{text}");
        }
        assert_eq!(
            found("nouns", "// A copy\n// of what\n// was there and what is not.\n"),
            [2, 3]
        );
        for text in [
            "// Says what is wrong.",
            "// The reader decides what to do.",
            "// The field `of what is` is code.",
            "/// ```text\n/// of what is\n/// ```",
            "let text = \"of what is there\";",
            "// A copy of it.\n\n// what",
        ] {
            assert_eq!(found("nouns", text), NO_LINES, "{text}");
        }
    }

    #[test]
    fn elliptic_openings_are_found() {
        for text in [
            "/// What is left.",
            "//! Of one volume: its state.",
            "/// As long as it takes.",
            "/// By which a daemon knows it.",
            "/// None: nothing is left.",
            "    /// How long it takes.",
            "/// Those in use.",
        ] {
            assert_eq!(found("openings", text), [1], "{text}");
        }
        for text in [
            "// What is left.",
            "/// A copy.\n/// What is left.",
            "/// As a rule, none.",
            "/// How to mend it.",
            "/// By default, one.",
            "/// `None` if there is nothing left.",
        ] {
            assert_eq!(found("openings", text), NO_LINES, "{text}");
        }
        assert_eq!(found("openings", "/// A copy.\nstruct A;\n/// Which?\nstruct B;"), [3]);
    }

    #[test]
    fn wide_comment_lines_are_found() {
        let line = |marker: &str, columns: usize| format!("{marker:é<columns$}");
        for marker in ["// ", "    /// ", "//! "] {
            assert_eq!(found("wide", &line(marker, COLUMNS)), NO_LINES);
            assert_eq!(found("wide", &line(marker, COLUMNS + 1)), [1]);
        }
        assert_eq!(found("wide", &line("let x = ", COLUMNS + 1)), NO_LINES);
        assert_eq!(found("wide", &line("/// | row of a table", COLUMNS + 1)), NO_LINES);
    }
}
