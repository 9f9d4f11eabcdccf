//! Exports that are more than a volume's name at the daemon's addresses: block devices.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use forebay_admin::report::{ClientReport, Transport};
use forebay_admin::{ApiError, ErrorKind, VolumeName, VolumeReport};
use forebay_core::{ExportSet, FrontEndKind, NbdReach};
use forebay_engine::{Client, ExportError, ExportErrorKind, ExportedDevice, FrontEnd};
use forebay_export::link;
use forebay_host::processes;
use forebay_threads::{Instant, channel};

use super::Volumes;
use crate::front_ends::export_error;
use crate::host_api::Definition;
use crate::preflight;
use crate::work::Work;

/// Time limit at the end of the daemon for the removal of exports.
const PATIENCE: Duration = Duration::from_secs(10);

impl Volumes {
    /// Returns the front ends in a set.
    fn front_ends_of(&self, set: &ExportSet) -> impl Iterator<Item = &Arc<dyn FrontEnd>> {
        let listed =
            |front_end: &&Arc<dyn FrontEnd>| front_end.kind().is_some_and(|kind| set.has(kind));
        self.front_ends.iter().filter(listed)
    }

    /// Returns the set with the block device that `auto` means for a volume: the one that it has,
    /// or else the best one that this host supports. Beside a listed one, `auto` adds none.
    fn resolved(&self, name: &VolumeName, set: &ExportSet) -> ExportSet {
        let automatic = FrontEndKind::AUTOMATIC;
        if !set.is_auto() || automatic.iter().any(|kind| set.has(*kind)) {
            return set.clone();
        }
        let of_kind =
            |kind: &FrontEndKind| self.front_ends.iter().find(|it| it.kind() == Some(*kind));
        let all: Vec<&Arc<dyn FrontEnd>> = automatic.iter().filter_map(of_kind).collect();
        let held = all.iter().find(|front_end| front_end.holds(name.as_str()));
        let chosen = held.or_else(|| all.iter().find(|front_end| front_end.check().is_ok()));
        match chosen.and_then(|front_end| front_end.kind()) {
            Some(kind) => set.clone().with(kind),
            None => {
                tracing::warn!(volume = %name, "no block device can be made here: 'forebay doctor' says why");
                set.clone()
            }
        }
    }

    /// Checks that neither device of a volume is a block device that this daemon exports: its lanes
    /// would wait for themselves.
    ///
    /// # Errors
    /// [`ErrorKind::Refused`].
    pub(super) fn check_own_devices(&self, volume: &Definition) -> Result<(), ApiError> {
        self.check_own(volume, |field, device, name| {
            let mut own = self.front_ends.iter().filter_map(|it| it.device(name.as_str()));
            own.any(|own| preflight::is_part_of(field, device, &own.path))
        })
    }

    /// Checks like [`Volumes::check_own_devices`], for a new volume, and also that no device is an
    /// export of this daemon by another protocol, which would end before the volume.
    ///
    /// # Errors
    /// [`ErrorKind::Refused`].
    pub(super) fn check_own_exports(&self, volume: &Definition) -> Result<(), ApiError> {
        self.check_own_devices(volume)?;
        self.check_own(volume, |field, device, name| {
            // Whichever clients it accepts now, it may accept others later.
            let uris =
                self.front_ends.iter().flat_map(|it| it.describe(name.as_str(), NbdReach::All));
            let files = self.front_ends.iter().filter_map(|it| it.device(name.as_str()));
            uris.into_iter().any(|uri| preflight::is_same_remote(field, device, &uri))
                || files.into_iter().any(|own| preflight::is_file_of(field, device, &own.path))
        })
    }

    fn check_own(
        &self,
        volume: &Definition,
        is_own: impl Fn(&str, &str, &VolumeName) -> bool,
    ) -> Result<(), ApiError> {
        for (field, device) in [("cache", &volume.cache), ("origin", &volume.origin)] {
            let mut names = self.state.names().into_iter();
            if let Some(name) = names.find(|name| is_own(field, device, name)) {
                let message = format!(
                    "{field}: {device} is volume '{name}' of this daemon, which cannot wait for itself; name another \
                     device, or have another daemon serve '{name}'"
                );
                return Err(ApiError::new(ErrorKind::Refused, message).about(field));
            }
        }
        Ok(())
    }

    /// Recreates paths of sockets and links to devices that another program has removed.
    pub(super) fn restore_paths(&self) {
        for front_end in &self.front_ends {
            front_end.restore_paths();
            for name in self.state.names() {
                let look = || front_end.device(name.as_str());
                let Some(ExportedDevice { path, link: Some(link) }) = look() else { continue };
                if link.symlink_metadata().is_ok() {
                    continue;
                }
                if link::make(name.as_str(), &path).is_some() {
                    tracing::warn!(link = %link.display(), "the link to a device was removed, and is made again");
                }
                // The device may have been withdrawn meanwhile, with its link.
                if look().is_none_or(|now| now.path != path) {
                    link::remove(&link, &path);
                }
            }
        }
    }

