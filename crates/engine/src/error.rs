//! How control operations fail.

pub(crate) mod writeback;

use std::sync::Arc;

use forebay_device::DeviceError;
use forebay_lane::OverLimit;
use forebay_store::StoreError;

pub use writeback::WritebackError;

/// What an operator can do about a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EngineErrorKind {
    /// What was asked for makes no sense.
    Usage,
    /// A device does not match, or is in use.
    Refused,
    /// Data would be lost: needs force.
    DataAtRisk,
    /// A device or the system failed.
    Failed,
}

/// Why a note is not durable.
#[derive(Clone, Debug, thiserror::Error)]
pub enum LedgerError {
    /// There is no ledger: the cache device alone can be told.
    #[error("there is no ledger to note it in")]
    Absent,
    /// It cannot be written.
    #[error("the note cannot be written: {0}")]
    Io(#[source] Arc<std::io::Error>),
    /// The thread that writes notes has ended.
    #[error("the thread that writes notes has ended")]
    Ended,
}

/// The failure of a part that caused one of a control operation.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Cause {
    /// Of the store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Of a device.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// Of the memory limit.
    #[error(transparent)]
    Memory(#[from] OverLimit),
    /// Of writeback.
    #[error(transparent)]
    Writeback(#[from] WritebackError),
    /// Of a note in the ledger.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
}

/// A failure of a control operation.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
pub struct EngineError {
    /// What to match on.
    pub kind: EngineErrorKind,
    /// A sentence for the operator. It has the cause in it.
    pub message: String,
    /// The failure below, if there is one.
    #[source]
    pub cause: Option<Cause>,
}

impl EngineError {
    /// A failure of this kind.
    pub fn new(kind: EngineErrorKind, message: impl Into<String>) -> Self {
        EngineError { kind, message: message.into(), cause: None }
    }

    /// A failure of this kind that another one caused.
    pub(crate) fn caused(
        kind: EngineErrorKind,
        message: impl Into<String>,
        cause: impl Into<Cause>,
    ) -> Self {
        EngineError { kind, message: message.into(), cause: Some(cause.into()) }
    }

    /// The cache has no volume of this name.
    pub(crate) fn no_volume(name: &str) -> Self {
        EngineError::new(EngineErrorKind::Usage, format!("there is no volume '{name}'"))
    }
}

impl From<OverLimit> for EngineError {
    fn from(error: OverLimit) -> Self {
        EngineError::caused(EngineErrorKind::Refused, error.to_string(), error)
    }
}

impl From<DeviceError> for EngineError {
    fn from(error: DeviceError) -> Self {
        EngineError::caused(EngineErrorKind::Failed, error.to_string(), error)
    }
}

impl From<StoreError> for EngineError {
    fn from(error: StoreError) -> Self {
        let kind = match &error {
            StoreError::Device(_) | StoreError::Failed(_) => EngineErrorKind::Failed,
            StoreError::Format { .. } => EngineErrorKind::Usage,
            StoreError::Memory(_) | StoreError::Refused(_) => EngineErrorKind::Refused,
        };
        EngineError::caused(kind, error.to_string(), error)
    }
}

impl From<LedgerError> for EngineError {
    fn from(error: LedgerError) -> Self {
        EngineError::caused(EngineErrorKind::Failed, error.to_string(), error)
    }
}
