//! Writes down data that exists only in RAM before the program ends or hands over: deferred writes,
//! and caches in RAM.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use forebay_admin::{ApiError, ErrorKind, VolumeName};
use forebay_threads::{Instant, JoinHandle};

use super::report::ServedVolume;
use super::{CLOSE_PATIENCE, EngineHost};
use crate::host_api::Definition;
use crate::work::Work;

/// Interval at which the progress of a drain is checked. At the end of the program nothing is
/// served meanwhile.
const STEP: Duration = Duration::from_millis(10);

/// Time limit for a cancelled drain to end.
const GIVING_UP: Duration = Duration::from_secs(1);

/// Time for which a stopped volume may still use its cache; after that, a hand-over is refused
/// because of it.
const LINGERING: Duration = Duration::from_millis(500);

/// Pause before an incomplete drain is continued.
const AGAIN: Duration = Duration::from_millis(100);

/// Why drains are made.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Occasion {
    /// A hand-over that may still be refused: clients are served meanwhile.
    HandOver,
    /// The end of the program: deferred data that is not written down is lost.
    End,
}

/// The drain of one volume, on a separate thread.
struct Drain {
    volume: Definition,
    running: ServedVolume,
    work: Arc<Work>,
    thread: JoinHandle<Result<(), ApiError>>,
    /// The smallest remaining amount so far, and the largest written amount, in bytes.
    best: (u64, u64),
    /// The time at which these last changed.
    since: Instant,
}

impl Drain {
    /// Returns whether there was progress since the last call.
    fn advances(&mut self, host: &EngineHost) -> bool {
        let (left, taken) = host.left_and_taken(&self.volume.name, &self.running);
        let (least, most) = self.best;
        if left >= least && taken <= most {
            return false;
        }
        (self.best, self.since) = ((left.min(least), taken.max(most)), Instant::now());
        true
    }

    /// Returns whether the drain has ended or must be abandoned.
    fn is_over(&self) -> bool {
        self.thread.is_finished() || self.since.elapsed() >= CLOSE_PATIENCE + GIVING_UP
    }

    fn end(self) -> Result<(), ApiError> {
        let silent = self.since.elapsed() >= CLOSE_PATIENCE;
        match self.thread.is_finished().then(|| self.thread.join()) {
            Some(Ok(drained)) if drained.is_ok() || !silent => drained,
            Some(Err(_)) => Err(ApiError::failed("the drain has failed; see the log")),
            _ => Err(ApiError::failed(format!(
                "the origin {} of '{}' or its cache device has taken nothing for {} s",
                self.volume.origin,
                self.volume.name,
                CLOSE_PATIENCE.as_secs()
            ))),
        }
    }
}

impl EngineHost {
    /// See [`crate::host_api::Closing::prepare_hand_over`].
    pub(super) fn prepare_all(
        self: &Arc<Self>,
        goes_on: &dyn Fn() -> bool,
        begin: &dyn Fn() -> Result<(), ApiError>,
    ) -> Result<(), ApiError> {
        // The clients of a lane that does not answer could not be handed over.
        self.lanes.pulse(LINGERING * 4).map_err(|error| {
            let message = format!("{error}; try again, or restart the daemon instead");
            ApiError::new(ErrorKind::Busy, message)
        })?;
        self.check_quiet()?;
        self.check_paths_of_all()?;
        let drained = self.drain_all(Occasion::HandOver, goes_on);
        let refused = |(name, error): (VolumeName, ApiError)| {
            let message = format!(
                "nothing is handed over, because data of '{name}' is in RAM alone and cannot be written down: {error}; mend the device, or stop the volume first"
            );
            ApiError::new(ErrorKind::Busy, message)
        };
        let begun = match drained.into_iter().next() {
            Some(first) => Err(refused(first)),
            None => begin(),
        };
        // A program that ends need not defer writes again.
        if begun.is_err() && goes_on() {
            for (volume, running) in self.served.all() {
                self.defer_again(&volume.name, &running.volume.settings());
            }
        }
        begun
    }

    /// Checks that no operation that was given up is still running: the next program could not open
    /// the devices for which it waits.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`].
    fn check_quiet(&self) -> Result<(), ApiError> {
        let end = Instant::now() + LINGERING;
        loop {
            let waits = self.served.unsettled();
            let left = self.caches.places().iter().any(|it| it.is_lingering() || it.is_used());
            if waits.is_none() && !left {
                return Ok(());
            }
            if Instant::now() >= end {
                let whose = waits.map_or_else(
                    || "a volume that was stopped".to_owned(),
                    |name| format!("an operation on '{name}' that was given up"),
                );
                let message = format!(
                    "{whose} still waits for a device that does not answer; try again when it does, or restart the daemon instead"
                );
                return Err(ApiError::new(ErrorKind::Busy, message));
            }
            forebay_threads::sleep(STEP);
        }
    }

