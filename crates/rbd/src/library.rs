//! librbd and librados, loaded on first use: Forebay can be built and run without them as long as
//! no image of Ceph is used.
#![allow(unsafe_code, reason = "functions of a C library are found by name")]

use std::ffi::{c_char, c_int, c_void};

use libloading::Library;
use parking_lot::Mutex;

/// The library's name, with the version of its interface, which has not changed since 2013.
const LIBRBD: &str = "librbd.so.1";

/// A cluster, an I/O context, an image and a completion: opaque addresses, whose meaning only the
/// library knows.
pub(crate) type Cluster = *mut c_void;
pub(crate) type IoContext = *mut c_void;
pub(crate) type ImagePointer = *mut c_void;
pub(crate) type Completion = *mut c_void;

/// Called when an operation has ended, with the argument that was given for it.
pub(crate) type Completed = unsafe extern "C" fn(Completion, *mut c_void);
/// Called when the header of an image has changed.
pub(crate) type Updated = unsafe extern "C" fn(*mut c_void);

/// Declares the functions as fields, and looks up each by the name of its field.
macro_rules! functions {
    ($($name:ident($($argument:ty),*) -> $result:ty;)*) => {
        /// The functions, as their headers declare them. Those that return a number return a
        /// negated error number if they fail.
        pub(crate) struct Functions {
            $(pub(crate) $name: unsafe extern "C" fn($($argument),*) -> $result,)*
        }

        impl Functions {
            fn find(library: &Library) -> Result<Self, libloading::Error> {
                Ok(Functions {
                    $(
                        // SAFETY: the type is that of the header librados.h or librbd.h for this
                        // name. The library is never unloaded, so the address stays valid.
                        $name: *unsafe {
                            library.get::<unsafe extern "C" fn($($argument),*) -> $result>(
                                concat!(stringify!($name), "\0").as_bytes(),
                            )
                        }?,
                    )*
                })
            }
        }
    };
}

functions! {
    rados_create(*mut Cluster, *const c_char) -> c_int;
    rados_conf_read_file(Cluster, *const c_char) -> c_int;
    rados_conf_set(Cluster, *const c_char, *const c_char) -> c_int;
    rados_connect(Cluster) -> c_int;
    rados_shutdown(Cluster) -> ();
    rados_cluster_fsid(Cluster, *mut c_char, usize) -> c_int;
    rados_ioctx_create(Cluster, *const c_char, *mut IoContext) -> c_int;
    rados_ioctx_set_namespace(IoContext, *const c_char) -> ();
    rados_ioctx_get_id(IoContext) -> i64;
    rados_ioctx_destroy(IoContext) -> ();

    rbd_open(IoContext, *const c_char, *mut ImagePointer, *const c_char) -> c_int;
    rbd_open_read_only(IoContext, *const c_char, *mut ImagePointer, *const c_char) -> c_int;
    rbd_close(ImagePointer) -> c_int;
    rbd_get_size(ImagePointer, *mut u64) -> c_int;
    rbd_get_stripe_unit(ImagePointer, *mut u64) -> c_int;
    rbd_get_features(ImagePointer, *mut u64) -> c_int;
    rbd_get_id(ImagePointer, *mut c_char, usize) -> c_int;
    rbd_lock_acquire(ImagePointer, c_int) -> c_int;
    rbd_lock_get_owners(ImagePointer, *mut c_int, *mut *mut c_char, *mut usize) -> c_int;
    rbd_lock_get_owners_cleanup(*mut *mut c_char, usize) -> ();
    rbd_is_exclusive_lock_owner(ImagePointer, *mut c_int) -> c_int;
    rbd_metadata_get(ImagePointer, *const c_char, *mut c_char, *mut usize) -> c_int;
    rbd_metadata_set(ImagePointer, *const c_char, *const c_char) -> c_int;
    rbd_metadata_remove(ImagePointer, *const c_char) -> c_int;
    rbd_update_watch(ImagePointer, *mut u64, Updated, *mut c_void) -> c_int;
    rbd_update_unwatch(ImagePointer, u64) -> c_int;
    rbd_aio_create_completion(*mut c_void, Completed, *mut Completion) -> c_int;
    rbd_aio_get_return_value(Completion) -> isize;
    rbd_aio_release(Completion) -> ();
    rbd_aio_read(ImagePointer, u64, usize, *mut c_char, Completion) -> c_int;
    rbd_aio_write(ImagePointer, u64, usize, *const c_char, Completion) -> c_int;
    rbd_aio_write_zeroes(ImagePointer, u64, usize, Completion, c_int, c_int) -> c_int;
    rbd_aio_flush(ImagePointer, Completion) -> c_int;
}

/// Returns the functions. Loads the library if that has not succeeded yet.
///
/// # Errors
/// A sentence for the operator: librbd is missing or older than version 16.
pub(crate) fn functions() -> Result<&'static Functions, String> {
    static LOADED: Mutex<Option<&'static Functions>> = Mutex::new(None);
    let mut loaded = LOADED.lock();
    if let Some(functions) = *loaded {
        return Ok(functions);
    }
    // SAFETY: on loading the library only initialises itself; it is never unloaded, because it has
    // threads.
    let librbd = unsafe { Library::new(LIBRBD) }.map_err(|error| {
        format!(
            "librbd cannot be loaded, install Debian's package librbd1 or that of your distribution: {error}"
        )
    })?;
    // This also finds the functions of librados, because librbd depends on it.
    let found = Functions::find(&librbd)
        .map_err(|error| format!("librbd is too old, at least version 16 is needed: {error}"))?;
    std::mem::forget(librbd);
    Ok(loaded.insert(Box::leak(Box::new(found))))
}
