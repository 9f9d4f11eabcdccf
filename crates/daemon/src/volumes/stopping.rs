//! Stops volumes.

use std::sync::Arc;

use forebay_admin::report::BlockReport;
use forebay_admin::{ApiError, ErrorKind, OperationId, StopRequest, VolumeName};

use super::{ANSWER_PATIENCE, Volumes, gives_way};
use crate::devices::path_of;
use crate::host_api::{Count, Definition};
use crate::operations::{Beside, attempt};
use crate::planted::{self, PlantedBug};
use crate::state::{LeftBlocks, Remembered, entry_of};
use crate::work::Work;

impl Volumes {
    /// Stops serving a volume; has no effect on a stopped one. A flush, a change of settings or a
    /// start in progress is cancelled. With `force` its clients and the users of its block device
    /// are disconnected. With `abandon` it is stopped although the path of a device leads
    /// elsewhere.
    ///
    /// # Errors
    /// The volume does not exist, or is busy or in use, or its origin would be lost.
    pub(crate) fn stop(
        self: &Arc<Self>,
        name: &VolumeName,
        StopRequest { force, abandon }: StopRequest,
    ) -> Result<OperationId, ApiError> {
        let beside = Beside { supersedes: gives_way, late: false };
        self.operate_beside("stop", name, beside, move |this, entry, work| {
            work.limit(ANSWER_PATIENCE);
            let name = &entry.volume.name;
            if !abandon && this.is_served(name) {
                this.host.check_origin_path(name, work)?;
            }
            this.without_exports(&entry.volume, ("stop", force), || {
                let left = this.left_in_cache(&entry.volume);
                // Stored first: a daemon that dies in between must not serve it again by itself.
                let stored = this.state.edit(name, work, |entry| {
                    entry.left = left.or(entry.left);
                    entry.volume.version += u64::from(entry.started);
                    entry.started = planted::has(PlantedBug::StopNotStored);
                })?;
                this.waiting().remove(name);
                this.note_failure(name, None);
                // Read before the state of the volume: an operation that was given up releases its
                // claim only after it has served the volume again, or has failed to.
                let given_up = this.claims.given_up(name);
                match this.is_served(name) {
                    true => this.stop_served(&stored.volume, (force, abandon), work),
                    false => this.stay_stopped(&entry, given_up, work),
                }
            })
        })
    }

    /// Returns the blocks that a volume leaves in its cache when it stops: deferred writes become
    /// dirty blocks, and a cache in RAM is given up. `None`: it is not served, or that is unknown.
    fn left_in_cache(&self, volume: &Definition) -> Option<LeftBlocks> {
        let report = self.host.report(&volume.name, Count::Fresh)?;
        if path_of(&volume.cache).is_none() {
            return Some(LeftBlocks { cached: 0, dirty: 0 });
        }
        let deferred = report.ram.map_or(0, |ram| ram.deferred).div_ceil(volume.block_size.max(1));
        let BlockReport { known, cached, dirty, .. } = report.blocks;
        let dirty = dirty.saturating_add(deferred);
        known.then_some(LeftBlocks { cached: cached.max(dirty), dirty })
    }

    fn stop_served(
        &self,
        volume: &Definition,
        (force, abandon): (bool, bool),
        work: &Arc<Work>,
    ) -> Result<(), ApiError> {
        let name = &volume.name;
        let stopped = attempt(|| self.host.stop(volume, abandon, work));
        if self.is_served(name) {
            return stopped.inspect_err(|_| self.unstop(name, work));
        }
        self.tell_stopped(name, force);
        stopped.map_err(|mut error| {
            error.message = format!("it is stopped, but not in order: {}", error.message);
            error
        })?;
        self.claims.given_up(name).map_or(Ok(()), |verb| Err(still_used(name, verb)))
    }

    /// Stops a volume that is not served. `given_up`: the verb of the operation that still uses its
    /// devices.
    fn stay_stopped(
        &self,
        Remembered { volume, started, .. }: &Remembered,
        given_up: Option<&'static str>,
        work: &Arc<Work>,
    ) -> Result<(), ApiError> {
        let Some(verb) = given_up else { return Ok(()) };
        if !started || verb != "delete" || planted::has(PlantedBug::StopDuringDeletion) {
            return Err(still_used(&volume.name, verb));
        }
        // If the deletion fails, the volume is served again.
        self.unstop(&volume.name, work);
        let message = format!(
            "an abandoned operation on '{}', its '{verb}', still waits for its devices; try again when they answer",
            volume.name
        );
        Err(ApiError::new(ErrorKind::Busy, message))
    }

    /// Reverts the stored change of a stop that has failed.
    fn unstop(&self, name: &VolumeName, work: &Arc<Work>) {
        self.undo(work, |volumes| {
            entry_of(volumes, name)?.started = true;
            Ok(())
        });
    }
}

/// Returns the error of a stop while an operation that was given up uses the devices of the volume.
fn still_used(name: &VolumeName, verb: &str) -> ApiError {
    let message = format!(
        "'{name}' is not served, but its '{verb}', which was given up, waits for a device: the devices of the volume stay in use until that answers"
    );
    ApiError::new(ErrorKind::UnderWay, message)
}
