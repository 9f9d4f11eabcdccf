//! How the daemon ends: for good, or with the next program of its process going on with the volumes.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use forebay_admin::{ApiError, ErrorKind, Operation, OperationState, VolumeReport, VolumeState};

use super::ranges::is_fill;
use super::{PATIENCE, Volumes};
use crate::daemon::hand_over::{self, Items};
use crate::daemon::host_api::Count;
use crate::daemon::signals::{End, StopRequest};

/// The programs of this process, present, past and next.
#[derive(Default)]
pub(crate) struct Programs {
    /// How many there were before the present one.
    pub(crate) hand_overs: u64,
    /// Takes the request for the next one.
    pub(crate) end: Arc<StopRequest>,
    /// Whether all volumes have been started again that are to be.
    pub(crate) ready: AtomicBool,
}

impl Volumes {
    /// Notes that all volumes have been started again that are to be.
    pub(crate) fn note_ready(&self) {
        self.programs.ready.store(true, Ordering::Relaxed);
    }

    /// Asks for a hand-over to a program.
    ///
    /// # Errors
    /// The program cannot take over, the daemon is not ready, a device of a volume has failed or does not
    /// answer, an operation is in progress, or users of an export would get errors.
    pub(crate) fn ask_hand_over(&self, program: PathBuf) -> Result<(), ApiError> {
        let busy = |message: &str| Err(ApiError::new(ErrorKind::Busy, message));
        if !self.programs.ready.load(Ordering::Relaxed) {
            return busy("the daemon is still starting its volumes; try again");
        }
        if self.programs.end.is_asked() {
            return busy("the daemon is ending already");
        }
        // It would be cut off while its requests wait, and a device that hangs holds up the change of programs.
        let hangs = |report: &VolumeReport| {
            report.state == VolumeState::Degraded || self.is_hung(&report.name)
        };
        if let Some(report) = self.list(Count::Known).into_iter().find(hangs) {
            return busy(&format!(
                "a device of '{}' has failed or does not answer; mend it, or stop the volume first",
                report.name
            ));
        }
        let running = |operation: &Operation| {
            operation.state == OperationState::Running && !is_fill(&operation.verb)
        };
        if let Some(operation) = self.operations.list().into_iter().find(running) {
            return busy(&format!(
                "'{}' of '{}' is in progress; try again when it has ended",
                operation.verb, operation.volume
            ));
        }
        self.check_hand_over()?;
        hand_over::check(&program)?;
        tracing::info!(program = %program.display(), "handing over");
        if self.programs.end.ask(End::HandOver(program)) {
            Ok(())
        } else {
            busy("the daemon is ending already")
        }
    }

    /// Stops serving and closes the caches, so that another program can go on; returns what it goes on
    /// with. What did not stop in order is logged, and recovered by the next program as after a crash.
    pub(crate) fn hand_over(&self) -> Items {
        self.operations.close();
        if !self.operations.wait_all(PATIENCE) {
            tracing::error!("a cancelled operation did not end in time");
        }
        let items = self.host.hand_over();
        self.note_positions();
        items
    }

    /// Cancels all operations, then stops serving in order.
    ///
    /// # Errors
    /// Something did not stop cleanly.
    pub(crate) fn shut_down(&self) -> Result<(), ApiError> {
        self.operations.close();
        let quiet = self.operations.wait_all(PATIENCE);
        self.leave_all();
        let ended = self.host.shut_down();
        self.note_positions();
        ended?;
        if !quiet {
            return Err(ApiError::failed("a cancelled operation did not end in time"));
        }
        Ok(())
    }
}
