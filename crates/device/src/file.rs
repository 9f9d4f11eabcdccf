//! Regular files and block devices, on the lane's ring.

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use forebay_core::{Identity, Sectors};
use forebay_host::files::text;
use forebay_host::sysfs;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, StatxFlags};
use rustix::io::Errno;

use crate::api::{
    Device, DeviceDone, DeviceError, DeviceErrorKind, DeviceExtent, DeviceOp, DeviceQueue, OpId,
    QueueContext,
};
use crate::buffer::IoBuf;
use crate::data::IoData;
use crate::displaced::{Displaced, OpenedPath};
use crate::evidence::{self, evidence};
use crate::holes::{extent_at, makes_holes};
use crate::identity::identity;
use crate::open::{Access, OpenError, open};
use crate::partitions::reread_partitions;
use crate::ram::{unknown, unpublished};
use crate::ring::{FallocateMode, Ring, RingDone, RingOp, RingToken};
use crate::rotational::rotational;
use crate::table::{OpTable, Shape};
use crate::write_protection::write_protection_at_once;

/// Bytes of zeroes per write where the device has no operation for zeroing.
const ZEROES: u64 = 1 << 20;

/// State shared by all queues.
struct OpenFile {
    shape: Shape,
    fd: Arc<OwnedFd>,
    memory_align: usize,
    direct: bool,
    path: OpenedPath,
    writable: bool,
    sectors: Sectors,
    writes_durably: bool,
    rotational: Option<bool>,
    /// Identity as of the opening: it does not change, and a file server may not answer later.
    identity: Option<Identity>,
    /// A file server may not answer.
    on_server: bool,
    is_loop: bool,
    /// The smallest known size of a regular file; `None` for a block device, where the kernel fails
    /// operations behind the end.
    least: Option<AtomicU64>,
}

impl OpenFile {
    /// Returns the size of the device; for a regular file, the smallest size since it was opened.
    fn left(&self) -> u64 {
        let Some(least) = &self.least else { return self.shape.size };
        // Uses the kernel's cache, so that a lane does not wait for a file server.
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        match rustix::fs::statx(&self.fd, c"", flags, StatxFlags::SIZE) {
            Ok(stat) => least.fetch_min(stat.stx_size, Ordering::Relaxed).min(stat.stx_size),
            Err(_) => least.load(Ordering::Relaxed),
        }
    }

    /// Refuses operations behind the end of a file that has shrunk. A write there would succeed and
    /// grow the file again, with a hole in place of the lost data.
    fn check_left(&self, op: &DeviceOp) -> Result<(), DeviceError> {
        let Some(least) = &self.least else { return Ok(()) };
        let (offset, end, left) = match op {
            // A read behind the end is short if the shrinking is not known yet.
            DeviceOp::Read { offset, buf } => {
                (*offset, offset + buf.len() as u64, least.load(Ordering::Relaxed))
            }
            DeviceOp::Write { offset, data } => (*offset, offset + data.len() as u64, self.left()),
            DeviceOp::DurableWrite { offset, range, .. } => {
                (*offset, offset + range.len() as u64, self.left())
            }
            DeviceOp::Discard { offset, len } | DeviceOp::WriteZeroes { offset, len } => {
                (*offset, offset + len, self.left())
            }
            DeviceOp::Sync => (0, self.shape.size, self.left()),
        };
        if end <= left {
            return Ok(());
        }
        let cause = format!("it has shrunk from {} to {left} bytes", self.shape.size);
        Err(self.shape.error(DeviceErrorKind::Io, op.what(), offset, cause))
    }
}

fn is_regular(fd: &OwnedFd) -> bool {
    let stat = rustix::fs::fstat(fd).ok();
    stat.is_some_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile)
}

