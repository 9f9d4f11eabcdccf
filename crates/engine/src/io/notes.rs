//! Notes in the daemon's ledger of the places where a volume may be dirty.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use forebay_core::OriginBlock;
use forebay_lane::yield_now;
use forebay_store::planted::{self, PlantedBug};
use forebay_store::{Entry, StoreError};

use crate::error::LedgerError;
use crate::lane::LaneVolume;
use crate::state::dirty_set::DirtySet;
use crate::state::intent::{WORTH_SHRINKING, count, dirty_regions};
use crate::state::ledger::{self, Note, joined};
use crate::state::volume::Volume;
use crate::state::volume::VolumeState;

/// Maximum number of ranges in the note of a volume that stops.
const MOST_RANGES: usize = 1 << 14;

/// Maximum number of dirty blocks for which ranges are determined at a stop: with more, that would
/// take longer than the rest of the stop.
const MOST_BLOCKS: u64 = 1 << 20;

/// Blocks that are looked up before other tasks of the lane run.
const LOOK_UPS_AT_ONCE: u64 = 4096;

impl Volume {
    /// Converts regions to byte ranges of the volume.
    fn region_ranges(&self, regions: &[u64]) -> Vec<Range<u64>> {
        let all = (0..self.dirty.regions()).filter(|at| regions[at / 64] >> (at % 64) & 1 == 1);
        joined(all.map(|region| {
            let blocks = self.dirty.blocks_of(region);
            let edge = |block: u64| self.block.bytes().saturating_mul(block);
            let byte = |block| edge(block).saturating_sub(self.alignment()).min(self.size());
            byte(blocks.start)..byte(blocks.end)
        }))
    }

    /// Returns the noted dirty byte ranges of the volume if its cache device has failed or hangs
    /// and the note has been written; some of them may have been written back since.
    pub fn noted_ranges(&self) -> Option<Vec<Range<u64>>> {
        let noted = self.note.dirty.lock().clone()?;
        Some(self.ranges_of(&noted))
    }

    /// Converts a set of blocks to byte ranges, neighbours joined.
    fn ranges_of(&self, blocks: &DirtySet) -> Vec<Range<u64>> {
        blocks.ranges().map(|range| self.range_of(range)).collect()
    }

    /// Converts blocks to bytes of the volume.
    fn range_of(&self, blocks: Range<u64>) -> Range<u64> {
        let last = self.block_range(OriginBlock(blocks.end - 1));
        self.block_range(OriginBlock(blocks.start)).start..last.end
    }
}

/// Why a commit failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CommitError {
    /// The log is not durable.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The note could not be written.
    #[error(transparent)]
    Note(#[from] LedgerError),
}

/// Keeps a volume's note up to date.
#[derive(Clone, Copy)]
pub(crate) struct NoteKeeper<'a>(pub(crate) &'a LaneVolume);

