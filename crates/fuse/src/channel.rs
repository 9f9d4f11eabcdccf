//! One lane's part of the connection for one file: takes requests, executes them, and gives replies
//! to the kernel.
//!
//! A request that the volume answers at once is answered before the next one is parsed; every other
//! request is submitted, and answered when it completes. A reply never waits, because the kernel
//! copies it at once.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::{Pin, pin};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::Poll;

use forebay_core::{IoError, Op, Survives};
use forebay_device::IoBuf;
use forebay_device::ring::{Ring, RingOp, RingRun};
use forebay_engine::{BlockService, Coming, Completion, CompletionSink, Request, Tags};
use forebay_lane::{Lane, LaneMemory, Notified, Notify, Signal};
use rustix::io::Errno;
use zerocopy::IntoBytes;

use self::entries::EntryOutcome;
use crate::answer::{
    Action, Content, FileFacts, MAX_TRANSFER, VolumeRequest, decide, errno, written,
};
use crate::request::{RequestId, coming, parse};
use crate::wire::{OUT_HEADER, OutHeader, WRITE_HEADER};

mod entries;

pub(crate) use entries::Queues;

/// Offset of the data in a buffer, so that they are aligned for direct I/O; headers are before
/// that.
const DATA: usize = 4096;
/// Bytes of a buffer for a request.
const BUFFER: usize = DATA + MAX_TRANSFER as usize;
/// Offset of a request in its buffer. The data of a write then begin at [`DATA`].
const START: usize = DATA - WRITE_HEADER;
/// Most requests that are taken at a time.
const TOGETHER: usize = 4;
/// Bytes of memory of a channel, without its requests.
pub(crate) const CHANNEL_BYTES: u64 = (TOGETHER * BUFFER.next_power_of_two() + (16 << 10)) as u64;
/// Most requests in flight.
const IN_FLIGHT: usize = 256;
/// Most bytes of memory for the requests of a channel. A single request is accepted even if it
/// needs more.
const HELD: u64 = 64 << 20;
/// Data of a write up to this length are copied, so that their buffer can take the next request.
const COPIED: usize = 64 << 10;

/// A request that was submitted to the volume.
struct FileRequest {
    id: RequestId,
    held: u64,
    kind: FileRequestKind,
}

enum FileRequestKind {
    /// The requested part of the data, and the space before the data.
    Read { head: IoBuf, wanted: Range<usize> },
    /// The bytes.
    Write(u32),
    /// A request to zero a range and give its space back. If the volume refuses it, the range is
    /// zeroed without that.
    Punch(VolumeRequest),
    /// The request of an entry; the task of the entry waits for the result and replies.
    Entry(Rc<EntryOutcome>),
    /// Anything else.
    Other,
}

/// See the module.
pub(crate) struct Channel {
    name: String,
    fd: Arc<OwnedFd>,
    file: FileFacts,
    /// `None` once the volume is gone: every request then fails.
    target: RefCell<Option<Rc<dyn BlockService>>>,
    lane: Rc<Lane>,
    ring: Rc<Ring>,
    memory: Rc<LaneMemory>,
    in_flight: RefCell<Tags<FileRequest>>,
    /// Bytes of memory held by its requests.
    held: Cell<u64>,
    /// Notified when a request has ended or the volume is gone. The tasks of all entries may wait
    /// for it.
    room: Notify,
    closed: Cell<bool>,
    /// Another program takes over the connection.
    leaving: Cell<bool>,
    /// Raised when `closed` or `leaving` has changed.
    closing: Signal,
    this: Weak<Channel>,
}

/// A received message, as it is in its buffer.
struct Taken {
    buf: IoBuf,
    len: usize,
}

impl Taken {
    fn bytes(&self) -> &[u8] {
        self.buf.get(START..START + self.len).unwrap_or_default()
    }
}

