//! One connection of a lane: its operations, and its reconnection.
//!
//! A link is two tasks of its lane: one connects, sends and receives, the other takes work from
//! other lanes. They outlive the queue for as long as requests are in flight or other lanes need
//! the connection.
//!
//! **The meaning of a flush.** The server's answer to a flush covers only changes that were
//! acknowledged on the same connection: only then it is certain that the same server process
//! executed both. Changes are therefore counted per connection, a sync flushes every connection
//! that has unflushed changes, and the loss of a connection with unflushed changes fails the next
//! sync.

mod connection;
mod receive;

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use forebay_core::{Clock, Nanos};
use forebay_device::{DeviceDone, DeviceErrorKind, DeviceOp, OpId, QueueContext, Ring, Tasks};
use forebay_lane::Signal;
use forebay_nbd_wire::command;

use self::receive::ReceiveEnd;
use crate::port::{Mail, Port};
use crate::remote::Remote;
use crate::reply::{OpResult, To};
use crate::requests::{Data, Failure, Requests};

/// The acknowledged changes for which no further flush is needed.
#[derive(Default)]
struct Settled {
    /// Number of acknowledged changes, from the first, that are durable or were reported as lost.
    until: u64,
    /// Number of changes that were acknowledged when a connection was lost; those after `until` may
    /// be lost.
    doubtful: u64,
}

/// See the module.
pub(crate) struct Link {
    pub(crate) remote: Arc<Remote>,
    pub(crate) port: Arc<Port>,
    ring: Rc<Ring>,
    clock: Arc<dyn Clock>,
    tasks: Rc<dyn Tasks>,
    requests: RefCell<Requests>,
    settled: RefCell<Settled>,
    /// Raised when there may be something to send, or when the link may end.
    work: Signal,
    /// A request was sent.
    awaited: Signal,
    timer: Signal,
    /// Number of samples that have not been compared on the present connection.
    comparing: Cell<usize>,
    /// The present connection is being closed.
    closing: Cell<bool>,
    /// The queue was dropped.
    pub(crate) orphan: Cell<bool>,
    /// The tasks have ended.
    dead: Cell<bool>,
    /// When the connection was lost, until a request is answered again.
    down_since: Cell<Option<Nanos>>,
    attempts: Cell<u32>,
}

/// Fails the remaining operations when the link ends, in any way.
struct LinkEndGuard(Rc<Link>);

impl Drop for LinkEndGuard {
    fn drop(&mut self) {
        let link = &self.0;
        link.dead.set(true);
        // A port with changes that can no longer be flushed stays in the list, so that it fails
        // every sync.
        let stays = |port: &Arc<Port>| !Arc::ptr_eq(port, &link.port) || port.is_unsettled();
        link.remote.ports.lock().open.retain(stays);
        link.fail_all(&Failure::new(DeviceErrorKind::Gone, "the connection's lane has ended"));
        for mail in link.port.fail() {
            link.take(mail);
        }
    }
}

impl Link {
    /// Makes a link and starts its tasks.
    pub(crate) fn start(remote: &Arc<Remote>, context: &QueueContext) -> Option<Rc<Self>> {
        let (ring, tasks) = (context.ring.clone()?, context.tasks.clone()?);
        let link = Rc::new(Link {
            remote: remote.clone(),
            port: Arc::default(),
            ring,
            clock: context.clock.clone(),
            tasks: tasks.clone(),
            requests: RefCell::default(),
            settled: RefCell::default(),
            work: Signal::default(),
            awaited: Signal::default(),
            timer: Signal::default(),
            comparing: Cell::new(0),
            closing: Cell::new(false),
            orphan: Cell::new(false),
            dead: Cell::new(false),
            down_since: Cell::new(None),
            attempts: Cell::new(0),
        });
        let end = LinkEndGuard(link.clone());
        tasks.spawn(Box::pin(async move { end.0.run().await }));
        let own = link.clone();
        tasks.spawn(Box::pin(async move { own.take_mail().await }));
        Some(link)
    }

    async fn take_mail(&self) {
        while let Some(mails) = poll_fn(|context| self.port.poll(context)).await {
            for mail in mails {
                self.take(mail);
            }
        }
    }

    fn take(&self, mail: Mail) {
        match mail {
            Mail::Op(op, reply) => {
                self.submit(op, To::Other(reply));
            }
            Mail::Extent(offset, reply) => {
                let len = self.remote.size.saturating_sub(offset);
                self.requests.borrow_mut().ask_extent(offset, len, To::Other(reply));
                self.wake();
            }
            Mail::Look => self.wake(),
        }
    }

    fn wake(&self) {
        if self.dead.get() {
            self.fail_all(&Failure::new(DeviceErrorKind::Gone, "the connection's lane has ended"));
        }
        self.work.raise();
    }

    /// Starts an operation.
    pub(crate) fn submit(&self, op: DeviceOp, to: To) -> OpId {
        let is_flush = matches!(op, DeviceOp::Sync);
        if let Some(range) = op.range().filter(|_| !matches!(op, DeviceOp::Read { .. })) {
            self.remote.samples.touch(range);
        }
        let started = self.requests.borrow_mut().start(op, self.remote.abilities, to);
        let id = match started {
            Ok(id) => id,
            Err(id) => {
                self.finish(id);
                return id;
            }
        };
        let refused = match &*self.settled.borrow() {
            _ if self.remote.gone.get().is_some() => Some(DeviceErrorKind::Gone),
            settled if is_flush && settled.doubtful > settled.until => Some(DeviceErrorKind::Io),
            _ => None,
        };
        if let Some(kind) = refused {
            self.refuse(id, kind);
        } else {
            self.wake();
        }
        id
    }

