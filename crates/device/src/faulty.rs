//! A device that fails, delays, hangs, tears and loses writes as a control file demands. For tests
//! only.
//!
//! The file and its rules are described in `docs/testing.md`, "Faulty devices".
//!
//! - [`rules`]: the content of the file, and the rule that applies to an operation
//! - [`control`]: the file of an open device
//! - [`held`]: the content of a volatile write cache
//! - [`queue`]: the operations of one lane

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use forebay_core::{Evidence, Identity, Sectors};
use uuid::Uuid;

use crate::api::{Claiming, Device, DeviceError, DeviceQueue, QueueContext};
use crate::displaced::Displaced;
use crate::open::{OpenError, OpenErrorKind};
use crate::table::Shape;

mod control;
mod held;
mod queue;
mod rules;
#[cfg(test)]
mod tests;

pub(crate) use control::ControlFile;
use held::HeldBlocks;
use queue::FaultyQueue;

/// A device in front of another one, see the [module](self).
pub(crate) struct FaultyDevice {
    inner: Arc<dyn Device>,
    shared: Arc<Shared>,
}

/// State shared by all lanes.
struct Shared {
    shape: Shape,
    control: ControlFile,
    held: Arc<HeldBlocks>,
}

impl FaultyDevice {
    /// Wraps `inner` with the faults of the file `control`. The name is `faulty:` and the name of
    /// `inner`.
    pub(crate) fn wrap(inner: Arc<dyn Device>, control: &Path) -> Arc<dyn Device> {
        let name = format!("faulty:{}", inner.name()).into();
        let (size, logical_block) = (inner.size(), inner.logical_block());
        let shared = Shared {
            shape: Shape { name, size, logical_block },
            control: ControlFile::new(control.to_owned()),
            held: Arc::new(HeldBlocks::new(logical_block)),
        };
        Arc::new(FaultyDevice { inner, shared: Arc::new(shared) })
    }

    /// Checks whether the device is present, for programs that probe for it.
    ///
    /// # Errors
    /// `NotFound` if it is absent, `Io` if the control file is invalid.
    pub(crate) fn is_there(name: &str, control: &Path) -> Result<(), OpenError> {
        match ControlFile::read(control) {
            Ok(rules) if rules.gone => {
                let cause = "No such device (injected)";
                Err(OpenError::new(OpenErrorKind::NotFound, name, cause))
            }
            Ok(_) => Ok(()),
            Err(cause) => Err(OpenError::new(OpenErrorKind::Io, name, cause)),
        }
    }
}

impl Device for FaultyDevice {
    fn name(&self) -> &str {
        &self.shared.shape.name
    }

    fn size(&self) -> u64 {
        self.shared.shape.size
    }

    fn logical_block(&self) -> u64 {
        self.shared.shape.logical_block
    }

    fn sectors(&self) -> Sectors {
        self.inner.sectors()
    }

    fn writes_durably(&self) -> bool {
        self.inner.writes_durably()
    }

    fn shrunk_to(&self) -> Option<u64> {
        self.inner.shrunk_to()
    }

    fn displaced(&self) -> Option<Displaced> {
        self.inner.displaced()
    }

    fn fenced(&self) -> Option<Arc<str>> {
        self.inner.fenced()
    }

    fn for_reading_only(&self) -> bool {
        self.inner.for_reading_only()
    }

    fn write_protected(&self) -> Option<Arc<str>> {
        self.inner.write_protected()
    }

    fn rotational(&self) -> Option<bool> {
        self.inner.rotational()
    }

    fn identity(&self) -> Option<Identity> {
        self.inner.identity()
    }

    fn descriptor(&self) -> Option<OwnedFd> {
        self.inner.descriptor()
    }

    fn reread_partitions(&self) -> io::Result<()> {
        self.inner.reread_partitions()
    }

    fn write_evidence(&self) -> Option<Evidence> {
        self.inner.write_evidence()
    }

    fn evidence_may_wait(&self) -> bool {
        self.inner.evidence_may_wait()
    }

    fn holder(&self) -> Option<Uuid> {
        self.inner.holder()
    }

    fn claim(&self, volume: Uuid) -> Claiming {
        self.inner.claim(volume)
    }

    fn open_queue(&self, context: &QueueContext) -> Result<Rc<dyn DeviceQueue>, DeviceError> {
        let inner = self.inner.open_queue(context)?;
        Ok(Rc::new(FaultyQueue::new(inner, self.shared.clone(), context.clock.clone())))
    }
}