impl NoteKeeper<'_> {
    /// Adds every region in which a block has become dirty to the note. Called before data is
    /// reported durable. Logs a note that cannot be written, or is not durable within a second. No
    /// data is at risk then; but if the cache device is lost, the report of the loss lacks these
    /// regions.
    pub(crate) async fn note_regions(self) {
        let intent = &self.0.volume.intent;
        if planted::has(PlantedBug::NotesForgotten) {
            return;
        }
        if !intent.is_wanted()
            || self.0.volume.note.distrusts.load(Ordering::Relaxed)
            || intent.is_late()
        {
            return;
        }
        let turn = ledger::in_time(self.0.lane(), self.0.volume.note.writing.enter()).await;
        let Some(_turn) = turn.filter(|_| !intent.is_late()) else { return };
        let wanted: Vec<u64> =
            intent.wanted.iter().map(|word| word.swap(0, Ordering::SeqCst)).collect();
        // An earlier holder of the gate may have written these regions.
        if wanted.iter().any(|word| *word != 0) {
            let mut regions = intent.filed.lock().0.clone();
            regions.iter_mut().zip(&wanted).for_each(|(word, wanted)| *word |= wanted);
            if !self.file(&regions).await {
                for (word, wanted) in intent.wanted.iter().zip(&wanted) {
                    word.fetch_or(*wanted, Ordering::SeqCst);
                }
                return;
            }
            for (noted, wanted) in intent.noted.iter().zip(&wanted) {
                noted.fetch_or(*wanted, Ordering::SeqCst);
            }
        }
        // Only after the note is durable, because until then every other flush must wait for the
        // gate.
        intent.all_noted();
    }

    fn note_of_regions(self, regions: &[u64]) -> Note {
        Note {
            cache: self.0.cache.store.uuid(),
            distrusted: false,
            exact: false,
            dirty: self.0.volume.region_ranges(regions),
        }
    }

    /// Returns the note that replaces a distrusting one: the regions that may be dirty.
    pub(crate) fn region_note(self) -> Note {
        let mut regions = self.0.volume.intent.filed.lock().0.clone();
        let dirty = dirty_regions(&self.0.volume.dirty);
        regions.iter_mut().zip(dirty).for_each(|(word, dirty)| *word |= dirty);
        self.note_of_regions(&regions)
    }

    /// Writes a note of these regions. Called with the note's gate held. Returns `false` if the
    /// note does not contain them.
    async fn file(self, regions: &[u64]) -> bool {
        let Some(ledger) = self.0.cache.ledger() else { return false };
        if self.0.volume.note.distrusts.load(Ordering::Relaxed) {
            // The note has begun to distrust the cache device since the caller checked, and must
            // continue to do so (invariants 5, 6 and 9).
            return false;
        }
        let note = self.note_of_regions(regions);
        let (lane, late) = (self.0.lane(), &self.0.volume.intent.late);
        match ledger::write_in_time(lane, &*ledger, &self.0.volume.name, note, late).await {
            Ok(()) => {
                self.0.volume.intent.filed.lock().0 = regions.to_vec();
                true
            }
            Err(error) => {
                tracing::warn!(%error, volume = self.0.volume.name, "the dirty blocks cannot be noted in the ledger");
                false
            }
        }
    }

    /// Removes regions from the note that have had no dirty block for a while, in two steps, one
    /// per call. The first step makes writes request the regions without dirty blocks again. The
    /// second step drops those that still have none: a write that saw the old bit has counted its
    /// block by then.
    pub(crate) async fn shorten_note(self) {
        let intent = &self.0.volume.intent;
        if !self.0.cache.store.is_loaded() {
            return;
        }
        let dirty = dirty_regions(&self.0.volume.dirty);
        let (filed, begun) = intent.filed.lock().clone();
        if begun {
            let _turn = self.0.volume.note.writing.enter().await;
            let mut regions = dirty;
            for (at, word) in regions.iter_mut().enumerate() {
                *word |= intent.noted[at].fetch_or(*word, Ordering::SeqCst);
            }
            self.file(&regions).await;
            intent.filed.lock().1 = false;
        } else if count(&filed) > 2 * count(&dirty) + WORTH_SHRINKING {
            for (noted, dirty) in intent.noted.iter().zip(&dirty) {
                noted.fetch_and(*dirty, Ordering::SeqCst);
            }
            intent.filed.lock().1 = true;
        }
    }

    /// Returns the dirty ranges of the volume, unless there are too many of them or of dirty
    /// blocks.
    async fn exact_ranges(self) -> Option<Vec<Range<u64>>> {
        let volume = &self.0.volume;
        if volume.dirty_blocks() > MOST_BLOCKS {
            return None;
        }
        let blocks = self.all_dirty().await;
        let ranges = blocks.ranges().take(MOST_RANGES + 1).map(|range| volume.range_of(range));
        let dirty: Vec<Range<u64>> = ranges.collect();
        (dirty.len() <= MOST_RANGES).then_some(dirty)
    }

    /// Writes the dirty blocks of a stopping volume to its note: exactly, unless they are too many
    /// or in too many ranges.
    pub(crate) async fn note_the_end(self) {
        let volume = &self.0.volume;
        let Some(ledger) = self.0.cache.ledger() else { return };
        if !self.0.cache.store.is_loaded() {
            // The note that all regions may be dirty stays in force.
            return;
        }
        let turn = volume.note.writing.enter().await;
        if volume.note.distrusts.load(Ordering::Relaxed) {
            drop(turn);
            self.write_down_now().await;
            return;
        }
        let note = match self.exact_ranges().await {
            Some(dirty) => {
                let cache = self.0.cache.store.uuid();
                Note { cache, distrusted: false, exact: true, dirty }
            }
            None => self.region_note(),
        };
        let (lane, late) = (self.0.lane(), &volume.intent.late);
        let written = ledger::write_in_time(lane, &*ledger, &volume.name, note, late);
        if let Err(error) = written.await {
            tracing::warn!(%error, volume = volume.name, "the dirty blocks cannot be noted in the ledger");
        }
    }

    /// Records that no clean copy and no sample of the origin may be trusted when the cache device
    /// is opened again. Returns `false` if neither the ledger nor the device could record it.
    pub(crate) async fn distrust(self) -> bool {
        self.note_dirty(&(0..0)).await.is_ok()
            || (!self.0.cache.health.is_hung() && self.0.store.distrust_clean().await)
    }

    /// Writes a durable note that only dirty blocks on the cache device are valid. `free`: the
    /// range in which the note must not list blocks that are no longer dirty.
    pub(crate) async fn note_dirty(self, free: &Range<u64>) -> Result<(), LedgerError> {
        let volume = &self.0.volume;
        let ledger = self.0.cache.ledger().ok_or(LedgerError::Absent)?;
        if !self.0.cache.store.loaded().await {
            // Dirty blocks that are missing in the note would count as outdated.
            return Err(LedgerError::NotLoaded);
        }
        let _turn = volume.note.writing.enter().await;
        volume.note.uses.fetch_add(1, Ordering::SeqCst);
        let noted = volume.note.dirty.lock().clone();
        let free = volume.blocks(free.clone());
        let blocks = match noted {
            Some(noted) if noted.within(&free).all(|block| self.is_dirty(block)) => return Ok(()),
            Some(noted) => self.still_dirty(&noted).await,
            None => self.all_dirty().await,
        };
        let dirty = self.ranges_of(&blocks).await;
        let cache = self.0.cache.store.uuid();
        let note = Note { cache, distrusted: true, exact: true, dirty };
        // Barrier for invariants 5, 6 and 9: the note is durable before the origin has anything
        // newer.
        ledger::write(&*ledger, &volume.name, note).await?;
        *volume.note.dirty.lock() = Some(Arc::new(blocks));
        volume.note.distrusts.store(true, Ordering::SeqCst);
        Ok(())
    }

    /// Returns ranges like [`Volume::ranges_of`]. Other tasks of the lane run meanwhile.
    async fn ranges_of(self, blocks: &DirtySet) -> Vec<Range<u64>> {
        let mut all = Vec::new();
        for (number, range) in blocks.ranges().enumerate() {
            all.push(self.0.volume.range_of(range));
            if number as u64 % LOOK_UPS_AT_ONCE == LOOK_UPS_AT_ONCE - 1 {
                yield_now().await;
            }
        }
        all
    }

    fn is_dirty(self, block: OriginBlock) -> bool {
        let found = self.0.cache.store.peek(&self.0.volume.space, block);
        found.is_some_and(|found| found.entry.dirty)
    }

    /// Returns every dirty block of the volume, from a pass over the whole index. Blocks whose
    /// state changes meanwhile may or may not be included.
    async fn all_dirty(self) -> DirtySet {
        let mut blocks = DirtySet::default();
        let space = &self.0.volume.space;
        let found = |address, _: &Entry| {
            if let Some(block) = space.block(address) {
                blocks.insert(block);
            }
        };
        self.0.store.visit(|entry| entry.dirty, found).await;
        blocks
    }

    /// Returns the blocks of a set that are still dirty.
    async fn still_dirty(self, noted: &DirtySet) -> DirtySet {
        let mut left = noted.clone();
        let mut looked_at = 0;
        for block in noted.within(&(0..u64::MAX)) {
            if !self.is_dirty(block) {
                left.remove(block);
            }
            looked_at += 1;
            if looked_at % LOOK_UPS_AT_ONCE == 0 {
                yield_now().await;
            }
        }
        left
    }

    /// Makes the engine trust a cache device again that answers after a hang: writes everything to
    /// it that it missed, then replaces the note. Called before new data is reported durable.
    ///
    /// # Errors
    /// The device has failed, or the note cannot be replaced.
    pub(crate) async fn trust_again(self) -> Result<(), CommitError> {
        if !self.0.volume.note.distrusts.load(Ordering::Relaxed) {
            return Ok(());
        }
        let _turn = loop {
            let uses = self.0.volume.note.uses.load(Ordering::SeqCst);
            self.0.store.commit().await?;
            self.0.store.sync_marks().await?;
            self.give_up_samples().await?;
            let turn = self.0.volume.note.writing.enter().await;
            if self.0.volume.note.uses.load(Ordering::SeqCst) == uses {
                break turn;
            }
            // Another task has meanwhile relied on the note for changes that the device has not
            // recorded.
        };
        if let Some(ledger) = self.0.cache.ledger() {
            let note = self.region_note();
            let written = ledger::write(&*ledger, &self.0.volume.name, note).await;
            written?;
        }
        *self.0.volume.note.dirty.lock() = None;
        self.0.volume.note.distrusts.store(false, Ordering::SeqCst);
        Ok(())
    }

    /// Keeps the note up to date; called periodically. Failed device: records the dirty blocks that
    /// only it has. Device that answers again after a hang: replaces the distrusting note. Healthy
    /// device: records where the volume may be dirty.
    pub(crate) async fn write_down(self) {
        let volume = &self.0.volume;
        if self.0.cache.ledger().is_none() || volume.state() == VolumeState::Removed {
            return;
        }
        // If an earlier call still runs, the next period tries again.
        let Some(_turn) = volume.note.update.try_enter() else { return };
        let noted = volume.note.distrusts.load(Ordering::Relaxed);
        if self.0.cache.store.health.failed() {
            let more = || volume.note.dirty.lock().as_ref().map_or(0, |noted| noted.len());
            if !noted || volume.dirty.total() < more() {
                self.write_down_now().await;
            }
        } else if self.0.cache.health.is_hung() {
            // Requests that continue without the device write the note themselves.
        } else if noted {
            if let Err(error) = self.trust_again().await {
                tracing::warn!(%error, volume = volume.name, "the cache device is not trusted yet");
            }
        } else {
            self.note_regions().await;
            self.shorten_note().await;
        }
    }

    pub(crate) async fn write_down_now(self) {
        if let Err(error) = self.note_dirty(&(0..self.0.volume.size())).await {
            tracing::warn!(%error, volume = self.0.volume.name, "the dirty blocks cannot be noted in the ledger");
        }
    }

    /// Records on a cache device that answers again that the samples were given up, if they were.
    /// Called before the note that says the same is replaced.
    ///
    /// # Errors
    /// The device has failed.
    pub(crate) async fn give_up_samples(self) -> Result<(), StoreError> {
        let samples = &self.0.volume.untouched;
        if !samples.given_up.load(Ordering::SeqCst) {
            return Ok(());
        }
        let name = &self.0.volume.name;
        let changed = self.0.store.change_volumes(|volumes, _| {
            for record in volumes.iter_mut().filter(|record| record.name == *name) {
                record.samples = None;
            }
            Ok(())
        });
        changed.await?;
        samples.given_up.store(false, Ordering::SeqCst);
        Ok(())
    }
}
