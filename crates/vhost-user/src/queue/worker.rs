//! The task of a queue.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use forebay_core::{Op, Survives};
use forebay_device::IoBuf;
use forebay_device::ring::{RingOp, RingRun};
use forebay_engine::{Coming, CompletionSink, Request};
use forebay_lane::sleep::Sleep;
use forebay_lane::{Lane, either, yield_now};

use super::{Broken, GuestQueue, GuestRequest, QueuePhase, SMALL, status};
use crate::chain::Head;
use crate::request::{BlockRequest, GuestOperation, ID_BYTES, Status};
use crate::virtqueue::QueueError;

/// Most requests in one batch.
const BATCH: usize = 16;
/// Batches after which other tasks of the lane get their turn.
const BATCHES: usize = 4;

/// Number of notifications without a request after which further ones are delayed.
const IDLE_KICKS: u32 = 16;
/// Delay of these notifications. A notification costs the client nothing, and each one wakes the
/// lane.
const KICK_PAUSE: Duration = Duration::from_millis(10);
/// Time limit for the last notification of a guest. A kernel thread writes it, and is slower only
/// if the client makes the write block.
const CALL_PATIENCE: Duration = Duration::from_millis(200);

/// The next step of the task.
enum Next {
    /// There may be more requests.
    Again,
    /// There is nothing to do.
    Wait,
    /// There is no memory for the next request.
    Memory,
}

struct Worker {
    queue: Rc<GuestQueue>,
    lane: Rc<Lane>,
    sink: Rc<dyn CompletionSink>,
    /// Requests that were taken and not executed yet.
    taken: VecDeque<BlockRequest>,
    /// Waits for a notification of the guest.
    kick: Option<RingRun>,
    /// The kernel does not wait for a notification by itself, so the task polls before it reads
    /// one.
    polls: bool,
    /// Number of notifications since the last request that was taken.
    idle_kicks: u32,
    /// The end of the pause before the next notification is taken.
    pause: Option<Sleep>,
    /// Notifies the guest.
    call: Option<RingRun>,
    /// More was published since.
    call_again: bool,
}

/// Drops the client if the task panics: no other task would answer the client's requests.
struct Panics(Rc<GuestQueue>);

impl Drop for Panics {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.phase.set(QueuePhase::Over);
            self.0.session.fail(&"the task of its queue has panicked");
            self.0.answer_stop();
        }
    }
}

/// Serves a queue until it is stopped or broken.
pub(crate) async fn run(queue: Rc<GuestQueue>, lane: Rc<Lane>) {
    let panics = Panics(queue.clone());
    let mut worker = Worker {
        sink: queue.clone(),
        queue: queue.clone(),
        lane,
        taken: VecDeque::new(),
        kick: None,
        polls: false,
        idle_kicks: 0,
        pause: None,
        call: None,
        call_again: false,
    };
    if let Err(error) = worker.serve().await {
        queue.break_with(error);
    }
    if let Some(error) = queue.broken.take() {
        // A truncated file reads as zeroes, which may be the cause of any other error.
        let error = if queue.is_intact() { error } else { Broken::Truncated(queue.index.0) };
        queue.session.fail(&error);
        worker.taken.clear();
    }
    while queue.in_flight.get() > 0 {
        poll_fn(|context| queue.work.poll(context)).await;
    }
    queue.phase.set(QueuePhase::Over);
    let base = queue.rings.borrow().virtqueue.base();
    let stop = queue.stop.take();
    drop((worker, panics, queue));
    if let Some(stop) = stop {
        stop.give(base);
    }
}

impl Worker {
    async fn serve(&mut self) -> Result<(), Broken> {
        loop {
            match self.advance()? {
                Next::Again => yield_now().await,
                Next::Wait if self.is_done() => {
                    self.end_call().await;
                    return Ok(());
                }
                Next::Wait => self.wait(std::future::pending()).await?,
                Next::Memory => {
                    let budget = self.queue.own.budget.clone();
                    let listening = budget.listen();
                    if matches!(self.advance()?, Next::Memory) {
                        self.queue.short.set(true);
                        self.wait(listening.freed()).await?;
                        self.queue.short.set(false);
                    }
                }
            }
        }
    }

