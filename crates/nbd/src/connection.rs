//! State shared by the two tasks of a connection, and the sink for its completions.
//!
//! The receiving task ([`crate::receive`]) parses and executes requests, the sending task
//! ([`crate::send`]) empties the outbox. The receiver waits for the sender only if there is no
//! space for replies. A submitted request keeps the connection alive until it completes, even after
//! the client has left.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use forebay_core::{IoError, Nanos, Op, Survives};
use forebay_device::IoBuf;
use forebay_engine::{BlockService, Coming, Completion, CompletionSink, Request, Tags};
use forebay_lane::{Lane, LaneMemory, Signal, yield_now};

use crate::holes::HoleFinder;
use crate::inbox;
use crate::limits::{Limits, Place};
use crate::outbox::{self, Batch, Finished, STATUS_MAX};
use crate::status::{EXTENTS_MAX, Query};
use crate::transmission::{Command, Refusal, RequestEffect, Session, waiting};
use crate::wire::socket::Socket;
use crate::wire::{ErrorCode, ReplyTo, SMALL_REPLY_MAX};

/// Phase of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IntakePhase {
    /// Requests are accepted.
    Open,
    /// Requests that have been received are executed; then the connection is handed over.
    HandingOver,
    /// No more requests are accepted; those in flight are answered.
    Draining,
    /// Nothing is sent any more.
    Dead,
}

/// The decision about a command.
pub(crate) enum Admission {
    /// The command may be executed.
    Granted,
    /// The command is refused: it needs more memory than the client can ever get, so it and all
    /// commands behind it would wait for ever.
    Refused(Refusal),
    /// The connection is no longer open.
    Over,
}

impl From<bool> for Admission {
    fn from(granted: bool) -> Self {
        if granted { Admission::Granted } else { Admission::Over }
    }
}

/// A request that is in flight in the engine.
struct PendingReply {
    to: ReplyTo,
    len: u64,
    read: bool,
    held: u64,
}

/// One client in the transmission phase.
pub(crate) struct Connection {
    pub(crate) socket: Rc<Socket>,
    pub(crate) session: Session,
    target: Rc<dyn BlockService>,
    limits: Limits,
    lane: Rc<Lane>,
    finder: HoleFinder,
    memory: Rc<LaneMemory>,
    /// Held until the last request in flight has ended; otherwise clients that reconnect could hold
    /// more memory than those that stay.
    place: Place,
    phase: Cell<IntakePhase>,
    batch: RefCell<Batch>,
    finished: RefCell<VecDeque<Finished>>,
    in_flight: RefCell<Tags<PendingReply>>,
    /// Bytes of memory held by its requests.
    held: Cell<u64>,
    /// The part of `held` reserved for the next request, which has not begun.
    granted: Cell<u64>,
    /// Whether its buffers have their large size.
    grown: Cell<bool>,
    /// The times since which tasks have been waiting for the client to take or send data.
    slow: RefCell<Vec<Nanos>>,
    /// Tells the sending task that there is something to send, or that the phase has changed.
    pub(crate) to_send: Signal,
    /// Tells the receiving task that more space is free, or that the phase has changed.
    pub(crate) room: Signal,
}

impl Connection {
    pub(crate) fn new(
        socket: Rc<Socket>,
        session: Session,
        target: Rc<dyn BlockService>,
        limits: Limits,
        (lane, memory): (Rc<Lane>, Rc<LaneMemory>),
        finder: HoleFinder,
        place: Place,
    ) -> Rc<Self> {
        Rc::new(Connection {
            socket,
            session,
            target,
            limits,
            lane,
            finder,
            memory,
            place,
            phase: Cell::new(IntakePhase::Open),
            batch: RefCell::new(Batch::new(session.headers, outbox::SMALL)),
            finished: RefCell::default(),
            in_flight: RefCell::default(),
            held: Cell::new(0),
            granted: Cell::new(0),
            grown: Cell::new(false),
            slow: RefCell::default(),
            to_send: Signal::default(),
            room: Signal::default(),
        })
    }

    pub(crate) fn phase(&self) -> IntakePhase {
        self.phase.get()
    }

    /// Whether requests are executed.
    fn is_open(&self) -> bool {
        matches!(self.phase.get(), IntakePhase::Open | IntakePhase::HandingOver)
    }

