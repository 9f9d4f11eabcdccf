//! Range locks, which order the operations that reach the origin.
//!
//! Reads of the origin share a range; writes to it (around or through the cache, writeback,
//! discard) hold it exclusively. Overlapping ranges are granted in the order of arrival, so no task
//! starves. Writes that end in the log need no range: the index orders them.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::ops::Range;
use std::task::{Context, Poll, Waker};

use forebay_core::sync::Mutex;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    Shared,
    Exclusive,
}

struct HeldRange {
    number: u64,
    range: Range<u64>,
    access: Access,
    /// The task that waits for an earlier range.
    waiting: Option<Waker>,
}

impl HeldRange {
    /// Returns whether the later of the two has to wait for the earlier.
    fn conflicts(&self, other: &HeldRange) -> bool {
        let overlap = self.range.start < other.range.end && other.range.start < self.range.end;
        overlap && (self.access == Access::Exclusive || other.access == Access::Exclusive)
    }
}

#[derive(Default)]
struct RangeQueue {
    held: VecDeque<HeldRange>,
    next: u64,
}

impl RangeQueue {
    fn place(&self, number: u64) -> Option<usize> {
        self.held.binary_search_by_key(&number, |held| held.number).ok()
    }

    /// Returns whether no earlier arrival conflicts.
    fn granted(&self, place: usize) -> bool {
        let own = &self.held[place];
        !self.held.range(..place).any(|earlier| earlier.conflicts(own))
    }
}

/// The locked and awaited ranges of one volume, in bytes of the origin.
#[derive(Default)]
pub(crate) struct Ranges {
    queue: Mutex<RangeQueue>,
}

impl Ranges {
    /// Locks `range` shared: waits for earlier exclusive locks, and makes later ones wait until the
    /// guard is dropped.
    pub(crate) async fn shared(&self, range: Range<u64>) -> RangeGuard<'_> {
        self.acquire(range, Access::Shared).await
    }

    /// Locks `range` shared, unless an earlier task has locked it exclusively or waits to do so.
    pub(crate) fn try_shared(&self, range: Range<u64>) -> Option<RangeGuard<'_>> {
        let guard = self.enqueue(range, Access::Shared);
        let queue = self.queue.lock();
        let granted = queue.place(guard.number).is_some_and(|place| queue.granted(place));
        drop(queue);
        granted.then_some(guard)
    }

    /// Locks `range` exclusively: waits for all earlier holders, and makes later ones wait until
    /// the guard is dropped.
    pub(crate) async fn exclusive(&self, range: Range<u64>) -> RangeGuard<'_> {
        self.acquire(range, Access::Exclusive).await
    }

    fn enqueue(&self, range: Range<u64>, access: Access) -> RangeGuard<'_> {
        let mut queue = self.queue.lock();
        let number = queue.next;
        queue.next += 1;
        queue.held.push_back(HeldRange { number, range, access, waiting: None });
        RangeGuard { ranges: self, number }
    }

    async fn acquire(&self, range: Range<u64>, access: Access) -> RangeGuard<'_> {
        let guard = self.enqueue(range, access);
        poll_fn(|context| self.poll_granted(guard.number, context)).await;
        guard
    }

    fn poll_granted(&self, number: u64, context: &mut Context<'_>) -> Poll<()> {
        let mut queue = self.queue.lock();
        match queue.place(number) {
            Some(place) if !queue.granted(place) => {
                queue.held[place].waiting = Some(context.waker().clone());
                Poll::Pending
            }
            _ => Poll::Ready(()),
        }
    }
}

/// Holds a range until it is dropped; while waiting, its position in the order.
#[must_use = "the range is free again when this is dropped"]
pub(crate) struct RangeGuard<'a> {
    ranges: &'a Ranges,
    number: u64,
}

