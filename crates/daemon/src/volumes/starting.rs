//! Starts volumes again.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use forebay_admin::{ApiError, ErrorKind, OperationId, OperationState, StartRequest, VolumeName};
use forebay_threads::Instant;

use super::Volumes;
use crate::devices::is_missing;
use crate::host_api::{Copied, Count, Definition, StartError};
use crate::known::Facts;
use crate::operations::attempt;
use crate::planted::{self, PlantedBug};
use crate::preflight;
use crate::signals::StopRequest;
use crate::state::{Remembered, entry_of, not_found};
use crate::work::Work;

/// Time after which a device that does not answer no longer delays the start of other volumes or
/// the daemon's readiness.
const HUNG: Duration = Duration::from_secs(5);

/// Number of volumes that are started concurrently, not counting those whose devices do not answer.
const STARTING: usize = 16;

/// Time limit, after a hand-over, for a device that another process has taken meanwhile. Clients of
/// the volume do not wait longer.
const TAKEN: Duration = Duration::from_secs(60);

/// Interval at which the start of volumes is polled.
const STEP: Duration = Duration::from_millis(20);

/// The result of restarting the volumes that were served when the daemon ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Restored {
    /// Number of volumes that are served.
    pub(crate) served: usize,
    /// Number of volumes that wait for devices that do not answer.
    pub(crate) waiting: usize,
    /// Number of volumes that should be served.
    pub(crate) wanted: usize,
}

impl fmt::Display for Restored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} volumes served", self.served, self.wanted)?;
        match self.waiting {
            0 => Ok(()),
            waiting => write!(f, ", {waiting} waiting for devices that do not answer"),
        }
    }
}

impl Volumes {
    /// Starts the volumes that were served when the daemon ended, independently of each other:
    /// neither a failure nor a device that does not answer delays the others. Returns when every
    /// volume is served, has failed, or waits for a device that does not answer; such a volume
    /// starts when the device answers. A missing device has `patience` to appear before its volume
    /// is started.
    pub(crate) fn restore(self: &Arc<Self>, stop: &StopRequest, patience: Duration) -> Restored {
        self.settle_deletions();
        let begun_at = Instant::now();
        let until = begun_at + patience;
        let waiting = |entry: &Remembered| self.waiting().contains(&entry.volume.name);
        let volumes = self.state.volumes().into_iter();
        let mut pending: Vec<VolumeName> =
            volumes.filter(waiting).map(|entry| entry.volume.name).rev().collect();
        let all = pending.clone();
        let mut starting: Vec<(VolumeName, OperationId)> = Vec::new();
        while !stop.is_asked() {
            starting.retain(|(_, id)| {
                let operation = self.operations.wait(*id, Some(Duration::ZERO));
                operation.is_some_and(|operation| operation.state == OperationState::Running)
            });
            let hung = starting.iter().filter(|(name, _)| self.is_hung(name)).count();
            if pending.is_empty() && hung == starting.len() {
                break;
            }
            let mut absent = Vec::new();
            if Instant::now() < until {
                (absent, pending) = pending.into_iter().partition(|name| self.lacks_a_device(name));
            }
            let room = STARTING.saturating_sub(starting.len() - hung);
            for name in pending.split_off(pending.len() - room.min(pending.len())).into_iter().rev()
            {
                // An operator may have stopped, deleted or started it meanwhile.
                if !self.waiting().contains(&name) {
                    continue;
                }
                let begun = self.operate("start", &name, move |this, entry, work| {
                    let name = entry.volume.name.clone();
                    if this.programs.hand_overs > 0 {
                        work.outwait(begun_at + TAKEN);
                    }
                    let started = this.start_now(entry, StartRequest::default(), work);
                    this.waiting().remove(&name);
                    started
                });
                match begun {
                    Ok(id) => {
                        self.prefetch_after(id, &name);
                        starting.push((name, id));
                    }
                    Err(error) => {
                        self.waiting().remove(&name);
                        tracing::error!(volume = %name, "cannot be started: {error}");
                    }
                }
            }
            // The list is read from its end.
            absent.append(&mut pending);
            pending = absent;
            forebay_threads::sleep(STEP);
        }
        self.note_positions();
        let served = all.iter().filter(|name| self.is_served(name)).count();
        let waiting = starting.iter().filter(|(name, _)| self.is_hung(name)).count();
        Restored { served, waiting, wanted: all.len() }
    }

    /// Whether a device of a volume is missing.
    fn lacks_a_device(&self, name: &VolumeName) -> bool {
        self.state.volume(name).is_ok_and(|Remembered { volume, .. }| {
            is_missing(&volume.cache) || is_missing(&volume.origin)
        })
    }