/// Returns whether `fd` is a block device that can make single writes durable: it has forced unit
/// access, or no volatile cache.
fn writes_durably(fd: &OwnedFd) -> bool {
    let Ok(stat) = rustix::fs::fstat(fd) else { return false };
    if FileType::from_raw_mode(stat.st_mode) != FileType::BlockDevice {
        return false;
    }
    // A partition has no queue of its own; its disk has one.
    let queues = ["queue", "../queue"].map(|queue| sysfs::of_number(stat.st_rdev).join(queue));
    let read = |name: &str| queues.iter().find_map(|queue| text(queue.join(name)));
    read("fua").as_deref() == Some("1") || read("write_cache").as_deref() == Some("write through")
}

/// A regular file or a block device. I/O bypasses the kernel's page cache if the filesystem
/// permits.
pub struct FileDevice {
    shared: Arc<OpenFile>,
}

impl FileDevice {
    /// Opens `path`, following links, and claims it according to `access` until the device and all
    /// of its queues are dropped. With a `size` in bytes, a positive multiple of 4096, a missing
    /// file is created as a sparse file if `access` permits writing; an existing file must have
    /// exactly that size.
    ///
    /// # Errors
    /// See [`crate::open::OpenErrorKind`].
    pub fn open(path: &Path, access: Access, size: Option<u64>) -> Result<Arc<Self>, OpenError> {
        let opened = open(path, access, size)?;
        let shape = Shape {
            name: path.to_string_lossy().into(),
            size: opened.size,
            logical_block: opened.logical_block,
        };
        let shared = OpenFile {
            sectors: opened.sectors,
            writes_durably: writes_durably(&opened.fd),
            rotational: rotational(&opened.fd),
            identity: identity(&opened.fd),
            on_server: evidence::is_on_server(&opened.fd),
            is_loop: evidence::is_loop(&opened.fd),
            least: is_regular(&opened.fd).then(|| AtomicU64::new(shape.size)),
            path: OpenedPath::new(path, &opened.fd),
            shape,
            fd: Arc::new(opened.fd),
            memory_align: opened.memory_align,
            direct: opened.direct,
            writable: access == Access::Exclusive,
        };
        Ok(Arc::new(FileDevice { shared: Arc::new(shared) }))
    }

    /// Returns whether I/O bypasses the kernel's page cache.
    pub fn is_direct(&self) -> bool {
        self.shared.direct
    }
}

impl Device for FileDevice {
    fn name(&self) -> &str {
        &self.shared.shape.name
    }

    fn size(&self) -> u64 {
        self.shared.shape.size
    }

    fn logical_block(&self) -> u64 {
        self.shared.shape.logical_block
    }

    fn sectors(&self) -> Sectors {
        self.shared.sectors
    }

    fn writes_durably(&self) -> bool {
        self.shared.writes_durably
    }

    fn shrunk_to(&self) -> Option<u64> {
        Some(self.shared.left()).filter(|left| *left < self.shared.shape.size)
    }

    fn for_reading_only(&self) -> bool {
        !self.shared.writable
    }

    fn write_protected(&self) -> Option<Arc<str>> {
        write_protection_at_once(&self.shared.fd, self.shared.on_server)
    }

    fn displaced(&self) -> Option<Displaced> {
        self.shared.path.compare(&self.shared.fd)
    }

    fn rotational(&self) -> Option<bool> {
        self.shared.rotational
    }

    fn identity(&self) -> Option<Identity> {
        self.shared.identity.clone()
    }

    fn write_evidence(&self) -> Option<forebay_core::Evidence> {
        evidence(&*self.shared.fd)
    }

    fn evidence_may_wait(&self) -> bool {
        self.shared.on_server || self.shared.is_loop
    }

    fn knows_holes(&self) -> bool {
        self.shared.least.is_some()
    }

    fn extent_at(&self, offset: u64) -> Option<DeviceExtent> {
        // The missing end of a file that has shrunk is not a hole.
        self.knows_holes().then(|| extent_at(&self.shared.fd, offset, self.shared.left()))?
    }

