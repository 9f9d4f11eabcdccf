//! The receive buffer of a connection.

use std::io;

use forebay_device::IoBuf;

use crate::wire::socket::Socket;

/// Bytes of the receive buffer of a busy client.
pub(crate) const LARGE: usize = 256 << 10;
/// Bytes of the receive buffer of any other client; an option of the handshake fits.
pub(crate) const SMALL: usize = 32 << 10;

/// Writes of up to this many bytes are received into the receive buffer of `capacity` bytes, larger
/// ones into buffers of their own. If less than twice this is free at the end of the buffer, the
/// unused bytes move to its front.
pub(crate) const fn window(capacity: usize) -> usize {
    capacity / 4
}

/// Received bytes: `buf[start..end]` are unused.
pub(crate) struct Inbox {
    buf: IoBuf,
    start: usize,
    end: usize,
}

impl Inbox {
    pub(crate) fn new() -> Self {
        Inbox { buf: IoBuf::for_overwrite(SMALL), start: 0, end: 0 }
    }

    /// Begins with bytes that were received earlier. `None`: they are more than a receive buffer
    /// holds.
    pub(crate) fn resume(received: &[u8]) -> Option<Self> {
        let size = if received.len() < SMALL { SMALL } else { LARGE };
        let mut buf = IoBuf::for_overwrite(size);
        buf.get_mut(..received.len())?.copy_from_slice(received);
        Some(Inbox { buf, start: 0, end: received.len() })
    }

    /// Switches to a buffer of [`LARGE`] bytes.
    pub(crate) fn grow(&mut self) {
        let mut buf = IoBuf::for_overwrite(LARGE);
        let unused = self.unused();
        let len = unused.len();
        if let Some(place) = buf.get_mut(..len) {
            place.copy_from_slice(unused);
        }
        (self.buf, self.start, self.end) = (buf, 0, len);
    }

    /// Returns the size of the buffer, in bytes.
    pub(crate) fn capacity(&self) -> usize {
        self.buf.len()
    }

    pub(crate) fn is_full(&self) -> bool {
        self.end == self.buf.len()
    }

    pub(crate) fn is_large(&self) -> bool {
        self.buf.len() >= LARGE
    }

    /// Adds bytes that were received elsewhere; together with the unused ones they are at most
    /// [`LARGE`].
    pub(crate) fn extend(&mut self, more: &[u8]) {
        let all = [self.unused(), more].concat();
        if let Some(inbox) = Inbox::resume(&all) {
            *self = inbox;
        }
    }

    /// Returns the bytes not used yet.
    pub(crate) fn unused(&self) -> &[u8] {
        self.buf.get(self.start..self.end).unwrap_or_default()
    }

    /// Drops the first `count` unused bytes.
    pub(crate) fn consume(&mut self, count: usize) {
        self.start = (self.start + count).min(self.end);
    }

    /// Receives more. Returns the number of bytes, 0 at the end of the stream.
    pub(crate) async fn receive(&mut self, socket: &Socket) -> io::Result<usize> {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.start > 0 && self.buf.len() - self.end < 2 * window(self.buf.len()) {
            self.buf.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        let range = self.end..self.buf.len();
        let (buf, result) = socket.receive(std::mem::take(&mut self.buf), range, false).await;
        self.buf = buf;
        let count = result?;
        self.end += count;
        Ok(count)
    }
}
