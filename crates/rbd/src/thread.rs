//! The thread of an image: it opens the image, holds its lock and closes it. It makes every call
//! that may block, so no other thread waits for the cluster longer than the image's time limit.
#![allow(clippy::disallowed_methods, reason = "the simulator has no clusters")]

use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use forebay_core::Sectors;
use forebay_device::{OpenError, OpenErrorKind, RbdName};
use forebay_lane::MemoryHold;
use parking_lot::Mutex;

use crate::claim::ImageClaim;
use crate::handle::{CallError, ImageHandle, OpenFailure};
use crate::opening::{Stage, wait};
use crate::shared::SharedImage;
use crate::unattended::{Alive, Unattended, wait_for};

/// Interval of checks whether the lock is still held.
const ASKING: Duration = Duration::from_secs(2);
/// Bytes of a sector.
const SECTOR: u64 = 512;
/// Bytes of a page.
const PAGE: u32 = 4096;

const FENCED: &str = "this client was fenced from the cluster, because another one has taken the image over or an operator wanted it: nothing is written to the image any more until the volume is stopped and started again";
const UNLOCKED: &str = "the image's exclusive lock is lost: nothing is written to the image any more until the volume is stopped and started again";

/// An open image, as its users hold it. The thread closes the image when the last user drops it.
pub(crate) struct Image {
    shared: Option<Arc<SharedImage>>,
}

impl Image {
    pub(crate) fn shared(&self) -> &SharedImage {
        match &self.shared {
            Some(shared) => shared,
            // The state is taken only when the image is dropped.
            None => unreachable!("the image is in use"),
        }
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        if let Some(shared) = self.shared.take() {
            let (bell, unattended) = (shared.bell.clone(), Unattended::enter(&shared.name));
            // Dropped before the bell rings, so that the thread holds the last reference.
            drop(shared);
            bell.ring(|news| news.closed = Some(unattended));
        }
    }
}

/// Opens an image, and acquires its lock if it is to be written.
///
/// # Errors
/// See [`crate::RbdDevice::open`].
pub(crate) fn open(
    name: &RbdName,
    writable: bool,
    memory: Option<MemoryHold>,
) -> Result<Image, OpenError> {
    let failed = |kind, cause: String| OpenError::new(kind, name, cause);
    // All steps together take no longer, unless the lock's owner does not answer.
    let end = Instant::now() + name.timeout;
    if !wait_for(|other| other.same_image(name), end) {
        let cause = "its last use by this daemon has not ended yet: the cluster does not answer";
        return Err(failed(OpenErrorKind::Io, cause.to_owned()));
    }
    let stage = Arc::new(Mutex::new(Stage::Connecting));
    let (tell, hear) = sync_channel(1);
    let (own_stage, own_name) = (stage.clone(), name.clone());
    let unattended = Unattended::enter(name);
    let thread = Builder::new().name("rbd".to_owned());
    let alive = Alive::enter();
    let spawned = thread.spawn(move || {
        keep(&own_name, writable, &own_stage, tell, unattended);
        drop(memory);
        drop(alive);
    });
    spawned.map_err(|error| failed(OpenErrorKind::Io, format!("no thread: {error}")))?;
    wait(&hear, &stage, end).unwrap_or_else(|silent| {
        let seconds = name.timeout.as_secs();
        Err(failed(OpenErrorKind::Io, format!("{silent}, after at least {seconds} s")))
    })
}

/// The whole life of an image.
fn keep(
    name: &RbdName,
    writable: bool,
    stage: &Mutex<Stage>,
    tell: SyncSender<Result<Image, OpenError>>,
    unattended: Unattended,
) {
    let shared = match prepare(name, writable, stage) {
        Ok(shared) => Arc::new(shared),
        Err(error) => {
            drop(unattended);
            drop(tell.send(Err(error)));
            return;
        }
    };
    let bell = shared.bell.clone();
    let told = tell.send(Ok(Image { shared: Some(shared.clone()) }));
    drop(unattended);
    if told.is_ok() {
        watch(&shared);
    }
    // An abandoned image has been dropped as well.
    drop(told);
    let unattended = bell.news.lock().closed.take();
    drop(shared);
    drop(unattended);
}

