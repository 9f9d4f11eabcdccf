//! Errors become one line on stderr and an exit code.
//!
//! 0 done; 1 failed; 2 wrong usage or configuration; 3 refused, because something is in use or is
//! not the device that belongs here; 4 data at risk, needs force.

use std::process::ExitCode;

use forebay_admin::ApiError;
use forebay_admin::error::one_line;

/// How a verb ends.
pub(crate) type Outcome = Result<(), ApiError>;

/// Reports an outcome and gives the exit code that goes with it.
pub(crate) fn code(outcome: Outcome) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("forebay: {error}");
            ExitCode::from(error.kind.exit_code())
        }
    }
}

/// Reports what the parser of the command line says about `verb`, errors in one line.
pub(crate) fn usage(error: &clap::Error, verb: Option<&str>) -> ExitCode {
    use clap::error::ErrorKind;
    match error.kind() {
        ErrorKind::DisplayHelp
        | ErrorKind::DisplayVersion
        | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            // Nothing can be done about a closed pipe here.
            let _ = error.print();
        }
        _ => eprintln!("forebay: {}", usage_line(&error.render().to_string(), verb)),
    }
    ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2))
}

/// The parser's message without the usage block that it adds for a terminal.
fn usage_line(rendered: &str, verb: Option<&str>) -> String {
    let message = rendered.split("\nUsage:").next().unwrap_or(rendered);
    let message = message.split("\nFor more information").next().unwrap_or(message);
    let message = message.trim().strip_prefix("error: ").unwrap_or(message);
    let command = verb.map_or_else(|| "forebay".to_owned(), |verb| format!("forebay {verb}"));
    format!("{} (see '{command} --help')", one_line(message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_usage_error_becomes_one_line_that_names_the_help() {
        let rendered = "error: the following required arguments were not provided:\n  --cache <CACHE>\n  <NAME>\n\nUsage: forebay create --cache <CACHE> <NAME>\n\nFor more information, try '--help'.\n";
        assert_eq!(
            usage_line(rendered, Some("create")),
            "the following required arguments were not provided: --cache <CACHE> <NAME> \
             (see 'forebay create --help')"
        );
        assert_eq!(usage_line("error: odd", None), "odd (see 'forebay --help')");
    }
}
