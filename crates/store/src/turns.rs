//! Long work in steps, between which other tasks of the lane get their turn.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use forebay_lane::yield_now;

/// Items of a pass over memory before other tasks get their turn: a fraction of a millisecond.
pub(crate) const AT_ONCE: usize = 1 << 14;

/// Lets other tasks run after every [`AT_ONCE`] items. `done`: how many were handled.
pub(crate) async fn rest(done: &mut usize) {
    *done += 1;
    if done.is_multiple_of(AT_ONCE) {
        yield_now().await;
    }
}

/// Sorts as `sort_by_key` does. Takes the memory of the items twice, if there are many.
pub(crate) async fn sort_by_key<T, K: Ord>(items: &mut Vec<T>, key: impl Fn(&T) -> K) {
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
    // Of equal items the one of the earlier run comes first.
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
    use std::cell::Cell;
    use std::rc::Rc;

    use forebay_testkit::LaneWorld;

    use super::*;

    #[test]
    fn long_vectors_are_sorted_in_turns_and_equal_items_keep_their_order() {
        for count in [0, 1, AT_ONCE, AT_ONCE + 1, 5 * AT_ONCE + 7] {
            let mut random = fastrand::Rng::with_seed(count as u64);
            let items: Vec<(u32, usize)> =
                (0..count).map(|number| (random.u32(0..1000), number)).collect();
            let mut expected = items.clone();
            expected.sort_by_key(|(key, _)| *key);
            let world = LaneWorld::new();
            let (turns, ended) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(false)));
            let (counted, end) = (turns.clone(), ended.clone());
            world.lane.spawn(async move {
                while !end.get() {
                    counted.set(counted.get() + 1);
                    yield_now().await;
                }
            });
            let mut sorted = items;
            let sorted = world.block_on(async move {
                sort_by_key(&mut sorted, |(key, _)| *key).await;
                sorted
            });
            ended.set(true);
            assert!(sorted == expected, "{count}");
            assert!(turns.get() >= count / AT_ONCE * 2 * usize::from(count > AT_ONCE), "{count}");
        }
    }
}
