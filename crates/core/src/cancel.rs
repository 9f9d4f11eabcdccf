//! Cancellation of long work. The work checks between two steps whether it was cancelled and
//! returns; its future is never dropped, because other requests may wait for a commit or a sync
//! that it has started.

/// The command was cancelled. Long work calls its `progress` between two steps and returns when
/// `progress` returns this error. Steps that were completed before stay in effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cancelled")]
pub struct Cancelled;