    fn descriptor(&self) -> Option<OwnedFd> {
        // The path may lead to another file by now; the descriptor still leads to this one.
        let own = format!("/proc/self/fd/{}", self.shared.fd.as_raw_fd());
        rustix::fs::open(own, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()
    }

    fn reread_partitions(&self) -> io::Result<()> {
        reread_partitions(&self.shared.fd)
    }

    fn open_queue(&self, context: &QueueContext) -> Result<Rc<dyn DeviceQueue>, DeviceError> {
        let Some(ring) = context.ring.clone() else {
            let (kind, cause) = (DeviceErrorKind::NotSupported, "the lane has no ring");
            return Err(self.shared.shape.error(kind, "open", 0, cause));
        };
        Ok(Rc::new(FileQueue { shared: self.shared.clone(), ring, ops: RefCell::default() }))
    }
}

/// Progress of zeroing a range.
#[derive(Clone, Copy)]
enum Zeroing {
    /// The range operation was requested. If the device does not support it, zeroes are written.
    Range,
    /// Zeroes are being written; the value is the first byte that was not requested yet.
    Writing(u64),
}

/// The step after the ring has finished.
enum Continuation {
    /// Return the result to the caller, which expects this many bytes.
    End { len: u64 },
    /// Copy the data to the caller's buffer, which direct I/O could not use.
    CopyBack(IoBuf),
    /// Return the caller's buffer, a copy of which was written.
    GiveBack(Option<IoBuf>),
    /// Continue zeroing up to this byte, exclusive.
    Zero(Zeroing, u64),
}

enum FileOp {
    Running { token: RingToken, what: &'static str, offset: u64, next: Continuation },
    Refused(DeviceDone),
}

/// One lane's queue to the file.
struct FileQueue {
    shared: Arc<OpenFile>,
    ring: Rc<Ring>,
    ops: RefCell<OpTable<FileOp>>,
}

impl FileQueue {
    /// Hands `op` to the ring.
    fn begin(&self, op: DeviceOp) -> FileOp {
        let shape = &self.shared.shape;
        let what = op.what();
        let refused = match shape.check_op(&op) {
            Err(error) => Some(error),
            Ok(())
                if !self.shared.writable
                    && !matches!(op, DeviceOp::Read { .. } | DeviceOp::Sync) =>
            {
                let (kind, cause) = (DeviceErrorKind::ReadOnly, "it is open for reading only");
                Some(shape.error(kind, what, 0, cause))
            }
            Ok(()) => self.shared.check_left(&op).err(),
        };
        if let Some(error) = refused {
            let buf = match op {
                DeviceOp::Read { buf, .. } => Some(buf),
                DeviceOp::Write { data: IoData::Owned(buf), .. } => Some(buf),
                _ => None,
            };
            return FileOp::Refused(DeviceDone { result: Err(error), buf });
        }
        let fd = self.shared.fd.clone();
        let (op, offset, next) = match op {
            DeviceOp::Read { offset, buf } => {
                let len = buf.len();
                if self.is_aligned(&buf) {
                    (
                        RingOp::Read { fd, offset, buf },
                        offset,
                        Continuation::End { len: len as u64 },
                    )
                } else {
                    let copy = IoBuf::for_overwrite(len);
                    (RingOp::Read { fd, offset, buf: copy }, offset, Continuation::CopyBack(buf))
                }
            }
            DeviceOp::Write { offset, data } => {
                return self.begin_write(what, offset, data, false);
            }
            DeviceOp::DurableWrite { offset, log, range } => {
                return self.begin_write(what, offset, IoData::Log(log, range), true);
            }
            DeviceOp::Sync => (RingOp::Fdatasync { fd }, 0, Continuation::End { len: 0 }),
            DeviceOp::Discard { len: 0, .. } if !makes_holes(&*self.shared.fd) => {
                let (kind, cause) = (DeviceErrorKind::NotSupported, "it cannot make holes");
                let result = Err(shape.error(kind, what, 0, cause));
                return FileOp::Refused(DeviceDone { result, buf: None });
            }
            DeviceOp::Discard { len: 0, .. } | DeviceOp::WriteZeroes { len: 0, .. } => {
                return FileOp::Refused(DeviceDone { result: Ok(()), buf: None });
            }
            DeviceOp::Discard { offset, len } => {
                let mode = FallocateMode::PunchHole;
                (RingOp::Fallocate { fd, mode, offset, len }, offset, Continuation::End { len: 0 })
            }
            DeviceOp::WriteZeroes { offset, len } => {
                let mode = FallocateMode::ZeroRange;
                let next = Continuation::Zero(Zeroing::Range, offset + len);
                (RingOp::Fallocate { fd, mode, offset, len }, offset, next)
            }
        };
        self.entry(op, what, offset, next)
    }

