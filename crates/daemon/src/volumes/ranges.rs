//! Blocks of volumes that are pinned, evicted, or loaded ahead of their use.

use std::sync::Arc;

use forebay_admin::{
    ApiError, ErrorKind, OperationId, OperationState, PinReport, RangesRequest, VolumeName,
};

use super::Volumes;
use crate::operations::Beside;
use crate::state::Remembered;
use crate::work::Work;

const PREFETCH: &str = "prefetch";
const PIN: &str = "pin";

/// Returns whether a verb only fills a cache or a RAM tier, so that nobody has to wait for its end.
pub(super) fn is_fill(verb: &str) -> bool {
    [PREFETCH, PIN].contains(&verb)
}

/// Returns what a verb is started beside: what fills a cache or a RAM tier ends for other commands, because it may take
/// long, and nobody waits for it.
pub(super) fn beside(verb: &str) -> Beside {
    let supersedes = match verb {
        PREFETCH => |_: &str| false,
        PIN => |verb: &str| verb == PREFETCH,
        _ => is_fill,
    };
    Beside { supersedes, late: false }
}

/// Refuses a request that names no range.
fn some(request: RangesRequest) -> Result<RangesRequest, ApiError> {
    match request.ranges.is_empty() {
        true => Err(ApiError::invalid("ranges", "there is none; name at least one")),
        false => Ok(request),
    }
}

impl Volumes {
    /// Pins ranges of a volume, and fills them. Any other command ends the filling; the pins stay.
    ///
    /// # Errors
    /// There is no such volume, it is busy, or no range is named.
    pub(crate) fn pin(
        self: &Arc<Self>,
        name: &VolumeName,
        request: RangesRequest,
    ) -> Result<OperationId, ApiError> {
        let RangesRequest { ranges } = some(request)?;
        self.operate(PIN, name, move |this, entry, work| {
            let pinned = this.host.pin(&entry.volume, &ranges, true, work);
            // They are pinned although somebody ended the filling.
            if pinned.as_ref().err().is_none_or(|error| error.kind == ErrorKind::Cancelled) {
                this.tell_pins(&entry.volume.name, &ranges, true);
            }
            pinned
        })
    }

    /// Ends the pinning of ranges, or of all.
    ///
    /// # Errors
    /// There is no such volume, or it is busy.
    pub(crate) fn unpin(
        self: &Arc<Self>,
        name: &VolumeName,
        RangesRequest { ranges }: RangesRequest,
    ) -> Result<OperationId, ApiError> {
        self.operate("unpin", name, move |this, entry, work| {
            this.host.pin(&entry.volume, &ranges, false, work)?;
            this.tell_pins(&entry.volume.name, &ranges, false);
            Ok(())
        })
    }

    /// Returns what is pinned.
    ///
    /// # Errors
    /// There is no such volume, or it is not served.
    pub(crate) fn pins(&self, name: &VolumeName) -> Result<PinReport, ApiError> {
        self.state.volume(name)?;
        self.host.pins(name)
    }

    /// Discards clean blocks of ranges from the cache.
    ///
    /// # Errors
    /// There is no such volume, it is busy, or no range is named.
    pub(crate) fn evict(
        self: &Arc<Self>,
        name: &VolumeName,
        request: RangesRequest,
    ) -> Result<OperationId, ApiError> {
        let RangesRequest { ranges } = some(request)?;
        self.operate("evict", name, move |this, entry, work| {
            this.host.evict(&entry.volume, &ranges, work)
        })
    }

    /// Fills ranges of a volume or, without any, loads what the RAM tier held at the last orderly stop.
    /// Any other command ends it.
    ///
    /// # Errors
    /// There is no such volume, or it is busy.
    pub(crate) fn prefetch(
        self: &Arc<Self>,
        name: &VolumeName,
        RangesRequest { ranges }: RangesRequest,
    ) -> Result<OperationId, ApiError> {
        self.operate(PREFETCH, name, move |this, entry, work| match ranges.is_empty() {
            true => this.host.prefetch(&entry.volume, work),
            false => this.host.fill(&entry.volume, &ranges, work),
        })
    }

    /// After a start that has begun, fills what is pinned, and prefetches if the volume's settings say
    /// so.
    pub(super) fn prefetch_after(self: &Arc<Self>, start: OperationId, name: &VolumeName) {
        let loads = |entry: &Remembered| {
            entry.volume.settings.prefetch || self.host.has_pins(&entry.volume)
        };
        if !self.state.volume(name).is_ok_and(|entry| loads(&entry)) {
            return;
        }
        let (this, own) = (self.clone(), name.clone());
        let spawned = forebay_threads::spawn("prefetch", move || {
            let started = this.operations.wait(start, None);
            if started.is_none_or(|started| started.state != OperationState::Done) {
                return;
            }
            let begun = this.operate(PREFETCH, &own, |this, entry, work| this.load(&entry, work));
            if let Err(error) = begun {
                tracing::info!(volume = %own, "nothing is prefetched: {error}");
            }
        });
        if let Err(error) = spawned {
            tracing::warn!(volume = %name, "no thread to prefetch: {error}");
        }
    }

    fn load(&self, entry: &Remembered, work: &Arc<Work>) -> Result<(), ApiError> {
        if self.host.has_pins(&entry.volume) {
            self.host.fill(&entry.volume, &[], work)?;
        }
        if !entry.volume.settings.prefetch {
            return Ok(());
        }
        match self.host.prefetch(&entry.volume, work) {
            Err(error) if error.kind == ErrorKind::Refused => {
                tracing::info!(volume = %entry.volume.name, "nothing is prefetched: {error}");
                Ok(())
            }
            ended => ended,
        }
    }
}
