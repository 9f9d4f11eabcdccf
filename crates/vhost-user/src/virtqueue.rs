//! Split virtqueues: takes requests that the guest has made available, and returns them as used.
//!
//! The guest and this lane access the rings at the same time, without a lock. The order of the
//! accesses protects them:
//!
//! - The guest fills an entry of the available ring and its descriptors, then advances the index.
//!   So the index is loaded with acquire, and only after it the entry.
//! - The device writes data and status into the guest's buffers and an entry into the used ring,
//!   then advances the index. So the index is stored with release, after all of these.
//! - Each side asks the other for a notification and then checks whether there is already work; the
//!   other side advances its index and then checks whether a notification was requested. Every
//!   processor may reorder a store and a later load of another location, so there is a full fence
//!   between them. Without it each side could miss the other and wait for ever.

use std::sync::atomic::{Ordering, fence};

use forebay_device::Outside;

use crate::chain::{Buffers, ChainError, DESCRIPTOR, Head};
use crate::memory::{GuestMemory, OutOfMemory, Window};
use crate::message::RingAddresses;

/// Most descriptors of a queue.
pub const SIZE_MAX: u16 = 1 << 15;

const NO_NOTIFICATION: u16 = 1;
/// Offset of the index in both rings; the flags are before it.
const INDEX: u64 = 2;
/// Place of the first entry in both rings.
const ENTRIES: u64 = 4;
/// Bytes of an entry of the available ring.
const AVAILABLE_ENTRY: u64 = 2;
/// Bytes of an entry of the used ring.
const USED_ENTRY: u64 = 8;

/// The number of descriptors of a queue: a power of two, at most [`SIZE_MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueSize(u16);

impl QueueSize {
    /// Checks a number.
    pub fn new(size: u32) -> Option<Self> {
        let size = u16::try_from(size).ok()?;
        (size.is_power_of_two() && size <= SIZE_MAX).then_some(QueueSize(size))
    }

    /// Returns the number.
    pub fn get(self) -> u16 {
        self.0
    }
}

/// The fault of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QueueError {
    /// A ring is not in the memory, or not aligned.
    #[error("a ring is not in the memory, or not aligned: {0}")]
    Ring(#[from] Outside),
    /// A ring is not in the memory.
    #[error("a ring is not in the memory: {0}")]
    Memory(#[from] OutOfMemory),
    /// The guest has made more requests available than the queue can hold.
    #[error("{0} requests are available, more than the queue can hold")]
    Index(u16),
    /// A request is invalid.
    #[error("the request with descriptor {0} is invalid: {1}")]
    Chain(u16, ChainError),
    /// The guest has made a request available again before it was returned.
    #[error("the request with descriptor {0} was made available twice")]
    Twice(u16),
    /// The record of requests in progress does not belong to this queue.
    #[error("the record of requests in progress does not belong to this queue")]
    Inflight,
}

/// Features of queues that the guest uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueFeatures {
    /// Notifications are requested by index.
    pub event_index: bool,
    /// Descriptors can be in separate tables.
    pub indirect: bool,
}

struct Rings {
    descriptors: Window,
    available: Window,
    used: Window,
}

impl Rings {
    fn new(
        size: QueueSize,
        addresses: RingAddresses,
        memory: &GuestMemory,
    ) -> Result<Self, OutOfMemory> {
        let count = u64::from(size.get());
        // Each ring has one additional field, for notifications by index.
        Ok(Rings {
            descriptors: memory.window(addresses.descriptors, count * DESCRIPTOR)?,
            available: memory.window(addresses.available, ENTRIES + count * AVAILABLE_ENTRY + 2)?,
            used: memory.window(addresses.used, ENTRIES + count * USED_ENTRY + 2)?,
        })
    }
}

/// One queue, as its lane serves it.
pub struct Virtqueue {
    size: QueueSize,
    addresses: RingAddresses,
    features: QueueFeatures,
    rings: Rings,
    /// Index of the next request to take.
    next_available: u16,
    /// Index of the next entry of the used ring to fill.
    next_used: u16,
    /// The used index that the guest has seen.
    published: u16,
    /// The guest was last asked for notifications of requests, not asked to suppress them.
    asks: bool,
}

impl Virtqueue {
    /// Opens a queue whose next request has the index `base`.
    ///
    /// # Errors
    /// The rings are not in the memory.
    pub fn new(
        size: QueueSize,
        addresses: RingAddresses,
        features: QueueFeatures,
        base: u16,
        memory: &GuestMemory,
    ) -> Result<Self, QueueError> {
        let rings = Rings::new(size, addresses, memory)?;
        // The number of requests returned to the guest so far. Only the device writes this field.
        let used = rings.used.load(INDEX, Ordering::Acquire)?;
        Ok(Virtqueue {
            size,
            addresses,
            features,
            rings,
            next_available: base,
            next_used: used,
            published: used,
            asks: true,
        })
    }

    /// Finds the rings in changed memory.
    ///
    /// # Errors
    /// The rings are not in the memory.
    pub fn move_to(&mut self, memory: &GuestMemory) -> Result<(), QueueError> {
        self.rings = Rings::new(self.size, self.addresses, memory)?;
        Ok(())
    }

