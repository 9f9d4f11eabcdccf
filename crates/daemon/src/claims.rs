//! The devices that operations in progress use, apart from those of stored volumes. A claim ends
//! with the last thread of its operation, which may wait for a device long after the operation was
//! reported as failed.

use std::collections::BTreeMap;
use std::sync::Arc;

use forebay_admin::{ApiError, ErrorKind, VolumeName};
use forebay_threads::{Mutex, MutexGuard};

use super::host_api::{Definition, Existing};
use super::preflight;
use super::work::Claimed;
use crate::planted::{self, PlantedBug};

/// Use of the devices of a volume by an operation.
#[derive(Clone, Debug)]
struct DeviceUse {
    verb: &'static str,
    volume: Definition,
    /// Whether the operation may format the cache device.
    formats: bool,
}

#[derive(Debug, Default)]
struct ClaimTable {
    uses: BTreeMap<u64, DeviceUse>,
    last: u64,
}

/// All claims of a daemon.
#[derive(Debug, Default)]
pub(crate) struct Claims(Mutex<ClaimTable>);

/// The claim of one operation, until it is dropped.
#[derive(Debug)]
pub(crate) struct OperationClaim {
    all: Arc<Claims>,
    number: u64,
}

impl Claimed for OperationClaim {}

impl Drop for OperationClaim {
    fn drop(&mut self) {
        self.all.table().uses.remove(&self.number);
    }
}

impl Claims {
    fn table(&self) -> MutexGuard<'_, ClaimTable> {
        self.0.lock()
    }

    /// Whether no operation uses a device.
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.table().uses.is_empty()
    }

    fn insert(self: &Arc<Self>, table: &mut ClaimTable, own: DeviceUse) -> OperationClaim {
        table.last += 1;
        table.uses.insert(table.last, own);
        OperationClaim { all: self.clone(), number: table.last }
    }

    /// Returns the verb of an operation that was given up and still uses the devices of a volume,
    /// for another operation on that volume.
    pub(crate) fn given_up(&self, name: &VolumeName) -> Option<&'static str> {
        let table = self.table();
        let own = table.uses.values().filter(|used| used.volume.name == *name);
        match own.map(|used| used.verb).collect::<Vec<_>>()[..] {
            [] | [_] => None,
            _ if planted::has(PlantedBug::StoppedWhileClaimed) => None,
            [verb, ..] => Some(verb),
        }
    }

    /// Claims the devices of a stored volume. No other stored volume uses them, and new volumes are
    /// checked against this claim.
    pub(crate) fn stored(
        self: &Arc<Self>,
        verb: &'static str,
        volume: &Definition,
    ) -> OperationClaim {
        let own = DeviceUse { verb, volume: volume.clone(), formats: false };
        self.insert(&mut self.table(), own)
    }

    /// Claims the devices of a new volume.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`]: an operation in progress uses one of the devices in a way that excludes
    /// this use. A cache device that may be formatted is never shared.
    pub(crate) fn new_volume(
        self: &Arc<Self>,
        verb: &'static str,
        volume: &Definition,
        existing: Existing,
    ) -> Result<OperationClaim, ApiError> {
        let own = DeviceUse { verb, volume: volume.clone(), formats: existing != Existing::Join };
        loop {
            let (seen, uses) = {
                let table = self.table();
                (table.last, table.uses.values().cloned().collect::<Vec<_>>())
            };
            // The lock is not held here, because checking a path may block.
            for other in &uses {
                let found = conflict(&own, other).filter(|_| !planted::has(PlantedBug::NoClaims));
                if let Some((field, device)) = found {
                    let message = format!(
                        "{field}: {device} is in use by '{}' of '{}', which is in progress, or waits for a device after it was given up; try again when it has ended",
                        other.verb, other.volume.name
                    );
                    return Err(ApiError::new(ErrorKind::Busy, message).about(field));
                }
            }
            let mut table = self.table();
            if table.last == seen {
                return Ok(self.insert(&mut table, own));
            }
        }
    }
}

/// Returns the field and the device of a new volume that another operation uses.
fn conflict<'a>(own: &'a DeviceUse, other: &DeviceUse) -> Option<(&'static str, &'a str)> {
    let (new, volume) = (&own.volume, &other.volume);
    let same = preflight::same_device;
    let may_format = own.formats || other.formats;
    if same(("origin", &new.origin), ("origin", &volume.origin))
        || same(("origin", &new.origin), ("cache", &volume.cache))
    {
        return Some(("origin", &new.origin));
    }
    let cache = ("cache", &*new.cache);
    let in_use = same(cache, ("origin", &volume.origin))
        || (may_format && same(cache, ("cache", &volume.cache)));
    in_use.then_some(("cache", &*new.cache))
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_testkit::TempDir;

    #[test]
    fn a_device_is_free_again_when_the_last_claim_has_ended() {
        let dir = TempDir::new("claims");
        let path = |name: &str| dir.path().join(name).display().to_string();
        for name in ["c1", "c2", "o1", "o2"] {
            std::fs::write(path(name), [0; 4096]).expect("writable");
        }
        let volume = |name: &str, cache: &str, origin: &str| {
            let request = serde_json::json!({"name": name, "cache": cache, "origin": origin});
            let request = serde_json::from_value(request).expect("a request");
            preflight::definition(&request).expect("a definition")
        };
        let all = Arc::<Claims>::default();
        let planned = format!("{},size=64M", path("new"));
        let first = all
            .new_volume("create", &volume("a", &planned, &path("o1")), Existing::Spare)
            .expect("free");
        let of = |existing: Existing, cache: &str, origin: &str| {
            let claimed = all.new_volume("create", &volume("b", cache, origin), existing);
            claimed.map(drop).map_err(|error| (error.kind, error.field.unwrap_or_default()))
        };
        let refused = |cache: &str, origin: &str| of(Existing::Overwrite, cache, origin);
        let busy = |field: &str| Err((ErrorKind::Busy, field.to_owned()));
        assert_eq!(refused(&path("c2"), &path("o1")), busy("origin"));
        assert_eq!(refused(&planned, &path("o2")), busy("cache"), "both would create it");
        std::fs::write(path("new"), [0; 4096]).expect("writable");
        assert_eq!(refused(&planned, &path("o2")), busy("cache"), "it was created meanwhile");
        assert_eq!(refused(&path("o1"), &path("o2")), busy("cache"));
        let remote = "nbd://localhost/disk";
        let second = all
            .new_volume("create", &volume("c", &path("c2"), remote), Existing::Spare)
            .expect("free");
        assert_eq!(refused(&path("c1"), remote), busy("origin"));
        drop((first, second));
        assert_eq!(refused(&planned, remote), Ok(()));
        // A volume may be added to a cache of stored volumes during operations on these.
        let _stop = all.stored("stop", &volume("a", &path("c1"), &path("o1")));
        assert_eq!(of(Existing::Join, &path("c1"), &path("o2")), Ok(()));
        assert_eq!(refused(&path("c1"), &path("o2")), busy("cache"), "it may format it");
        assert_eq!(refused(&path("c1"), &path("o1")), busy("origin"));
    }
}
