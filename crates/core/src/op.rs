//! A client's operations and their errors.

/// A client's operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// Copy data to the client.
    Read,
    /// Take data from the client.
    Write,
    /// Make every acknowledged write durable.
    Flush,
    /// The client no longer needs the data.
    Discard,
    /// Make the range read as zeroes.
    WriteZeroes,
    /// Bring the range into the cache; no data is returned to the client.
    Prefetch,
}

/// The failures that the effect of a successful request survives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Survives {
    /// No failure until a flush: the effect may exist only in the daemon's memory.
    #[default]
    Nothing,
    /// The end of the daemon, by a crash or otherwise: a device has the data, possibly in a
    /// volatile write cache.
    Daemon,
    /// A power failure: the data is durable, as FUA demands.
    PowerLoss,
}

/// Why a request failed, as the client sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum IoError {
    /// The range is not inside the volume, or not in whole sectors.
    #[error("the request is not inside the volume")]
    Invalid,
    /// A write beyond the end of the volume, or an origin without free space for it.
    #[error("there is no room for the write")]
    NoSpace,
    /// The data could not be read or written.
    #[error("input/output error")]
    Io,
    /// A write to a volume or an origin that is read-only.
    #[error("the volume is read-only")]
    ReadOnly,
    /// The volume is stopping.
    #[error("the volume is shutting down")]
    ShuttingDown,
    /// The volume does not support the operation.
    #[error("the operation is not supported")]
    NotSupported,
}
