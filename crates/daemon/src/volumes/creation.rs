//! Creates new volumes, and adopts volumes that a cache device holds.

use std::sync::Arc;

use forebay_admin::{ApiError, ErrorKind, VolumeName};
use forebay_core::ExportSet;
use forebay_format::Uuid;

use super::setting::join;
use super::starting::accept;
use super::{ANSWER_PATIENCE, Volumes};
use crate::host_api::{Definition, Existing, Remains, fresh_uuid};
use crate::operations::attempt;
use crate::planted::{self, PlantedBug};
use crate::preflight;
use crate::state::{Remembered, put};
use crate::work::Work;

impl Volumes {
    /// Creates a volume. `chose_policy`: the request names the replacement policy; it is not only
    /// the default.
    pub(super) fn create_now(
        &self,
        mut volume: Definition,
        chose_policy: bool,
        force: bool,
        work: &Arc<Work>,
    ) -> Result<(), ApiError> {
        work.limit(ANSWER_PATIENCE);
        let (existing, others) = loop {
            let others = self.definitions();
            let existing = self.examine(&mut volume, &others, chose_policy, force)?;
            let claim = self.claims.new_volume("create", &volume, existing)?;
            // A creation that has ended meanwhile no longer has a claim.
            if self.definitions() == others {
                work.hold(claim);
                break (existing, others);
            }
        };
        let uuid = fresh_uuid();
        (volume.uuid, volume.version) = (Some(uuid), 1);
        let begun = self.host.begin_creation(&volume, existing, &others, work)?;
        // Until the volume is stored, its UUID counts as deleted: if the daemon dies in between,
        // its remains on the cache device are removed.
        self.state.change(work, |_, known| {
            if !planted::has(PlantedBug::RemainsAfterCrash) {
                known.deleted.insert(uuid);
            }
            Ok(())
        })?;
        if let Err(error) = attempt(|| begun.create()) {
            // Without a commit nothing was created, and nothing will be. With one, the volume may
            // be on the cache device.
            if work.committed().is_none() {
                self.forget_deleted(uuid, work);
                return Err(error);
            }
            return Err(overwritten(&volume, existing, "may be", error));
        }
        let kept = || {
            let sharing = self.sharing(&volume);
            self.host.note_positions();
            let mut entry = self.remembered(volume.clone());
            // Write the state before clients find the volume, so that their writes survive a crash.
            self.state.complete(work, |volumes, known| {
                // Another command may have changed the shared settings since.
                join(volumes, &sharing, &mut entry.volume);
                put(volumes, entry);
                known.deleted.remove(&uuid);
                Ok(())
            })?;
            self.catch_up(&volume.name, work);
            self.publish(&volume)
        };
        if let Err(error) = attempt(kept) {
            self.delete_unfinished(&volume, uuid, work);
            return Err(overwritten(&volume, existing, "is", error));
        }
        self.tell_created(&volume, false);
        self.state.settle(work)
    }

    /// Returns the definitions of all volumes.
    fn definitions(&self) -> Vec<Definition> {
        self.state.volumes().into_iter().map(|entry| entry.volume).collect()
    }

    /// Checks a new volume against the stored ones, and takes over the settings that it shares with
    /// them. Returns the permitted treatment of a cache on its cache device.
    fn examine(
        &self,
        volume: &mut Definition,
        others: &[Definition],
        chose_policy: bool,
        force: bool,
    ) -> Result<Existing, ApiError> {
        let name = &volume.name;
        if let Some(other) = others.iter().find(|other| other.name == *name) {
            // Under another name the origin would be refused.
            let message = match other.origin == volume.origin {
                true => format!(
                    "name: there is a volume '{name}' of this origin already: 'forebay start {name}' serves it, and \
                     'forebay set {name}' changes it"
                ),
                false => format!("name: there is a volume '{name}' already; choose another name"),
            };
            return Err(ApiError::new(ErrorKind::Refused, message).about("name"));
        }
        self.programs.raw_names.check_free(name)?;
        preflight::check_devices(volume, others)?;
        self.check_own_exports(volume)?;
        self.check_exports(&volume.settings.export)?;
        let Some(other) = others.iter().find(|other| preflight::same_cache(volume, other)) else {
            return Ok(if force { Existing::Overwrite } else { Existing::Spare });
        };
        // The volumes share one policy, which a new volume does not change.
        let there = other.settings.policy;
        if chose_policy && volume.settings.policy != there {
            let reason = format!(
                "the volumes of {} share the policy '{there}'; leave it out, and change it for all of them with \
                 'forebay set {name} policy={}' afterwards",
                volume.cache, volume.settings.policy
            );
            return Err(ApiError::invalid("policy", reason));
        }
        volume.settings.share(&other.settings);
        volume.settings.policy = there;
        // Force never overwrites the data of other volumes.
        Ok(Existing::Join)
    }

