//! Output for programs.

use forebay_admin::ApiError;
use serde::Serialize;

use super::print_line;
use crate::exit::Outcome;

/// Prints a value as indented JSON.
///
/// # Errors
/// The output cannot be written.
pub(crate) fn print(value: &impl Serialize) -> Outcome {
    let text = serde_json::to_string_pretty(value);
    print_line(&text.map_err(|error| ApiError::failed(error.to_string()))?)
}