    /// Stops receiving at the end of a request.
    pub(crate) fn hand_over(&self) {
        if self.phase.get() == IntakePhase::Open {
            self.phase.set(IntakePhase::HandingOver);
            self.socket.cancel_receive();
        }
    }

    /// Stops accepting requests, and answers those in flight.
    pub(crate) fn drain(&self) {
        if self.is_open() {
            self.phase.set(IntakePhase::Draining);
        }
        self.to_send.raise();
        self.room.raise();
    }

    /// Closes the connection at once. Requests in flight complete without a reply.
    pub(crate) fn kill(&self) {
        self.phase.set(IntakePhase::Dead);
        for finished in std::mem::take(&mut *self.finished.borrow_mut()) {
            self.release(finished.held);
        }
        self.socket.close();
        self.to_send.raise();
        self.room.raise();
    }

    /// Whether every request has been answered.
    pub(crate) fn is_idle(&self) -> bool {
        self.in_flight.borrow().is_empty()
            && self.finished.borrow().is_empty()
            && self.batch.borrow().is_empty()
    }

    /// Returns the size of this connection's batches in bytes.
    pub(crate) fn batch_capacity(&self) -> usize {
        if self.grown.get() { outbox::LARGE } else { outbox::SMALL }
    }

    /// Switches to large buffers if there is memory for them. Returns whether they are large.
    pub(crate) fn grow(&self) -> bool {
        const MORE: usize = 2 * (outbox::LARGE - outbox::SMALL) + inbox::LARGE - inbox::SMALL;
        if !self.grown.get() && self.place.memory.grow(MORE as u64) {
            self.grown.set(true);
            let mut batch = self.batch.borrow_mut();
            if batch.is_empty() {
                *batch = Batch::new(self.session.headers, outbox::LARGE);
            }
        }
        self.grown.get()
    }

