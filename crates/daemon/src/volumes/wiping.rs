//! Wipes a cache device after its last volume was deleted.

use std::sync::Arc;

use forebay_admin::{ApiError, ErrorKind};
use forebay_device::DeviceSpec;

use super::Volumes;
use crate::devices::NO_CACHE;
use crate::host_api::Definition;
use crate::preflight::same_cache;
use crate::work::Work;

impl Volumes {
    /// Refuses to wipe the cache device of a volume that has none, or shares it.
    pub(super) fn check_wipe(&self, volume: &Definition) -> Result<(), ApiError> {
        let volatile = |device: &str| device.parse().is_ok_and(|it: DeviceSpec| it.is_volatile());
        if volume.cache == NO_CACHE || volatile(&volume.cache) {
            let reason = "the volume has no cache device that keeps anything; leave --wipe out";
            return Err(ApiError::invalid("wipe", reason));
        }
        let entries = self.state.volumes();
        let same = |other: &Definition| {
            let known = volume.cache_uuid.is_some() && other.cache_uuid == volume.cache_uuid;
            other.name != volume.name && (known || same_cache(volume, other))
        };
        let others = entries.iter().filter(|entry| same(&entry.volume));
        let names: Vec<&str> = others.map(|entry| entry.volume.name.as_str()).collect();
        if names.is_empty() {
            return Ok(());
        }
        let message = format!(
            "wipe: {} is also the cache device of {}; delete them first, or leave --wipe out",
            volume.cache,
            names.join(", ")
        );
        Err(ApiError::new(ErrorKind::Refused, message).about("wipe"))
    }

    /// Wipes the cache device of a volume that has been deleted.
    pub(super) fn wipe(&self, volume: &Definition, work: &Arc<Work>) -> Result<(), ApiError> {
        self.host.wipe(volume, work).map_err(|mut error| {
            error.message = format!(
                "'{}' was deleted, but its cache device {} was not wiped: {}",
                volume.name, volume.cache, error.message
            );
            error
        })
    }
}