    /// Checks whether volumes can be exported by these front ends at all.
    ///
    /// # Errors
    /// The reason why they cannot.
    pub(super) fn check_exports(&self, set: &ExportSet) -> Result<(), ApiError> {
        let mut all = self.front_ends_of(set);
        all.try_for_each(|front_end| front_end.check()).map_err(|error| export_error(&error))
    }

    /// Exports a served volume according to its settings. Until that succeeds, reports state the
    /// reason.
    ///
    /// # Errors
    /// A front end did not export it; the volume stays served.
    pub(super) fn publish(&self, volume: &Definition) -> Result<(), ApiError> {
        let name = &volume.name;
        self.host.show(name);
        let set = self.resolved(name, &volume.settings.export);
        let mut all = self.front_ends_of(&set);
        let result =
            all.try_for_each(|front_end| front_end.publish(name.as_str(), &volume.settings));
        self.unpublished.lock().remove(name);
        let mut failures = self.unexported.lock();
        failures.remove(name);
        result.map_err(|error| {
            tracing::error!(volume = %name, "served, but not exported: {error}");
            failures.insert(name.clone(), error.to_string());
            let mut error = in_use(&error, name, "stop");
            error.message = format!("'{name}' is served, but not exported: {}", error.message);
            error
        })
    }

    /// Removes the exports of a volume, except those in `keep`.
    ///
    /// # Errors
    /// One of the exports is in use, never with `force`; the message says that `verb` has this as
    /// an option. Earlier ones are removed: [`Volumes::publish_again`] restores them.
    pub(super) fn withdraw(
        &self,
        name: &VolumeName,
        keep: &ExportSet,
        (verb, force): (&str, bool),
    ) -> Result<(), ApiError> {
        let kept =
            |front_end: &Arc<dyn FrontEnd>| front_end.kind().is_some_and(|kind| keep.has(kind));
        let mut others = self.front_ends.iter().filter(|front_end| !kept(front_end));
        let result = others.try_for_each(|front_end| front_end.withdraw(name.as_str(), force));
        result.map_err(|error| in_use(&error, name, verb))?;
        self.unexported.lock().remove(name);
        Ok(())
    }

    /// Stops the exports of a volume from accepting clients that its next settings exclude.
    ///
    /// # Errors
    /// The volume has such clients; [`Volumes::publish_again`] restores the exports that were
    /// changed.
    fn narrow(&self, next: &Definition, kept: &ExportSet) -> Result<(), ApiError> {
        let mut kept = self.front_ends_of(kept);
        let narrowed = kept.try_for_each(|it| it.narrow(next.name.as_str(), &next.settings));
        narrowed.map_err(|error| in_use(&error, &next.name, "stop"))
    }

    /// Exports a volume again whose stop, deletion or change has failed. If an operation that was
    /// given up still waits for a device, the watcher exports the volume once it is served again.
    pub(super) fn publish_again(&self, volume: &Definition) {
        if self.is_served(&volume.name) {
            let _ = self.publish(volume);
        } else {
            self.unpublished.lock().insert(volume.name.clone());
        }
    }

    /// Applies settings to a served volume, and exports it accordingly. If that fails, the volume
    /// is left unchanged.
    ///
    /// # Errors
    /// The settings cannot be applied, or an export that they remove is in use.
    pub(super) fn apply(
        &self,
        volume: &Definition,
        before: &Definition,
        work: &Arc<Work>,
    ) -> Result<(), ApiError> {
        let exported = |volume: &Definition| (volume.settings.export.clone(), volume.settings.nbd);
        if exported(volume) == exported(before) {
            return self.host.set(volume, work);
        }
        let keep = self.resolved(&volume.name, &volume.settings.export);
        self.withdraw(&volume.name, &keep, ("stop", false))
            .and_then(|()| self.narrow(volume, &keep))
            .inspect_err(|_| self.publish_again(before))?;
        let applied = self.host.set(volume, work);
        let exported = applied.clone().and_then(|()| self.publish(volume));
        if exported.is_err() {
            if applied.is_ok()
                && let Err(error) = self.host.set(before, &Arc::default())
            {
                tracing::error!(volume = %volume.name, "cannot restore its settings: {error}");
            }
            self.publish_again(before);
        }
        exported
    }

    /// Exports volumes again that lost their devices to another program, or that are served again
    /// by an operation that was given up.
    pub(super) fn mend_exports(self: &Arc<Self>) {
        for front_end in &self.front_ends {
            for volume in front_end.lost() {
                let Ok(name) = volume.parse::<VolumeName>() else { continue };
                let (front_end, own) = (front_end.clone(), name.clone());
                self.mend_export(&name, move |this| {
                    let lost = front_end.lost().iter().any(|lost| lost == own.as_str());
                    if lost {
                        let device = front_end.device(own.as_str());
                        this.tell_export_lost(&own, device.map(|device| device.path).as_deref());
                    }
                    lost
                });
            }
        }
        let unpublished = self.unpublished.lock().clone();
        for name in unpublished {
            if self.is_served(&name) {
                let own = name.clone();
                self.mend_export(&name, move |this| this.unpublished.lock().contains(&own));
            } else if !self.state.volume(&name).is_ok_and(|entry| entry.started) {
                self.unpublished.lock().remove(&name);
            }
        }
    }

