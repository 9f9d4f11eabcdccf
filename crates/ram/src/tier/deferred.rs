//! Deferred writes of a tier, as its lanes share them.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use forebay_core::{Nanos, SECTOR_SIZE};
use forebay_lane::Notify;
use parking_lot::Mutex;

use super::{Own, Tier};
use crate::block::{Piece, REGION_BYTES, Region};
use crate::counts::TierCounts;
use crate::options::Deferral;
use crate::shard::{Defer, Load, Take, Taker, Turn, WriteDownBatch};

/// Maximum number of regions in flight to the lower tier.
pub(crate) const MOST_ON_THEIR_WAY: usize = 24;

/// State of deferring in addition to that of the shards.
#[derive(Default)]
pub(crate) struct Deferring {
    how: Mutex<Option<Deferral>>,
    /// Whether writes are deferred; set without a lock, so the shards' own state is decisive.
    on: AtomicBool,
    /// Whether writes were ever deferred.
    ever: AtomicBool,
    closed: AtomicBool,
    ignores_flush: AtomicBool,
    /// Notified when data of any shard was written down, or when a request that replaced deferred
    /// data has ended. Each shard has its own event as well: see [`Tier::changed_in`].
    pub(crate) changed: Notify,
    /// Notified when the write-down task has unexpected work.
    pub(crate) work: Notify,
    /// The write-down task waits for the first deferred write.
    sleeps: AtomicBool,
    /// Number of writes that wait for space.
    waiting: AtomicU32,
    /// Regions being written down; `arrived` is notified when one finishes.
    on_their_way: AtomicUsize,
    arrived: Notify,
    /// When a client last needed the lower tier.
    used: AtomicU64,
    written_down: AtomicU64,
    urgent: AtomicU64,
    requests: AtomicU64,
    late: AtomicU64,
    failed: AtomicU64,
    /// Number of times that data became dirty again; such data may be older than all other dirty
    /// data.
    restored: AtomicU64,
    /// Number of writes that have waited for space; it provides their turns.
    waits: AtomicU64,
}

/// Blocks of a region with deferred data, as byte offsets of the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PinnedRange {
    pub(crate) start: u64,
    /// End of the first run of adjacent blocks.
    pub(crate) end: u64,
    /// End of the last block in the region.
    pub(crate) hull_end: u64,
}

/// A write that waits for space in the shard of a region.
pub(crate) struct Waiter<'a> {
    tier: &'a Tier,
    region: Region,
    turn: Turn,
}

impl Waiter<'_> {
    /// Returns whether the write waits for the space that the byte at `offset` needs.
    pub(crate) fn waits_at(&self, offset: u64) -> bool {
        self.region == Region(offset / REGION_BYTES)
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        self.tier.shard_of(self.region).leave_queue(self.turn);
        self.tier.deferring.waiting.fetch_sub(1, Ordering::Relaxed);
        // There may be space for the next waiter.
        self.tier.own(self.region).1.notify_all();
    }
}

/// The right to write one region down.
pub(crate) struct Permit<'a>(&'a Deferring);

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        self.0.on_their_way.fetch_sub(1, Ordering::Relaxed);
        self.0.arrived.notify_all();
    }
}

