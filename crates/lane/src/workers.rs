//! Futures that do one job after another.

use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll};

use crate::executor::{Lane, TaskBody};

/// The job of a worker, see [`Pool`].
pub struct JobInbox<J>(Rc<Cell<Letter<J>>>);

enum Letter<J> {
    Job(J),
    /// The worker has taken its job.
    Taken,
    /// The worker waits for the next job.
    Wanted,
}

impl<J> JobInbox<J> {
    /// Waits for the next job. The call ends the current job.
    pub async fn next(&self) -> J {
        std::future::poll_fn(|_| match self.0.replace(Letter::Taken) {
            Letter::Job(job) => Poll::Ready(job),
            Letter::Taken | Letter::Wanted => {
                self.0.set(Letter::Wanted);
                Poll::Pending
            }
        })
        .await
    }
}

/// Unused workers of one type.
type Idle<F, J> = RefCell<Vec<Box<Worker<F, J>>>>;

struct Worker<F, J> {
    future: Pin<Box<F>>,
    inbox: Rc<Cell<Letter<J>>>,
    home: Weak<Idle<F, J>>,
}

impl<F: Future<Output = Infallible>, J> TaskBody for Worker<F, J> {
    fn poll(&mut self, context: &mut Context<'_>) -> bool {
        let Poll::Pending = self.future.as_mut().poll(context);
        match self.inbox.replace(Letter::Taken) {
            Letter::Wanted => true,
            other => {
                self.inbox.set(other);
                false
            }
        }
    }

    fn end(self: Box<Self>) {
        if let Some(home) = self.home.upgrade() {
            home.borrow_mut().push(self);
        }
    }
}

/// A pool of workers: futures that do one job after another. Each job is a task of its own. In the
/// steady state, starting a job neither allocates memory nor moves a future, which has several
/// kilobytes for a request.
pub struct Pool<F, J, M> {
    idle: Rc<Idle<F, J>>,
    make: M,
}

impl<F, J, M: Fn(JobInbox<J>) -> F> Pool<F, J, M> {
    /// Creates an empty pool. `make` returns a worker that takes jobs from the inbox for ever; its
    /// first await must be [`JobInbox::next`].
    pub fn new(make: M) -> Self {
        Pool { idle: Rc::default(), make }
    }

    fn hire(&self) -> Box<Worker<F, J>> {
        let inbox = Rc::new(Cell::new(Letter::Taken));
        let future = Box::pin((self.make)(JobInbox(inbox.clone())));
        Box::new(Worker { future, inbox, home: Rc::downgrade(&self.idle) })
    }
}

impl Lane {
    /// Starts a task in which a worker of `pool` does `job`.
    pub fn spawn_in<F, J, M>(&self, pool: &Pool<F, J, M>, job: J)
    where
        F: Future<Output = Infallible> + 'static,
        J: 'static,
        M: Fn(JobInbox<J>) -> F,
    {
        let idle = pool.idle.borrow_mut().pop();
        let worker = idle.unwrap_or_else(|| pool.hire());
        worker.inbox.set(Letter::Job(job));
        self.spawn_body(worker);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use forebay_core::ManualClock;

    use super::*;
    use crate::executor::{LaneId, yield_now};

    #[test]
    fn a_worker_does_one_job_after_another() {
        let lane = Lane::new(LaneId(0), Arc::new(ManualClock::default()), || ());
        let done = Rc::new(RefCell::new(Vec::new()));
        let pool = Pool::new(|inbox: JobInbox<u32>| {
            let done = done.clone();
            async move {
                loop {
                    let job = inbox.next().await;
                    yield_now().await;
                    assert!(job != 3, "this one fails");
                    done.borrow_mut().push(job);
                }
            }
        });
        for round in 0..3 {
            lane.spawn_in(&pool, 2 * round);
            lane.spawn_in(&pool, 2 * round + 1);
            while lane.run_ready() {}
            assert_eq!(lane.live_tasks(), 0, "a worker without a job is no task");
        }
        assert_eq!(*done.borrow(), [0, 1, 2, 4, 5]);
        assert_eq!(
            (lane.panics(), pool.idle.borrow().len()),
            (1, 2),
            "the one that failed was replaced"
        );
    }
}
