//! Outgoing replies: a batch that is being filled, and completions that wait for it.
//!
//! No I/O. The receiving task answers hits directly into the current [`Batch`]; completions queue
//! as [`Finished`]. The sending task exchanges the batch for an empty one and folds the queue in.
//! Batches are bounded by their size, the queue by the number of requests in flight.

use std::collections::VecDeque;

use forebay_core::IoError;
use forebay_device::IoBuf;
use zerocopy::IntoBytes;
use zerocopy::big_endian::{U32, U64};

use crate::status::{Contexts, EXTENTS_MAX, Status};
use crate::wire::{
    DATA_HEADER_MAX, ErrorCode, ExtendedChunkHeader, ExtendedStatusExtent, Headers, ReplyTo,
    SMALL_REPLY_MAX, SimpleReply, StatusExtent, chunk, encode_chunk_header, encode_error_chunk,
};

/// Bytes of a batch for a busy client.
pub(crate) const LARGE: usize = 256 << 10;
/// Bytes of the batch of any other client.
pub(crate) const SMALL: usize = 16 << 10;
/// Bytes reserved for the header of a large reply that follows the batch.
const RESERVE: usize = SMALL_REPLY_MAX;
/// Data of a completion up to this length are copied into a large batch; longer data are sent from
/// their own buffer.
const COPY_MAX: usize = 16 << 10;
/// Most bytes of a block status.
pub(crate) const STATUS_MAX: usize = Contexts::MAX
    * (ExtendedChunkHeader::SIZE + 8 + EXTENTS_MAX * size_of::<ExtendedStatusExtent>());
const _: () = assert!(STATUS_MAX <= SMALL - RESERVE, "a block status fits into an empty batch");

/// A completed request whose reply is not in a batch yet.
pub(crate) struct Finished {
    pub(crate) to: ReplyTo,
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
    headers: Headers,
}

