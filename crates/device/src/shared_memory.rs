//! Memory shared with another process, which may change it at any time.
//!
//! No reference to these bytes ever exists: they are copied in and out through raw pointers, so
//! that code decides about a private copy, and fields that both sides poll are atomic. Every access
//! is checked against the length of the mapping. If the other process truncates the file, accesses
//! read zeroes and [`SharedMemory::is_intact`] returns `false`.

use std::io;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU64, Ordering};

use rustix::fs::{FileType, fstat, fstatfs};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::bus_error::Guarded;

/// The type of file system whose files consist of huge pages.
const HUGETLBFS: u64 = 0x9584_58f6;
/// The type of file system whose files are in memory, as those of memfd are.
const TMPFS: u64 = 0x0102_1994;

/// An access that is not inside the mapping or not aligned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{len} bytes at {at} are not inside the shared memory")]
pub struct Outside {
    /// First byte, from the start of the memory.
    pub at: u64,
    /// Length in bytes.
    pub len: u64,
}

/// The file is not on a file system in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the memory is a file of a file system of type {0:#x}, on which an access may wait for a device; share memory of \
     memfd, tmpfs or hugetlbfs"
)]
struct NotInMemory(u64);

/// Limit on the address space of all mappings together. A sparse file can be as large as the whole
/// address space, and without a part of it the rest of the program could not allocate memory.
const ROOM: u64 = 1 << 46;

/// Bytes of address space in use.
static TAKEN: AtomicU64 = AtomicU64::new(0);

/// A reservation of address space, released on drop.
#[derive(Debug)]
struct AddressSpaceHold(u64);

impl AddressSpaceHold {
    fn take(bytes: u64) -> Option<Self> {
        let add = |taken: u64| taken.checked_add(bytes).filter(|taken| *taken <= ROOM);
        TAKEN
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, add)
            .ok()
            .map(|_| AddressSpaceHold(bytes))
    }
}

impl Drop for AddressSpaceHold {
    fn drop(&mut self) {
        TAKEN.fetch_sub(self.0, Ordering::Relaxed);
    }
}

/// A part of a file, mapped for reading and writing.
#[derive(Debug)]
pub struct SharedMemory {
    /// First byte of the mapping.
    mapping: NonNull<u8>,
    mapped: usize,
    /// Bytes of the mapping before the first requested byte.
    lead: usize,
    len: usize,
    guard: Option<Guarded>,
    _room: AddressSpaceHold,
}

// SAFETY: this owns its mapping. Its bytes are accessed through raw pointers and atomics only, as
// memory that others change at any time.
unsafe impl Send for SharedMemory {}
// SAFETY: as above.
unsafe impl Sync for SharedMemory {}

