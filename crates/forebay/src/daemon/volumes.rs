//! The volumes of a daemon: what the host serves and what the state remembers, kept in step.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use forebay_admin::curve::CurveReport;
use forebay_admin::report::DaemonReport;
use forebay_admin::{
    ApiError, CreateRequest, ErrorKind, OperationId, OperationState, SetRequest, VolumeName,
    VolumeReport, VolumeState,
};

use super::host_api::{Definition, Existing, Host};
use super::nbd_address::NbdAddress;
use super::operations::{Operations, Work};
use super::preflight;
use super::signals::StopRequest;
use super::state::{Remembered, State};

/// How long a stop waits for operations that were asked to give up.
const PATIENCE: Duration = Duration::from_secs(30);

/// How long a stop of one volume waits for what it supersedes, below the patience of clients.
const YIELD_PATIENCE: Duration = Duration::from_secs(15);

/// The volumes of a daemon.
pub(crate) struct Volumes {
    host: Arc<dyn Host>,
    state: State,
    nbd: Vec<NbdAddress>,
    operations: Arc<Operations>,
    /// Why volumes that should be served are not.
    failures: Mutex<BTreeMap<VolumeName, String>>,
    /// Volumes that were served when the daemon ended, and whose turn to be served again has not come.
    waiting: Mutex<BTreeSet<VolumeName>>,
}

impl Volumes {
    /// The volumes that `state` remembers, none of them served yet.
    pub(crate) fn new(host: Arc<dyn Host>, state: State, nbd: Vec<NbdAddress>) -> Arc<Self> {
        let operations = Arc::new(Operations::default());
        let started = state.volumes().into_iter().filter(|entry| entry.started);
        let waiting = Mutex::new(started.map(|entry| entry.volume.name).collect());
        Arc::new(Volumes { host, state, nbd, operations, failures: Mutex::default(), waiting })
    }

    /// Work that is under way or has ended.
    pub(crate) fn operations(&self) -> &Arc<Operations> {
        &self.operations
    }

    /// The daemon about itself.
    pub(crate) fn daemon_report(&self) -> DaemonReport {
        DaemonReport {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            state_dir: self.state.dir().display().to_string(),
            lanes: self.host.lanes(),
            nbd: self.nbd.iter().map(NbdAddress::to_string).collect(),
        }
    }

    /// Every volume, in the order of creation.
    pub(crate) fn list(&self) -> Vec<VolumeReport> {
        self.state.volumes().iter().map(|entry| self.report(entry)).collect()
    }

    /// One volume.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`].
    pub(crate) fn show(&self, name: &VolumeName) -> Result<VolumeReport, ApiError> {
        self.state.volume(name).map(|entry| self.report(&entry))
    }

    /// What caches of these sizes, or of the usual ones, would have hit of a volume's requests.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`], or [`ErrorKind::Refused`] when it is not served.
    pub(crate) fn curve(&self, name: &VolumeName, sizes: &[u64]) -> Result<CurveReport, ApiError> {
        self.state.volume(name)?;
        self.host.curve(name, sizes)
    }

    fn report(&self, entry: &Remembered) -> VolumeReport {
        let volume = &entry.volume;
        let mut report = self.host.report(&volume.name).unwrap_or_else(|| {
            let mut report = VolumeReport::empty(
                volume.name.clone(),
                VolumeState::Stopped,
                volume.settings.clone(),
            );
            let failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(failure) = failures.get(&volume.name) {
                report.state = VolumeState::Failed;
                report.errors.last = Some(failure.clone());
            } else if self.waiting().contains(&volume.name) {
                report.state = VolumeState::Waiting;
            }
            report
        });
        if report.origin.size == 0 {
            report.origin.size = entry.origin_bytes;
        }
        report.block_size = volume.block_size;
        report.alignment = volume.alignment;
        report.origin.path.clone_from(&volume.origin);
        report.cache.path.clone_from(&volume.cache);
        let served = matches!(
            report.state,
            VolumeState::Running | VolumeState::Draining | VolumeState::Degraded
        );
        if served {
            report.export.all = self.nbd.iter().map(|address| address.uri(&volume.name)).collect();
            report.export.nbd = report.export.all.first().cloned();
        }
        report.progress = self.operations.of_volume(&volume.name).map(|running| running.progress);
        report
    }

