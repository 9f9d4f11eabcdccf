//! Looks at blocks that are over before their lane does anything else, and what else each lane
//! notes where no other lane writes.
//!
//! Whoever reads a block keeps its segment from being used again. A pin does, which is counted in
//! the segment: lanes that read from the same segments write to the same memory, and wait for each
//! other's caches. A block that is read at once needs less. A lane has at most one of them at a
//! time, so the lane notes which segment it is in, and whoever frees segments looks at what all
//! lanes have noted.

use forebay_core::SegmentId;
use forebay_core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// On cache lines of its own: written by whoever has claimed it, and by nobody else.
#[derive(Default)]
#[repr(align(128))]
struct Note {
    claimed: AtomicBool,
    /// The number of the segment that is looked at plus one, or 0.
    glance: AtomicU32,
    read_bytes: AtomicU64,
}

/// The notes of all lanes.
pub(crate) struct Notes(Box<[Note]>);

/// One's own note. Whoever has none, as there are not enough, uses pins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoteId(usize);

impl Notes {
    /// For `lanes` lanes, each of which may have a second way to the store for its own upkeep.
    pub(crate) fn new(lanes: usize) -> Self {
        Notes((0..2 * lanes.max(1)).map(|_| Note::default()).collect())
    }

    fn get(&self, id: Option<NoteId>) -> Option<&Note> {
        self.0.get(id?.0)
    }

    /// Takes a note for one thread, until it gives it back.
    pub(crate) fn claim(&self) -> Option<NoteId> {
        let free = self.0.iter().position(|note| !note.claimed.swap(true, Ordering::SeqCst));
        free.map(NoteId)
    }

    /// Gives a note back.
    pub(crate) fn give_back(&self, id: Option<NoteId>) {
        if let Some(note) = self.get(id) {
            note.glance.store(0, Ordering::Release);
            note.claimed.store(false, Ordering::SeqCst);
        }
    }

    /// Begins a glance at a segment, under the lock of the index shard that an entry pointing there
    /// was found in. `false`: it takes a pin.
    ///
    /// Whoever sees later that no entry points to the segment has had that lock after this.
    #[inline]
    pub(crate) fn begin(&self, id: Option<NoteId>, segment: SegmentId) -> bool {
        match self.get(id) {
            // Only the owner writes it.
            Some(note) if note.glance.load(Ordering::Relaxed) == 0 => {
                // Who sees this glance and not the end of the one before must see what that one
                // has read as read.
                note.glance.store(segment.0.wrapping_add(1), Ordering::Release);
                true
            }
            _ => false,
        }
    }

    /// Ends one's glance.
    #[inline]
    pub(crate) fn end(&self, id: NoteId) {
        if let Some(note) = self.get(Some(id)) {
            note.glance.store(0, Ordering::Release);
        }
    }

    /// Whether somebody looks at a segment to which no entry points any more: so there will be no
    /// others.
    pub(crate) fn look_at(&self, segment: SegmentId) -> bool {
        let wanted = segment.0.wrapping_add(1);
        self.0.iter().any(|note| note.glance.load(Ordering::SeqCst) == wanted)
    }

    /// Counts bytes that were read from the device. `false`: somebody without a note has to do that
    /// elsewhere.
    #[inline]
    pub(crate) fn count_read(&self, id: Option<NoteId>, bytes: u64) -> bool {
        let Some(note) = self.get(id) else { return false };
        // No other thread writes it, so no locked instruction is needed.
        let before = note.read_bytes.load(Ordering::Relaxed);
        note.read_bytes.store(before.wrapping_add(bytes), Ordering::Relaxed);
        true
    }

    /// Bytes that were counted.
    pub(crate) fn read_bytes(&self) -> u64 {
        self.0.iter().map(|note| note.read_bytes.load(Ordering::Relaxed)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_has_one_owner_and_one_glance() {
        let notes = Notes::new(1);
        let (first, second) = (notes.claim(), notes.claim());
        assert!(first.is_some() && second.is_some() && first != second);
        assert_eq!(notes.claim(), None, "there are two");
        let none = notes.claim();

        assert!(!notes.begin(none, SegmentId(3)), "needs a pin");
        assert!(notes.begin(first, SegmentId(3)));
        assert!(!notes.begin(first, SegmentId(4)), "one at a time");
        assert!(notes.begin(second, SegmentId(0)));
        let seen = |notes: &Notes| [0, 3, 4].map(|number| notes.look_at(SegmentId(number)));
        assert_eq!(seen(&notes), [true, true, false]);
        notes.end(first.expect("claimed"));
        assert_eq!(seen(&notes), [true, false, false]);
        assert!(notes.begin(first, SegmentId(4)));
        assert_eq!(seen(&notes), [true, false, true]);

        notes.give_back(second);
        notes.give_back(none);
        assert_eq!(seen(&notes), [false, false, true]);
        assert_eq!(notes.claim(), second);
    }

    #[test]
    fn what_is_read_is_counted_once() {
        let notes = Notes::new(1);
        let own = [notes.claim(), notes.claim()];
        assert!(notes.count_read(own[0], 5) && notes.count_read(own[1], 7));
        assert!(!notes.count_read(None, 100));
        notes.give_back(own[0]);
        assert!(notes.count_read(notes.claim(), 1), "counts on");
        assert_eq!(notes.read_bytes(), 13);
    }
}