impl Drop for RangeGuard<'_> {
    fn drop(&mut self) {
        let mut queue = self.ranges.queue.lock();
        let Some(place) = queue.place(self.number) else { return };
        let Some(released) = queue.held.remove(place) else { return };
        // Only the tasks that waited for this range are woken: with many writes to one block, the
        // others would all look, and wait again.
        let later = queue.held.range_mut(place..).filter(|later| later.conflicts(&released));
        let woken: Vec<Waker> = later.filter_map(|later| later.waiting.take()).collect();
        drop(queue);
        woken.into_iter().for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::task::Wake;

    use super::*;

    fn poll<F: Future>(future: std::pin::Pin<&mut F>) -> Option<F::Output> {
        match future.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(output) => Some(output),
            Poll::Pending => None,
        }
    }

    #[test]
    fn the_whole_matrix_of_two_accesses() {
        for (first, second, overlap, together) in [
            (Access::Shared, Access::Shared, true, true),
            (Access::Shared, Access::Exclusive, true, false),
            (Access::Exclusive, Access::Shared, true, false),
            (Access::Exclusive, Access::Exclusive, true, false),
            (Access::Exclusive, Access::Exclusive, false, true),
        ] {
            let ranges = Ranges::default();
            let one = poll(std::pin::pin!(ranges.acquire(10..20, first))).expect("free");
            let other = if overlap { 19..30 } else { 20..30 };
            let mut waiting = std::pin::pin!(ranges.acquire(other, second));
            let granted = poll(waiting.as_mut());
            assert_eq!(granted.is_some(), together, "{first:?} {second:?} {overlap}");
            drop(one);
            assert!(granted.is_some() || poll(waiting.as_mut()).is_some());
        }
    }

    #[test]
    fn a_writer_that_waits_is_not_overtaken_by_readers() {
        let ranges = Ranges::default();
        let reader = poll(std::pin::pin!(ranges.shared(0..8))).expect("free");
        let mut writer = std::pin::pin!(ranges.exclusive(0..8));
        assert!(poll(writer.as_mut()).is_none());
        let mut late = std::pin::pin!(ranges.shared(0..8));
        assert!(poll(late.as_mut()).is_none());
        drop(reader);
        assert!(poll(late.as_mut()).is_none());
        let writer = poll(writer.as_mut()).expect("its turn");
        drop(writer);
        assert!(poll(late.as_mut()).is_some());
    }

    #[test]
    fn locking_without_waiting_succeeds_only_on_a_free_range() {
        let ranges = Ranges::default();
        let reader = poll(std::pin::pin!(ranges.shared(0..8))).expect("free");
        assert!(ranges.try_shared(0..8).is_some());
        {
            let mut writer = std::pin::pin!(ranges.exclusive(0..8));
            assert!(poll(writer.as_mut()).is_none());
            assert!(ranges.try_shared(4..12).is_none());
            assert!(ranges.try_shared(8..12).is_some());
        }
        drop(reader);
        assert!(ranges.try_shared(4..12).is_some());
        assert!(poll(std::pin::pin!(ranges.exclusive(0..16))).is_some());
    }

    struct Wakes(AtomicU32);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_release_wakes_the_tasks_that_waited_for_it() {
        let ranges = Ranges::default();
        let [left, right] =
            [0..8, 8..16].map(|range| poll(std::pin::pin!(ranges.exclusive(range))));
        let wakes = [Arc::new(Wakes(AtomicU32::new(0))), Arc::new(Wakes(AtomicU32::new(0)))];
        let wakers = wakes.clone().map(Waker::from);
        let mut on_left = std::pin::pin!(ranges.exclusive(0..8));
        let mut on_right = std::pin::pin!(ranges.exclusive(8..16));
        assert!(on_left.as_mut().poll(&mut Context::from_waker(&wakers[0])).is_pending());
        assert!(on_right.as_mut().poll(&mut Context::from_waker(&wakers[1])).is_pending());
        let woken = || wakes.each_ref().map(|wakes| wakes.0.load(Ordering::Relaxed));
        drop(left);
        assert_eq!(woken(), [1, 0]);
        assert!(poll(on_left.as_mut()).is_some());
        drop(right);
        assert_eq!(woken(), [1, 1]);
        assert!(poll(on_right.as_mut()).is_some());
    }

    #[test]
    fn an_abandoned_wait_blocks_no_other_lock() {
        let ranges = Ranges::default();
        let reader = poll(std::pin::pin!(ranges.shared(0..8))).expect("free");
        {
            let mut writer = std::pin::pin!(ranges.exclusive(0..8));
            assert!(poll(writer.as_mut()).is_none());
        }
        assert!(poll(std::pin::pin!(ranges.shared(0..8))).is_some());
        drop(reader);
    }
}