    /// Deletes a new volume that could not be stored or exported. Meanwhile the state lists it as
    /// deleted.
    fn delete_unfinished(&self, volume: &Definition, uuid: Uuid, work: &Work) {
        let name = &volume.name;
        let _ = self.withdraw(name, &ExportSet::NONE, ("stop", true));
        let struck = self.state.complete(work, |volumes, known| {
            volumes.retain(|entry| entry.volume.name != *name);
            known.deleted.insert(uuid);
            Ok(())
        });
        if let Err(error) = struck {
            tracing::error!(volume = %name, "cannot remove the unfinished volume from the state: {error}");
        }
        match self.host.delete(volume, true, &Arc::default()) {
            Ok(Remains::None) => self.forget_deleted(uuid, work),
            // The volume is removed from its cache device when that is next opened.
            Ok(Remains::OnCacheDevice) => {}
            Err(error) => {
                tracing::error!(volume = %name, "cannot delete the unfinished volume: {error}");
            }
        }
    }

    /// Checks that a volume to be adopted under another name is not one of this daemon's.
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

    /// Adopts a volume on a cache device. The volume may be stored already if it is not served,
    /// because its devices may have new names.
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
        self.programs.raw_names.check_free(&name)?;
        let (own, others): (Vec<Definition>, Vec<Definition>) =
            self.definitions().into_iter().partition(|other| other.name == name);
        if let Some(stored) = &volume.stored_as {
            self.check_copy(&volume, stored)?;
        }
        preflight::check_devices(&volume, &others)?;
        self.check_own_exports(&volume)?;
        work.hold(self.claims.new_volume("create", &volume, Existing::Join)?);
        if volume.stored_as.is_none() {
            // Another volume of this name, on another cache, must not be replaced.
            volume.uuid = own.first().and_then(|own| own.uuid);
        }
        // Detect a state that cannot be written before anything is changed.
        self.state.check(work)?;
        let copied = self.host.adopt(&mut volume, force, work)?;
        self.note_failure(&name, None);
        volume.version += 1;
        self.host.note_positions();
        let mut entry = self.remembered(volume);
        let (volume, sharing) = (entry.volume.clone(), self.sharing(&entry.volume));
        let stored = self.state.complete(work, |volumes, known| {
            accept(copied, &volume, volumes, known);
            join(volumes, &sharing, &mut entry.volume);
            volume.uuid.map(|uuid| known.deleted.remove(&uuid));
            put(volumes, entry);
            Ok(())
        });
        stored.inspect_err(|_| {
            if let Err(error) = self.host.stop(&volume, true, &Arc::default()) {
                tracing::error!(volume = %name, "cannot stop the volume that could not be stored: {error}");
            }
        })?;
        self.tell_created(&volume, true);
        self.catch_up(&volume.name, work);
        self.publish(&volume)
    }
}

/// Adds to the error of a creation that failed after its commit that the content of the cache
/// device `is` or `may be` gone.
fn overwritten(volume: &Definition, existing: Existing, is: &str, mut error: ApiError) -> ApiError {
    if existing == Existing::Overwrite {
        error.message = format!(
            "'{}' was not created, but the former content of {} {is} overwritten: {}",
            volume.name, volume.cache, error.message
        );
    }
    error
}
