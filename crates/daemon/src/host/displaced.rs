//! Devices of served volumes whose paths lead elsewhere: a file that was moved, replaced or
//! removed, a disk that was disconnected or has another name. I/O continues through the open
//! descriptors, but no data may be reported as safe under the path, and the content of a device
//! without a path is lost when its descriptor is closed.

use std::sync::Arc;
use std::time::Duration;

use forebay_admin::report::DisplacedReport;
use forebay_admin::{ApiError, ErrorKind, VolumeName};
use forebay_device::{Displaced, DisplacedKind};
use forebay_engine::displaced::{self, BeforeStop, LeftUnsafe};

use super::EngineHost;
use super::attended::within;
use super::paths::{Role, device, sentence};
use super::report::ServedVolume;
use crate::host_api::{Trouble, not_found_next};

/// Time limit for checking paths. A path on a file server that does not answer is skipped, and does
/// not delay others.
const PATIENCE: Duration = Duration::from_millis(200);

impl ServedVolume {
    /// Returns the most serious displacement at the last check. Quick.
    pub(super) fn displaced(&self) -> Option<(Trouble, String)> {
        Role::BOTH.into_iter().find_map(|role| {
            let found = self.paths.of(role).get()?;
            let trouble = match role {
                Role::Origin => Trouble::OriginDisplaced,
                Role::Cache => Trouble::CacheDisplaced,
            };
            Some((trouble, self.tell(role, &found)))
        })
    }

    fn tell(&self, role: Role, found: &Displaced) -> String {
        let device = device(role, self.cache(), &self.volume);
        sentence(role, device.name(), found, &self.volume.name)
    }

    /// Returns the displacements of origin and cache device at the last check, for reports. Quick.
    pub(super) fn displaced_reports(&self) -> [Option<DisplacedReport>; 2] {
        Role::BOTH.map(|role| {
            let found = self.paths.of(role).get()?;
            Some(DisplacedReport {
                kind: found.kind.name().to_owned(),
                message: self.tell(role, &found),
                readable_at: found.readable_at.display().to_string(),
            })
        })
    }

    /// Returns whether dirty data of the cache is lost with the program, according to the last
    /// check. Quick.
    pub(super) fn is_lost_with_program(&self) -> bool {
        self.place.volatile || self.paths.of(Role::Cache).get().is_some()
    }

    /// Returns an error if closing the origin loses its content, according to the last check.
    /// Quick.
    pub(super) fn loses_origin(&self) -> Option<ApiError> {
        let found = self.paths.of(Role::Origin).get();
        let lost = found.filter(|found| found.kind != DisplacedKind::Moved)?;
        let what = format!("the content of the origin of '{}' is lost", self.volume.name);
        let message = format!("{what}: {}", self.tell(Role::Origin, &lost));
        Some(ApiError::new(ErrorKind::DataAtRisk, message))
    }

    /// Makes the next start ask which origin is meant, if the path of this one led elsewhere at the
    /// last check.
    pub(super) fn note_displaced_origin(&self) {
        if self.paths.of(Role::Origin).get().is_some() {
            self.volume.leave_no_print();
        }
    }

    fn look(&self, role: Role) -> Option<Displaced> {
        self.paths.of(role).look(&**device(role, self.cache(), &self.volume))
    }

    fn unsafe_origin(&self, before: &str, found: &Displaced) -> ApiError {
        let message = format!("{before}{}", self.tell(Role::Origin, found));
        ApiError::new(ErrorKind::DataAtRisk, message)
    }

