//! Errors become one line on stderr and an exit code.
//!
//! 0 done; 1 failed; 2 wrong usage or configuration; 3 refused, because something is in use or is
//! not the device that belongs here; 4 data at risk, needs force.

use std::process::ExitCode;

use forebay_admin::ApiError;
use forebay_core::text::usage_line;

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
        _ => {
            let command =
                verb.map_or_else(|| "forebay".to_owned(), |verb| format!("forebay {verb}"));
            eprintln!("forebay: {}", usage_line(&error.render().to_string(), &command));
        }
    }
    ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2))
}
