//! An open image: the calls of librbd that may block, with everything that they need to be sound.
#![allow(unsafe_code, reason = "calls of a C library")]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::io;
use std::path::Path;
use std::ptr;

use forebay_core::{Identity, IdentityPart};
use forebay_device::RbdName;
use parking_lot::Mutex;
use uuid::Uuid;

use crate::library::{Cluster, Functions, ImagePointer, IoContext, functions};
use crate::opening::Stage;

/// `RBD_LOCK_MODE_EXCLUSIVE`.
const EXCLUSIVE: c_int = 0;
/// `RBD_FEATURE_EXCLUSIVE_LOCK`.
const EXCLUSIVE_LOCK: u64 = 1 << 2;
/// The cluster's configuration file, unless the image names another.
const CONFIGURATION: &str = "/etc/ceph/ceph.conf";
/// Maximum length of the id of an image or of a cluster, in bytes.
const MAX_ID: usize = 256;

/// The key in an image's metadata whose value is the volume that uses the image or used it last.
const HOLDER: &CStr = c"forebay.volume";

/// A failed call.
#[derive(Clone, Debug)]
pub(crate) struct CallError {
    /// The function.
    pub(crate) call: &'static str,
    /// The number of the error.
    pub(crate) errno: i32,
}

impl std::fmt::Display for CallError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} failed: {}", self.call, io::Error::from_raw_os_error(self.errno))
    }
}

pub(crate) fn checked(call: &'static str, result: c_int) -> Result<c_int, CallError> {
    if result < 0 { Err(CallError { call, errno: result.saturating_neg() }) } else { Ok(result) }
}

/// A connection to a cluster. Each image has its own, because fencing affects a connection as a
/// whole.
struct ClusterConnection {
    functions: &'static Functions,
    cluster: Cluster,
    context: IoContext,
}

/// An open image and its connection.
pub(crate) struct ImageHandle {
    connection: ClusterConnection,
    pub(crate) image: ImagePointer,
    /// The watch over the image's header, with its argument.
    watch: Mutex<Option<(u64, *const Signal)>>,
}

// SAFETY: the functions of librados and librbd may be called from any thread, and at the same time;
// the signal is shared by reference counting.
unsafe impl Send for ImageHandle {}
// SAFETY: as above.
unsafe impl Sync for ImageHandle {}

/// Called when the header of an image has changed.
pub(crate) type Signal = Box<dyn Fn() + Send + Sync>;

/// Converts a name, which contains no zero bytes because [`RbdName`] allows none.
fn c_string(text: &str) -> CString {
    CString::new(text).unwrap_or_default()
}

/// Returns the path of the cluster's configuration file. If no file were named, Ceph would also
/// search the home and the working directory, and the configuration names libraries that are
/// loaded.
fn configuration(name: &RbdName) -> CString {
    use std::os::unix::ffi::OsStrExt;
    let path = name.conf.as_deref().unwrap_or(Path::new(CONFIGURATION));
    CString::new(path.as_os_str().as_bytes()).unwrap_or_default()
}

impl ClusterConnection {
    fn open(name: &RbdName, stage: &dyn Fn(Stage)) -> Result<Self, OpenFailure> {
        let functions = functions().map_err(OpenFailure::Library)?;
        let user = name.user.as_deref().map(c_string);
        let mut connection =
            ClusterConnection { functions, cluster: ptr::null_mut(), context: ptr::null_mut() };
        let user = user.as_ref().map_or(ptr::null(), |user| user.as_ptr());
        // SAFETY: the result is written to a field; the name is null or ends with a zero byte.
        let made = unsafe { (functions.rados_create)(&raw mut connection.cluster, user) };
        checked("rados_create", made)?;
        connection.configure(name)?;
        stage(Stage::Connecting);
        // SAFETY: the cluster was created above.
        checked("rados_connect", unsafe { (functions.rados_connect)(connection.cluster) })?;
        let pool = c_string(&name.pool);
        // SAFETY: the cluster is connected; the result is written to a field.
        let made = unsafe {
            (functions.rados_ioctx_create)(
                connection.cluster,
                pool.as_ptr(),
                &raw mut connection.context,
            )
        };
        checked("rados_ioctx_create", made)?;
        let namespace = c_string(&name.namespace);
        // SAFETY: the context was created above, and copies the name.
        unsafe {
            (functions.rados_ioctx_set_namespace)(connection.context, namespace.as_ptr());
        }
        Ok(connection)
    }

