//! One queue, served by one task of its lane.
//!
//! The task takes requests, executes them and publishes answers in batches. While the lane is awake
//! the task looks for requests by itself, and the guest is not asked for notifications.

mod worker;

use std::cell::{Cell, RefCell};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;

use forebay_core::{IoError, Survives};
use forebay_device::IoBuf;
use forebay_device::ring::Ring;
use forebay_engine::{BlockService, Completion, CompletionSink};
use forebay_lane::{MemoryBudget, MemoryUse, Signal, Watched};

use crate::answer::Reply;
use crate::chain::{Buffers, Head};
use crate::inflight::Tracker;
use crate::memory::{GuestMemory, OutOfMemory};
use crate::message::{QueueIndex, RingAddresses};
use crate::request::{BlockRequest, GuestOperation, KEPT_BYTES, RequestError, Status};
use crate::session::Session;
use crate::virtqueue::{QueueError, QueueFeatures, QueueSize, Virtqueue};

pub(crate) use worker::run;

/// Requests of up to this many bytes are executed with memory that the queue always has.
const SMALL: usize = 128 << 10;

/// Most lists of buffers that are kept for further requests.
const SPARE: usize = 64;

/// The data with which a lane starts to serve a queue.
pub(crate) struct QueueStart {
    pub(crate) session: Arc<Session>,
    pub(crate) index: QueueIndex,
    pub(crate) size: QueueSize,
    pub(crate) addresses: RingAddresses,
    pub(crate) features: QueueFeatures,
    /// Index of the next request, unless a record of requests in progress overrides it.
    pub(crate) base: u16,
    /// Whether the guest can flush.
    pub(crate) flushes: bool,
    pub(crate) kick: Arc<OwnedFd>,
    pub(crate) call: Option<Arc<OwnedFd>>,
    pub(crate) memory: Arc<GuestMemory>,
    pub(crate) tracker: Option<Tracker>,
}

/// Why a queue ends.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Broken {
    #[error("queue {0}: {1}")]
    Queue(u16, QueueError),
    #[error("queue {0}: the request with descriptor {1}: {2}")]
    Request(u16, u16, RequestError),
    #[error("queue {0}: a buffer is not in the memory any more: {1}")]
    Memory(u16, OutOfMemory),
    #[error("queue {0}: the file of the shared memory was truncated")]
    Truncated(u16),
    #[error("queue {0}: its eventfd cannot be used: {1}")]
    Event(u16, std::io::Error),
    #[error("the volume is not served")]
    NoVolume,
    #[error("connections have used up their share of the memory; raise --memory-limit")]
    NoMemory,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum QueuePhase {
    /// Requests are taken.
    Open,
    /// No more requests are taken; those in progress are answered.
    Stopping,
    /// The guest's memory is not accessed any more.
    Broken,
    /// The task has ended.
    Over,
}

/// A request in progress in the engine.
struct GuestRequest {
    request: BlockRequest,
    /// Bytes of memory taken for the request.
    held: u64,
}

/// The rings, and their state.
struct Rings {
    virtqueue: Virtqueue,
    tracker: Option<Tracker>,
    /// Requests that were returned and are not yet visible to the guest.
    returned: Vec<Head>,
}

/// Memory that the queue holds as long as it is served; given back on drop.
struct Held {
    budget: Arc<MemoryBudget>,
    bytes: u64,
}

impl Held {
    fn take(budget: &Arc<MemoryBudget>, bytes: u64) -> Option<Self> {
        budget.take_for_connection(bytes, false).then(|| Held { budget: budget.clone(), bytes })
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.budget.give(MemoryUse::Connections, self.bytes);
    }
}

/// A queue on its lane.
pub(crate) struct GuestQueue {
    index: QueueIndex,
    session: Arc<Session>,
    ring: Rc<Ring>,
    target: Rc<dyn BlockService>,
    /// Whether the guest continues with the next daemon.
    outlives: bool,
    flushes: bool,
    kick: Arc<OwnedFd>,
    call: RefCell<Option<Arc<OwnedFd>>>,
    memory: RefCell<Arc<GuestMemory>>,
    rings: RefCell<Rings>,
    /// Requests in progress, by the number of their first descriptor.
    requests: RefCell<Vec<Option<GuestRequest>>>,
    in_flight: Cell<usize>,
    /// Requests that were in progress when the former daemon ended; they are executed first.
    again: RefCell<Vec<Head>>,
    spare: RefCell<Vec<Buffers>>,
    scratch: RefCell<IoBuf>,
    /// Bytes of memory held by requests.
    held: Cell<u64>,
    own: Held,
    phase: Cell<QueuePhase>,
    /// The guest may have missed a notification.
    notify: Cell<bool>,
    /// The task waits for memory, and takes no requests meanwhile.
    short: Cell<bool>,
    broken: RefCell<Option<Broken>>,
    stop: RefCell<Option<Reply<u16>>>,
    /// Tells the task that there is work.
    work: Signal,
}

