//! Marks of other systems on a device, found by libblkid. The library is loaded at run time:
//! neither building nor running depends on it.
//!
//! The library is written in C and parses content that anyone may have written, so only processes
//! whose crash is harmless call it, see [`marks`].

use std::ffi::{CStr, c_char, c_int, c_void};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use libloading::Library;

use crate::signature::{Signature, Usage};

/// The library's name, with the version of its interface.
const LIBBLKID: &str = "libblkid.so.1";

/// Maximum number of marks that are collected; a device with a few is rare.
const MOST_MARKS: usize = 64;

// From blkid.h.
const SUBLKS_LABEL: c_int = 1 << 1;
const SUBLKS_UUID: c_int = 1 << 3;
const SUBLKS_TYPE: c_int = 1 << 5;
const SUBLKS_USAGE: c_int = 1 << 7;
const SUBLKS_MAGIC: c_int = 1 << 9;
const SUBLKS_BADCSUM: c_int = 1 << 10;
const PARTS_FORCE_GPT: c_int = 1 << 1;
const PARTS_MAGIC: c_int = 1 << 3;

/// A probe: an opaque address of the library.
type Probe = *mut c_void;

/// Declares the functions as fields, and finds each by the name of its field.
macro_rules! functions {
    ($($name:ident($($argument:ty),*) -> $result:ty;)*) => {
        /// The functions, as the header blkid.h declares them.
        struct Functions {
            $($name: unsafe extern "C" fn($($argument),*) -> $result,)*
        }

        impl Functions {
            fn find(library: &Library) -> Result<Self, libloading::Error> {
                Ok(Functions {
                    $(
                        // SAFETY: the type is that of the header blkid.h for this name. The caller
                        // never unloads the library, so the address stays valid.
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
    blkid_new_probe() -> Probe;
    blkid_free_probe(Probe) -> ();
    blkid_probe_set_device(Probe, c_int, i64, i64) -> c_int;
    blkid_probe_enable_superblocks(Probe, c_int) -> c_int;
    blkid_probe_set_superblocks_flags(Probe, c_int) -> c_int;
    blkid_probe_enable_partitions(Probe, c_int) -> c_int;
    blkid_probe_set_partitions_flags(Probe, c_int) -> c_int;
    blkid_do_probe(Probe) -> c_int;
    blkid_probe_lookup_value(Probe, *const c_char, *mut *const c_char, *mut usize) -> c_int;
}

/// A probe of a device, and the library to which it belongs.
struct Probing {
    functions: Functions,
    probe: Probe,
}

impl Drop for Probing {
    fn drop(&mut self) {
        // SAFETY: `blkid_new_probe` has returned this address, and it is freed once.
        unsafe { (self.functions.blkid_free_probe)(self.probe) }
    }
}

impl Probing {
    fn new() -> io::Result<Self> {
        // SAFETY: the library does nothing when it is loaded, and is never unloaded.
        let library = unsafe { Library::new(LIBBLKID) }.map_err(unsupported)?;
        let functions = Functions::find(&library).map_err(unsupported)?;
        std::mem::forget(library);
        // SAFETY: the function has no conditions.
        let probe = unsafe { (functions.blkid_new_probe)() };
        if probe.is_null() {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        Ok(Probing { functions, probe })
    }

    /// Finds the next mark; returns `false` if there are no more.
    fn next(&self) -> io::Result<bool> {
        // SAFETY: the probe is valid, and its device is open as long as the caller of `marks` lends
        // it.
        match unsafe { (self.functions.blkid_do_probe)(self.probe) } {
            0 => Ok(true),
            1 => Ok(false),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Returns a property of the mark that was found last.
    fn value(&self, name: &CStr) -> Option<String> {
        let (mut data, mut len) = (std::ptr::null(), 0);
        // SAFETY: the probe and the name are valid, and the places for the results are writable.
        let found = unsafe {
            (self.functions.blkid_probe_lookup_value)(
                self.probe,
                name.as_ptr(),
                &mut data,
                &mut len,
            )
        };
        if found != 0 || data.is_null() {
            return None;
        }
        // SAFETY: the library has returned `len` bytes, which stay valid until it probes again.
        let bytes = unsafe { std::slice::from_raw_parts(data.cast::<u8>(), len) };
        let text = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
        Some(String::from_utf8_lossy(text).into_owned()).filter(|text| !text.is_empty())
    }

    fn mark(&self) -> Option<Signature> {
        let offset = |name| self.value(name)?.parse().ok();
        if let Some(kind) = self.value(c"TYPE") {
            return Some(Signature {
                usage: Usage::of(&self.value(c"USAGE").unwrap_or_default()),
                kind,
                label: self.value(c"LABEL"),
                uuid: self.value(c"UUID"),
                offset: offset(c"SBMAGIC_OFFSET").unwrap_or(0),
            });
        }
        Some(Signature {
            usage: Usage::PartitionTable,
            kind: self.value(c"PTTYPE")?,
            label: None,
            uuid: self.value(c"PTUUID"),
            offset: offset(c"PTMAGIC_OFFSET").unwrap_or(0),
        })
    }
}

fn unsupported(error: libloading::Error) -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, error)
}

/// Returns all marks of other systems on a device or file, at its start and its end, including
/// damaged ones: one for each system. Only reads. Call this in a separate process, because a C
/// library parses content that anyone may have written.
///
/// # Errors
/// `Unsupported` if libblkid is missing, or an error of reading the device.
pub fn marks(device: BorrowedFd<'_>) -> io::Result<Vec<Signature>> {
    let probing = Probing::new()?;
    let (functions, probe) = (&probing.functions, probing.probe);
    let superblocks =
        SUBLKS_LABEL | SUBLKS_UUID | SUBLKS_TYPE | SUBLKS_USAGE | SUBLKS_MAGIC | SUBLKS_BADCSUM;
    // SAFETY: the probe is valid. The library does not close the descriptor, which outlives the
    // probe. A size of 0 means all of the device.
    let ready = unsafe {
        (functions.blkid_probe_set_device)(probe, device.as_raw_fd(), 0, 0) == 0
            && (functions.blkid_probe_enable_superblocks)(probe, 1) == 0
            && (functions.blkid_probe_set_superblocks_flags)(probe, superblocks) == 0
            && (functions.blkid_probe_enable_partitions)(probe, 1) == 0
            && (functions.blkid_probe_set_partitions_flags)(probe, PARTS_MAGIC | PARTS_FORCE_GPT)
                == 0
    };
    if !ready {
        return Err(io::Error::last_os_error());
    }
    let mut found = Vec::new();
    while found.len() < MOST_MARKS && probing.next()? {
        found.extend(probing.mark());
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::io::{Seek, SeekFrom, Write};
    use std::os::fd::AsFd;

    use super::*;

    /// A sparse file of 64 MiB with these bytes.
    fn device(parts: &[(u64, &[u8])]) -> std::fs::File {
        let mut file = tempfile::tempfile().expect("writable");
        file.set_len(64 << 20).expect("sparse");
        for (at, bytes) in parts {
            file.seek(SeekFrom::Start(*at)).expect("in range");
            file.write_all(bytes).expect("writable");
        }
        file
    }

    #[test]
    fn marks_at_the_start_and_at_the_end_are_found_together() {
        if Probing::new().is_err() {
            return;
        }
        let found = |parts: &[(u64, &[u8])]| {
            let marks = marks(device(parts).as_fd()).expect("readable");
            marks.into_iter().map(|mark| (mark.kind, mark.offset)).collect::<Vec<_>>()
        };
        assert_eq!(found(&[]), []);
        // The magic of squashfs, and its version.
        let squashfs = [&b"hsqs"[..], &[0; 24], &[4, 0, 0, 0]].concat();
        // An md superblock of version 0.90: magic, then the version.
        let md = [&[0xfc, 0x4e, 0x2b, 0xa9, 0, 0, 0, 0, 90, 0, 0, 0][..], &[0; 4096]].concat();
        let end = (64 << 20) - (64 << 10);
        assert_eq!(found(&[(0, &squashfs)]), [("squashfs".to_owned(), 0)]);
        assert_eq!(found(&[(end, &md)]), [("linux_raid_member".to_owned(), end)]);
        let both = [("linux_raid_member".to_owned(), end), ("squashfs".to_owned(), 0)];
        assert_eq!(found(&[(0, &squashfs), (end, &md)]), both);
    }
}
