//! Aligned buffers that own their bytes.
//!
//! The memory of an [`IoBuf`] starts at a multiple of 4096 bytes, as direct I/O needs it. It comes
//! from a free list of the thread and returns to the free list of the thread that drops its last
//! part; in the steady state an I/O allocates nothing.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::cell::RefCell;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Alignment of every allocation in bytes.
pub const BUFFER_ALIGN: usize = 4096;

/// Base-two logarithm of the smallest pooled allocation.
const MIN_SHIFT: u32 = 9;
/// Base-two logarithm of the largest pooled allocation; larger ones are allocated each time.
const MAX_SHIFT: u32 = 22;
const CLASSES: usize = (MAX_SHIFT - MIN_SHIFT + 1) as usize;
/// Default number of bytes that one size class of one thread keeps, unless that is too few buffers
/// to be useful.
const CLASS_BYTES: usize = 4 << 20;
/// Default number of bytes that all classes of one thread keep.
const USUAL_BYTES: usize = 64 << 20;

/// Bytes that one size class of one thread may keep.
static CLASS_KEEPS: AtomicUsize = AtomicUsize::new(CLASS_BYTES);

/// Limits the free buffers that every thread keeps to about `bytes`, or less if more would be
/// useless. Returns the number of bytes.
pub fn keep_buffers(bytes: u64) -> u64 {
    let usual = bytes >= USUAL_BYTES as u64;
    let keeps = if usual { CLASS_BYTES } else { bytes as usize / CLASSES };
    CLASS_KEEPS.store(keeps, Ordering::Relaxed);
    bytes.min(USUAL_BYTES as u64)
}

/// One allocation, shared by the parts into which a buffer was split.
struct Allocation {
    memory: NonNull<u8>,
    layout: Layout,
}

// SAFETY: a block is only a handle on memory that it owns. The bytes are reached through the
// `IoBuf`s that share the block, and no two of these cover the same byte (see `IoBuf`).
unsafe impl Send for Allocation {}
// SAFETY: as above; nothing in a block itself changes after it was made.
unsafe impl Sync for Allocation {}

impl Allocation {
    /// Allocates `size` bytes of zeroed memory; `size` must not be 0.
    fn new(size: usize) -> Self {
        let Ok(layout) = Layout::from_size_align(size.max(1), BUFFER_ALIGN) else {
            panic!("a buffer of {size} bytes is beyond the address space");
        };
        // SAFETY: the size of the layout is not 0.
        let memory = unsafe { alloc_zeroed(layout) };
        match NonNull::new(memory) {
            Some(memory) => Allocation { memory, layout },
            None => handle_alloc_error(layout),
        }
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        // SAFETY: `memory` was allocated with `layout` in `Allocation::new` and is freed once,
        // here; the buffers that used it are gone because each holds a reference to this block.
        unsafe { dealloc(self.memory.as_ptr(), self.layout) }
    }
}

/// The free blocks of one thread, by size class.
struct FreeList {
    classes: [Vec<Arc<Allocation>>; CLASSES],
}

thread_local! {
    static FREE: RefCell<FreeList> =
        const { RefCell::new(FreeList { classes: [const { Vec::new() }; CLASSES] }) };
}

/// Returns the size class for `len` bytes; `None` if they are too many to be pooled.
fn class_for(len: usize) -> Option<usize> {
    let shift = len.max(1 << MIN_SHIFT).checked_next_power_of_two()?.trailing_zeros();
    (shift <= MAX_SHIFT).then_some((shift - MIN_SHIFT) as usize)
}

fn class_size(class: usize) -> usize {
    1 << (class + MIN_SHIFT as usize)
}

/// Returns the number of blocks of a class that a thread keeps.
fn class_limit(class: usize) -> usize {
    let bytes = CLASS_KEEPS.load(Ordering::Relaxed);
    let useful = if bytes == CLASS_BYTES { 4 } else { 0 };
    (bytes / class_size(class)).clamp(useful, 1024)
}

impl FreeList {
    /// Returns a block without other references, and whether its bytes are known to be zero.
    fn take(len: usize) -> (Arc<Allocation>, bool) {
        let Some(class) = class_for(len) else {
            return (Arc::new(Allocation::new(len)), true);
        };
        // The free list no longer exists while the thread ends; buffers still work then.
        match FREE.try_with(|free| free.borrow_mut().classes[class].pop()) {
            Ok(Some(block)) => (block, false),
            Ok(None) | Err(_) => (Arc::new(Allocation::new(class_size(class))), true),
        }
    }

