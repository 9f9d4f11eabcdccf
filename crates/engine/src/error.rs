//! Errors of control operations.

pub(crate) mod writeback;

use std::sync::Arc;
use std::time::Duration;

use forebay_core::Cancelled;
use forebay_core::identity::Difference;
use forebay_device::DeviceError;
use forebay_lane::OverLimit;
use forebay_store::{Damage, StoreError};

pub use writeback::WritebackError;

/// The kind of a failure, which determines the operator's remedy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EngineErrorKind {
    /// The request is not valid.
    Usage,
    /// A device does not match, or is in use.
    Refused,
    /// The operation would lose data, and must be forced.
    DataAtRisk,
    /// A device or the system failed.
    Failed,
    /// The operator cancelled the operation.
    Cancelled,
}

/// Why a note is not durable.
#[derive(Clone, Debug, thiserror::Error)]
pub enum LedgerError {
    /// There is no ledger, so only the cache device can record changes.
    #[error("there is no ledger to note it in")]
    Absent,
    /// The index cannot be loaded, so the dirty blocks are unknown.
    #[error("the dirty blocks are not known, because the index cannot be loaded")]
    NotLoaded,
    /// The note cannot be written.
    #[error("the note cannot be written: {0}")]
    Io(#[source] Arc<std::io::Error>),
    /// The note cannot be read, or is damaged.
    #[error("the note cannot be read: {0}")]
    Unreadable(String),
    /// The note is not durable yet, and is not waited for.
    #[error("its place does not answer")]
    Late,
    /// The thread that writes notes has ended.
    #[error("the thread that writes notes has ended")]
    Ended,
}

/// The state of a volume or its origin because of which an operation is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Obstacle {
    /// An external writer changed the origin.
    #[error("the origin was written elsewhere")]
    OriginChanged,
    /// The origin is not the device that the volume had.
    #[error("the origin is another device: its {0}")]
    OtherOrigin(Difference),
    /// The origin has not answered for this time.
    #[error("the origin has not answered for {} s", .0.as_secs())]
    Unanswered(Duration),
    /// The volume may have lost data.
    #[error("the volume may have lost data: {0}")]
    Damaged(Damage),
    /// The volume is stopped and has this many dirty blocks.
    #[error("the volume is stopped and has {0} dirty blocks")]
    Dirty(u64),
    /// The volume is started.
    #[error("the volume is started already")]
    Started,
}

/// The lower-level error behind a failed control operation.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Cause {
    /// A volume's state, or its origin's.
    #[error(transparent)]
    Obstacle(#[from] Obstacle),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The memory limit would be exceeded.
    #[error(transparent)]
    Memory(#[from] OverLimit),
    /// Writeback failed.
    #[error(transparent)]
    Writeback(#[from] WritebackError),
    /// A note in the ledger could not be written.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
}

/// A failure of a control operation.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
pub struct EngineError {
    /// The kind, to match on.
    pub kind: EngineErrorKind,
    /// One sentence for the operator, which includes the cause.
    pub message: String,
    /// The underlying error, if any.
    #[source]
    pub cause: Option<Cause>,
}

impl EngineError {
    /// Returns a failure of this kind without an underlying error.
    pub fn new(kind: EngineErrorKind, message: impl Into<String>) -> Self {
        EngineError { kind, message: message.into(), cause: None }
    }

    /// Returns a failure of this kind with its underlying error.
    pub(crate) fn caused(
        kind: EngineErrorKind,
        message: impl Into<String>,
        cause: impl Into<Cause>,
    ) -> Self {
        EngineError { kind, message: message.into(), cause: Some(cause.into()) }
    }

    /// Returns the state because of which the operation was refused, if that is the cause.
    pub fn obstacle(&self) -> Option<&Obstacle> {
        match &self.cause {
            Some(Cause::Obstacle(obstacle)) => Some(obstacle),
            _ => None,
        }
    }

    /// Returns the error for a name that no volume of the cache has.
    pub(crate) fn no_volume(name: &str) -> Self {
        EngineError::new(EngineErrorKind::Usage, format!("there is no volume '{name}'"))
    }
}

impl From<Cancelled> for EngineError {
    fn from(cancelled: Cancelled) -> Self {
        EngineError::new(EngineErrorKind::Cancelled, cancelled.to_string())
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
            StoreError::Exists(_) | StoreError::Memory(_) | StoreError::Refused(_) => {
                EngineErrorKind::Refused
            }
        };
        EngineError::caused(kind, error.to_string(), error)
    }
}

impl From<LedgerError> for EngineError {
    fn from(error: LedgerError) -> Self {
        EngineError::caused(EngineErrorKind::Failed, error.to_string(), error)
    }
}
