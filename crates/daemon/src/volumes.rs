//! The volumes of a daemon: keeps the served volumes and the stored ones consistent.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use forebay_admin::curve::CurveReport;
use forebay_admin::lost::LostReport;
use forebay_admin::report::{BlockReport, DaemonMemory, DaemonReport, MemoryReport};
use forebay_admin::{
    ApiError, CreateRequest, ErrorKind, OperationId, StartRequest, VolumeName, VolumeReport,
    VolumeState,
};
use forebay_core::{ExportSet, Identity};
use forebay_engine::FrontEnd;

use super::claims::Claims;
use super::hand_over;
use super::host_api::{Count, Definition, Host};
use super::operations::{Beside, Operations, attempt};
use super::{memory, preflight};
use crate::curve::Sizes;
use crate::devices::NO_CACHE;
use forebay_lane::{MemoryBudget, MemoryUse};
use forebay_threads::{Mutex, MutexGuard};

use super::recording::{self, Trace};
use super::state::{LeftBlocks, Remembered, State};
use super::work::Work;

/// Time limit of a shutdown for cancelled operations.
const PATIENCE: Duration = Duration::from_secs(10);

/// Time limit for a command to wait for an operation that it supersedes.
const YIELD_PATIENCE: Duration = Duration::from_secs(15);

/// Time limit for a command to wait for a device that does not answer.
const ANSWER_PATIENCE: Duration = Duration::from_secs(30);

/// Returns whether a verb gives way to a stop, and to a deletion that discards dirty blocks,
/// because with a lost device it could wait for ever.
fn gives_way(verb: &str) -> bool {
    matches!(verb, "flush" | "set" | "start" | "drop") || ranges::is_fill(verb)
}

mod creation;
mod deleting;
mod exporting;
mod noticing;
mod programs;
mod ranges;
mod setting;
mod starting;
mod stopping;
mod telling;
mod watching;
mod wiping;

pub(crate) use programs::Programs;

/// The volumes of a daemon.
pub(crate) struct Volumes {
    host: Arc<dyn Host>,
    state: State,
    front_ends: Vec<Arc<dyn FrontEnd>>,
    operations: Arc<Operations>,
    claims: Arc<Claims>,
    /// Why volumes that an operator or the daemon tried to start are not served.
    failures: Mutex<BTreeMap<VolumeName, String>>,
    /// Why served volumes are not exported as their settings say.
    unexported: Mutex<BTreeMap<VolumeName, String>>,
    /// Volumes without their exports that an operation may still serve again.
    unpublished: Mutex<BTreeSet<VolumeName>>,
    /// Volumes that were served when the daemon ended, and have not been started again yet.
    waiting: Mutex<BTreeSet<VolumeName>>,
    programs: Programs,
    watched: watching::WatchResults,
}

impl Volumes {
    /// Starts with the volumes in `state`, none of them served yet.
    pub(crate) fn new(
        host: Arc<dyn Host>,
        state: State,
        front_ends: Vec<Arc<dyn FrontEnd>>,
        programs: Programs,
    ) -> Arc<Self> {
        let operations = Arc::new(Operations::default());
        let started = state.volumes().into_iter().filter(|entry| entry.started);
        let waiting = Mutex::new(started.map(|entry| entry.volume.name).collect());
        Arc::new(Volumes {
            host,
            state,
            front_ends,
            operations,
            claims: Arc::default(),
            failures: Mutex::default(),
            unexported: Mutex::default(),
            unpublished: Mutex::default(),
            waiting,
            programs,
            watched: watching::WatchResults::default(),
        })
    }

    /// Returns the operations, in progress and ended.
    pub(crate) fn operations(&self) -> &Arc<Operations> {
        &self.operations
    }

    /// Returns the daemon's report.
    pub(crate) fn daemon_report(&self) -> DaemonReport {
        DaemonReport {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            state_dir: self.state.dir().display().to_string(),
            lanes: self.host.lanes(),
            nbd: self.front_ends.iter().flat_map(|front_end| front_end.addresses()).collect(),
            program: hand_over::own_program()
                .map_or_else(|_| String::new(), |program| program.display().to_string()),
            hand_overs: self.programs.hand_overs,
            ready: self.programs.ready.load(Ordering::Relaxed),
        }
    }

    /// Waits until every lane has answered. See
    /// [`Reports::pulse`](super::host_api::Reports::pulse).
    ///
    /// # Errors
    /// A lane has not within `patience`.
    pub(crate) fn pulse(&self, patience: Duration) -> Result<(), ApiError> {
        self.host.pulse(patience)
    }

    /// Returns the daemon's memory.
    pub(crate) fn memory(&self) -> &Arc<MemoryBudget> {
        self.host.memory()
    }

    /// Returns the reports of all volumes, in the order of creation.
    pub(crate) fn list(&self, count: Count) -> Vec<VolumeReport> {
        let memory = memory::report(self.host.memory());
        self.state.volumes().iter().map(|entry| self.report(entry, count, &memory)).collect()
    }

