//! Large zeroed allocations, directly from the system, with huge pages if available.

use std::io;
use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;

/// Bytes in a page; lengths are multiples of it.
pub(crate) const PAGE: usize = 4096;

/// A page-aligned allocation, initially zero. It provides only a pointer; its owner decides which
/// threads may access which bytes.
#[derive(Debug)]
pub(crate) struct Pages {
    memory: NonNull<u8>,
    len: usize,
}

// SAFETY: this owns its memory and touches none of it; access goes through `start`, whose users
// answer for it.
unsafe impl Send for Pages {}
// SAFETY: as above; nothing in here changes.
unsafe impl Sync for Pages {}

impl Pages {
    /// Allocates `len` bytes, all 0. Pages use no RAM before they are accessed.
    ///
    /// # Errors
    /// `InvalidInput` unless `len` is a positive multiple of [`PAGE`]; the system's error if there
    /// is not enough address space.
    pub(crate) fn new(len: usize) -> io::Result<Self> {
        if len == 0 || !len.is_multiple_of(PAGE) || isize::try_from(len).is_err() {
            return Err(io::Error::from(io::ErrorKind::InvalidInput));
        }
        Ok(Pages { memory: Self::allocate(len)?, len })
    }

    /// Returns the address of the first byte.
    #[inline]
    pub(crate) fn start(&self) -> NonNull<u8> {
        self.memory
    }

    /// Returns the length in bytes.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Turns whole pages back into zeroes that use no RAM. Returns `false` if nothing has changed.
    ///
    /// # Safety
    /// As for a write: nothing else may access these bytes during the call, and no reference to
    /// them may outlive it.
    #[cfg(not(miri))]
    pub(crate) unsafe fn give_back(&self, start: usize, len: usize) -> bool {
        use rustix::mm::{Advice, madvise};

        let inside = start.checked_add(len).is_some_and(|end| end <= self.len);
        if !inside || !start.is_multiple_of(PAGE) || !len.is_multiple_of(PAGE) {
            return false;
        }
        let address = self.memory.as_ptr().wrapping_add(start).cast();
        // SAFETY: the range is inside this mapping, which is private and anonymous, so its pages
        // read as zeroes afterwards, which to the caller is a write.
        unsafe { madvise(address, len, Advice::LinuxDontNeed) }.is_ok()
    }

    /// The interpreter cannot return memory.
    ///
    /// # Safety
    /// None needed; as above.
    #[cfg(miri)]
    pub(crate) unsafe fn give_back(&self, _start: usize, _len: usize) -> bool {
        false
    }

    /// Keeps all pages in RAM from now on.
    ///
    /// # Errors
    /// The system's, as for `mlock(2)`.
    #[cfg(not(miri))]
    fn lock(&self) -> io::Result<()> {
        // SAFETY: the range is this mapping; locking does not change content.
        Ok(unsafe { rustix::mm::mlock(self.memory.as_ptr().cast(), self.len) }?)
    }

    /// Takes the RAM for all pages now.
    #[cfg(not(miri))]
    fn populate(&self) {
        use rustix::mm::{Advice, madvise};

        // SAFETY: the range is this mapping; its content stays. Where the kernel cannot, each page
        // is taken when it is accessed.
        let _ =
            unsafe { madvise(self.memory.as_ptr().cast(), self.len, Advice::LinuxPopulateWrite) };
    }

    /// Does nothing: the interpreter allocates memory at once.
    #[cfg(miri)]
    fn populate(&self) {}

    /// The interpreter never swaps.
    #[cfg(miri)]
    fn lock(&self) -> io::Result<()> {
        Ok(())
    }

    #[cfg(not(miri))]
    fn allocate(len: usize) -> io::Result<NonNull<u8>> {
        use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};

        /// The smallest allocation that can contain a huge page.
        const HUGE_PAGE: usize = 2 << 20;

        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: the kernel chooses the place, so no existing mapping is touched.
        let address = unsafe { mmap_anonymous(std::ptr::null_mut(), len, protection, flags)? };
        if len >= HUGE_PAGE {
            // SAFETY: the range is the mapping just made; this advice does not change content. It
            // is only advice, so a kernel without huge pages is no error.
            let _ = unsafe { madvise(address, len, Advice::LinuxHugepage) };
        }
        NonNull::new(address.cast()).ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))
    }

    #[cfg(not(miri))]
    fn free(&mut self) {
        // SAFETY: the mapping was made in `allocate` with this length and is removed once; its
        // users borrow from the owner of this value, so none is left.
        let _ = unsafe { rustix::mm::munmap(self.memory.as_ptr().cast(), self.len) };
    }

    /// The interpreter supports the allocator but no system calls.
    #[cfg(miri)]
    fn allocate(len: usize) -> io::Result<NonNull<u8>> {
        let layout = std::alloc::Layout::from_size_align(len, PAGE).map_err(io::Error::other)?;
        // SAFETY: `len` is not 0.
        let memory = unsafe { std::alloc::alloc_zeroed(layout) };
        NonNull::new(memory).ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))
    }

    #[cfg(miri)]
    fn free(&mut self) {
        if let Ok(layout) = std::alloc::Layout::from_size_align(self.len, PAGE) {
            // SAFETY: allocated in `allocate` with this layout, freed once.
            unsafe { std::alloc::dealloc(self.memory.as_ptr(), layout) }
        }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        self.free();
    }
}

