//! Output to stdout and stderr: the only place that writes there, for the macros of the standard
//! library panic if that fails, and a full disk or a reader that is gone must not change an exit
//! code.
//!
//! - [`table`]: aligned columns
//! - [`volume`]: the report of a volume
//! - [`screen`]: the whole terminal, redrawn in place
//! - [`json`]: output for programs

pub(crate) mod json;
pub(crate) mod lost;
pub(crate) mod screen;
pub(crate) mod table;
pub(crate) mod volume;

use std::io::{ErrorKind, Write};

use forebay_admin::ApiError;

use crate::exit::VerbResult;
pub(crate) use crate::exit::note;

/// Writes to stdout. A reader that closes the pipe early, like `head`, is not an error.
///
/// # Errors
/// Any other failure to write, such as a full disk.
pub(crate) fn print_bytes(bytes: &[u8]) -> VerbResult {
    print_more(bytes).map(|_| ())
}

/// Writes to stdout, and returns false once its reader has closed it.
///
/// # Errors
/// As [`print_bytes`].
pub(crate) fn print_more(bytes: &[u8]) -> Result<bool, ApiError> {
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
pub(crate) fn print_text(text: &str) -> VerbResult {
    print_bytes(text.as_bytes())
}

/// Writes one line.
///
/// # Errors
/// As [`print_bytes`].
pub(crate) fn print_line(text: &str) -> VerbResult {
    print_text(&format!("{text}\n"))
}