impl SharedMemory {
    /// Maps `len` bytes of a file from `offset`.
    ///
    /// # Errors
    /// `InvalidInput` if the file is not a regular file, not in memory, or too short; otherwise the
    /// system's error.
    pub fn map(file: impl AsFd, offset: u64, len: u64) -> io::Result<Self> {
        let invalid = |what| io::Error::new(io::ErrorKind::InvalidInput, what);
        let found = fstat(&file)?;
        if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
            return Err(invalid("shared memory must be a regular file"));
        }
        // On any other file system an access may wait for a disk, a server or a program, and block
        // the lane.
        let system = file_system(&file)?;
        if ![TMPFS, HUGETLBFS].contains(&system) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, NotInMemory(system)));
        }
        let size = u64::try_from(found.st_size).unwrap_or(0);
        let inside = offset.checked_add(len).is_some_and(|end| end <= size);
        if len == 0 || !inside {
            return Err(invalid("the file is shorter than the memory that it shall hold"));
        }
        let unit = page_size(&file, system)?;
        let lead = (offset % unit as u64) as usize;
        let wanted = usize::try_from(len).ok().and_then(|len| len.checked_add(lead));
        let mapped = wanted.and_then(|len| len.checked_next_multiple_of(unit));
        let (Some(mapped), Ok(len)) = (mapped, usize::try_from(len)) else {
            return Err(invalid("the memory is larger than the address space"));
        };
        if isize::try_from(mapped).is_err() {
            return Err(invalid("the memory is larger than the address space"));
        }
        let Some(room) = AddressSpaceHold::take(mapped as u64) else {
            return Err(invalid("there is no room for it in the address space"));
        };
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let start = offset - lead as u64;
        // SAFETY: the kernel chooses the place, so no existing mapping is touched.
        let address = unsafe {
            mmap(std::ptr::null_mut(), mapped, protection, MapFlags::SHARED, &file, start)?
        };
        let Some(mapping) = NonNull::new(address.cast()) else {
            return Err(io::Error::from(io::ErrorKind::OutOfMemory));
        };
        let mut memory = SharedMemory { mapping, mapped, lead, len, guard: None, _room: room };
        memory.guard = Some(Guarded::new(mapping, mapped)?);
        Ok(memory)
    }

    /// Returns the length in bytes, which is not 0.
    #[expect(clippy::len_without_is_empty, reason = "it is never empty")]
    pub fn len(&self) -> u64 {
        self.len as u64
    }

    /// Returns whether the memory is still that of the file.
    pub fn is_intact(&self) -> bool {
        !self.guard.as_ref().is_none_or(Guarded::is_damaged)
    }

    /// Returns the address of `len` bytes from `at`.
    #[inline]
    fn place(&self, at: u64, len: usize) -> Result<*mut u8, Outside> {
        let end = at.checked_add(len as u64);
        if end.is_none_or(|end| end > self.len as u64) {
            return Err(Outside { at, len: len as u64 });
        }
        // In range of `usize`, because it is at most `self.len`.
        Ok(self.mapping.as_ptr().wrapping_add(self.lead).wrapping_add(at as usize))
    }

    /// Returns the address of a field of `len` bytes that is aligned to its length.
    #[inline]
    fn field(&self, at: u64, len: usize) -> Result<*mut u8, Outside> {
        let place = self.place(at, len)?;
        match place.addr().is_multiple_of(len) {
            true => Ok(place),
            false => Err(Outside { at, len: len as u64 }),
        }
    }

    /// Copies bytes from `at` into `into`. Bytes that change meanwhile may be old or new.
    ///
    /// # Errors
    /// The range is not inside the mapping; nothing was copied.
    #[inline]
    pub fn read(&self, at: u64, into: &mut [u8]) -> Result<(), Outside> {
        let place = self.place(at, into.len())?;
        // SAFETY: `place` checked that the source is inside the mapping, which stays as long as
        // this value; the destination is borrowed exclusively and is not in the mapping, to which
        // there are no references. Another process may write to the source meanwhile. Any bytes are
        // valid `u8`s, and the caller sees only the copy.
        unsafe { std::ptr::copy_nonoverlapping(place.cast_const(), into.as_mut_ptr(), into.len()) }
        Ok(())
    }

    /// Copies bytes to `at`.
    ///
    /// # Errors
    /// The range is not inside the mapping; nothing was copied.
    #[inline]
    pub fn write(&self, at: u64, from: &[u8]) -> Result<(), Outside> {
        let place = self.place(at, from.len())?;
        // SAFETY: as in `read`, in the other direction. Other lanes and processes may access the
        // destination meanwhile; they, too, know it as memory that may change at any time.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), place, from.len()) }
        Ok(())
    }
}

macro_rules! field {
    ($atomic:ty, $integer:ty, $load:ident, $store:ident) => {
        impl SharedMemory {
            /// Loads an aligned field, atomically, in the byte order of this machine.
            ///
            /// # Errors
            /// The field is not inside the mapping, or not aligned.
            #[inline]
            pub fn $load(&self, at: u64, order: Ordering) -> Result<$integer, Outside> {
                let place = self.field(at, size_of::<$integer>())?;
                // SAFETY: `field` checked that it is inside the mapping, which stays as long as
                // this value, and aligned. What two sides access at the same time is accessed
                // atomically.
                Ok(unsafe { <$atomic>::from_ptr(place.cast()) }.load(order))
            }

            /// Stores an aligned field, atomically, in the byte order of this machine.
            ///
            /// # Errors
            /// The field is not inside the mapping, or not aligned.
            #[inline]
            pub fn $store(&self, at: u64, value: $integer, order: Ordering) -> Result<(), Outside> {
                let place = self.field(at, size_of::<$integer>())?;
                // SAFETY: as for the load.
                unsafe { <$atomic>::from_ptr(place.cast()) }.store(value, order);
                Ok(())
            }
        }
    };
}

field!(AtomicU8, u8, load_u8, store_u8);
field!(AtomicU16, u16, load_u16, store_u16);
field!(AtomicU64, u64, load_u64, store_u64);

impl Drop for SharedMemory {
    fn drop(&mut self) {
        // Remove the registration first, because another mapping may get these addresses at once.
        self.guard = None;
        // SAFETY: the mapping was made in `map` with this length and is removed once; no reference
        // or pointer to it is left.
        let _ = unsafe { munmap(self.mapping.as_ptr().cast(), self.mapped) };
    }
}

/// Returns the type of the file system of a file.
fn file_system(file: impl AsFd) -> io::Result<u64> {
    Ok(fstatfs(file)?.f_type as u64 & 0xffff_ffff)
}

/// Returns the unit of mappings of a file on this type of file system, in bytes.
fn page_size(file: impl AsFd, system: u64) -> io::Result<usize> {
    if system == HUGETLBFS {
        return usize::try_from(fstatfs(file)?.f_bsize)
            .map_err(|_| io::Error::from(io::ErrorKind::InvalidInput));
    }
    Ok(rustix::param::page_size())
}

// The interpreter has no shared mappings.
#[cfg(all(test, not(miri)))]
mod tests {
    use std::os::fd::OwnedFd;
    use std::path::Path;

    use rustix::fs::{MemfdFlags, Mode, OFlags, ftruncate, memfd_create};

