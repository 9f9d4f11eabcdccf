//! One lane's io_uring.
//!
//! Operations wait in user space until [`Ring::drive`] or [`Ring::wait`] hands them to the kernel,
//! all in one system call, so their number is not limited by the ring. An operation stays in its
//! slot, with its buffer and its descriptor, until the kernel has said that it is done with it,
//! whether anyone still waits for the result or not.

use std::cell::RefCell;
use std::future::Future;
use std::io;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

mod inner;
mod op;
#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "a ring is roused from another thread")]
mod tests;

pub use inner::RingToken;
use inner::{Inner, Queued, Slot, State, Work};
pub use op::{FallocateMode, RingDone, RingOp};

/// Times that one call of [`Ring::drive`] enters the kernel at most.
const ROUNDS: usize = 4;

/// One lane's io_uring. Not to be shared with another thread.
pub struct Ring {
    inner: RefCell<Inner>,
    rouse: Arc<OwnedFd>,
}

impl Ring {
    /// A ring for the calling thread.
    ///
    /// # Errors
    /// If the kernel has no io_uring, or forbids it, or is older than 5.11, or limits are reached.
    pub fn new() -> io::Result<Rc<Self>> {
        // Not non-blocking: the ring's read has to wait until somebody writes.
        let rouse = Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?);
        let inner = RefCell::new(Inner::new(rouse.clone())?);
        Ok(Rc::new(Ring { inner, rouse }))
    }

    /// Starts an operation; the kernel gets it with the next [`Ring::drive`] or [`Ring::wait`].
    pub fn start(&self, op: RingOp) -> RingToken {
        self.inner.borrow_mut().add(Work::Op(op))
    }

    /// Collects the end of an operation, once, or remembers the waker. A token that is not, or
    /// no longer, an operation of this ring is an `InvalidInput` error.
    pub fn poll_op(&self, token: RingToken, context: &mut Context<'_>) -> Poll<RingDone> {
        let mut inner = self.inner.borrow_mut();
        match inner.state(token) {
            Some(State::Running { waker, .. }) => {
                match waker {
                    Some(old) => old.clone_from(context.waker()),
                    None => *waker = Some(context.waker().clone()),
                }
                Poll::Pending
            }
            Some(state @ State::Done(_)) => {
                let ended = std::mem::replace(state, State::Free);
                inner.release(token);
                match ended {
                    State::Done(done) => Poll::Ready(done),
                    State::Free | State::Running { .. } => Poll::Ready(unknown()),
                }
            }
            Some(State::Free) | None => Poll::Ready(unknown()),
        }
    }

    /// Gives up on an operation. Receiving, sending and accepting are cancelled; what goes to a
    /// disk is done, and its result dropped.
    pub fn forget(&self, token: RingToken) {
        let mut inner = self.inner.borrow_mut();
        match inner.state(token) {
            Some(State::Running { work, waker, with_kernel, orphan, .. }) => {
                *orphan = true;
                *waker = None;
                if work.is_endless() && *with_kernel {
                    inner.queued.push_back(Queued::Cancel(token));
                }
            }
            Some(state @ State::Done(_)) => {
                *state = State::Free;
                inner.release(token);
            }
            Some(State::Free) | None => {}
        }
    }

    /// Starts `op` at the first poll and waits for its end. Dropping the future gives up on it as
    /// [`Ring::forget`] does.
    pub fn run(self: &Rc<Self>, op: RingOp) -> RingRun {
        RingRun { ring: self.clone(), op: Some(op), token: None }
    }

    /// Hands over what was started and notices completions, without waiting. Costs no system call
    /// if there is nothing to hand over and the kernel has nothing to report. Gives the number of
    /// completions noticed.
    pub fn drive(&self) -> usize {
        let mut inner = self.inner.borrow_mut();
        let mut noticed = 0;
        for _ in 0..ROUNDS {
            let entered = inner.enter(false, None);
            noticed += inner.reap();
            if inner.queued.is_empty() || !entered {
                break;
            }
        }
        self.wake(inner);
        noticed
    }

    /// Hands over what was started and waits until something completes, the ring is roused or
    /// `timeout` has passed. May return early.
    pub fn wait(&self, timeout: Option<Duration>) {
        self.wait_then(timeout, || ());
    }

    /// As [`Ring::wait`]; calls `awake` after the wait and before anybody is woken, so that those who
    /// are need not be told that this thread sleeps.
    pub fn wait_then(&self, timeout: Option<Duration>, awake: impl FnOnce()) {
        let mut inner = self.inner.borrow_mut();
        // Waiting with requests left over could wait for one of these.
        inner.fill();
        let mut noticed = 0;
        while !inner.queued.is_empty() {
            let entered = inner.enter(false, None);
            noticed = inner.reap();
            if noticed > 0 || !entered {
                break;
            }
        }
        // What was noticed may be that the ring was roused, and that wakes nobody.
        if noticed == 0 && inner.woken.is_empty() {
            inner.enter(true, timeout);
            inner.reap();
        }
        awake();
        self.wake(inner);
    }

    /// A function with which any thread ends the current or the next [`Ring::wait`].
    pub fn rouser(&self) -> impl Fn() + Send + Sync + 'static {
        let fd = self.rouse.clone();
        // It cannot fail but by a signal: the descriptor is open and the counter never full.
        move || while rustix::io::write(&*fd, &1u64.to_ne_bytes()) == Err(Errno::INTR) {}
    }

    /// Operations that were started and have not ended.
    pub fn in_flight(&self) -> usize {
        let inner = self.inner.borrow();
        let running = |slot: &&Slot| matches!(slot.state, State::Running { work: Work::Op(_), .. });
        inner.slots.iter().filter(running).count()
    }

    fn wake(&self, mut inner: std::cell::RefMut<'_, Inner>) {
        if inner.woken.is_empty() {
            return;
        }
        let mut woken = std::mem::take(&mut inner.woken);
        drop(inner);
        for waker in woken.drain(..) {
            waker.wake();
        }
        self.inner.borrow_mut().woken = woken;
    }
}

fn unknown() -> RingDone {
    let result = Err(io::Error::new(io::ErrorKind::InvalidInput, "no such operation on this ring"));
    RingDone { result, buf: None, accepted: None }
}

/// An operation on its way, see [`Ring::run`].
#[must_use = "nothing happens until this is awaited"]
pub struct RingRun {
    ring: Rc<Ring>,
    op: Option<RingOp>,
    token: Option<RingToken>,
}

impl Future for RingRun {
    type Output = RingDone;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<RingDone> {
        if let Some(op) = self.op.take() {
            self.token = Some(self.ring.start(op));
        }
        let Some(token) = self.token else { return Poll::Ready(unknown()) };
        let polled = self.ring.poll_op(token, context);
        if polled.is_ready() {
            self.token = None;
        }
        polled
    }
}

impl Drop for RingRun {
    fn drop(&mut self) {
        if let Some(token) = self.token.take() {
            self.ring.forget(token);
        }
    }
}
