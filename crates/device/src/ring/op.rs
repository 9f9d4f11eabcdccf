//! The operations of a ring.

use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use io_uring::{opcode, squeue, types};
use rustix::event::PollFlags;
use rustix::fs::FallocateFlags;
use rustix::io::ReadWriteFlags;
use rustix::net::{RecvFlags, SendFlags};

use super::uring::Submission;
use crate::buffer::IoBuf;
use crate::data::IoData;
use crate::fuse::FuseEntry;
use crate::ublk::QueueCommand;

/// Maximum number of bytes in one request to the kernel; longer operations continue with further
/// requests.
const CHUNK: usize = 1 << 30;

/// The offset of files without positions.
const CURRENT: u64 = u64::MAX;

/// The event that data can be read. The type depends on how rustix makes system calls.
const READABLE: u32 = PollFlags::IN.bits() as u32;
/// Wakes one of several waiters (`EPOLLEXCLUSIVE`).
const EXCLUSIVE: u32 = 1 << 28;

/// A change to the storage of a range of a file or block device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FallocateMode {
    /// Deallocate the range, which then reads as zeroes.
    PunchHole,
    /// Make the range read as zeroes, but keep it allocated.
    ZeroRange,
}

impl FallocateMode {
    fn bits(self) -> i32 {
        let what = match self {
            FallocateMode::PunchHole => FallocateFlags::PUNCH_HOLE,
            FallocateMode::ZeroRange => FallocateFlags::ZERO_RANGE,
        };
        (what | FallocateFlags::KEEP_SIZE).bits().cast_signed()
    }
}

/// One operation. It owns its buffer and a share of its descriptor, so that neither can be freed
/// while the kernel uses it. Lengths are at most `u32::MAX` bytes.
///
/// Descriptors of sockets must be in blocking mode: on non-blocking ones the kernel returns
/// `WouldBlock` immediately.
#[derive(Debug)]
pub enum RingOp {
    /// Fills `buf` from `offset`. Short only at the end of the file.
    Read {
        /// A file or block device.
        fd: Arc<OwnedFd>,
        /// First byte in the file.
        offset: u64,
        /// The destination; its length is the number of bytes to read.
        buf: IoBuf,
    },
    /// Writes all of `data` at `offset`.
    Write {
        /// A file or block device.
        fd: Arc<OwnedFd>,
        /// First byte in the file.
        offset: u64,
        /// The data to write.
        data: IoData,
        /// Whether the data is durable when the operation ends.
        durable: bool,
    },
    /// Makes completed writes durable.
    Fdatasync {
        /// A file or block device.
        fd: Arc<OwnedFd>,
    },
    /// Changes how a range is stored.
    Fallocate {
        /// A file or block device.
        fd: Arc<OwnedFd>,
        /// The change.
        mode: FallocateMode,
        /// First byte in the file.
        offset: u64,
        /// Length in bytes.
        len: u64,
    },
    /// Receives into `buf[range]`: the bytes that have arrived, at least one, or with `fill` the
    /// whole range. At the end of the stream the result is short with `fill`, and 0 without.
    Recv {
        /// A connected stream socket.
        fd: Arc<OwnedFd>,
        /// The destination.
        buf: IoBuf,
        /// The part of `buf` to use.
        range: Range<usize>,
        /// Whether to wait until the range is full.
        fill: bool,
    },
    /// Sends `buf[range]`, or the beginning of it; the result is the number of bytes. A closed
    /// connection is an error, without a signal.
    Send {
        /// A connected stream socket.
        fd: Arc<OwnedFd>,
        /// The data to send.
        buf: IoBuf,
        /// The part of `buf` to send.
        range: Range<usize>,
    },
    /// Waits for a connection, which is returned with the completion, in blocking mode.
    Accept {
        /// A listening socket.
        fd: Arc<OwnedFd>,
    },
    /// Waits until a descriptor can be read, or its other end is closed.
    Readable {
        /// Any file that can be polled, in either mode.
        fd: Arc<OwnedFd>,
    },
    /// Waits until an eventfd is not 0, and resets it. If the eventfd is in non-blocking mode, an
    /// older kernel returns `WouldBlock` instead of waiting.
    TakeEvent {
        /// An eventfd.
        fd: Arc<OwnedFd>,
        /// The destination, 8 bytes.
        buf: IoBuf,
    },
    /// Adds to an eventfd. Never blocks the lane, with any descriptor.
    RaiseEvent {
        /// An eventfd.
        fd: Arc<OwnedFd>,
        /// The number to add, 8 bytes.
        buf: IoBuf,
    },
    /// Waits for a message and takes it completely into `buf[range]`. If several rings wait, each
    /// message wakes one of them.
    TakeMessage {
        /// A character device that delivers whole messages, in non-blocking mode.
        fd: Arc<OwnedFd>,
        /// The destination.
        buf: IoBuf,
        /// The part of `buf` to use.
        range: Range<usize>,
    },
    /// Writes `buf[range]` as one message.
    GiveMessage {
        /// Like [`RingOp::TakeMessage`].
        fd: Arc<OwnedFd>,
        /// The message.
        buf: IoBuf,
        /// The part of `buf` to use.
        range: Range<usize>,
    },
    /// Gives the kernel the result of a request to a block device that this process serves, if
    /// there was one, and waits for the next request. All operations of a queue must come from one
    /// thread.
    Serve {
        /// The character device of the block device.
        fd: Arc<OwnedFd>,
        /// The queue, the tag and the result.
        command: QueueCommand,
        /// The data of a completed read, and the destination for the data of the next write; as
        /// long as the longest request.
        buf: IoBuf,
    },
    /// Gives the kernel the reply to a request for a file that this process serves, if there was
    /// one, and waits for the next request. Needs [`Ring::wide`](super::Ring::wide). All operations
    /// of a queue must come from one thread.
    ServeEntry {
        /// A descriptor of the connection.
        fd: Arc<OwnedFd>,
        /// The memory of the request and the reply; returned with the completion.
        entry: Box<FuseEntry>,
    },
}

