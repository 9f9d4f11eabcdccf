//! Long-running operations: one thread each, one at a time per volume.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use forebay_admin::{ApiError, ErrorKind, Operation, OperationId, OperationState, VolumeName};
use forebay_threads::{Condvar, Instant, Mutex, MutexGuard};

use super::work::Work;
use crate::planted::{self, PlantedBug};

/// Interval at which a thread that waits for an operation checks whether the operation is late.
const LOOKING: Duration = Duration::from_millis(50);

/// Most operations in progress: one for each possible volume. Operations that wait for a dead
/// device must not cause others to be refused.
const MAX_RUNNING: usize = 4096;

/// Number of finished operations that are remembered, so that clients can still learn their
/// results.
const MAX_FINISHED: usize = 256;

/// Executes a step of an operation. A panic counts as a failure like any other, so that the caller
/// undoes the preparations of the step.
///
/// # Errors
/// The error of the step, or the step has panicked.
pub(crate) fn attempt<T, E: From<ApiError>>(step: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
    let unexpected = || ApiError::failed("the operation ended unexpectedly; see the log");
    forebay_threads::catch(step).unwrap_or_else(|_| Err(unexpected().into()))
}

struct OperationEntry {
    verb: &'static str,
    volume: VolumeName,
    work: Arc<Work>,
    started: Instant,
    /// Duration and result; absent while it runs.
    ended: Option<(Duration, Result<(), ApiError>)>,
}

impl OperationEntry {
    /// Returns the error for another operation on the volume.
    fn busy(&self) -> ApiError {
        let OperationEntry { verb, volume, work, .. } = self;
        let far = work.progress().share().map(|share| format!(" ({:.0} % done)", share * 100.0));
        let message = match work.late() {
            Some(late) => format!("volume '{volume}' is busy with '{verb}': {}", late.message),
            None => format!(
                "volume '{volume}' is busy with '{verb}'{}; wait until that has ended, or cancel it",
                far.unwrap_or_default()
            ),
        };
        ApiError::new(ErrorKind::Busy, message)
    }

    fn describe(&self, id: OperationId) -> Operation {
        let (elapsed, state, error) = match &self.ended {
            None => (self.started.elapsed(), OperationState::Running, self.work.late()),
            Some((took, Ok(()))) => (*took, OperationState::Done, None),
            Some((took, Err(error))) => (*took, OperationState::Failed, Some(error.clone())),
        };
        Operation {
            id,
            verb: self.verb.to_owned(),
            volume: self.volume.to_string(),
            state,
            progress: self.work.progress(),
            elapsed_ms: u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX),
            moved: self.work.moved(),
            error,
        }
    }
}

/// The operations on a volume that may be in progress when another one begins.
#[derive(Clone, Copy)]
pub(crate) struct Beside {
    /// Whether an operation with this verb is cancelled in favour of the new one.
    pub(crate) supersedes: fn(&str) -> bool,
    /// Whether the new operation may run beside operations that have waited for a device for too
    /// long, because the deletion of a volume must not wait for devices.
    pub(crate) late: bool,
}

impl Beside {
    /// The operation may begin only if no other is in progress.
    pub(crate) const NONE: Beside = Beside { supersedes: |_| false, late: false };

    fn may_begin(self, other: &OperationEntry) -> bool {
        (self.supersedes)(other.verb) || (self.late && other.work.late().is_some())
    }
}

#[derive(Default)]
struct OperationTable {
    entries: BTreeMap<OperationId, OperationEntry>,
    closed: bool,
    /// Whether new operations are refused for a while.
    held: bool,
}

impl OperationTable {
    fn running(&self) -> impl Iterator<Item = (&OperationId, &OperationEntry)> {
        self.entries.iter().filter(|(_, entry)| entry.ended.is_none())
    }

    fn forget_oldest(&mut self) {
        let finished: Vec<OperationId> = self
            .entries
            .iter()
            .filter(|(_, entry)| entry.ended.is_some())
            .map(|(id, _)| *id)
            .collect();
        for id in finished.iter().take(finished.len().saturating_sub(MAX_FINISHED)) {
            self.entries.remove(id);
        }
    }
}