impl GuestQueue {
    /// Opens a queue.
    ///
    /// # Errors
    /// The rings are invalid, or there is no memory for the queue.
    pub(crate) fn open(
        start: QueueStart,
        target: Rc<dyn BlockService>,
        ring: &Rc<Ring>,
        budget: &Arc<MemoryBudget>,
    ) -> Result<Rc<Self>, Broken> {
        let QueueStart { index, size, memory, mut tracker, .. } = start;
        let count = usize::from(size.get());
        let spare = count.min(SPARE) * (size_of::<Buffers>() + KEPT_BYTES as usize);
        let bytes = SMALL + count * size_of::<Option<GuestRequest>>() + spare;
        let own = Held::take(budget, bytes as u64).ok_or(Broken::NoMemory)?;
        let broken = |error| Broken::Queue(index.0, error);
        let mut virtqueue =
            Virtqueue::new(size, start.addresses, start.features, start.base, &memory)
                .map_err(broken)?;
        let mut again = Vec::new();
        if let Some(tracker) = &mut tracker {
            let used = virtqueue.used_index();
            again = tracker.recover(used).map_err(broken)?;
            if again.iter().any(|head| head.0 >= size.get()) {
                return Err(broken(QueueError::Inflight));
            }
            // The index of the next request is the number of returned requests plus those in
            // progress. The client's own number lacks the requests that its former back end had
            // taken.
            virtqueue.set_base(used.wrapping_add(again.len() as u16));
        }
        if !again.is_empty() {
            tracing::info!(
                volume = start.session.volume,
                queue = index.0,
                requests = again.len(),
                "requests in progress are executed again"
            );
        }
        Ok(Rc::new(GuestQueue {
            index,
            session: start.session,
            ring: ring.clone(),
            target,
            outlives: tracker.is_some(),
            flushes: start.flushes,
            kick: start.kick,
            call: RefCell::new(start.call),
            memory: RefCell::new(memory),
            rings: RefCell::new(Rings { virtqueue, tracker, returned: Vec::new() }),
            requests: RefCell::new((0..count).map(|_| None).collect()),
            in_flight: Cell::new(0),
            again: RefCell::new(again),
            spare: RefCell::default(),
            scratch: RefCell::new(IoBuf::zeroed(SMALL)),
            held: Cell::new(0),
            own,
            phase: Cell::new(QueuePhase::Open),
            // The former back end may have published answers without a notification.
            notify: Cell::new(true),
            short: Cell::new(false),
            broken: RefCell::default(),
            stop: RefCell::default(),
            work: Signal::default(),
        }))
    }

    /// Takes no more requests, answers those in progress, and then replies with the index of the
    /// next request.
    pub(crate) fn stop(&self, reply: Reply<u16>) {
        if self.phase.get() == QueuePhase::Open {
            self.phase.set(QueuePhase::Stopping);
        }
        self.stop.replace(Some(reply));
        self.work.raise();
        self.answer_stop();
    }

    /// Answers a pending stop if the task has ended and no request is in progress. After a panic of
    /// the task requests can still be in progress, and the client must not have them executed a
    /// second time meanwhile.
    fn answer_stop(&self) {
        if self.phase.get() != QueuePhase::Over || self.in_flight.get() > 0 {
            return;
        }
        if let Some(reply) = self.stop.take() {
            reply.give(self.rings.borrow().virtqueue.base());
        }
    }

    /// Returns whether every file behind the queue's memory still has its size.
    fn is_intact(&self) -> bool {
        let tracker = |rings: &Rings| rings.tracker.as_ref().is_none_or(Tracker::is_intact);
        self.memory.borrow().is_intact() && tracker(&self.rings.borrow())
    }

    /// Uses another eventfd to notify the guest. Published answers may have been announced through
    /// the former one, so the guest is notified once more.
    pub(crate) fn set_call(&self, call: Option<Arc<OwnedFd>>) {
        self.call.replace(call);
        self.notify.set(true);
        self.work.raise();
    }

    /// Uses changed memory from now on.
    ///
    /// # Errors
    /// The rings are not in the memory.
    pub(crate) fn set_memory(&self, memory: Arc<GuestMemory>) -> Result<(), QueueError> {
        let mut rings = self.rings.borrow_mut();
        rings.virtqueue.move_to(&memory)?;
        self.memory.replace(memory);
        Ok(())
    }

