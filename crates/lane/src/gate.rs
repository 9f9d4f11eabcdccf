//! Limits on concurrency: one task at a time, or many tasks within one.

use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;

use forebay_core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::executor::{Lane, yield_now};
use crate::notify::Notify;

/// Admits one task at a time, from any lane; the others wait without blocking a thread. A task that
/// enters repeatedly yields to waiting tasks of its lane.
#[derive(Default)]
pub struct Gate {
    busy: AtomicBool,
    left: Notify,
    /// Number of tasks that wait.
    waiting: AtomicU32,
}

/// A task that waits at a gate.
struct GateWaiter<'a>(&'a AtomicU32);

impl<'a> GateWaiter<'a> {
    fn begin(waiting: &'a AtomicU32) -> Self {
        waiting.fetch_add(1, Ordering::Relaxed);
        GateWaiter(waiting)
    }
}

impl Drop for GateWaiter<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Gate {
    /// Waits for its turn. Dropping the guard admits the next task.
    pub async fn enter(&self) -> GateGuard<'_> {
        match self.enter_unless(|| None::<Infallible>).await {
            Ok(guard) => guard,
            Err(never) => match never {},
        }
    }

    /// Waits for its turn, or until `over` returns a value. `over` is called at first, again when
    /// the turn has come, and after each task that leaves, so that the effects of that task are
    /// visible to it.
    ///
    /// # Errors
    /// The value that `over` returned.
    pub async fn enter_unless<T>(&self, over: impl Fn() -> Option<T>) -> Result<GateGuard<'_>, T> {
        if self.waiting.load(Ordering::Relaxed) > 0 {
            // Without this, a task that has just left would enter again before the tasks that it
            // woke could run.
            yield_now().await;
        }
        loop {
            let left = self.left.listen();
            let guard = self.try_enter();
            match (over(), guard) {
                (Some(over), _) => return Err(over),
                (None, Some(guard)) => return Ok(guard),
                (None, None) => {
                    let _waiting = GateWaiter::begin(&self.waiting);
                    left.await;
                }
            }
        }
    }

    /// Enters if the gate is free.
    pub fn try_enter(&self) -> Option<GateGuard<'_>> {
        // The guard must exist only if the gate was entered: dropping it opens the gate.
        let entered =
            self.busy.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok();
        entered.then(|| GateGuard { gate: self })
    }
}

/// Proof of being inside a [`Gate`].
#[must_use = "the gate opens again when this is dropped"]
pub struct GateGuard<'a> {
    gate: &'a Gate,
}

impl Drop for GateGuard<'_> {
    fn drop(&mut self) {
        self.gate.busy.store(false, Ordering::Release);
        self.gate.left.notify_all();
    }
}

