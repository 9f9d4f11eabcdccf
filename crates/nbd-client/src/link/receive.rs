//! Receives replies.

use std::io;

use forebay_device::{DeviceErrorKind, DeviceExtent, IoBuf, OpId};
use forebay_nbd_wire::socket::Socket;
use forebay_nbd_wire::{Reader, allocation, chunk, command};
use zerocopy::FromBytes;
use zerocopy::big_endian::U64;

use super::Link;
use crate::replies::{ProtocolViolation, ReplyHeader, ends, kind_of};
use crate::requests::Failure;

/// Bytes of the receive buffer.
const BUFFER: usize = 256 << 10;
/// If more bytes than this are missing from a payload, they are received directly into their
/// destination.
const DIRECT: usize = 16 << 10;
/// Longest content of a chunk other than data, in bytes.
const CONTENT_MAX: u32 = 16 << 10;

/// Why receiving ends.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReceiveEnd {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("the server does not keep to the NBD protocol: {0}")]
    Violation(&'static str),
    #[error("the server shuts down")]
    ShutsDown,
}

impl From<ProtocolViolation> for ReceiveEnd {
    fn from(violation: ProtocolViolation) -> Self {
        ReceiveEnd::Violation(violation.0)
    }
}

fn violation<T>(what: &'static str) -> Result<T, ReceiveEnd> {
    Err(ReceiveEnd::Violation(what))
}

/// Received bytes: `buf[start..end]` have not been used yet.
struct ReceiveBuffer<'a> {
    socket: &'a Socket,
    buf: IoBuf,
    start: usize,
    end: usize,
}

impl ReceiveBuffer<'_> {
    fn rest(&self) -> &[u8] {
        self.buf.get(self.start..self.end).unwrap_or_default()
    }

    /// Receives more bytes.
    async fn more(&mut self) -> Result<(), ReceiveEnd> {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
            if self.buf.is_empty() {
                self.buf = IoBuf::for_overwrite(BUFFER);
            }
        } else if self.end == self.buf.len() {
            self.buf.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        let range = self.end..self.buf.len();
        let (buf, result) = self.socket.receive(std::mem::take(&mut self.buf), range, false).await;
        self.buf = buf;
        match result? {
            0 => Err(closed().into()),
            len => {
                self.end += len;
                Ok(())
            }
        }
    }

    /// Waits until the buffer has `len` bytes and returns them; `len` is at most the size of the
    /// buffer.
    async fn take(&mut self, len: usize) -> Result<&[u8], ReceiveEnd> {
        while self.end - self.start < len {
            self.more().await?;
        }
        self.start += len;
        Ok(self.buf.get(self.start - len..self.start).unwrap_or_default())
    }

    /// Moves `range.len()` bytes to `dest`.
    async fn fill(
        &mut self,
        mut dest: IoBuf,
        mut range: std::ops::Range<usize>,
    ) -> (IoBuf, Result<(), ReceiveEnd>) {
        loop {
            let len = range.len().min(self.end - self.start);
            if let (Some(into), Some(from)) = (
                dest.get_mut(range.start..range.start + len),
                self.buf.get(self.start..self.start + len),
            ) {
                into.copy_from_slice(from);
            }
            self.start += len;
            range.start += len;
            if range.is_empty() {
                return (dest, Ok(()));
            }
            if range.len() > DIRECT {
                let wanted = range.len();
                let (dest, result) = self.socket.receive(dest, range, true).await;
                return (
                    dest,
                    match result {
                        Ok(len) if len == wanted => Ok(()),
                        Ok(_) => Err(closed().into()),
                        Err(error) => Err(error.into()),
                    },
                );
            }
            if let Err(ended) = self.more().await {
                return (dest, Err(ended));
            }
        }
    }
}

fn closed() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "the server has closed the connection")
}

impl Link {
    /// Receives replies until the connection ends.
    pub(crate) async fn receive(&self, socket: &Socket, chunks: bool) -> ReceiveEnd {
        let mut inbox = ReceiveBuffer { socket, buf: IoBuf::empty(), start: 0, end: 0 };
        loop {
            if let Err(ended) = self.receive_one(&mut inbox, chunks).await {
                return ended;
            }
        }
    }

