//! Outgoing replies: a batch that is being filled, and completions that wait for it.
//!
//! No I/O. The receiving task answers hits directly into the current [`Batch`]; completions queue
//! as [`Finished`]. The sending task exchanges the batch for an empty one and folds the queue in.
//! Batches are bounded by their size, the queue by the number of requests in flight.

use std::collections::VecDeque;

use forebay_core::IoError;
use forebay_device::IoBuf;
use forebay_engine::Extent;
use zerocopy::IntoBytes;
use zerocopy::big_endian::U32;

use crate::wire::{
    ChunkHeader, DataChunk, ErrorCode, SMALL_REPLY_MAX, SimpleReply, StatusExtent, allocation,
    chunk, encode_error_chunk,
};

/// Bytes of a batch for a busy client.
pub(crate) const LARGE: usize = 256 << 10;
/// Bytes of a batch otherwise.
pub(crate) const SMALL: usize = 16 << 10;
/// Reserved for the header of a large reply that follows the batch.
const RESERVE: usize = SMALL_REPLY_MAX;
/// Data of a completion up to this length are copied into a large batch; longer data are sent from
/// their own buffer.
const COPY_MAX: usize = 16 << 10;
/// Most extents in one answer.
const EXTENTS_MAX: usize = 1024;
/// Most bytes of a block status.
pub(crate) const STATUS_MAX: usize =
    ChunkHeader::SIZE + 4 + EXTENTS_MAX * size_of::<StatusExtent>();

/// A completed request whose reply is not in a batch yet.
pub(crate) struct Finished {
    pub(crate) cookie: u64,
    pub(crate) offset: u64,
    pub(crate) result: Result<(), IoError>,
    /// The data of a successful read; `None` for every other request.
    pub(crate) data: Option<IoBuf>,
    /// Bytes of memory that this request holds.
    pub(crate) held: u64,
}

/// Replies that are sent together.
pub(crate) struct Batch {
    buf: IoBuf,
    used: usize,
    structured: bool,
}

impl Batch {
    /// Makes an empty batch of [`SMALL`] or [`LARGE`] bytes.
    pub(crate) fn new(structured: bool, capacity: usize) -> Self {
        Batch { buf: IoBuf::for_overwrite(capacity), used: 0, structured }
    }

    /// Returns the size of the batch in bytes, whether used or not.
    pub(crate) fn capacity(&self) -> usize {
        self.buf.len()
    }

