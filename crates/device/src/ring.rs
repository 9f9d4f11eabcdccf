//! One lane's io_uring.
//!
//! Operations wait in user space until [`Ring::drive`] or [`Ring::wait`] submits them to the
//! kernel, all in one system call, so their number is not limited by the ring. An operation stays
//! in its slot, with its buffer and its descriptor, until the kernel has reported its completion,
//! even if its result has been abandoned.

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
mod uring;

pub use inner::RingToken;
use inner::{Inner, Queued, RingSlot, RingWork, State};
pub use op::{FallocateMode, RingDone, RingOp};

/// Maximum number of system calls in one call of [`Ring::drive`].
const ROUNDS: usize = 4;

/// One lane's io_uring. Must not be shared with another thread.
pub struct Ring {
    inner: RefCell<Inner>,
    rouse: Arc<OwnedFd>,
}

impl Ring {
    /// Creates a ring for the calling thread.
    ///
    /// # Errors
    /// The kernel has no io_uring, or forbids it, or is older than 5.11, or limits are reached.
    pub fn new() -> io::Result<Rc<Self>> {
        Ring::build(false)
    }

    /// Makes a ring like [`Ring::new`] that also supports [`RingOp::ServeEntry`]. Every operation
    /// on it is slightly slower.
    ///
    /// # Errors
    /// Like [`Ring::new`], or the kernel is older than 5.19.
    pub fn wide() -> io::Result<Rc<Self>> {
        Ring::build(true)
    }

    fn build(wide: bool) -> io::Result<Rc<Self>> {
        // The eventfd is blocking, because the ring's read must wait until another thread writes.
        let rouse = Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?);
        let inner = RefCell::new(Inner::new(rouse.clone(), wide)?);
        Ok(Rc::new(Ring { inner, rouse }))
    }

    /// Starts an operation; it is submitted to the kernel by the next [`Ring::drive`] or
    /// [`Ring::wait`].
    pub fn start(&self, op: RingOp) -> RingToken {
        self.inner.borrow_mut().add(RingWork::Op(op))
    }

    /// Collects the result of an operation, once, or stores the waker. A token that does not, or no
    /// longer, identify an operation of this ring yields an `InvalidInput` error.
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

    /// Abandons an operation. Receives, sends and accepts are cancelled; disk operations complete,
    /// and their results are dropped. A [`RingOp::Serve`] stays until its device or this thread
    /// ends.
    pub fn forget(&self, token: RingToken) {
        let mut inner = self.inner.borrow_mut();
        match inner.state(token) {
            Some(State::Running { work, waker, with_kernel, orphan, .. }) => {
                *orphan = true;
                *waker = None;
                if work.is_endless() && !work.is_bound() && *with_kernel {
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

    /// Ends an operation early that waits for a client or another thread. It still has a result,
    /// which must be collected: the data or connection received so far, otherwise the error
    /// `ECANCELED`. Has no effect on disk operations.
    pub fn cancel(&self, token: RingToken) {
        let mut inner = self.inner.borrow_mut();
        if let Some(State::Running { work, with_kernel, cancelled, .. }) = inner.state(token)
            && work.is_endless()
        {
            *cancelled = true;
            if *with_kernel {
                inner.queued.push_back(Queued::Cancel(token));
            }
        }
    }

    /// Starts `op` at the first poll and waits for its end. Dropping the future abandons it like
    /// [`Ring::forget`].
    pub fn run(self: &Rc<Self>, op: RingOp) -> RingRun {
        RingRun { ring: self.clone(), op: Some(op), token: None }
    }

    /// Like [`Ring::run`], but starts `op` now: several can be submitted together.
    pub fn begin(self: &Rc<Self>, op: RingOp) -> RingRun {
        let token = self.start(op);
        RingRun { ring: self.clone(), op: None, token: Some(token) }
    }

    /// Submits started operations and collects completions, without waiting. Makes no system call
    /// if there is nothing to submit and the kernel has nothing to report. Returns the number of
    /// completions.
    pub fn drive(&self) -> usize {
        let mut inner = self.inner.borrow_mut();
        let mut noticed = 0;
        for _ in 0..ROUNDS {
            let entered = inner.enter();
            noticed += inner.reap();
            if inner.queued.is_empty() || !entered {
                break;
            }
        }
        self.wake(inner);
        noticed
    }

    /// Submits started operations and waits until something completes, the ring is roused or
    /// `timeout` has passed. May return early.
    pub fn wait(&self, timeout: Option<Duration>) {
        self.wait_then(timeout, || ());
    }

    /// Like [`Ring::wait`]; calls `awake` after the wait and before any waker, so that woken tasks
    /// need not rouse this thread.
    pub fn wait_then(&self, timeout: Option<Duration>, awake: impl FnOnce()) {
        let mut inner = self.inner.borrow_mut();
        // Waiting before these operations are submitted could mean waiting for one of them.
        inner.fill();
        let mut noticed = 0;
        while !inner.queued.is_empty() {
            let entered = inner.enter();
            noticed = inner.reap();
            if noticed > 0 || !entered {
                break;
            }
        }
        // The only completion may be the ring's own wake-up, which wakes no task.
        if noticed == 0 && inner.woken.is_empty() {
            inner.wait(timeout);
            inner.reap();
        }
        awake();
        self.wake(inner);
    }

    /// Returns a function with which any thread ends the current or the next [`Ring::wait`].
    pub fn rouser(&self) -> impl Fn() + Send + Sync + 'static {
        let fd = self.rouse.clone();
        // The write fails only if a signal interrupts it: the descriptor is open and the counter
        // never full.
        move || while rustix::io::write(&*fd, &1u64.to_ne_bytes()) == Err(Errno::INTR) {}
    }

    /// Returns the number of operations in flight.
    pub fn in_flight(&self) -> usize {
        let inner = self.inner.borrow();
        let running =
            |slot: &&RingSlot| matches!(slot.state, State::Running { work: RingWork::Op(_), .. });
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
    RingDone { result, buf: None, accepted: None, entry: None }
}

/// An operation in flight, see [`Ring::run`].
#[must_use = "nothing happens until this is awaited"]
pub struct RingRun {
    ring: Rc<Ring>,
    op: Option<RingOp>,
    token: Option<RingToken>,
}

impl RingRun {
    /// Identifies the operation, once it has begun and until it has ended.
    pub fn token(&self) -> Option<RingToken> {
        self.token
    }

    /// Ends the operation early if it has begun, see [`Ring::cancel`]; it must still be awaited.
    pub fn cancel(&self) {
        if let Some(token) = self.token {
            self.ring.cancel(token);
        }
    }
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