    /// Whether a stopped queue has answered everything.
    fn is_done(&self) -> bool {
        let stopping = self.queue.phase.get() == QueuePhase::Stopping;
        stopping && self.queue.in_flight.get() == 0 && self.taken.is_empty()
    }

    /// Waits for the last notification of the guest. The write blocks while the counter of the
    /// eventfd is full, which the client controls. It is then abandoned, because a full counter has
    /// already notified the guest.
    async fn end_call(&mut self) {
        let late = self.lane.sleep(CALL_PATIENCE);
        let ended = poll_fn(|context| {
            self.poll_call(context);
            if self.call.is_none() { Poll::Ready(()) } else { Poll::Pending }
        });
        either(ended, late).await;
        // Dropping the write cancels it.
        self.call = None;
    }

    /// Takes and executes requests, and publishes answers, without waiting.
    fn advance(&mut self) -> Result<Next, Broken> {
        let queue = self.queue.clone();
        if queue.notify.take() {
            // The write to the former eventfd may wait for ever.
            self.call = None;
            self.call_again = true;
            self.start_call();
        }
        for _ in 0..BATCHES {
            if let Some(error) = queue.broken.take() {
                return Err(error);
            }
            if !queue.is_intact() {
                return Err(Broken::Truncated(queue.index.0));
            }
            if self.taken.is_empty() {
                self.take()?;
            }
            let any = !self.taken.is_empty();
            while queue.phase.get() != QueuePhase::Broken
                && let Some(request) = self.taken.pop_front()
            {
                self.announce();
                if let Err(request) = self.execute(request) {
                    self.taken.push_front(request);
                    self.publish()?;
                    return Ok(Next::Memory);
                }
            }
            if let Some(error) = queue.broken.take() {
                return Err(error);
            }
            self.publish()?;
            if !any {
                return Ok(Next::Wait);
            }
        }
        Ok(Next::Again)
    }

    /// Takes the next requests.
    fn take(&mut self) -> Result<(), Broken> {
        let queue = self.queue.clone();
        // Requests from the former daemon are in the record already. They are executed in steps,
        // because their lists of buffers take memory.
        let again: Vec<Head> = {
            let mut again = queue.again.borrow_mut();
            let some = again.len().min(BATCH);
            again.drain(..some).collect()
        };
        for head in &again {
            self.parse(*head)?;
        }
        if !again.is_empty() || queue.phase.get() != QueuePhase::Open {
            return Ok(());
        }
        let broken = |error| queue.queue_error(error);
        let available = queue.rings.borrow().virtqueue.available().map_err(broken)?;
        for _ in 0..usize::from(available).min(BATCH) {
            let head = {
                let rings = &mut *queue.rings.borrow_mut();
                let head = rings.virtqueue.take().map_err(broken)?;
                if let Some(tracker) = &mut rings.tracker {
                    tracker.begin(head).map_err(|error| broken(error.into()))?;
                }
                head
            };
            self.parse(head)?;
        }
        Ok(())
    }

    fn parse(&mut self, head: Head) -> Result<(), Broken> {
        let queue = &self.queue;
        let broken = |error| queue.queue_error(error);
        let busy = queue.requests.borrow().get(usize::from(head.0)).is_none_or(Option::is_some);
        if busy || self.taken.iter().any(|other| other.head == head) {
            return Err(broken(QueueError::Twice(head.0)));
        }
        let mut buffers = queue.spare.borrow_mut().pop().unwrap_or_default();
        let memory = queue.memory.borrow();
        let rings = queue.rings.borrow();
        rings.virtqueue.walk(head, &memory, &mut buffers).map_err(broken)?;
        let request = BlockRequest::parse(head, buffers, &memory)
            .map_err(|error| Broken::Request(queue.index.0, head.0, error))?;
        self.taken.push_back(request);
        self.idle_kicks = 0;
        Ok(())
    }

    /// Announces the next two requests to the volume.
    fn announce(&self) {
        let hints = [Coming::Next, Coming::Later];
        for (request, coming) in self.taken.iter().zip(hints) {
            match request.kind {
                GuestOperation::Read { offset, .. } => {
                    self.queue.target.expect(Op::Read, offset, coming)
                }
                GuestOperation::Write { offset, .. } => {
                    self.queue.target.expect(Op::Write, offset, coming)
                }
                _ => {}
            }
        }
    }

