//! Waiting for events of other lanes.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use forebay_core::sync::Mutex;
use forebay_core::sync::atomic::{AtomicU64, Ordering};

/// A recurring event. A waiter first calls [`Notify::listen`], then checks the shared state, and
/// awaits the [`Notified`] only if the state is not the expected one; so it misses no event.
#[derive(Default, Debug)]
pub struct Notify {
    epoch: AtomicU64,
    waiters: Mutex<Vec<Waker>>,
}

impl Notify {
    /// Starts listening: the future completes at the first event after this call.
    pub fn listen(&self) -> Notified<'_> {
        Notified { notify: self, epoch: self.epoch.load(Ordering::SeqCst) }
    }

    /// Signals the event: wakes all listeners.
    pub fn notify_all(&self) {
        self.epoch.fetch_add(1, Ordering::SeqCst);
        let waiters = std::mem::take(&mut *self.waiters.lock());
        for waker in waiters {
            waker.wake();
        }
    }
}

/// A future that completes at the next event, see [`Notify::listen`].
#[must_use = "nothing happens until this is awaited"]
pub struct Notified<'a> {
    notify: &'a Notify,
    epoch: u64,
}

impl Future for Notified<'_> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut waiters = self.notify.waiters.lock();
        if self.notify.epoch.load(Ordering::SeqCst) != self.epoch {
            return Poll::Ready(());
        }
        if !waiters.iter().any(|waker| waker.will_wake(context.waker())) {
            waiters.push(context.waker().clone());
        }
        Poll::Pending
    }
}
