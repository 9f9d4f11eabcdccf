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
    /// Bring the range into the cache; no data goes to the client.
    Prefetch,
}

/// The failures that the effect of a request survives, once the request has succeeded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Survives {
    /// No failure, until a flush: the effect may be only in the memory of the daemon.
    #[default]
    Nothing,
    /// Any end of the daemon: a device has the data, perhaps in a volatile write cache.
    Daemon,
    /// A power failure: it is durable, as FUA demands.
    PowerLoss,
}

/// Why a request failed, as the client sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum IoError {
    /// The range is not inside the volume, or not in whole sectors.
    #[error("the request is not inside the volume")]
    Invalid,
    /// A write beyond the end of the volume, or an origin without space for it.
    #[error("there is no room for the write")]
    NoSpace,
    /// The data could not be read or written.
    #[error("input/output error")]
    Io,
    /// A write, and the volume or its origin is read-only.
    #[error("the volume is read-only")]
    ReadOnly,
    /// The volume is stopping.
    #[error("the volume is shutting down")]
    ShuttingDown,
    /// The volume does not support the operation.
    #[error("the operation is not supported")]
    NotSupported,
}