/// Refuses new operations until it is dropped.
pub(crate) struct Hold<'a>(&'a Operations);

impl Hold<'_> {
    /// Refuses new operations until the process ends.
    pub(crate) fn keep(self) {
        std::mem::forget(self);
    }
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        self.0.table().held = false;
    }
}

/// All operations of a daemon.
#[derive(Default)]
pub(crate) struct Operations {
    table: Mutex<OperationTable>,
    changed: Condvar,
    last_id: AtomicU64,
}

impl Operations {
    fn table(&self) -> MutexGuard<'_, OperationTable> {
        self.table.lock()
    }

    /// Starts `run` on a separate thread.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] if the volume is busy already, or too many operations are in progress;
    /// [`ErrorKind::Failed`] if the daemon is stopping or has no thread left.
    pub(crate) fn start(
        self: &Arc<Self>,
        verb: &'static str,
        volume: &VolumeName,
        run: impl FnOnce(&Arc<Work>) -> Result<(), ApiError> + Send + 'static,
    ) -> Result<OperationId, ApiError> {
        self.start_beside(verb, volume, Beside::NONE, run)
    }

    /// Starts like [`Operations::start`], even if some operations are in progress on the volume.
    ///
    /// # Errors
    /// See [`Operations::start`].
    pub(crate) fn start_beside(
        self: &Arc<Self>,
        verb: &'static str,
        volume: &VolumeName,
        beside: Beside,
        run: impl FnOnce(&Arc<Work>) -> Result<(), ApiError> + Send + 'static,
    ) -> Result<OperationId, ApiError> {
        let mut table = self.table();
        if table.closed {
            return Err(ApiError::failed("the daemon is stopping"));
        }
        if table.held {
            let message = "the daemon is about to hand over to another program; try again";
            return Err(ApiError::new(ErrorKind::Busy, message));
        }
        let together = planted::has(PlantedBug::TwoAtOnce);
        let excludes = |entry: &OperationEntry| {
            entry.volume == *volume && !beside.may_begin(entry) && !together
        };
        if let Some((_, other)) = table.running().find(|(_, entry)| excludes(entry)) {
            return Err(other.busy());
        }
        if table.running().count() >= MAX_RUNNING {
            let message =
                format!("{MAX_RUNNING} operations are in progress; wait until one has ended");
            return Err(ApiError::new(ErrorKind::Busy, message));
        }
        let id = OperationId(self.last_id.fetch_add(1, Ordering::Relaxed) + 1);
        let work = Arc::new(Work::default());
        let (all, own_work) = (self.clone(), work.clone());
        let spawned = forebay_threads::spawn(&format!("op-{id}"), move || {
            let result = attempt(|| run(&own_work));
            own_work.let_go();
            all.end(id, result);
        });
        if let Err(error) = spawned {
            return Err(ApiError::failed(format!("no thread for the operation: {error}")));
        }
        // The table is still locked, so the thread cannot end the operation before it is inserted.
        let entry = OperationEntry {
            verb,
            volume: volume.clone(),
            work,
            started: Instant::now(),
            ended: None,
        };
        table.entries.insert(id, entry);
        Ok(id)
    }

    fn end(&self, id: OperationId, result: Result<(), ApiError>) {
        let mut table = self.table();
        if let Some(entry) = table.entries.get_mut(&id) {
            let took = entry.started.elapsed();
            match &result {
                Ok(()) => tracing::info!(volume = %entry.volume, verb = entry.verb, ?took, "done"),
                Err(error) => {
                    tracing::warn!(volume = %entry.volume, verb = entry.verb, ?took, "failed: {error}");
                }
            }
            let hidden = planted::has(PlantedBug::CancelledIsDone) && entry.work.is_cancelled();
            entry.ended = Some((took, if hidden { Ok(()) } else { result }));
        }
        table.forget_oldest();
        self.changed.notify_all();
    }

    /// Returns every known operation.
    pub(crate) fn list(&self) -> Vec<Operation> {
        self.table().entries.iter().map(|(id, entry)| entry.describe(*id)).collect()
    }

    /// Returns the operation in progress on this volume.
    pub(crate) fn of_volume(&self, volume: &VolumeName) -> Option<Operation> {
        self.table()
            .running()
            .find(|(_, entry)| entry.volume == *volume)
            .map(|(id, entry)| entry.describe(*id))
    }

    /// Waits until an operation has ended or is late, for at most `time`, and returns its state;
    /// `None` if it is not known (any more).
    pub(crate) fn wait(&self, id: OperationId, time: Option<Duration>) -> Option<Operation> {
        let deadline = time.map(|time| Instant::now() + time);
        let mut table = self.table();
        loop {
            let entry = table.entries.get(&id)?;
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            let is_late = || entry.work.late().is_some();
            if entry.ended.is_some() || is_late() || left.is_some_and(|left| left.is_zero()) {
                return Some(entry.describe(id));
            }
            let step = left.map_or(LOOKING, |left| left.min(LOOKING));
            let waited = self.changed.wait_timeout(table, step);
            table = waited.0;
        }
    }

    /// Cancels the operations that this one supersedes, and waits until they have ended, for at
    /// most `time`. `own`: the work of this operation.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`]: another operation is in progress.
    pub(crate) fn supersede(
        &self,
        volume: &VolumeName,
        own: &Arc<Work>,
        beside: Beside,
        time: Duration,
    ) -> Result<(), ApiError> {
        let deadline = Instant::now() + time;
        let mut table = self.table();
        loop {
            // Operations that began later supersede this one.
            let earlier = |entry: &&OperationEntry| !Arc::ptr_eq(&entry.work, own);
            let other = table.running().map(|(_, entry)| entry).take_while(earlier).find(|entry| {
                entry.volume == *volume && !(beside.late && entry.work.late().is_some())
            });
            let other = other.filter(|_| !planted::has(PlantedBug::SupersedesAtOnce));
            let Some(other) = other else { return Ok(()) };
            if other.work.late().is_some() || Instant::now() >= deadline {
                return Err(other.busy());
            }
            other.work.cancel();
            let waited = self.changed.wait_timeout(table, LOOKING);
            table = waited.0;
        }
    }

    /// Requests that an operation be cancelled; returns false if it is not known.
    pub(crate) fn cancel(&self, id: OperationId) -> bool {
        self.table().entries.get(&id).inspect(|entry| entry.work.cancel()).is_some()
    }

    /// Refuses new operations until the result is dropped. Operations in progress whose verbs
    /// `may_stay` continue.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] if another operation is in progress, or new ones are refused already.
    pub(crate) fn hold(&self, may_stay: impl Fn(&str) -> bool) -> Result<Hold<'_>, ApiError> {
        let mut table = self.table();
        if table.held {
            let message = "a hand-over to another program is being prepared already";
            return Err(ApiError::new(ErrorKind::Busy, message));
        }
        if let Some((_, entry)) = table.running().find(|(_, entry)| !may_stay(entry.verb)) {
            let message = format!(
                "'{}' of '{}' is in progress; try again when it has ended",
                entry.verb, entry.volume
            );
            return Err(ApiError::new(ErrorKind::Busy, message));
        }
        table.held = true;
        Ok(Hold(self))
    }

    /// Refuses new operations and cancels those in progress.
    pub(crate) fn close(&self) {
        let mut table = self.table();
        table.closed = true;
        for (_, entry) in table.running().filter(|_| !planted::has(PlantedBug::EndCancelsNothing)) {
            entry.work.cancel();
        }
    }

    /// Waits until no operation is in progress, for at most `time`; returns false on timeout.
    pub(crate) fn wait_all(&self, mut time: Duration) -> bool {
        if planted::has(PlantedBug::EndCancelsNothing) {
            time = Duration::from_secs(1000);
        }
        let table = self.table();
        let busy = |table: &mut OperationTable| table.running().next().is_some();
        let waited = self.changed.wait_timeout_while(table, time, busy);
        let (table, _) = waited;
        table.running().next().is_none()
    }
}