    fn configure(&self, name: &RbdName) -> Result<(), CallError> {
        let path = configuration(name);
        // SAFETY: the cluster was created; the path ends with a zero byte.
        let read = unsafe { (self.functions.rados_conf_read_file)(self.cluster, path.as_ptr()) };
        checked("rados_conf_read_file", read)?;
        let seconds = name.timeout.as_secs().to_string();
        for (option, value) in [
            ("client_mount_timeout", seconds.as_str()),
            // Forebay is the cache: acknowledged data must be on the cluster or be flushed by
            // Forebay.
            ("rbd_cache", "false"),
            ("rbd_persistent_cache_mode", "disabled"),
            // Calls are made on a lane, so none may wait until others have ended.
            ("objecter_inflight_ops", "0"),
            ("objecter_inflight_op_bytes", "0"),
            // Without this, a lock's owner that is considered dead could still write.
            ("rbd_blacklist_on_break_lock", "true"),
            ("rbd_blocklist_on_break_lock", "true"),
        ] {
            let (option, value) = (c_string(option), c_string(value));
            // SAFETY: the cluster was created; both are copied. Options that a version does not
            // have, or calls by another name, are refused, and nothing depends on those.
            unsafe {
                (self.functions.rados_conf_set)(self.cluster, option.as_ptr(), value.as_ptr());
            }
        }
        Ok(())
    }

    /// Returns the id of the cluster.
    fn cluster_id(&self) -> Result<String, CallError> {
        let mut text = [0u8; MAX_ID];
        // SAFETY: the cluster is connected, and writes no more than the length that is given.
        let len = unsafe {
            (self.functions.rados_cluster_fsid)(
                self.cluster,
                text.as_mut_ptr().cast::<c_char>(),
                text.len(),
            )
        };
        checked("rados_cluster_fsid", len)?;
        Ok(text_of(&text))
    }
}

/// Returns the text before the first zero byte.
fn text_of(bytes: &[u8]) -> String {
    let text = CStr::from_bytes_until_nul(bytes).map(CStr::to_string_lossy);
    text.map(std::borrow::Cow::into_owned).unwrap_or_default()
}

impl Drop for ClusterConnection {
    fn drop(&mut self) {
        if !self.context.is_null() {
            // SAFETY: the context was created, and its image, if there was one, is closed.
            unsafe { (self.functions.rados_ioctx_destroy)(self.context) };
        }
        if !self.cluster.is_null() {
            // SAFETY: the cluster was created, and nothing else uses it.
            unsafe { (self.functions.rados_shutdown)(self.cluster) };
        }
    }
}

/// Why an image cannot be opened.
#[derive(Debug)]
pub(crate) enum OpenFailure {
    /// The library is missing or too old.
    Library(String),
    /// A call failed.
    Call(CallError),
}

impl From<CallError> for OpenFailure {
    fn from(error: CallError) -> Self {
        OpenFailure::Call(error)
    }
}

impl ImageHandle {
    /// Connects to the cluster and opens the image. May block for ever.
    pub(crate) fn open(
        name: &RbdName,
        writable: bool,
        stage: &dyn Fn(Stage),
    ) -> Result<Self, OpenFailure> {
        let connection = ClusterConnection::open(name, stage)?;
        stage(Stage::Opening);
        let functions = connection.functions;
        let (call, open) = match writable {
            true => ("rbd_open", functions.rbd_open),
            false => ("rbd_open_read_only", functions.rbd_open_read_only),
        };
        let (own, mut image) = (c_string(&name.image), ptr::null_mut());
        // SAFETY: the context is open; the result is written to a variable; there is no snapshot.
        let opened = unsafe { open(connection.context, own.as_ptr(), &raw mut image, ptr::null()) };
        checked(call, opened)?;
        Ok(ImageHandle { connection, image, watch: Mutex::new(None) })
    }

