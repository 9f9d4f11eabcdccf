//! Errors of the store.

use forebay_device::DeviceError;
use forebay_format::FormatError;
use forebay_lane::OverLimit;

/// A failure of the store.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StoreError {
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The device's size or block sizes do not allow the cache.
    #[error("{device}: {cause}")]
    Format {
        /// The device, by the name that the operator gave it.
        device: String,
        /// The fault in the format.
        cause: FormatError,
    },
    /// The device failed earlier; no new data is taken.
    #[error("the cache device has failed: {0}")]
    Failed(String),
    /// More memory is needed than the daemon may use.
    #[error(transparent)]
    Memory(#[from] OverLimit),
    /// The cache has a volume of this name.
    #[error("there is a volume '{0}' already")]
    Exists(String),
    /// The operation is refused, for the reason given.
    #[error("{0}")]
    Refused(String),
}
