//! One at a time, and many at a time.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;

use forebay_core::sync::atomic::{AtomicBool, Ordering};

use crate::executor::Lane;
use crate::notify::Notify;

/// Lets one task at a time through, of any lane; the others wait without holding a thread.
#[derive(Default)]
pub struct Gate {
    busy: AtomicBool,
    left: Notify,
}

impl Gate {
    /// Waits for its turn. Dropping the guard lets the next one in.
    pub async fn enter(&self) -> GateGuard<'_> {
        loop {
            let left = self.left.listen();
            if let Some(guard) = self.try_enter() {
                return guard;
            }
            left.await;
        }
    }

    /// Enters if nobody is inside.
    pub fn try_enter(&self) -> Option<GateGuard<'_>> {
        // The guard must not even exist for a moment if somebody else is inside: it opens the gate
        // when it is dropped.
        let entered =
            self.busy.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok();
        entered.then(|| GateGuard { gate: self })
    }
}

/// Proof of being the one inside a [`Gate`].
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

/// Runs the futures of `work` on `lane`, at most `limit` at a time, and waits for all of them.
pub async fn concurrently<F>(lane: &Rc<Lane>, limit: usize, work: impl Iterator<Item = F> + 'static)
where
    F: Future<Output = ()> + 'static,
{
    let work = Rc::new(RefCell::new(work));
    let running = Rc::new(Cell::new(limit.max(1)));
    let ended = Rc::new(Notify::default());
    for _ in 0..limit.max(1) {
        let (work, running, ended) = (work.clone(), running.clone(), ended.clone());
        lane.spawn(async move {
            loop {
                let next = work.borrow_mut().next();
                let Some(future) = next else { break };
                future.await;
            }
            running.set(running.get() - 1);
            ended.notify_all();
        });
    }
    loop {
        let listening = ended.listen();
        if running.get() == 0 {
            return;
        }
        listening.await;
    }
}

/// Waits for all of `futures`, polled side by side within one task; their results in order.
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
    use super::*;

    #[test]
    fn one_is_inside_and_trying_does_not_let_others_in() {
        let gate = Gate::default();
        let guard = gate.try_enter().expect("nobody is inside");
        assert!(gate.try_enter().is_none());
        assert!(gate.try_enter().is_none());
        drop(guard);
        assert!(gate.try_enter().is_some());
    }
}
