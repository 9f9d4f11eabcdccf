//! No path of a developer's machine anywhere: it works on no other machine.

use crate::Finding;
use crate::tree::Tree;

/// Directories at the root of a filesystem in which people keep their work.
const PERSONAL: [&str; 4] = ["work", "home", "root", "Users"];

/// Checks every file.
pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in &tree.files {
        for (number, line) in file.lines() {
            if let Some(path) = personal(line) {
                let what = format!("'{path}' is a path of one machine; take it from outside");
                findings.push(Finding::new(&file.path, number, what));
            }
        }
    }
    findings
}

/// The first absolute path in a line that leads into a developer's files.
fn personal(line: &str) -> Option<String> {
    PERSONAL.iter().find_map(|name| {
        let start = format!("/{name}/");
        let absolute = |at: usize| {
            !line[..at].ends_with(|c: char| c.is_alphanumeric() || "._-}~*/".contains(c))
        };
        line.match_indices(&start).find(|(at, _)| absolute(*at)).map(|_| start.clone())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_a_machine_are_found_and_others_are_not() {
        for name in PERSONAL {
            for good in [
                format!("crates/{name}/src"),
                format!("${{DIR}}/{name}/x"),
                format!("~/{name}/x"),
                format!("https://example.org/{name}/x"),
            ] {
                assert_eq!(personal(&good), None, "{good}");
            }
            for bad in
                [format!("/{name}/me/x"), format!("see \"/{name}/x\""), format!("=/{name}/x")]
            {
                assert_eq!(personal(&bad), Some(format!("/{name}/")), "{bad}");
            }
        }
        let tree = Tree::of(&[("a", &format!("\n/{}/x\n", PERSONAL[0]))]);
        assert_eq!(check(&tree).len(), 1);
        assert_eq!(check(&tree)[0].line, 2);
    }
}