impl Batch {
    /// Creates an empty batch of [`SMALL`] or [`LARGE`] bytes.
    pub(crate) fn new(headers: Headers, capacity: usize) -> Self {
        Batch { buf: IoBuf::for_overwrite(capacity), used: 0, headers }
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
    pub(crate) fn from_buffer(buf: IoBuf, headers: Headers, capacity: usize) -> Self {
        if buf.len() == capacity {
            Batch { buf, used: 0, headers }
        } else {
            drop(buf);
            Self::new(headers, capacity)
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

    fn put_only_header(&mut self, to: ReplyTo, kind: u16, len: usize) {
        self.put_chunk_header(to, chunk::FLAG_DONE, kind, len);
    }

    fn put_chunk_header(&mut self, to: ReplyTo, flags: u16, kind: u16, len: usize) {
        let place = self.buf.get_mut(self.used..).unwrap_or_default();
        let written = encode_chunk_header(place, self.headers, to, (flags, kind), len as u32);
        debug_assert!(written > 0, "a batch overflows");
        self.used += written;
    }

    /// Adds a reply without data. The caller has ensured [`SMALL_REPLY_MAX`] bytes of space.
    pub(crate) fn put_result(&mut self, to: ReplyTo, result: Result<(), IoError>) {
        match result {
            Ok(()) if self.headers == Headers::Extended => {
                self.put_only_header(to, chunk::NONE, 0);
            }
            Ok(()) => self.put(SimpleReply::new(to.cookie, None).as_bytes()),
            Err(error) => self.put_error(to, error.into(), &error.to_string()),
        }
    }

    /// Adds an error reply. The caller has ensured [`SMALL_REPLY_MAX`] bytes of space.
    pub(crate) fn put_error(&mut self, to: ReplyTo, error: ErrorCode, message: &str) {
        if self.headers.has_chunks() {
            let place = self.buf.get_mut(self.used..).unwrap_or_default();
            self.used += encode_error_chunk(place, self.headers, to, error, message);
        } else {
            self.put(SimpleReply::new(to.cookie, Some(error)).as_bytes());
        }
    }

    /// Returns the bytes in front of the data of a read.
    fn data_header(&self, len: usize) -> usize {
        match (self.headers, len) {
            (Headers::Simple, _) => SimpleReply::SIZE,
            (headers, 0) => headers.chunk_header(),
            (headers, _) => headers.chunk_header() + 8,
        }
    }

    fn put_data_header(&mut self, to: ReplyTo, len: usize) {
        match (self.headers, len) {
            (Headers::Simple, _) => self.put(SimpleReply::new(to.cookie, None).as_bytes()),
            (_, 0) => self.put_only_header(to, chunk::NONE, 0),
            (_, _) => {
                self.put_only_header(to, chunk::OFFSET_DATA, len + 8);
                self.put(&to.offset.to_be_bytes());
            }
        }
    }

    /// Returns the length up to which data of a completion are copied into the batch.
    fn copy_max(&self) -> usize {
        COPY_MAX.min(self.capacity() / 4)
    }

    /// Returns the bytes of space that a read of `len` bytes needs.
    pub(crate) fn read_room(len: usize) -> usize {
        (DATA_HEADER_MAX + len).max(SMALL_REPLY_MAX)
    }

    /// Reserves space for a read of `len` bytes and lets `fill` write the data to it. If `fill`
    /// returns `None`, the batch is unchanged and `None` is returned. The caller has ensured
    /// [`Batch::read_room`] bytes of space.
    pub(crate) fn put_read(
        &mut self,
        to: ReplyTo,
        len: usize,
        fill: impl FnOnce(&mut [u8]) -> Option<Result<(), IoError>>,
    ) -> Option<()> {
        let start = self.used + self.data_header(len);
        match fill(self.buf.get_mut(start..start + len)?)? {
            Ok(()) => {
                self.put_data_header(to, len);
                self.used += len;
            }
            error => self.put_result(to, error),
        }
        Some(())
    }

    /// Adds the status of a range. The caller has ensured [`STATUS_MAX`] bytes of space.
    pub(crate) fn put_status(&mut self, to: ReplyTo, status: &Status) {
        if status.is_empty() || status.iter().any(|(_, runs)| runs.is_empty()) {
            return self.put_error(to, ErrorCode::Io, "the status is unknown");
        }
        for (index, (context, runs)) in status.iter().enumerate() {
            let flags = if index + 1 == status.len() { chunk::FLAG_DONE } else { 0 };
            if self.headers == Headers::Extended {
                let content = 8 + runs.len() * size_of::<ExtendedStatusExtent>();
                self.put_chunk_header(to, flags, chunk::BLOCK_STATUS_EXT, content);
                self.put(&context.to_be_bytes());
                self.put(&(runs.len() as u32).to_be_bytes());
                for &(len, flags) in runs {
                    let flags = U64::new(flags.into());
                    self.put(ExtendedStatusExtent { len: U64::new(len), flags }.as_bytes());
                }
            } else {
                let content = 4 + runs.len() * size_of::<StatusExtent>();
                self.put_chunk_header(to, flags, chunk::BLOCK_STATUS, content);
                self.put(&context.to_be_bytes());
                for &(len, flags) in runs {
                    // The range of a compact request is shorter than 4 GiB.
                    let len = U32::new(u32::try_from(len).unwrap_or(u32::MAX));
                    self.put(StatusExtent { len, flags: U32::new(flags) }.as_bytes());
                }
            }
        }
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
                    self.put_data_header(next.to, len);
                    self.put(data);
                }
                None => self.put_result(next.to, next.result),
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
        self.put_data_header(large.to, len);
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

    const ALL: [Headers; 3] = [Headers::Simple, Headers::Structured, Headers::Extended];

    fn to(cookie: u64) -> ReplyTo {
        ReplyTo { cookie, offset: 512 }
    }

    /// Returns a chunk of a reply to request 1.
    fn chunk_of(headers: Headers, kind: u16, content: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; headers.chunk_header()];
        let kinds = (chunk::FLAG_DONE, kind);
        encode_chunk_header(&mut bytes, headers, to(1), kinds, content.len() as u32);
        [&bytes, content].concat()
    }

    fn finished(cookie: u64, len: usize) -> Finished {
        let data = (len > 0).then(|| IoBuf::zeroed(len));
        Finished { to: to(cookie), result: Ok(()), data, held: len as u64 }
    }

    fn bytes(batch: Batch) -> Vec<u8> {
        let (buf, used) = batch.into_parts();
        buf[..used].to_vec()
    }

    #[test]
    fn reads_leave_no_trace_unless_they_are_answered() {
        for headers in ALL {
            for len in [0, 512, 4096, LARGE / 2] {
                let mut batch = Batch::new(headers, LARGE);
                assert_eq!(batch.put_read(to(1), len, |_| None), None);
                assert!(batch.is_empty());
                let fill = |into: &mut [u8]| {
                    into.fill(7);
                    Some(Ok(()))
                };
                assert_eq!(batch.put_read(to(1), len, fill), Some(()));
                let data = vec![7; len];
                let expected = match (headers, len) {
                    (Headers::Simple, _) => [SimpleReply::new(1, None).as_bytes(), &data].concat(),
                    (_, 0) => chunk_of(headers, chunk::NONE, &[]),
                    (_, _) => {
                        let content = [&512u64.to_be_bytes()[..], &data].concat();
                        chunk_of(headers, chunk::OFFSET_DATA, &content)
                    }
                };
                assert!(bytes(batch) == expected, "{headers:?} {len}");
            }
        }
    }

    #[test]
    fn extended_replies_are_always_chunks() {
        let mut batch = Batch::new(Headers::Extended, SMALL);
        batch.put_result(to(1), Ok(()));
        assert_eq!(bytes(batch), chunk_of(Headers::Extended, chunk::NONE, &[]));
        for headers in [Headers::Simple, Headers::Structured] {
            let mut batch = Batch::new(headers, SMALL);
            batch.put_result(to(1), Ok(()));
            assert_eq!(bytes(batch), SimpleReply::new(1, None).as_bytes());
        }
    }

    #[test]
    fn a_full_batch_still_takes_the_header_of_a_large_reply() {
        for headers in ALL {
            let mut batch = Batch::new(headers, LARGE);
            while batch.room() >= SMALL_REPLY_MAX {
                batch.put_error(to(1), ErrorCode::Io, &"x".repeat(200));
            }
            let used = batch.used;
            let mut queue = VecDeque::from([finished(2, COPY_MAX + 512), finished(3, 0)]);
            assert_eq!(batch.fold(&mut queue, usize::MAX), 0);
            assert_eq!(batch.take_large(&mut queue).map(|large| large.to.cookie), Some(2));
            assert_eq!(batch.used, used + batch.data_header(1));
            assert_eq!(queue.len(), 1);
        }
    }

    #[test]
    fn folding_keeps_the_order_and_the_limit() {
        let mut batch = Batch::new(Headers::Simple, LARGE);
        let mut queue: VecDeque<_> = (0..40).map(|cookie| finished(cookie, COPY_MAX)).collect();
        assert_eq!(batch.fold(&mut queue, batch.half()), 7 * COPY_MAX as u64);
        assert_eq!(queue.front().map(|next| next.to.cookie), Some(7));
        assert_eq!(batch.fold(&mut queue, usize::MAX), 8 * COPY_MAX as u64);
        assert!(batch.take_large(&mut queue).is_none());
    }

    #[test]
    fn each_context_has_a_chunk_and_the_last_one_ends_the_reply() {
        let status: Status = vec![(1, vec![(512, 3), (1024, 0)]), (2, vec![(1536, 2)])];
        let mut batch = Batch::new(Headers::Structured, SMALL);
        batch.put_status(to(1), &status);
        let words = |words: &[u32]| words.iter().flat_map(|word| word.to_be_bytes()).collect();
        let (first, second): (Vec<u8>, Vec<u8>) =
            (words(&[1, 512, 3, 1024, 0]), words(&[2, 1536, 2]));
        let mut head = chunk_of(Headers::Structured, chunk::BLOCK_STATUS, &first);
        head[5] = 0;
        let tail = chunk_of(Headers::Structured, chunk::BLOCK_STATUS, &second);
        assert_eq!(bytes(batch), [head, tail].concat());

        let mut batch = Batch::new(Headers::Extended, SMALL);
        batch.put_status(to(1), &status);
        let first = words(&[1, 2, 0, 512, 0, 3, 0, 1024, 0, 0]);
        let second = words(&[2, 1, 0, 1536, 0, 2]);
        let mut head = chunk_of(Headers::Extended, chunk::BLOCK_STATUS_EXT, &first);
        head[5] = 0;
        let tail = chunk_of(Headers::Extended, chunk::BLOCK_STATUS_EXT, &second);
        assert_eq!(bytes(batch), [head, tail].concat());
    }

    #[test]
    fn the_longest_status_fits_into_a_small_batch() {
        let runs = vec![(1 << 40, 1); EXTENTS_MAX];
        let mut batch = Batch::new(Headers::Extended, SMALL);
        batch.put_status(to(1), &vec![(1, runs.clone()), (2, runs)]);
        assert_eq!(bytes(batch).len(), STATUS_MAX);
        for unknown in [vec![], vec![(1, vec![])]] {
            let mut batch = Batch::new(Headers::Structured, SMALL);
            batch.put_status(to(1), &unknown);
            assert_eq!(bytes(batch)[6..8], chunk::ERROR.to_be_bytes());
        }
    }
}
