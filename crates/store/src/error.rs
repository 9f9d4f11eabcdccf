//! How the store fails.

use forebay_device::DeviceError;
use forebay_format::FormatError;
use forebay_lane::OverLimit;

/// A failure of the store.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StoreError {
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// What is on the device is not what it should be.
    #[error("{device}: {cause}")]
    Format {
        /// The device as the operator named it.
        device: String,
        /// What is wrong.
        cause: FormatError,
    },
    /// The device failed earlier; no new data is taken.
    #[error("the cache device has failed: {0}")]
    Failed(String),
    /// It needs more memory than the daemon may take.
    #[error(transparent)]
    Memory(#[from] OverLimit),
    /// A setting does not fit.
    #[error("{0}")]
    Refused(String),
}
