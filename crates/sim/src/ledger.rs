//! The daemon's notes outside of the cache device: for each volume, the ranges that only the cache
//! contains. If the cache device is lost, the notes name the lost ranges. The state with the notes
//! may be lost as well; then only the cache's own volume table is known.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use forebay_engine::{Ledger, Note, Noted};
use parking_lot::Mutex;

use crate::features::Feature;
use crate::presence::Presence;
use crate::shared::SimContext;
use crate::stamp::{self, SECTOR, SectorAddress};
use crate::system::name;
use crate::violation::Violation;
use crate::world::World;

struct State {
    rng: fastrand::Rng,
    notes: BTreeMap<String, Note>,
    under_way: VecDeque<(String, Note, Noted)>,
}

/// The notes; each becomes durable some time after it was written.
pub struct SimLedger {
    shared: SimContext,
    state: Mutex<State>,
}

impl SimLedger {
    pub(crate) fn new(shared: &SimContext, seed: u64) -> Arc<Self> {
        let rng = fastrand::Rng::with_seed(seed ^ 0x1ed9);
        let state = State { rng, notes: BTreeMap::new(), under_way: VecDeque::new() };
        Arc::new(SimLedger { shared: shared.clone(), state: Mutex::new(state) })
    }

    /// Makes one note durable. Returns `false` if none is in flight.
    pub(crate) fn complete_one(&self) -> bool {
        let (note, noted) = {
            let state = &mut *self.state.lock();
            let Some((volume, note, noted)) = state.under_way.pop_front() else { return false };
            state.notes.insert(volume, note.clone());
            (note, noted)
        };
        let bytes = note.dirty.iter().map(|range| range.end - range.start).sum::<u64>();
        self.shared.event(
            "noted",
            &[bytes, u64::from(note.exact), u64::from(note.distrusted)],
            format_args!("{bytes} bytes, exact {}", note.exact),
        );
        if !self.shared.tick() {
            noted(Ok(()));
        }
        true
    }

    /// The process dies: notes in flight may have arrived.
    pub(crate) fn crash(&self) {
        let state = &mut *self.state.lock();
        for (volume, note, _) in std::mem::take(&mut state.under_way) {
            if state.rng.bool() {
                state.notes.insert(volume, note);
            }
        }
    }

    /// Sometimes loses the state directory. Returns whether it did.
    fn perhaps_lose(&self) -> bool {
        let state = &mut *self.state.lock();
        let lost = state.rng.u32(0..3) == 0;
        if lost {
            state.notes.clear();
        }
        lost
    }
}

impl Ledger for SimLedger {
    fn note_of(&self, volume: &str) -> Option<Note> {
        self.state.lock().notes.get(volume).cloned()
    }

    fn write(&self, volume: &str, note: Note, noted: Noted) {
        self.state.lock().under_way.push_back((volume.to_owned(), note, noted));
    }
}

impl World<'_> {
    /// Sometimes loses the state while the system is down, so that volumes are adopted from the
    /// cache.
    pub(crate) fn perhaps_lose_state(&mut self) {
        // This is not done in worlds whose cache device fails: without the state, a device that
        // failed and came back cannot be detected.
        let Some(ledger) = self.ledger.as_ref().filter(|_| self.profile.keeps_cached_data()) else {
            return;
        };
        self.adopts = ledger.perhaps_lose();
        if self.adopts {
            self.shared.fault("state lost", &[], format_args!("nothing is known but the cache"));
        }
    }

    /// Checks that all data not covered by notes is on the origins, so that the loss of the cache
    /// device would lose nothing else. Covers volumes with a successful flush or FUA write in this
    /// run.
    ///
    /// # Errors
    /// Data would be lost that no note covers.
    pub(crate) fn judge_notes(&mut self) -> Result<(), Violation> {
        let Some(ledger) =
            self.ledger.clone().filter(|_| self.profile.features.has(Feature::Ledger))
        else {
            return Ok(());
        };
        for volume in std::mem::take(&mut self.noted) {
            if !matches!(self.presence[usize::from(volume)], Presence::Running | Presence::Stopped)
            {
                continue;
            }
            let dirty = ledger.note_of(&name(volume)).map_or(Vec::new(), |note| note.dirty);
            let (seed, oracle) = (self.shared.seed, &self.oracle);
            self.origins[usize::from(volume)].with_image(|image| {
                (0..oracle.sectors(volume)).try_for_each(|sector| {
                    let at = sector * SECTOR as u64;
                    if dirty.iter().any(|range| range.contains(&at)) {
                        return Ok(());
                    }
                    let place = SectorAddress { volume, sector };
                    let found = stamp::classify(image.durable(sector), seed, place);
                    oracle.judge_alone(place, found)
                })
            })?;
        }
        Ok(())
    }
}
