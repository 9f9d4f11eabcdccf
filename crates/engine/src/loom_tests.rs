//! Range locks and counts of dirty blocks under loom, in every order that the memory model allows.
//! The cell stands for the bytes; loom fails if two accesses to it overlap or a waiter is never
//! woken.

use std::sync::Arc;

use forebay_core::sync::atomic::{AtomicBool, Ordering};
use forebay_core::sync::loom::{self, cell::UnsafeCell, future::block_on, thread};
use forebay_core::{Nanos, OriginBlock};
use forebay_lane::LaneId;
use forebay_policy::sweep::DirtyMap;

use crate::state::dirty::DirtyCount;
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

/// One block is dirty all the time; another one becomes dirty on one lane and clean on another.
#[test]
fn a_volume_with_a_dirty_block_never_has_none() {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(|| {
        let shared = Arc::new((DirtyCount::new(3), DirtyMap::new(1, 1), AtomicBool::new(false)));
        let add = |shared: &(DirtyCount, DirtyMap, _), lane| {
            shared.1.add(OriginBlock(0));
            shared.0.add(LaneId(lane), || Nanos(1));
        };
        add(&shared, 2);
        let (adding, cleaning) = (shared.clone(), shared.clone());
        let adds = thread::spawn(move || {
            add(&adding, 0);
            adding.2.store(true, Ordering::SeqCst);
        });
        let cleans = thread::spawn(move || {
            if cleaning.2.load(Ordering::SeqCst) {
                cleaning.1.sub(OriginBlock(0));
                cleaning.0.sub(LaneId(1));
            }
        });
        let dirty = shared.0.total_beside(&shared.1);
        assert!((1..=2).contains(&dirty), "{dirty}");
        adds.join().expect("no panic");
        cleans.join().expect("no panic");
    });
}
