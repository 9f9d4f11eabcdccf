//! Descriptor chains: the buffers of one request, as the guest lists them.

use crate::memory::{GuestAddress, GuestMemory, OutOfMemory, Window};
use forebay_device::Outside;

/// Bytes of a descriptor.
pub const DESCRIPTOR: u64 = 16;

/// Most descriptors of one request: a header, a status and four times the announced segments.
pub const DESCRIPTORS_MAX: u32 = 4 * crate::config::SEGMENTS_MAX + 2;

/// The first descriptor of a chain, which identifies the request to the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Head(pub u16);

/// A contiguous part of a request's buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The first byte.
    pub at: GuestAddress,
    /// Length in bytes.
    pub len: u32,
}

/// The buffers of a request: first those that the device reads, then those that it writes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Buffers {
    segments: Vec<Segment>,
    readable: usize,
}

/// The fault of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChainError {
    /// A descriptor refers to a descriptor that does not exist.
    #[error("descriptor {0} does not exist")]
    NoDescriptor(u16),
    /// The chain is too long, or a loop.
    #[error("a chain of descriptors is a loop or has more than {DESCRIPTORS_MAX}")]
    TooLong,
    /// A table of indirect descriptors has an invalid length, or is not allowed here.
    #[error("a table of indirect descriptors is invalid or not allowed")]
    Indirect,
    /// A buffer that the device reads follows a buffer that it writes.
    #[error("a readable buffer follows a writable one")]
    Order,
    /// A buffer is not in the guest's memory.
    #[error(transparent)]
    Memory(#[from] OutOfMemory),
    /// The table of descriptors is not in the client's memory.
    #[error(transparent)]
    Table(#[from] Outside),
}

const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;

#[derive(Clone, Copy)]
struct Descriptor {
    at: GuestAddress,
    len: u32,
    flags: u16,
    next: u16,
}

impl Descriptor {
    /// Copies a descriptor, so that the checked version is used even if the guest changes the
    /// original.
    #[inline]
    fn read(table: &Window, index: u16) -> Result<Self, Outside> {
        let mut bytes = [0; DESCRIPTOR as usize];
        table.read(u64::from(index) * DESCRIPTOR, &mut bytes)?;
        let [a0, a1, a2, a3, a4, a5, a6, a7, l0, l1, l2, l3, f0, f1, n0, n1] = bytes;
        Ok(Descriptor {
            at: GuestAddress(u64::from_le_bytes([a0, a1, a2, a3, a4, a5, a6, a7])),
            len: u32::from_le_bytes([l0, l1, l2, l3]),
            flags: u16::from_le_bytes([f0, f1]),
            next: u16::from_le_bytes([n0, n1]),
        })
    }
}

impl Buffers {
    /// Reads the chain that begins with `head` in a table of `size` descriptors, into the memory of
    /// `self`.
    ///
    /// # Errors
    /// See [`ChainError`].
    pub fn walk(
        &mut self,
        table: &Window,
        size: u16,
        head: Head,
        memory: &GuestMemory,
        indirect: bool,
    ) -> Result<(), ChainError> {
        self.segments.clear();
        self.readable = 0;
        let mut count = 0;
        let first = self.walk_table(table, size, head.0, memory, &mut count)?;
        let Some(descriptor) = first else { return Ok(()) };
        // The table must be the last descriptor of the chain.
        if !indirect || descriptor.flags & NEXT != 0 {
            return Err(ChainError::Indirect);
        }
        let len = u64::from(descriptor.len);
        if len == 0 || !len.is_multiple_of(DESCRIPTOR) {
            return Err(ChainError::Indirect);
        }
        let entries = u16::try_from(len / DESCRIPTOR).map_err(|_| ChainError::TooLong)?;
        let inner = memory.guest_window(descriptor.at, len)?;
        match self.walk_table(&inner, entries, 0, memory, &mut count)? {
            Some(_) => Err(ChainError::Indirect),
            None => Ok(()),
        }
    }

    /// Adds the descriptors of one table. Returns the descriptor of an indirect table if the chain
    /// continues there.
    fn walk_table(
        &mut self,
        table: &Window,
        size: u16,
        first: u16,
        memory: &GuestMemory,
        count: &mut u32,
    ) -> Result<Option<Descriptor>, ChainError> {
        let mut index = first;
        loop {
            if index >= size {
                return Err(ChainError::NoDescriptor(index));
            }
            *count += 1;
            if *count > DESCRIPTORS_MAX {
                return Err(ChainError::TooLong);
            }
            let descriptor = Descriptor::read(table, index)?;
            if descriptor.flags & INDIRECT != 0 {
                return Ok(Some(descriptor));
            }
            memory.check(descriptor.at, descriptor.len as usize)?;
            let segment = Segment { at: descriptor.at, len: descriptor.len };
            if descriptor.flags & WRITE == 0 {
                if self.readable < self.segments.len() {
                    return Err(ChainError::Order);
                }
                self.readable += 1;
            }
            self.segments.push(segment);
            if descriptor.flags & NEXT == 0 {
                return Ok(None);
            }
            index = descriptor.next;
        }
    }

    /// Returns the bytes of memory that the list takes.
    pub fn bytes(&self) -> u64 {
        (self.segments.capacity() * size_of::<Segment>()) as u64
    }

    /// Returns the buffers that the device reads.
    pub fn readable(&self) -> &[Segment] {
        self.segments.get(..self.readable).unwrap_or_default()
    }

    /// Returns the buffers that the device writes.
    pub fn writable(&self) -> &[Segment] {
        self.segments.get(self.readable..).unwrap_or_default()
    }
}

/// Returns the length of buffers, in bytes.
pub fn total(segments: &[Segment]) -> u64 {
    segments.iter().map(|segment| u64::from(segment.len)).sum()
}

/// Calls `each` for the parts of `segments` from byte `skip` on, for at most `len` bytes: the
/// address of the part and its range in the caller's buffer.
#[inline]
fn parts(
    segments: &[Segment],
    mut skip: u64,
    len: usize,
    mut each: impl FnMut(GuestAddress, std::ops::Range<usize>) -> Result<(), OutOfMemory>,
) -> Result<usize, OutOfMemory> {
    let mut done = 0;
    for segment in segments {
        let own = u64::from(segment.len);
        if skip >= own {
            skip -= own;
            continue;
        }
        if done == len {
            break;
        }
        let step = usize::try_from(own - skip).unwrap_or(usize::MAX).min(len - done);
        // No overflow: the segment was checked to be in memory.
        each(GuestAddress(segment.at.0.saturating_add(skip)), done..done + step)?;
        done += step;
        skip = 0;
    }
    Ok(done)
}

/// Copies bytes out of buffers, from byte `skip` on. Returns the number of bytes, less than the
/// length of `into` if the buffers are shorter.
///
/// # Errors
/// A buffer is not in the memory any more.
#[inline]
pub fn gather(
    memory: &GuestMemory,
    segments: &[Segment],
    skip: u64,
    into: &mut [u8],
) -> Result<usize, OutOfMemory> {
    let len = into.len();
    parts(segments, skip, len, |at, range| match into.get_mut(range) {
        Some(part) => memory.read(at, part),
        None => Ok(()),
    })
}

/// Copies bytes into buffers, from byte `skip` on. Returns the number of bytes, as [`gather`] does.
///
/// # Errors
/// A buffer is not in the memory any more.
#[inline]
pub fn scatter(
    memory: &GuestMemory,
    segments: &[Segment],
    skip: u64,
    from: &[u8],
) -> Result<usize, OutOfMemory> {
    parts(segments, skip, from.len(), |at, range| match from.get(range) {
        Some(part) => memory.write(at, part),
        None => Ok(()),
    })
}

#[cfg(test)]
mod tests;
