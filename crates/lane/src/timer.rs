//! Sleeping on the lane's clock.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use forebay_core::Nanos;

use crate::executor::Lane;

struct Entry {
    deadline: Nanos,
    /// Ties are broken by order of arrival, so that runs repeat exactly.
    order: u64,
    waker: Waker,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        (self.deadline, self.order) == (other.deadline, other.order)
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.deadline, self.order).cmp(&(other.deadline, other.order))
    }
}

/// The sleepers of one lane.
#[derive(Default)]
pub(crate) struct Timers {
    heap: BinaryHeap<Reverse<Entry>>,
    order: u64,
}

impl Timers {
    fn add(&mut self, deadline: Nanos, waker: Waker) {
        self.order += 1;
        self.heap.push(Reverse(Entry { deadline, order: self.order, waker }));
    }

    /// Wakes everyone whose time has come.
    pub(crate) fn fire(&mut self, now: Nanos) {
        while self.heap.peek().is_some_and(|Reverse(entry)| entry.deadline <= now) {
            if let Some(Reverse(entry)) = self.heap.pop() {
                entry.waker.wake();
            }
        }
    }

    pub(crate) fn next(&self) -> Option<Nanos> {
        self.heap.peek().map(|Reverse(entry)| entry.deadline)
    }
}

/// See [`Lane::sleep_until`].
#[must_use = "nothing happens until this is awaited"]
pub struct Sleep {
    lane: Rc<Lane>,
    deadline: Nanos,
    registered: bool,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.lane.now() >= self.deadline {
            return Poll::Ready(());
        }
        if !self.registered {
            self.registered = true;
            let (deadline, waker) = (self.deadline, context.waker().clone());
            self.lane.timers().borrow_mut().add(deadline, waker);
        }
        Poll::Pending
    }
}

impl Lane {
    /// Sleeps until `deadline` on this lane's clock.
    pub fn sleep_until(self: &Rc<Self>, deadline: Nanos) -> Sleep {
        Sleep { lane: self.clone(), deadline, registered: false }
    }

    /// Sleeps for `duration` on this lane's clock.
    pub fn sleep(self: &Rc<Self>, duration: Duration) -> Sleep {
        self.sleep_until(self.now() + duration)
    }
}