    /// Returns the failure that each write must survive before it is answered. A guest that cannot
    /// flush, or has switched the write cache off, relies on every write. A guest that continues
    /// with the next daemon does not notice a crash of this one, so its next flush would otherwise
    /// cover writes that were lost.
    fn promise(&self) -> Survives {
        match (self.flushes && self.session.has_write_cache(), self.outlives) {
            (false, _) => Survives::PowerLoss,
            (true, true) => Survives::Daemon,
            (true, false) => Survives::Nothing,
        }
    }

    /// Returns whether the guest has made requests available, and then wakes the task. Errors count
    /// as available, and the task reports them.
    fn notice(&self, available: impl Fn(&mut Virtqueue) -> Result<bool, QueueError>) -> bool {
        if self.phase.get() != QueuePhase::Open || self.short.get() {
            return false;
        }
        let found = available(&mut self.rings.borrow_mut().virtqueue).unwrap_or(true);
        if found {
            self.work.raise();
        }
        found
    }

    /// Ends the queue after an error of the guest. The guest's memory is not accessed any more.
    fn break_with(&self, error: Broken) {
        self.phase.set(QueuePhase::Broken);
        self.broken.borrow_mut().get_or_insert(error);
        self.work.raise();
    }

    /// Answers a request; published by the task.
    fn finish(&self, request: BlockRequest, data: &[u8], status: Status) {
        let head = request.head;
        let answered = request.answer(&self.memory.borrow(), data, status);
        let spare = &mut *self.spare.borrow_mut();
        if spare.len() < SPARE {
            spare.extend(request.into_buffers());
        }
        let put = answered.map_err(|error| Broken::Memory(self.index.0, error)).and_then(|len| {
            let rings = &mut *self.rings.borrow_mut();
            if let Some(tracker) = &mut rings.tracker {
                tracker.returns(head).map_err(|error| self.queue_error(error.into()))?;
            }
            rings.returned.push(head);
            rings.virtqueue.put(head, len).map_err(|error| self.queue_error(error))
        });
        if let Err(error) = put {
            self.break_with(error);
        }
    }

    /// Returns whether a failed request is left to the next daemon, which finds it in the record.
    fn leaves(&self, result: Result<(), IoError>) -> bool {
        let stopping = self.phase.get() == QueuePhase::Stopping;
        self.outlives && stopping && result == Err(IoError::ShuttingDown)
    }

    fn queue_error(&self, error: QueueError) -> Broken {
        Broken::Queue(self.index.0, error)
    }

    fn release(&self, bytes: u64) {
        if bytes > 0 {
            self.held.set(self.held.get() - bytes);
            self.own.budget.give(MemoryUse::Requests, bytes);
        }
    }
}

/// Returns the status of a result for the guest.
fn status(result: Result<(), IoError>) -> Status {
    match result {
        Ok(()) => Status::Ok,
        Err(IoError::NotSupported) => Status::Unsupported,
        Err(_) => Status::Failed,
    }
}

impl CompletionSink for GuestQueue {
    fn complete(&self, completion: Completion) {
        let Completion { tag, result, data } = completion;
        let place = usize::try_from(tag).unwrap_or(usize::MAX);
        let found = self.requests.borrow_mut().get_mut(place).and_then(Option::take);
        let Some(GuestRequest { request, held }) = found else {
            debug_assert!(false, "a request completes twice");
            return;
        };
        self.in_flight.set(self.in_flight.get() - 1);
        if matches!(self.phase.get(), QueuePhase::Open | QueuePhase::Stopping)
            && !self.leaves(result)
        {
            let (data, result) = match (request.kind, result, &data) {
                (GuestOperation::Read { len, .. }, Ok(()), data) => {
                    let data = data.as_deref().and_then(|data| data.get(..len as usize));
                    (data.unwrap_or_default(), data.map(|_| ()).ok_or(IoError::Io))
                }
                (_, result, _) => (&[][..], result),
            };
            self.finish(request, data, status(result));
        }
        self.release(held);
        self.work.raise();
        self.answer_stop();
    }
}

impl Watched for GuestQueue {
    #[inline]
    fn look(&self) -> bool {
        self.notice(|virtqueue| {
            virtqueue.need_no_notification()?;
            Ok(virtqueue.available()? > 0)
        })
    }

    fn ask(&self) -> bool {
        self.notice(Virtqueue::ask_for_notification)
    }
}

impl Drop for GuestQueue {
    fn drop(&mut self) {
        self.release(self.held.get());
    }
}

#[cfg(test)]
mod tests;