    /// Makes a volume and serves it.
    ///
    /// # Errors
    /// When the request is wrong by itself or nothing can be started now.
    pub(crate) fn create(
        self: &Arc<Self>,
        request: &CreateRequest,
    ) -> Result<OperationId, ApiError> {
        let volume = preflight::definition(request)?;
        let (this, force, name) = (self.clone(), request.force, request.name.clone());
        let chose_policy = request.settings.iter().any(|(knob, _)| knob == "policy");
        if request.adopt {
            return self
                .operations
                .start("create", &name, move |work| this.adopt_now(volume, force, work));
        }
        self.operations
            .start("create", &name, move |work| this.create_now(volume, chose_policy, force, work))
    }

    /// `chose_policy`: the replacement policy was asked for, and is not just the default.
    fn create_now(
        &self,
        mut volume: Definition,
        chose_policy: bool,
        force: bool,
        work: &Work,
    ) -> Result<(), ApiError> {
        let name = volume.name.clone();
        let others: Vec<Definition> =
            self.state.volumes().into_iter().map(|entry| entry.volume).collect();
        if others.iter().any(|other| other.name == name) {
            let message = format!("name: there is a volume '{name}' already; choose another name");
            return Err(ApiError::new(ErrorKind::Refused, message).about("name"));
        }
        preflight::check_devices(&volume, &others, force)?;
        let existing = match others.iter().find(|other| preflight::same_cache(&volume, other)) {
            // Whatever force is meant for, it is not the data of other volumes.
            Some(other) => {
                // They share one policy, and a new volume does not change that of the others.
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
        self.host.create(&volume, existing, work)?;
        self.share_settings(&volume)?;
        let origin_bytes = self.size_of(&name);
        self.state.put(Remembered { volume, started: true, origin_bytes }).inspect_err(|_| {
            // What would not come back after a restart must not look as if it would.
            if let Err(error) = self.host.stop(&name, &Work::default()) {
                tracing::error!(volume = %name, "stopping what could not be remembered: {error}");
            }
        })
    }

    /// Takes over what is on a cache device already. A volume that is remembered and not served may be
    /// taken over too: its devices have other names now.
    fn adopt_now(&self, mut volume: Definition, force: bool, work: &Work) -> Result<(), ApiError> {
        let name = volume.name.clone();
        if self.host.report(&name).is_some() {
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
        // The cache device is to hold something: that is what is adopted.
        preflight::check_devices(&volume, &others, true)?;
        self.host.adopt(&mut volume, force, work)?;
        self.note_failure(&name, None);
        let origin_bytes = self.size_of(&name);
        self.state.put(Remembered { volume, started: true, origin_bytes }).inspect_err(|_| {
            if let Err(error) = self.host.stop(&name, &Work::default()) {
                tracing::error!(volume = %name, "stopping what could not be remembered: {error}");
            }
        })
    }

    /// Size of the origin of a volume that is served, in bytes.
    fn size_of(&self, name: &VolumeName) -> u64 {
        self.host.report(name).map_or(0, |report| report.origin.size)
    }

    /// Starts one of the operations on a volume that is there.
    fn operate(
        self: &Arc<Self>,
        verb: &'static str,
        name: &VolumeName,
        run: impl FnOnce(&Self, Remembered, &Work) -> Result<(), ApiError> + Send + 'static,
    ) -> Result<OperationId, ApiError> {
        self.state.volume(name)?;
        let (this, own_name) = (self.clone(), name.clone());
        self.operations.start(verb, name, move |work| {
            // Looked up again: an operation before this one may have changed it.
            let entry = this.state.volume(&own_name)?;
            run(&this, entry, work)
        })
    }

    /// Changes settings, of a volume that is stopped for its next start.
    ///
    /// # Errors
    /// When there is no such volume, the settings do not fit together, or it is busy.
    pub(crate) fn set(
        self: &Arc<Self>,
        name: &VolumeName,
        request: SetRequest,
    ) -> Result<OperationId, ApiError> {
        let mut settings = self.state.volume(name)?.volume.settings;
        request.settings.apply(&mut settings)?;
        self.operate("set", name, move |this, mut entry, work| {
            request.settings.apply(&mut entry.volume.settings)?;
            if this.host.report(&entry.volume.name).is_some() {
                this.host.set(&entry.volume.name, &entry.volume.settings, work)?;
            }
            this.share_settings(&entry.volume)?;
            this.state.put(entry)
        })
    }

    /// Remembers what volumes share for all that have the same cache.
    fn share_settings(&self, volume: &Definition) -> Result<(), ApiError> {
        for mut other in self.state.volumes() {
            if other.volume.name != volume.name
                && preflight::same_cache(volume, &other.volume)
                && other.volume.settings.share(&volume.settings)
            {
                self.state.put(other)?;
            }
        }
        Ok(())
    }

    /// Writes dirty blocks to the origin.
    ///
    /// # Errors
    /// When there is no such volume or it is busy.
    pub(crate) fn flush(self: &Arc<Self>, name: &VolumeName) -> Result<OperationId, ApiError> {
        self.operate("flush", name, |this, entry, work| {
            let name = &entry.volume.name;
            if this.host.report(name).is_none() {
                let message = format!("volume '{name}' is stopped; start it to flush it");
                return Err(ApiError::new(ErrorKind::Refused, message));
            }
            this.host.flush(name, work)
        })
    }

    /// Stops serving a volume; one that is stopped stays so. A flush or a change of settings that
    /// is under way is given up: it could take for ever when the origin is lost.
    ///
    /// # Errors
    /// When there is no such volume or it is busy.
    pub(crate) fn stop(self: &Arc<Self>, name: &VolumeName) -> Result<OperationId, ApiError> {
        if let Some(running) = self.operations.of_volume(name)
            && matches!(running.verb.as_str(), "flush" | "set")
        {
            self.operations.cancel(running.id);
            self.operations.wait(running.id, Some(YIELD_PATIENCE));
        }
        self.operate("stop", name, |this, mut entry, work| {
            let name = entry.volume.name.clone();
            this.waiting().remove(&name);
            // Remembered first: a daemon that dies in between must not serve it again by itself.
            entry.started = false;
            this.state.put(entry)?;
            this.note_failure(&name, None);
            if this.host.report(&name).is_some() { this.host.stop(&name, work) } else { Ok(()) }
        })
    }

    /// Serves a volume; one that is served stays so. For `force` see [`Host::start`].
    ///
    /// # Errors
    /// When there is no such volume or it is busy.
    pub(crate) fn start(
        self: &Arc<Self>,
        name: &VolumeName,
        force: bool,
    ) -> Result<OperationId, ApiError> {
        self.operate("start", name, move |this, mut entry, work| {
            if this.host.report(&entry.volume.name).is_some() {
                return Ok(());
            }
            let started = this.host.start(&entry.volume, force, work);
            this.waiting().remove(&entry.volume.name);
            if entry.started {
                this.note_failure(&entry.volume.name, started.as_ref().err());
            }
            started?;
            entry.started = true;
            entry.origin_bytes = this.size_of(&entry.volume.name);
            this.state.put(entry)
        })
    }

    /// Removes a volume.
    ///
    /// # Errors
    /// When there is no such volume or it is busy.
    pub(crate) fn delete(
        self: &Arc<Self>,
        name: &VolumeName,
        discard_dirty: bool,
    ) -> Result<OperationId, ApiError> {
        self.operate("delete", name, move |this, entry, work| {
            this.waiting().remove(&entry.volume.name);
            this.host.delete(&entry.volume, discard_dirty, work)?;
            this.state.remove(&entry.volume.name)?;
            this.note_failure(&entry.volume.name, None);
            Ok(())
        })
    }

    fn waiting(&self) -> MutexGuard<'_, BTreeSet<VolumeName>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note_failure(&self, name: &VolumeName, failure: Option<&ApiError>) {
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        match failure {
            Some(failure) => failures.insert(name.clone(), failure.to_string()),
            None => failures.remove(name),
        };
    }

    /// Serves again what was served when the daemon ended; one that fails does not keep the others
    /// from it. Returns how many are served and how many should be.
    pub(crate) fn restore(self: &Arc<Self>, stop: &StopRequest) -> (usize, usize) {
        let waiting = |entry: &Remembered| self.waiting().contains(&entry.volume.name);
        let volumes = self.state.volumes().into_iter();
        let wanted: Vec<VolumeName> =
            volumes.filter(waiting).map(|entry| entry.volume.name).collect();
        let mut served = 0;
        for name in &wanted {
            if stop.is_asked() {
                break;
            }
            // An operator may have stopped, deleted or started it while it waited.
            if !self.waiting().contains(name) {
                served += usize::from(self.host.report(name).is_some());
                continue;
            }
            let ended = self.start(name, false).map(|id| self.operations.wait(id, None));
            self.waiting().remove(name);
            match ended {
                Ok(Some(operation)) if operation.state == OperationState::Done => served += 1,
                Ok(_) => {}
                Err(error) => tracing::error!(volume = %name, "cannot be started: {error}"),
            }
        }
        (served, wanted.len())
    }

    /// Ends all operations, then stops serving in order.
    ///
    /// # Errors
    /// When something did not end clean.
    pub(crate) fn shut_down(&self) -> Result<(), ApiError> {
        self.operations.close();
        let quiet = self.operations.wait_all(PATIENCE);
        self.host.shut_down(&Work::default())?;
        if !quiet {
            return Err(ApiError::failed("an operation did not give up in time"));
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "volumes_tests.rs"]
mod tests;
