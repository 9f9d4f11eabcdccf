//! Devices of served volumes whose paths lead elsewhere: a file that was moved, replaced or removed, a disk that was
//! disconnected or has another name. I/O goes on through the open descriptors, but nothing may be reported as safe
//! under the path, and what has no path any more is lost when the descriptor is closed.

use std::sync::Arc;
use std::time::Duration;

use forebay_admin::report::DisplacedReport;
use forebay_admin::{ApiError, ErrorKind, VolumeName};
use forebay_device::{Displaced, DisplacedKind};

use super::EngineHost;
use super::attended::within;
use super::paths::{Role, device, sentence};
use super::report::Running;
use crate::daemon::host_api::{Trouble, not_found_next};

/// How long to wait for paths to be looked up. One on a file server that does not answer is left behind, and holds
/// up no other.
const PATIENCE: Duration = Duration::from_millis(200);

impl Running {
    /// Returns the most serious displacement, as it was seen last. Quick.
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

    /// Returns the displacements of origin and cache device for reports, as they were seen last. Quick.
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

    /// Whether the content of the cache device is lost when it is closed, or cannot be found again. Looks, and may
    /// hang.
    pub(super) fn has_displaced_cache(&self) -> bool {
        self.look(Role::Cache).is_some()
    }

    /// Whether what only the cache has is lost with the program, as it was seen last. Quick.
    pub(super) fn is_lost_with_program(&self) -> bool {
        self.place.volatile || self.paths.of(Role::Cache).get().is_some()
    }

    /// Returns what is lost when the origin is closed, as it was seen last. Quick.
    pub(super) fn loses_origin(&self) -> Option<ApiError> {
        let found = self.paths.of(Role::Origin).get();
        let lost = found.filter(|found| found.kind != DisplacedKind::Moved)?;
        let what = format!("the content of the origin of '{}' is lost", self.volume.name);
        let message = format!("{what}: {}", self.tell(Role::Origin, &lost));
        Some(ApiError::new(ErrorKind::DataAtRisk, message))
    }

    /// Has the next start ask which origin is meant, if the path of this one leads elsewhere, as it was seen last.
    pub(super) fn note_displaced_origin(&self) {
        if self.paths.of(Role::Origin).get().is_some() {
            self.volume.leave_no_print();
        }
    }

    fn look(&self, role: Role) -> Option<Displaced> {
        self.paths.of(role).look(&**device(role, self.cache(), &self.volume))
    }

    fn check(&self, role: Role, before: &str) -> Result<(), ApiError> {
        match self.look(role) {
            None => Ok(()),
            Some(found) => {
                let message = format!("{before}{}", self.tell(role, &found));
                Err(ApiError::new(ErrorKind::DataAtRisk, message))
            }
        }
    }
}

impl EngineHost {
    /// Looks at the paths of all devices, on a thread that may hang: this returns soon. Such a thread keeps no device
    /// open but the one that it hangs at.
    pub(super) fn look_at_paths(&self) {
        let both = |(_, running): (_, Running)| {
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

    /// Checks that the path of a volume's origin leads to what was written; `before` begins the error.
    ///
    /// # Errors
    /// [`ErrorKind::DataAtRisk`] with what happened and what to do.
    pub(super) fn check_origin_path(
        &self,
        name: &VolumeName,
        running: &Running,
        before: &str,
    ) -> Result<(), ApiError> {
        // Barrier for invariant 20: nothing is reported as safe at a path that leads elsewhere.
        let _wait = self.served.wait_for(name, &running.volume.origin_name);
        running.check(Role::Origin, before)
    }

    /// Checks that the next program finds the devices of all volumes.
    ///
    /// # Errors
    /// [`ErrorKind::DataAtRisk`].
    pub(super) fn check_paths_of_all(&self) -> Result<(), ApiError> {
        self.look_at_paths();
        let displaced = |(_, running): (_, Running)| running.displaced();
        match self.served.all().into_iter().find_map(displaced) {
            None => Ok(()),
            Some((_, why)) => Err(not_found_next(&why)),
        }
    }
}