    /// Marks the client as the one to take or send data, until the result is dropped.
    pub(crate) fn client_begins(&self) -> ClientsTurn<'_> {
        let since = self.lane.now();
        self.slow.borrow_mut().push(since);
        ClientsTurn { connection: self, since }
    }

    /// Whether its requests hold memory while the client has made no progress since `then`.
    pub(crate) fn is_stalled_since(&self, then: Nanos) -> bool {
        self.held.get() > 0 && self.slow.borrow().iter().any(|since| *since <= then)
    }

    fn fits(&self, batch_room: usize, bytes: u64) -> bool {
        let requests = self.in_flight.borrow().len() + self.finished.borrow().len();
        let held = self.held.get() - self.granted.get();
        requests < self.limits.requests
            && (held == 0 || held.saturating_add(bytes) <= self.limits.bytes)
            && self.batch.borrow().room() >= batch_room
    }

    /// Waits until the batch has `batch_room` bytes of space for the reply, `bytes` are within the
    /// limits of this connection, and they are taken from the daemon's memory. Returns `false` if
    /// the connection is no longer open.
    async fn admit(&self, batch_room: usize, bytes: u64) -> bool {
        while self.is_open() {
            if !self.fits(batch_room, bytes) {
                self.to_send.raise();
                self.room.wait().await;
            } else if bytes == self.granted.get() || self.memory.take(bytes, self.held.get()) {
                self.grant(bytes - self.granted.get());
                return true;
            } else {
                self.flush();
                self.wait_for_memory(bytes).await;
            }
        }
        false
    }

    /// Waits until there may be memory for a request. If the connection holds memory itself, it
    /// waits for its own requests; otherwise it queues for memory held by others.
    async fn wait_for_memory(&self, bytes: u64) {
        if self.held.get() > 0 {
            return self.room.wait().await;
        }
        let mut memory = pin!(self.memory.wait(bytes));
        let mut room = pin!(self.room.wait());
        std::future::poll_fn(|context| {
            if memory.as_mut().poll(context).is_ready() {
                self.grant(bytes);
                return Poll::Ready(());
            }
            room.as_mut().poll(context)
        })
        .await;
    }

    /// Records `bytes` of memory taken for the next request.
    fn grant(&self, bytes: u64) {
        self.granted.set(self.granted.get() + bytes);
        self.held.set(self.held.get() + bytes);
    }

    /// Gives back the memory reserved for a request that was answered at once without it.
    pub(crate) fn end_grant(&self) {
        let granted = self.granted.take();
        if granted > 0 {
            self.held.set(self.held.get() - granted);
            self.memory.give(granted);
        }
    }

    /// Waits until `command` may be executed.
    pub(crate) async fn admit_command(&self, command: &Command) -> Admission {
        let Command { kind, offset, len, .. } = *command;
        // The answer is not known yet: see `answer_status`.
        let RequestEffect::Volume { op, .. } = kind else { return self.is_open().into() };
        let memory = self.target.memory(op, offset, len);
        if !self.memory.budget().can_have(memory) {
            let message = "the daemon's memory is too small for this request; raise --memory-limit";
            let (to, error) = (command.to(), ErrorCode::NoSpace);
            return Admission::Refused(Refusal { to, error, message });
        }
        if op != Op::Read {
            return self.admit(SMALL_REPLY_MAX, memory).await.into();
        }
        // At most 32 MiB.
        let len = len as usize;
        let room = Batch::read_room(len);
        if room > self.batch.borrow().room() && len <= Batch::inline_read_max(outbox::LARGE) {
            self.grow();
        }
        let inline = len <= Batch::inline_read_max(self.batch_capacity());
        self.admit(if inline { room } else { SMALL_REPLY_MAX }, memory).await.into()
    }

    /// Answers a refused request. Returns `false` if the connection is no longer open.
    pub(crate) async fn refuse(&self, refusal: &Refusal) -> bool {
        if !self.admit(SMALL_REPLY_MAX, 0).await {
            return false;
        }
        self.batch.borrow_mut().put_error(refusal.to, refusal.error, refusal.message);
        true
    }

    /// Announces the next two requests in `received` to the volume, see [`BlockService::expect`].
    pub(crate) fn expect(&self, received: &[u8]) {
        let headers = self.session.headers;
        let Some(next) = waiting(received, headers) else { return };
        self.target.expect(next.op, next.offset, Coming::Next);
        if let Some(later) = received.get(next.bytes..).and_then(|rest| waiting(rest, headers)) {
            self.target.expect(later.op, later.offset, Coming::Later);
        }
    }

    /// Executes an admitted command; the data of a write, if any, are still in the caller's buffer.
    pub(crate) fn execute(&self, command: &Command, payload: &[u8], sink: &Rc<dyn CompletionSink>) {
        let Command { kind, offset, len, .. } = *command;
        let to = command.to();
        let (op, survives) = match kind {
            RequestEffect::BlockStatus { .. } => return,
            RequestEffect::Volume { op, survives, .. } => (op, survives),
        };
        let data = match op {
            // Empty requests need nothing from the volume.
            Op::Read if len == 0 => {
                self.batch.borrow_mut().put_read(to, 0, |_| Some(Ok(())));
                return;
            }
            Op::Write | Op::Discard | Op::WriteZeroes | Op::Prefetch if len == 0 => {
                self.batch.borrow_mut().put_result(to, Ok(()));
                return;
            }
            Op::Read if len as usize <= Batch::inline_read_max(self.batch_capacity()) => {
                let mut batch = self.batch.borrow_mut();
                let read = |into: &mut [u8]| self.target.read_now(offset, into);
                if batch.put_read(to, len as usize, read).is_some() {
                    return;
                }
                None
            }
            Op::Write => {
                if survives == Survives::Nothing
                    && let Some(result) = self.target.write_now(offset, payload)
                {
                    self.batch.borrow_mut().put_result(to, result);
                    return;
                }
                Some(IoBuf::copy_from(payload))
            }
            _ => None,
        };
        self.submit(command, data, sink);
    }

    /// Answers a query of the metadata contexts; requests behind it wait meanwhile. Returns `false`
    /// if the connection is no longer open.
    pub(crate) async fn answer_status(&self, command: &Command, one: bool) -> bool {
        let Command { offset, len, .. } = *command;
        let (contexts, most) = (self.session.contexts, if one { 1 } else { EXTENTS_MAX });
        let query = Query { contexts, offset, len, most };
        let status = query.answer(&self.target, &self.finder, &self.lane).await;
        if !self.admit(STATUS_MAX, 0).await {
            return false;
        }
        self.batch.borrow_mut().put_status(command.to(), &status.unwrap_or_default());
        true
    }

    /// Executes an admitted write whose data are in a buffer of their own.
    pub(crate) fn execute_write(
        &self,
        command: &Command,
        data: IoBuf,
        sink: &Rc<dyn CompletionSink>,
    ) {
        let buffered =
            matches!(command.kind, RequestEffect::Volume { survives: Survives::Nothing, .. });
        if buffered && let Some(result) = self.target.write_now(command.offset, &data) {
            self.batch.borrow_mut().put_result(command.to(), result);
            return;
        }
        self.submit(command, Some(data), sink);
    }

    fn submit(&self, command: &Command, data: Option<IoBuf>, sink: &Rc<dyn CompletionSink>) {
        let Command {
            kind: RequestEffect::Volume { op, survives, fast, no_hole },
            offset,
            len,
            ..
        } = *command
        else {
            return;
        };
        let read = op == Op::Read;
        let held = self.granted.take();
        let request = PendingReply { to: command.to(), len, read, held };
        let tag = self.in_flight.borrow_mut().add(request);
        self.target.submit(Request { tag, op, offset, len, survives, fast, no_hole, data }, sink);
    }

    /// Wakes the sending task if the batch is not empty.
    pub(crate) fn flush(&self) {
        if !self.batch.borrow().is_empty() {
            self.to_send.raise();
        }
    }

    /// Sends the batch before anything else happens, unless the sending task already waits for the
    /// client.
    pub(crate) async fn send_now(&self) {
        if self.batch.borrow().is_empty() {
            return;
        }
        self.to_send.raise();
        yield_now().await;
        self.socket.start_now();
    }

    /// Exchanges the batch for `spare` and adds finished requests to both. A large reply follows
    /// the batch. Returns `spare` as the error if there is nothing to send.
    pub(crate) fn take_outgoing(&self, spare: Batch) -> Result<(Batch, Option<Finished>), Batch> {
        let mut queue = self.finished.borrow_mut();
        let mut batch = self.batch.borrow_mut();
        if batch.is_empty() && queue.is_empty() {
            return Err(spare);
        }
        // `spare` may date from before the buffers grew.
        let spare = match spare.capacity() == self.batch_capacity() {
            true => spare,
            false => Batch::new(self.session.headers, self.batch_capacity()),
        };
        let mut outgoing = std::mem::replace(&mut *batch, spare);
        let mut released = outgoing.fold(&mut queue, usize::MAX);
        let large = outgoing.take_large(&mut queue);
        let half = batch.half();
        released += batch.fold(&mut queue, half);
        drop((queue, batch));
        self.release(released);
        Ok((outgoing, large))
    }

    /// Gives back `bytes` of memory that requests no longer need.
    pub(crate) fn release(&self, bytes: u64) {
        self.held.set(self.held.get() - bytes);
        self.memory.give(bytes);
        self.room.raise();
    }
}

