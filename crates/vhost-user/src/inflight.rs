//! The record of requests in progress, in memory that the client keeps.
//!
//! If the daemon dies, the client reconnects to the next one and gives it the same record. Requests
//! that were taken from a queue and not returned are then executed again. The protocol specifies
//! the layout, so a record of another program can be used as well.
//!
//! When a process is killed, its stores up to some point of the program have been executed, in
//! program order. The stores here therefore need no processor barrier, but the compiler must not
//! reorder them; sequentially consistent atomics prevent that. Lanes do not share a queue's part of
//! the record.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use forebay_device::{Outside, SharedMemory};

use crate::chain::Head;
use crate::message::{InflightPlace, QueueIndex};
use crate::virtqueue::{QueueError, QueueSize};

/// Bytes of the fields before the entries.
const HEADER: u64 = 16;
/// Bytes of an entry.
const ENTRY: u64 = 16;
/// Alignment of the parts, so that those of different queues do not share a cache line.
const ALIGN: u64 = 64;
const VERSION: u16 = 1;
/// The guest relies on flushes, as far as is known.
const WRITE_CACHE: u8 = 0;
const NO_WRITE_CACHE: u8 = 1;

// Places of the fields.
const AT_VERSION: u64 = 8;
const AT_SIZE: u64 = 10;
const AT_LAST: u64 = 12;
const AT_USED: u64 = 14;
const ENTRY_IN_FLIGHT: u64 = 0;
const ENTRY_NEXT: u64 = 6;
const ENTRY_COUNTER: u64 = 8;

/// Returns the bytes of one queue's part.
fn part(size: QueueSize) -> u64 {
    (HEADER + ENTRY * u64::from(size.get())).next_multiple_of(ALIGN)
}

/// Returns the bytes of the parts of all queues.
fn parts(queues: u16, size: QueueSize) -> u64 {
    part(size) * u64::from(queues)
}

/// Returns the bytes of a record as this program makes it. Behind the parts that the protocol
/// specifies, one byte records whether the guest has switched its write cache off, because the
/// client does not report that to the next daemon.
pub fn record_bytes(queues: u16, size: QueueSize) -> u64 {
    parts(queues, size) + ALIGN
}

/// The record of all queues.
#[derive(Clone, Debug)]
pub struct Record {
    memory: Arc<SharedMemory>,
    queues: u16,
    size: QueueSize,
}

impl Record {
    /// Uses `memory` as the record that `place` describes. `None`: the memory is too small, or the
    /// numbers in `place` are invalid.
    pub fn new(memory: SharedMemory, place: InflightPlace) -> Option<Self> {
        let size = QueueSize::new(place.queue_size.into())?;
        let fits = place.queues > 0 && parts(place.queues, size) <= memory.len();
        fits.then(|| Record { memory: Arc::new(memory), queues: place.queues, size })
    }

    /// Returns whether the guest relies on flushes; false for a record that does not have the
    /// field.
    pub fn has_write_cache(&self) -> bool {
        let at = parts(self.queues, self.size);
        let told = record_bytes(self.queues, self.size) <= self.memory.len();
        told && self.memory.load_u8(at, SeqCst) == Ok(WRITE_CACHE)
    }

    /// Notes whether the guest relies on flushes.
    pub fn set_write_cache(&self, on: bool) {
        if record_bytes(self.queues, self.size) <= self.memory.len() {
            let state = if on { WRITE_CACHE } else { NO_WRITE_CACHE };
            // The store fails if the client has truncated the memory, and then the queues end.
            let _ = self.memory.store_u8(parts(self.queues, self.size), state, SeqCst);
        }
    }

    /// Returns the part of a queue of `size` descriptors. `None`: the record has no room for it.
    pub fn queue(&self, index: QueueIndex, size: QueueSize) -> Option<Tracker> {
        let fits = index.0 < self.queues && size.get() <= self.size.get();
        let start = part(self.size) * u64::from(index.0);
        let (memory, size) = (self.memory.clone(), self.size);
        fits.then(|| Tracker { memory, start, size, counter: 0, last: Head(0) })
    }
}

/// The part of one queue.
#[derive(Debug)]
pub struct Tracker {
    memory: Arc<SharedMemory>,
    start: u64,
    /// The number of entries; the queue may have fewer descriptors.
    size: QueueSize,
    /// Orders the requests.
    counter: u64,
    /// The request that was returned to the guest last.
    last: Head,
}

