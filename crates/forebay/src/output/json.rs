//! Output for programs.

use forebay_admin::ApiError;
use serde::Serialize;

use super::print_text;
use crate::exit::VerbResult;

/// Prints a value as indented JSON.
///
/// # Errors
/// The output cannot be written.
pub(crate) fn print(value: &impl Serialize) -> VerbResult {
    print_text(&text(value)?)
}

/// Returns a value as indented JSON, with the end of the last line.
///
/// # Errors
/// The value cannot be written as JSON.
pub(crate) fn text(value: &impl Serialize) -> Result<String, ApiError> {
    let text = serde_json::to_string_pretty(value);
    text.map(|text| text + "\n").map_err(|error| ApiError::failed(error.to_string()))
}
