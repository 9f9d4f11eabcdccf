//! Range locks, which order the operations that reach the origin.
//!
//! Reads of the origin share a range; writes to it (around or through the cache, writeback,
//! discard) hold it exclusively. Overlapping ranges are granted in the order of arrival, so no task
//! starves. Writes that end in the log need no range: the index orders them.

use std::collections::VecDeque;
use std::ops::Range;

use forebay_core::sync::Mutex;
use forebay_lane::Notify;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    Shared,
    Exclusive,
}

struct HeldRange {
    number: u64,
    range: Range<u64>,
    access: Access,
}

#[derive(Default)]
struct RangeQueue {
    held: VecDeque<HeldRange>,
    next: u64,
}

/// The locked and awaited ranges of one volume, in bytes of the origin.
#[derive(Default)]
pub(crate) struct Ranges {
    queue: Mutex<RangeQueue>,
    released: Notify,
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
        self.granted(guard.number).then_some(guard)
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
        queue.held.push_back(HeldRange { number, range, access });
        RangeGuard { ranges: self, number }
    }

    async fn acquire(&self, range: Range<u64>, access: Access) -> RangeGuard<'_> {
        let guard = self.enqueue(range, access);
        loop {
            let released = self.released.listen();
            if self.granted(guard.number) {
                return guard;
            }
            released.await;
        }
    }

    /// Returns whether no earlier arrival conflicts.
    fn granted(&self, number: u64) -> bool {
        let queue = self.queue.lock();
        let Ok(place) = queue.held.binary_search_by_key(&number, |held| held.number) else {
            return false;
        };
        let own = &queue.held[place];
        queue.held.range(..place).all(|earlier| {
            let apart =
                earlier.range.end <= own.range.start || own.range.end <= earlier.range.start;
            apart || (earlier.access == Access::Shared && own.access == Access::Shared)
        })
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
        if let Ok(place) = queue.held.binary_search_by_key(&self.number, |held| held.number) {
            queue.held.remove(place);
        }
        let waiting = !queue.held.is_empty();
        drop(queue);
        if waiting {
            self.ranges.released.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::task::{Context, Poll, Waker};

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
