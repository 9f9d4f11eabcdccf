//! Where a volume may be dirty, written down outside of the cache device before a flush is answered.
//!
//! If the cache device is gone when the daemon starts, this is what is known of the dirty blocks that
//! only it had. The origin is cut into at most 4096 regions; one of which a block becomes dirty goes
//! into the note with the next commit, and leaves it some time after its last dirty block. What a
//! write pays is a look at one bit when it makes a clean block dirty.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use forebay_policy::sweep::DirtyMap;
use forebay_store::planted::{self, PlantedBug};
use parking_lot::Mutex;

use crate::lane::LaneVolume;
use crate::ledger::{self, Note, joined};
use crate::volume::Volume;

/// Regions of a note that are no longer dirty before it is worth making a shorter one.
const WORTH_SHRINKING: u64 = 16;

/// See the module.
pub(crate) struct Intent {
    /// Regions that need not be asked for: they are in the note, or there is no ledger.
    noted: Box<[AtomicU64]>,
    /// Regions that have to be in the next note.
    wanted: Box<[AtomicU64]>,
    any_wanted: AtomicBool,
    /// What the note says, which may be more. Also tells whether a note is being shortened.
    filed: Mutex<(Vec<u64>, bool)>,
}

fn words(regions: usize) -> Box<[AtomicU64]> {
    (0..regions.div_ceil(64)).map(|_| AtomicU64::new(0)).collect()
}

impl Intent {
    pub(crate) fn new(regions: usize) -> Self {
        let (noted, wanted) = (words(regions), words(regions));
        let filed = Mutex::new((vec![0; noted.len()], false));
        Intent { noted, wanted, any_wanted: AtomicBool::new(false), filed }
    }

    /// A block of a region became dirty.
    #[inline]
    pub(crate) fn dirtied(&self, region: usize) {
        let bit = 1 << (region % 64);
        if self.noted[region / 64].load(Ordering::Relaxed) & bit == 0 {
            self.wanted[region / 64].fetch_or(bit, Ordering::SeqCst);
            self.any_wanted.store(true, Ordering::SeqCst);
        }
    }

    /// There is no ledger, so there is nothing to ask for.
    pub(crate) fn is_pointless(&self) {
        self.noted.iter().for_each(|word| word.store(u64::MAX, Ordering::Relaxed));
        self.any_wanted.store(false, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn is_wanted(&self) -> bool {
        self.any_wanted.load(Ordering::SeqCst)
    }
}

fn count(words: &[u64]) -> u64 {
    words.iter().map(|word| u64::from(word.count_ones())).sum()
}

/// The regions that have dirty blocks.
fn dirty_regions(map: &DirtyMap) -> Vec<u64> {
    let mut words = vec![0u64; map.regions().div_ceil(64)];
    for region in (0..map.regions()).filter(|region| map.dirty_in(*region) > 0) {
        words[region / 64] |= 1 << (region % 64);
    }
    words
}

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
        if !intent.is_wanted() || self.volume.is_noted.load(std::sync::atomic::Ordering::Relaxed) {
            return;
        }
        let _turn = self.volume.note_gate.enter().await;
        if !intent.any_wanted.swap(false, Ordering::SeqCst) {
            // Whoever had its turn before has done it.
            return;
        }
        let wanted: Vec<u64> =
            intent.wanted.iter().map(|word| word.swap(0, Ordering::SeqCst)).collect();
        let mut regions = intent.filed.lock().0.clone();
        regions.iter_mut().zip(&wanted).for_each(|(word, wanted)| *word |= wanted);
        if self.file(&regions).await {
            for (noted, wanted) in intent.noted.iter().zip(&wanted) {
                noted.fetch_or(*wanted, Ordering::SeqCst);
            }
        } else {
            for (word, wanted) in intent.wanted.iter().zip(&wanted) {
                word.fetch_or(*wanted, Ordering::SeqCst);
            }
            intent.any_wanted.store(true, Ordering::SeqCst);
        }
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

    async fn file(&self, regions: &[u64]) -> bool {
        let Some(ledger) = self.cache.ledger() else { return false };
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
        if volume.is_noted.load(Ordering::Relaxed) {
            self.write_down_now().await;
            return;
        }
        let _turn = volume.note_gate.enter().await;
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