impl Drop for Connection {
    /// Gives back the memory that its tasks still held.
    fn drop(&mut self) {
        self.memory.give(self.held.get());
    }
}

/// See [`Connection::client_begins`].
pub(crate) struct ClientsTurn<'a> {
    connection: &'a Connection,
    since: Nanos,
}

impl Drop for ClientsTurn<'_> {
    fn drop(&mut self) {
        let mut slow = self.connection.slow.borrow_mut();
        if let Some(place) = slow.iter().position(|since| *since == self.since) {
            slow.swap_remove(place);
        }
    }
}

impl CompletionSink for Connection {
    fn complete(&self, completion: Completion) {
        let Completion { tag, result, data } = completion;
        let Some(request) = self.in_flight.borrow_mut().remove(tag) else {
            debug_assert!(false, "a request completes twice");
            return;
        };
        if self.phase.get() == IntakePhase::Dead {
            self.release(request.held);
            return;
        }
        // A device that outlives the connection repeats all unanswered requests on its next
        // connection, so this request gets no reply.
        if result == Err(IoError::ShuttingDown) && self.session.device.is_some() {
            self.socket.keep(false);
            self.kill();
            self.release(request.held);
            return;
        }
        let PendingReply { to, len, read, held } = request;
        let (result, data) = match (read && result.is_ok(), data) {
            (false, _) => (result, None),
            (true, Some(mut data)) if data.len() as u64 >= len => {
                data.truncate(len as usize);
                (result, Some(data))
            }
            (true, None) if len == 0 => (result, Some(IoBuf::empty())),
            (true, _) => (Err(IoError::Io), None),
        };
        self.finished.borrow_mut().push_back(Finished { to, result, data, held });
        self.to_send.raise();
    }
}