    /// Executes a request. Returns it if there is no memory for it.
    fn execute(&self, request: BlockRequest) -> Result<(), BlockRequest> {
        let queue = &*self.queue;
        let (op, offset, len, no_hole) = match request.kind {
            GuestOperation::Refused(status) => return self.answer(request, &[], status),
            GuestOperation::Id => {
                return self.answer(request, &name(&queue.session.volume), Status::Ok);
            }
            GuestOperation::Flush => (Op::Flush, 0, 0, false),
            GuestOperation::Read { offset, len } => (Op::Read, offset, len, false),
            GuestOperation::Write { offset, len } => (Op::Write, offset, len, false),
            GuestOperation::Discard { offset, len } => (Op::Discard, offset, len, false),
            GuestOperation::WriteZeroes { offset, len, no_hole } => {
                (Op::WriteZeroes, offset, len, no_hole)
            }
        };
        let inside = offset.checked_add(len).is_some_and(|end| end <= queue.target.size());
        let writes = matches!(op, Op::Write | Op::WriteZeroes | Op::Discard);
        if !inside || (writes && queue.target.read_only()) {
            return self.answer(request, &[], Status::Failed);
        }
        if len == 0 && op != Op::Flush {
            return self.answer(request, &[], Status::Ok);
        }
        let bytes = len as usize;
        if op == Op::Read && bytes <= SMALL {
            let mut scratch = queue.scratch.borrow_mut();
            let place = scratch.get_mut(..bytes).unwrap_or_default();
            // Reads into a buffer of the daemon, not directly into the guest's memory: the volume
            // verifies the data, and would take a change by the guest for a damaged block.
            if let Some(result) = queue.target.read_now(offset, place) {
                let data = if result.is_ok() { &*place } else { &[] };
                return self.answer(request, data, status(result));
            }
        }
        let survives = if writes { queue.promise() } else { Survives::Nothing };
        let small = bytes <= SMALL;
        let mut data = None;
        if op == Op::Write && small {
            let Some(buf) = self.copy(&request, bytes) else { return Ok(()) };
            if survives == Survives::Nothing
                && let Some(result) = queue.target.write_now(offset, &buf)
            {
                return self.answer(request, &[], status(result));
            }
            data = Some(buf);
        }
        let held = queue.target.memory(op, offset, len) + request.bytes();
        if !queue.own.budget.take_for_request(held, queue.held.get()) {
            // A request that could never get its memory fails.
            return match queue.own.budget.can_have(held) {
                true => Err(request),
                false => self.answer(request, &[], Status::Failed),
            };
        }
        queue.held.set(queue.held.get() + held);
        if op == Op::Write && !small {
            data = self.copy(&request, bytes);
            if data.is_none() {
                queue.release(held);
                return Ok(());
            }
        }
        let tag = u64::from(request.head.0);
        let place = usize::from(request.head.0);
        if let Some(place) = queue.requests.borrow_mut().get_mut(place) {
            *place = Some(GuestRequest { request, held });
        }
        queue.in_flight.set(queue.in_flight.get() + 1);
        let submitted = Request { tag, op, offset, len, survives, fast: false, no_hole, data };
        queue.target.submit(submitted, &self.sink);
        Ok(())
    }

    #[expect(clippy::unnecessary_wraps, reason = "the result of `execute`")]
    fn answer(
        &self,
        request: BlockRequest,
        data: &[u8],
        status: Status,
    ) -> Result<(), BlockRequest> {
        self.queue.finish(request, data, status);
        Ok(())
    }

    /// Copies the data of a write out of the guest's memory, which the guest may change at any
    /// time. `None`: the memory was truncated, and the queue ends.
    fn copy(&self, request: &BlockRequest, len: usize) -> Option<IoBuf> {
        let (memory, index) = (self.queue.memory.borrow(), self.queue.index.0);
        let mut buf = IoBuf::for_overwrite(len);
        let broken = match request.copy_data(&memory, &mut buf) {
            // The lost part of a truncated file reads as zeroes.
            Ok(()) if memory.is_intact() => return Some(buf),
            Ok(()) => Broken::Truncated(index),
            Err(error) => Broken::Memory(index, error),
        };
        self.queue.break_with(broken);
        None
    }

