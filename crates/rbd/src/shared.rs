//! The state of an image that the lanes and the image's thread share.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use forebay_core::{Identity, Sectors};
use forebay_device::{DeviceError, DeviceErrorKind, RbdName};
use parking_lot::{Condvar, Mutex};
use uuid::Uuid;

use crate::claim::ImageClaim;
use crate::handle::ImageHandle;
use crate::unattended::Unattended;

/// Messages to the thread.
#[derive(Default)]
pub(crate) struct News {
    /// The image is unused: the thread closes it in the background.
    pub(crate) closed: Option<Unattended>,
    /// The image must be checked: its header has changed, or an operation has failed as if the lock
    /// were lost.
    pub(crate) look: bool,
    /// Claims that are to be recorded, one for each volume that begins to use the image.
    pub(crate) claims: Vec<Arc<ImageClaim>>,
}

/// Wakes the thread.
#[derive(Default)]
pub(crate) struct Bell {
    pub(crate) news: Mutex<News>,
    pub(crate) rings: Condvar,
}

impl Bell {
    pub(crate) fn ring(&self, tell: impl FnOnce(&mut News)) {
        tell(&mut self.news.lock());
        self.rings.notify_all();
    }
}

/// See the module.
pub(crate) struct SharedImage {
    pub(crate) handle: ImageHandle,
    pub(crate) name: RbdName,
    pub(crate) text: Arc<str>,
    /// Size in bytes, in whole sectors.
    pub(crate) size: u64,
    pub(crate) sectors: Sectors,
    pub(crate) writable: bool,
    pub(crate) identity: Option<Identity>,
    /// The volume that the image's metadata named when the image was opened.
    pub(crate) holder: Option<Uuid>,
    /// The volume whose claim is recorded and not taken back.
    pub(crate) claimant: Mutex<Option<Uuid>>,
    pub(crate) bell: Arc<Bell>,
    /// The image's present size in bytes.
    pub(crate) size_now: AtomicU64,
    /// The reason why the image may no longer be used. Once set, it stays.
    lost: OnceLock<Arc<str>>,
}

impl SharedImage {
    pub(crate) fn new(
        handle: ImageHandle,
        name: &RbdName,
        (size, sectors): (u64, Sectors),
        writable: bool,
        identity: Option<Identity>,
        holder: Option<Uuid>,
    ) -> Self {
        SharedImage {
            handle,
            name: name.clone(),
            text: name.to_string().into(),
            size,
            sectors,
            writable,
            identity,
            holder,
            claimant: Mutex::new(holder),
            bell: Arc::default(),
            size_now: AtomicU64::new(size),
            lost: OnceLock::new(),
        }
    }

    /// Returns the reason why the image may no longer be used, if there is one.
    pub(crate) fn lost(&self) -> Option<&Arc<str>> {
        self.lost.get()
    }

    /// Stops all use of the image.
    pub(crate) fn lose(&self, cause: &str) {
        let mut first = false;
        self.lost.get_or_init(|| {
            first = true;
            cause.into()
        });
        if first {
            tracing::error!(device = %self.text, "{cause}");
        }
    }

    pub(crate) fn note_size(&self, size: u64) {
        let before = self.size_now.swap(size, Ordering::Relaxed);
        if size > before {
            tracing::info!(device = %self.text, size, "the image has grown; stop the volume and start it again to use that");
        }
    }

    pub(crate) fn error(
        &self,
        kind: DeviceErrorKind,
        what: &'static str,
        offset: u64,
        cause: impl Into<Arc<str>>,
    ) -> DeviceError {
        DeviceError { kind, device: self.text.clone(), what, offset, cause: cause.into() }
    }
}