    /// Returns the report of one volume.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`].
    pub(crate) fn show(&self, name: &VolumeName, count: Count) -> Result<VolumeReport, ApiError> {
        let memory = memory::report(self.host.memory());
        self.state.volume(name).map(|entry| self.report(&entry, count, &memory))
    }

    /// Returns the hit ratios that caches of these sizes, or of the usual ones, would have had.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`], or [`ErrorKind::Refused`] if the volume is not served.
    pub(crate) fn curve(&self, name: &VolumeName, sizes: &Sizes) -> Result<CurveReport, ApiError> {
        self.state.volume(name)?;
        self.host.curve(name, sizes)
    }

    /// Begins to record the requests of a volume's clients.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`], [`ErrorKind::Refused`] if the volume is not served,
    /// [`ErrorKind::Busy`] if it is recorded already, or there is not enough memory.
    pub(crate) fn record(&self, name: &VolumeName, length: Duration) -> Result<Trace, ApiError> {
        self.state.volume(name)?;
        let bytes = recording::memory(self.host.lanes() as usize);
        let memory = self.memory().hold(MemoryUse::Background, bytes, "a recording");
        let memory =
            memory.map_err(|error| ApiError::new(ErrorKind::Refused, error.to_string()))?;
        Ok(Trace::new(self.host.record(name)?, length, memory))
    }

    /// Returns the dirty ranges of a volume on a cache device that has failed or is gone.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`].
    pub(crate) fn lost(&self, name: &VolumeName) -> Result<LostReport, ApiError> {
        self.state.volume(name)?;
        Ok(self.host.lost(name))
    }

    fn report(&self, entry: &Remembered, count: Count, memory: &DaemonMemory) -> VolumeReport {
        let volume = &entry.volume;
        let mut report = self.host.report(&volume.name, count).unwrap_or_else(|| {
            let mut report = VolumeReport::empty(
                volume.name.clone(),
                VolumeState::Stopped,
                volume.settings.clone(),
            );
            let failures = self.failures.lock();
            if let Some(failure) = failures.get(&volume.name) {
                if entry.started {
                    report.state = VolumeState::Failed;
                }
                report.errors.last = Some(failure.clone());
            } else if self.waiting().contains(&volume.name) {
                report.state = VolumeState::Waiting;
            }
            report
        });
        if !report.blocks.known && count == Count::Fresh {
            report.blocks = self.host.blocks(&volume.name).unwrap_or_default();
        }
        let DaemonMemory { limit_bytes, used_bytes, resident_bytes } = *memory;
        report.memory = MemoryReport { limit_bytes, used_bytes, resident_bytes, ..report.memory };
        if report.origin.size == 0 {
            report.origin.size = entry.origin_bytes;
        }
        report.block_size = volume.block_size;
        report.alignment = volume.alignment;
        report.origin.path.clone_from(&volume.origin);
        if volume.cache == NO_CACHE {
            report.cache = forebay_admin::report::CacheReport::default();
        }
        report.cache.path.clone_from(&volume.cache);
        let dirty = report.blocks.dirty.saturating_mul(volume.block_size);
        let deferred = report.ram.map_or(0, |ram| ram.deferred);
        report.writeback = self.writeback(&volume.name, dirty.saturating_add(deferred));
        if let (
            false,
            VolumeState::Stopped | VolumeState::Failed,
            Some(LeftBlocks { cached, dirty }),
        ) = (report.blocks.known, report.state, entry.left)
        {
            report.blocks = BlockReport { as_of_stop: true, cached, dirty, ..report.blocks };
        }
        self.report_exports(&mut report);
        self.report_clients(&mut report);
        report.progress = self.operations.of_volume(&volume.name).map(|running| running.progress);
        report
    }

    /// Creates a volume and serves it.
    ///
    /// # Errors
    /// The request is invalid by itself, or no operation can be started now.
    pub(crate) fn create(
        self: &Arc<Self>,
        request: &CreateRequest,
    ) -> Result<OperationId, ApiError> {
        let volume = preflight::definition(request)?;
        let (this, force, name) = (self.clone(), request.force, request.name.clone());
        let chose_policy = request.settings.iter().any(|(name, _)| name == "policy");
        if request.adopt {
            return self
                .operations
                .start("create", &name, move |work| this.adopt_now(volume, force, work));
        }
        self.operations.start("create", &name, move |work| {
            let name = volume.name.clone();
            let created = this.create_now(volume, chose_policy, force, work);
            created.inspect_err(|error| this.tell_failed(&name, "create", error))
        })
    }