    /// Passes a write to the ring, as a copy if direct I/O cannot use the memory of the data.
    fn begin_write(&self, what: &'static str, offset: u64, data: IoData, durable: bool) -> FileOp {
        let len = data.len() as u64;
        let (data, next) = match data {
            IoData::Owned(buf) if !self.is_aligned(&buf) => {
                (IoData::Owned(IoBuf::copy_from(&buf)), Continuation::GiveBack(Some(buf)))
            }
            IoData::Owned(buf) => (IoData::Owned(buf), Continuation::End { len }),
            IoData::Log(log, range) => match log.get(range.clone()) {
                None => {
                    let result = Err(unpublished(&self.shared.shape, offset));
                    return FileOp::Refused(DeviceDone { result, buf: None });
                }
                Some(bytes) if !self.is_aligned(bytes) => {
                    (IoData::Owned(IoBuf::copy_from(bytes)), Continuation::GiveBack(None))
                }
                Some(_) => (IoData::Log(log, range), Continuation::End { len }),
            },
        };
        let fd = self.shared.fd.clone();
        self.entry(RingOp::Write { fd, offset, data, durable }, what, offset, next)
    }

    fn entry(&self, op: RingOp, what: &'static str, offset: u64, next: Continuation) -> FileOp {
        FileOp::Running { token: self.ring.start(op), what, offset, next }
    }

    /// Returns whether direct I/O can use this memory. Parts of split buffers may have any
    /// alignment.
    fn is_aligned(&self, bytes: &[u8]) -> bool {
        !self.shared.direct || bytes.as_ptr().addr().is_multiple_of(self.shared.memory_align)
    }

    /// Returns the next operation of zeroing a range; `None` once it has succeeded or failed.
    fn zero_next(
        &self,
        result: &io::Result<u32>,
        offset: u64,
        step: Zeroing,
        end: u64,
    ) -> Option<(RingOp, Zeroing)> {
        let fd = self.shared.fd.clone();
        let missing = result.as_ref().is_err_and(|error| {
            matches!(kind_of(error), DeviceErrorKind::NotSupported | DeviceErrorKind::Invalid)
        });
        let from = match (step, result) {
            (Zeroing::Range, Err(_)) if missing => offset,
            (Zeroing::Writing(next), Ok(_)) if next < end => next,
            _ => return None,
        };
        let len = ZEROES.min(end - from);
        let data = IoData::Owned(IoBuf::zeroed(len as usize));
        let op = RingOp::Write { fd, offset: from, data, durable: false };
        Some((op, Zeroing::Writing(from + len)))
    }

    fn failed(&self, what: &'static str, offset: u64, error: &io::Error) -> DeviceError {
        let kind = kind_of(error);
        let protection = (kind == DeviceErrorKind::ReadOnly)
            .then(|| write_protection_at_once(&self.shared.fd, self.shared.on_server))
            .flatten();
        let cause = protection.unwrap_or_else(|| error.to_string().into());
        self.shared.shape.error(kind, what, offset, cause)
    }

