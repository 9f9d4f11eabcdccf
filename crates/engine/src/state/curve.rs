//! The miss-ratio curve of a volume, and the predicted results of other settings. `serve::observe`
//! feeds it. A RAM tier in front of the volume has a curve of its own, of all client requests.
//!
//! Each lane counts blocks and checks whether a request touches the sample. The sampled blocks of
//! these requests, one in some dozens or thousands, are queued under a lock that is held only for
//! that. [`VolumeCurve::catch_up`] feeds them to the curve and the shadow caches; the daemon calls
//! it from a separate thread. A lane does so only if it finds many blocks queued.
//!
//! This must not slow requests down. The first sample is therefore a constant, so most requests are
//! ruled out without a memory access, and the counters are next to others that are updated anyway.

use std::cell::Cell;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use forebay_core::Nanos;
use forebay_lane::{MemoryBudget, MemoryHold, MemoryUse};
use forebay_policy::curve::{Access, Live, LiveCurve, Sample};
use forebay_policy::exact::Key;
use forebay_policy::whatif::{Prediction, Rules, Setup, WhatIf};
use forebay_settings::Settings;
use parking_lot::Mutex;

/// Chooses the sampled blocks of all volumes.
const SEED: u64 = 0;

/// The first sample; later samples are subsets of it.
pub const FIRST: Sample = Live::first_sample(SEED);

/// Number of queued accesses after which a lane processes them itself.
const ASIDE: usize = 4 << 10;

enum CurveEvent {
    Access(Access, Key),
    Discarded(Range<Key>),
    /// The block's last access has bypassed the cache.
    Bypassed(Access, Key),
}

/// Sampled requests that lanes have queued.
struct Aside {
    /// The sample: which blocks are queued.
    sample: Sample,
    events: Vec<CurveEvent>,
}

/// The results derived from the sample.
struct SampleAnalysis {
    live: Live,
    /// Empty buffer with capacity, which a lane swaps for the queued events.
    spare: Vec<CurveEvent>,
    /// Memory held for `what_if`.
    memory: Option<MemoryHold>,
    what_if: Option<WhatIf>,
}

/// The curve and the shadow caches of one volume.
pub struct VolumeCurve {
    /// Number of dirty blocks at the last report.
    dirty: AtomicU64,
    is_off: AtomicBool,
    aside: Mutex<Aside>,
    /// Locked before `aside`.
    seen: Mutex<SampleAnalysis>,
}

impl Default for VolumeCurve {
    fn default() -> Self {
        let live = Live::new(SEED);
        VolumeCurve {
            dirty: AtomicU64::new(0),
            is_off: AtomicBool::new(false),
            aside: Mutex::new(Aside { sample: FIRST, events: Vec::new() }),
            seen: Mutex::new(SampleAnalysis {
                live,
                spare: Vec::new(),
                memory: None,
                what_if: None,
            }),
        }
    }
}

impl VolumeCurve {
    /// Queues the sampled blocks of a request, and returns the sample.
    pub fn access(&self, access: Access, keys: Range<Key>, now: impl FnOnce() -> Nanos) -> Sample {
        self.put_aside(now, |sample| {
            sample.of(keys).map(move |key| CurveEvent::Access(access, key))
        })
    }

    /// Queues a discard if it contains sampled blocks, and returns the sample.
    fn discard(&self, keys: Range<Key>, now: impl FnOnce() -> Nanos) -> Sample {
        let touched =
            |sample: Sample| sample.touches(keys.clone()).then_some(CurveEvent::Discarded(keys));
        self.put_aside(now, touched)
    }

    /// Queues the information that a request that was just observed has bypassed the cache.
    pub(crate) fn bypass(&self, access: Access, keys: Range<Key>, now: impl FnOnce() -> Nanos) {
        if FIRST.touches(keys.clone()) {
            self.put_aside(now, |sample| {
                sample.of(keys).map(move |key| CurveEvent::Bypassed(access, key))
            });
        }
    }

    fn put_aside<E: IntoIterator<Item = CurveEvent>>(
        &self,
        now: impl FnOnce() -> Nanos,
        events: impl FnOnce(Sample) -> E,
    ) -> Sample {
        let mut aside = self.aside.lock();
        let sample = aside.sample;
        aside.events.extend(events(sample));
        let many = aside.events.len() >= ASIDE;
        drop(aside);
        // If the lock is taken, another thread is processing them.
        if many && let Some(mut seen) = self.seen.try_lock() {
            self.show(&mut seen, now());
        }
        sample
    }

    /// See [`Volume::watch`](crate::state::volume::Volume::watch).
    pub(crate) fn set_off(&self, off: bool) {
        self.is_off.store(off, Ordering::Relaxed);
    }

    /// Sets the number of dirty blocks for events that are processed from now on.
    pub fn set_dirty(&self, dirty: u64) {
        self.dirty.store(dirty, Ordering::Relaxed);
    }

    /// Passes all queued events to the curve and the shadow caches. Takes a few milliseconds at
    /// most.
    pub fn catch_up(&self, now: Nanos) {
        self.show(&mut self.seen.lock(), now);
    }

