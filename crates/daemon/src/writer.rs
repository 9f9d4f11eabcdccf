//! Turns of writers of the state, and the time limit of commands for a directory that does not
//! answer.
//!
//! A command that waits for its turn has changed nothing, so it can be withdrawn, and fails. A
//! write that has begun cannot be withdrawn, so its command is reported as in progress, and
//! continues when the directory answers.

use std::path::PathBuf;
use std::time::Duration;

use forebay_admin::{ApiError, ErrorKind};
use forebay_threads::{Condvar, Instant, Mutex, sync_channel};

use super::work::Work;

/// Time limit of a command for the directory; after it the command reports that the directory does
/// not answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// Time limit of a cancelled command for a write to end by itself.
const GIVING_UP: Duration = Duration::from_secs(1);

/// Interval at which a waiting command checks whether to give up.
const STEP: Duration = Duration::from_millis(25);

/// Whether a change of the state may be left out if its command is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChangeStage {
    /// Yes, unless the command has committed.
    Begins,
    /// No, because the change completes a lasting change, or undoes one.
    Ends,
}

/// The turns of the writers of the state.
pub(crate) struct StateWriter {
    dir: PathBuf,
    taken: Mutex<bool>,
    free: Condvar,
}

/// The right to write the state, until it is dropped.
pub(crate) struct Turn<'a>(&'a StateWriter);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        *self.0.taken.lock() = false;
        self.0.free.notify_all();
    }
}

impl StateWriter {
    /// Creates a writer that is free. `dir`: the directory, for messages.
    pub(crate) fn new(dir: PathBuf) -> Self {
        StateWriter { dir, taken: Mutex::new(false), free: Condvar::new() }
    }

    fn silent(&self) -> String {
        format!("the state directory {} does not answer", self.dir.display())
    }

    /// Waits for the turn.
    ///
    /// # Errors
    /// The command was cancelled or has waited too long, and was withdrawn: it has changed nothing.
    pub(crate) fn turn(&self, work: &Work, change: ChangeStage) -> Result<Turn<'_>, ApiError> {
        let since = Instant::now();
        let mut taken = self.taken.lock();
        while *taken {
            let is_long = since.elapsed() >= PATIENCE;
            if work.is_cancelled() || is_long {
                if change == ChangeStage::Begins && work.withdraw() {
                    return Err(match is_long {
                        true => ApiError::failed(format!("{}; nothing was changed", self.silent())),
                        false => {
                            let message = format!("cancelled while {}", self.silent());
                            ApiError::new(ErrorKind::Cancelled, message)
                        }
                    });
                }
                self.note_late(work);
            }
            taken = self.free.wait_timeout(taken, STEP).0;
        }
        *taken = true;
        work.is_in_time();
        Ok(Turn(self))
    }

    fn note_late(&self, work: &Work) {
        let message = format!(
            "{}: the command has begun, and is completed or taken back when it answers",
            self.silent()
        );
        work.is_late(ApiError::new(ErrorKind::UnderWay, message));
    }
}

impl Turn<'_> {
    /// Runs `write` on a separate thread, and waits for its end.
    pub(crate) fn run<T: Send + 'static>(
        &self,
        work: &Work,
        write: impl Fn() -> T + Clone + Send + 'static,
    ) -> T {
        let (tell, told) = sync_channel(1);
        let own = write.clone();
        let spawned = forebay_threads::spawn("state", move || drop(tell.send(own())));
        if spawned.is_err() {
            return write();
        }
        let since = Instant::now();
        let mut cancelled: Option<Instant> = None;
        loop {
            match told.recv_timeout(STEP) {
                Ok(result) => {
                    work.is_in_time();
                    return result;
                }
                // The thread has panicked.
                Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => return write(),
                Err(std::sync::mpsc::RecvTimeoutError::Timeout) => {}
            }
            let asked = work.is_cancelled()
                && cancelled.get_or_insert_with(Instant::now).elapsed() >= GIVING_UP;
            if asked || since.elapsed() >= PATIENCE {
                self.0.note_late(work);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    /// Returns a writer whose turn is taken until the sender is dropped.
    fn taken() -> (Arc<StateWriter>, forebay_threads::SyncSender<()>) {
        let writer = Arc::new(StateWriter::new("/state".into()));
        let (end, ends) = sync_channel::<()>(1);
        let (tell, told) = sync_channel(1);
        let own = writer.clone();
        let thread = forebay_threads::spawn("other", move || {
            let turn = own.turn(&Work::default(), ChangeStage::Begins).expect("free");
            let _ = tell.send(());
            turn.run(&Work::default(), || ());
            let _ = ends.recv();
        });
        drop(thread.expect("a thread"));
        told.recv().expect("it has its turn");
        (writer, end)
    }

    #[test]
    fn cancelling_withdraws_a_command_that_waits_for_its_turn() {
        let (writer, end) = taken();
        let work = Arc::new(Work::default());
        let cancels = work.clone();
        let thread = forebay_threads::spawn("cancels", move || cancels.cancel());
        let error = writer.turn(&work, ChangeStage::Begins).err().expect("cancelled");
        drop(thread.expect("a thread"));
        assert_eq!(error.kind, ErrorKind::Cancelled);
        assert!(error.message.contains("/state does not answer"), "{error}");
        assert!(work.commit().is_err(), "it has no effect any more");
        drop(end);
        drop(writer.turn(&Work::default(), ChangeStage::Begins).expect("free again"));
    }

    #[test]
    fn a_write_that_has_begun_or_reverts_is_late_and_continues() {
        for (committed, change) in [(true, ChangeStage::Begins), (false, ChangeStage::Ends)] {
            let (writer, end) = taken();
            let work = Arc::new(Work::default());
            assert!(!committed || work.commit().is_ok());
            work.cancel();
            let own = work.clone();
            let waits = forebay_threads::spawn("waits", move || {
                let turn = writer.turn(&own, change).expect("it waits");
                turn.run(&own, || 7)
            });
            while work.late().is_none() {
                forebay_threads::yield_now();
            }
            assert_eq!(work.late().map(|late| late.kind), Some(ErrorKind::UnderWay));
            drop(end);
            assert_eq!(waits.expect("a thread").join().ok(), Some(7));
            assert!(work.late().is_none(), "it waits for nothing any more");
        }
    }

    #[test]
    fn a_slow_write_marks_a_cancelled_command_late_until_it_ends() {
        let writer = StateWriter::new("/state".into());
        let work = Arc::new(Work::default());
        work.cancel();
        let turn = writer.turn(&work, ChangeStage::Begins).expect("free");
        let told = work.clone();
        let result = turn.run(&work, move || {
            while told.late().is_none() {
                forebay_threads::yield_now();
            }
            told.late().map(|late| late.kind)
        });
        assert_eq!((result, work.late().is_some()), (Some(ErrorKind::UnderWay), false));
    }
}
