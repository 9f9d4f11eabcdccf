//! Deletes volumes, and completes the deletions that a crash interrupted.

use std::sync::Arc;
use std::time::Duration;

use forebay_admin::{ApiError, DeleteRequest, ErrorKind, OperationId, VolumeName};
use forebay_format::Uuid;

use super::{ANSWER_PATIENCE, Volumes, gives_way, ranges};
use crate::host_api::{Definition, Remains};
use crate::operations::{Beside, attempt};
use crate::planted::{self, PlantedBug};
use crate::state::{Remembered, entry_of};
use crate::work::Work;

/// Time limit for the volume's devices in a delete that discards dirty blocks. The volume is then
/// deleted in any case.
const PARTING_PATIENCE: Duration = Duration::from_secs(3);

impl Volumes {
    /// Removes a volume and, with `wipe`, the marks of Forebay on its cache device. With `force`
    /// its clients and the users of its block device are disconnected.
    ///
    /// # Errors
    /// The volume does not exist, or is busy or in use.
    pub(crate) fn delete(
        self: &Arc<Self>,
        name: &VolumeName,
        DeleteRequest { discard_dirty, wipe, force }: DeleteRequest,
    ) -> Result<OperationId, ApiError> {
        let beside = match discard_dirty {
            true => Beside { supersedes: gives_way, late: true },
            false => ranges::beside("delete"),
        };
        self.operate_beside("delete", name, beside, move |this, Remembered { volume, .. }, work| {
            work.limit(ANSWER_PATIENCE);
            if wipe {
                this.check_wipe(&volume)?;
            }
            this.without_exports(&volume, ("delete", force), || match discard_dirty {
                true => this.delete_whatever_happens(&volume, work),
                false => this.delete_drained(&volume, work),
            })?;
            if wipe { this.wipe(&volume, work) } else { Ok(()) }
        })
    }

    /// Deletes a volume whose dirty blocks are written to the origin first.
    fn delete_drained(&self, volume: &Definition, work: &Arc<Work>) -> Result<(), ApiError> {
        let name = &volume.name;
        // Recorded so that a restarted daemon knows why the cache no longer contains the volume.
        let mut was_deleting = false;
        let begin = |entry: &mut Remembered| {
            was_deleting = std::mem::replace(&mut entry.deleting, true);
        };
        self.state.edit(name, work, begin)?;
        let remains = attempt(|| self.host.delete(volume, false, work)).inspect_err(|_| {
            if work.committed().is_some() && !planted::has(PlantedBug::DeletionForgotten) {
                // The volume may have been removed from its cache device. A start that finds it
                // there reverts this.
                return;
            }
            // An earlier interrupted deletion may have removed the volume.
            self.undo(work, |volumes| {
                entry_of(volumes, name)?.deleting = was_deleting;
                Ok(())
            });
        })?;
        self.waiting().remove(name);
        if let (Remains::OnCacheDevice, Some(uuid)) = (remains, volume.uuid) {
            self.state.known().facts().deleted.insert(uuid);
        }
        self.remove(volume, work);
        self.tell_deleted(name, false);
        Ok(())
    }

    /// Deletes a volume whose dirty blocks are discarded. It is first removed from the state for
    /// good, whatever its devices do after that.
    fn delete_whatever_happens(
        &self,
        volume: &Definition,
        work: &Arc<Work>,
    ) -> Result<(), ApiError> {
        let cancelled = |_| ApiError::new(ErrorKind::Cancelled, "cancelled");
        let committed = work.commit().map(drop).map_err(cancelled);
        if !planted::has(PlantedBug::DeletedBeforeCommit) {
            committed.clone()?;
        }
        self.state.change(work, |volumes, known| {
            volumes.retain(|entry| entry.volume.name != volume.name);
            known.deleted.extend(volume.uuid);
            Ok(())
        })?;
        committed?;
        self.waiting().remove(&volume.name);
        self.note_failure(&volume.name, None);
        self.tell_deleted(&volume.name, true);
        let parting = work.beside(PARTING_PATIENCE);
        let remains = attempt(|| self.host.delete(volume, true, &parting));
        work.add(parting.moved());
        match (remains, volume.uuid) {
            (Ok(Remains::None), Some(uuid)) => self.forget_deleted(uuid, work),
            (Ok(Remains::None), None) => {}
            (Ok(Remains::OnCacheDevice), _) => tracing::warn!(
                volume = %volume.name,
                "deleted, but its cache device was unavailable: the volume is removed from it when it is next opened"
            ),
            (Err(error), _) => tracing::warn!(
                volume = %volume.name,
                "deleted; its cached blocks are removed later: {error}"
            ),
        }
        Ok(())
    }

    /// Removes a volume's UUID from the deleted ones, because nothing of it is left. A failure to
    /// write this is harmless: the UUID is unique.
    pub(super) fn forget_deleted(&self, volume: Uuid, work: &Work) {
        let forgotten = self.state.complete(work, |_, known| {
            known.deleted.remove(&volume);
            Ok(())
        });
        if let Err(error) = forgotten {
            tracing::warn!("cannot remove a deleted volume from the state yet: {error}");
        }
    }

    /// Checks which of the stopped volumes whose deletion was interrupted are still on their cache
    /// devices, in a separate operation for each. The others are removed from the state. Volumes
    /// that were served are checked when they are started.
    pub(super) fn settle_deletions(self: &Arc<Self>) {
        let interrupted = |entry: &Remembered| entry.deleting && !entry.started;
        for Remembered { volume, .. } in self.state.volumes().into_iter().filter(interrupted) {
            let begun = self.operate("delete", &volume.name, |this, Remembered { volume, .. }, work| {
                work.limit(ANSWER_PATIENCE);
                if this.host.holds(&volume, work)? {
                    this.state.edit(&volume.name, work, |entry| entry.deleting = false)?;
                    tracing::info!(volume = %volume.name, "its deletion had been interrupted; it stays");
                } else {
                    tracing::info!(volume = %volume.name, "its deletion had been completed");
                    this.remove(&volume, work);
                }
                Ok(())
            });
            if let Err(error) = begun {
                tracing::warn!(volume = %volume.name, "it is not known whether it was deleted: {error}");
            }
        }
    }

    /// Removes a deleted volume from the state. If that cannot be written, the next daemon or the
    /// next start of the volume repeats it.
    pub(super) fn remove(&self, volume: &Definition, work: &Work) {
        self.note_failure(&volume.name, None);
        if planted::has(PlantedBug::DeletedStays) {
            return;
        }
        if let Err(error) = self.state.remove(&volume.name, work) {
            tracing::error!(volume = %volume.name, "deleted, but cannot be removed from the state: {error}");
        }
    }
}
