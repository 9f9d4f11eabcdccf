//! Changes settings of volumes, and those that volumes of one cache share.

use std::sync::Arc;

use forebay_admin::{ApiError, OperationId, SetRequest, VolumeName};
use forebay_core::Caching;

use super::Volumes;
use crate::host_api::Definition;
use crate::preflight;
use crate::state::{Remembered, entry_of};
use crate::work::Work;

impl Volumes {
    /// Changes settings; those of a stopped volume take effect at its next start.
    ///
    /// # Errors
    /// There is no such volume, the settings contradict each other, the volume is busy, or it is to be
    /// paused and is not served.
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
                // Its dirty blocks are written to the origin first.
                this.check_served(&wanted.name, "pause")?;
            }
            let sharing = this.sharing(&wanted);
            // Stored first: if the daemon dies in between, the next start applies it.
            let (old, volume) = this.state.change(work, |volumes, _| {
                let entry = entry_of(volumes, &wanted.name)?;
                let old = entry.volume.clone();
                request.settings.apply(&mut entry.volume.settings)?;
                entry.volume.version += 1;
                let volume = entry.volume.clone();
                share(volumes, &sharing, &volume);
                Ok((old, volume))
            })?;
            if this.is_served(&volume.name) {
                this.apply(&volume, &old, work)
                    .inspect_err(|_| this.unset(&volume, &old, &sharing, work))?;
            }
            this.tell_settings(&old, &volume);
            Ok(())
        })
    }

    /// Reverts stored settings that could not be applied. The version stays incremented.
    fn unset(&self, volume: &Definition, old: &Definition, sharing: &[VolumeName], work: &Work) {
        self.undo(work, |volumes| {
            let entry = entry_of(volumes, &volume.name)?;
            let present = entry.volume.settings.clone();
            entry.volume.settings = old.settings.clone();
            // Shared settings that another command has changed since stay as they are.
            let changed_since = volume.settings.clone().share(&present);
            if changed_since {
                entry.volume.settings.share(&present);
            } else {
                share(volumes, sharing, old);
            }
            Ok(())
        });
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

/// Copies the settings that volumes of one cache share from `volume` to the others.
pub(super) fn share(volumes: &mut [Remembered], sharing: &[VolumeName], volume: &Definition) {
    for other in volumes.iter_mut().filter(|other| sharing.contains(&other.volume.name)) {
        other.volume.settings.share(&volume.settings);
    }
}
