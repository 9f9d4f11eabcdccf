//! An array in chunks that are allocated when they are first written to: it may be large, and
//! zeroing all of it at once would stall a request.

use std::sync::OnceLock;

/// Elements per chunk.
const CHUNK: u64 = 4096;

/// See the module. Lanes share it; the elements are changed in place.
pub(crate) struct Chunked<T> {
    chunks: Box<[OnceLock<Box<[T]>>]>,
    len: u64,
}

impl<T: Default> Chunked<T> {
    /// Creates an array of `len` elements; at least one, at most 2^32 - 1.
    pub(crate) fn new(len: u64) -> Self {
        let len = len.clamp(1, u64::from(u32::MAX));
        Chunked { chunks: (0..len.div_ceil(CHUNK)).map(|_| OnceLock::new()).collect(), len }
    }

    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Returns the memory in bytes once every chunk is allocated.
    pub(crate) fn bytes(&self) -> u64 {
        self.len * size_of::<T>() as u64
    }

    /// Returns the index that the upper half of a hash chooses.
    pub(crate) fn of_hash(&self, hash: u64) -> u64 {
        ((hash >> 32) * self.len) >> 32
    }

    /// Returns an element, if it exists and its chunk is allocated.
    pub(crate) fn get(&self, index: u64) -> Option<&T> {
        self.chunks.get((index / CHUNK) as usize)?.get()?.get((index % CHUNK) as usize)
    }

    /// Returns an element, if it exists; allocates its chunk.
    pub(crate) fn get_or_init(&self, index: u64) -> Option<&T> {
        let number = index / CHUNK;
        let chunk = self.chunks.get(number as usize)?;
        let elements = (self.len - number * CHUNK).min(CHUNK);
        let chunk = chunk.get_or_init(|| (0..elements).map(|_| T::default()).collect());
        chunk.get((index % CHUNK) as usize)
    }
}
