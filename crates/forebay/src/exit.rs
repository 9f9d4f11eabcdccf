//! Reports errors as one line on stderr and an exit code.
//!
//! 0 done; 1 failed; 2 wrong usage or configuration; 3 refused, because something is in use or is
//! not the expected device; 4 data at risk, needs force.

use forebay_admin::ApiError;
use forebay_core::text::usage_line;

/// Result of a verb.
pub(crate) type Outcome = Result<(), ApiError>;

/// Reports an outcome and returns its exit code.
pub(crate) fn code(outcome: Outcome) -> u8 {
    match outcome {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("forebay: {error}");
            error.kind.exit_code()
        }
    }
}

/// Reports help, version or an error of the command-line parser; errors of `verb` in one line.
pub(crate) fn usage(error: &clap::Error, verb: Option<&str>) -> u8 {
    use clap::error::ErrorKind;
    match error.kind() {
        ErrorKind::DisplayHelp
        | ErrorKind::DisplayVersion
        | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            // A closed pipe cannot be handled here.
            let _ = error.print();
        }
        _ => {
            let command =
                verb.map_or_else(|| "forebay".to_owned(), |verb| format!("forebay {verb}"));
            eprintln!("forebay: {}", usage_line(&error.render().to_string(), &command));
        }
    }
    u8::try_from(error.exit_code()).unwrap_or(2)
}