    pub(crate) fn functions(&self) -> &'static Functions {
        self.connection.functions
    }

    /// Returns the size in bytes.
    pub(crate) fn size(&self) -> Result<u64, CallError> {
        let mut size = 0;
        // SAFETY: the image is open; the result is written to a variable.
        let result = unsafe { (self.functions().rbd_get_size)(self.image, &raw mut size) };
        checked("rbd_get_size", result).map(|_| size)
    }

    /// Returns the number of bytes that lie together in one object: the size of an object, unless
    /// the image is striped.
    pub(crate) fn stripe_unit(&self) -> Result<u64, CallError> {
        let mut bytes = 0;
        // SAFETY: the image is open; the result is written to a variable.
        let result = unsafe { (self.functions().rbd_get_stripe_unit)(self.image, &raw mut bytes) };
        checked("rbd_get_stripe_unit", result).map(|_| bytes)
    }

    /// Returns whether the image supports a lock for one writer.
    pub(crate) fn has_lock(&self) -> Result<bool, CallError> {
        let mut features = 0;
        // SAFETY: the image is open; the result is written to a variable.
        let result = unsafe { (self.functions().rbd_get_features)(self.image, &raw mut features) };
        checked("rbd_get_features", result).map(|_| features & EXCLUSIVE_LOCK != 0)
    }

    /// Returns the image's identity. An image that is recreated under the same name has another
    /// one.
    pub(crate) fn identity(&self) -> Result<Option<Identity>, CallError> {
        let mut id = [0u8; MAX_ID];
        // SAFETY: the image is open, and no more is written than the length that is given.
        let result = unsafe {
            (self.functions().rbd_get_id)(self.image, id.as_mut_ptr().cast::<c_char>(), id.len())
        };
        checked("rbd_get_id", result)?;
        // SAFETY: the context is open.
        let pool = unsafe { (self.functions().rados_ioctx_get_id)(self.connection.context) };
        let text = format!("{}/{pool}/{}", self.connection.cluster_id()?, text_of(&id));
        Ok(Identity::new([(IdentityPart::RbdImage, text)]))
    }

    /// Returns the volume that the image's metadata names, or a nil UUID if they contain anything
    /// else.
    pub(crate) fn holder(&self) -> Result<Option<Uuid>, CallError> {
        let (mut text, mut len) = ([0u8; MAX_ID], MAX_ID);
        // SAFETY: the image is open, and no more is written than the length that is given.
        let result = unsafe {
            (self.functions().rbd_metadata_get)(
                self.image,
                HOLDER.as_ptr(),
                text.as_mut_ptr().cast::<c_char>(),
                &raw mut len,
            )
        };
        match checked("rbd_metadata_get", result) {
            Err(error) if error.errno == libc::ENOENT => Ok(None),
            Err(error) if error.errno != libc::ERANGE => Err(error),
            _ => Ok(Some(text_of(&text).parse().unwrap_or(Uuid::nil()))),
        }
    }

    /// Names a volume in the image's metadata, or removes the name.
    pub(crate) fn hold(&self, volume: Option<Uuid>) -> Result<(), CallError> {
        let Some(volume) = volume else {
            // SAFETY: the image is open; the key ends with a zero byte, and is copied.
            let result =
                unsafe { (self.functions().rbd_metadata_remove)(self.image, HOLDER.as_ptr()) };
            return checked("rbd_metadata_remove", result).map(drop);
        };
        let text = c_string(&volume.to_string());
        // SAFETY: the image is open; both texts end with a zero byte, and are copied.
        let result = unsafe {
            (self.functions().rbd_metadata_set)(self.image, HOLDER.as_ptr(), text.as_ptr())
        };
        checked("rbd_metadata_set", result).map(drop)
    }

    /// Acquires the lock, and keeps it even if other clients request it. Waits while its owner does
    /// not answer; an owner whose watch has ended is fenced first.
    pub(crate) fn lock(&self) -> Result<(), CallError> {
        // SAFETY: the image is open.
        let result = unsafe { (self.functions().rbd_lock_acquire)(self.image, EXCLUSIVE) };
        checked("rbd_lock_acquire", result).map(drop)
    }

    /// Returns whether the lock is held; asks the cluster.
    pub(crate) fn is_owner(&self) -> Result<bool, CallError> {
        let mut owner = 0;
        // SAFETY: the image is open; the result is written to a variable.
        let result =
            unsafe { (self.functions().rbd_is_exclusive_lock_owner)(self.image, &raw mut owner) };
        checked("rbd_is_exclusive_lock_owner", result).map(|_| owner != 0)
    }

    /// Returns the address of the lock's owner, or `None` if the lock is free.
    pub(crate) fn owner(&self) -> Option<String> {
        let (mut mode, mut owners, mut count) = (0, [ptr::null_mut::<c_char>(); 1], 1);
        // SAFETY: the image is open; at most `count` addresses are written, each with a zero byte
        // at its end, and the cleanup frees them.
        unsafe {
            let result = (self.functions().rbd_lock_get_owners)(
                self.image,
                &raw mut mode,
                owners.as_mut_ptr(),
                &raw mut count,
            );
            if result < 0 || count == 0 || owners[0].is_null() {
                return None;
            }
            let text = CStr::from_ptr(owners[0]).to_string_lossy().into_owned();
            (self.functions().rbd_lock_get_owners_cleanup)(owners.as_mut_ptr(), count);
            Some(text)
        }
    }

    /// Makes a thread of the library call `signal` whenever the image's header changes.
    pub(crate) fn watch(&self, signal: Signal) -> Result<(), CallError> {
        let signal = Box::into_raw(Box::new(signal));
        let mut number = 0;
        // SAFETY: the image is open; the argument lives until the watch has ended, see `close`.
        let result = unsafe {
            (self.functions().rbd_update_watch)(
                self.image,
                &raw mut number,
                updated,
                signal.cast::<c_void>(),
            )
        };
        if let Err(error) = checked("rbd_update_watch", result) {
            // SAFETY: it was made above, and the library does not know it.
            drop(unsafe { Box::from_raw(signal) });
            return Err(error);
        }
        *self.watch.lock() = Some((number, signal.cast_const()));
        Ok(())
    }
}

