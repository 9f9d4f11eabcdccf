//! What can be asked of a ring.

use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use io_uring::{opcode, squeue, types};
use rustix::fs::FallocateFlags;
use rustix::io::ReadWriteFlags;
use rustix::net::{RecvFlags, SendFlags};

use crate::api::IoData;
use crate::buffer::IoBuf;

/// The most bytes in one request to the kernel; longer operations continue where it ended.
const CHUNK: usize = 1 << 30;

/// What to do with a range of a file or block device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FallocateMode {
    /// Give the space back; the range reads as zeroes.
    PunchHole,
    /// Make the range read as zeroes, keeping its space.
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

/// One operation. It owns its buffer and a share of its descriptor, so that neither can go away
/// while the kernel uses it. Lengths are at most `u32::MAX` bytes.
///
/// Descriptors of sockets must be in blocking mode: the kernel answers `WouldBlock` at once to
/// operations on non-blocking ones.
#[derive(Debug)]
pub enum RingOp {
    /// Fills `buf` from `offset`. Short only at the end of the file.
    Read {
        /// A file or block device.
        fd: Arc<OwnedFd>,
        /// First byte in the file.
        offset: u64,
        /// Where the data goes; its length says how much.
        buf: IoBuf,
    },
    /// Writes all of `data` at `offset`.
    Write {
        /// A file or block device.
        fd: Arc<OwnedFd>,
        /// First byte in the file.
        offset: u64,
        /// What is written.
        data: IoData,
        /// It is durable when it ends.
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
        /// What to do.
        mode: FallocateMode,
        /// First byte in the file.
        offset: u64,
        /// Length in bytes.
        len: u64,
    },
    /// Receives into `buf[range]`: what has arrived, at least one byte, or with `fill` everything.
    /// Short with `fill`, and 0 without, at the end of the stream.
    Recv {
        /// A connected stream socket.
        fd: Arc<OwnedFd>,
        /// Where the data goes.
        buf: IoBuf,
        /// Which part of `buf` to use.
        range: Range<usize>,
        /// Whether to wait until the range is full.
        fill: bool,
    },
    /// Sends `buf[range]`, or the beginning of it; the result says how much. A peer that is gone
    /// is an error and no signal.
    Send {
        /// A connected stream socket.
        fd: Arc<OwnedFd>,
        /// Where the data is.
        buf: IoBuf,
        /// Which part of `buf` to send.
        range: Range<usize>,
    },
    /// Waits for a connection. It comes with the completion, in blocking mode.
    Accept {
        /// A listening socket.
        fd: Arc<OwnedFd>,
    },
}

impl RingOp {
    /// Whether waiting for it may take for ever, so that it must be cancelled when nobody wants
    /// the result. What goes to a disk is let through.
    pub(super) fn is_endless(&self) -> bool {
        matches!(self, RingOp::Recv { .. } | RingOp::Send { .. } | RingOp::Accept { .. })
    }

    /// Bytes that complete it, if it is one that goes on after a short step.
    pub(super) fn whole(&self) -> Option<usize> {
        match self {
            RingOp::Read { buf, .. } => Some(buf.len()),
            RingOp::Write { data, .. } => Some(data.len()),
            RingOp::Recv { range, fill: true, .. } => Some(range.len()),
            _ => None,
        }
    }

    /// The buffer, to be given back.
    pub(super) fn into_buf(self) -> Option<IoBuf> {
        match self {
            RingOp::Read { buf, .. } | RingOp::Recv { buf, .. } | RingOp::Send { buf, .. } => {
                Some(buf)
            }
            RingOp::Write { data: IoData::Owned(buf), .. } => Some(buf),
            _ => None,
        }
    }

    /// The request for the kernel, after `done` bytes.
    ///
    /// The addresses in it are valid as long as this operation is neither dropped nor changed;
    /// moving it is allowed.
    ///
    /// # Errors
    /// `InvalidInput` if a range is not inside its buffer, or not published, or too long.
    pub(super) fn prepare(&mut self, done: usize) -> io::Result<squeue::Entry> {
        let invalid = || io::Error::from(io::ErrorKind::InvalidInput);
        let step = |len: usize| {
            u32::try_from(len).map_err(|_| invalid())?;
            Ok::<u32, io::Error>(len.saturating_sub(done).min(CHUNK) as u32)
        };
        let entry = match self {
            RingOp::Read { fd, offset, buf } => {
                let len = step(buf.len())?;
                // `wrapping_add` because the end of an empty buffer is not inside anything.
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
                buf.get(range.clone()).ok_or_else(invalid)?;
                let len = step(range.len())?;
                let place = buf.as_io_ptr().wrapping_add(range.start + done.min(range.len()));
                let flags = if *fill { RecvFlags::WAITALL } else { RecvFlags::empty() };
                opcode::Recv::new(target(fd), place, len).flags(flags.bits().cast_signed()).build()
            }
            RingOp::Send { fd, buf, range } => {
                buf.get(range.clone()).ok_or_else(invalid)?;
                let len = step(range.len())?;
                let place = buf.as_io_ptr().wrapping_add(range.start).cast_const();
                let flags = SendFlags::NOSIGNAL.bits().cast_signed();
                opcode::Send::new(target(fd), place, len).flags(flags).build()
            }
            RingOp::Accept { fd } => {
                let flags = rustix::net::SocketFlags::CLOEXEC.bits().cast_signed();
                let (address, length) = (std::ptr::null_mut(), std::ptr::null_mut());
                opcode::Accept::new(target(fd), address, length).flags(flags).build()
            }
        };
        Ok(entry)
    }
}

fn target(fd: &Arc<OwnedFd>) -> types::Fd {
    types::Fd(fd.as_raw_fd())
}

impl IoData {
    /// Length in bytes.
    pub(crate) fn len(&self) -> usize {
        match self {
            IoData::Owned(buf) => buf.len(),
            IoData::Log(_, range) => range.len(),
        }
    }
}

/// How an operation ended.
#[derive(Debug)]
pub struct RingDone {
    /// Bytes moved, 0 for operations that move none; or why it failed.
    pub result: io::Result<u32>,
    /// The buffer of the operation, whatever the result.
    pub buf: Option<IoBuf>,
    /// The connection that was accepted.
    pub accepted: Option<OwnedFd>,
}
