//! Devices that report another size or identity than they have.

use std::rc::Rc;
use std::sync::Arc;

use forebay_core::{Identity, IdentityPart};
use forebay_device::{Device, DeviceError, DeviceQueue, QueueContext};

struct Guise {
    inner: Arc<dyn Device>,
    size: u64,
    serial: Option<&'static str>,
}

/// Returns a device that consists of the first `size` bytes of `inner`.
pub fn shortened(inner: &Arc<dyn Device>, size: u64) -> Arc<dyn Device> {
    Arc::new(Guise { inner: inner.clone(), size, serial: None })
}

/// Returns `inner` with this serial number, or without any identity.
pub fn with_serial(inner: &Arc<dyn Device>, serial: Option<&'static str>) -> Arc<dyn Device> {
    Arc::new(Guise { inner: inner.clone(), size: inner.size(), serial })
}

impl Device for Guise {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn logical_block(&self) -> u64 {
        self.inner.logical_block()
    }

    fn rotational(&self) -> Option<bool> {
        self.inner.rotational()
    }

    fn identity(&self) -> Option<Identity> {
        Identity::new(self.serial.map(|serial| (IdentityPart::Serial, serial.to_owned())))
    }

    fn open_queue(&self, context: &QueueContext) -> Result<Rc<dyn DeviceQueue>, DeviceError> {
        self.inner.open_queue(context)
    }
}
