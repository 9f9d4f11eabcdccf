//! The end of the daemon: for good, or with the next program of its process serving the volumes.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use forebay_admin::{ApiError, ErrorKind, VolumeReport, VolumeState};
use forebay_threads::sync_channel;

use super::ranges::is_fill;
use super::{PATIENCE, Volumes};
use crate::hand_over::{self, Items};
use crate::host_api::{Count, not_found_next};
use crate::planted::{self, PlantedBug};
use crate::raw_names::RawNames;
use crate::signals::{EndRequest, StopRequest};

/// Time limit at the end of the daemon for its state directory.
const NOTE_PATIENCE: Duration = Duration::from_secs(5);

/// The programs of this process, present, past and next.
#[derive(Default)]
pub(crate) struct Programs {
    /// Number of programs before the present one.
    pub(crate) hand_overs: u64,
    /// Receives the request for the next program.
    pub(crate) end: Arc<StopRequest>,
    /// Whether all volumes that should be served have been started again.
    pub(crate) ready: AtomicBool,
    /// The names of exports of this program that are no volumes.
    pub(crate) raw_names: RawNames,
}

impl Programs {
    /// Returns the present program, which has `hand_overs` predecessors; `end` receives the request
    /// for the next one.
    pub(crate) fn new(hand_overs: u64, end: &Arc<StopRequest>, raw_names: RawNames) -> Self {
        Programs { hand_overs, end: end.clone(), raw_names, ..Programs::default() }
    }
}

impl Volumes {
    /// Records that all volumes that should be served have been started again.
    pub(crate) fn note_ready(&self) {
        self.programs.ready.store(true, Ordering::Relaxed);
    }

    /// Waits until the volumes have been started, or the daemon is to end.
    pub(crate) fn wait_until_ready(&self) {
        while !self.programs.ready.load(Ordering::Relaxed) && !self.programs.end.is_asked() {
            forebay_threads::sleep(Duration::from_millis(20));
        }
    }

    /// Requests a hand-over to a program. First writes down data that exists only in RAM, which may
    /// take long.
    ///
    /// # Errors
    /// The program cannot take over, the daemon is not ready, a device of a volume has failed or
    /// does not answer, an operation is in progress, or users of an export would get errors.
    /// Everything is served as before.
    pub(crate) fn ask_hand_over(&self, program: PathBuf) -> Result<(), ApiError> {
        let check = || hand_over::check(&program);
        self.begin_hand_over(program.clone(), check)
    }

    /// Requests a hand-over like [`Volumes::ask_hand_over`], with another check of the program.
    ///
    /// # Errors
    /// See [`Volumes::ask_hand_over`].
    pub(crate) fn begin_hand_over(
        &self,
        program: PathBuf,
        check: impl FnOnce() -> Result<(), ApiError>,
    ) -> Result<(), ApiError> {
        let busy = |message: &str| Err(ApiError::new(ErrorKind::Busy, message));
        let end = &self.programs.end;
        if !self.programs.ready.load(Ordering::Relaxed) {
            return busy("the daemon is still starting its volumes; try again");
        }
        if end.is_asked() {
            return busy("the daemon is ending already");
        }
        self.check_devices()?;
        // An operation that begins later could defer writes again, or be cut off.
        let hold = self.operations.hold(is_fill)?;
        self.check_hand_over()?;
        check()?;
        let begin = || {
            self.check_devices()?;
            tracing::info!(program = %program.display(), "handing over");
            if end.ask(EndRequest::HandOver(program.clone())) {
                Ok(())
            } else {
                busy("the daemon is ending already")
            }
        };
        self.host.prepare_hand_over(&|| !end.is_asked(), &begin)?;
        // The program may take a moment to notice that it is to end.
        hold.keep();
        Ok(())
    }

    /// Checks that the devices of all volumes answer. A volume whose device does not answer would
    /// be cut off while its requests wait, and would delay the change of programs.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`], or [`ErrorKind::DataAtRisk`] if the path of a device leads elsewhere.
    fn check_devices(&self) -> Result<(), ApiError> {
        self.host.look_at_paths();
        let hangs = |report: &VolumeReport| {
            report.state == VolumeState::Degraded || self.is_hung(&report.name)
        };
        let Some(report) = self.list(Count::Known).into_iter().find(hangs) else { return Ok(()) };
        if let Some(displaced) = report.origin.displaced.or(report.cache.displaced) {
            return Err(not_found_next(&displaced.message));
        }
        let message = format!(
            "a device of '{}' has failed or does not answer; mend it, or stop the volume first",
            report.name
        );
        Err(ApiError::new(ErrorKind::Busy, message))
    }

    /// Stops serving and closes the caches for another program; returns the items that it takes
    /// over. Volumes that did not stop in order are logged, and the next program recovers them as
    /// after a crash. Without items the daemon must stop instead: a stop was requested, and
    /// everything is closed already.
    pub(crate) fn hand_over(self: &Arc<Self>) -> (Option<Items>, Result<(), ApiError>) {
        self.operations.close();
        let quiet = self.operations.wait_all(PATIENCE);
        if !quiet {
            tracing::error!("a cancelled operation did not end in time");
        }
        let (items, closed) = self.host.hand_over(&|| !self.programs.end.is_stop());
        let noted = self.note_positions_in_time();
        (items, closed.and(noted).and(ended_in_time(quiet)))
    }