    /// Returns the longest read that is answered directly into a batch of `capacity` bytes.
    pub(crate) fn inline_read_max(capacity: usize) -> usize {
        capacity / 2
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// Returns the bytes that may still be added.
    pub(crate) fn room(&self) -> usize {
        (self.capacity() - RESERVE).saturating_sub(self.used)
    }

    /// Returns the buffer to send, and how many bytes of it are used.
    pub(crate) fn into_parts(self) -> (IoBuf, usize) {
        (self.buf, self.used)
    }

    /// Makes an empty batch of `capacity` bytes; reuses `buf` if it has that size.
    pub(crate) fn from_buffer(buf: IoBuf, structured: bool, capacity: usize) -> Self {
        if buf.len() == capacity {
            Batch { buf, used: 0, structured }
        } else {
            drop(buf);
            Self::new(structured, capacity)
        }
    }

    fn put(&mut self, bytes: &[u8]) {
        if let Some(place) = self.buf.get_mut(self.used..self.used + bytes.len()) {
            place.copy_from_slice(bytes);
            self.used += bytes.len();
        } else {
            debug_assert!(false, "a batch overflows");
        }
    }

    /// Adds a reply without data. The caller has ensured [`SMALL_REPLY_MAX`] bytes of space.
    pub(crate) fn put_result(&mut self, cookie: u64, result: Result<(), IoError>) {
        match result {
            Ok(()) => self.put(SimpleReply::new(cookie, None).as_bytes()),
            Err(error) => self.put_error(cookie, error.into(), &error.to_string()),
        }
    }

    /// Adds an error reply. The caller has ensured [`SMALL_REPLY_MAX`] bytes of space.
    pub(crate) fn put_error(&mut self, cookie: u64, error: ErrorCode, message: &str) {
        if self.structured {
            let place = self.buf.get_mut(self.used..).unwrap_or_default();
            self.used += encode_error_chunk(place, cookie, error, message);
        } else {
            self.put(SimpleReply::new(cookie, Some(error)).as_bytes());
        }
    }

    fn put_data_header(&mut self, cookie: u64, offset: u64, len: usize) {
        match (self.structured, len) {
            (true, 0) => self.put(ChunkHeader::only(cookie, chunk::NONE, 0).as_bytes()),
            (true, _) => self.put(DataChunk::new(cookie, offset, len as u32).as_bytes()),
            (false, _) => self.put(SimpleReply::new(cookie, None).as_bytes()),
        }
    }

    /// Returns the length up to which data of a completion are copied into the batch.
    fn copy_max(&self) -> usize {
        COPY_MAX.min(self.capacity() / 4)
    }

    /// Returns the bytes of space that a read of `len` bytes needs.
    pub(crate) fn read_room(len: usize) -> usize {
        (DataChunk::SIZE + len).max(SMALL_REPLY_MAX)
    }

    /// Reserves space for a read of `len` bytes and lets `fill` write the data to it. If `fill`
    /// returns `None`, the batch is unchanged and `None` is returned. The caller has ensured
    /// [`Batch::read_room`] bytes of space.
    pub(crate) fn put_read(
        &mut self,
        cookie: u64,
        offset: u64,
        len: usize,
        fill: impl FnOnce(&mut [u8]) -> Option<Result<(), IoError>>,
    ) -> Option<()> {
        let header = match (self.structured, len) {
            (true, 0) => ChunkHeader::SIZE,
            (true, _) => DataChunk::SIZE,
            (false, _) => SimpleReply::SIZE,
        };
        let start = self.used + header;
        match fill(self.buf.get_mut(start..start + len)?)? {
            Ok(()) => {
                self.put_data_header(cookie, offset, len);
                self.used += len;
            }
            error => self.put_result(cookie, error),
        }
        Some(())
    }

    /// Adds the allocation status of a range of `len` bytes, as far as it fits. The caller has
    /// ensured [`STATUS_MAX`] bytes of space.
    pub(crate) fn put_status(&mut self, cookie: u64, len: u32, extents: &[Extent], one: bool) {
        let mut left = u64::from(len);
        let mut status: Vec<StatusExtent> = Vec::with_capacity(extents.len().min(EXTENTS_MAX));
        for extent in extents {
            let here = extent.len.min(left);
            let hole = if extent.hole { allocation::HOLE } else { 0 };
            let zero = if extent.zero { allocation::ZERO } else { 0 };
            let flags = U32::new(hole | zero);
            let full = status.len() == if one { 1 } else { EXTENTS_MAX };
            match status.last_mut() {
                _ if here == 0 => continue,
                Some(last) if last.flags == flags => {
                    last.len = U32::new(last.len.get() + here as u32);
                }
                Some(_) if full => break,
                _ => status.push(StatusExtent { len: U32::new(here as u32), flags }),
            }
            left -= here;
        }
        if status.is_empty() {
            return self.put_error(cookie, ErrorCode::Io, "the allocation is unknown");
        }
        let content = status.as_bytes();
        let header = ChunkHeader::only(cookie, chunk::BLOCK_STATUS, 4 + content.len() as u32);
        self.put(header.as_bytes());
        self.put(&allocation::ID.to_be_bytes());
        self.put(content);
    }

    /// Moves replies from the queue into the batch, oldest first, while the batch has at most
    /// `limit` bytes; stops at a reply that must be sent from its own buffer. Returns the bytes of
    /// memory that requests no longer hold.
    pub(crate) fn fold(&mut self, queue: &mut VecDeque<Finished>, limit: usize) -> u64 {
        let mut released = 0;
        while let Some(next) = queue.front() {
            let len = next.data.as_ref().map_or(0, |data| data.len());
            let need = Self::read_room(len);
            if len > self.copy_max() || need > self.room() || self.used + need > limit {
                break;
            }
            let Some(next) = queue.pop_front() else { break };
            match &next.data {
                Some(data) => {
                    self.put_data_header(next.cookie, next.offset, len);
                    self.put(data);
                }
                None => self.put_result(next.cookie, next.result),
            }
            released += next.held;
        }
        released
    }

    /// If the oldest reply in the queue is large, puts its header at the end of the batch and
    /// returns it. Nothing may be added to the batch afterwards.
    pub(crate) fn take_large(&mut self, queue: &mut VecDeque<Finished>) -> Option<Finished> {
        let len = queue.front()?.data.as_ref()?.len();
        if len <= self.copy_max() {
            return None;
        }
        let large = queue.pop_front()?;
        self.put_data_header(large.cookie, large.offset, len);
        Some(large)
    }

    /// Returns the limit for [`Batch::fold`] that leaves half of the batch to the receiving task.
    pub(crate) fn half(&self) -> usize {
        self.capacity() / 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finished(cookie: u64, len: usize) -> Finished {
        let data = (len > 0).then(|| IoBuf::zeroed(len));
        Finished { cookie, offset: 0, result: Ok(()), data, held: len as u64 }
    }

    fn bytes(batch: Batch) -> Vec<u8> {
        let (buf, used) = batch.into_parts();
        buf[..used].to_vec()
    }

    #[test]
    fn reads_leave_no_trace_unless_they_are_answered() {
        for structured in [false, true] {
            for len in [0, 512, 4096, LARGE / 2] {
                let mut batch = Batch::new(structured, LARGE);
                assert_eq!(batch.put_read(1, 0, len, |_| None), None);
                assert!(batch.is_empty());
                let fill = |into: &mut [u8]| {
                    into.fill(7);
                    Some(Ok(()))
                };
                assert_eq!(batch.put_read(1, 512, len, fill), Some(()));
                let bytes = bytes(batch);
                let header = match (structured, len) {
                    (true, 0) => ChunkHeader::only(1, chunk::NONE, 0).as_bytes().to_vec(),
                    (true, _) => DataChunk::new(1, 512, len as u32).as_bytes().to_vec(),
                    (false, _) => SimpleReply::new(1, None).as_bytes().to_vec(),
                };
                assert_eq!(bytes, [header, vec![7; len]].concat());
            }
        }
    }

    #[test]
    fn a_full_batch_still_takes_the_header_of_a_large_reply() {
        let mut batch = Batch::new(true, LARGE);
        while batch.room() >= SMALL_REPLY_MAX {
            batch.put_error(1, ErrorCode::Io, &"x".repeat(200));
        }
        let used = batch.used;
        let mut queue = VecDeque::from([finished(2, COPY_MAX + 512), finished(3, 0)]);
        assert_eq!(batch.fold(&mut queue, usize::MAX), 0);
        assert_eq!(batch.take_large(&mut queue).map(|large| large.cookie), Some(2));
        assert_eq!(batch.used, used + DataChunk::SIZE);
        assert_eq!(queue.len(), 1);
    }

    #[test]
    fn folding_keeps_the_order_and_the_limit() {
        let mut batch = Batch::new(false, LARGE);
        let mut queue: VecDeque<_> = (0..40).map(|cookie| finished(cookie, COPY_MAX)).collect();
        assert_eq!(batch.fold(&mut queue, batch.half()), 7 * COPY_MAX as u64);
        assert_eq!(queue.front().map(|next| next.cookie), Some(7));
        assert_eq!(batch.fold(&mut queue, usize::MAX), 8 * COPY_MAX as u64);
        assert!(batch.take_large(&mut queue).is_none());
    }

    #[test]
    fn extents_are_merged_cut_and_limited() {
        let extent = |len, hole, zero| Extent { len, hole, zero };
        let alternating: Vec<_> = (0..3000).map(|at| extent(512, at % 2 == 0, false)).collect();
        type Case<'a> = (&'a [Extent], bool, &'a [(u32, u32)]);
        let cases: [Case<'_>; 6] = [
            (&[extent(u64::MAX, true, true)], false, &[(1 << 20, 3)]),
            (&[extent(512, false, true), extent(512, false, true)], true, &[(1024, 2)]),
            (&[extent(512, true, false), extent(512, false, false)], true, &[(512, 1)]),
            (&[extent(0, true, false), extent(512, false, false)], false, &[(512, 0)]),
            (&[extent(1 << 20, false, false), extent(512, true, false)], false, &[(1 << 20, 0)]),
            (&alternating, true, &[(512, 1)]),
        ];
        for (extents, one, expected) in cases {
            let mut batch = Batch::new(true, LARGE);
            batch.put_status(1, 1 << 20, extents, one);
            let content: Vec<u8> = expected
                .iter()
                .flat_map(|(len, flags)| [len.to_be_bytes(), flags.to_be_bytes()].concat())
                .collect();
            assert_eq!(bytes(batch)[ChunkHeader::SIZE + 4..], content);
        }
        let mut batch = Batch::new(true, LARGE);
        batch.put_status(1, u32::MAX, &alternating, false);
        assert_eq!(bytes(batch).len(), STATUS_MAX);
        let mut batch = Batch::new(true, LARGE);
        batch.put_status(1, 512, &[], false);
        assert_eq!(bytes(batch)[6..8], chunk::ERROR.to_be_bytes());
    }
}
