//! Gives the volumes of a copied cache names and UUIDs of their own.

use std::rc::Rc;

use forebay_core::VolumeId;
use forebay_format::Uuid;
use forebay_store::StoreError;

use crate::error::EngineError;
use crate::lane::engine::EngineLane;

/// A new name and UUID for a volume that is not started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Naming {
    /// The volume.
    pub id: VolumeId,
    /// New name, which must be unique in the cache.
    pub name: String,
    /// New UUID.
    pub uuid: Uuid,
}

impl EngineLane {
    /// Changes names and UUIDs of volumes, all of them or none; durable when this returns.
    ///
    /// # Errors
    /// A name is taken, or the cache device fails.
    pub async fn rename(self: &Rc<Self>, wanted: Vec<Naming>) -> Result<(), EngineError> {
        let renamed = self.store.change_volumes(|volumes, _| {
            for Naming { id, name, uuid } in wanted {
                if volumes.iter().any(|other| other.id != id && other.name == name) {
                    return Err(StoreError::Exists(name));
                }
                if let Some(record) = volumes.iter_mut().find(|record| record.id == id) {
                    (record.name, record.uuid) = (name, uuid);
                }
            }
            Ok(())
        });
        Ok(renamed.await?)
    }
}
