//! The gate between volumes and clients: which running volumes the front ends find.
//!
//! A volume runs before the daemon's state records it, or records the results of its start. Writes
//! of clients in between would be lost if the daemon died. So no client finds a volume, new or
//! handed over by a former program, until the volume is shown. It is hidden again when it ends in
//! any way.

use std::collections::BTreeSet;

use forebay_admin::VolumeName;
use forebay_threads::Mutex;

use crate::planted::{self, PlantedBug};

/// The volumes that clients may find. Lanes use it, so its lock is never held during a wait.
#[derive(Default)]
pub(super) struct Shown(Mutex<BTreeSet<String>>);

impl Shown {
    /// Has clients find a volume.
    pub(super) fn show(&self, name: &VolumeName) {
        self.0.lock().insert(name.to_string());
    }

    /// Hides a volume from new clients.
    pub(super) fn hide(&self, name: &VolumeName) {
        self.0.lock().remove(name.as_str());
    }

    /// Returns whether clients may find a volume.
    pub(super) fn has(&self, name: &str) -> bool {
        self.0.lock().contains(name) || planted::has(PlantedBug::SeenBeforeStored)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use forebay_admin::Settings;

    use super::*;
    use crate::host::report::Served;
    use crate::host_api::Definition;

    #[test]
    fn clients_find_a_volume_only_between_show_and_remove() {
        let shown = Arc::<Shown>::default();
        let served = Served::new(Arc::default(), shown.clone());
        let name: VolumeName = "v".parse().expect("valid");
        let volume = Definition {
            name: name.clone(),
            cache: "none".to_owned(),
            origin: "/o".to_owned(),
            block_size: 4096,
            alignment: 0,
            settings: Settings::default(),
            version: 0,
            uuid: None,
            cache_uuid: None,
            origin_identity: None,
            stored_as: None,
        };
        served.show(&name);
        assert!(!shown.has("v"), "there is none");
        for is_shown in [false, true, false] {
            served.begin(&volume).expect("nothing of it is left");
            assert!(!shown.has("v"), "it is being started, whatever became of an earlier one");
            if is_shown {
                served.show(&name);
                assert!(shown.has("v"));
            }
            served.remove(&name);
            assert!(!shown.has("v") && shown.0.lock().is_empty());
        }
    }
}
