//! Long work in steps, between which other tasks of the lane run.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::executor::yield_now;

/// Items of a pass over memory between two yields: a fraction of a millisecond. A smaller number
/// gives the small caches of the simulator many steps as well.
pub const AT_ONCE: usize = if cfg!(feature = "short-turns") { 1 << 4 } else { 1 << 14 };

/// Yields to other tasks after every [`AT_ONCE`] items. `done` counts the items.
pub async fn rest(done: &mut usize) {
    *done += 1;
    if done.is_multiple_of(AT_ONCE) {
        yield_now().await;
    }
}

/// Makes a vector of `count` items. The system provides memory at the first touch, so filling much
/// memory takes as long as a pass over it.
pub async fn filled<T>(count: usize, mut make: impl FnMut(usize) -> T) -> Vec<T> {
    let (mut items, mut done) = (Vec::with_capacity(count), 0);
    for number in 0..count {
        items.push(make(number));
        rest(&mut done).await;
    }
    items
}

/// Sorts like `sort_by_key`. A large vector takes its memory twice.
pub async fn sort_by_key<T, K: Ord>(items: &mut Vec<T>, key: impl Fn(&T) -> K) {
    if items.len() <= AT_ONCE {
        items.sort_by_key(key);
        return;
    }
    let mut rest_of = std::mem::take(items).into_iter();
    let mut runs = Vec::new();
    loop {
        let mut run: Vec<T> = rest_of.by_ref().take(AT_ONCE).collect();
        if run.is_empty() {
            break;
        }
        items.reserve(run.len());
        run.sort_by_key(&key);
        runs.push(run.into_iter());
        yield_now().await;
    }
    // Of equal items, the one from the earlier run comes first, so the sort is stable.
    let first = |runs: &[std::vec::IntoIter<T>], run: usize| {
        runs[run].as_slice().first().map(|item| Reverse((key(item), run)))
    };
    let mut heads: BinaryHeap<_> = (0..runs.len()).filter_map(|run| first(&runs, run)).collect();
    let mut done = 0;
    while let Some(Reverse((_, run))) = heads.pop() {
        items.extend(runs[run].next());
        heads.extend(first(&runs, run));
        rest(&mut done).await;
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::rc::Rc;
    use std::sync::Arc;

    use forebay_core::ManualClock;

    use super::*;
    use crate::executor::{Lane, LaneId};

    /// Runs a future, and returns its output and the number of turns of the lane that it took.
    fn turns<T: 'static>(future: impl Future<Output = T> + 'static) -> (T, usize) {
        let lane = Lane::new(LaneId(0), Arc::new(ManualClock::default()), || ());
        let (output, turns) = (Rc::new(RefCell::new(None)), Cell::new(0));
        let inner = output.clone();
        lane.spawn(async move {
            let ended = future.await;
            *inner.borrow_mut() = Some(ended);
        });
        while output.borrow().is_none() {
            assert!(lane.run_ready());
            turns.set(turns.get() + 1);
        }
        let output = output.borrow_mut().take().expect("it has ended");
        (output, turns.get())
    }

    #[test]
    fn long_vectors_are_sorted_stably_in_turns() {
        for count in [0, 1, AT_ONCE, AT_ONCE + 1, 5 * AT_ONCE + 7] {
            let mut random = fastrand::Rng::with_seed(count as u64);
            let items: Vec<(u32, usize)> =
                (0..count).map(|number| (random.u32(0..1000), number)).collect();
            let mut expected = items.clone();
            expected.sort_by_key(|(key, _)| *key);
            let mut sorted = items;
            let (sorted, turns) = turns(async move {
                sort_by_key(&mut sorted, |(key, _)| *key).await;
                sorted
            });
            assert!(sorted == expected, "{count}");
            assert!(turns >= count / AT_ONCE * 2 * usize::from(count > AT_ONCE), "{count}");
        }
    }

    #[test]
    fn long_vectors_are_made_in_turns() {
        for (count, least) in [(0, 1), (1, 1), (AT_ONCE, 2), (3 * AT_ONCE + 1, 4)] {
            let (made, turns) = turns(filled(count, |number| number));
            assert!(made.into_iter().eq(0..count));
            assert_eq!(turns, least, "{count}");
        }
    }
}