impl Tracker {
    /// Returns whether the memory of the record is still complete.
    pub fn is_intact(&self) -> bool {
        self.memory.is_intact()
    }

    fn entry(&self, head: Head, field: u64) -> u64 {
        self.start + HEADER + u64::from(head.0) * ENTRY + field
    }

    /// Prepares the part for a queue whose guest has seen `used` requests returned. Returns the
    /// requests in progress, in the order in which they were taken.
    ///
    /// # Errors
    /// The part does not belong to this queue.
    pub fn recover(&mut self, used: u16) -> Result<Vec<Head>, QueueError> {
        let Tracker { start, size, .. } = *self;
        let memory = self.memory.clone();
        match memory.load_u16(start + AT_VERSION, SeqCst)? {
            0 => {
                memory.store_u16(start + AT_SIZE, size.get(), SeqCst)?;
                memory.store_u16(start + AT_LAST, 0, SeqCst)?;
                memory.store_u16(start + AT_USED, used, SeqCst)?;
                memory.store_u16(start + AT_VERSION, VERSION, SeqCst)?;
                return Ok(Vec::new());
            }
            VERSION if memory.load_u16(start + AT_SIZE, SeqCst)? == size.get() => {}
            _ => return Err(QueueError::Inflight),
        }
        self.last = Head(memory.load_u16(start + AT_LAST, SeqCst)?);
        // The last batch was returned to the guest, but perhaps not removed from the record.
        let batch = used.wrapping_sub(memory.load_u16(start + AT_USED, SeqCst)?);
        if batch > size.get() {
            // The guest has reset its queue since, so the recorded requests belong to the former
            // queue.
            for head in (0..size.get()).map(Head) {
                memory.store_u8(self.entry(head, ENTRY_IN_FLIGHT), 0, SeqCst)?;
            }
            memory.store_u16(start + AT_USED, used, SeqCst)?;
            return Ok(Vec::new());
        }
        let mut head = self.last;
        for _ in 0..batch {
            if head.0 >= size.get() {
                return Err(QueueError::Inflight);
            }
            memory.store_u8(self.entry(head, ENTRY_IN_FLIGHT), 0, SeqCst)?;
            head = Head(memory.load_u16(self.entry(head, ENTRY_NEXT), SeqCst)?);
        }
        memory.store_u16(start + AT_USED, used, SeqCst)?;
        let mut found = Vec::new();
        for head in (0..size.get()).map(Head) {
            if memory.load_u8(self.entry(head, ENTRY_IN_FLIGHT), SeqCst)? != 0 {
                found.push((memory.load_u64(self.entry(head, ENTRY_COUNTER), SeqCst)?, head));
            }
        }
        found.sort_unstable();
        self.counter = found.last().map_or(0, |(counter, _)| counter.wrapping_add(1));
        Ok(found.into_iter().map(|(_, head)| head).collect())
    }

    /// Records that a request was taken.
    ///
    /// # Errors
    /// The memory of the record was truncated.
    pub fn begin(&mut self, head: Head) -> Result<(), Outside> {
        self.memory.store_u64(self.entry(head, ENTRY_COUNTER), self.counter, SeqCst)?;
        self.counter = self.counter.wrapping_add(1);
        // Store this field last: it makes the entry valid.
        self.memory.store_u8(self.entry(head, ENTRY_IN_FLIGHT), 1, SeqCst)
    }

    /// Records that a request is being returned. Must be called before the used index covers the
    /// request.
    ///
    /// # Errors
    /// The memory of the record was truncated.
    pub fn returns(&mut self, head: Head) -> Result<(), Outside> {
        self.memory.store_u16(self.entry(head, ENTRY_NEXT), self.last.0, SeqCst)?;
        self.memory.store_u16(self.start + AT_LAST, head.0, SeqCst)?;
        self.last = head;
        Ok(())
    }

    /// Records that the guest sees `heads` as returned, and has seen `used` returned requests in
    /// all.
    ///
    /// # Errors
    /// The memory of the record was truncated.
    pub fn returned(&mut self, heads: &[Head], used: u16) -> Result<(), Outside> {
        for head in heads {
            self.memory.store_u8(self.entry(*head, ENTRY_IN_FLIGHT), 0, SeqCst)?;
        }
        self.memory.store_u16(self.start + AT_USED, used, SeqCst)
    }
}

#[cfg(test)]
mod tests;
