//! Commands on cached blocks: writes them back, drops, pins or evicts them, or loads them ahead of
//! use.

use std::sync::Arc;

use forebay_admin::{
    ApiError, ErrorKind, Moved, OperationId, OperationState, PinReport, VolumeName,
};

use super::Volumes;
use crate::host_api::{BlockTask, Count};
use crate::operations::Beside;
use crate::state::Remembered;
use crate::work::Work;

const PREFETCH: &str = "prefetch";
const PIN: &str = "pin";

/// Returns whether a verb only fills a cache or a RAM tier, so that no other command has to wait
/// for its end.
pub(super) fn is_fill(verb: &str) -> bool {
    [PREFETCH, PIN].contains(&verb)
}

/// Returns the operations that a verb supersedes or runs beside. A verb that fills a cache or a RAM
/// tier is cancelled in favour of other commands, because it may take long and nothing depends on
/// it.
pub(super) fn beside(verb: &str) -> Beside {
    let supersedes = match verb {
        PREFETCH => |_: &str| false,
        PIN => |verb: &str| verb == PREFETCH,
        _ => is_fill,
    };
    Beside { supersedes, late: false }
}

impl Volumes {
    /// Changes the cached blocks of a volume. Any other command ends a fill; the pins stay.
    ///
    /// # Errors
    /// The volume does not exist, or is busy.
    pub(crate) fn run(
        self: &Arc<Self>,
        name: &VolumeName,
        task: BlockTask,
    ) -> Result<OperationId, ApiError> {
        self.operate(task.verb(), name, move |this, entry, work| {
            let name = &entry.volume.name;
            this.check_served(name, task.verb())?;
            let before = this.discards(name);
            let ran = this.host.run(&task, &entry.volume, work);
            let discarded = before.zip(this.discards(name)).map_or(0, |(before, after)| {
                let from_ram = match task {
                    BlockTask::Drop(_) => before.1.saturating_sub(after.1),
                    _ => 0,
                };
                after.0.saturating_sub(before.0) + from_ram
            });
            work.add(Moved { written_back: 0, discarded });
            // The ranges are pinned even if the filling was cancelled.
            if ran.as_ref().err().is_none_or(|error| error.kind == ErrorKind::Cancelled) {
                this.tell_pins(name, &task);
            }
            ran
        })
    }

    /// Returns how many bytes were dropped from the cache of a served volume so far, and how many
    /// its RAM tier holds.
    fn discards(&self, name: &VolumeName) -> Option<(u64, u64)> {
        let report = self.host.report(name, Count::Known)?;
        let dropped = report.why.invalidated.dropped.saturating_mul(report.block_size);
        Some((dropped, report.ram.map_or(0, |ram| ram.used)))
    }

    /// Returns the pinned ranges.
    ///
    /// # Errors
    /// The volume does not exist, or is not served.
    pub(crate) fn pins(&self, name: &VolumeName) -> Result<PinReport, ApiError> {
        self.state.volume(name)?;
        self.host.pins(name)
    }

    /// Waits for a start to end, then fills the pinned ranges, and prefetches if the volume's
    /// settings demand it.
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
            self.host.run(&BlockTask::Fill(Vec::new()), &entry.volume, work)?;
        }
        if !entry.volume.settings.prefetch {
            return Ok(());
        }
        match self.host.run(&BlockTask::Prefetch, &entry.volume, work) {
            Err(error) if error.kind == ErrorKind::Refused => {
                tracing::info!(volume = %entry.volume.name, "nothing is prefetched: {error}");
                Ok(())
            }
            ended => ended,
        }
    }
}