    /// Keeps `block` if this was the last reference to it and there is room.
    fn give(mut block: Arc<Allocation>) {
        // If two threads drop parts at the same moment, each may see the other's reference: the
        // block is then freed instead of kept, which only costs a later allocation.
        let Some(unique) = Arc::get_mut(&mut block) else { return };
        let size = unique.layout.size();
        let Some(class) = class_for(size).filter(|&class| class_size(class) == size) else {
            return;
        };
        let _ = FREE.try_with(|free| {
            let kept = &mut free.borrow_mut().classes[class];
            if kept.len() < class_limit(class) {
                kept.push(block);
            }
        });
    }
}

/// Bytes for I/O, owned and aligned to 4096 bytes (parts made by [`IoBuf::split_off`] are aligned
/// like the position of the split).
///
/// No two buffers ever cover the same byte. The address of the bytes does not change when the
/// buffer is moved.
pub struct IoBuf {
    /// First byte; dangling if there is no block.
    start: NonNull<u8>,
    len: usize,
    /// `None` for a buffer that was created empty.
    block: Option<Arc<Allocation>>,
}

// SAFETY: `start..start + len` lies in `block`, which this buffer keeps alive, and no other buffer
// covers any of it; so this is an owned slice, like `Box<[u8]>`.
unsafe impl Send for IoBuf {}
// SAFETY: through `&IoBuf` bytes can only be read.
unsafe impl Sync for IoBuf {}

impl IoBuf {
    fn from_block(block: Arc<Allocation>, len: usize) -> Self {
        debug_assert!(len <= block.layout.size());
        IoBuf { start: block.memory, len, block: Some(block) }
    }

    /// Returns a buffer without bytes; allocates nothing.
    pub const fn empty() -> Self {
        IoBuf { start: NonNull::dangling(), len: 0, block: None }
    }

    /// Returns a buffer of `len` bytes, all 0.
    pub fn zeroed(len: usize) -> Self {
        if len == 0 {
            return Self::empty();
        }
        let (block, zero) = FreeList::take(len);
        let mut buf = Self::from_block(block, len);
        if !zero {
            buf.fill(0);
        }
        buf
    }

    /// Returns a buffer of `len` bytes of unspecified content, to be overwritten: the cheapest way
    /// to get a buffer.
    pub fn for_overwrite(len: usize) -> Self {
        if len == 0 {
            return Self::empty();
        }
        // Memory is zeroed when it is allocated, so blocks from the free list contain old bytes but
        // never uninitialised ones.
        Self::from_block(FreeList::take(len).0, len)
    }

    /// Returns a copy of `bytes`.
    pub fn copy_from(bytes: &[u8]) -> Self {
        let mut buf = Self::for_overwrite(bytes.len());
        buf.copy_from_slice(bytes);
        buf
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Shortens the buffer to `len` bytes; no effect if it is not longer.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Splits the buffer: this one keeps the bytes before `at`, the returned one has those from
    /// `at` on. Nothing is copied; the memory is freed when both are dropped.
    ///
    /// # Panics
    /// `at` is greater than the length.
    pub fn split_off(&mut self, at: usize) -> IoBuf {
        assert!(at <= self.len, "a buffer of {} bytes cannot be split at {at}", self.len);
        // SAFETY: `at <= len`, so the result is inside the allocation or one past its end.
        let start = unsafe { self.start.add(at) };
        let rest = IoBuf { start, len: self.len - at, block: self.block.clone() };
        self.len = at;
        rest
    }

    /// Appends `next` to this buffer: without a copy if they are neighbours, with a copy otherwise.
    pub fn join(self, next: IoBuf) -> IoBuf {
        self.unsplit(next).unwrap_or_else(|(front, back)| {
            let mut whole = IoBuf::zeroed(front.len() + back.len());
            whole[..front.len()].copy_from_slice(&front);
            whole[front.len()..].copy_from_slice(&back);
            whole
        })
    }

    /// Rejoins two parts of one buffer, without a copy.
    ///
    /// # Errors
    /// Returns both unless `next` begins where this one ends, in the same memory.
    pub fn unsplit(mut self, next: IoBuf) -> Result<IoBuf, (IoBuf, IoBuf)> {
        if next.is_empty() {
            return Ok(self);
        }
        if self.is_empty() {
            return Ok(next);
        }
        let same = match (&self.block, &next.block) {
            (Some(mine), Some(theirs)) => Arc::ptr_eq(mine, theirs),
            _ => false,
        };
        // SAFETY: the end of this buffer is inside its allocation or one past its end.
        let end = unsafe { self.start.add(self.len) };
        if !same || end != next.start {
            return Err((self, next));
        }
        // `next` owned exactly the bytes that are added here, and is dropped now.
        self.len += next.len;
        Ok(self)
    }

    /// Returns the address of the first byte, for the kernel.
    pub(crate) fn as_io_ptr(&mut self) -> *mut u8 {
        self.start.as_ptr()
    }
}

impl Drop for IoBuf {
    fn drop(&mut self) {
        if let Some(block) = self.block.take() {
            FreeList::give(block);
        }
    }
}

impl Deref for IoBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the range lies in a live block (or is empty and dangling), was initialised when
        // the block was allocated, and belongs to this buffer alone, which is borrowed.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for IoBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and the buffer is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl Default for IoBuf {
    fn default() -> Self {
        Self::empty()
    }
}

