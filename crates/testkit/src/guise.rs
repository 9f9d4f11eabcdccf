//! Devices that report a size or identity other than their own, or record which volume uses them.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use forebay_core::{Evidence, Identity, IdentityPart, Sectors};
use forebay_device::{Claiming, Device, DeviceError, DeviceQueue, QueueContext};
use parking_lot::Mutex;
use uuid::Uuid;

struct Guise {
    inner: Arc<dyn Device>,
    size: u64,
    serial: Option<&'static str>,
    /// The part of the identity that the serial number is.
    part: IdentityPart,
    /// The holder when the device was opened, and the place where claims are recorded.
    held: Option<(Option<Uuid>, Holder)>,
    /// Claims never end, and this is their limit.
    claim_limit: Option<Duration>,
    /// The system's evidence of writes.
    evidence: Option<Evidence>,
}

/// The volume whose claim was recorded last.
pub type Holder = Arc<Mutex<Option<Uuid>>>;

/// Returns a device that consists of the first `size` bytes of `inner`.
pub fn shortened(inner: &Arc<dyn Device>, size: u64) -> Arc<dyn Device> {
    Arc::new(Guise {
        inner: inner.clone(),
        size,
        serial: None,
        part: IdentityPart::Serial,
        held: None,
        claim_limit: None,
        evidence: None,
    })
}

/// Returns `inner` with this serial number, or without any identity.
pub fn with_serial(inner: &Arc<dyn Device>, serial: Option<&'static str>) -> Arc<dyn Device> {
    Arc::new(Guise {
        inner: inner.clone(),
        size: inner.size(),
        serial,
        part: IdentityPart::Serial,
        held: None,
        claim_limit: None,
        evidence: None,
    })
}

/// Returns `inner` as a file with this inode.
pub fn with_inode(inner: &Arc<dyn Device>, inode: &'static str) -> Arc<dyn Device> {
    Arc::new(Guise {
        inner: inner.clone(),
        size: inner.size(),
        serial: Some(inode),
        part: IdentityPart::Inode,
        held: None,
        claim_limit: None,
        evidence: None,
    })
}

/// Returns `inner` with this serial number, and with this evidence of the system about writes.
pub fn with_evidence(
    inner: &Arc<dyn Device>,
    serial: Option<&'static str>,
    evidence: &str,
) -> Arc<dyn Device> {
    Arc::new(Guise {
        inner: inner.clone(),
        size: inner.size(),
        serial,
        part: IdentityPart::Serial,
        held: None,
        claim_limit: None,
        evidence: evidence.parse().ok(),
    })
}

/// Returns `inner` as a device without an identity that records claims.
pub fn with_holder(inner: &Arc<dyn Device>, holder: &Holder) -> Arc<dyn Device> {
    let held = Some((*holder.lock(), holder.clone()));
    Arc::new(Guise {
        inner: inner.clone(),
        size: inner.size(),
        serial: None,
        part: IdentityPart::Serial,
        held,
        claim_limit: None,
        evidence: None,
    })
}

/// Returns `inner` as a device that never reports a claim as recorded.
pub fn with_endless_claims(inner: &Arc<dyn Device>, limit: Duration) -> Arc<dyn Device> {
    let claim_limit = Some(limit);
    Arc::new(Guise {
        inner: inner.clone(),
        size: inner.size(),
        serial: None,
        part: IdentityPart::Serial,
        held: None,
        claim_limit,
        evidence: None,
    })
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

    fn sectors(&self) -> Sectors {
        self.inner.sectors()
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
        Identity::new(self.serial.map(|serial| (self.part, serial.to_owned())))
    }

    fn write_evidence(&self) -> Option<Evidence> {
        self.evidence.clone()
    }

    fn holder(&self) -> Option<Uuid> {
        self.held.as_ref()?.0
    }

    fn claim(&self, volume: Uuid) -> Claiming {
        if let Some((_, holder)) = &self.held {
            *holder.lock() = Some(volume);
        }
        match self.claim_limit {
            Some(limit) => Claiming { recorded: Box::pin(std::future::pending()), limit },
            None => Claiming::recorded(),
        }
    }

    fn open_queue(&self, context: &QueueContext) -> Result<Rc<dyn DeviceQueue>, DeviceError> {
        self.inner.open_queue(context)
    }
}