impl Channel {
    pub(crate) fn new(
        name: &str,
        fd: OwnedFd,
        (target, file): (Rc<dyn BlockService>, FileFacts),
        (lane, ring, memory): (Rc<Lane>, Rc<Ring>, Rc<LaneMemory>),
    ) -> Rc<Self> {
        Rc::new_cyclic(|this| Channel {
            name: name.to_owned(),
            fd: Arc::new(fd),
            file,
            target: RefCell::new(Some(target)),
            lane,
            ring,
            memory,
            in_flight: RefCell::default(),
            held: Cell::new(0),
            room: Notify::default(),
            closed: Cell::new(false),
            leaving: Cell::new(false),
            closing: Signal::default(),
            this: this.clone(),
        })
    }

    /// Returns the volume's name.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Releases the volume: from now on every request fails, except those in flight.
    pub(crate) fn let_go(&self) {
        drop(self.target.take());
        self.room.notify_all();
    }

    /// Stops serving, even if the file is in use. Its users get errors once all lanes have stopped.
    pub(crate) fn close(&self) {
        self.closed.set(true);
        self.closing.raise();
    }

    /// Takes no more requests, so that another program can take over the connection.
    /// [`Channel::serve`] ends when the requests that were taken are answered or left to that
    /// program.
    pub(crate) fn leave(&self) {
        self.leaving.set(true);
        self.closing.raise();
    }

    /// Returns a descriptor of the connection for the next program. Returns `None` unless the
    /// channel was left with every request answered, or the kernel can send the unanswered ones
    /// again.
    pub(crate) fn left(&self) -> Option<OwnedFd> {
        if !self.leaving.get() || !(self.is_idle() || self.file.outlives) {
            return None;
        }
        let duplicate = self.fd.as_fd().try_clone_to_owned();
        duplicate.map_err(|error| tracing::error!(volume = self.name, %error, "its file cannot be handed over")).ok()
    }

    fn is_idle(&self) -> bool {
        self.held.get() == 0 && self.in_flight.borrow().is_empty()
    }

    /// Serves until the file is unmounted, or the channel is closed or left.
    pub(crate) async fn serve(self: &Rc<Self>) {
        let sink: Rc<dyn CompletionSink> = self.clone();
        let mut takes: [_; TOGETHER] = std::array::from_fn(|_| Some(self.begin_take(None)));
        let mut taken: Vec<Taken> = Vec::new();
        loop {
            let end = self.take(&mut takes, &mut taken).await;
            for index in 0..taken.len() {
                if let Some(next) = taken.get(index + 1) {
                    self.expect(next.bytes());
                }
                let Some(place) = taken.get_mut(index) else { break };
                let message = Taken { buf: std::mem::take(&mut place.buf), len: place.len };
                let buf = self.execute(message, &sink).await;
                let free = takes.iter_mut().find(|take| take.is_none());
                if let Some(free) = free.filter(|_| !self.leaving.get()) {
                    *free = Some(self.begin_take(buf));
                }
            }
            taken.clear();
            match end {
                None => {}
                Some(Errno::NODEV) => break,
                Some(error) => {
                    tracing::error!(volume = self.name, %error, "the kernel's requests for its file cannot be read; the file is not served any more");
                    return;
                }
            }
        }
        while self.leaving.get() {
            let ended = self.room.listen();
            if self.is_idle() {
                break;
            }
            ended.await;
        }
    }

    /// Begins to wait for a message.
    fn begin_take(&self, buf: Option<IoBuf>) -> RingRun {
        let buf = buf.unwrap_or_else(|| IoBuf::for_overwrite(BUFFER));
        let range = START..buf.len();
        self.ring.begin(RingOp::TakeMessage { fd: self.fd.clone(), buf, range })
    }