#[cfg(test)]
mod tests {
    use forebay_threads::channel;

    use forebay_admin::{Moved, Unit};

    use super::*;

    fn name(text: &str) -> VolumeName {
        text.parse().expect("valid")
    }

    #[test]
    fn a_volume_has_one_operation_at_a_time() {
        let all = Arc::new(Operations::default());
        let (go, wait) = channel::<()>();
        let first = all.start("flush", &name("a"), move |work| {
            work.report(1, 4, Unit::Blocks);
            let _ = wait.recv();
            work.add(Moved { written_back: 4096, discarded: 0 });
            work.add(Moved { written_back: 4096, discarded: 512 });
            Ok(())
        });
        let first = first.expect("free");
        assert!(all.start("stop", &name("b"), |_| Ok(())).is_ok());
        let busy = all.start("stop", &name("a"), |_| Ok(())).expect_err("busy");
        assert_eq!(busy.kind, ErrorKind::Busy);
        assert!(busy.message.contains("'flush'"), "{busy}");
        assert_eq!(all.of_volume(&name("a")).map(|operation| operation.id), Some(first));
        go.send(()).expect("it waits");
        let ended = all.wait(first, None).expect("known");
        assert_eq!((ended.state, ended.progress.done), (OperationState::Done, 1));
        assert_eq!(ended.moved, Moved { written_back: 8192, discarded: 512 });
        assert!(all.start("stop", &name("a"), |_| Ok(())).is_ok());
    }