    /// Returns the entry to store for a served volume.
    fn remembered(&self, mut volume: Definition) -> Remembered {
        if let Some(identity) = self.host.identity(&volume.name) {
            (volume.uuid, volume.cache_uuid) = (Some(identity.volume), Some(identity.cache));
        }
        let origin = self.host.origin_identity(&volume.name);
        volume.origin_identity = Identity::renew(volume.origin_identity.as_ref(), origin);
        let origin_bytes = self.size_of(&volume.name);
        Remembered::served(volume, origin_bytes)
    }

    /// Returns the size of the origin of a served volume, in bytes.
    fn size_of(&self, name: &VolumeName) -> u64 {
        self.host.report(name, Count::Known).map_or(0, |report| report.origin.size)
    }

    /// Starts an operation on an existing volume.
    fn operate(
        self: &Arc<Self>,
        verb: &'static str,
        name: &VolumeName,
        run: impl FnOnce(&Self, Remembered, &Arc<Work>) -> Result<(), ApiError> + Send + 'static,
    ) -> Result<OperationId, ApiError> {
        self.operate_beside(verb, name, ranges::beside(verb), run)
    }

    /// Starts an operation like [`Volumes::operate`], superseding or beside others that are in
    /// progress on the volume.
    fn operate_beside(
        self: &Arc<Self>,
        verb: &'static str,
        name: &VolumeName,
        beside: Beside,
        run: impl FnOnce(&Self, Remembered, &Arc<Work>) -> Result<(), ApiError> + Send + 'static,
    ) -> Result<OperationId, ApiError> {
        self.state.volume(name)?;
        let (this, own_name) = (self.clone(), name.clone());
        self.operations.start_beside(verb, name, beside, move |work| {
            this.operations.supersede(&own_name, work, beside, YIELD_PATIENCE)?;
            // The entry is looked up again, because an earlier operation may have changed the
            // volume.
            let entry = this.state.volume(&own_name)?;
            work.hold(this.claims.stored(verb, &entry.volume));
            let ended = run(&this, entry, work).and_then(|()| this.state.settle(work));
            ended.inspect_err(|error| {
                // A start reports its failures itself.
                if verb != "start" {
                    this.tell_failed(&own_name, verb, error);
                }
            })
        })
    }

    /// Reverts the stored change of a failed command.
    fn undo(&self, work: &Work, change: impl FnOnce(&mut Vec<Remembered>) -> Result<(), ApiError>) {
        if let Err(error) = self.state.complete(work, |volumes, _| change(volumes)) {
            tracing::error!("cannot revert the stored change of a failed command: {error}");
        }
    }

    /// Removes the exports of a volume, and then executes a step that ends its service. If one of
    /// them fails and the volume is still served, exports it again.
    fn without_exports(
        &self,
        volume: &Definition,
        how: (&str, bool),
        step: impl FnOnce() -> Result<(), ApiError>,
    ) -> Result<(), ApiError> {
        let withdrawn = self.withdraw(&volume.name, &ExportSet::NONE, how);
        withdrawn.and_then(|()| attempt(step)).inspect_err(|_| self.publish_again(volume))
    }

    fn is_served(&self, name: &VolumeName) -> bool {
        self.host.condition(name).is_some_and(|condition| condition.state.is_served())
    }

    /// Refuses a command that needs a served volume.
    fn check_served(&self, name: &VolumeName, verb: &str) -> Result<(), ApiError> {
        if self.is_served(name) {
            return Ok(());
        }
        let message = format!("volume '{name}' is not served; start it to {verb} it");
        Err(ApiError::new(ErrorKind::Refused, message))
    }

    /// Serves a volume; has no effect on a served volume. For `force` see
    /// [`Serving::start`](super::host_api::Serving::start).
    ///
    /// # Errors
    /// The volume does not exist, or is busy.
    pub(crate) fn start(
        self: &Arc<Self>,
        name: &VolumeName,
        how: StartRequest,
    ) -> Result<OperationId, ApiError> {
        let begun = self.operate("start", name, move |this, entry, work| {
            work.limit(ANSWER_PATIENCE);
            this.start_now(entry, how, work)?;
            // From here on an earlier copy of the cache device is recognised as older.
            this.note_positions();
            Ok(())
        })?;
        self.prefetch_after(begun, name);
        Ok(begun)
    }

    /// Stores the positions of the open caches durably.
    pub(crate) fn note_positions(&self) {
        self.host.note_positions();
        if let Err(error) = self.state.keep_known() {
            tracing::warn!("cannot store the positions of the caches: {error}");
        }
    }

    fn waiting(&self) -> MutexGuard<'_, BTreeSet<VolumeName>> {
        self.waiting.lock()
    }

    fn note_failure(&self, name: &VolumeName, failure: Option<&ApiError>) {
        let mut failures = self.failures.lock();
        match failure {
            Some(failure) => failures.insert(name.clone(), failure.to_string()),
            None => failures.remove(name),
        };
    }
}

#[cfg(test)]
#[path = "volumes_tests.rs"]
mod tests;
