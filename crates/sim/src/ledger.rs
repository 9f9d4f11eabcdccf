//! What the daemon keeps outside of the cache device: for each volume a note that names what only the
//! cache has. Whoever loses the cache device knows from it what is lost; and the state may be lost as
//! well, so that whoever opens the cache knows nothing but what its own volume table says.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use forebay_engine::{Ledger, Note, Noted};
use parking_lot::Mutex;

use crate::engine;
use crate::features::Feature;
use crate::oracle::Violation;
use crate::presence::Presence;
use crate::shared::Shared;
use crate::stamp::{self, Place, SECTOR};
use crate::world::World;

struct State {
    rng: fastrand::Rng,
    notes: BTreeMap<String, Note>,
    under_way: VecDeque<(String, Note, Noted)>,
}

/// The notes, each of which is durable some time after it was written.
pub struct SimLedger {
    shared: Shared,
    state: Mutex<State>,
}

impl SimLedger {
    pub(crate) fn new(shared: &Shared, seed: u64) -> Arc<Self> {
        let rng = fastrand::Rng::with_seed(seed ^ 0x1ed9);
        let state = State { rng, notes: BTreeMap::new(), under_way: VecDeque::new() };
        Arc::new(SimLedger { shared: shared.clone(), state: Mutex::new(state) })
    }

    /// One note becomes durable. `false`: none is on its way.
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

    /// The process dies: what was on its way may have arrived.
    pub(crate) fn crash(&self) {
        let state = &mut *self.state.lock();
        for (volume, note, _) in std::mem::take(&mut state.under_way) {
            if state.rng.bool() {
                state.notes.insert(volume, note);
            }
        }
    }

    /// The state directory is lost, sometimes. `true` if it is.
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
    /// Sometimes the state is lost while the system is down, and volumes are taken over from the cache.
    pub(crate) fn perhaps_lose_state(&mut self) {
        // A cache device that failed and came back counts as far as the state says, and is not known without.
        let Some(ledger) = self.ledger.as_ref().filter(|_| self.profile.keeps_cached_data()) else {
            return;
        };
        self.adopts = ledger.perhaps_lose();
        if self.adopts {
            self.shared.fault("state lost", &[], format_args!("nothing is known but the cache"));
        }
    }

    /// What no note names is on its origin: nothing else would be lost with the cache device. Of volumes
    /// of which something was called durable in this run.
    ///
    /// # Errors
    /// Something would be lost, and nothing says so.
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
            let dirty = ledger.note_of(&engine::name(volume)).map_or(Vec::new(), |note| note.dirty);
            let (seed, oracle) = (self.shared.seed, &self.oracle);
            self.origins[usize::from(volume)].with_image(|image| {
                (0..oracle.sectors(volume)).try_for_each(|sector| {
                    let at = sector * SECTOR as u64;
                    if dirty.iter().any(|range| range.contains(&at)) {
                        return Ok(());
                    }
                    let place = Place { volume, sector };
                    let found = stamp::classify(image.durable(sector), seed, place);
                    oracle.judge_alone(place, found)
                })
            })?;
        }
        Ok(())
    }
}
