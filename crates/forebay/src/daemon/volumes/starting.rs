//! Starts volumes again.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_admin::{ApiError, ErrorKind, OperationId, OperationState, StartRequest, VolumeName};

use super::Volumes;
use crate::daemon::host_api::{Count, StartError};
use crate::daemon::operations::Work;
use crate::daemon::preflight;
use crate::daemon::signals::StopRequest;
use crate::daemon::state::{Remembered, not_found, put};
use crate::devices::is_missing;

/// After this time, a device that does not answer no longer delays the start of other volumes or
/// the daemon's readiness.
const HUNG: Duration = Duration::from_secs(5);

/// Volumes started concurrently, not counting those whose devices do not answer.
const STARTING: usize = 16;

/// How often the start of volumes is polled.
const STEP: Duration = Duration::from_millis(20);

/// Result of restarting the volumes that were served when the daemon ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Restored {
    /// Volumes that are served.
    pub(crate) served: usize,
    /// Volumes that wait for devices that do not answer.
    pub(crate) waiting: usize,
    /// All volumes that should be served.
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
    /// Starts the volumes that were served when the daemon ended, each independently: neither a
    /// failure nor a device that does not answer delays the others. Returns when every volume is
    /// served, has failed, or waits for a device that does not answer; such a volume starts when
    /// the device answers. A device that is missing has `patience` to appear before its volume is
    /// started.
    pub(crate) fn restore(self: &Arc<Self>, stop: &StopRequest, patience: Duration) -> Restored {
        let until = Instant::now() + patience;
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
                let begun = self.operate("start", &name, |this, entry, work| {
                    let name = entry.volume.name.clone();
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
            std::thread::sleep(STEP);
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

    /// Whether a volume waits for a device that does not answer.
    pub(super) fn is_hung(&self, name: &VolumeName) -> bool {
        let report = self.host.report(name, Count::Known);
        let waits = report.and_then(|report| report.waiting_for);
        waits.is_some_and(|waits| waits.seconds >= HUNG.as_secs())
    }

    pub(super) fn start_now(
        &self,
        mut entry: Remembered,
        how: StartRequest,
        work: &Arc<Work>,
    ) -> Result<(), ApiError> {
        let (name, force) = (entry.volume.name.clone(), how.force);
        if self.is_served(&name) {
            return self.publish(&entry.volume);
        }
        if entry.behind && !force {
            let message = format!(
                "the cache device {} is an older copy, which was accepted for another volume; accept it for '{name}' too with 'forebay start --force {name}'",
                entry.volume.cache
            );
            return Err(ApiError::new(ErrorKind::DataAtRisk, message));
        }
        self.check_own_devices(&entry.volume)?;
        let by_hand = !entry.started;
        if by_hand {
            // Stored first: a start that cannot be stored is not begun.
            entry.started = true;
            entry.volume.version += 1;
            self.state.put(entry.clone())?;
        }
        let started = self.accepting_older(force, &name, &entry.volume.cache, &mut || {
            self.host.start(&entry.volume, how, work)
        });
        self.waiting().remove(&name);
        match started {
            Ok(()) => {
                self.note_failure(&name, None);
                self.tell_started(&name, force);
                let entry = self.remembered(entry.volume.clone());
                let exported = self.publish(&entry.volume);
                if self.state.volume(&name)? != entry
                    && let Err(error) = self.state.put(entry)
                {
                    tracing::warn!(volume = %name, "it is served, but the state cannot be written: {error}");
                }
                exported
            }
            Err(StartError::Unknown(_)) if entry.deleting => {
                tracing::info!(volume = %name, "its deletion had been completed");
                self.remove(&entry.volume);
                Err(not_found(&name))
            }
            Err(error) => {
                let error = ApiError::from(error);
                self.note_failure(&name, Some(&error));
                self.tell_start_failed(&name, &error);
                if by_hand {
                    entry.started = false;
                    self.undo(|volumes| put(volumes, entry));
                }
                Err(error)
            }
        }
    }

    /// Starts a volume. With `force` an older copy of its cache device is accepted, for this volume
    /// only; the cache's other volumes each need a `force` of their own.
    pub(super) fn accepting_older(
        &self,
        force: bool,
        name: &VolumeName,
        device: &str,
        start: &mut dyn FnMut() -> Result<(), StartError>,
    ) -> Result<(), StartError> {
        match start() {
            Err(StartError::Older { cache, error }) if force => {
                tracing::warn!(volume = %name, "accepted because of --force: {error}");
                // Before it is opened: from then on it looks like a current one.
                self.state.change(|volumes, known| {
                    known.caches.remove(&cache);
                    // Not those of a copy on another device, which has the same UUID.
                    let concerned = volumes.iter_mut().filter(|entry| {
                        entry.volume.cache_uuid == Some(cache)
                            && !preflight::elsewhere(device, &entry.volume.cache)
                    });
                    for entry in concerned {
                        entry.volume.uuid.map(|uuid| known.caches.remove(&uuid));
                        entry.behind |= entry.volume.name != *name;
                    }
                })?;
                start()
            }
            result => result,
        }
    }
}