impl Drop for ImageHandle {
    /// Closes the image: waits for operations in flight and releases the lock. May block for ever.
    fn drop(&mut self) {
        if let Some((number, signal)) = self.watch.lock().take() {
            // SAFETY: the image is open. Once the watch has ended, the signal is not called any
            // more; if the watch cannot be ended, the signal stays allocated.
            unsafe {
                if (self.functions().rbd_update_unwatch)(self.image, number) >= 0 {
                    drop(Box::from_raw(signal.cast_mut()));
                }
            }
        }
        // SAFETY: the image is open, and this handle, the only one, ends here.
        let closed = checked("rbd_close", unsafe { (self.functions().rbd_close)(self.image) });
        if let Err(error) = closed {
            tracing::debug!("closing an image: {error}");
        }
    }
}

/// Ends the process without running the destructors of its libraries.
pub(crate) fn exit_at_once(code: u8) -> ! {
    // SAFETY: it has no conditions, and does not return.
    unsafe { libc::_exit(c_int::from(code)) }
}

/// # Safety
/// The argument comes from [`ImageHandle::watch`], and the watch has not ended.
unsafe extern "C" fn updated(argument: *mut c_void) {
    // SAFETY: see above.
    let signal = unsafe { &*argument.cast_const().cast::<Signal>() };
    signal();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_configuration_is_read_from_the_working_directory() {
        let of = |text: &str| configuration(&text.parse().expect("a name"));
        assert_eq!(of("rbd:pool/image"), c"/etc/ceph/ceph.conf".to_owned());
        assert_eq!(of("rbd:pool/image?conf=/srv/b.conf"), c"/srv/b.conf".to_owned());
    }
}
