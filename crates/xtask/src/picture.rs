//! The picture of the crates in `ARCHITECTURE.md`, which is made from the table of arrows.
//!
//! It has only those arrows that no other path of arrows implies, because all of them would be
//! unreadable.

use crate::Finding;
use crate::arrows::ALLOWED;
use crate::tree::Tree;

const FILE: &str = "ARCHITECTURE.md";
const BEGIN: &str = "```mermaid";
const END: &str = "```";

/// Crates that are not in the picture: test support, which nearly every crate uses, and crates that
/// no other uses.
const LEFT_OUT: &[&str] = &["testkit", "fuzz", "xtask"];

/// Checks that the page has the picture that the table makes, and a row for each crate.
pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let Some(file) = tree.file(FILE) else {
        return vec![Finding::new(FILE, 0, "is missing")];
    };
    let mut findings = Vec::new();
    match shown(&file.text) {
        None => findings.push(Finding::new(FILE, 0, "has no picture of the crates in ```mermaid")),
        Some((line, picture)) if picture != drawn(ALLOWED) => {
            let what = "the picture differs from the table of arrows; cargo run -p xtask -- picture writes it";
            findings.push(Finding::new(FILE, line, what));
        }
        Some(_) => {}
    }
    let rows = ALLOWED.iter().map(|(name, _)| *name).filter(|name| *name != "fuzz");
    let lacking = rows.filter(|name| !file.text.contains(&format!("\n| `{name}` | ")));
    findings.extend(lacking.map(|name| {
        Finding::new(FILE, 0, format!("the code map has no row for the crate '{name}'"))
    }));
    findings
}

/// Writes the picture into the page.
///
/// # Errors
/// The page cannot be read or written, or has no picture to replace.
pub(crate) fn write() -> Result<(), String> {
    let text = std::fs::read_to_string(FILE).map_err(|error| format!("{FILE}: {error}"))?;
    let (_, old) = shown(&text).ok_or_else(|| format!("{FILE} has no picture in {BEGIN}"))?;
    let block = |picture: &str| format!("{BEGIN}\n{picture}{END}\n");
    let text = text.replacen(&block(old), &block(&drawn(ALLOWED)), 1);
    std::fs::write(FILE, text).map_err(|error| format!("{FILE}: {error}"))
}

/// The picture in a page, with the number of the line where it begins.
fn shown(text: &str) -> Option<(usize, &str)> {
    let (before, rest) = text.split_once(&format!("{BEGIN}\n"))?;
    let (picture, _) = rest.split_once(&format!("{END}\n"))?;
    Some((before.lines().count() + 1, picture))
}

/// Draws a table of arrows: one line for each crate that uses others, highest first.
fn drawn(table: &[(&str, &[&str])]) -> String {
    let mut picture = String::from("graph TD\n");
    for (from, to) in table.iter().rev().filter(|(from, _)| !LEFT_OUT.contains(from)) {
        let to = to.iter().filter(|name| !LEFT_OUT.contains(name));
        let direct = |name: &&&str| !to.clone().any(|other| leads(table, other, name));
        let direct: Vec<&str> = to.clone().filter(direct).copied().collect();
        if !direct.is_empty() {
            picture.push_str(&format!("    {from} --> {}\n", direct.join(" & ")));
        }
    }
    picture
}

/// Returns whether arrows lead from one crate to another one, over others or not. The table has no
/// circle.
fn leads(table: &[(&str, &[&str])], from: &str, to: &str) -> bool {
    let used = table.iter().find(|(name, _)| *name == from).map_or(&[][..], |(_, used)| used);
    used.iter().any(|name| *name == to || leads(table, name, to))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::TextFile;

    #[test]
    fn arrows_that_others_imply_are_left_out() {
        let table: &[(&str, &[&str])] = &[
            ("core", &[]),
            ("device", &["core"]),
            ("testkit", &["core"]),
            ("store", &["core", "device", "testkit"]),
            ("sim", &["core"]),
            ("daemon", &["core", "device", "store"]),
        ];
        let picture = "graph TD\n    daemon --> store\n    sim --> core\n    store --> device\n    device --> core\n";
        assert_eq!(drawn(table), picture);
    }

    #[test]
    fn a_page_without_the_picture_or_a_crate_is_found() {
        let rows: String =
            ALLOWED.iter().map(|(name, _)| format!("\n| `{name}` | content |")).collect();
        let page = |picture: &str, rows: &str| {
            let text = format!("{rows}\n{BEGIN}\n{picture}{END}\n");
            check(&Tree { files: vec![TextFile { path: FILE.into(), text }] }).len()
        };
        let picture = drawn(ALLOWED);
        assert_eq!(page(&picture, &rows), 0);
        assert_eq!(page(&picture.replace("& ", ""), &rows), 1);
        assert_eq!(page(&picture, &rows.replace("| `store` |", "| `stores` |")), 1);
        assert_eq!(check(&Tree { files: Vec::new() }).len(), 1);
    }
}
