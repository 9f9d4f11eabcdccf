//! Sleeping on the lane's clock.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use forebay_core::Nanos;

use crate::executor::Lane;

/// A future that completes at a deadline, see [`Lane::sleep_until`].
#[must_use = "nothing happens until this is awaited"]
pub struct Sleep {
    lane: Rc<Lane>,
    deadline: Nanos,
    /// Number of the sleeper in order of arrival, once it has been polled.
    order: Option<u64>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.lane.now() >= self.deadline {
            return Poll::Ready(());
        }
        if self.order.is_none() {
            let (deadline, waker) = (self.deadline, context.waker().clone());
            let order = self.lane.timers().borrow_mut().add(deadline, waker);
            self.order = Some(order);
        }
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        // The borrow fails only while the lane fires its timers, and no sleep is dropped then.
        if let Some(order) = self.order
            && let Ok(mut timers) = self.lane.timers().try_borrow_mut()
        {
            timers.remove(self.deadline, order);
        }
    }
}

impl Lane {
    /// Sleeps until `deadline` on this lane's clock.
    pub fn sleep_until(self: &Rc<Self>, deadline: Nanos) -> Sleep {
        Sleep { lane: self.clone(), deadline, order: None }
    }

    /// Sleeps for `duration` on this lane's clock.
    pub fn sleep(self: &Rc<Self>, duration: Duration) -> Sleep {
        self.sleep_until(self.now() + duration)
    }
}