    #[test]
    fn failures_and_panics_are_kept() {
        let all = Arc::new(Operations::default());
        let fails = all.start("flush", &name("a"), |_| Err(ApiError::failed("no"))).expect("free");
        let ended = all.wait(fails, None).expect("known");
        assert_eq!(ended.error.map(|error| error.message).as_deref(), Some("no"));
        let panics = all.start("flush", &name("a"), |_| panic!("on purpose")).expect("free");
        assert_eq!(all.wait(panics, None).expect("known").state, OperationState::Failed);
    }

    #[test]
    fn closing_cancels_and_refuses() {
        let all = Arc::new(Operations::default());
        let spins = all.start("set", &name("a"), |work| {
            while !work.is_cancelled() {
                forebay_threads::yield_now();
            }
            Err(ApiError::new(ErrorKind::Cancelled, "cancelled"))
        });
        let spins = spins.expect("free");
        assert!(!all.wait_all(Duration::from_millis(1)));
        all.close();
        assert!(all.wait_all(Duration::from_secs(60)));
        assert_eq!(all.wait(spins, None).expect("known").state, OperationState::Failed);
        assert!(all.start("set", &name("b"), |_| Ok(())).is_err());
    }

    #[test]
    fn a_hold_refuses_new_operations_and_waits_for_none() {
        let all = Arc::new(Operations::default());
        let (go, wait) = channel::<()>();
        let run = move |_: &Arc<Work>| wait.recv().map_err(|_| ApiError::failed("gone"));
        let first = all.start("stop", &name("a"), run).expect("free");
        let refused = all.hold(|verb| verb == "pin").err().expect("in progress");
        assert!(refused.kind == ErrorKind::Busy && refused.message.contains("'stop' of 'a'"));
        let hold = all.hold(|verb| verb == "stop").expect("it may stay");
        assert_eq!(all.hold(|_| true).err().map(|error| error.kind), Some(ErrorKind::Busy));
        let refused = all.start("set", &name("b"), |_| Ok(())).expect_err("held");
        assert_eq!(refused.kind, ErrorKind::Busy);
        go.send(()).expect("it waits");
        all.wait(first, None);
        drop(hold);
        assert!(all.start("set", &name("b"), |_| Ok(())).is_ok());
    }

    #[test]
    fn only_so_many_finished_operations_are_remembered() {
        let all = Arc::new(Operations::default());
        let mut last = OperationId(0);
        for _ in 0..MAX_FINISHED + 5 {
            last = all.start("flush", &name("a"), |_| Ok(())).expect("free");
            all.wait(last, None);
        }
        assert_eq!(all.list().len(), MAX_FINISHED);
        assert!(all.wait(last, None).is_some() && all.wait(OperationId(1), None).is_none());
    }
}