    /// Returns the index of the next request to take.
    pub fn base(&self) -> u16 {
        self.next_available
    }

    /// Sets the index of the next request to take.
    pub fn set_base(&mut self, base: u16) {
        self.next_available = base;
    }

    /// Returns the used index that the guest has seen.
    pub fn used_index(&self) -> u16 {
        self.published
    }

    /// Returns the number of requests that can be taken.
    ///
    /// # Errors
    /// The number is more than the queue can hold.
    pub fn available(&self) -> Result<u16, QueueError> {
        // Acquire: entries and descriptors are read after this.
        let index = self.rings.available.load(INDEX, Ordering::Acquire)?;
        let count = index.wrapping_sub(self.next_available);
        match count <= self.size.get() {
            true => Ok(count),
            false => Err(QueueError::Index(count)),
        }
    }

    /// Takes the next request, which [`Virtqueue::available`] has announced.
    ///
    /// # Errors
    /// The guest has broken its ring.
    pub fn take(&mut self) -> Result<Head, QueueError> {
        let place = u64::from(self.next_available & (self.size.get() - 1));
        let entry = ENTRIES + place * AVAILABLE_ENTRY;
        let head = self.rings.available.load(entry, Ordering::Relaxed)?;
        if head >= self.size.get() {
            return Err(QueueError::Chain(head, ChainError::NoDescriptor(head)));
        }
        self.next_available = self.next_available.wrapping_add(1);
        Ok(Head(head))
    }

    /// Reads the buffers of a request.
    ///
    /// # Errors
    /// The chain of descriptors is invalid.
    pub fn walk(
        &self,
        head: Head,
        memory: &GuestMemory,
        buffers: &mut Buffers,
    ) -> Result<(), QueueError> {
        let (table, size) = (&self.rings.descriptors, self.size.get());
        let walked = buffers.walk(table, size, head, memory, self.features.indirect);
        walked.map_err(|error| QueueError::Chain(head.0, error))
    }

    /// Returns a request with `written` written bytes. The guest sees it after
    /// [`Virtqueue::publish`].
    ///
    /// # Errors
    /// The ring is not in the memory.
    pub fn put(&mut self, head: Head, written: u32) -> Result<(), QueueError> {
        let place = u64::from(self.next_used & (self.size.get() - 1));
        let [h0, h1, h2, h3] = u32::from(head.0).to_le_bytes();
        let [w0, w1, w2, w3] = written.to_le_bytes();
        let entry = [h0, h1, h2, h3, w0, w1, w2, w3];
        self.rings.used.write(ENTRIES + place * USED_ENTRY, &entry)?;
        self.next_used = self.next_used.wrapping_add(1);
        Ok(())
    }

    /// Returns whether returned requests are not published yet.
    pub fn has_unpublished(&self) -> bool {
        self.next_used != self.published
    }

    /// Publishes the returned requests. Returns whether the guest asked to be notified of them.
    ///
    /// # Errors
    /// A ring is not in the memory.
    pub fn publish(&mut self) -> Result<bool, QueueError> {
        if !self.has_unpublished() {
            return Ok(false);
        }
        let (old, new) = (self.published, self.next_used);
        // Release: data, status and entries come before the index.
        self.rings.used.store(INDEX, new, Ordering::Release)?;
        self.published = new;
        // The index is visible before the request for notifications is read; see above.
        fence(Ordering::SeqCst);
        if !self.features.event_index {
            let flags = self.rings.available.load(0, Ordering::Relaxed)?;
            return Ok(flags & NO_NOTIFICATION == 0);
        }
        let at = ENTRIES + u64::from(self.size.get()) * AVAILABLE_ENTRY;
        let event = self.rings.available.load(at, Ordering::Relaxed)?;
        // True if the index has passed the one for which the guest waits.
        Ok(new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old))
    }

    /// Asks the guest for a notification of the next request. Returns whether requests are
    /// available already.
    ///
    /// # Errors
    /// A ring is invalid.
    pub fn ask_for_notification(&mut self) -> Result<bool, QueueError> {
        self.asks = true;
        if self.features.event_index {
            let at = ENTRIES + u64::from(self.size.get()) * USED_ENTRY;
            self.rings.used.store(at, self.next_available, Ordering::Relaxed)?;
        } else {
            self.rings.used.store(0, 0, Ordering::Relaxed)?;
        }
        // The request for a notification is visible before the index is read; see above.
        fence(Ordering::SeqCst);
        Ok(self.available()? > 0)
    }

    /// Tells the guest that notifications are not needed, because the device looks for requests
    /// itself.
    ///
    /// # Errors
    /// A ring is not in the memory.
    pub fn need_no_notification(&mut self) -> Result<(), QueueError> {
        if !std::mem::replace(&mut self.asks, false) || self.features.event_index {
            // With notifications by index the guest notifies of one request only, and that has
            // come.
            return Ok(());
        }
        Ok(self.rings.used.store(0, NO_NOTIFICATION, Ordering::Relaxed)?)
    }
}

#[cfg(test)]
mod tests;
