//! Devices to which their paths do not lead for a while, because they were moved, replaced or
//! removed: requests continue, and nothing may be reported as safe under such a path (invariants 20
//! and 36). The operator restores the path of each device at some time, at the latest when the
//! system is down.

use std::time::Duration;

use forebay_core::{Caching, Nanos};
use forebay_device::{Displaced, DisplacedKind};
use forebay_engine::{EngineError, EngineErrorKind};

use crate::disk::SimDisk;
use crate::features::Feature;
use crate::oracle::plain;
use crate::schedule::StopReason;
use crate::stamp::SectorAddress;
use crate::system::Admin;
use crate::violation::Violation;
use crate::world::World;

/// Average number of steps until a device loses its path: during a round, and during a stop.
const DURING_A_ROUND: u32 = 2_000;
const DURING_A_STOP: u32 = 100;

const KINDS: [DisplacedKind; 3] =
    [DisplacedKind::Moved, DisplacedKind::Replaced, DisplacedKind::Removed];

const APART: &str = "the path of a device leads elsewhere";

/// Returns the error of an action that is refused because a path does not lead to its device.
pub(crate) fn apart() -> EngineError {
    EngineError::new(EngineErrorKind::DataAtRisk, APART)
}

/// Returns whether an action was refused because a path does not lead to its device.
fn is_apart(result: &Result<(), EngineError>) -> bool {
    result.as_ref().is_err_and(|error| error.message == APART)
}

/// The periods in which the paths of devices led elsewhere.
pub(crate) struct Displacements {
    rng: fastrand::Rng,
    /// The beginning of the latest such period, and its past or future end, for the cache device
    /// and each origin.
    times: Vec<(Nanos, Nanos)>,
}

impl Displacements {
    pub(crate) fn new(seed: u64, disks: usize) -> Self {
        let rng = fastrand::Rng::with_seed(seed ^ 0xd15b);
        Displacements { rng, times: vec![Default::default(); disks] }
    }
}

impl SimDisk {
    /// Returns how the path has come apart from the disk.
    pub(crate) fn displaced(&self) -> Option<Displaced> {
        let kind = self.state.lock().displaced?;
        let what = "was taken away by the simulator".to_owned();
        Some(Displaced { kind, what, readable_at: self.name.to_string().into() })
    }

    fn displace(&self, kind: Option<DisplacedKind>) {
        self.state.lock().displaced = kind;
    }
}