    fn show(&self, seen: &mut SampleAnalysis, now: Nanos) {
        let SampleAnalysis { live, spare, what_if, .. } = seen;
        std::mem::swap(&mut self.aside.lock().events, spare);
        if let Some(what_if) = what_if {
            what_if.set_dirty(self.dirty.load(Ordering::Relaxed));
        }
        for event in spare.drain(..) {
            match event {
                CurveEvent::Access(access, Key(key)) => {
                    let _ = live.access(access, Key(key)..Key(key + 1));
                    if let Some(what_if) = what_if {
                        what_if.access(access, Key(key));
                    }
                }
                CurveEvent::Discarded(keys) => {
                    live.discard(keys.clone());
                    if let Some(what_if) = what_if {
                        what_if.remove(keys);
                    }
                }
                CurveEvent::Bypassed(access, key) => {
                    if let Some(what_if) = what_if {
                        what_if.bypassed(access, key);
                    }
                }
            }
        }
        live.settle(now);
        if let Some(what_if) = what_if {
            what_if.settle(now);
        }
        // The denser of the two samples; the other one is a subset of it.
        let own = what_if.as_ref().map(WhatIf::sample);
        let denser = own.filter(|own| own.stands_for() < live.sample().stands_for());
        self.aside.lock().sample = denser.unwrap_or(live.sample());
    }

    /// Begins to simulate other settings; `None` ends the simulation. Has no effect if the setup is
    /// unchanged. `blocks`: all blocks read and written so far.
    ///
    /// There is no memory for the simulation, which takes at most 4 MB; nothing is simulated then.
    pub fn simulate(&self, setup: Option<Setup>, blocks: (u64, u64), memory: &Arc<MemoryBudget>) {
        let mut seen = self.seen.lock();
        if seen.what_if.as_ref().map(WhatIf::setup) == setup {
            return;
        }
        // Return the memory of the old prediction first.
        seen.memory = None;
        seen.what_if = setup.and_then(|setup| {
            let mut what_if = WhatIf::new(setup, FIRST, blocks.0, blocks.1);
            let mut hold = MemoryHold::none(memory, MemoryUse::Policy);
            let fits = hold.grow_spare(what_if.most_bytes());
            seen.memory = Some(hold);
            fits.then_some(what_if)
        });
        let sample = seen.what_if.as_ref().map_or(seen.live.sample(), WhatIf::sample);
        let mut aside = self.aside.lock();
        if sample.stands_for() < aside.sample.stands_for() {
            aside.sample = sample;
        }
    }

    /// Returns the curve of everything so far; `blocks` as in [`VolumeCurve::simulate`].
    pub fn curve(&self, now: Nanos, blocks: (u64, u64)) -> LiveCurve {
        self.catch_up(now);
        let live = self.seen.lock().live.clone();
        live.into_curve(blocks.0, blocks.1)
    }

    /// Returns the predicted results of other settings since the present ones came into force (the
    /// first result is that of the present ones), and the number of blocks read and written since
    /// then. Empty if nothing is simulated.
    pub fn what_if(&self, now: Nanos, blocks: (u64, u64)) -> (Vec<Prediction>, (u64, u64)) {
        self.catch_up(now);
        let seen = self.seen.lock();
        let what_if = seen.what_if.as_ref();
        what_if.map_or_else(Default::default, |what_if| {
            let predictions = what_if.predictions(blocks.0, blocks.1);
            (predictions, what_if.accesses(blocks.0, blocks.1))
        })
    }
}

/// Sizes of a cache in blocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    /// Number of blocks that may be cached.
    pub(crate) capacity: u64,
    /// Number of blocks on the cache device.
    pub(crate) cells: u64,
}

/// Returns the simulation for a cache of these sizes with blocks of `block` bytes and these
/// settings; `None` if nothing is cached.
pub(crate) fn simulated(settings: &Settings, sizes: Sizes, block: u64) -> Option<Setup> {
    let Sizes { capacity, cells } = sizes;
    let mode = settings.effective_mode();
    let now = Rules {
        policy: settings.policy,
        admission: settings.admission,
        ram: settings.ram / block.max(1),
        ram_policy: settings.ram_policy,
    };
    let caches = mode != forebay_core::Mode::Passthrough && !settings.is_frozen() && capacity > 0;
    caches.then_some(Setup { capacity, cells, mode, now })
}

/// One lane's copy of the sample, which may be outdated for a moment: the check is repeated under
/// the lock.
pub struct Watch(Cell<Sample>);

impl Default for Watch {
    fn default() -> Self {
        Watch(Cell::new(FIRST))
    }
}

impl Watch {
    /// Passes a request that touches [`FIRST`] to `watched`.
    #[cold]
    #[inline(never)]
    pub fn access(
        &self,
        watched: &VolumeCurve,
        access: Access,
        keys: Range<Key>,
        now: impl FnOnce() -> Nanos,
    ) {
        if self.0.get().touches(keys.clone()) && !watched.is_off.load(Ordering::Relaxed) {
            self.0.set(watched.access(access, keys, now));
        }
    }

    /// Tells `watched` of a discard.
    pub fn discard(&self, watched: &VolumeCurve, keys: Range<Key>, now: impl FnOnce() -> Nanos) {
        self.0.set(watched.discard(keys, now));
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    #[test]
    fn shadow_caches_count_against_the_memory_limit_and_go_without() {
        const MIB: u64 = 1 << 20;
        let setup =
            |capacity| simulated(&Settings::default(), Sizes { capacity, cells: capacity }, 4096);
        for (limit, fits) in [(64 * MIB, false), (512 * MIB, true)] {
            let memory = Arc::new(MemoryBudget::new(limit));
            let watched = VolumeCurve::default();
            watched.simulate(setup(1 << 20), (0, 0), &memory);
            let used = memory.used(MemoryUse::Policy);
            assert_eq!((used > 0, watched.what_if(Nanos(1), (0, 0)).0.is_empty()), (fits, !fits));
            assert!(used <= 4 * MIB, "{used}");
            // Another setup replaces the present one.
            watched.simulate(setup(1 << 10), (0, 0), &memory);
            assert!(memory.used(MemoryUse::Policy) <= used);
            watched.simulate(None, (0, 0), &memory);
            assert_eq!(memory.used(MemoryUse::Policy), 0);
        }
    }
}
