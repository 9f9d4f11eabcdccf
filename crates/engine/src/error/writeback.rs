//! Errors of writeback.

use std::sync::Arc;

use forebay_core::OriginBlock;
use forebay_device::{DeviceError, DeviceErrorKind};
use forebay_lane::OverLimit;
use forebay_store::StoreError;

/// Why dirty blocks stay dirty for now.
#[derive(Clone, Debug, thiserror::Error)]
pub enum WritebackError {
    /// The origin cannot be read or written.
    #[error(transparent)]
    Origin(#[from] DeviceError),
    /// The origin accepts other writes, but not these bytes.
    #[error("the origin does not take {ranges}: {error}")]
    Refused {
        /// The first ranges, and how many more there are.
        ranges: Arc<str>,
        /// The last failure.
        error: DeviceError,
    },
    /// The next group of an ordered volume has bytes that the origin refuses.
    #[error(
        "the origin does not take {ranges}: {error}; as the volume is ordered, the origin stays at the flush before, until it takes them or 'ordered' is set to off"
    )]
    OrderRefused {
        /// The first ranges, and how many more there are.
        ranges: Arc<str>,
        /// The last failure.
        error: DeviceError,
    },
    /// Another task's sync of the origin failed, and may have lost these writes.
    #[error("a sync of the origin failed")]
    SyncLost,
    /// Writes around or through the cache cannot be synced on the origin.
    #[error("the origin cannot be synced")]
    Unsynced,
    /// The cache device cannot record the origin's progress.
    #[error("the cache device cannot record what was written back: {0}")]
    NotNoted(#[source] StoreError),
    /// The cache device does not answer.
    #[error("the cache device does not answer")]
    CacheHung,
    /// The cache device has failed, and neither it nor the ledger can record which data is no
    /// longer trusted.
    #[error("the cache device has failed, and it cannot be recorded that blocks are clean")]
    CacheFailed,
    /// The index cannot be read from the cache device.
    #[error("the index cannot be read from the cache device")]
    NotLoaded,
    /// A dirty block cannot be read from the cache device.
    #[error("block {} cannot be read back", .0.0)]
    Unreadable(OriginBlock),
    /// There is not enough memory to track ordered versions.
    #[error(transparent)]
    Memory(#[from] OverLimit),
    /// The volume has been removed: its origin may have another owner from now on.
    #[error("the volume is stopped")]
    Stopped,
    /// A task panicked.
    #[error("a task failed")]
    Panicked,
}

impl WritebackError {
    /// Returns whether the origin accepts no writes at all at present.
    pub(crate) fn is_write_protection(&self) -> bool {
        matches!(self, WritebackError::Origin(error) if error.kind == DeviceErrorKind::ReadOnly)
    }
}