impl Deferring {
    /// Waits until another region may be written down. The number is limited, however many clients
    /// flush at the same time, because each region takes memory.
    pub(crate) async fn permit(&self) -> Permit<'_> {
        loop {
            let arrived = self.arrived.listen();
            let more = |count: usize| (count < MOST_ON_THEIR_WAY).then_some(count + 1);
            let way = &self.on_their_way;
            if way.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok() {
                return Permit(self);
            }
            arrived.await;
        }
    }

    /// Returns whether writes were ever deferred.
    #[inline]
    pub(super) fn ever(&self) -> bool {
        self.ever.load(Ordering::Relaxed)
    }

    pub(super) fn close(&self) {
        self.on.store(false, Ordering::Relaxed);
        self.closed.store(true, Ordering::SeqCst);
        self.work.notify_all();
    }

    /// Returns whether the tier was closed.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// Returns whether flushes and FUA are ignored.
    pub(crate) fn ignores_flush(&self) -> bool {
        self.ignores_flush.load(Ordering::Relaxed)
    }

    /// Returns whether writes wait for space.
    pub(crate) fn has_waiting(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// Makes the first deferred write notify [`Deferring::work`]. Must be called before the
    /// decision to wait for that.
    pub(crate) fn expect_first(&self) {
        self.sleeps.store(true, Ordering::SeqCst);
    }

    /// Records that a client needs the lower tier now.
    pub(crate) fn note_use(&self, now: impl FnOnce() -> Nanos) {
        if self.ever() {
            self.used.store(now().0, Ordering::Relaxed);
        }
    }

    /// Returns when a client last needed the lower tier.
    pub(crate) fn last_use(&self) -> Nanos {
        Nanos(self.used.load(Ordering::Relaxed))
    }

    /// Returns the bytes that were written down.
    pub(crate) fn written_down(&self) -> u64 {
        self.written_down.load(Ordering::Relaxed)
    }

    /// Returns how often data became dirty again.
    pub(crate) fn restored(&self) -> u64 {
        self.restored.load(Ordering::SeqCst)
    }

    pub(super) fn add_to(&self, sum: &mut TierCounts) {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        sum.written_down_bytes = count(&self.written_down);
        sum.urgent_bytes = count(&self.urgent);
        sum.write_downs = count(&self.requests);
        sum.late_write_downs = count(&self.late);
        sum.failed_write_downs = count(&self.failed);
        sum.waits = count(&self.waits);
    }
}

impl Tier {
    /// Starts, changes or stops the deferring of writes. Data that is deferred already is written
    /// down as before, or at the next flush.
    pub fn defer_writes(&self, how: Option<Deferral>) {
        let own = &self.deferring;
        let mut current = own.how.lock();
        *current = how;
        let share = how.map_or(0, |how| how.share);
        own.ignores_flush.store(how.is_some_and(|how| how.ignore_flush), Ordering::Relaxed);
        own.ever.fetch_or(how.is_some(), Ordering::SeqCst);
        own.on.store(how.is_some(), Ordering::Relaxed);
        for shard in &self.shards {
            shard.0.lock().set_deferring(share);
        }
        drop(current);
        own.work.notify_all();
        self.note_change_everywhere();
    }

    /// Returns the event of a region's shard: data was written down, or a request that replaced
    /// deferred data has ended.
    pub(crate) fn changed_in(&self, region: Region) -> &Notify {
        &self.own(region).1
    }

    /// Notifies waiters that data of a region was written down or replaced.
    pub(super) fn note_change(&self, region: Region) {
        self.own(region).1.notify_all();
        self.deferring.changed.notify_all();
    }

    /// Like [`Tier::note_change`], of all regions.
    pub(super) fn note_change_everywhere(&self) {
        self.shards.iter().for_each(|own| own.1.notify_all());
        self.deferring.changed.notify_all();
    }

    /// Returns how writes are deferred; `None` if they are not.
    pub fn deferral(&self) -> Option<Deferral> {
        *self.deferring.how.lock()
    }

    /// Returns whether RAM has data that the lower tier lacks.
    pub fn has_deferred(&self) -> bool {
        self.deferring.ever.load(Ordering::SeqCst)
            && self.shards.iter().any(|shard| shard.0.lock().load().pinned > 0)
    }

    /// Returns the bytes that RAM has and the lower tier lacks.
    pub fn deferred_bytes(&self) -> u64 {
        let load = self.load();
        load.bytes + load.writing
    }

    /// Returns whether writes are probably deferred.
    #[inline]
    pub(crate) fn is_deferring(&self) -> bool {
        self.deferring.on.load(Ordering::Relaxed)
    }

    pub(crate) fn now(&self) -> Nanos {
        self.clock.now()
    }

    /// Returns the load of all shards.
    pub(crate) fn load(&self) -> Load {
        let mut sum = Load::default();
        for shard in &self.shards {
            let load = shard.0.lock().load();
            sum.bytes += load.bytes;
            sum.writing += load.writing;
            sum.pinned += load.pinned;
            sum.fill = sum.fill.max(load.fill);
        }
        sum
    }

