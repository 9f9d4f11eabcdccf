//! The state of segments as recovery has found it.

use std::collections::VecDeque;
use std::ops::Range;

use forebay_core::sync::Mutex;
use forebay_core::sync::atomic::{AtomicU64, Ordering};
use forebay_core::{Generation, RecordNumber, SegmentId};
use forebay_lane::turns;

use super::{
    Counters, Live, LiveCounts, RecordStarts, SegmentLife, SegmentSnapshot, SegmentState, Segments,
    Tables,
};

impl Segments {
    /// Makes segments like [`Segments::new`], but none is free before [`Segments::restored`]. Other
    /// tasks of the lane run meanwhile.
    pub(crate) async fn in_turns(count: u32, lanes: usize, next_generation: Generation) -> Self {
        let all = count as usize;
        let tables = Tables {
            counters: turns::filled(all, |_| Counters::default()).await.into(),
            generations: turns::filled(all, |_| AtomicU64::new(0)).await.into(),
            live: LiveCounts::in_turns(count, lanes).await,
            buffers: turns::filled(all, |_| Mutex::new(None)).await.into(),
            lives: turns::filled(all, |_| SegmentLife::FREE).await,
            starts: RecordStarts::in_turns(count).await,
        };
        let segments = Self::of(tables, next_generation);
        segments.state.lock().free = VecDeque::with_capacity(all);
        segments
    }

    /// Restores the lives of segments, in the order in which they were opened; the others are free.
    pub fn restore_all(
        &self,
        lives: impl IntoIterator<Item = (SegmentId, SegmentSnapshot, RecordNumber)>,
    ) {
        self.restore(lives);
        self.state.lock().free.clear();
        self.restored(0..self.count());
    }

    /// Restores the lives of some segments in the order of their opening, after those restored
    /// before. [`Segments::restored`] must follow.
    pub(crate) fn restore(
        &self,
        lives: impl IntoIterator<Item = (SegmentId, SegmentSnapshot, RecordNumber)>,
    ) {
        let mut state = self.state.lock();
        for (segment, snapshot, last_record) in lives {
            state.opened += 1;
            let opened = state.opened;
            self.generations[segment.0 as usize].store(snapshot.generation.0, Ordering::Release);
            state.lives[segment.0 as usize] = SegmentLife {
                state: snapshot.state,
                generation: snapshot.generation,
                opened,
                on_probation: true,
                last_record,
                position: snapshot.position,
            };
        }
    }

    /// Ends the restoring of a range of segments: those that are not in use become free, after all
    /// that are free already.
    pub(crate) fn restored(&self, among: Range<u32>) {
        let mut state = self.state.lock();
        let state = &mut *state;
        let lives = state.lives.iter().enumerate().take(among.end as usize);
        let free =
            lives.skip(among.start as usize).filter(|(_, life)| life.state == SegmentState::Free);
        state.free.extend(free.map(|(index, _)| SegmentId(index as u32)));
    }

    /// Sets the counts of index entries of each segment, after recovery. All content counts as
    /// durable.
    pub fn set_live(&self, counts: &[Live]) {
        self.set_live_from(0, counts);
    }

    /// Like [`Segments::set_live`], of some segments.
    pub(crate) fn set_live_from(&self, first: usize, counts: &[Live]) {
        for (index, live) in (first..).zip(counts) {
            self.counters[index].durable.store(u32::MAX, Ordering::Relaxed);
            self.live.set(index, *live);
        }
    }

    /// Sets the number of held versions in some segments, after recovery.
    pub(crate) fn set_held(&self, first: usize, counts: &[u32]) {
        for (counters, held) in self.counters.iter().skip(first).zip(counts) {
            counters.held.store(*held, Ordering::Relaxed);
        }
        let with_held = counts.iter().filter(|held| **held > 0).count();
        self.with_held.fetch_add(with_held as u32, Ordering::Relaxed);
    }
}
