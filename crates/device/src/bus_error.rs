//! Survives the loss of memory that another process shares with this one.
//!
//! A process that truncates the file behind a shared mapping makes the next access of every other
//! process raise SIGBUS. For mappings registered here, the signal handler replaces the mapping with
//! private zeroed memory and marks it as damaged; the access is then repeated and succeeds. Every
//! other SIGBUS goes to the previously installed handler.

use std::ffi::{c_int, c_void};
use std::io;
use std::ptr::NonNull;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};

/// Maximum number of mappings at a time. A signal handler must not allocate, so the table has a
/// fixed size.
const MOST: usize = 1024;

/// Marks an entry that is being filled; not an address of a mapping.
const RESERVED: usize = 1;

/// One registered mapping.
struct MappingEntry {
    /// Address of the first byte; 0: the entry is free.
    start: AtomicUsize,
    len: AtomicUsize,
    damaged: AtomicBool,
    /// Number of changes of the entry: odd while `start` and `len` do not belong together.
    changes: AtomicUsize,
}

impl MappingEntry {
    /// Returns the first byte and the length of the mapping; `None` if the entry is free or being
    /// changed.
    fn mapping(&self) -> Option<(usize, usize)> {
        self.mapping_after(|| ())
    }

    /// Like [`MappingEntry::mapping`], with something in between.
    fn mapping_after(&self, between: impl FnOnce()) -> Option<(usize, usize)> {
        let before = self.changes.load(Ordering::Acquire);
        let start = self.start.load(Ordering::Relaxed);
        between();
        let len = self.len.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        let same = self.changes.load(Ordering::Relaxed) == before;
        (same && before.is_multiple_of(2) && start > RESERVED).then_some((start, len))
    }

    /// Fills a reserved entry.
    fn set(&self, start: usize, len: usize) {
        self.change(|| {
            self.len.store(len, Ordering::Relaxed);
            self.start.store(start, Ordering::Relaxed);
        });
    }

    /// Releases the entry. Another owner changes it only after this.
    fn free(&self) {
        self.change(|| self.start.store(RESERVED, Ordering::Relaxed));
        self.start.store(0, Ordering::Release);
    }

    /// Changes the entry atomically for readers.
    fn change(&self, change: impl FnOnce()) {
        self.changes.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::Release);
        change();
        self.changes.fetch_add(1, Ordering::Release);
    }
}

static ENTRIES: [MappingEntry; MOST] = [const {
    MappingEntry {
        start: AtomicUsize::new(0),
        len: AtomicUsize::new(0),
        damaged: AtomicBool::new(false),
        changes: AtomicUsize::new(0),
    }
}; MOST];

/// The previously installed handler.
static PREVIOUS: OnceLock<libc::sigaction> = OnceLock::new();

/// A registered mapping; dropping this ends the registration.
#[derive(Debug)]
pub(crate) struct Guarded(usize);

impl Guarded {
    /// Registers a mapping of whole pages.
    ///
    /// # Errors
    /// The table is full, or the handler cannot be installed.
    pub(crate) fn new(start: NonNull<u8>, len: usize) -> io::Result<Self> {
        install()?;
        for (index, entry) in ENTRIES.iter().enumerate() {
            let taken =
                entry.start.compare_exchange(0, RESERVED, Ordering::Acquire, Ordering::Relaxed);
            if taken.is_ok() {
                entry.damaged.store(false, Ordering::Relaxed);
                entry.set(start.as_ptr().expose_provenance(), len);
                return Ok(Guarded(index));
            }
        }
        Err(io::Error::new(io::ErrorKind::OutOfMemory, "too many mappings of shared memory"))
    }

    /// Returns whether the mapping was replaced by zeroed memory.
    pub(crate) fn is_damaged(&self) -> bool {
        ENTRIES.get(self.0).is_none_or(|entry| entry.damaged.load(Ordering::Acquire))
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        if let Some(entry) = ENTRIES.get(self.0) {
            entry.free();
        }
    }
}

