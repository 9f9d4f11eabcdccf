//! Notes of where a volume may be dirty, kept up to date in the daemon's ledger.

use std::ops::Range;
use std::sync::atomic::Ordering;

use forebay_store::planted::{self, PlantedBug};

use crate::lane::LaneVolume;
use crate::state::intent::{WORTH_SHRINKING, count, dirty_regions};
use crate::state::ledger::{self, Note, joined};
use crate::state::volume::Volume;

impl Volume {
    /// Regions as byte ranges of the volume.
    fn region_ranges(&self, regions: &[u64]) -> Vec<Range<u64>> {
        let all = (0..self.dirty.regions()).filter(|at| regions[at / 64] >> (at % 64) & 1 == 1);
        joined(all.map(|region| {
            let blocks = self.dirty.blocks_of(region);
            let edge = |block: u64| self.block.bytes().saturating_mul(block);
            let byte = |block| edge(block).saturating_sub(self.alignment()).min(self.size());
            byte(blocks.start)..byte(blocks.end)
        }))
    }
}

impl LaneVolume {
    /// Sees to it that the note has every region of which a block has become dirty. To be called before
    /// anything is called durable. A note that cannot be written is logged; data is not at risk.
    pub(crate) async fn note_regions(&self) {
        let intent = &self.volume.intent;
        if planted::has(PlantedBug::NotesForgotten) {
            return;
        }
        if !intent.is_wanted() || self.volume.is_noted.load(Ordering::Relaxed) {
            return;
        }
        let _turn = self.volume.note_gate.enter().await;
        let wanted: Vec<u64> =
            intent.wanted.iter().map(|word| word.swap(0, Ordering::SeqCst)).collect();
        // Whoever had its turn before may have done it.
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
        // Not before the note is durable: until then, every other flush has to wait for its turn.
        intent.all_noted();
    }

    fn note_of_regions(&self, regions: &[u64]) -> Note {
        Note {
            cache: self.cache.store.uuid(),
            distrusted: false,
            exact: false,
            dirty: self.volume.region_ranges(regions),
        }
    }

    /// The note that takes the place of one that said that the cache device does not count.
    pub(crate) fn region_note(&self) -> Note {
        let mut regions = self.volume.intent.filed.lock().0.clone();
        let dirty = dirty_regions(&self.volume.dirty);
        regions.iter_mut().zip(dirty).for_each(|(word, dirty)| *word |= dirty);
        self.note_of_regions(&regions)
    }

    /// To be called within the note's gate. `false`: the note does not say so.
    async fn file(&self, regions: &[u64]) -> bool {
        let Some(ledger) = self.cache.ledger() else { return false };
        if self.volume.is_noted.load(Ordering::Relaxed) {
            // Since the caller looked, the note says that the cache device is not trusted, and has to
            // go on saying so (invariants 5, 6 and 9).
            return false;
        }
        let note = self.note_of_regions(regions);
        match ledger::write(&*ledger, &self.volume.name, note).await {
            Ok(()) => {
                self.volume.intent.filed.lock().0 = regions.to_vec();
                true
            }
            Err(error) => {
                tracing::warn!(error, volume = self.volume.name, "what is dirty cannot be noted");
                false
            }
        }
    }

    /// Takes regions out of the note that have had no dirty block for a while; one step of it. First
    /// they have to be asked for again, then, a look later, those still without a dirty block go: a
    /// write that saw the old bit has counted its block by then.
    pub(crate) async fn shorten_note(&self) {
        let intent = &self.volume.intent;
        let dirty = dirty_regions(&self.volume.dirty);
        let (filed, begun) = intent.filed.lock().clone();
        if begun {
            let _turn = self.volume.note_gate.enter().await;
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

    /// Notes exactly what is dirty in a volume that is stopping.
    pub(crate) async fn note_the_end(&self) {
        let volume = &self.volume;
        let Some(ledger) = self.cache.ledger() else { return };
        let turn = volume.note_gate.enter().await;
        if volume.is_noted.load(Ordering::Relaxed) {
            drop(turn);
            self.write_down_now().await;
            return;
        }
        let note = Note {
            cache: self.cache.store.uuid(),
            distrusted: false,
            exact: true,
            dirty: volume.byte_ranges(self.all_dirty().into_iter()),
        };
        if let Err(error) = ledger::write(&*ledger, &volume.name, note).await {
            tracing::warn!(error, volume = volume.name, "what is dirty cannot be noted");
        }
    }
}
