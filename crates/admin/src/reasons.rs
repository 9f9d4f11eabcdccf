//! The counted reasons, as text for help.

use std::fmt::Write as _;

use forebay_core::why::Why;

use forebay_settings::help::wrapped;

/// Returns every reason with its meaning, as aligned text in lines of at most 80 characters.
pub fn help_text() -> String {
    let meanings = Why::meanings();
    let groups = meanings.iter().map(|(group, _, _)| group.len()).max().unwrap_or(0);
    let names = meanings.iter().map(|(_, name, _)| name.len()).max().unwrap_or(0);
    let mut text = String::from("Reasons, as why.GROUP.REASON in --json:\n");
    let mut last = "";
    for (group, name, help) in meanings {
        for (index, line) in wrapped(help, 74 - groups - names).iter().enumerate() {
            let first = index == 0;
            let group = if first && group != last { group } else { "" };
            let name = if first { name } else { "" };
            let _ = writeln!(text, "  {group:groups$}  {name:names$}  {line}");
        }
        last = group;
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_has_a_line_that_fits() {
        let text = help_text();
        assert!(text.lines().all(|line| line.len() <= 80), "{text}");
        for (group, name, _) in Why::meanings() {
            assert!(text.contains(group) && text.contains(name), "{group}.{name}");
        }
        assert!(text.lines().count() > Why::meanings().len());
    }
}
