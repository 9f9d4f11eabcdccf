//! Opens the devices of volumes, and claims them.

use std::sync::Arc;

use forebay_admin::ApiError;
use forebay_device::{Access, Device, DeviceSpec, OpenError, OpenErrorKind, RemoteName};
use forebay_lane::{MemoryBudget, MemoryUse};
use forebay_nbd_client::NbdDevice;
use forebay_rbd::RbdDevice;

use super::faults;
use crate::afterlife::outlasting;

/// Opens devices: those of the system, or simulated ones.
pub trait Opener: Send + Sync {
    /// Opens a device, and claims it according to `access` until it and its queues are dropped.
    ///
    /// # Errors
    /// See [`OpenErrorKind`].
    fn open(&self, spec: &DeviceSpec, access: Access) -> Result<Arc<dyn Device>, OpenError>;
}

/// The devices of this machine, of NBD servers, and of Ceph clusters.
pub(crate) struct SystemDevices {
    /// Provides the memory that images of Ceph need.
    pub(crate) memory: Arc<MemoryBudget>,
}

impl Opener for SystemDevices {
    fn open(&self, spec: &DeviceSpec, access: Access) -> Result<Arc<dyn Device>, OpenError> {
        spec.open_with(access, &|name, access| match name {
            RemoteName::Nbd(uri) => NbdDevice::open(uri, access),
            RemoteName::Rbd(name) => {
                let what = format!("the image {name}");
                let hold = self.memory.hold(MemoryUse::RemoteDevices, RbdDevice::MEMORY, &what);
                let hold = hold.map_err(|error| OpenError::new(OpenErrorKind::Io, name, error))?;
                RbdDevice::open(name, access, Some(hold))
            }
        })
    }
}

/// Opens devices for operations. Clones share the opener.
#[derive(Clone)]
pub(super) struct Devices(Arc<dyn Opener>);

impl Devices {
    pub(super) fn new(opener: Arc<dyn Opener>) -> Self {
        Devices(opener)
    }

    /// Opens the device named in `field` for reading and writing, and claims it.
    pub(super) fn claim(
        &self,
        field: &str,
        spec: &DeviceSpec,
    ) -> Result<Arc<dyn Device>, ApiError> {
        self.claim_for(Access::Exclusive, field, spec)
    }

    /// Opens the device named in `field`, and claims it according to `access`.
    pub(super) fn claim_for(
        &self,
        access: Access,
        field: &str,
        spec: &DeviceSpec,
    ) -> Result<Arc<dyn Device>, ApiError> {
        self.try_claim(access, spec).map_err(|error| faults::open(field, &error))
    }

    /// Claims like [`Devices::claim_for`], and returns the error of the device.
    pub(super) fn try_claim(
        &self,
        access: Access,
        spec: &DeviceSpec,
    ) -> Result<Arc<dyn Device>, OpenError> {
        outlasting(|| self.0.open(spec, access), |error| error.kind == OpenErrorKind::InUse)
    }

    /// Opens a device of this machine for reading, without a claim.
    pub(super) fn look(&self, spec: &DeviceSpec) -> Result<Arc<dyn Device>, OpenError> {
        if let Some(name) = spec.remote() {
            let cause = "it is on another machine, and a device of this machine is needed here";
            return Err(OpenError::new(OpenErrorKind::WrongType, name, cause));
        }
        self.0.open(spec, Access::Unlocked)
    }

    /// Opens a device that is served without a cache; a write-protected one is served read-only.
    pub(super) fn claim_raw(&self, spec: &DeviceSpec) -> Result<Arc<dyn Device>, ApiError> {
        const FIELD: &str = "--export-raw";
        self.claim(FIELD, spec).or_else(|error| {
            // If writing was not the obstacle, the second attempt fails as well.
            let device =
                self.claim_for(Access::ReadOnly, FIELD, spec).map_err(|_| error.clone())?;
            tracing::warn!("it is served for reading only: {error}");
            Ok(device)
        })
    }
}
