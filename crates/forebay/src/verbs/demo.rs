//! `forebay demo`: what a cache does on modelled disks.

use forebay_admin::ApiError;

use crate::exit::Outcome;

/// Runs the demonstration.
pub(super) fn run(_: &crate::cli::DemoArgs) -> Outcome {
    Err(ApiError::failed("'demo' is not part of this build"))
}