    async fn receive_one(
        &self,
        inbox: &mut ReceiveBuffer<'_>,
        chunks: bool,
    ) -> Result<(), ReceiveEnd> {
        let (head, len) = loop {
            if let Some(found) = ReplyHeader::read(inbox.rest(), chunks)? {
                break found;
            }
            if inbox.rest().is_empty() {
                // Without a receive in flight the connection can be handed on. Without a buffer an
                // idle connection takes no memory.
                if self.requests.borrow().in_flight() == 0 {
                    inbox.buf = IoBuf::empty();
                }
                self.wait_for_requests().await;
            }
            inbox.more().await?;
        };
        inbox.start += len;
        match head {
            ReplyHeader::Simple { cookie, error } => {
                self.simple(inbox, chunks, cookie, error).await
            }
            ReplyHeader::Chunk { cookie, flags, kind, len } => {
                self.chunk(inbox, (cookie, kind, len)).await?;
                if flags & chunk::FLAG_DONE != 0 { self.done(cookie) } else { Ok(()) }
            }
        }
    }

    async fn simple(
        &self,
        inbox: &mut ReceiveBuffer<'_>,
        chunks: bool,
        cookie: u64,
        error: u32,
    ) -> Result<(), ReceiveEnd> {
        let (op, command, offset, len) = self.asked(cookie)?;
        if chunks && matches!(command, command::READ | command::BLOCK_STATUS) {
            return violation("a simple reply where chunks were agreed on");
        }
        if ends(error) {
            return Err(ReceiveEnd::ShutsDown);
        }
        if error == 0 && command == command::READ {
            self.fill(inbox, op, offset, len).await?;
            self.got(cookie, len);
        }
        if error != 0 {
            self.fails(cookie, failure(error, &[]));
        }
        self.done(cookie)
    }

    async fn chunk(
        &self,
        inbox: &mut ReceiveBuffer<'_>,
        (cookie, kind, len): (u64, u16, u32),
    ) -> Result<(), ReceiveEnd> {
        let (op, command, offset, whole) = self.asked(cookie)?;
        match kind {
            chunk::NONE if len == 0 => Ok(()),
            chunk::OFFSET_DATA if command == command::READ && len > 8 => {
                let at = read_u64(inbox.take(8).await?);
                let len = len - 8;
                self.room(cookie, op, (offset, whole), (at, len))?;
                self.fill(inbox, op, at, len).await
            }
            chunk::OFFSET_HOLE if command == command::READ && len == 12 => {
                let content = inbox.take(12).await?;
                let at = read_u64(content);
                let len = Reader(content.get(8..).unwrap_or_default()).u32().unwrap_or(0);
                self.room(cookie, op, (offset, whole), (at, len))?;
                self.zero(op, at, len);
                Ok(())
            }
            chunk::BLOCK_STATUS if command == command::BLOCK_STATUS && len <= CONTENT_MAX => {
                let content = inbox.take(len as usize).await?;
                let mut reader = Reader(content);
                let (Some(_), Some(len), Some(flags)) = (reader.u32(), reader.u32(), reader.u32())
                else {
                    return violation("a block status without an extent");
                };
                if len == 0 {
                    return violation("an empty extent");
                }
                // A hole alone may read as anything.
                let both = allocation::HOLE | allocation::ZERO;
                let hole = flags & both == both;
                self.extent(op, DeviceExtent { end: offset.saturating_add(len.into()), hole });
                Ok(())
            }
            kind if kind & chunk::ERROR_BIT != 0 && (6..=CONTENT_MAX).contains(&len) => {
                let content = inbox.take(len as usize).await?;
                let mut reader = Reader(content);
                let error = reader.u32().unwrap_or(0);
                let message = reader.u16().and_then(|len| reader.bytes(len.into()));
                if error == 0 {
                    return violation("an error without a number");
                }
                if ends(error) {
                    return Err(ReceiveEnd::ShutsDown);
                }
                let failure = failure(error, message.unwrap_or_default());
                self.fails(cookie, failure);
                Ok(())
            }
            _ => violation("a chunk that does not belong to its request"),
        }
    }

    /// Checks that data of a read are inside its range, and that no more bytes arrive than were
    /// requested.
    fn room(
        &self,
        cookie: u64,
        op: OpId,
        asked: (u64, u32),
        found: (u64, u32),
    ) -> Result<(), ReceiveEnd> {
        let ((offset, whole), (at, len)) = (asked, found);
        let inside = at >= offset
            && at.checked_add(len.into()).is_some_and(|end| end <= offset + u64::from(whole));
        if !inside {
            return violation("data outside of the range of a read");
        }
        if len < whole && self.got(cookie, 0) == Some(0) {
            // The first part of a reply in several parts: if a faulty server sends overlapping
            // parts, some bytes stay unset. Zero the buffer so that they do not expose the former
            // content of the memory.
            self.zero(op, offset, whole);
        }
        match self.got(cookie, len) {
            Some(got) if got <= whole => Ok(()),
            _ => violation("more data than were asked for"),
        }
    }