    /// Publishes answers, and notifies the guest if it has asked for that.
    fn publish(&mut self) -> Result<(), Broken> {
        let queue = &self.queue;
        let notify = {
            let rings = &mut *queue.rings.borrow_mut();
            let notify = rings.virtqueue.publish().map_err(|error| queue.queue_error(error))?;
            let used = rings.virtqueue.used_index();
            if let Some(tracker) = &mut rings.tracker
                && !rings.returned.is_empty()
            {
                tracker
                    .returned(&rings.returned, used)
                    .map_err(|error| queue.queue_error(error.into()))?;
            }
            rings.returned.clear();
            notify
        };
        if notify && queue.call.borrow().is_some() {
            self.call_again = true;
            self.start_call();
        }
        Ok(())
    }

    /// Starts to notify the guest. If a notification is in progress, another one follows it.
    fn start_call(&mut self) {
        if self.call.is_some() || !std::mem::take(&mut self.call_again) {
            return;
        }
        let Some(fd) = self.queue.call.borrow().clone() else { return };
        let buf = IoBuf::copy_from(&1_u64.to_ne_bytes());
        let mut run = self.queue.ring.run(RingOp::RaiseEvent { fd, buf });
        // The first poll starts the write. No waker is registered yet, so the task polls the write
        // again before it waits.
        let ended = Pin::new(&mut run).poll(&mut Context::from_waker(std::task::Waker::noop()));
        if ended.is_pending() {
            self.call = Some(run);
        }
    }

    /// Waits until there may be work.
    async fn wait(&mut self, memory: impl Future<Output = ()>) -> Result<(), Broken> {
        let mut memory = pin!(memory);
        poll_fn(|context| {
            let mut ready = self.queue.work.poll(context).is_ready();
            ready |= memory.as_mut().poll(context).is_ready();
            ready |= self.poll_call(context);
            match self.poll_kick(context) {
                Err(error) => Poll::Ready(Err(error)),
                Ok(kicked) if kicked || ready => Poll::Ready(Ok(())),
                Ok(_) => Poll::Pending,
            }
        })
        .await
    }

    /// Returns whether a notification of the guest has ended.
    fn poll_call(&mut self, context: &mut Context<'_>) -> bool {
        let mut ended = false;
        while let Some(call) = &mut self.call {
            let Poll::Ready(done) = Pin::new(call).poll(context) else { break };
            if let Err(error) = done.result {
                tracing::debug!(%error, "a guest cannot be notified");
            }
            self.call = None;
            ended = true;
            self.start_call();
        }
        ended
    }

    /// Returns whether the guest has sent a notification.
    fn poll_kick(&mut self, context: &mut Context<'_>) -> Result<bool, Broken> {
        let broken = |error| Broken::Event(self.queue.index.0, error);
        if let Some(pause) = &mut self.pause {
            if Pin::new(pause).poll(context).is_pending() {
                return Ok(false);
            }
            self.pause = None;
        }
        loop {
            let fd = || self.queue.kick.clone();
            let run = self.kick.get_or_insert_with(|| {
                let op = match self.polls {
                    true => RingOp::Readable { fd: fd() },
                    false => RingOp::TakeEvent { fd: fd(), buf: IoBuf::zeroed(size_of::<u64>()) },
                };
                self.queue.ring.run(op)
            });
            let Poll::Ready(done) = Pin::new(run).poll(context) else { return Ok(false) };
            self.kick = None;
            match done.result {
                Ok(_) if std::mem::take(&mut self.polls) => {}
                Ok(8) => {
                    self.idle_kicks = self.idle_kicks.saturating_add(1);
                    let often = self.idle_kicks > IDLE_KICKS;
                    self.pause = often.then(|| self.lane.sleep(KICK_PAUSE));
                    return Ok(true);
                }
                Ok(_) => {
                    let cause = "the descriptor of a queue's notifications is no eventfd";
                    return Err(broken(io::Error::new(io::ErrorKind::InvalidData, cause)));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.polls = true,
                Err(error) => return Err(broken(error)),
            }
        }
    }
}

/// Returns a volume's name in the form that the guest reads.
fn name(volume: &str) -> [u8; ID_BYTES] {
    let mut bytes = [0; ID_BYTES];
    for (place, byte) in bytes.iter_mut().zip(volume.bytes()) {
        *place = byte;
    }
    bytes
}
