//! Why a measurement could not be made.

use std::io;

use forebay_core::IoError;
use forebay_device::DeviceError;
use forebay_engine::EngineError;
use forebay_store::StoreError;

/// See the module.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LabError {
    /// The engine refused or failed.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The store refused or failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The system said no.
    #[error(transparent)]
    System(#[from] io::Error),
    /// A request failed.
    #[error("a request failed: {0:?}")]
    Request(IoError),
    /// Nothing more happens.
    #[error("{0} has not ended after {1} s; nothing seems to move any more")]
    Stuck(&'static str, u64),
    /// Anything else, in words.
    #[error("{0}")]
    Other(String),
}

impl From<IoError> for LabError {
    fn from(error: IoError) -> Self {
        LabError::Request(error)
    }
}

/// What a measurement returns.
pub(crate) type LabResult<T> = Result<T, LabError>;

/// An error in words.
pub(crate) fn other(what: impl Into<String>) -> LabError {
    LabError::Other(what.into())
}