fn prepare(name: &RbdName, writable: bool, stage: &Mutex<Stage>) -> Result<SharedImage, OpenError> {
    let failed = |kind, cause: String| OpenError::new(kind, name, cause);
    let refused = |failure: OpenFailure| match failure {
        OpenFailure::Library(cause) => failed(OpenErrorKind::WrongType, cause),
        OpenFailure::Call(error) => {
            let kind = match error.errno {
                libc::ENOENT => OpenErrorKind::NotFound,
                libc::EACCES | libc::EPERM => OpenErrorKind::Denied,
                _ => OpenErrorKind::Io,
            };
            failed(kind, error.to_string())
        }
    };
    let call = |error| refused(OpenFailure::Call(error));
    let handle = ImageHandle::open(name, writable, &|now| *stage.lock() = now).map_err(refused)?;
    if writable {
        if !handle.has_lock().map_err(call)? {
            let cause = format!(
                "it has no exclusive lock, so nothing would keep a second writer away; enable it with 'rbd feature enable {} exclusive-lock'",
                [&name.pool, &name.namespace, &name.image]
                    .map(String::as_str)
                    .into_iter()
                    .filter(|part| !part.is_empty())
                    .collect::<Vec<_>>()
                    .join("/")
            );
            return Err(failed(OpenErrorKind::Denied, cause));
        }
        let owner = handle.owner();
        if owner.is_some() {
            *stage.lock() = Stage::Locking;
        }
        lock(name, &handle, owner)?;
        // If the cluster falls silent from here on, the cause is not another client's lock.
        *stage.lock() = Stage::Opening;
    }
    let bytes = handle.size().map_err(call)?;
    let size = bytes - bytes % SECTOR;
    if size == 0 || i64::try_from(size).is_err() {
        let cause = format!("its size of {bytes} bytes cannot be used");
        return Err(failed(OpenErrorKind::BadSize, cause));
    }
    // Object stores allocate in units of at least a page.
    let object = handle.stripe_unit().ok().and_then(|bytes| u32::try_from(bytes).ok());
    let sectors = Sectors::told(SECTOR as u32, PAGE, PAGE, object.unwrap_or(0));
    let identity = handle.identity().map_err(call)?;
    // Read under the lock, so that no other client changes it.
    let holder = handle.holder().map_err(call)?;
    let shared = SharedImage::new(handle, name, (size, sectors), writable, identity, holder);
    let bell = shared.bell.clone();
    shared.handle.watch(Box::new(move || bell.ring(|news| news.look = true))).map_err(call)?;
    Ok(shared)
}

/// Acquires the lock. `owner` is the client that holds it, if any.
fn lock(name: &RbdName, handle: &ImageHandle, owner: Option<String>) -> Result<(), OpenError> {
    if let Some(owner) = &owner {
        tracing::info!(device = %name, owner, "the image is locked; if the owner does not answer, it is fenced and the lock is taken over");
    }
    handle.lock().map_err(|error| {
        let (kind, cause) = match error.errno {
            // The owner is alive and refuses to release the lock.
            libc::EROFS | libc::EBUSY => {
                let owner = handle.owner().or(owner);
                let owner = owner.as_deref().unwrap_or("an unknown address");
                (
                    OpenErrorKind::InUse,
                    format!("another client, at {owner}, has its exclusive lock"),
                )
            }
            libc::EACCES | libc::EPERM => (
                OpenErrorKind::Denied,
                format!("{error}; the client needs 'profile rbd' for monitors and pool"),
            ),
            _ => (OpenErrorKind::Io, error.to_string()),
        };
        OpenError::new(kind, name, cause)
    })
}

/// Watches the size and the lock, and records claims, until the image is unused.
fn watch(shared: &Arc<SharedImage>) {
    let mut recording: Vec<JoinHandle<()>> = Vec::new();
    loop {
        let mut news = shared.bell.news.lock();
        if news.closed.is_none() && news.claims.is_empty() && !news.look {
            shared.bell.rings.wait_for(&mut news, ASKING);
        }
        news.look = false;
        if news.closed.is_some() {
            break;
        }
        let claims = std::mem::take(&mut news.claims);
        drop(news);
        recording.retain(|thread| !thread.is_finished());
        recording.extend(claims.into_iter().filter_map(|claim| record(shared, claim)));
        if shared.lost().is_some() {
            continue;
        }
        if shared.writable {
            match shared.handle.is_owner() {
                Ok(true) => {}
                // The lock briefly appears lost while it is reacquired after a lost connection.
                Ok(false) => {
                    std::thread::sleep(ASKING);
                    if matches!(shared.handle.is_owner(), Ok(false)) {
                        shared.lose(UNLOCKED);
                    }
                }
                Err(error) if error.errno == libc::ESHUTDOWN => shared.lose(FENCED),
                Err(error) => tracing::debug!(device = %shared.text, "{error}"),
            }
        }
        if let Ok(size) = shared.handle.size() {
            shared.note_size(size);
        }
    }
    // These threads use the image, which is closed next. Their claimants gave up long ago.
    recording.into_iter().for_each(|thread| drop(thread.join()));
}

/// Records a claim on a separate thread: the call may block for ever, and must not keep the image's
/// thread from checking the lock.
fn record(shared: &Arc<SharedImage>, claim: Arc<ImageClaim>) -> Option<JoinHandle<()>> {
    let (own, recorded) = (shared.clone(), claim.clone());
    let alive = Alive::enter();
    let thread = Builder::new().name("rbd-claim".to_owned()).spawn(move || {
        let handle = &own.handle;
        let write = |volume| handle.hold(volume);
        if let Err(error) = recorded.carry_out(&own.claimant, write, || handle.is_owner()) {
            tracing::warn!(device = %own.text, "the image names a volume whose start was given up: {error}");
        }
        drop(own);
        drop(alive);
    });
    let failed = |error: std::io::Error| {
        let errno = error.raw_os_error().unwrap_or(libc::EAGAIN);
        claim.end(Err(CallError { call: "pthread_create", errno }));
    };
    thread.map_err(failed).ok()
}

/// Marks the image as lost if the error of an operation says that the lock is lost or the client
/// fenced.
pub(crate) fn judge(shared: &SharedImage, errno: i32) {
    match errno {
        libc::ESHUTDOWN => shared.lose(FENCED),
        libc::EROFS if shared.writable => shared.lose(UNLOCKED),
        _ => {}
    }
}
