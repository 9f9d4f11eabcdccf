//! Free RAM images of segments. A lane gets back the image that it used last: its lines are in that
//! CPU's caches, and fetching each from a CPU with another last-level cache takes some 150 ns.

use std::sync::Arc;

use forebay_device::LogBuffer;

struct Free {
    buffer: Arc<LogBuffer>,
    /// The lane that used the image last.
    lane: usize,
}

/// The RAM images of segments of one log, at most `limit`.
pub(super) struct Buffers {
    free: Vec<Free>,
    existing: usize,
    limit: usize,
}

impl Buffers {
    pub(super) fn new(limit: usize) -> Self {
        Buffers { free: Vec::new(), existing: 0, limit }
    }

    /// Takes a free image, preferably one that this lane used last, or makes one of `bytes` bytes.
    /// Returns `None` if the limit is reached.
    pub(super) fn take(&mut self, lane: usize, bytes: u64) -> Option<Arc<LogBuffer>> {
        while let Some(last) = self.free.len().checked_sub(1) {
            let own = self.free.iter().rposition(|free| free.lane == lane);
            let mut buffer = self.free.remove(own.unwrap_or(last)).buffer;
            // A reader may still hold the old image: then that buffer is left to the reader.
            if let Some(image) = Arc::get_mut(&mut buffer) {
                image.reset();
                return Some(buffer);
            }
            self.existing -= 1;
        }
        if self.existing >= self.limit {
            return None;
        }
        self.existing += 1;
        Some(LogBuffer::new(bytes as usize))
    }

    pub(super) fn give_back(&mut self, lane: usize, buffer: Arc<LogBuffer>) {
        self.free.push(Free { buffer, lane });
    }

    /// Returns the number of images, free or in use.
    pub(super) fn existing(&self) -> usize {
        self.existing
    }
}