/// A large area of bytes with one owner, initially 0, in huge pages if available. Pages use no RAM
/// before they are accessed.
#[derive(Debug)]
pub struct Area(Option<Pages>);

impl Area {
    /// Creates an area of `len` bytes, rounded up to whole pages.
    ///
    /// # Errors
    /// The system has not enough address space.
    pub fn new(len: usize) -> io::Result<Self> {
        if len == 0 {
            return Ok(Area(None));
        }
        let whole = len.checked_next_multiple_of(PAGE).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Area(Some(Pages::new(whole)?)))
    }

    /// Returns the address of the first byte, if there is one. The owner decides which threads
    /// access which bytes.
    pub(crate) fn start(&self) -> Option<NonNull<u8>> {
        self.0.as_ref().map(Pages::start)
    }

    /// Allocates the RAM for the whole area at once, which is faster than page by page.
    pub fn populate(&mut self) {
        if let Some(pages) = &self.0 {
            pages.populate();
        }
    }

    /// Allocates the RAM for the whole area and locks it, so that it is not swapped out. None of it
    /// can be released any more.
    ///
    /// # Errors
    /// There is not enough RAM, or this process may not lock so much.
    pub fn lock(&mut self) -> io::Result<()> {
        self.0.as_ref().map_or(Ok(()), Pages::lock)
    }

    /// Returns the RAM of the whole pages in a range to the system. Their content is lost; they use
    /// RAM again when they are accessed.
    pub fn release(&mut self, range: Range<usize>) {
        let Some(pages) = &self.0 else { return };
        let (start, end) = (range.start.next_multiple_of(PAGE), range.end.min(pages.len()));
        let end = end / PAGE * PAGE;
        if start < end {
            // SAFETY: this borrow is exclusive, so no other thread has a reference into the area.
            let _ = unsafe { pages.give_back(start, end - start) };
        }
    }
}

impl Deref for Area {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match &self.0 {
            // SAFETY: the mapping has this length, was zeroed when it was made, and is accessed
            // only through references that borrow from this owner.
            Some(pages) => unsafe {
                std::slice::from_raw_parts(pages.start().as_ptr(), pages.len())
            },
            None => &[],
        }
    }
}

impl DerefMut for Area {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        match &self.0 {
            // SAFETY: as in `deref`; this borrow is exclusive.
            Some(pages) => unsafe {
                std::slice::from_raw_parts_mut(pages.start().as_ptr(), pages.len())
            },
            None => &mut [],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_pages_are_given() {
        for len in [0, 1, 4095, 4097, usize::MAX, usize::MAX - 4095] {
            assert!(Pages::new(len).is_err(), "{len}");
        }
        for len in [4096, 8192, 4 << 20] {
            let pages = Pages::new(len).expect("memory");
            assert_eq!(pages.len(), len);
            assert_eq!(pages.start().as_ptr() as usize % PAGE, 0);
        }
    }

    #[test]
    fn locked_memory_stays() {
        let mut area = Area::new(2 * PAGE).expect("memory");
        // Every process may lock so little.
        area.lock().expect("locked");
        area[PAGE] = 7;
        area.release(0..2 * PAGE);
        assert_eq!(area[PAGE], 7);
        Area::new(0).expect("nothing").lock().expect("nothing to lock");
    }

    #[test]
    fn an_area_is_zero_and_keeps_what_is_written() {
        for len in [0, 1, 4096, 5000, (2 << 20) + 1] {
            let mut area = Area::new(len).expect("memory");
            area.populate();
            assert!(area.len() >= len && area.len() < len + PAGE);
            assert!(area.iter().all(|byte| *byte == 0));
            area.fill(7);
            assert!(area.iter().all(|byte| *byte == 7));
            let kept = len / 2;
            area.release(kept..len);
            assert!(area[..kept].iter().all(|byte| *byte == 7));
        }
        assert!(Area::new(usize::MAX).is_err());
    }
}
