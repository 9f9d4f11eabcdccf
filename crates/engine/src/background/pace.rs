//! What writeback of both kinds, in order and not, has in common: why it goes on, and when.

use std::time::Duration;

use forebay_core::why::WritebackReason;
use forebay_policy::Trigger;

/// Waits this long after a failure, doubled each time up to [`LONGEST_RETRY`].
pub(crate) const FIRST_RETRY: Duration = Duration::from_millis(100);
pub(crate) const LONGEST_RETRY: Duration = Duration::from_secs(10);

/// Waits for nothing that takes longer, so that a change of settings is noticed.
pub(crate) const LONGEST_WAIT: Duration = Duration::from_millis(500);

/// What writes are counted as. `asked`: somebody waits for everything to be clean.
pub(crate) fn reason(trigger: Option<Trigger>, asked: bool) -> WritebackReason {
    match trigger {
        Some(Trigger::Draining) if asked => WritebackReason::Drain,
        Some(Trigger::Draining) | None => WritebackReason::Mode,
        Some(Trigger::Space) => WritebackReason::Full,
        Some(Trigger::Watermark) => WritebackReason::DirtyHigh,
        Some(Trigger::CacheWatermark) => WritebackReason::CacheDirtyHigh,
        Some(Trigger::Quiet) => WritebackReason::Quiet,
        Some(Trigger::Age) => WritebackReason::DirtyAge,
        Some(Trigger::Idle) => WritebackReason::Idle,
    }
}