    use super::*;

    fn file(len: u64) -> OwnedFd {
        let file = memfd_create("test", MemfdFlags::CLOEXEC).expect("memory");
        ftruncate(&file, len).expect("length");
        file
    }

    #[test]
    fn two_mappings_show_the_same_bytes() {
        let file = file(3 * 4096);
        let whole = SharedMemory::map(&file, 0, 3 * 4096).expect("mapped");
        let part = SharedMemory::map(&file, 4096 + 100, 4096).expect("mapped");
        part.write(0, b"hello").expect("inside");
        let mut bytes = [0; 5];
        whole.read(4096 + 100, &mut bytes).expect("inside");
        assert_eq!(&bytes, b"hello");
        whole.store_u16(4096 + 104, 0x1234, Ordering::Release).expect("inside");
        assert_eq!(part.load_u16(4, Ordering::Acquire), Ok(0x1234));
        whole.store_u64(4096 + 104, 7, Ordering::Relaxed).expect("inside");
        assert_eq!(part.load_u8(4, Ordering::Relaxed), Ok(7_u64.to_ne_bytes()[0]));
    }

    #[test]
    fn nothing_outside_is_accessed() {
        let memory = SharedMemory::map(file(8192), 0, 5000).expect("mapped");
        let mut bytes = [0; 8];
        for at in [4993, 5000, 8192, u64::MAX - 7, u64::MAX] {
            assert!(memory.read(at, &mut bytes).is_err(), "{at}");
            assert!(memory.write(at, &bytes).is_err(), "{at}");
        }
        assert!(memory.read(4992, &mut bytes).is_ok());
        assert!(memory.read(5000, &mut []).is_ok());
        for at in [1, 4999, 5000, u64::MAX] {
            assert!(memory.load_u16(at, Ordering::Relaxed).is_err(), "{at}");
            assert!(memory.store_u16(at, 1, Ordering::Relaxed).is_err(), "{at}");
        }
        assert!(memory.load_u64(4, Ordering::Relaxed).is_err(), "not aligned");
    }

    #[test]
    fn ranges_beyond_the_file_are_not_mapped() {
        for (offset, len) in [(0, 8193), (8192, 1), (4096, 4097), (u64::MAX, 2), (0, 0)] {
            assert!(SharedMemory::map(file(8192), offset, len).is_err(), "{offset}+{len}");
        }
        let (reader, _writer) = std::io::pipe().expect("pipe");
        assert!(SharedMemory::map(&reader, 0, 1).is_err());
        let null = std::fs::File::open("/dev/zero").expect("there");
        assert!(SharedMemory::map(&null, 0, 4096).is_err());
    }

    #[test]
    fn sparse_files_leave_room_in_the_address_space() {
        const BYTES: u64 = 1 << 44;
        let map = || SharedMemory::map(file(BYTES), 0, BYTES);
        let mut all: Vec<_> = (0..3).map(|_| map().expect("there is room")).collect();
        all.extend(map());
        assert!(map().is_err(), "five times 16 TiB");
        all.clear();
        map().expect("there is room again");
    }

    #[test]
    fn only_files_in_memory_are_mapped() {
        let open = |dir: &Path| {
            let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
            let file = rustix::fs::open(dir, flags, Mode::RUSR).expect("a file");
            ftruncate(&file, 8192).expect("length");
            file
        };
        let dirs =
            [Path::new(env!("CARGO_MANIFEST_DIR")), &std::env::temp_dir(), "/dev/shm".as_ref()];
        for dir in dirs {
            let file = open(dir);
            let in_memory = [TMPFS, HUGETLBFS].contains(&file_system(&file).expect("known"));
            match SharedMemory::map(&file, 0, 8192) {
                Ok(_) => assert!(in_memory, "{}", dir.display()),
                Err(error) => {
                    assert!(!in_memory && error.to_string().contains("tmpfs"), "{error}");
                }
            }
        }
    }

    #[test]
    fn a_truncated_file_damages_its_mapping_alone() {
        let (good, bad) = (file(8192), file(8192));
        let healthy = SharedMemory::map(&good, 0, 8192).expect("mapped");
        for access in 0..3 {
            let memory = SharedMemory::map(&bad, 0, 8192).expect("mapped");
            memory.write(4096, &[7; 8]).expect("inside");
            ftruncate(&bad, 4096).expect("shorter");
            assert!(memory.is_intact());
            let mut bytes = [1; 8];
            match access {
                0 => memory.read(4096, &mut bytes).expect("survives"),
                1 => memory.write(8000, &bytes).expect("survives"),
                _ => drop(memory.load_u16(4096, Ordering::SeqCst).expect("survives")),
            }
            assert!(!memory.is_intact());
            memory.read(4096, &mut bytes).expect("survives");
            assert_eq!(bytes, [0; 8]);
            ftruncate(&bad, 8192).expect("longer");
        }
        assert!(healthy.is_intact());
        assert!(SharedMemory::map(&bad, 0, 8192).expect("mapped").is_intact());
    }
}