    /// Waits until messages have been received, or none can arrive any more: because of an error,
    /// or because the channel ends, which returns [`Errno::NODEV`].
    async fn take(&self, takes: &mut [Option<RingRun>], taken: &mut Vec<Taken>) -> Option<Errno> {
        let mut end = None;
        std::future::poll_fn(|context| {
            while self.closing.poll(context).is_ready() {}
            if self.closed.get() {
                end = Some(Errno::NODEV);
            }
            if self.leaving.get() {
                // Requests that the kernel has already passed on are still taken.
                takes.iter().flatten().for_each(RingRun::cancel);
            }
            for take in &mut *takes {
                let Some(running) = take else { continue };
                let Poll::Ready(done) = Pin::new(running).poll(context) else { continue };
                *take = None;
                match (done.result, done.buf) {
                    (Ok(0), _) => end = Some(Errno::NODEV),
                    (Ok(len), Some(buf)) => taken.push(Taken { buf, len: len as usize }),
                    (result, buf) => {
                        let error = result.err().and_then(|error| Errno::from_io_error(&error));
                        match error.unwrap_or(Errno::IO) {
                            // The request stays with the kernel, for the next program.
                            Errno::CANCELED | Errno::NOENT | Errno::INTR | Errno::AGAIN
                                if self.leaving.get() => {}
                            // A request was aborted while it was received.
                            Errno::NOENT | Errno::INTR | Errno::AGAIN => {
                                let mut again = self.begin_take(buf);
                                let _ = Pin::new(&mut again).poll(context);
                                *take = Some(again);
                            }
                            error => end = Some(error),
                        }
                    }
                }
            }
            if self.leaving.get() && takes.iter().all(Option::is_none) {
                end = Some(Errno::NODEV);
            }
            if end.is_some() || !taken.is_empty() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        end
    }

    /// Announces a request to the volume.
    fn expect(&self, message: &[u8]) {
        if let (Some((writes, offset)), Some(target)) = (coming(message), &*self.target.borrow()) {
            target.expect(if writes { Op::Write } else { Op::Read }, offset, Coming::Next);
        }
    }

    /// Executes one request. Returns its buffer, unless it is still in use.
    async fn execute(
        self: &Rc<Self>,
        taken: Taken,
        sink: &Rc<dyn CompletionSink>,
    ) -> Option<IoBuf> {
        let message = match parse(taken.bytes()) {
            Ok(message) => message,
            Err(malformed) => {
                tracing::error!(volume = self.name, "the kernel's request is refused: {malformed}");
                if let Some(id) = malformed.id() {
                    self.reply(id, Err(Errno::INVAL));
                }
                return Some(taken.buf);
            }
        };
        match decide(&message, &self.file) {
            Action::Ignore => Some(taken.buf),
            Action::Reply(result) => {
                self.reply(message.id, result);
                Some(taken.buf)
            }
            Action::Read { request, skip, len } => {
                let wanted = skip as usize..skip as usize + len as usize;
                match self.admit(&request).await {
                    Ok((target, held)) => {
                        self.read(message.id, &request, wanted, (target, held), sink)
                    }
                    Err(error) => self.fail(message.id, error),
                }
                Some(taken.buf)
            }
            Action::Volume(request) => match self.admit(&request).await {
                Ok((target, held)) => {
                    self.change(message.id, request, taken.buf, (target, held), sink)
                }
                Err(error) => {
                    self.fail(message.id, error);
                    Some(taken.buf)
                }
            },
        }
    }

    /// Waits until a request may be executed, and takes its memory.
    ///
    /// # Errors
    /// [`IoError::ShuttingDown`]: the volume is gone. [`IoError::NoSpace`]: the request needs more
    /// memory than there is, and would wait for ever.
    async fn admit(&self, request: &VolumeRequest) -> Result<(Rc<dyn BlockService>, u64), IoError> {
        loop {
            let room = self.room.listen();
            let target = self.target.borrow().clone().ok_or(IoError::ShuttingDown)?;
            let bytes = target.memory(request.op, request.offset, request.len) + DATA as u64;
            if !self.memory.budget().can_have(bytes) {
                return Err(IoError::NoSpace);
            }
            let held = self.held.get();
            let fits = self.in_flight.borrow().len() < IN_FLIGHT
                && (held == 0 || held.saturating_add(bytes) <= HELD);
            if !fits {
                room.await;
            } else if self.memory.take(bytes, held) || self.wait_for_memory(bytes, room).await {
                self.held.set(self.held.get() + bytes);
                return Ok((target, bytes));
            }
        }
    }

    /// Waits until there may be memory for a request. If the channel's own requests hold memory, it
    /// waits for one of them; otherwise it queues for memory of others. Returns whether it got the
    /// memory.
    async fn wait_for_memory(&self, bytes: u64, room: Notified<'_>) -> bool {
        if self.held.get() > 0 {
            room.await;
            return false;
        }
        let mut memory = pin!(self.memory.wait(bytes));
        let mut room = pin!(room);
        std::future::poll_fn(|context| {
            if memory.as_mut().poll(context).is_ready() {
                return Poll::Ready(true);
            }
            room.as_mut().poll(context).map(|()| false)
        })
        .await
    }

    fn release(&self, held: u64) {
        self.held.set(self.held.get() - held);
        self.memory.give(held);
        self.room.notify_all();
    }

    fn read(
        &self,
        id: RequestId,
        request: &VolumeRequest,
        wanted: Range<usize>,
        (target, held): (Rc<dyn BlockService>, u64),
        sink: &Rc<dyn CompletionSink>,
    ) {
        let mut head = IoBuf::for_overwrite(DATA + request.len as usize);
        let now = head.get_mut(DATA..).and_then(|into| target.read_now(request.offset, into));
        match now {
            Some(Ok(())) => {
                self.reply_data(id, head, wanted);
                self.release(held);
            }
            Some(Err(error)) => {
                self.fail(id, error);
                self.release(held);
            }
            None => {
                let data = head.split_off(DATA);
                let kind = FileRequestKind::Read { head, wanted };
                self.submit(&target, request, Some(data), FileRequest { id, held, kind }, sink);
            }
        }
    }

    /// Executes a request that changes the volume, or a flush. Returns `buf` unless the volume
    /// still uses it.
    fn change(
        &self,
        id: RequestId,
        request: VolumeRequest,
        mut buf: IoBuf,
        (target, held): (Rc<dyn BlockService>, u64),
        sink: &Rc<dyn CompletionSink>,
    ) -> Option<IoBuf> {
        let kind = match request.op {
            Op::Write => FileRequestKind::Write(request.len as u32),
            Op::WriteZeroes if request.punch => FileRequestKind::Punch(request),
            _ => FileRequestKind::Other,
        };
        if request.op != Op::Write {
            self.submit(&target, &request, None, FileRequest { id, held, kind }, sink);
            return Some(buf);
        }
        let len = request.len as usize;
        let data = buf.get(DATA..DATA + len).unwrap_or_default();
        if request.survives == Survives::Nothing
            && let Some(result) = target.write_now(request.offset, data)
        {
            match result {
                Ok(()) => self.reply(id, Ok(written(request.len as u32))),
                Err(error) => self.fail(id, error),
            }
            self.release(held);
            return Some(buf);
        }
        let (data, buf) = if len <= COPIED {
            (IoBuf::copy_from(data), Some(buf))
        } else {
            let mut data = buf.split_off(DATA);
            data.truncate(len);
            (data, None)
        };
        self.submit(&target, &request, Some(data), FileRequest { id, held, kind }, sink);
        buf
    }

    fn submit(
        &self,
        target: &Rc<dyn BlockService>,
        request: &VolumeRequest,
        data: Option<IoBuf>,
        in_flight: FileRequest,
        sink: &Rc<dyn CompletionSink>,
    ) {
        let VolumeRequest { op, offset, len, survives, punch } = *request;
        let tag = self.in_flight.borrow_mut().add(in_flight);
        let (fast, no_hole) = (punch, op == Op::WriteZeroes && !punch);
        target.submit(Request { tag, op, offset, len, survives, fast, no_hole, data }, sink);
    }

    /// Zeroes a range whose space cannot be given back. The kernel sends no more discards to a file
    /// that has refused one, so a range is refused only if it was large enough to be given back.
    fn punch_refused(self: Rc<Self>, in_flight: FileRequest, request: VolumeRequest) {
        let target = self.target.borrow().clone().ok_or(IoError::ShuttingDown);
        let small = target.and_then(|target| {
            self.is_small(&target, &request).then_some(target).ok_or(IoError::NotSupported)
        });
        let target = match small {
            Ok(target) => target,
            Err(error) => {
                self.fail(in_flight.id, error);
                return self.release(in_flight.held);
            }
        };
        let lane = self.lane.clone();
        lane.spawn(async move {
            let tag = self
                .in_flight
                .borrow_mut()
                .add(FileRequest { kind: FileRequestKind::Other, ..in_flight });
            let VolumeRequest { op, offset, len, survives, .. } = request;
            let request =
                Request { tag, op, offset, len, survives, fast: false, no_hole: false, data: None };
            let sink: Rc<dyn CompletionSink> = self;
            target.submit(request, &sink);
        });
    }

    /// Returns whether a range is so small that no part of it could have been given back.
    fn is_small(&self, target: &Rc<dyn BlockService>, request: &VolumeRequest) -> bool {
        request.len < 2 * target.preferred_block().max(DATA as u64)
    }

    /// Replies to a request that the volume has not executed. If the volume ends and the file
    /// outlives it, there is no reply, and the kernel has the next program execute the request.
    fn fail(&self, id: RequestId, error: IoError) {
        let left = error == IoError::ShuttingDown && self.leaving.get() && self.file.outlives;
        if !left {
            self.reply(id, Err(errno(error)));
        }
    }

    /// Gives a reply without data of the volume.
    fn reply(&self, id: RequestId, result: Result<Content, Errno>) {
        let (error, content) = match &result {
            Ok(content) => (0, content.bytes()),
            Err(errno) => (-errno.raw_os_error(), &[][..]),
        };
        let len = OUT_HEADER + content.len();
        let header = OutHeader { len: len as u32, error, unique: id.0 };
        let mut buf = IoBuf::for_overwrite(len);
        buf[..OUT_HEADER].copy_from_slice(header.as_bytes());
        buf[OUT_HEADER..].copy_from_slice(content);
        self.give(buf, 0..len);
    }

    /// Replies with the part `wanted` of the data in `buf`, and writes the header directly before
    /// it.
    fn reply_data(&self, id: RequestId, mut buf: IoBuf, wanted: Range<usize>) {
        let range = DATA + wanted.start - OUT_HEADER..DATA + wanted.end;
        let header = OutHeader { len: range.len() as u32, error: 0, unique: id.0 };
        let whole = range.end <= buf.len();
        match buf.get_mut(range.start..range.start + OUT_HEADER) {
            Some(place) if whole => {
                place.copy_from_slice(header.as_bytes());
                self.give(buf, range);
            }
            _ => self.reply(id, Err(Errno::IO)),
        }
    }

    /// Gives a reply to the kernel. This fails only if nothing waits for the request any more.
    fn give(&self, buf: IoBuf, range: Range<usize>) {
        let fd = self.fd.clone();
        self.ring.forget(self.ring.start(RingOp::GiveMessage { fd, buf, range }));
    }
}

impl CompletionSink for Channel {
    fn complete(&self, completion: Completion) {
        let Completion { tag, result, data } = completion;
        let Some(in_flight) = self.in_flight.borrow_mut().remove(tag) else {
            debug_assert!(false, "a request completes twice");
            return;
        };
        let FileRequest { id, held, kind } = in_flight;
        match (kind, result) {
            (FileRequestKind::Read { head, wanted }, Ok(())) => match data {
                Some(data) => self.reply_data(id, head.join(data), wanted),
                None => self.reply(id, Err(Errno::IO)),
            },
            (FileRequestKind::Entry(outcome), result) => {
                outcome.set(Completion { tag, result, data })
            }
            (FileRequestKind::Write(len), Ok(())) => self.reply(id, Ok(written(len))),
            (FileRequestKind::Punch(request), Err(IoError::NotSupported)) => {
                if let Some(this) = self.this.upgrade() {
                    return this.punch_refused(
                        FileRequest { id, held, kind: FileRequestKind::Other },
                        request,
                    );
                }
            }
            (_, Ok(())) => self.reply(id, Ok(Content::Nothing)),
            (_, Err(error)) => self.fail(id, error),
        }
        self.release(held);
    }
}

#[cfg(test)]
mod tests;