    fn finish(
        &self,
        what: &'static str,
        offset: u64,
        next: Continuation,
        done: RingDone,
    ) -> DeviceDone {
        let RingDone { result, buf, .. } = done;
        let mut moved = 0;
        let mut result = match result {
            Ok(count) => {
                moved = u64::from(count);
                Ok(())
            }
            Err(error) => Err(self.failed(what, offset, &error)),
        };
        let expected = match &next {
            Continuation::End { len } => *len,
            Continuation::CopyBack(original) => original.len() as u64,
            Continuation::GiveBack(_) | Continuation::Zero(..) => moved,
        };
        if result.is_ok() && moved < expected {
            self.shared.left();
            let cause =
                format!("only {moved} of {expected} bytes are there; the device has shrunk");
            result = Err(self.shared.shape.error(DeviceErrorKind::Io, what, offset, cause));
        }
        let buf = match next {
            Continuation::End { .. } => buf,
            Continuation::CopyBack(mut original) => {
                if let (Ok(()), Some(copy)) = (&result, &buf) {
                    original.copy_from_slice(copy);
                }
                Some(original)
            }
            Continuation::GiveBack(original) => original,
            Continuation::Zero(..) => None,
        };
        DeviceDone { result, buf }
    }
}

impl DeviceQueue for FileQueue {
    fn start(&self, op: DeviceOp) -> OpId {
        let entry = self.begin(op);
        self.ops.borrow_mut().add(entry)
    }

    fn poll_op(&self, id: OpId, context: &mut Context<'_>) -> Poll<DeviceDone> {
        let mut ops = self.ops.borrow_mut();
        loop {
            match ops.get_mut(id) {
                None => return Poll::Ready(unknown(&self.shared.shape)),
                Some(FileOp::Refused(_)) => {
                    return Poll::Ready(match ops.take(id) {
                        Some(FileOp::Refused(done)) => done,
                        _ => unknown(&self.shared.shape),
                    });
                }
                Some(FileOp::Running { token, what, offset, next }) => {
                    let Poll::Ready(done) = self.ring.poll_op(*token, context) else {
                        return Poll::Pending;
                    };
                    if let Continuation::Zero(step, end) = next
                        && let Some((op, step)) = self.zero_next(&done.result, *offset, *step, *end)
                    {
                        *token = self.ring.start(op);
                        *next = Continuation::Zero(step, *end);
                        continue;
                    }
                    let (what, offset) = (*what, *offset);
                    return Poll::Ready(match ops.take(id) {
                        Some(FileOp::Running { next, .. }) => self.finish(what, offset, next, done),
                        _ => unknown(&self.shared.shape),
                    });
                }
            }
        }
    }

    fn forget(&self, id: OpId) {
        if let Some(FileOp::Running { token, .. }) = self.ops.borrow_mut().take(id) {
            self.ring.forget(token);
        }
    }
}

impl Drop for FileQueue {
    /// The ring may outlive the queue, but its results can no longer be collected.
    fn drop(&mut self) {
        for entry in self.ops.get_mut().drain() {
            if let FileOp::Running { token, .. } = entry {
                self.ring.forget(token);
            }
        }
    }
}

/// Returns the kind of an error, which determines the caller's next step.
pub(crate) fn kind_of(error: &io::Error) -> DeviceErrorKind {
    match Errno::from_io_error(error) {
        Some(Errno::NOSPC | Errno::DQUOT) => DeviceErrorKind::NoSpace,
        Some(Errno::INVAL) => DeviceErrorKind::Invalid,
        Some(Errno::OPNOTSUPP | Errno::NOSYS | Errno::NOTTY) => DeviceErrorKind::NotSupported,
        Some(Errno::NODEV | Errno::NXIO | Errno::NOMEDIUM | Errno::SHUTDOWN) => {
            DeviceErrorKind::Gone
        }
        Some(Errno::ROFS | Errno::PERM) => DeviceErrorKind::ReadOnly,
        // Codes of the block layer for a time-out, a failed transport, and a reservation of another
        // host.
        Some(Errno::TIMEDOUT | Errno::NOLINK | Errno::BADE) => DeviceErrorKind::Unreachable,
        _ => DeviceErrorKind::Io,
    }
}

#[cfg(test)]
mod tests;