impl RingOp {
    /// Returns whether the operation may wait for ever, so that it must be cancelled when its
    /// result is abandoned. Disk operations are left to complete.
    pub(super) fn is_endless(&self) -> bool {
        match self {
            RingOp::Read { .. }
            | RingOp::Write { .. }
            | RingOp::Fdatasync { .. }
            | RingOp::Fallocate { .. }
            | RingOp::GiveMessage { .. } => false,
            RingOp::Recv { .. }
            | RingOp::Send { .. }
            | RingOp::Accept { .. }
            | RingOp::TakeMessage { .. }
            | RingOp::Readable { .. }
            | RingOp::TakeEvent { .. }
            | RingOp::RaiseEvent { .. }
            | RingOp::Serve { .. }
            | RingOp::ServeEntry { .. } => true,
        }
    }

    /// Returns whether the operation cannot be cancelled: it ends with its device or its thread.
    pub(super) fn is_bound(&self) -> bool {
        matches!(self, RingOp::Serve { .. } | RingOp::ServeEntry { .. })
    }

    /// Returns the number of bytes that complete the operation, if it continues after a short step.
    pub(super) fn whole(&self) -> Option<usize> {
        match self {
            RingOp::Read { buf, .. } => Some(buf.len()),
            RingOp::Write { data, .. } => Some(data.len()),
            RingOp::Recv { range, fill: true, .. } => Some(range.len()),
            _ => None,
        }
    }

    /// Returns the caller's buffer and entry.
    pub(super) fn into_parts(self) -> (Option<IoBuf>, Option<Box<FuseEntry>>) {
        match self {
            RingOp::Read { buf, .. }
            | RingOp::Recv { buf, .. }
            | RingOp::Send { buf, .. }
            | RingOp::TakeEvent { buf, .. }
            | RingOp::RaiseEvent { buf, .. }
            | RingOp::TakeMessage { buf, .. }
            | RingOp::GiveMessage { buf, .. }
            | RingOp::Serve { buf, .. }
            | RingOp::Write { data: IoData::Owned(buf), .. } => (Some(buf), None),
            RingOp::ServeEntry { entry, .. } => (None, Some(entry)),
            _ => (None, None),
        }
    }

    /// Returns the request that must succeed before the request of [`RingOp::prepare`] begins.
    ///
    /// The message is polled for first. A read would wait as well, but then every message would
    /// wake all waiting rings.
    pub(super) fn prelude(&self) -> Option<squeue::Entry> {
        let RingOp::TakeMessage { fd, .. } = self else { return None };
        Some(opcode::PollAdd::new(target(fd), READABLE | EXCLUSIVE).build())
    }

    /// Returns the request for the kernel, after `done` bytes.
    ///
    /// The addresses in the request are valid as long as this operation is neither dropped nor
    /// changed; it may be moved.
    ///
    /// # Errors
    /// `InvalidInput` if a range is not inside its buffer, not published, or too long;
    /// `Unsupported` if a wide ring is needed.
    pub(super) fn prepare(&mut self, done: usize, wide: bool) -> io::Result<Submission> {
        match self {
            RingOp::ServeEntry { fd, entry } if wide => Ok(entry.command(target(fd)).into()),
            _ => self.prepare_narrow(done).map(Submission::from),
        }
    }

