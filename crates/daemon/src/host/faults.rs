//! Converts errors of the engine, the store and devices to API errors.

use forebay_admin::{ApiError, ErrorKind};
use forebay_device::{OpenError, OpenErrorKind};
use forebay_engine::{EngineError, EngineErrorKind};
use forebay_lane::OverLimit;
use forebay_store::StoreError;

/// Converts an error of the engine.
pub(super) fn engine(error: EngineError) -> ApiError {
    let kind = match error.kind {
        EngineErrorKind::Usage => ErrorKind::Invalid,
        EngineErrorKind::Refused => ErrorKind::Refused,
        EngineErrorKind::DataAtRisk => ErrorKind::DataAtRisk,
        EngineErrorKind::Failed => ErrorKind::Failed,
        EngineErrorKind::Cancelled => return given_up(),
    };
    ApiError::new(kind, error.message)
}

/// Returns the error of work that was cancelled, or given up because a device did not answer.
pub(super) fn given_up() -> ApiError {
    ApiError::new(ErrorKind::Cancelled, "cancelled")
}

/// Returns the error of work on a served volume that was cancelled, and has changed nothing that
/// clients see.
pub(super) fn cancelled() -> ApiError {
    ApiError::new(ErrorKind::Cancelled, "cancelled; the volume is served as before")
}

/// Converts an error of the memory budget. If a cache is created as well, this is the first of
/// several holds, so the limit that the error names is too low for all of them.
pub(super) fn memory(error: OverLimit) -> ApiError {
    let mut error = engine(error.into());
    error.message.push_str("; a cache device that is created at the same time needs memory too");
    error
}

/// Converts an error of the store.
pub(super) fn store(error: StoreError) -> ApiError {
    engine(error.into())
}

/// Converts an error of opening the device named in `field`.
pub(super) fn open(field: &str, error: &OpenError) -> ApiError {
    let kind = match error.kind {
        OpenErrorKind::InUse | OpenErrorKind::ReadOnly => ErrorKind::Refused,
        OpenErrorKind::NotFound | OpenErrorKind::WrongType | OpenErrorKind::BadSize => {
            ErrorKind::Invalid
        }
        OpenErrorKind::Denied | OpenErrorKind::Io => ErrorKind::Failed,
    };
    let way_out = match (error.kind, field) {
        (OpenErrorKind::ReadOnly, "origin") => {
            "; or have it served for reading only ('forebay create --read-only', or 'forebay set NAME read_only=on' for a volume that exists)"
        }
        (OpenErrorKind::ReadOnly, "cache") => {
            "; or name another device, because a cache is written to"
        }
        _ => "",
    };
    ApiError::new(kind, format!("{field}: {error}{way_out}")).about(field)
}