    /// Drains everything at the end of the program; returns the volumes that lose data, each with
    /// its error. There is no time limit as long as the devices accept data.
    pub(super) fn drain_ram(self: &Arc<Self>) -> BTreeMap<VolumeName, ApiError> {
        let lost = self.drain_all(Occasion::End, &|| true);
        for (name, error) in &lost {
            let running = self.served.get(name).ok();
            let bytes = running.map_or(0, |running| self.left_and_taken(name, &running).0);
            tracing::error!(volume = %name, bytes, "dirty blocks in RAM are lost: {error}");
        }
        lost
    }

    /// Disables deferral, and writes down data that exists only in RAM: all volumes at once, each
    /// until it is done, has made no progress for [`CLOSE_PATIENCE`], or `goes_on` returns false.
    /// Returns the errors.
    fn drain_all(
        self: &Arc<Self>,
        occasion: Occasion,
        goes_on: &dyn Fn() -> bool,
    ) -> BTreeMap<VolumeName, ApiError> {
        let served = self.served.all();
        // Disable deferral first, so that later writes reach the lower tier before the volume
        // stops.
        for ram in served.iter().filter_map(|(volume, _)| self.served.ram.get(&volume.name)) {
            ram.tier().defer_writes(None);
        }
        let (mut failed, mut drains) = (BTreeMap::new(), Vec::new());
        for (volume, running) in served {
            if !running.is_lost_with_program() && !self.has_deferred(&volume.name) {
                continue;
            }
            match self.begin_drain(volume.clone(), running, occasion) {
                Ok(drain) => drains.push(drain),
                Err(error) => _ = failed.insert(volume.name, error),
            }
        }
        while drains.iter().any(|drain| !drain.is_over()) {
            let mut advances = false;
            for drain in &mut drains {
                advances |= drain.advances(self);
                if drain.since.elapsed() >= CLOSE_PATIENCE || !goes_on() {
                    drain.work.cancel();
                }
            }
            if advances && occasion == Occasion::End {
                self.ending.advances();
            }
            forebay_threads::sleep(STEP);
        }
        let ended = drains.into_iter().map(|drain| (drain.volume.name.clone(), drain.end()));
        failed.extend(ended.filter_map(|(name, ended)| Some((name, ended.err()?))));
        failed
    }

    fn begin_drain(
        self: &Arc<Self>,
        volume: Definition,
        running: ServedVolume,
        occasion: Occasion,
    ) -> Result<Drain, ApiError> {
        let (host, name, work) = (self.clone(), volume.name.clone(), Arc::new(Work::default()));
        let (own, volatile) = (work.clone(), running.is_lost_with_program());
        let drain = move || match occasion {
            Occasion::HandOver => {
                host.write_down(&name, &own)?;
                if volatile { host.drain_now(&name, &own) } else { Ok(()) }
            }
            Occasion::End => host.drain_to_the_end(&name, volatile, &own),
        };
        let thread = forebay_threads::spawn("drain", drain);
        let thread = thread.map_err(|error| ApiError::failed(format!("no thread: {error}")))?;
        let best = self.left_and_taken(&volume.name, &running);
        Ok(Drain { volume, running, work, thread, best, since: Instant::now() })
    }

    /// Writes down until nothing is left, because requests that were in progress may have added
    /// data.
    fn drain_to_the_end(
        self: &Arc<Self>,
        name: &VolumeName,
        volatile: bool,
        work: &Arc<Work>,
    ) -> Result<(), ApiError> {
        loop {
            self.write_down_patiently(name, work)?;
            if volatile {
                self.drain_now(name, work)?;
            }
            if !self.has_only_in_ram(name) {
                return Ok(());
            }
            if work.is_cancelled() {
                return Err(ApiError::new(ErrorKind::Cancelled, "cancelled"));
            }
            forebay_threads::sleep(AGAIN);
        }
    }

    fn has_deferred(&self, name: &VolumeName) -> bool {
        self.served.ram.get(name).is_some_and(|ram| ram.tier().has_deferred())
    }

    /// Returns whether a volume has data that is lost with the program.
    pub(super) fn has_only_in_ram(&self, name: &VolumeName) -> bool {
        let dirty_in_ram = |running: ServedVolume| {
            running.is_lost_with_program() && running.volume.dirty_blocks() > 0
        };
        self.has_deferred(name) || self.served.get(name).is_ok_and(dirty_in_ram)
    }

    /// Returns the number of bytes that a volume has only in RAM, and the number written down so
    /// far.
    fn left_and_taken(&self, name: &VolumeName, running: &ServedVolume) -> (u64, u64) {
        let (volume, block) = (&running.volume, running.block_bytes());
        let (deferred, written) = self.served.ram.get(name).map_or((0, 0), |ram| {
            (ram.tier().deferred_bytes(), ram.tier().counts().written_down_bytes)
        });
        let dirty = if running.is_lost_with_program() { volume.dirty_blocks() * block } else { 0 };
        (deferred + dirty, written + volume.stats.totals().written_back_blocks * block)
    }
}
