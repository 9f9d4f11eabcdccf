//! One-line messages for operators.

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
    format!("{} (see '{command} --help')", one_line(message))
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
    }
}