    /// Checks that a volume that has just stopped left everything under the paths of its devices,
    /// which are still open. Checks the paths now, and may hang.
    ///
    /// # Errors
    /// [`ErrorKind::DataAtRisk`]: a path leads elsewhere since the stop began; the message names
    /// the device.
    pub(super) fn check_left(&self) -> Result<(), ApiError> {
        let (volume, dirty) = (&self.volume, self.volume.dirty_blocks());
        let (origin, cache) = (self.look(Role::Origin), self.look(Role::Cache));
        let Err(left) = displaced::after_stop(origin, cache, dirty) else { return Ok(()) };
        let message = match left {
            LeftUnsafe::Origin(Displaced { kind, what, .. }) => {
                let way_out = match kind {
                    DisplacedKind::Moved => "; move it back before the volume is started again",
                    DisplacedKind::Removed | DisplacedKind::Replaced => {
                        ", and its content is lost with that"
                    }
                };
                let origin = volume.origin.name();
                format!(
                    "'{}' is stopped, but meanwhile its origin {origin} {what}{way_out}",
                    volume.name
                )
            }
            LeftUnsafe::OnCacheDevice(Displaced { what, .. }) => format!(
                "'{}' is stopped, and {} bytes that clients wrote to it meanwhile are only on its cache device {}, which {what}",
                volume.name,
                dirty * self.block_bytes(),
                self.store().device().name(),
            ),
        };
        Err(ApiError::new(ErrorKind::DataAtRisk, message))
    }
}

impl EngineHost {
    /// Checks the paths of all devices on a thread that may hang; this function returns soon. A
    /// hanging thread keeps only the device open at which it hangs.
    pub(super) fn look_at_paths(&self) {
        let both = |(_, running): (_, ServedVolume)| {
            Role::BOTH.map(|role| {
                let device = device(role, running.cache(), &running.volume);
                (running.paths.clone(), role, Arc::downgrade(device))
            })
        };
        let all: Vec<_> = self.served.all().into_iter().flat_map(both).collect();
        let looked = within(PATIENCE, move || {
            for (paths, role, device) in all {
                if let Some(device) = device.upgrade() {
                    paths.of(role).look_alone(&*device);
                }
            }
        });
        looked();
    }

    fn look_at_origin(&self, name: &VolumeName, running: &ServedVolume) -> Option<Displaced> {
        let _wait = self.served.wait_for(name, &running.volume.origin_name);
        running.look(Role::Origin)
    }

    /// Checks that the path of a volume's origin leads to the device to which a drain has written.
    ///
    /// # Errors
    /// [`ErrorKind::DataAtRisk`] with the finding and the remedy.
    pub(super) fn check_drained(
        &self,
        name: &VolumeName,
        running: &ServedVolume,
    ) -> Result<(), ApiError> {
        let before = "the dirty blocks were written, but not to where the path leads: ";
        displaced::after_drain(self.look_at_origin(name, running))
            .map_err(|found| running.unsafe_origin(before, &found))
    }

    /// Returns the step that must precede the stop of a volume. `abandon`: its origin is given up.
    ///
    /// # Errors
    /// [`ErrorKind::DataAtRisk`] if the path of the origin leads elsewhere, with the finding and
    /// the remedy.
    pub(super) fn before_stop(
        &self,
        name: &VolumeName,
        running: &ServedVolume,
        abandon: bool,
    ) -> Result<BeforeStop, ApiError> {
        let origin = self.look_at_origin(name, running);
        if abandon {
            return Ok(BeforeStop::Nothing);
        }
        let cache = {
            let _wait = self.served.wait_for(name, running.store().device().name());
            running.look(Role::Cache)
        };
        displaced::before_stop(origin, cache).map_err(|found| running.unsafe_origin("", &found))
    }

    /// Checks that the next program will find the devices of all volumes.
    ///
    /// # Errors
    /// [`ErrorKind::DataAtRisk`].
    pub(super) fn check_paths_of_all(&self) -> Result<(), ApiError> {
        self.look_at_paths();
        let displaced = |(_, running): (_, ServedVolume)| running.displaced();
        match self.served.all().into_iter().find_map(displaced) {
            None => Ok(()),
            Some((_, why)) => Err(not_found_next(&why)),
        }
    }
}