    /// Exports a served volume again if that `is_needed`, unless another command is in progress,
    /// which may have removed its exports itself.
    fn mend_export(
        self: &Arc<Self>,
        name: &VolumeName,
        is_needed: impl FnOnce(&Self) -> bool + Send + 'static,
    ) {
        let (this, own) = (self.clone(), name.clone());
        let begun = self.operations.start("start", name, move |_| {
            let entry = this.state.volume(&own)?;
            match this.is_served(&own) && is_needed(&this) {
                true => this.publish(&entry.volume),
                false => Ok(()),
            }
        });
        if let Err(error) = begun {
            tracing::debug!(volume = %name, "it has lost its exports, and gets them again later: {error}");
        }
    }

    /// Checks whether the next program can serve everything that is exported.
    ///
    /// # Errors
    /// The users of an export would get errors.
    pub(super) fn check_hand_over(&self) -> Result<(), ApiError> {
        self.state.volumes().iter().try_for_each(|entry| {
            let name = &entry.volume.name;
            let mut all = self.front_ends.iter();
            let checked = all.try_for_each(|front_end| front_end.check_hand_over(name.as_str()));
            checked.map_err(|error| {
                ApiError::new(ErrorKind::Refused, in_use(&error, name, "stop").message)
            })
        })
    }

    /// Ends all exports because the daemon ends, whether they are in use or not.
    pub(super) fn leave_all(&self) {
        let (done, ended) = channel::<()>();
        for entry in self.state.volumes() {
            let name = entry.volume.name.as_str();
            // A front end that makes no devices has nothing that takes time.
            let devices = self.front_ends.iter().filter(|it| it.device(name).is_some());
            for front_end in devices {
                let (front_end, name) = (front_end.clone(), entry.volume.name.clone());
                let done = done.clone();
                let spawned = forebay_threads::spawn("withdraw", move || {
                    if let Err(error) = front_end.leave(name.as_str()) {
                        tracing::error!(volume = %name, "its export is left behind: {error}");
                    }
                    drop(done);
                });
                if let Err(error) = spawned {
                    tracing::error!("no thread to remove an export: {error}");
                }
            }
        }
        drop(done);
        let end = Instant::now() + PATIENCE;
        // Nothing is sent: the channel closes when the last thread has ended.
        let _ = ended.recv_timeout(end.saturating_duration_since(Instant::now()));
    }

    /// Adds the volume's exports to its report.
    pub(super) fn report_exports(&self, report: &mut VolumeReport) {
        if !report.state.is_served() {
            return;
        }
        let name = report.name.as_str();
        for front_end in &self.front_ends {
            let uris = front_end.describe(name, report.settings.nbd);
            let first = match front_end.kind() {
                Some(FrontEndKind::Nbd) => &mut report.export.nbd,
                Some(FrontEndKind::VhostUser) => &mut report.export.vhost_user,
                _ => &mut None,
            };
            *first = uris.first().cloned();
            report.export.all.extend(uris);
        }
        if let Some(device) = self.front_ends.iter().find_map(|front_end| front_end.device(name)) {
            report.export.device = Some(device.path.display().to_string());
            report.export.link = device.link.map(|link| link.display().to_string());
        }
        let failures = self.unexported.lock();
        report.export.error = failures.get(&report.name).cloned();
    }

    /// Adds the clients of the volume to its report.
    pub(super) fn report_clients(&self, report: &mut VolumeReport) {
        let mut names: BTreeMap<u32, Option<String>> = BTreeMap::new();
        for front_end in &self.front_ends {
            let Some(kind) = front_end.kind() else { continue };
            for client in front_end.clients(report.name.as_str()) {
                let (transport, address, pid) = match client {
                    Client::Local { pid } => (Transport::Unix, None, pid.map(NonZeroU32::get)),
                    Client::Remote { address } => {
                        (Transport::Tcp, address.map(|address| address.to_string()), None)
                    }
                };
                let name = |pid| names.entry(pid).or_insert_with(|| processes::name(pid)).clone();
                let (front_end, process) = (kind.name().to_owned(), pid.and_then(name));
                report.clients.push(ClientReport { front_end, transport, address, pid, process });
            }
        }
    }
}

/// Converts an error of an export, and adds the remedy if clients use the export: `verb` with
/// force.
fn in_use(error: &ExportError, name: &VolumeName, verb: &str) -> ApiError {
    let mut converted = export_error(error);
    if error.kind == ExportErrorKind::InUse && !error.message.contains("--force") {
        let way_out = format!("; end that first, or 'forebay {verb} --force {name}' cuts it off");
        converted.message.push_str(&way_out);
    }
    converted
}

#[cfg(test)]
#[path = "exporting_tests.rs"]
mod tests;
