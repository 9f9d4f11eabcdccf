//! The work of an operation, shared by the thread that does it and those that wait for it. It has
//! one commit point, from which on it can no longer fail without an effect.
//!
//! An operation begins by preparing: it waits for devices, reads, and writes nothing that lasts.
//! Its first lasting effect needs an [`Effect`], which [`Work::commit`] gives. A failure may be
//! reported before the work has ended (a device does not answer, the operator cancels, the daemon
//! stops) only after [`Work::withdraw`]. The first of the two calls wins, so an operation that was
//! reported as failed has no effect afterwards.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::planted::{self, PlantedBug};
use forebay_admin::{ApiError, Moved, Progress, Unit};
use forebay_core::Cancelled;
use forebay_threads::{Instant, Mutex, MutexGuard};

/// The progress of an operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum OperationPhase {
    /// The work has changed nothing that lasts, and can be withdrawn.
    #[default]
    Preparing,
    /// The work was reported as failed, and changes nothing.
    Withdrawn,
    /// The work may have changed data that lasts; only its end shows whether it succeeded.
    Committed,
}

/// Permits lasting changes. An operation that holds it has not been reported as failed, and will
/// not be before its work has ended.
#[derive(Debug)]
pub(crate) struct Effect(());

/// A claim that is held until this is dropped.
pub(crate) trait Claimed: fmt::Debug + Send + Sync {}

#[derive(Debug, Default)]
struct State {
    phase: OperationPhase,
    cancelled: bool,
    progress: Progress,
    patience: Option<Duration>,
    outwaits: Option<Instant>,
    late: Option<ApiError>,
    moved: Moved,
    claim: Option<Arc<dyn Claimed>>,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Work(Mutex<State>);

impl Work {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock()
    }

    /// Sets how long a device may take to answer; without this call the work waits without limit.
    pub(crate) fn limit(&self, patience: Duration) {
        self.state().patience = Some(patience);
    }

    /// Returns how long a device may take to answer; `None` for no limit.
    pub(crate) fn patience(&self) -> Option<Duration> {
        self.state().patience
    }

    /// Makes the work wait until `end` for devices that another process uses.
    pub(crate) fn outwait(&self, end: Instant) {
        self.state().outwaits = Some(end);
    }

    /// Returns whether the work waits for devices that another process uses.
    pub(crate) fn outwaits(&self) -> bool {
        let state = self.state();
        !state.cancelled && state.outwaits.is_some_and(|end| Instant::now() < end)
    }

    /// Reports progress, in units of `unit`; `total` is 0 while it is unknown.
    pub(crate) fn report(&self, done: u64, total: u64, unit: Unit) {
        self.state().progress = Progress { done, total, unit };
    }

    /// Returns the progress.
    pub(crate) fn progress(&self) -> Progress {
        self.state().progress
    }

    /// Adds to the data that was moved or discarded.
    pub(crate) fn add(&self, more: Moved) {
        let moved = &mut self.state().moved;
        moved.written_back = moved.written_back.saturating_add(more.written_back);
        moved.discarded = moved.discarded.saturating_add(more.discarded);
    }

    /// Returns the data that was moved or discarded so far.
    pub(crate) fn moved(&self) -> Moved {
        self.state().moved
    }

    /// Keeps the claim on the devices of its volume until the operation has ended.
    pub(crate) fn hold(&self, claim: impl Claimed + 'static) {
        self.state().claim = Some(Arc::new(claim));
    }

    /// Returns the claim, for a thread that may outlast the operation.
    pub(crate) fn claim(&self) -> Option<Arc<dyn Claimed>> {
        self.state().claim.clone()
    }

    /// Ends the operation's own part of the claim.
    pub(crate) fn let_go(&self) {
        let claim = self.state().claim.take();
        // The claim is dropped after the lock has been released.
        drop(claim);
    }

    /// Requests the work to end. After the commit point, only a command that can be undone does so.
    pub(crate) fn cancel(&self) {
        self.state().cancelled = true;
    }

    /// Whether the work should end.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.state().cancelled
    }

    /// Must be called right before the first lasting effect, and may be called again before later
    /// ones with the same result.
    ///
    /// # Errors
    /// The work was cancelled or withdrawn; it ends without an effect.
    pub(crate) fn commit(&self) -> Result<Effect, Cancelled> {
        let mut state = self.state();
        match state.phase {
            _ if planted::has(PlantedBug::WithdrawnGoesOn) => {
                state.phase = OperationPhase::Committed
            }
            OperationPhase::Preparing if !state.cancelled => {
                state.phase = OperationPhase::Committed
            }
            OperationPhase::Preparing | OperationPhase::Withdrawn => return Err(Cancelled),
            OperationPhase::Committed => {}
        }
        Ok(Effect(()))
    }

    /// Returns the effect that the commit gave, if that point has been passed.
    pub(crate) fn committed(&self) -> Option<Effect> {
        (self.state().phase == OperationPhase::Committed).then_some(Effect(()))
    }

    /// Returns work on the same devices that may fail, be given up or continue without an effect on
    /// this work.
    pub(crate) fn beside(&self, patience: Duration) -> Arc<Work> {
        let claim = self.claim();
        Arc::new(Work(Mutex::new(State { claim, patience: Some(patience), ..State::default() })))
    }

    /// Ends the work without an effect. Returns false after the commit point, in which case the
    /// caller must wait for the end.
    pub(crate) fn withdraw(&self) -> bool {
        let mut state = self.state();
        if state.phase == OperationPhase::Committed {
            return planted::has(PlantedBug::CommittedIsGivenUp);
        }
        (state.phase, state.cancelled) = (OperationPhase::Withdrawn, true);
        true
    }

    /// Notes why the end of committed work takes long.
    pub(crate) fn is_late(&self, why: ApiError) {
        self.state().late = Some(why);
    }

    /// Records that the work waits for nothing any more.
    pub(crate) fn is_in_time(&self) {
        self.state().late = None;
    }

    /// Returns why the end of committed work takes long.
    pub(crate) fn late(&self) -> Option<ApiError> {
        self.state().late.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_of_commit_and_withdrawal_wins() {
        for _ in 0..2000 {
            let work = Arc::new(Work::default());
            let other = work.clone();
            let commits = forebay_threads::spawn("commits", move || other.commit().is_ok());
            let withdrawn = work.withdraw();
            let committed = commits.expect("a thread").join().expect("no panic");
            assert!(committed != withdrawn, "committed: {committed}, withdrawn: {withdrawn}");
            assert_eq!(work.commit().is_ok(), committed, "the answer stays");
            assert_eq!(work.withdraw(), withdrawn, "so does this one");
        }
    }

    #[test]
    fn cancelled_work_begins_no_effects_but_completes_begun_ones() {
        let work = Work::default();
        work.cancel();
        assert!(work.commit().is_err());
        let work = Work::default();
        assert!(work.commit().is_ok());
        work.cancel();
        assert!(work.commit().is_ok() && !work.withdraw() && work.is_cancelled());
    }
}
