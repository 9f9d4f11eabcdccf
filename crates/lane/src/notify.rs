//! Waiting for what another lane does.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use forebay_core::sync::Mutex;
use forebay_core::sync::atomic::{AtomicU64, Ordering};

/// An event that happens again and again. A waiter looks at the shared state, and if that is not
/// what it needs, awaits a [`Notified`] that it took *before* looking; so no event is missed.
#[derive(Default, Debug)]
pub struct Notify {
    epoch: AtomicU64,
    waiters: Mutex<Vec<Waker>>,
}

impl Notify {
    /// Takes a place in time: the future ends at the first event after this call.
    pub fn listen(&self) -> Notified<'_> {
        Notified { notify: self, epoch: self.epoch.load(Ordering::SeqCst) }
    }

    /// The event happens: everyone who listens is woken.
    pub fn notify_all(&self) {
        self.epoch.fetch_add(1, Ordering::SeqCst);
        let waiters = std::mem::take(&mut *self.waiters.lock());
        for waker in waiters {
            waker.wake();
        }
    }
}

/// See [`Notify::listen`].
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
