//! Why a measurement could not be made.

use std::io;

use forebay_core::IoError;
use forebay_device::DeviceError;
use forebay_engine::EngineError;
use forebay_nbd::wire::handshake::HandshakeError;
use forebay_store::StoreError;
use forebay_trace::TraceError;

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
    /// An NBD server refused an export, or was none.
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
    /// A request failed.
    #[error("a request failed: {0:?}")]
    Request(IoError),
    /// There is no progress any more.
    #[error("{0} has not ended after {1} s; nothing seems to move any more")]
    Stuck(&'static str, u64),
    /// The program was interrupted.
    #[error("interrupted; nothing is left behind")]
    Interrupted,
    /// The command line is wrong.
    #[error("{0}")]
    Usage(String),
    /// Another program uses the device.
    #[error("{0}")]
    InUse(String),
    /// Data would be lost.
    #[error("{0}")]
    AtRisk(String),
    /// Anything else, in words.
    #[error("{0}")]
    Other(String),
}

impl LabError {
    /// Exit code of the process, as of `forebay`: 2 wrong usage, 3 in use or not the right device,
    /// 4 data at risk, 1 anything else.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            LabError::Usage(_) => 2,
            LabError::InUse(_)
            | LabError::Store(StoreError::Exists(_) | StoreError::Refused(_)) => 3,
            LabError::AtRisk(_) => 4,
            _ => 1,
        }
    }
}

impl From<TraceError> for LabError {
    fn from(error: TraceError) -> Self {
        match error {
            TraceError::Usage(what) => LabError::Usage(what),
            TraceError::Unreadable(what) => LabError::Other(what),
        }
    }
}

impl From<IoError> for LabError {
    fn from(error: IoError) -> Self {
        LabError::Request(error)
    }
}

/// Result of a measurement.
pub(crate) type LabResult<T> = Result<T, LabError>;

/// An error of the command line, in words.
pub(crate) fn usage(what: impl Into<String>) -> LabError {
    LabError::Usage(what.into())
}

/// An error in words.
pub(crate) fn other(what: impl Into<String>) -> LabError {
    LabError::Other(what.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_are_those_of_the_daemon() {
        let code = |error: LabError| error.exit_code();
        assert_eq!(code(usage("no")), 2);
        assert_eq!(code(TraceError::Usage("no".into()).into()), 2);
        assert_eq!(code(LabError::InUse("no".into())), 3);
        assert_eq!(code(StoreError::Refused("no".into()).into()), 3);
        assert_eq!(code(LabError::AtRisk("no".into())), 4);
        assert_eq!(code(other("no")), 1);
        assert_eq!(code(LabError::Interrupted), 1);
    }
}
