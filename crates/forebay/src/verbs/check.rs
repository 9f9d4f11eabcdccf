//! `forebay check`: verifies a cache device that no daemon uses.

use forebay_admin::ApiError;

use crate::cli::DeviceArgs;
use crate::exit::Outcome;

/// Verifies a cache device; reads only.
pub(super) fn run(_args: &DeviceArgs) -> Outcome {
    Err(ApiError::failed("'check' is not part of this build"))
}