/// Runs the futures of `work` on `lane`, at most `limit` at a time, and waits for all of them to
/// end.
///
/// # Panics
/// One of the futures panicked. If this call did not panic as well, the caller would consider the
/// work complete.
pub async fn concurrently<F>(lane: &Rc<Lane>, limit: usize, work: impl Iterator<Item = F> + 'static)
where
    F: Future<Output = ()> + 'static,
{
    let work = Rc::new(RefCell::new(work));
    let workers = Rc::new(Workers::default());
    workers.running.set(limit.max(1));
    for _ in 0..limit.max(1) {
        let (work, worker) = (work.clone(), WorkerGuard(workers.clone()));
        lane.spawn(async move {
            let _worker = worker;
            loop {
                let next = work.borrow_mut().next();
                let Some(future) = next else { break };
                future.await;
            }
        });
    }
    loop {
        let listening = workers.ended.listen();
        if workers.running.get() == 0 {
            break;
        }
        listening.await;
    }
    assert!(!workers.panicked.get(), "a part of the work panicked");
}

#[derive(Default)]
struct Workers {
    running: Cell<usize>,
    panicked: Cell<bool>,
    ended: Notify,
}

/// One of the tasks of [`concurrently`]; dropping it reports its end, also after a panic.
struct WorkerGuard(Rc<Workers>);

impl Drop for WorkerGuard {
    fn drop(&mut self) {
        self.0.running.set(self.0.running.get() - 1);
        self.0.panicked.set(self.0.panicked.get() || std::thread::panicking());
        self.0.ended.notify_all();
    }
}

/// Waits until one of two futures ends; the other is dropped.
pub async fn either(one: impl Future<Output = ()>, other: impl Future<Output = ()>) {
    let mut one = std::pin::pin!(one);
    let mut other = std::pin::pin!(other);
    std::future::poll_fn(|context| {
        let first = one.as_mut().poll(context);
        let second = other.as_mut().poll(context);
        if first.is_ready() { first } else { second }
    })
    .await;
}

/// Waits for all of `futures`, polled concurrently within one task; returns their results in order.
pub async fn join_all<F: Future>(futures: impl IntoIterator<Item = F>) -> Vec<F::Output> {
    enum Slot<F: Future> {
        Running(Pin<Box<F>>),
        Done(Option<F::Output>),
    }
    let mut slots: Vec<Slot<F>> =
        futures.into_iter().map(|future| Slot::Running(Box::pin(future))).collect();
    std::future::poll_fn(|context| {
        let mut pending = false;
        for slot in &mut slots {
            let Slot::Running(future) = slot else { continue };
            match future.as_mut().poll(context) {
                Poll::Ready(output) => *slot = Slot::Done(Some(output)),
                Poll::Pending => pending = true,
            }
        }
        if pending { Poll::Pending } else { Poll::Ready(()) }
    })
    .await;
    slots
        .into_iter()
        .filter_map(|slot| match slot {
            Slot::Done(output) => output,
            Slot::Running(_) => None,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use forebay_core::ManualClock;

    use super::*;
    use crate::executor::LaneId;

    #[test]
    fn work_of_which_a_part_panics_ends_with_a_panic() {
        let lane = Lane::new(LaneId(0), Arc::new(ManualClock::default()), || ());
        let (done, ended) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(false)));
        let (parts, waits, own) = (done.clone(), ended.clone(), lane.clone());
        lane.spawn(async move {
            let part = move |number| {
                let parts = parts.clone();
                async move {
                    assert!(number != 3, "on purpose");
                    parts.set(parts.get() + 1);
                }
            };
            concurrently(&own, 2, (0..10).map(part)).await;
            waits.set(true);
        });
        while lane.run_ready() {}
        assert_eq!((done.get(), ended.get()), (9, false));
        assert_eq!((lane.panics(), lane.live_tasks()), (2, 0));
    }

    #[test]
    fn waiters_for_a_turn_learn_that_it_is_over() {
        let (gate, over) = (Rc::new(Gate::default()), Rc::new(Cell::new(None)));
        let lane = Lane::new(LaneId(0), Arc::new(ManualClock::default()), || ());
        let ended = Rc::new(RefCell::new(Vec::new()));
        let guard = gate.try_enter().expect("nobody is inside");
        for _ in 0..2 {
            let (gate, over, ended) = (gate.clone(), over.clone(), ended.clone());
            lane.spawn(async move {
                let end = gate.enter_unless(|| over.get()).await.map(|_| ());
                ended.borrow_mut().push(end);
            });
        }
        while lane.run_ready() {}
        assert!(ended.borrow().is_empty());
        over.set(Some(5));
        drop(guard);
        while lane.run_ready() {}
        assert_eq!(*ended.borrow(), [Err(5), Err(5)]);
        assert!(gate.try_enter().is_some(), "nobody is left inside");
    }

    #[test]
    fn a_task_that_enters_again_and_again_lets_others_in() {
        let lane = Lane::new(LaneId(0), Arc::new(ManualClock::default()), || ());
        let (gate, order) = (Rc::new(Gate::default()), Rc::new(RefCell::new(Vec::new())));
        for (task, turns) in [("first", 100), ("second", 1)] {
            let (gate, order) = (gate.clone(), order.clone());
            lane.spawn(async move {
                for _ in 0..turns {
                    let _turn = gate.enter().await;
                    order.borrow_mut().push(task);
                    yield_now().await;
                }
            });
        }
        while lane.run_ready() {}
        let order = order.borrow();
        let at = order.iter().position(|task| *task == "second").expect("it was in");
        assert_eq!((order.len(), at), (101, 1));
    }

    #[test]
    fn trying_never_admits_a_second_task() {
        let gate = Gate::default();
        let guard = gate.try_enter().expect("nobody is inside");
        assert!(gate.try_enter().is_none());
        assert!(gate.try_enter().is_none());
        drop(guard);
        assert!(gate.try_enter().is_some());
    }
}
