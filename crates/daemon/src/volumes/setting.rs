//! Changes settings of volumes, and those that volumes of one cache share.

use std::sync::Arc;

use forebay_admin::{ApiError, Assignments, OperationId, SetRequest, VolumeName};
use forebay_core::Caching;

use super::{ANSWER_PATIENCE, Volumes};
use crate::host_api::{Count, Definition};
use crate::operations::attempt;
use crate::planted::{self, PlantedBug};
use crate::preflight;
use crate::state::{Remembered, entry_of};
use crate::work::Work;

impl Volumes {
    /// Changes settings; those of a stopped volume take effect at its next start.
    ///
    /// # Errors
    /// The volume does not exist, the settings contradict each other, the volume is busy, or it is
    /// to be paused and is not served.
    pub(crate) fn set(
        self: &Arc<Self>,
        name: &VolumeName,
        request: SetRequest,
    ) -> Result<OperationId, ApiError> {
        let mut volume = self.state.volume(name)?.volume;
        preflight::change(&volume.cache, &mut volume.settings, &request.settings)?;
        preflight::check_mode(&volume.cache, &volume.settings)?;
        self.operate("set", name, move |this, entry, work| {
            let was_paused = entry.volume.settings.caching == Caching::Paused;
            let mut wanted = entry.volume.clone();
            request.settings.apply(&mut wanted.settings)?;
            this.check_exports(&wanted.settings.export.without(&entry.volume.settings.export))?;
            if wanted.settings.caching == Caching::Paused && !was_paused {
                // The dirty blocks of the volume are written to the origin first.
                this.check_served(&wanted.name, "pause")?;
            }
            // Store first: if the daemon dies in between, the next start applies the settings.
            let (old, volume, sharing) = this.store_settings(&wanted, &request.settings, work)?;
            attempt(|| this.apply_or_share(&volume, &old, &sharing, work))
                .inspect_err(|_| this.unset(&volume, &old, work))?;
            this.tell_settings(&old, &volume);
            Ok(())
        })
    }

    /// Stores changed settings of a volume. Returns the volume before and after the change, and the
    /// volumes that share some of the settings.
    fn store_settings(
        &self,
        wanted: &Definition,
        settings: &Assignments,
        work: &Work,
    ) -> Result<(Definition, Definition, Vec<VolumeName>), ApiError> {
        loop {
            let known = self.state.names();
            let sharing = self.sharing(wanted);
            let stored = self.state.change(work, |volumes, _| {
                if !volumes.iter().map(|entry| &entry.volume.name).eq(&known) {
                    // A new volume may share the settings.
                    return Ok(None);
                }
                let entry = entry_of(volumes, &wanted.name)?;
                let old = entry.volume.clone();
                settings.apply(&mut entry.volume.settings)?;
                entry.volume.version += 1;
                let volume = entry.volume.clone();
                share(volumes, &sharing, &volume);
                Ok(Some((old, volume)))
            })?;
            if let Some((old, volume)) = stored {
                return Ok((old, volume, sharing));
            }
        }
    }

    /// Applies stored settings to a volume, or the shared ones to another served volume of its
    /// cache if the first is not served.
    fn apply_or_share(
        &self,
        volume: &Definition,
        old: &Definition,
        sharing: &[VolumeName],
        work: &Arc<Work>,
    ) -> Result<(), ApiError> {
        if self.is_served(&volume.name) {
            return self.apply(volume, old, work);
        }
        match old.settings.clone().share(&volume.settings) {
            true => self.share_out(sharing, work),
            false => Ok(()),
        }
    }

    /// Applies the settings that volumes of one cache share to the first of them that is served;
    /// they then hold for all.
    pub(super) fn share_out(
        &self,
        sharing: &[VolumeName],
        work: &Arc<Work>,
    ) -> Result<(), ApiError> {
        let served = sharing.iter().find(|name| self.is_served(name));
        let Some(name) = served else { return Ok(()) };
        self.host.share(name, work)
    }

    /// Applies the shared settings of the state to a volume that is served from now on, if they
    /// differ. The volume has those of the volume table on its cache device, which does not contain
    /// changes made while volumes were stopped or by another command meanwhile.
    pub(super) fn catch_up(&self, name: &VolumeName, work: &Work) {
        let newest = self.state.volume(name).map(|entry| entry.volume.settings);
        let present = self.host.report(name, Count::Known).map(|report| report.settings);
        let (Ok(newest), Some(mut present)) = (newest, present) else { return };
        if !planted::has(PlantedBug::OldSettingsShared)
            && present.share(&newest)
            && let Err(error) = self.host.share(name, &work.beside(ANSWER_PATIENCE))
        {
            tracing::warn!(volume = %name, "shared settings that were changed meanwhile are not in force: {error}");
        }
    }

    /// Reverts stored settings that could not be applied. The version stays incremented.
    fn unset(&self, volume: &Definition, old: &Definition, work: &Work) {
        if planted::has(PlantedBug::FailedSetStays) {
            return;
        }
        // New volumes among them have taken over the settings that are now reverted.
        let sharing = &self.sharing(volume);
        self.undo(work, |volumes| {
            let entry = entry_of(volumes, &volume.name)?;
            let present = entry.volume.settings.clone();
            entry.volume.settings = old.settings.clone();
            // Shared settings that another command has changed since stay unchanged.
            let changed_since = volume.settings.clone().share(&present);
            if changed_since {
                entry.volume.settings.share(&present);
            } else {
                share(volumes, sharing, old);
            }
            Ok(())
        });
        if !old.settings.clone().share(&volume.settings) {
            return;
        }
        // A command for another volume may have applied them meanwhile.
        let all: Vec<_> = sharing.iter().chain([&volume.name]).cloned().collect();
        if let Err(error) = self.share_out(&all, &work.beside(ANSWER_PATIENCE)) {
            tracing::warn!(volume = %volume.name, "shared settings that were taken back stay in force until they are changed, or the volumes of the cache are started again: {error}");
        }
    }

    /// Returns the other volumes on the same cache device.
    pub(super) fn sharing(&self, volume: &Definition) -> Vec<VolumeName> {
        let others = self.state.volumes().into_iter().map(|entry| entry.volume);
        others
            .filter(|other| other.name != volume.name && preflight::same_cache(volume, other))
            .map(|other| other.name)
            .collect()
    }
}

/// Makes a volume that is new to the state take over the settings that it shares with others of its
/// cache.
pub(super) fn join(volumes: &[Remembered], sharing: &[VolumeName], volume: &mut Definition) {
    if let Some(other) = volumes.iter().find(|other| sharing.contains(&other.volume.name)) {
        volume.settings.share(&other.volume.settings);
    }
}

/// Copies the settings that volumes of one cache share from `volume` to the others.
fn share(volumes: &mut [Remembered], sharing: &[VolumeName], volume: &Definition) {
    for other in volumes.iter_mut().filter(|other| sharing.contains(&other.volume.name)) {
        other.volume.settings.share(&volume.settings);
    }
}