    /// Returns whether a volume waits for a device that does not answer.
    pub(super) fn is_hung(&self, name: &VolumeName) -> bool {
        let report = self.host.report(name, Count::Known);
        let waits = report.and_then(|report| report.waiting_for);
        waits.is_some_and(|waits| waits.seconds >= HUNG.as_secs())
    }

    pub(super) fn start_now(
        &self,
        Remembered { mut volume, started, deleting, .. }: Remembered,
        how: StartRequest,
        work: &Arc<Work>,
    ) -> Result<(), ApiError> {
        let name = volume.name.clone();
        if self.is_served(&name) {
            return self.publish(&volume);
        }
        if self.state.known().is_behind(volume.uuid) && !how.force {
            // Refused here before the start waits for a device. The host checks again when it has
            // read the cache device.
            return Err(preflight::behind(&volume));
        }
        self.check_own_devices(&volume)?;
        if !started {
            // Store first: a start that cannot be stored is not begun.
            let stored = self.state.edit(&name, work, |entry| {
                entry.started = true;
                entry.volume.version += 1;
            })?;
            volume = stored.volume;
        }
        let result = attempt(|| self.host.start(&volume, how, work));
        self.waiting().remove(&name);
        match result {
            Ok(copied) => self.started(&volume, copied, how.force, work),
            Err(StartError::Unknown(_))
                if deleting && !planted::has(PlantedBug::DeletionNotCompleted) =>
            {
                tracing::info!(volume = %name, "its deletion had been completed");
                self.remove(&volume, work);
                Err(not_found(&name, &self.state.volumes()))
            }
            Err(error) => {
                let error = ApiError::from(error);
                self.note_failure(&name, Some(&error));
                self.tell_start_failed(&name, &error);
                if !started && !planted::has(PlantedBug::FailedStartStays) {
                    self.undo(work, |volumes| {
                        entry_of(volumes, &name)?.started = false;
                        Ok(())
                    });
                }
                Err(error)
            }
        }
    }

    /// Stores the results of a start, and lets clients see the volume.
    fn started(
        &self,
        volume: &Definition,
        copied: Copied,
        force: bool,
        work: &Work,
    ) -> Result<(), ApiError> {
        let name = &volume.name;
        let Remembered { volume: now, origin_bytes, .. } = self.remembered(volume.clone());
        let stored = self.state.complete(work, |volumes, known| {
            accept(copied, &now, volumes, known);
            let entry = entry_of(volumes, name)?;
            if planted::has(PlantedBug::WholeEntryStored) {
                entry.volume = volume.clone();
            }
            (entry.volume.uuid, entry.volume.cache_uuid) = (now.uuid, now.cache_uuid);
            entry.volume.origin_identity.clone_from(&now.origin_identity);
            (entry.origin_bytes, entry.deleting, entry.left) = (origin_bytes, false, None);
            Ok(())
        });
        match stored {
            // The volume was deleted with its dirty blocks while it waited for a device.
            Err(error) if error.kind == ErrorKind::NotFound => {
                if let Err(error) = self.host.delete(volume, true, &Arc::default()) {
                    tracing::error!(volume = %name, "cannot delete the volume that was deleted while it started: {error}");
                }
                return Err(error);
            }
            Err(error) if copied != Copied::Current => {
                // Stop the volume, because the next start would not know what the operator
                // accepted.
                if let Err(error) = self.host.stop(volume, true, &Arc::default()) {
                    tracing::error!(volume = %name, "cannot stop the volume that could not be stored: {error}");
                }
                self.undo(work, |volumes| {
                    entry_of(volumes, name)?.started = false;
                    Ok(())
                });
                return Err(error);
            }
            Err(error) => {
                tracing::warn!(volume = %name, "it is served, but the state cannot be written: {error}");
            }
            Ok(()) => {}
        }
        self.note_failure(name, None);
        self.tell_started(name, force);
        self.catch_up(&now.name, work);
        self.publish(&now)
    }
}

/// Records that a volume was started from this copy of its cache device. If it is an older copy,
/// each other volume of the cache needs its own force.
pub(super) fn accept(
    copied: Copied,
    volume: &Definition,
    volumes: &[Remembered],
    known: &mut Facts,
) {
    volume.uuid.map(|uuid| known.behind.remove(&uuid));
    let Copied::Older(cache) = copied else { return };
    known.caches.remove(&cache);
    // Volumes of a copy on another device are left out, although its cache has the same UUID.
    let concerned = volumes.iter().map(|entry| &entry.volume).filter(|other| {
        other.cache_uuid == Some(cache) && !preflight::elsewhere(&volume.cache, &other.cache)
    });
    for other in concerned {
        let Some(uuid) = other.uuid else { continue };
        known.caches.remove(&uuid);
        if other.name != volume.name {
            known.behind.insert(uuid);
        }
    }
}
