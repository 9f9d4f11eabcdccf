//! `forebay dump`: prints what is on a cache device that no daemon uses.

use forebay_admin::ApiError;

use crate::cli::DeviceArgs;
use crate::exit::Outcome;

/// Prints what is on a cache device; reads only.
pub(super) fn run(_args: &DeviceArgs) -> Outcome {
    Err(ApiError::failed("'dump' is not part of this build"))
}
