//! Creates new volumes, and adopts volumes that a cache device holds.

use std::sync::Arc;

use forebay_admin::{ApiError, ErrorKind, VolumeName};
use forebay_core::ExportSet;
use forebay_format::Uuid;

use super::{ANSWER_PATIENCE, Volumes, share};
use crate::daemon::host_api::{Definition, Existing};
use crate::daemon::operations::Work;
use crate::daemon::preflight;
use crate::daemon::state::{Remembered, put};

impl Volumes {
    /// `chose_policy`: the request names the replacement policy; it is not just the default.
    pub(super) fn create_now(
        &self,
        mut volume: Definition,
        chose_policy: bool,
        force: bool,
        work: &Arc<Work>,
    ) -> Result<(), ApiError> {
        work.limit(ANSWER_PATIENCE);
        let name = volume.name.clone();
        let others: Vec<Definition> =
            self.state.volumes().into_iter().map(|entry| entry.volume).collect();
        if others.iter().any(|other| other.name == name) {
            let message = format!("name: there is a volume '{name}' already; choose another name");
            return Err(ApiError::new(ErrorKind::Refused, message).about("name"));
        }
        preflight::check_devices(&volume, &others)?;
        self.check_own_exports(&volume)?;
        self.check_exports(&volume.settings.export)?;
        let existing = match others.iter().find(|other| preflight::same_cache(&volume, other)) {
            // Force never overwrites the data of other volumes.
            Some(other) => {
                // They share one policy, which a new volume does not change.
                let there = other.settings.policy;
                if chose_policy && volume.settings.policy != there {
                    let reason = format!(
                        "the volumes of {} share the policy '{there}'; leave it out, and change it for \
                         all of them with 'forebay set {name} policy={}' afterwards",
                        volume.cache, volume.settings.policy
                    );
                    return Err(ApiError::invalid("policy", reason));
                }
                volume.settings.share(&other.settings);
                volume.settings.policy = there;
                Existing::Join
            }
            None if force => Existing::Overwrite,
            None => Existing::Spare,
        };
        let uuid = Uuid::new_v4();
        (volume.uuid, volume.version) = (Some(uuid), 1);
        // Until the volume is stored, its UUID counts as deleted: if the daemon dies in between,
        // its remains on the cache device are removed.
        self.state.change(|_, known| known.deleted.extend([uuid]))?;
        if let Err(error) = self.host.create(&volume, existing, &others, work) {
            if self.host.condition(&name).is_none() {
                self.forget_deleted(uuid);
            }
            return Err(error);
        }
        if let Err(error) = self.publish(&volume) {
            self.delete_unfinished(&volume, uuid);
            return Err(error);
        }
        let sharing = self.sharing(&volume);
        self.host.note_positions();
        let entry = self.remembered(volume.clone());
        let kept = self.state.change(|volumes, known| {
            share(volumes, &sharing, &entry.volume);
            put(volumes, entry);
            known.deleted.remove(&uuid);
        });
        if kept.is_ok() {
            self.tell_created(&volume, false);
        }
        kept.inspect_err(|_| {
            // A volume that would not come back after a restart must not be served.
            let _ = self.withdraw(&name, &ExportSet::NONE, true);
            if let Err(error) = self.host.delete(&volume, true, &Arc::default()) {
                tracing::error!(volume = %name, "cannot delete the volume that could not be stored: {error}");
            }
        })
    }

    /// Deletes a new volume that could not be exported.
    fn delete_unfinished(&self, volume: &Definition, uuid: Uuid) {
        let _ = self.withdraw(&volume.name, &ExportSet::NONE, true);
        match self.host.delete(volume, true, &Arc::default()) {
            Ok(_) => self.forget_deleted(uuid),
            Err(error) => {
                tracing::error!(volume = %volume.name, "cannot delete the volume that could not be exported: {error}");
            }
        }
    }

    /// Checks that a volume to be adopted under another name is none that this daemon has.
    fn check_copy(&self, volume: &Definition, stored: &VolumeName) -> Result<(), ApiError> {
        let refused =
            |message: String| Err(ApiError::new(ErrorKind::Refused, message).about("name"));
        for Remembered { volume: other, .. } in self.state.volumes() {
            if other.name == volume.name {
                let name = &volume.name;
                return refused(format!(
                    "name: there is a volume '{name}' already; choose another name"
                ));
            }
            if other.name == *stored && preflight::same_cache(volume, &other) {
                let message = format!(
                    "name: '{stored}' on {} is a volume of this daemon, and keeps its name; --as is for copies",
                    other.cache
                );
                return refused(message);
            }
        }
        Ok(())
    }

    /// Adopts a volume that a cache device holds. The volume may be stored already if it is not
    /// served: its devices may have new names.
    pub(super) fn adopt_now(
        &self,
        mut volume: Definition,
        force: bool,
        work: &Arc<Work>,
    ) -> Result<(), ApiError> {
        work.limit(ANSWER_PATIENCE);
        let name = volume.name.clone();
        if self.host.condition(&name).is_some() {
            let message = format!("name: volume '{name}' is served; stop it first");
            return Err(ApiError::new(ErrorKind::Refused, message).about("name"));
        }
        let others: Vec<Definition> = self
            .state
            .volumes()
            .into_iter()
            .map(|entry| entry.volume)
            .filter(|other| other.name != name)
            .collect();
        if let Some(stored) = &volume.stored_as {
            self.check_copy(&volume, stored)?;
        }
        preflight::check_devices(&volume, &others)?;
        self.check_own_exports(&volume)?;
        // Detects a state that cannot be written before anything is changed.
        self.state.change(|_, _| ())?;
        let device = volume.cache.clone();
        let adopt = &mut || self.host.adopt(&mut volume, force, work);
        self.accepting_older(force, &name, &device, adopt)?;
        self.note_failure(&name, None);
        volume.version += 1;
        self.host.note_positions();
        let entry = self.remembered(volume);
        let volume = entry.volume.clone();
        let stored = self.state.put(entry).inspect_err(|_| {
            if let Err(error) = self.host.stop(&volume, true, &Arc::default()) {
                tracing::error!(volume = %name, "cannot stop the volume that could not be stored: {error}");
            }
        });
        stored?;
        self.tell_created(&volume, true);
        self.publish(&volume)
    }
}
