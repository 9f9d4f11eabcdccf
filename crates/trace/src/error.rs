//! Why a trace cannot be read.

/// See the module. Each prints as one sentence that names the file and the place in it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TraceError {
    /// The request makes no sense: a directory, no format, an offset beyond 2^64.
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
