//! How long work ends early: it asks between two steps, and is never dropped while others may wait for what it has
//! begun.

/// The operation that work is done for was cancelled. Work calls its `progress` between two steps, and ends when that
/// returns this error; what it has done until then stays done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cancelled")]
pub struct Cancelled;
