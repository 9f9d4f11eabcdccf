//! The last check of the paths of devices, and its result in words for operators.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use forebay_device::{Device, Displaced, DisplacedKind};
use forebay_engine::{Cache, Volume};
use forebay_threads::Mutex;

/// The last check of the path of one device.
pub(super) struct PathCheck {
    found: Mutex<Option<Displaced>>,
    /// Whether a thread is checking the path, which may hang.
    is_looking: AtomicBool,
}

/// The latest checks of the paths of a volume's devices.
pub(super) struct Paths {
    cache: PathCheck,
    origin: PathCheck,
}

/// A device of a volume.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    Cache,
    Origin,
}

impl Role {
    pub(super) const BOTH: [Role; 2] = [Role::Origin, Role::Cache];

    /// Returns the name of a file in this role.
    pub(super) fn name(self) -> &'static str {
        match self {
            Role::Cache => "cache device",
            Role::Origin => "origin",
        }
    }
}

impl Default for Paths {
    fn default() -> Self {
        let seen = || PathCheck { found: Mutex::default(), is_looking: AtomicBool::new(false) };
        Paths { cache: seen(), origin: seen() }
    }
}

impl PathCheck {
    pub(super) fn get(&self) -> Option<Displaced> {
        self.found.lock().clone()
    }

    /// Checks the path, and returns the result. May hang.
    pub(super) fn look(&self, device: &dyn Device) -> Option<Displaced> {
        let found = device.displaced();
        self.found.lock().clone_from(&found);
        found
    }

    /// Checks the path, unless another thread is doing so.
    pub(super) fn look_alone(&self, device: &dyn Device) {
        if !self.is_looking.swap(true, Ordering::Acquire) {
            self.look(device);
            self.is_looking.store(false, Ordering::Release);
        }
    }
}

impl Paths {
    pub(super) fn of(&self, role: Role) -> &PathCheck {
        match role {
            Role::Cache => &self.cache,
            Role::Origin => &self.origin,
        }
    }
}

pub(super) fn device<'a>(role: Role, cache: &'a Cache, volume: &'a Volume) -> &'a Arc<dyn Device> {
    match role {
        Role::Cache => cache.store.device(),
        Role::Origin => &volume.origin,
    }
}

/// Returns the finding about a device, and the remedy.
pub(super) fn sentence(role: Role, name: &str, found: &Displaced, volume: &str) -> String {
    let Displaced { kind, what, readable_at } = found;
    let copy = |fd: &Path| format!("'cp --sparse=always {} FILE'", fd.display());
    let way_out = match (role, kind) {
        (Role::Origin, DisplacedKind::Moved) => {
            format!("move it back, or give up its path with 'forebay stop --abandon {volume}'")
        }
        (Role::Origin, _) => format!(
            "its content is lost when the volume stops: write all to it with 'forebay flush {volume}', copy it with {}, and then 'forebay stop --abandon {volume}'",
            copy(readable_at)
        ),
        (Role::Cache, DisplacedKind::Moved) => format!(
            "move it back; 'forebay flush {volume}' writes the dirty blocks to the origin"
        ),
        (Role::Cache, _) => "its content is lost when the volume stops, which writes dirty blocks to the origin first; then delete the volume and create it again".to_owned(),
    };
    format!("the {} {name} {what}; {way_out}", role.name())
}
