//! Wake-ups in every interleaving that the memory model allows. Loom reports a thread that sleeps
//! for ever.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

use forebay_core::ManualClock;
use forebay_core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use forebay_core::sync::loom::{self, cell::UnsafeCell, future::block_on, thread};

use crate::{Gate, Lane, LaneId, Notify};

/// Makes a lane, and the event on which it sleeps.
fn lane() -> (Rc<Lane>, Arc<loom::sync::Notify>) {
    let rouser = Arc::new(loom::sync::Notify::new());
    let inner = rouser.clone();
    (Lane::new(LaneId(0), Arc::new(ManualClock::default()), move || inner.notify()), rouser)
}

/// Runs the lane until `done`, in the way of its thread.
fn run(lane: &Rc<Lane>, rouser: &loom::sync::Notify, done: impl Fn() -> bool) {
    while !done() {
        if !lane.run_ready() && lane.may_sleep() {
            rouser.wait();
            lane.woke();
        }
    }
    assert_eq!(lane.panics(), 0);
}

#[test]
fn no_job_is_lost_while_a_lane_falls_asleep() {
    loom::model(|| {
        let (lane, rouser) = lane();
        let jobs = Arc::new(AtomicU32::new(0));
        for _ in 0..2 {
            let (remote, jobs) = (lane.remote(), jobs.clone());
            thread::spawn(move || {
                remote.run(move |_| {
                    jobs.fetch_add(1, Ordering::Relaxed);
                });
            });
        }
        run(&lane, &rouser, || jobs.load(Ordering::Relaxed) == 2);
    });
}

#[test]
fn a_wake_up_that_meets_a_poll_is_not_lost() {
    loom::model(|| {
        let (lane, rouser) = lane();
        let event = Arc::new(AtomicBool::new(false));
        let (seen, ended) = (event.clone(), Rc::new(Cell::new(false)));
        let (waker, end) = (Rc::new(RefCell::new(None)), ended.clone());
        let place = waker.clone();
        lane.spawn(poll_fn(move |context| {
            place.replace(Some(context.waker().clone()));
            // Relaxed: the wake-up itself must make earlier writes visible.
            end.set(seen.load(Ordering::Relaxed));
            if end.get() { Poll::Ready(()) } else { Poll::Pending }
        }));
        lane.run_ready();
        let waker = waker.take().expect("it was polled");
        thread::spawn(move || {
            waker.wake_by_ref();
            event.store(true, Ordering::Relaxed);
            waker.wake();
        });
        run(&lane, &rouser, || ended.get());
    });
}

#[test]
fn an_event_between_looking_and_waiting_is_not_missed() {
    loom::model(|| {
        let shared = Arc::new((Notify::default(), AtomicU32::new(0)));
        let other = shared.clone();
        thread::spawn(move || {
            for _ in 0..2 {
                other.1.fetch_add(1, Ordering::Relaxed);
                other.0.notify_all();
            }
        });
        block_on(async {
            loop {
                let event = shared.0.listen();
                if shared.1.load(Ordering::Relaxed) == 2 {
                    return;
                }
                event.await;
            }
        });
    });
}

#[test]
fn tasks_pass_a_gate_one_at_a_time() {
    loom::model(|| {
        let shared = Arc::new((Gate::default(), UnsafeCell::new(())));
        let enter = |shared: Arc<(Gate, UnsafeCell<()>)>| {
            let guard = block_on(shared.0.enter());
            shared.1.with_mut(|_| thread::yield_now());
            drop(guard);
        };
        let other = shared.clone();
        let thread = thread::spawn(move || enter(other));
        enter(shared);
        thread.join().expect("it got in");
    });
}