    fn prepare_narrow(&mut self, done: usize) -> io::Result<squeue::Entry> {
        let invalid = || io::Error::from(io::ErrorKind::InvalidInput);
        let step = |len: usize| {
            u32::try_from(len).map_err(|_| invalid())?;
            Ok::<u32, io::Error>(len.saturating_sub(done).min(CHUNK) as u32)
        };
        let entry = match self {
            RingOp::Read { fd, offset, buf } => {
                let len = step(buf.len())?;
                // `wrapping_add` because the end of an empty buffer is outside any allocation.
                let place = buf.as_io_ptr().wrapping_add(done.min(buf.len()));
                opcode::Read::new(target(fd), place, len).offset(*offset + done as u64).build()
            }
            RingOp::Write { fd, offset, data, durable } => {
                let len = step(data.len())?;
                let place = match data {
                    IoData::Owned(buf) => buf.as_io_ptr().cast_const(),
                    IoData::Log(log, range) => log.get(range.clone()).ok_or_else(invalid)?.as_ptr(),
                };
                let place = place.wrapping_add(done.min(data.len()));
                let flags = if *durable { ReadWriteFlags::DSYNC } else { ReadWriteFlags::empty() };
                opcode::Write::new(target(fd), place, len)
                    .offset(*offset + done as u64)
                    .rw_flags(flags.bits().cast_signed())
                    .build()
            }
            RingOp::Fdatasync { fd } => {
                opcode::Fsync::new(target(fd)).flags(types::FsyncFlags::DATASYNC).build()
            }
            RingOp::Fallocate { fd, mode, offset, len } => {
                opcode::Fallocate::new(target(fd), *len).offset(*offset).mode(mode.bits()).build()
            }
            RingOp::Recv { fd, buf, range, fill } => {
                let (place, len) = (part(buf, range, done)?, step(range.len())?);
                let flags = if *fill { RecvFlags::WAITALL } else { RecvFlags::empty() };
                opcode::Recv::new(target(fd), place, len).flags(flags.bits().cast_signed()).build()
            }
            RingOp::Send { fd, buf, range } => {
                let (place, len) = (part(buf, range, done)?.cast_const(), step(range.len())?);
                let flags = SendFlags::NOSIGNAL.bits().cast_signed();
                opcode::Send::new(target(fd), place, len).flags(flags).build()
            }
            RingOp::Accept { fd } => {
                let flags = rustix::net::SocketFlags::CLOEXEC.bits().cast_signed();
                let (address, length) = (std::ptr::null_mut(), std::ptr::null_mut());
                opcode::Accept::new(target(fd), address, length).flags(flags).build()
            }
            RingOp::Readable { fd } => opcode::PollAdd::new(target(fd), READABLE).build(),
            RingOp::TakeEvent { fd, buf } => {
                let len = step(buf.len())?;
                opcode::Read::new(target(fd), buf.as_io_ptr(), len).build()
            }
            RingOp::RaiseEvent { fd, buf } => {
                let len = step(buf.len())?;
                opcode::Write::new(target(fd), buf.as_io_ptr().cast_const(), len).build()
            }
            RingOp::TakeMessage { fd, buf, range } => {
                let (place, len) = (part(buf, range, done)?, step(range.len())?);
                opcode::Read::new(target(fd), place, len).offset(CURRENT).build()
            }
            RingOp::GiveMessage { fd, buf, range } => {
                let (place, len) = (part(buf, range, done)?.cast_const(), step(range.len())?);
                opcode::Write::new(target(fd), place, len).offset(CURRENT).build()
            }
            RingOp::Serve { fd, command, buf } => command.entry(target(fd), buf),
            RingOp::ServeEntry { .. } => return Err(io::ErrorKind::Unsupported.into()),
        };
        Ok(entry)
    }
}

/// Returns the address of `buf[range]`, after the first `done` bytes of the range.
///
/// # Errors
/// `InvalidInput` if the range is not inside the buffer.
fn part(buf: &mut IoBuf, range: &Range<usize>, done: usize) -> io::Result<*mut u8> {
    buf.get(range.clone()).ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
    Ok(buf.as_io_ptr().wrapping_add(range.start + done.min(range.len())))
}

fn target(fd: &Arc<OwnedFd>) -> types::Fd {
    types::Fd(fd.as_raw_fd())
}

/// The result of an operation.
#[derive(Debug)]
pub struct RingDone {
    /// Number of bytes, 0 for operations that transfer none; or the error.
    pub result: io::Result<u32>,
    /// The buffer of the operation, whatever the result.
    pub buf: Option<IoBuf>,
    /// The accepted connection.
    pub accepted: Option<OwnedFd>,
    /// The entry of [`RingOp::ServeEntry`], whatever the result.
    pub entry: Option<Box<FuseEntry>>,
}
