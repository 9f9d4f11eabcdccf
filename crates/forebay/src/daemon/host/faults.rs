//! Errors from below, in the words of the admin API.

use forebay_admin::{ApiError, ErrorKind};
use forebay_device::{OpenError, OpenErrorKind};
use forebay_engine::{EngineError, EngineErrorKind};
use forebay_lane::OverLimit;
use forebay_store::StoreError;

/// Why the engine turned something down.
pub(super) fn engine(error: EngineError) -> ApiError {
    let kind = match error.kind {
        EngineErrorKind::Usage => ErrorKind::Invalid,
        EngineErrorKind::Refused => ErrorKind::Refused,
        EngineErrorKind::DataAtRisk => ErrorKind::DataAtRisk,
        EngineErrorKind::Failed => ErrorKind::Failed,
    };
    ApiError::new(kind, error.message)
}

/// What does not fit into memory.
pub(super) fn memory(error: OverLimit) -> ApiError {
    engine(error.into())
}

/// Why the store turned something down.
pub(super) fn store(error: StoreError) -> ApiError {
    engine(error.into())
}

/// Why a device that was named in `field` cannot be opened.
pub(super) fn open(field: &str, error: &OpenError) -> ApiError {
    let kind = match error.kind {
        OpenErrorKind::InUse => ErrorKind::Refused,
        OpenErrorKind::NotFound | OpenErrorKind::WrongType | OpenErrorKind::BadSize => {
            ErrorKind::Invalid
        }
        OpenErrorKind::Denied | OpenErrorKind::Io => ErrorKind::Failed,
    };
    ApiError::new(kind, format!("{field}: {error}")).about(field)
}
