//! Why a trace cannot be read.

/// An error of a trace. It prints as one sentence that names the file and the position in it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TraceError {
    /// The request to read is invalid: a directory, an unknown format, an offset beyond 2^64.
    #[error("{0}")]
    Usage(String),
    /// The file cannot be read, or does not match its format.
    #[error("{0}")]
    Unreadable(String),
}

/// The result of reading a trace.
pub type TraceResult<T> = Result<T, TraceError>;

/// The file is wrong, in words.
pub(crate) fn unreadable(what: impl Into<String>) -> TraceError {
    TraceError::Unreadable(what.into())
}
