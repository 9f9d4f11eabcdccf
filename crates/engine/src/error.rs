//! How control operations fail.

use forebay_device::DeviceError;
use forebay_lane::OverLimit;
use forebay_store::StoreError;

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

/// A failure of a control operation.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
pub struct EngineError {
    /// What to match on.
    pub kind: EngineErrorKind,
    /// A sentence for the operator.
    pub message: String,
}

impl EngineError {
    /// A failure of this kind.
    pub fn new(kind: EngineErrorKind, message: impl Into<String>) -> Self {
        EngineError { kind, message: message.into() }
    }

    /// The cache has no volume of this name.
    pub(crate) fn no_volume(name: &str) -> Self {
        EngineError::new(EngineErrorKind::Usage, format!("there is no volume '{name}'"))
    }
}

impl From<OverLimit> for EngineError {
    fn from(error: OverLimit) -> Self {
        EngineError::new(EngineErrorKind::Refused, error.to_string())
    }
}

impl From<DeviceError> for EngineError {
    fn from(error: DeviceError) -> Self {
        EngineError::new(EngineErrorKind::Failed, error.to_string())
    }
}

impl From<StoreError> for EngineError {
    fn from(error: StoreError) -> Self {
        let kind = match &error {
            StoreError::Device(_) | StoreError::Failed(_) => EngineErrorKind::Failed,
            StoreError::Format { .. } => EngineErrorKind::Usage,
            StoreError::Memory(_) | StoreError::Refused(_) => EngineErrorKind::Refused,
        };
        EngineError::new(kind, error.to_string())
    }
}
