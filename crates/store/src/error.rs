//! How the store fails.

use forebay_device::DeviceError;
use forebay_format::FormatError;

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
    /// The log lost records that had been made durable.
    #[error(
        "{device}: {lost} log records that had been made durable cannot be read, the first is number {first}; data may be lost: attach with --force to go on without them"
    )]
    Damaged {
        /// The device as the operator named it.
        device: String,
        /// The first record that is missing.
        first: u64,
        /// How many are missing.
        lost: u64,
    },
    /// A setting does not fit.
    #[error("{0}")]
    Refused(String),
}
