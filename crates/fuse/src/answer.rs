//! Decides how a request is answered: at once, by the volume, or without a reply. No I/O.

use forebay_core::{IoError, Op, SECTOR_SIZE, Survives};
use rustix::io::Errno;
use zerocopy::IntoBytes;

use crate::request::{FuseRequest, Message};
use crate::wire::{
    Attr, AttrOut, InitOut, MAJOR, MINOR, OLDEST_MINOR, OVER_IO_URING, OpenOut, ROOT, StatFsOut,
    WriteOut, fallocate_mode, init_flag, open_flag,
};

/// Most bytes of a read or write.
pub const MAX_TRANSFER: u32 = 256 << 10;
/// Bytes of a page of memory.
const PAGE: u32 = 4096;
/// Most requests in flight that the kernel sends without a thread that waits for each.
const MAX_BACKGROUND: u16 = 256;
/// Seconds for which the kernel may cache attributes: practically for ever, because they do not
/// change. Otherwise a program that asks for them while no daemon answers, as `losetup` does, would
/// wait, and the next daemon with it.
const REMEMBERED: u64 = u32::MAX as u64;

/// The volume behind the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileFacts {
    /// Bytes, a multiple of 512.
    pub size: u64,
    /// Bytes of the logical sectors of the loop device.
    pub sector: u32,
    /// Writes are refused.
    pub read_only: bool,
    /// Bytes of a cached block.
    pub block: u64,
    /// The file's owner.
    pub uid: u32,
    /// The file's group.
    pub gid: u32,
    /// The file outlives the daemon. Its users do not notice the end of the daemon, so answered
    /// writes must survive it.
    pub outlives: bool,
    /// Requests are to come through io_uring.
    pub io_uring: bool,
}

impl FileFacts {
    /// Returns the failure that each change must survive before it is answered.
    fn promise(&self) -> Survives {
        if self.outlives { Survives::Daemon } else { Survives::Nothing }
    }
}

/// A request to the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VolumeRequest {
    /// The operation.
    pub op: Op,
    /// First byte, a multiple of 512.
    pub offset: u64,
    /// Bytes, a multiple of 512.
    pub len: u64,
    /// Must survive this before the reply.
    pub survives: Survives,
    /// The range should be deallocated (`WriteZeroes` only).
    pub punch: bool,
}

/// The content of a reply.
#[derive(Clone, Copy, Debug)]
pub enum Content {
    /// No content; the reply only reports success.
    Nothing,
    /// The reply to `INIT`.
    Init(InitOut),
    /// The reply to `GETATTR` and `SETATTR`.
    Attr(AttrOut),
    /// The reply to `OPEN`.
    Open(OpenOut),
    /// The reply to `WRITE`.
    Written(WriteOut),
    /// The reply to `STATFS`.
    StatFs(StatFsOut),
}

impl Content {
    /// Returns the bytes behind the header.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Content::Nothing => &[],
            Content::Init(out) => out.as_bytes(),
            Content::Attr(out) => out.as_bytes(),
            Content::Open(out) => out.as_bytes(),
            Content::Written(out) => out.as_bytes(),
            Content::StatFs(out) => out.as_bytes(),
        }
    }
}

/// The answer to a request.
#[derive(Clone, Copy, Debug)]
pub enum Action {
    /// The request gets no reply.
    Ignore,
    /// The request is answered at once with this result.
    Reply(Result<Content, Errno>),
    /// The volume is read; bytes `skip..skip + len` of the data are the reply.
    Read {
        /// The read of whole sectors that contain the requested bytes.
        request: VolumeRequest,
        /// Bytes before the requested ones.
        skip: u32,
        /// Number of requested bytes.
        len: u32,
    },
    /// The volume executes this request, and the reply has only its result.
    Volume(VolumeRequest),
}

/// Decides about a request.
pub fn decide(message: &Message, file: &FileFacts) -> Action {
    if let FuseRequest::Notice = message.request {
        return Action::Ignore;
    }
    let about_file = !matches!(message.request, FuseRequest::Init { .. } | FuseRequest::Destroy);
    if about_file && message.node != ROOT && !matches!(message.request, FuseRequest::Unknown) {
        return Action::Reply(Err(Errno::STALE));
    }
    match message.request {
        FuseRequest::Notice => Action::Ignore,
        FuseRequest::Init { major, minor, max_readahead, flags, more } => {
            let more = if file.io_uring { more & OVER_IO_URING } else { 0 };
            Action::Reply(negotiate(major, minor, max_readahead, (flags, more)))
        }
        FuseRequest::Lookup => Action::Reply(Err(Errno::NOTDIR)),
        FuseRequest::GetAttr => Action::Reply(Ok(Content::Attr(attributes(file)))),
        // Tools that copy to a device set the size that the file already has.
        FuseRequest::SetAttr { size: Some(size) } if size == file.size => {
            Action::Reply(Ok(Content::Attr(attributes(file))))
        }
        FuseRequest::SetAttr { .. } => Action::Reply(Err(Errno::PERM)),
        FuseRequest::Open { writes } if writes && file.read_only => Action::Reply(Err(Errno::ROFS)),
        FuseRequest::Open { .. } => Action::Reply(Ok(Content::Open(OpenOut {
            handle: 0,
            open_flags: open_flag::DIRECT_IO
                | open_flag::NOFLUSH
                | open_flag::PARALLEL_DIRECT_WRITES,
            padding: 0,
        }))),
        FuseRequest::Read { offset, len } => read(offset, len, file),
        FuseRequest::Write { offset, len, durable } => write(offset, len, durable, file),
        FuseRequest::StatFs => Action::Reply(Ok(Content::StatFs(space(file)))),
        FuseRequest::Fsync => Action::Volume(VolumeRequest {
            op: Op::Flush,
            offset: 0,
            len: 0,
            survives: Survives::Nothing,
            punch: false,
        }),
        FuseRequest::Fallocate { offset, len, mode } => fallocate(offset, len, mode, file),
        FuseRequest::Release | FuseRequest::Flush | FuseRequest::Destroy => {
            Action::Reply(Ok(Content::Nothing))
        }
        FuseRequest::Unknown => Action::Reply(Err(Errno::NOSYS)),
    }
}