impl World<'_> {
    fn disk(&self, number: usize) -> &SimDisk {
        number.checked_sub(1).map_or(&self.cache, |origin| &self.origins[origin])
    }

    fn displace(&mut self, number: usize, longest: Duration) {
        let (now, rng) = (self.now(), &mut self.displacements.rng);
        let kind = KINDS[rng.usize(0..KINDS.len())];
        // The period is not empty, so that actions during it can be identified.
        let length = rng.u64(0..longest.as_nanos() as u64).max(1);
        let until = now + Duration::from_nanos(length);
        self.displacements.times[number] = (now, until);
        self.disk(number).displace(Some(kind));
        self.shared.fault(
            "displaced device",
            &[number as u64, until.0],
            format_args!("{} was {} until {until}", self.disk(number).name, kind.name()),
        );
    }

    fn give_back(&mut self, number: usize) {
        if self.disk(number).displaced().is_some() {
            let now = self.now();
            self.displacements.times[number].1 = now;
            self.disk(number).displace(None);
            self.shared.event(
                "given back",
                &[number as u64],
                format_args!("{}", self.disk(number).name),
            );
        }
    }

    /// Gives all devices their paths back.
    pub(crate) fn give_paths_back(&mut self) {
        (0..=self.origins.len()).for_each(|number| self.give_back(number));
    }

    /// Sometimes redirects the path of a device. Restores the paths whose period has ended.
    pub(crate) fn perhaps_displace(&mut self, stops: bool) {
        if !self.profile.features.has(Feature::Displaced) {
            return;
        }
        let now = self.now();
        for number in 0..=self.origins.len() {
            if self.displacements.times[number].1 <= now {
                self.give_back(number);
            }
        }
        let rng = &mut self.displacements.rng;
        let rarely = if stops { DURING_A_STOP } else { DURING_A_ROUND };
        if rng.u32(0..rarely) == 0 {
            let number = rng.usize(0..self.origins.len() + 1);
            let longest = Duration::from_millis(1 << rng.u32(0..14));
            if self.disk(number).displaced().is_none() {
                self.displace(number, longest);
            }
        }
    }

    /// Returns whether an action may be refused because of the path of an origin or of the cache
    /// device.
    pub(crate) fn is_refused_by_path(
        &self,
        action: Admin,
        result: &Result<(), EngineError>,
    ) -> bool {
        let was_apart = |number| self.was_apart(number, self.admin_since);
        is_apart(result) && (was_apart(0) || was_apart(usize::from(action.volume()) + 1))
    }

    /// Returns whether the path of a device has led elsewhere at any time since `since`.
    fn was_apart(&self, number: usize, since: Nanos) -> bool {
        self.disk(number).displaced().is_some() || self.displacements.times[number].1 > since
    }

    /// Returns whether a stop of these volumes, which began at `since` and has just ended, was
    /// refused or failed because of the path of a device. The path of an origin is checked when the
    /// stop begins, after the drain of the volume, and at the end; it may have been restored since.
    /// The path of the cache device makes a stop fail only at its end.
    pub(crate) fn is_refused_by_a_path(
        &self,
        volumes: &[u16],
        since: Nanos,
        result: &Result<(), EngineError>,
    ) -> bool {
        let origin_was_apart = |it: &u16| self.was_apart(usize::from(*it) + 1, since);
        let cache_is_apart = self.cache.displaced().is_some();
        is_apart(result) && (cache_is_apart || volumes.iter().any(origin_was_apart))
    }

    /// Checks that a stop of all volumes that has just succeeded left all data under the paths of
    /// the origins. `without_cache`: the path of the cache device led elsewhere all the time, so
    /// that the origins must be complete.
    pub(crate) fn judge_stop(&mut self, without_cache: bool) -> Result<(), Violation> {
        for volume in self.running() {
            if self.origins[usize::from(volume)].displaced().is_some() {
                return Err(plain(
                    36,
                    format!(
                        "volume {volume} has stopped in order, and the path of its origin leads elsewhere"
                    ),
                ));
            }
            if without_cache {
                self.judge_arrival(volume)?;
            }
        }
        Ok(())
    }

    /// Checks that an action that has just ended reported nothing as safe under a path that leads
    /// elsewhere.
    pub(crate) fn judge_path(
        &self,
        action: Admin,
        result: &Result<(), EngineError>,
    ) -> Result<(), Violation> {
        let number = usize::from(action.volume()) + 1;
        if result.is_err() || self.disk(number).displaced().is_none() {
            return Ok(());
        }
        // If both begin at the same instant, the action has begun first.
        let all_the_time = self.displacements.times[number].0 < self.admin_since;
        let reports = match action {
            // These actions check the path last.
            Admin::Drain(_) | Admin::Stop(_) => true,
            Admin::Restart(_) | Admin::Delete(_, false) | Admin::Caching(_, Caching::Paused) => {
                all_the_time
            }
            _ => false,
        };
        match reports {
            true => Err(plain(
                36,
                format!(
                    "{action:?} was reported as done, although the path of the origin leads elsewhere"
                ),
            )),
            false => Ok(()),
        }
    }

    /// Redirects the paths of some origins while nothing else is wrong. A drain must report this,
    /// and must still write everything; a stop must be refused. Then all paths are restored.
    /// Returns `false` if the world stopped.
    pub(crate) fn judge_displaced(&mut self, drains: bool) -> Result<bool, Violation> {
        let features = self.profile.features;
        // A dirty block that the cache device can no longer read cannot reach the origin.
        if !features.has(Feature::Displaced) || features.has(Feature::Rot) {
            return Ok(true);
        }
        self.set_faults(false);
        let mut apart = self.running();
        apart.retain(|_| self.displacements.rng.bool());
        for volume in &apart {
            self.displace(usize::from(*volume) + 1, Duration::from_secs(1));
        }
        for volume in &apart {
            let Some(result) = self.wait_for_answer(Admin::Drain(*volume))? else {
                return Ok(false);
            };
            if is_apart(&result) {
                self.judge_arrival(*volume)?;
            }
            if result.is_ok() {
                let what = format!(
                    "a drain of volume {volume} was reported as done, and the path of its origin leads elsewhere"
                );
                return Err(plain(36, what));
            }
        }
        let Some(instance) = self.instance.clone().filter(|_| !apart.is_empty()) else {
            return Ok(true);
        };
        let slot = self.call(instance.stop(drains));
        drop(instance);
        self.last_progress = self.now();
        if self.pump(false, |_| Ok(slot.borrow().is_some()))? == StopReason::Crashed {
            return Ok(false);
        }
        let result = slot.borrow_mut().take().unwrap_or(Ok(()));
        let goes_on = apart.iter().all(|volume| self.is_served(*volume));
        if result.is_ok() || !goes_on {
            let what = format!(
                "volumes {apart:?} were to stop while the paths of their origins lead elsewhere; are they served: {goes_on}, {result:?}"
            );
            return Err(plain(36, what));
        }
        self.give_paths_back();
        Ok(true)
    }

    /// Waits for the answer to an operator's action, while nothing else happens. Returns `None` if
    /// the world stopped.
    pub(crate) fn wait_for_answer(
        &mut self,
        action: Admin,
    ) -> Result<Option<Result<(), EngineError>>, Violation> {
        let Some(instance) = self.instance.clone() else { return Ok(None) };
        let slot = self.call(instance.admin(action));
        self.last_progress = self.now();
        if self.pump(false, |_| Ok(slot.borrow().is_some()))? == StopReason::Crashed {
            return Ok(None);
        }
        Ok(slot.borrow_mut().take())
    }

    /// Checks that an origin contains everything that its volume has acknowledged, while no request
    /// is in progress. The origin is read as through the open descriptor.
    pub(crate) fn judge_arrival(&mut self, volume: u16) -> Result<(), Violation> {
        let (oracle, disk) = (&mut self.oracle, &self.origins[usize::from(volume)]);
        disk.with_image(|image| {
            (0..oracle.sectors(volume)).try_for_each(|sector| {
                oracle.check_origin(SectorAddress { volume, sector }, image.durable(sector))
            })
        })
    }

    /// Sometimes redirects the path of the cache device before a stop. Returns whether it did.
    pub(crate) fn perhaps_take_cache(&mut self) -> bool {
        let features = self.profile.features;
        let takes = features.has(Feature::Displaced)
            && !features.has(Feature::Rot)
            && self.displacements.rng.bool();
        if takes {
            self.displace(0, Duration::from_secs(1_000_000));
        }
        takes
    }
}