    /// Returns the regions with deferred data in the order of addresses, and the time at which
    /// their oldest dirty data was acknowledged; `None` if all of it is being written down.
    /// Includes only shards with at least `fill` of their space used.
    pub(crate) fn regions(&self, fill: f64) -> Vec<(Region, Option<Nanos>)> {
        let mut regions = Vec::new();
        for shard in &self.shards {
            let shard = shard.0.lock();
            if shard.load().fill >= fill {
                regions.extend(shard.regions());
            }
        }
        regions.sort_unstable_by_key(|(region, _)| *region);
        regions
    }

    /// Returns the time at which the oldest dirty data was acknowledged. Visits all regions.
    pub(crate) fn oldest(&self) -> Option<Nanos> {
        self.shards.iter().filter_map(|shard| shard.0.lock().oldest()).min()
    }

    /// Queues a write for the space that the byte at `offset` needs, until the result is dropped.
    pub(crate) fn wait_at(&self, offset: u64) -> Waiter<'_> {
        let (own, region) = (&self.deferring, Region(offset / REGION_BYTES));
        let turn = Turn(own.waits.fetch_add(1, Ordering::Relaxed));
        self.shard_of(region).queue(turn);
        own.waiting.fetch_add(1, Ordering::Relaxed);
        own.work.notify_all();
        Waiter { tier: self, region, turn }
    }

    /// Returns whether the last write-down in the shard of a region made no space.
    pub(crate) fn is_failing(&self, region: Region) -> bool {
        self.shard_of(region).is_failing()
    }

    /// Returns a region whose write-down makes space for waiting writes: the next one from `near`
    /// on, cyclically, that is not `left_out`. Returns `None` if no write waits, or if enough
    /// write-downs are in flight.
    pub(crate) fn awaited(
        &self,
        near: Region,
        left_out: impl Fn(Region) -> bool,
    ) -> Option<Region> {
        if !self.deferring.has_waiting() {
            return None;
        }
        let awaited = |own: &Own| own.0.lock().awaited(near, &left_out);
        let regions = self.shards.iter().filter_map(awaited);
        regions.min_by_key(|region| region.0.wrapping_sub(near.0))
    }

    /// Writes a part of a request to RAM, to be written down later. `waiter`: the position of the
    /// write in the queue, if it has waited for space.
    pub(crate) fn defer(&self, piece: &Piece, data: &[u8], waiter: Option<&Waiter<'_>>) -> Defer {
        let turn = waiter.map(|waiter| waiter.turn);
        let deferred = self.shard(piece.block).defer(piece.block, &piece.sectors, data, turn);
        if deferred == (Defer::Done { wakes: true }) {
            self.wake_task();
        }
        deferred
    }

    /// Writes a request to RAM, to be written down later. Returns `false` if it was not deferred;
    /// nothing has changed then.
    pub(crate) fn defer_whole(&self, offset: u64, data: &[u8]) -> bool {
        let end = offset + data.len() as u64;
        let region = Region(offset / REGION_BYTES);
        if end > (region.0 + 1) * REGION_BYTES {
            return false;
        }
        let mut wakes = false;
        let mut shard = self.shard_of(region);
        let pieces = || self.pieces(offset, data.len() as u64);
        if !shard.may_defer(pieces().map(|piece| piece.block)) {
            return false;
        }
        for piece in pieces() {
            let deferred = shard.defer(piece.block, &piece.sectors, &data[piece.bytes], None);
            debug_assert!(matches!(deferred, Defer::Done { .. }), "there was room for all");
            wakes |= deferred == (Defer::Done { wakes: true });
        }
        drop(shard);
        if wakes {
            self.wake_task();
        }
        true
    }

    pub(super) fn wake_task(&self) {
        if self.deferring.sleeps.swap(false, Ordering::SeqCst) {
            self.deferring.work.notify_all();
        }
    }

    /// Records that data became dirty again because a write-down, or a request that should replace
    /// it, has failed.
    pub(super) fn note_restored(&self) {
        self.deferring.restored.fetch_add(1, Ordering::SeqCst);
        self.wake_task();
    }

    /// Returns whether RAM has data of this range that the lower tier lacks.
    pub(crate) fn is_pinned(&self, offset: u64, len: u64) -> bool {
        self.deferring.ever()
            && self.pieces(offset, len).any(|piece| self.shard(piece.block).is_pinned(piece.block))
    }

    /// Copies the data of this range that RAM has and the lower tier lacks: offsets from the start
    /// of the range, and the bytes. Returns `false` if a part of it is being replaced; a read must
    /// wait until that has ended.
    pub(crate) fn deferred_in(
        &self,
        offset: u64,
        len: u64,
        copies: &mut Vec<(usize, Vec<u8>)>,
    ) -> bool {
        !self.deferring.ever()
            || self.pieces(offset, len).all(|piece| {
                let (start, shard) = (piece.bytes.start, self.shard(piece.block));
                shard.copy_deferred(piece.block, &piece.sectors, |sector, bytes| {
                    copies.push((start + sector * SECTOR_SIZE as usize, bytes.to_vec()));
                })
            })
    }

    /// Returns the first blocks within this range with data in RAM that the lower tier lacks.
    pub(crate) fn first_pinned(&self, offset: u64, len: u64) -> Option<PinnedRange> {
        if len == 0 || !self.has_deferred() {
            return None;
        }
        let end = offset.saturating_add(len);
        let (mut first, last) = (Region(offset / REGION_BYTES), Region((end - 1) / REGION_BYTES));
        while first <= last {
            let regions = self.shards.iter();
            let regions = regions.filter_map(|shard| shard.0.lock().first_region(first..=last));
            let region = regions.min()?;
            let start = (region.0 * REGION_BYTES).max(offset);
            let until = ((region.0 + 1) * REGION_BYTES).min(end);
            let shard = self.shard_of(region);
            let mut pinned = self
                .pieces(start, until - start)
                .filter(|piece| shard.is_pinned(piece.block))
                .map(|piece| start + piece.bytes.start as u64..start + piece.bytes.end as u64);
            if let Some(found) = pinned.next() {
                let mut found =
                    PinnedRange { start: found.start, end: found.end, hull_end: found.end };
                for next in pinned {
                    if found.end == next.start {
                        found.end = next.end;
                    }
                    found.hull_end = next.end;
                }
                return Some(found);
            }
            first = Region(region.0 + 1);
        }
        None
    }

    /// Returns a new taker for deferred data of a region.
    pub(crate) fn taker(&self, region: Region) -> Taker {
        self.shard_of(region).taker()
    }

    /// Takes the deferred data of a region's blocks that touch `within`, to be written down.
    pub(crate) fn take(&self, region: Region, within: &Range<u64>, taker: &mut Taker) -> Take {
        self.shard_of(region).take(region, within, taker)
    }

    /// Ends a write-down. The lower tier has the data of all blocks except those that touch
    /// `failed`.
    pub(crate) fn settle(&self, taken: &WriteDownBatch, failed: &[Range<u64>], urgent: bool) {
        self.shard_of(taken.region).settle(taken, failed);
        let (own, done) = (&self.deferring, failed.is_empty());
        let add = |counter: &AtomicU64, count| counter.fetch_add(count, Ordering::Relaxed);
        let requests = taken.requests;
        if done {
            add(&own.requests, requests);
            add(&own.written_down, taken.bytes);
            add(&own.urgent, if urgent { taken.bytes } else { 0 });
            // Without an age limit nothing is late.
            let limit = self.deferral().map_or(Duration::MAX, |how| how.limit());
            let late = self.now().since(taken.since) > limit;
            add(&own.late, if late { requests } else { 0 });
        } else {
            add(&own.failed, requests);
            self.note_restored();
        }
        self.note_change(taken.region);
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    #[test]
    fn no_more_regions_than_memory_is_for_are_on_their_way() {
        let (deferring, mut context) = (Deferring::default(), Context::from_waker(Waker::noop()));
        let mut permits = Vec::new();
        for _ in 0..MOST_ON_THEIR_WAY {
            match pin!(deferring.permit()).poll(&mut context) {
                Poll::Ready(permit) => permits.push(permit),
                Poll::Pending => panic!("after {}", permits.len()),
            }
        }
        let mut next = pin!(deferring.permit());
        assert!(next.as_mut().poll(&mut context).is_pending());
        permits.pop();
        assert!(next.poll(&mut context).is_ready());
    }
}
