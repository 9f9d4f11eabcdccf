//! Hazard slots: each lane publishes the segment that it is reading from.
//!
//! A segment must not be reused while it is being read. A pin protects it by a count in the
//! segment, so lanes that read the same segment contend for the cache line of the count. A
//! synchronous read, which ends before its lane runs other work, needs no count: a lane has at most
//! one such read, publishes its segment in a slot of its own, and the code that frees segments
//! checks all slots (hazard pointers, Michael 2004). A slot also counts the bytes that its owner
//! has read.

use forebay_core::SegmentId;
use forebay_core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
use forebay_core::sync::fence_between_seq_cst;

/// One slot, on its own cache lines. Only its owner writes it.
#[derive(Default)]
#[repr(align(128))]
struct HazardSlot {
    claimed: AtomicBool,
    /// The number of the segment that is being read plus one, or 0.
    segment: AtomicU32,
    read_bytes: AtomicU64,
}

/// The slots of all lanes.
pub(crate) struct HazardSlots(Box<[HazardSlot]>);

/// A claimed slot. A reader without a slot, because all are claimed, uses pins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HazardId(usize);

impl HazardSlots {
    /// Makes slots for `lanes` lanes: two each, as a lane may open the store a second time for its
    /// upkeep.
    pub(crate) fn new(lanes: usize) -> Self {
        HazardSlots((0..2 * lanes.max(1)).map(|_| HazardSlot::default()).collect())
    }

    fn get(&self, id: Option<HazardId>) -> Option<&HazardSlot> {
        self.0.get(id?.0)
    }

    /// Claims a slot for one thread until it is released. Returns `None` if all are claimed.
    pub(crate) fn claim(&self) -> Option<HazardId> {
        let free = self.0.iter().position(|slot| !slot.claimed.swap(true, Ordering::SeqCst));
        free.map(HazardId)
    }

    /// Releases a slot, so that other threads can claim it.
    pub(crate) fn release(&self, id: Option<HazardId>) {
        if let Some(slot) = self.get(id) {
            slot.segment.store(0, Ordering::Release);
            slot.claimed.store(false, Ordering::SeqCst);
        }
    }

    /// Publishes that the segment of an index entry is being read. Returns `false` if the reader
    /// needs a pin instead.
    ///
    /// A segment is freed only when no entry points to it, so the entry must exist after the
    /// segment was published. Either the caller holds the lock of the entry's shard: the thread
    /// that removes the entry takes the lock later, and sees the slot. Or the caller verifies
    /// afterwards that the shard has not changed: see [`HazardSlots::is_read`].
    #[inline]
    pub(crate) fn begin(&self, id: Option<HazardId>, segment: SegmentId) -> bool {
        match self.get(id) {
            // Only the owner writes the slot.
            Some(slot) if slot.segment.load(Ordering::Relaxed) == 0 => {
                // Release: a thread that sees this hazard also sees that the previous read has
                // ended. SeqCst: the slot is written before the shard's version is read again.
                slot.segment.swap(segment.0.wrapping_add(1), Ordering::SeqCst);
                fence_between_seq_cst();
                true
            }
            _ => false,
        }
    }

    /// Ends the read.
    #[inline]
    pub(crate) fn end(&self, id: HazardId) {
        if let Some(slot) = self.get(Some(id)) {
            slot.segment.store(0, Ordering::Release);
        }
    }

    /// Returns whether a segment is being read. If no index entry points to the segment, `false` is
    /// final: a look-up may still publish the segment, but then finds the entry removed and does
    /// not read.
    pub(crate) fn is_read(&self, segment: SegmentId) -> bool {
        // Pairs with the exchange in `begin`: either a look-up without the lock sees the shard's
        // new version, or this thread sees its slot.
        fence(Ordering::SeqCst);
        let wanted = segment.0.wrapping_add(1);
        self.0.iter().any(|slot| slot.segment.load(Ordering::SeqCst) == wanted)
    }

    /// Counts bytes read from the device. Returns `false` if the reader has no slot and must count
    /// them elsewhere.
    #[inline]
    pub(crate) fn count_read(&self, id: Option<HazardId>, bytes: u64) -> bool {
        let Some(slot) = self.get(id) else { return false };
        // Only the owner writes the count, so no atomic read-modify-write is needed.
        let before = slot.read_bytes.load(Ordering::Relaxed);
        slot.read_bytes.store(before.wrapping_add(bytes), Ordering::Relaxed);
        true
    }

    /// Returns the bytes counted by all slots.
    pub(crate) fn read_bytes(&self) -> u64 {
        self.0.iter().map(|slot| slot.read_bytes.load(Ordering::Relaxed)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_has_one_owner_and_one_segment() {
        let slots = HazardSlots::new(1);
        let (first, second) = (slots.claim(), slots.claim());
        assert!(first.is_some() && second.is_some() && first != second);
        assert_eq!(slots.claim(), None, "there are two");
        let none = slots.claim();

        assert!(!slots.begin(none, SegmentId(3)), "needs a pin");
        assert!(slots.begin(first, SegmentId(3)));
        assert!(!slots.begin(first, SegmentId(4)), "one at a time");
        assert!(slots.begin(second, SegmentId(0)));
        let seen = |slots: &HazardSlots| [0, 3, 4].map(|number| slots.is_read(SegmentId(number)));
        assert_eq!(seen(&slots), [true, true, false]);
        slots.end(first.expect("claimed"));
        assert_eq!(seen(&slots), [true, false, false]);
        assert!(slots.begin(first, SegmentId(4)));
        assert_eq!(seen(&slots), [true, false, true]);

        slots.release(second);
        slots.release(none);
        assert_eq!(seen(&slots), [false, false, true]);
        assert_eq!(slots.claim(), second);
    }

    #[test]
    fn bytes_read_are_counted_once() {
        let slots = HazardSlots::new(1);
        let own = [slots.claim(), slots.claim()];
        assert!(slots.count_read(own[0], 5) && slots.count_read(own[1], 7));
        assert!(!slots.count_read(None, 100));
        slots.release(own[0]);
        assert!(slots.count_read(slots.claim(), 1), "counts on");
        assert_eq!(slots.read_bytes(), 13);
    }
}