    /// Ends an operation before it is sent.
    fn refuse(&self, id: OpId, kind: DeviceErrorKind) {
        let cause = self.remote.gone.get().cloned().unwrap_or_else(|| LOST.into());
        self.requests.borrow_mut().fail(id, Failure::new(kind, cause));
        if kind == DeviceErrorKind::Io {
            let acknowledged = self.requests.borrow().acknowledged();
            let doubtful = self.settled.borrow().doubtful;
            // Changes acknowledged after the loss are left to the next sync.
            self.settle(doubtful, acknowledged);
        }
        self.finish(id);
    }

    fn settle(&self, until: u64, acknowledged: u64) {
        let mut settled = self.settled.borrow_mut();
        settled.until = settled.until.max(until);
        self.port.set_unsettled(acknowledged > settled.until);
    }

    /// Returns the result of an operation of the lane's own queue, or stores the waker.
    pub(crate) fn poll(&self, id: OpId, context: &Context<'_>) -> Option<Poll<DeviceDone>> {
        let mut requests = self.requests.borrow_mut();
        let To::Own { done, waker } = &mut requests.op(id)?.to else { return None };
        match done.take() {
            Some(answer) => {
                requests.take(id);
                Some(Poll::Ready(answer.done))
            }
            None => {
                match waker {
                    Some(old) => old.clone_from(context.waker()),
                    None => *waker = Some(context.waker().clone()),
                }
                Some(Poll::Pending)
            }
        }
    }

    /// Abandons an operation. The answers to requests that were sent are still awaited.
    pub(crate) fn forget(&self, id: OpId) {
        let mut requests = self.requests.borrow_mut();
        let Some(op) = requests.op(id) else { return };
        match op.to {
            To::Own { done: Some(_), .. } => drop(requests.take(id)),
            _ => op.to = To::Nobody,
        }
    }

    /// Delivers the result of an operation that has ended.
    fn finish(&self, id: OpId) {
        let mut requests = self.requests.borrow_mut();
        let Some(op) = requests.op(id) else { return };
        let failure = op.failure.take();
        if failure.is_some() && op.what == "sync" {
            self.remote.failures.fetch_add(1, Ordering::SeqCst);
        }
        let result = match failure {
            None => Ok(()),
            Some(Failure { kind, cause }) => {
                Err(self.remote.error(kind, op.what, op.offset, cause))
            }
        };
        let buf = match std::mem::replace(&mut op.data, Data::None) {
            Data::Owned(buf) => buf,
            _ => None,
        };
        let answer = OpResult { done: DeviceDone { result, buf }, extent: op.extent };
        if let To::Own { done, waker } = &mut op.to {
            *done = Some(answer);
            let waker = waker.take();
            drop(requests);
            if let Some(waker) = waker {
                waker.wake();
            }
            return;
        }
        let to = requests.take(id).map(|op| op.to);
        drop(requests);
        match to {
            Some(To::Other(reply)) => reply.give(answer),
            Some(To::Sample(number)) => self.compared(number, &answer),
            Some(To::Nobody | To::Own { .. }) | None => {}
        }
    }

    fn fail_all(&self, failure: &Failure) {
        let ended = self.requests.borrow_mut().fail_all(failure);
        ended.into_iter().for_each(|id| self.finish(id));
    }

    fn is_needed(&self) -> bool {
        if !self.orphan.get() || !self.requests.borrow().is_idle() {
            return true;
        }
        if self.remote.is_closed() && self.remote.ports.lock().queues == 0 {
            return false;
        }
        self.port.is_unsettled()
            || (!self.remote.is_parallel() && self.remote.ports.lock().queues > 0)
    }

    /// Removes the link from the list of connections, unless it is still needed. Returns whether it
    /// was removed.
    fn leaves(&self) -> bool {
        let mut ports = self.remote.ports.lock();
        let needed = !self.remote.is_parallel() && ports.queues > 0;
        if needed || !self.port.close() {
            return false;
        }
        ports.open.retain(|port| !Arc::ptr_eq(port, &self.port));
        true
    }

    /// Prepares for the next connection after one was lost.
    fn lost(&self, why: &Why) {
        let now = self.clock.now();
        let limit = self.remote.uri.timeout;
        let acknowledged = self.requests.borrow().acknowledged();
        let doubtful = acknowledged > self.settled.borrow().until;
        let late = matches!(why, Why::Late);
        let fails = |part: &crate::requests::WireRequest| {
            if doubtful && part.command == command::FLUSH {
                return Some(Failure::new(DeviceErrorKind::Io, LOST));
            }
            let waited = part.sent.map(|sent| now.since(sent));
            (late && waited.is_some_and(|waited| waited >= limit)).then(|| {
                let cause = format!("the server has not answered for {} s", limit.as_secs());
                Failure::new(DeviceErrorKind::Unreachable, cause)
            })
        };
        let ended = self.requests.borrow_mut().lost(fails);
        if doubtful {
            self.settled.borrow_mut().doubtful = acknowledged;
            // A sync that was to cover all changes has failed, and so has reported the loss.
            if ended.iter().any(|(_, covers)| *covers == Some(acknowledged)) {
                self.settle(acknowledged, acknowledged);
            }
        }
        ended.into_iter().for_each(|(id, _)| self.finish(id));
    }
}

const LOST: &str = "the connection to the server was lost after it had acknowledged writes, and before they were flushed: a server that was restarted may have lost them";

/// Why a connection ends.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Why {
    #[error("{0}")]
    Ended(#[from] ReceiveEnd),
    #[error("the server does not answer")]
    Late,
}

impl From<std::io::Error> for Why {
    fn from(error: std::io::Error) -> Self {
        Why::Ended(error.into())
    }
}