    /// Returns the lock of the state directory, for the next program of this process.
    ///
    /// # Errors
    /// The limit of descriptors is reached.
    pub(crate) fn state_lock(&self) -> std::io::Result<OwnedFd> {
        self.state.lock()
    }

    /// Ends the exports after a hand-over that became a stop.
    pub(crate) fn stop_instead(&self) {
        self.leave_all();
        self.front_ends.iter().for_each(|front_end| front_end.release());
    }

    /// Cancels all operations, then stops serving in order.
    ///
    /// # Errors
    /// Something did not stop cleanly.
    pub(crate) fn shut_down(self: &Arc<Self>) -> Result<(), ApiError> {
        self.operations.close();
        let quiet = self.operations.wait_all(PATIENCE);
        self.leave_all();
        if planted::has(PlantedBug::EndStoresStopped) {
            self.undo(&crate::work::Work::default(), |volumes| {
                volumes.iter_mut().for_each(|entry| entry.started = false);
                Ok(())
            });
        }
        let ended = match planted::has(PlantedBug::EndStopsNothing) {
            true => Ok(()),
            false => self.host.shut_down(),
        };
        let noted = self.note_positions_in_time();
        ended.and(noted).and(ended_in_time(quiet))
    }

    /// Stores the positions of the caches, unless the state directory does not answer.
    fn note_positions_in_time(self: &Arc<Self>) -> Result<(), ApiError> {
        let (this, (done, ended)) = (self.clone(), sync_channel::<()>(1));
        let spawned = forebay_threads::spawn("positions", move || {
            this.note_positions();
            drop(this);
            let _ = done.send(());
        });
        spawned.map_err(|error| ApiError::failed(format!("no thread: {error}")))?;
        ended.recv_timeout(NOTE_PATIENCE).map_err(|_| {
            let dir = self.state.dir().display();
            ApiError::failed(format!(
                "the state directory {dir} does not answer; the last changes of the state were not written"
            ))
        })
    }
}

fn ended_in_time(quiet: bool) -> Result<(), ApiError> {
    match quiet {
        true => Ok(()),
        false => Err(ApiError::failed("a cancelled operation did not end in time")),
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::state::State;
    use crate::testing::{FakeFrontEnd, FakeHost};
    use forebay_testkit::TempDir;

    /// Returns volumes that are ready, and a program that reports that it can take over.
    fn ready(dir: &TempDir, host: &Arc<FakeHost>) -> (Arc<Volumes>, PathBuf) {
        let state = State::open(&dir.path().join("state")).expect("free");
        let front_end = Arc::new(FakeFrontEnd);
        let volumes = Volumes::new(host.clone(), state, vec![front_end], Programs::default());
        volumes.note_ready();
        let program = dir.path().join("program");
        // Written by another process, because a file that this process or a child of it has open
        // for writing cannot be executed.
        let write = r"printf '#!/bin/sh\necho %d\n' $1 >$0 && chmod 700 $0";
        let version = hand_over::VERSION.to_string();
        let written = Command::new("sh").args(["-c", write]).arg(&program).arg(version).status();
        assert!(written.expect("there is a shell").success());
        (volumes, program)
    }

    #[test]
    fn data_in_ram_is_written_down_before_a_hand_over_is_requested() {
        let (dir, host) = (TempDir::new("programs"), Arc::new(FakeHost::default()));
        let (volumes, program) = ready(&dir, &host);
        let failing = |what: &[&str]| {
            *host.failing.lock() = what.iter().map(|what| (*what).to_owned()).collect();
        };
        failing(&["prepare hand over"]);
        volumes.ask_hand_over(program.clone()).expect_err("told to fail");
        assert!(!volumes.programs.end.is_asked(), "everything is served as before");
        let free = volumes.operations.hold(|_| false);
        assert!(free.is_ok(), "operations are possible again");
        drop(free);
        failing(&[]);
        let (own, seen) = (volumes.clone(), Arc::new(AtomicBool::new(false)));
        let noted = seen.clone();
        let hook = move |_: &str| {
            let early = own.programs.end.is_asked();
            let started = own.operations.start("set", &"a".parse().expect("valid"), |_| Ok(()));
            let refused = started.is_err_and(|error| error.kind == ErrorKind::Busy);
            noted.store(refused && !early, Ordering::Relaxed);
        };
        *host.hook.lock() = Some(Box::new(hook));
        volumes.ask_hand_over(program.clone()).expect("nothing fails");
        assert!(seen.load(Ordering::Relaxed), "no operation may begin meanwhile");
        let asked = volumes.programs.end.wait_for(std::time::Duration::ZERO);
        assert_eq!(asked, Some(EndRequest::HandOver(program)));
        let late = volumes.operations.start("set", &"a".parse().expect("valid"), |_| Ok(()));
        assert!(late.is_err_and(|error| error.kind == ErrorKind::Busy), "it would be cut off");
        *host.hook.lock() = None;
    }

    #[test]
    fn a_stop_during_a_hand_over_hands_nothing_over() {
        for fails in [false, true] {
            let (dir, host) = (TempDir::new("programs"), Arc::new(FakeHost::default()));
            let (volumes, program) = ready(&dir, &host);
            if fails {
                host.failing.lock().push("hand over".to_owned());
            }
            volumes.ask_hand_over(program).expect("nothing fails");
            assert!(volumes.programs.end.ask(EndRequest::Stop));
            let (items, closed) = volumes.hand_over();
            assert!(items.is_none());
            assert_eq!(closed.is_err(), fails);
        }
    }
}