impl From<&[u8]> for IoBuf {
    fn from(bytes: &[u8]) -> Self {
        Self::copy_from(bytes)
    }
}

impl fmt::Debug for IoBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IoBuf").field("len", &self.len).finish_non_exhaustive()
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "what threads share is tried with threads")]
mod tests {
    use super::*;

    fn kept() -> usize {
        FREE.with(|free| free.borrow().classes.iter().map(Vec::len).sum())
    }

    #[test]
    fn buffers_are_aligned_and_zeroed_even_when_used_again() {
        for len in [1, 511, 512, 513, 4096, 5000, 1 << 16] {
            for _ in 0..2 {
                let mut buf = IoBuf::zeroed(len);
                assert_eq!(buf.len(), len);
                assert_eq!(buf.as_ptr() as usize % BUFFER_ALIGN, 0);
                assert!(buf.iter().all(|&byte| byte == 0));
                buf.fill(0xff);
            }
        }
    }

    #[test]
    fn memory_comes_back_when_the_last_part_is_dropped() {
        let before = kept();
        let mut first = IoBuf::for_overwrite(4096);
        let address = first.as_ptr();
        let mut second = first.split_off(1024);
        let third = second.split_off(1024);
        drop(first);
        drop(third);
        assert_eq!(kept(), before);
        drop(second);
        assert_eq!(kept(), before + 1);
        assert_eq!(IoBuf::for_overwrite(4000).as_ptr(), address);
    }

    #[test]
    fn the_free_list_is_bounded_by_class() {
        for class in 0..CLASSES {
            assert_eq!(class_for(class_size(class)), Some(class));
            assert_eq!(class_for(class_size(class) - 1), Some(class));
            assert!((4..=1024).contains(&class_limit(class)));
        }
        assert_eq!(class_for((1 << MAX_SHIFT) + 1), None);
        assert_eq!(class_for(usize::MAX), None);
        let class = class_for(1 << 20).expect("pooled");
        let many: Vec<_> = (0..9).map(|_| IoBuf::for_overwrite(1 << 20)).collect();
        drop(many);
        FREE.with(|free| assert_eq!(free.borrow().classes[class].len(), class_limit(class)));
    }

    #[test]
    fn parts_are_disjoint_and_join_only_where_they_were_cut() {
        for cut in 0..=16 {
            let mut head = IoBuf::zeroed(16);
            let mut tail = head.split_off(cut);
            assert_eq!((head.len(), tail.len()), (cut, 16 - cut));
            head.fill(1);
            tail.fill(2);
            assert!(head.iter().all(|&byte| byte == 1));
            let whole = head.unsplit(tail).expect("adjacent");
            assert_eq!(whole.iter().filter(|&&byte| byte == 1).count(), cut);
            assert_eq!(whole.len(), 16);
        }
        let mut head = IoBuf::zeroed(16);
        let mut middle = head.split_off(4);
        let tail = middle.split_off(4);
        let (head, tail) = head.unsplit(tail).expect_err("a gap");
        let (tail, head) = tail.unsplit(head).expect_err("the wrong order");
        let (_, other) = head.unsplit(IoBuf::zeroed(4)).expect_err("another allocation");
        middle.truncate(2);
        let _ = middle.unsplit(tail).expect_err("cut short");
        assert_eq!(other.unsplit(IoBuf::empty()).expect("empty joins").len(), 4);
    }

    #[test]
    fn parts_move_between_threads() {
        let mut first = IoBuf::zeroed(8192);
        let mut second = first.split_off(4096);
        std::thread::scope(|scope| {
            scope.spawn(|| first.fill(1));
            scope.spawn(|| second.fill(2));
        });
        let whole = first.unsplit(second).expect("adjacent");
        assert_eq!((whole[4095], whole[4096]), (1, 2));
        std::thread::spawn(move || drop(whole)).join().expect("no panic");
    }

    #[test]
    fn empty_buffers_have_no_memory() {
        let before = kept();
        for mut buf in [IoBuf::empty(), IoBuf::zeroed(0), IoBuf::for_overwrite(0)] {
            assert!(buf.is_empty() && buf.split_off(0).is_empty() && buf.iter().next().is_none());
        }
        assert_eq!(kept(), before);
        assert_eq!(&*IoBuf::from(&b"abc"[..]), b"abc");
    }

    #[test]
    #[should_panic(expected = "cannot be split")]
    fn a_cut_beyond_the_end_is_refused() {
        IoBuf::zeroed(4).split_off(5);
    }
}
