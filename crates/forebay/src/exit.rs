//! Reports errors as one line on stderr and an exit code.
//!
//! 0 done; 1 failed; 2 wrong usage or configuration; 3 refused, because something is in use or is
//! not the expected device; 4 data at risk, needs force; 5 the daemon does not answer.

use std::ffi::OsString;
use std::io::Write;

use forebay_admin::ApiError;
use forebay_core::text::usage_line;

use forebay_daemon::log;

/// Result of a verb.
pub(crate) type VerbResult = Result<(), ApiError>;

/// Exit codes of the process, with their meanings.
pub(crate) const EXIT_CODES: [(u8, &str); 6] = [
    (0, "done"),
    (1, "failed"),
    (2, "wrong usage or configuration"),
    (3, "refused (in use, or the wrong device)"),
    (4, "data at risk (needs force)"),
    (
        5,
        "no end yet: the daemon or a device does not answer (the command may still be carried out)",
    ),
];

/// Returns the exit codes as text for `--help`.
pub(crate) fn exit_codes() -> String {
    let codes = EXIT_CODES.map(|(code, meaning)| format!("{code} {meaning}"));
    format!("Exit codes: {}.", codes.join(", "))
}

/// Reports an outcome and returns its exit code.
pub(crate) fn code(outcome: VerbResult) -> u8 {
    match outcome {
        Ok(()) => 0,
        Err(error) => {
            let line = format!("forebay: {error}");
            // The daemon waits for no reader of its stderr.
            if !log::last_line(&line) {
                note(&line);
            }
            error.kind.exit_code()
        }
    }
}

/// Writes one line to stderr. Nothing depends on it: a line that cannot be written is lost.
pub(crate) fn note(text: &str) {
    let _ = std::io::stderr().write_all(format!("{text}\n").as_bytes());
}

/// Reports help, version or an error of the command-line parser; errors of `verb` in one line.
pub(crate) fn usage(error: &clap::Error, verb: Option<&str>) -> u8 {
    use clap::error::ErrorKind;
    match error.kind() {
        ErrorKind::DisplayHelp
        | ErrorKind::DisplayVersion
        | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            // A reader that closes the pipe early, like `head`, is not an error.
            if let Err(error) = error.print()
                && error.kind() != std::io::ErrorKind::BrokenPipe
            {
                return code(Err(ApiError::failed(format!("cannot write the output: {error}"))));
            }
        }
        ErrorKind::InvalidUtf8 => note(&format!("forebay: {}", not_text(std::env::args_os()))),
        _ => {
            let command =
                verb.map_or_else(|| "forebay".to_owned(), |verb| format!("forebay {verb}"));
            note(&format!("forebay: {}", usage_line(&error.render().to_string(), &command)));
        }
    }
    u8::try_from(error.exit_code()).unwrap_or(2)
}

/// Names the argument that is not UTF-8, because the parser's error does not.
fn not_text(arguments: impl Iterator<Item = OsString>) -> String {
    let bad = arguments.skip(1).enumerate().find(|(_, argument)| argument.to_str().is_none());
    let Some((number, argument)) = bad else { return "an argument is not UTF-8".to_owned() };
    let number = number + 1;
    format!(
        "argument {number} is not UTF-8: {argument:?}; names of devices and volumes are stored as text: use a path that is, \
         such as a link"
    )
}
