//! Volumes that are stopped, as they are on their cache devices.

use std::sync::Arc;

use forebay_admin::ApiError;
use forebay_device::Access;

use super::inspect::{self, CacheContent};
use super::opening::claim_again;
use super::volumes::made;
use super::{EngineHost, caches, faults};
use crate::host_api::{Definition, Remains, StartError};
use crate::known::Position;
use crate::work::Work;

impl EngineHost {
    /// Checks whether a stopped volume is on its cache device.
    pub(super) fn holds_now(
        self: &Arc<Self>,
        volume: &Definition,
        work: &Arc<Work>,
    ) -> Result<bool, ApiError> {
        let spec = made("cache", &volume.cache)?;
        if spec.is_volatile() {
            return Ok(true);
        }
        let place = self.caches.place(&spec, &volume.name)?;
        let found = self.using(&place, || {
            let wait = self.served.wait_for(&volume.name, &volume.cache);
            let cache = place.lock();
            if let Some(open) = &*cache {
                let stored = (Position::from(&*open.store), &*open.store.volumes());
                return self.check_record(volume, open.store.uuid(), stored, false).map(|_| ());
            }
            let device =
                claim_again(Access::Exclusive, &self.devices, ("cache", &spec), &wait, work)?;
            let roots = self.roots(&device)?;
            let stored = (Position::from(&roots.superblock), &*roots.volumes);
            self.check_record(volume, roots.superblock.cache, stored, false).map(|_| ())
        });
        match found {
            Ok(()) => Ok(true),
            Err(StartError::Unknown(_)) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Removes a stopped volume and all of its blocks from its cache, unless the cache is gone.
    pub(super) fn forget_stopped(
        self: &Arc<Self>,
        volume: &Definition,
    ) -> Result<Remains, ApiError> {
        let cache_spec = made("cache", &volume.cache)?;
        let Ok(place) = self.caches.place(&cache_spec, &volume.name) else {
            return Ok(Remains::OnCacheDevice);
        };
        self.using(&place, || {
            let open = {
                let mut cache = place.lock();
                if cache.is_none() {
                    let device = self.devices.claim("cache", &cache_spec)?;
                    let own = device.clone();
                    let content = self.lanes.run(0, move |state| async move {
                        inspect::content(&state.context, &own).await
                    })??;
                    let CacheContent::Cache(roots) = content else {
                        return Ok(Remains::OnCacheDevice);
                    };
                    if !roots.volumes.iter().any(|record| is_it(volume, record)) {
                        return Ok(Remains::OnCacheDevice);
                    }
                    let opened = caches::open(&self.lanes, &place, device, 0, Vec::new())?;
                    *cache = Some(opened);
                }
                match &*cache {
                    Some(open) => open.clone(),
                    None => return Ok(Remains::OnCacheDevice),
                }
            };
            if !open.store.volumes().iter().any(|record| is_it(volume, record)) {
                return Ok(Remains::None);
            }
            let (number, name) = (place.number, volume.name.to_string());
            let forgotten = self.lanes.run(0, move |state| async move {
                state.engine(number)?.delete_stopped(&name, true).await.map_err(faults::engine)
            })?;
            forgotten.map(Remains::from)
        })
    }
}

/// Returns whether a record belongs to this volume, and not to another one of the same name.
fn is_it(volume: &Definition, record: &forebay_format::VolumeRecord) -> bool {
    record.name == volume.name.as_str() && volume.uuid.is_none_or(|uuid| uuid == record.uuid)
}
