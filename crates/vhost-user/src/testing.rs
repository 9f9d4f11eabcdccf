//! A guest for tests: memory in a file, and the guest's side of a queue.

use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

use crate::chain::Head;
use crate::memory::{ClientAddress, GuestAddress, GuestMemory, RegionPlace};
use crate::message::RingAddresses;
use crate::virtqueue::{QueueFeatures, QueueSize, Virtqueue};

/// First guest address of the memory.
pub(crate) const GUEST: u64 = 1 << 20;
/// First client address of the memory.
pub(crate) const CLIENT: u64 = 1 << 40;
/// Bytes of the memory.
pub(crate) const BYTES: u64 = 1 << 20;
/// Guest address of the buffers: behind the rings.
pub(crate) const BUFFERS: u64 = GUEST + (512 << 10);

const AVAILABLE: u64 = 256 << 10;
const USED: u64 = 384 << 10;

pub(crate) fn file(len: u64) -> OwnedFd {
    let file = memfd_create("test", MemfdFlags::CLOEXEC).expect("memory");
    ftruncate(&file, len).expect("length");
    file
}

/// A guest with one queue.
pub(crate) struct Guest {
    pub(crate) memory: GuestMemory,
    pub(crate) size: u16,
    next: u16,
    seen: u16,
}

impl Guest {
    pub(crate) fn new(size: u16) -> Self {
        let mut memory = GuestMemory::default();
        let (guest, client) = (GuestAddress(GUEST), ClientAddress(CLIENT));
        memory
            .add(RegionPlace { guest, size: BYTES, client, file_offset: 0 }, file(BYTES))
            .expect("mapped");
        Guest { memory, size, next: 0, seen: 0 }
    }

    /// The addresses of its queue.
    pub(crate) fn addresses() -> RingAddresses {
        RingAddresses {
            descriptors: ClientAddress(CLIENT),
            available: ClientAddress(CLIENT + AVAILABLE),
            used: ClientAddress(CLIENT + USED),
        }
    }

    pub(crate) fn queue(&self, event_index: bool) -> Virtqueue {
        let addresses = Self::addresses();
        let size = QueueSize::new(self.size.into()).expect("a power of two");
        let features = QueueFeatures { event_index, indirect: true };
        Virtqueue::new(size, addresses, features, self.next, &self.memory).expect("in memory")
    }

    /// Continues at another index, as if the queue had been used before.
    pub(crate) fn begin_at(&mut self, index: u16) {
        (self.next, self.seen) = (index, index);
        self.store(AVAILABLE + 2, index);
        self.store(USED + 2, index);
    }

    fn store(&self, at: u64, value: u16) {
        let window = self.memory.window(ClientAddress(CLIENT), BYTES).expect("all of it");
        window.store(at, value, Ordering::SeqCst).expect("aligned");
    }

    fn load(&self, at: u64) -> u16 {
        let window = self.memory.window(ClientAddress(CLIENT), BYTES).expect("all of it");
        window.load(at, Ordering::SeqCst).expect("aligned")
    }

    /// Writes a descriptor into a table.
    pub(crate) fn describe(
        &self,
        table: u64,
        index: u16,
        (at, len): (u64, u32),
        flags: u16,
        next: u16,
    ) {
        let mut bytes = at.to_le_bytes().to_vec();
        bytes.extend(len.to_le_bytes());
        bytes.extend(flags.to_le_bytes());
        bytes.extend(next.to_le_bytes());
        let place = GuestAddress(table + u64::from(index) * 16);
        self.memory.write(place, &bytes).expect("in memory");
    }

    /// Makes a request available. Returns whether the device asked to be notified of it.
    pub(crate) fn offer(&mut self, head: Head, event_index: bool) -> bool {
        let place = u64::from(self.next % self.size);
        self.store(AVAILABLE + 4 + 2 * place, head.0);
        self.next = self.next.wrapping_add(1);
        self.store(AVAILABLE + 2, self.next);
        match event_index {
            true => self.load(USED + 4 + 8 * u64::from(self.size)) == self.next.wrapping_sub(1),
            false => self.load(USED) == 0,
        }
    }

    /// Claims that `count` requests are available.
    pub(crate) fn claim(&self, count: u16) {
        self.store(AVAILABLE + 2, self.next.wrapping_add(count));
    }

    /// Asks for a notification of the next answer, or of the one `later` answers after it.
    pub(crate) fn ask(&self, later: u16) {
        self.store(AVAILABLE + 4 + 2 * u64::from(self.size), self.seen.wrapping_add(later));
    }

    /// Sets the flags that suppress notifications.
    pub(crate) fn want_none(&self, none: bool) {
        self.store(AVAILABLE, none.into());
    }

    /// Returns the answered requests, with the bytes that were written.
    pub(crate) fn collect(&mut self) -> Vec<(u16, u32)> {
        let mut found = Vec::new();
        while self.seen != self.load(USED + 2) {
            let mut entry = [0; 8];
            let at = CLIENT + USED + 4 + 8 * u64::from(self.seen % self.size);
            let window = self.memory.window(ClientAddress(at), 8).expect("in memory");
            window.read(0, &mut entry).expect("inside");
            let [h0, h1, _, _, w0, w1, w2, w3] = entry;
            found.push((u16::from_le_bytes([h0, h1]), u32::from_le_bytes([w0, w1, w2, w3])));
            self.seen = self.seen.wrapping_add(1);
        }
        found
    }
}
