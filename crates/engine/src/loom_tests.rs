//! Range locks under loom, in every order that the memory model allows. The cell stands for the
//! bytes; loom fails if two accesses to it overlap or a waiter is never woken.

use std::sync::Arc;

use forebay_core::sync::loom::{self, cell::UnsafeCell, future::block_on, thread};

use crate::state::ranges::Ranges;

#[test]
fn writers_are_alone_readers_share_and_all_get_their_turn() {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    builder.check(|| {
        let shared = Arc::new((Ranges::default(), UnsafeCell::new(())));
        let other = shared.clone();
        let writer = thread::spawn(move || {
            let guard = block_on(other.0.exclusive(4..12));
            other.1.with_mut(|_| thread::yield_now());
            drop(guard);
        });
        let other = shared.clone();
        let reader = thread::spawn(move || {
            let guard = block_on(other.0.shared(0..8));
            other.1.with(|_| ());
            drop(guard);
        });
        let guard = block_on(shared.0.exclusive(0..8));
        shared.1.with_mut(|_| thread::yield_now());
        drop(guard);
        writer.join().expect("it had its turn");
        reader.join().expect("it had its turn");
    });
}
