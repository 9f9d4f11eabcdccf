//! Devices that report sector sizes other than their own, or that were opened for reading only.

use std::rc::Rc;
use std::sync::Arc;

use forebay_core::{Identity, Sectors};
use forebay_device::{Device, DeviceError, DeviceQueue, QueueContext};

struct DeviceView {
    inner: Arc<dyn Device>,
    sectors: Sectors,
    read_only: bool,
}

/// Returns `inner` with these sector sizes.
pub fn with_sectors(inner: &Arc<dyn Device>, sectors: Sectors) -> Arc<dyn Device> {
    Arc::new(DeviceView { inner: inner.clone(), sectors, read_only: false })
}

/// Returns `inner` as if it had been opened for reading only.
pub fn for_reading(inner: &Arc<dyn Device>) -> Arc<dyn Device> {
    Arc::new(DeviceView { inner: inner.clone(), sectors: inner.sectors(), read_only: true })
}

impl Device for DeviceView {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn size(&self) -> u64 {
        self.inner.size()
    }

    fn logical_block(&self) -> u64 {
        self.inner.logical_block()
    }

    fn sectors(&self) -> Sectors {
        self.sectors
    }

    fn for_reading_only(&self) -> bool {
        self.read_only
    }

    fn identity(&self) -> Option<Identity> {
        self.inner.identity()
    }

    fn open_queue(&self, context: &QueueContext) -> Result<Rc<dyn DeviceQueue>, DeviceError> {
        self.inner.open_queue(context)
    }
}
