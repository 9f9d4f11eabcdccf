//! A bound on the allocations of a target. An allocation beyond it fails, which ends the process
//! with the requested size.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

static LIVE: AtomicUsize = AtomicUsize::new(0);
static LIMIT: AtomicUsize = AtomicUsize::new(usize::MAX);

struct Bounded;

#[global_allocator]
static ALLOCATOR: Bounded = Bounded;

impl Bounded {
    fn take(&self, bytes: usize) -> bool {
        let live = LIVE.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
        // A panic may take what it needs to say what happened.
        let fits = live <= LIMIT.load(Ordering::Relaxed) || std::thread::panicking();
        if !fits {
            LIVE.fetch_sub(bytes, Ordering::Relaxed);
        }
        fits
    }
}

// SAFETY: every call goes to the system's allocator as it is, or returns null, which is allowed.
unsafe impl GlobalAlloc for Bounded {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if !self.take(layout.size()) {
            return std::ptr::null_mut();
        }
        // SAFETY: as promised by the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if !self.take(layout.size()) {
            return std::ptr::null_mut();
        }
        // SAFETY: as promised by the caller.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as promised by the caller.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if !self.take(size) {
            return std::ptr::null_mut();
        }
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as promised by the caller.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

/// Runs `work`, which may hold `bytes` bytes more at a time than there are in use now.
pub(crate) fn within<T>(bytes: usize, work: impl FnOnce() -> T) -> T {
    LIMIT.store(LIVE.load(Ordering::Relaxed).saturating_add(bytes), Ordering::Relaxed);
    let result = work();
    LIMIT.store(usize::MAX, Ordering::Relaxed);
    result
}