/// Installs the handler, once.
fn install() -> io::Result<()> {
    static INSTALLED: OnceLock<Result<(), i32>> = OnceLock::new();
    let installed = INSTALLED.get_or_init(|| {
        // SAFETY: all-zero bytes are a valid `sigaction`: plain integers, an empty set of signals
        // and no handler.
        let mut before: libc::sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: a null pointer for the new action only asks for the present one.
        if unsafe { libc::sigaction(libc::SIGBUS, std::ptr::null(), &raw mut before) } != 0 {
            return Err(io::Error::last_os_error().raw_os_error().unwrap_or(0));
        }
        // Set this before the handler can run, because the handler must not wait for it.
        let _ = PREVIOUS.set(before);
        // SAFETY: as above.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = on_bus_error;
        action.sa_sigaction = handler as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        // SAFETY: the handler has the signature that `SA_SIGINFO` asks for, and calls only
        // functions that a signal handler may call: atomic loads and stores, and system calls.
        match unsafe { libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut()) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error().raw_os_error().unwrap_or(0)),
        }
    });
    installed.map_err(io::Error::from_raw_os_error)
}

/// Returns the mapping around `address`, with its first byte and length. A mapping that a thread is
/// accessing is registered all the time, and overlaps no other.
fn find(address: usize) -> Option<(&'static MappingEntry, usize, usize)> {
    ENTRIES.iter().find_map(|entry| {
        let (start, len) = entry.mapping()?;
        (address >= start && address - start < len).then_some((entry, start, len))
    })
}

/// Replaces the mapping around `address`. Returns `false` if there is none.
fn replace(address: usize) -> bool {
    if let Some((entry, start, len)) = find(address) {
        entry.damaged.store(true, Ordering::Release);
        let (place, protection) =
            (std::ptr::with_exposed_provenance_mut(start), ProtFlags::READ | ProtFlags::WRITE);
        let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
        // SAFETY: the range is one mapping that its owner has registered and not removed, because a
        // thread is accessing it at this moment. It is accessed through raw pointers alone, as
        // memory that may change at any time.
        return unsafe { mmap_anonymous(place, len, protection, flags) }.is_ok();
    }
    false
}

extern "C" fn on_bus_error(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes a valid structure, and for SIGBUS it has an address.
    let address = unsafe { (*info).si_addr() }.addr();
    if replace(address) {
        return;
    }
    let previous = PREVIOUS.get();
    if let Some(previous) = previous
        && previous.sa_flags & libc::SA_SIGINFO != 0
        && previous.sa_sigaction > RESERVED
    {
        // SAFETY: an action with `SA_SIGINFO` and an address has a handler of this signature.
        let handler = unsafe {
            std::mem::transmute::<usize, extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void)>(
                previous.sa_sigaction,
            )
        };
        handler(signal, info, context);
        return;
    }
    // No handler is left: the access is repeated after this, and ends the process as usual.
    // SAFETY: all-zero bytes are a valid `sigaction`, with the default handler.
    let default: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: `default` is valid, and the call may be made in a signal handler.
    unsafe { libc::sigaction(signal, &raw const default, std::ptr::null_mut()) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn start_and_length_of_a_mapping_belong_together() {
        let (changes, damaged) = (AtomicUsize::new(0), AtomicBool::new(false));
        let entry =
            MappingEntry { start: AtomicUsize::new(0), len: AtomicUsize::new(0), damaged, changes };
        assert_eq!(entry.mapping(), None);
        entry.set(0x10_0000, 0x1000);
        assert_eq!(entry.mapping(), Some((0x10_0000, 0x1000)));
        let reused = || {
            entry.free();
            entry.set(0x900_0000, 0x100_0000);
        };
        assert_eq!(entry.mapping_after(reused), None, "the start of one, the length of another");
        assert_eq!(entry.mapping(), Some((0x900_0000, 0x100_0000)));
        assert_eq!(entry.mapping_after(|| entry.free()), None);
        assert_eq!(entry.mapping(), None);
        let half = || entry.changes.fetch_add(1, Ordering::Relaxed);
        entry.set(0x10_0000, 0x1000);
        half();
        assert_eq!(entry.mapping(), None, "while it is changed");
        half();
        assert_eq!(entry.mapping(), Some((0x10_0000, 0x1000)));
    }
}
