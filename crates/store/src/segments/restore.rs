//! The state of segments as recovery has found it.

use forebay_core::sync::atomic::Ordering;
use forebay_core::{RecordNumber, SegmentId};

use super::{Life, Live, SegmentSnapshot, SegmentState, Segments};

impl Segments {
    /// Restores the lives of segments, in the order in which they were opened; the others are free.
    pub fn restore_all(
        &self,
        lives: impl IntoIterator<Item = (SegmentId, SegmentSnapshot, RecordNumber)>,
    ) {
        self.restore(lives);
        self.restored();
    }

    /// Restores the lives of some segments, in the order in which they were opened and after those that were restored
    /// before. [`Segments::restored`] follows.
    pub(crate) fn restore(
        &self,
        lives: impl IntoIterator<Item = (SegmentId, SegmentSnapshot, RecordNumber)>,
    ) {
        let mut state = self.state.lock();
        for (segment, snapshot, last_record) in lives {
            state.opened += 1;
            let opened = state.opened;
            self.generations[segment.0 as usize].store(snapshot.generation.0, Ordering::Release);
            state.lives[segment.0 as usize] = Life {
                state: snapshot.state,
                generation: snapshot.generation,
                opened,
                on_probation: true,
                last_record,
                position: snapshot.position,
            };
        }
    }

    /// All lives are restored: the segments that are not in use are free.
    pub(crate) fn restored(&self) {
        let mut state = self.state.lock();
        let free = state
            .lives
            .iter()
            .enumerate()
            .filter(|(_, life)| life.state == SegmentState::Free)
            .map(|(index, _)| SegmentId(index as u32))
            .collect();
        state.free = free;
    }

    /// Sets the counts of index entries of each segment, after recovery. All content counts as
    /// durable.
    pub fn set_live(&self, counts: &[Live]) {
        for (index, live) in counts.iter().enumerate() {
            self.counters[index].durable.store(u32::MAX, Ordering::Relaxed);
            self.live.set(index, *live);
        }
    }

    /// Sets the number of held versions in each segment, after recovery.
    pub(crate) fn set_held(&self, counts: &[u32]) {
        for (counters, held) in self.counters.iter().zip(counts) {
            counters.held.store(*held, Ordering::Relaxed);
        }
        let with_held = counts.iter().filter(|held| **held > 0).count();
        self.with_held.store(with_held as u32, Ordering::Relaxed);
    }
}