fn negotiate(
    major: u32,
    minor: u32,
    readahead: u32,
    (flags, more): (u32, u32),
) -> Result<Content, Errno> {
    use init_flag::{ASYNC_DIO, ASYNC_READ, BIG_WRITES, MAX_PAGES, MORE};

    if major < MAJOR || (major == MAJOR && minor < OLDEST_MINOR) {
        return Err(Errno::PROTO);
    }
    Ok(Content::Init(InitOut {
        major: MAJOR,
        minor: MINOR,
        max_readahead: readahead,
        flags: flags & (ASYNC_READ | BIG_WRITES | ASYNC_DIO | MAX_PAGES)
            | if more == 0 { 0 } else { MORE },
        max_background: MAX_BACKGROUND,
        congestion_threshold: MAX_BACKGROUND,
        max_write: MAX_TRANSFER,
        time_granularity: 1,
        max_pages: (MAX_TRANSFER / PAGE) as u16,
        map_alignment: 0,
        flags2: more,
        unused: [0; 7],
    }))
}

fn attributes(file: &FileFacts) -> AttrOut {
    const REGULAR: u32 = 0o100_000;
    let attr = Attr {
        inode: ROOT,
        size: file.size,
        blocks: file.size / SECTOR_SIZE,
        times: [0; 3],
        fractions: [0; 3],
        mode: REGULAR | if file.read_only { 0o400 } else { 0o600 },
        links: 1,
        uid: file.uid,
        gid: file.gid,
        rdev: 0,
        block_size: PAGE,
        flags: 0,
    };
    AttrOut { valid: REMEMBERED, valid_fraction: 0, padding: 0, attr }
}

/// A loop device takes its unit of discards from this block size.
fn space(file: &FileFacts) -> StatFsOut {
    StatFsOut {
        blocks: [file.size / u64::from(PAGE), 0, 0],
        files: 1,
        free_files: 0,
        block_size: PAGE,
        name_len: 255,
        fragment_size: PAGE,
        padding: 0,
        spare: [0; 6],
    }
}

/// Reads may have any alignment, so that every tool can read the file.
fn read(offset: u64, len: u32, file: &FileFacts) -> Action {
    if len > MAX_TRANSFER {
        return Action::Reply(Err(Errno::INVAL));
    }
    let end = offset.saturating_add(len.into()).min(file.size);
    if offset >= end {
        return Action::Reply(Ok(Content::Nothing));
    }
    let start = offset / SECTOR_SIZE * SECTOR_SIZE;
    let request = VolumeRequest {
        op: Op::Read,
        offset: start,
        // The size is a multiple of 512, so the rounded end is not beyond it.
        len: end.next_multiple_of(SECTOR_SIZE) - start,
        survives: Survives::Nothing,
        punch: false,
    };
    Action::Read { request, skip: (offset - start) as u32, len: (end - offset) as u32 }
}

fn write(offset: u64, len: u32, durable: bool, file: &FileFacts) -> Action {
    if let Err(refused) = check(offset, len.into(), file) {
        return Action::Reply(Err(refused));
    }
    if len > MAX_TRANSFER {
        return Action::Reply(Err(Errno::INVAL));
    }
    if len == 0 {
        return Action::Reply(Ok(written(0)));
    }
    let survives = if durable { Survives::PowerLoss } else { file.promise() };
    Action::Volume(VolumeRequest { op: Op::Write, offset, len: len.into(), survives, punch: false })
}

/// Returns the reply to a write of `len` bytes.
pub fn written(len: u32) -> Content {
    Content::Written(WriteOut { size: len, padding: 0 })
}

fn fallocate(offset: u64, len: u64, mode: u32, file: &FileFacts) -> Action {
    use fallocate_mode::{KEEP_SIZE, PUNCH_HOLE, ZERO_RANGE};

    let punch = match mode & !KEEP_SIZE {
        PUNCH_HOLE => true,
        ZERO_RANGE => false,
        _ => return Action::Reply(Err(Errno::OPNOTSUPP)),
    };
    match check(offset, len, file) {
        Err(refused) => Action::Reply(Err(refused)),
        Ok(()) if len == 0 => Action::Reply(Ok(Content::Nothing)),
        Ok(()) => Action::Volume(VolumeRequest {
            op: Op::WriteZeroes,
            offset,
            len,
            survives: file.promise(),
            punch,
        }),
    }
}

/// Checks the range of a change.
fn check(offset: u64, len: u64, file: &FileFacts) -> Result<(), Errno> {
    if file.read_only {
        return Err(Errno::ROFS);
    }
    if !offset.is_multiple_of(SECTOR_SIZE) || !len.is_multiple_of(SECTOR_SIZE) {
        return Err(Errno::INVAL);
    }
    match offset.checked_add(len) {
        Some(end) if end <= file.size => Ok(()),
        _ => Err(Errno::NOSPC),
    }
}

/// Converts an error of the volume.
pub fn errno(error: IoError) -> Errno {
    match error {
        IoError::Invalid => Errno::INVAL,
        IoError::NoSpace => Errno::NOSPC,
        IoError::ReadOnly => Errno::ROFS,
        IoError::Io | IoError::ShuttingDown => Errno::IO,
        IoError::NotSupported => Errno::OPNOTSUPP,
    }
}

#[cfg(test)]
mod tests;
