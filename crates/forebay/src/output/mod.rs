//! Output to stdout and stderr.
//!
//! - [`table`]: aligned columns
//! - [`volume`]: the report of a volume
//! - [`progress`]: the progress of an operation
//! - [`json`]: output for programs

pub(crate) mod json;
pub(crate) mod lost;
pub(crate) mod progress;
pub(crate) mod table;
pub(crate) mod volume;

use std::io::{ErrorKind, Write};

use forebay_admin::ApiError;

use crate::exit::Outcome;

/// Writes to stdout. A reader that closes the pipe early, like `head`, is not an error.
///
/// # Errors
/// Any other failure to write, such as a full disk.
pub(crate) fn print_bytes(bytes: &[u8]) -> Outcome {
    offer_bytes(bytes).map(|_| ())
}

/// As [`print_bytes`]; returns whether there is still a reader.
///
/// # Errors
/// As [`print_bytes`].
pub(crate) fn offer_bytes(bytes: &[u8]) -> Result<bool, ApiError> {
    let mut out = std::io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(ApiError::failed(format!("cannot write the output: {error}"))),
    }
}

/// Writes text that contains its own line ends.
///
/// # Errors
/// As [`print_bytes`].
pub(crate) fn print_text(text: &str) -> Outcome {
    print_bytes(text.as_bytes())
}

/// Writes one line.
///
/// # Errors
/// As [`print_bytes`].
pub(crate) fn print_line(text: &str) -> Outcome {
    print_text(&format!("{text}\n"))
}