    /// Receives data of a read into the buffer of the read.
    async fn fill(
        &self,
        inbox: &mut ReceiveBuffer<'_>,
        op: OpId,
        at: u64,
        len: u32,
    ) -> Result<(), ReceiveEnd> {
        let Some((buf, start)) = self.destination(op, at) else {
            return violation("data for a request that reads nothing");
        };
        let (buf, result) = inbox.fill(buf, start..start + len as usize).await;
        self.put_destination(op, buf);
        result
    }
}

impl Link {
    /// Waits until a request is in flight.
    async fn wait_for_requests(&self) {
        while self.requests.borrow().in_flight() == 0 && !self.closing.get() {
            self.awaited.wait().await;
        }
    }

    /// Returns the operation, command, offset and length of the request with this cookie.
    fn asked(&self, cookie: u64) -> Result<(OpId, u16, u64, u32), ReceiveEnd> {
        match self.requests.borrow_mut().part(cookie) {
            Some(part) => Ok((part.op, part.command, part.offset, part.len)),
            None => Err(ReceiveEnd::Violation("a reply to no request")),
        }
    }

    /// Adds `more` to the number of received bytes of a read; returns the sum.
    fn got(&self, cookie: u64, more: u32) -> Option<u32> {
        let mut requests = self.requests.borrow_mut();
        let part = requests.part(cookie)?;
        part.got = part.got.checked_add(more)?;
        Some(part.got)
    }

    /// Marks a request as failed; the last part of its reply has not arrived yet.
    fn fails(&self, cookie: u64, failure: Failure) {
        let mut requests = self.requests.borrow_mut();
        let Some(op) = requests.part(cookie).map(|part| part.op) else { return };
        if let Some(op) = requests.op(op) {
            op.failure.get_or_insert(failure);
        }
    }

    /// The reply to a request is complete.
    fn done(&self, cookie: u64) -> Result<(), ReceiveEnd> {
        let (op, _, _, len) = self.asked(cookie)?;
        let mut requests = self.requests.borrow_mut();
        let failed = requests.op(op).is_none_or(|op| op.failure.is_some());
        let short = requests
            .part(cookie)
            .is_some_and(|part| part.command == command::READ && part.got != len);
        if short && !failed {
            return Err(ReceiveEnd::Violation("fewer data than were asked for"));
        }
        let answered = requests.answered(cookie, failed);
        let acknowledged = requests.acknowledged();
        drop(requests);
        self.attempts.set(0);
        if self.down_since.take().is_some() {
            tracing::info!(device = %self.remote.name, "the connection is back");
        }
        let Some((part, ended)) = answered else { return Ok(()) };
        if part.command == command::FLUSH && !failed {
            self.settle(part.covers, acknowledged);
        } else if part.changes() {
            self.port.set_unsettled(acknowledged > self.settled.borrow().until);
        }
        if ended {
            self.finish(part.op);
        }
        if self.orphan.get() {
            self.work.raise();
        }
        Ok(())
    }

    /// Takes the buffer of a read, and returns the position in it of offset `at` of the device.
    fn destination(&self, op: OpId, at: u64) -> Option<(IoBuf, usize)> {
        let mut requests = self.requests.borrow_mut();
        let start = at.checked_sub(requests.op(op)?.offset)? as usize;
        Some((requests.take_buf(op)?, start))
    }

    fn put_destination(&self, op: OpId, buf: IoBuf) {
        self.requests.borrow_mut().put_buf(op, buf);
    }

    /// Zeroes a part of the buffer of a read.
    fn zero(&self, op: OpId, at: u64, len: u32) {
        if let Some((mut buf, start)) = self.destination(op, at) {
            if let Some(part) = buf.get_mut(start..start + len as usize) {
                part.fill(0);
            }
            self.put_destination(op, buf);
        }
    }

    fn extent(&self, op: OpId, extent: DeviceExtent) {
        if let Some(op) = self.requests.borrow_mut().op(op) {
            op.extent = Some(extent);
        }
    }
}

fn read_u64(bytes: &[u8]) -> u64 {
    U64::read_from_prefix(bytes).map_or(0, |(value, _)| value.get())
}

fn failure(error: u32, message: &[u8]) -> Failure {
    let message: String =
        String::from_utf8_lossy(message).chars().filter(|c| !c.is_control()).take(200).collect();
    let cause = match message.is_empty() {
        true => format!("the server reports error {error}"),
        false => format!("the server reports error {error}: {message}"),
    };
    let kind: DeviceErrorKind = kind_of(error);
    Failure::new(kind, cause)
}
